//! The function `syscall`: programs that ask the kernel by number are answered like those that ask by name.

use crate::errno::{Outcome, Stop};
use crate::{attributes, copy, cwd, data, descriptors, dir, hook, map, names, opening, stat};
use data::At;
use libc::{c_char, c_int, c_long, mode_t, off_t};

const HERE: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// The offset of `preadv` comes in two halves, of which 64-bit machines use the first.
fn at(offset: usize) -> Outcome<At> {
    At::offset(offset as off_t)
}

fn small(outcome: Outcome<c_int>) -> Outcome<c_long> {
    outcome.map(c_long::from)
}

fn large(outcome: Outcome<isize>) -> Outcome<c_long> {
    outcome.map(|value| value as c_long)
}

/// Calls on descriptors.
fn on_descriptor(number: c_long, a: [usize; 6]) -> Outcome<c_long> {
    let fd = a[0] as c_int;
    match number {
        libc::SYS_read => large(data::read_fd(fd, a[1] as _, a[2], At::Current)),
        libc::SYS_write => large(data::write_fd(fd, a[1] as _, a[2], At::Current)),
        libc::SYS_pread64 => large(data::read_fd(fd, a[1] as _, a[2], at(a[3])?)),
        libc::SYS_pwrite64 => large(data::write_fd(fd, a[1] as _, a[2], at(a[3])?)),
        libc::SYS_readv => large(data::read_vector(fd, a[1] as _, a[2] as c_int, At::Current)),
        libc::SYS_writev => large(data::write_vector(fd, a[1] as _, a[2] as c_int, At::Current)),
        libc::SYS_preadv => large(data::read_vector(fd, a[1] as _, a[2] as c_int, at(a[3])?)),
        libc::SYS_pwritev => large(data::write_vector(fd, a[1] as _, a[2] as c_int, at(a[3])?)),
        libc::SYS_lseek => data::seek(fd, a[1] as off_t, a[2] as c_int),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs => small(data::sync_fd(fd)),
        libc::SYS_ftruncate => small(data::truncate_open(fd, a[1] as off_t)),
        libc::SYS_fallocate => small(data::allocate(fd, a[1] as c_int, a[2] as off_t, a[3] as off_t)),
        libc::SYS_fstat => small(stat::of(fd, a[1] as _)),
        libc::SYS_getdents64 => large(dir::entries(fd, a[1] as _, a[2])),
        libc::SYS_close => small(descriptors::close_fd(fd)),
        libc::SYS_fcntl => small(descriptors::control(fd, a[1] as c_int, a[2] as _)),
        libc::SYS_ioctl => small(descriptors::device_control(fd, a[1] as _, a[2] as _)),
        libc::SYS_dup => small(descriptors::control(fd, libc::F_DUPFD, std::ptr::null_mut())),
        libc::SYS_dup3 => small(descriptors::duplicate_to(fd, a[1] as c_int, a[2] as c_int)),
        libc::SYS_close_range => small(descriptors::close_some(a[0] as _, a[1] as _, a[2] as _)),
        libc::SYS_copy_file_range => large(copy::range(fd, a[1] as _, a[2] as c_int, a[3] as _, a[4])),
        libc::SYS_mmap => {
            let mapped =
                map::map(a[0] as _, a[1], a[2] as c_int, a[3] as c_int, a[4] as c_int, a[5] as off_t);
            mapped.map(|address| address as c_long)
        }
        _ => Err(Stop::Foreign),
    }
}

/// Calls on paths from a directory.
fn on_path(number: c_long, a: [usize; 6]) -> Outcome<c_long> {
    let (dirfd, path) = (a[0] as c_int, a[1] as *const c_char);
    let contained = |outcome: Outcome<c_int>| match outcome {
        // The replaced path would have to go to the number, which is not worth a rule of its own.
        Err(Stop::Outside(_)) => crate::errno::fail(libc::ENOENT),
        other => small(other),
    };
    match number {
        libc::SYS_openat => contained(opening::open_at(dirfd, path, a[2] as c_int, a[3] as mode_t)),
        libc::SYS_openat2 => contained(opening::open_how(dirfd, path, a[2] as _, a[3])),
        libc::SYS_newfstatat => contained(stat::at(dirfd, path, a[2] as _, a[3] as c_int)),
        libc::SYS_statx => contained(stat::extended_at(dirfd, path, a[2] as c_int, a[3] as u32, a[4] as _)),
        libc::SYS_faccessat => contained(stat::access_at(dirfd, path, a[2] as c_int, 0)),
        libc::SYS_faccessat2 => contained(stat::access_at(dirfd, path, a[2] as c_int, a[3] as c_int)),
        libc::SYS_mkdirat => contained(names::make_dir(dirfd, path, a[2] as mode_t)),
        libc::SYS_unlinkat => contained(names::remove_at(dirfd, path, a[2] as c_int)),
        libc::SYS_renameat2 => {
            contained(names::rename_at(dirfd, path, a[2] as c_int, a[3] as _, a[4] as u32))
        }
        libc::SYS_linkat => contained(names::link_at(dirfd, path, a[2] as c_int, a[3] as _, a[4] as c_int)),
        libc::SYS_symlinkat => contained(names::symlink_at(a[0] as _, a[1] as c_int, a[2] as _)),
        libc::SYS_readlinkat => large(names::read_link_at(dirfd, path, a[2] as _, a[3])),
        libc::SYS_utimensat => contained(attributes::times_at(dirfd, path, a[2] as _, a[3] as c_int)),
        libc::SYS_truncate => contained(data::truncate_path(a[0] as _, a[1] as off_t)),
        libc::SYS_chdir => contained(cwd::change(a[0] as _)),
        libc::SYS_fchdir => contained(cwd::change_to(dirfd)),
        libc::SYS_getcwd => {
            let told = cwd::tell(a[0] as _, a[1])?;
            // SAFETY: just filled with a path and its zero.
            Ok(unsafe { libc::strlen(told) } as c_long + 1)
        }
        _ => older(number, a, contained),
    }
}

/// Calls that newer machines have no numbers for.
#[cfg(target_arch = "x86_64")]
fn older(
    number: c_long,
    a: [usize; 6],
    contained: impl Fn(Outcome<c_int>) -> Outcome<c_long>,
) -> Outcome<c_long> {
    let path = a[0] as *const c_char;
    match number {
        libc::SYS_open => contained(opening::open_at(HERE, path, a[1] as c_int, a[2] as mode_t)),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            contained(opening::open_at(HERE, path, flags, a[1] as mode_t))
        }
        libc::SYS_stat => contained(stat::at(HERE, path, a[1] as _, 0)),
        libc::SYS_lstat => contained(stat::at(HERE, path, a[1] as _, NOFOLLOW)),
        libc::SYS_access => contained(stat::access_at(HERE, path, a[1] as c_int, 0)),
        libc::SYS_mkdir => contained(names::make_dir(HERE, path, a[1] as mode_t)),
        libc::SYS_rmdir => contained(names::remove_at(HERE, path, libc::AT_REMOVEDIR)),
        libc::SYS_unlink => contained(names::remove_at(HERE, path, 0)),
        libc::SYS_rename => contained(names::rename_at(HERE, path, HERE, a[1] as _, 0)),
        libc::SYS_dup2 => contained(descriptors::duplicate_to_same(a[0] as c_int, a[1] as c_int)),
        _ => Err(Stop::Foreign),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: c_long, _: [usize; 6], _: impl Fn(Outcome<c_int>) -> Outcome<c_long>) -> Outcome<c_long> {
    Err(Stop::Foreign)
}

fn dispatch(number: c_long, args: [usize; 6]) -> Outcome<c_long> {
    match on_descriptor(number, args) {
        Err(Stop::Foreign) => on_path(number, args),
        other => other,
    }
}

hook::hooks! {
    fn [syscall](number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long =>
        dispatch(number, [a, b, c, d, e, f]);
}
