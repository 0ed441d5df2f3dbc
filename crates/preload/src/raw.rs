//! System calls by number: they have the same effect as the functions of the C library.

use crate::errno::{Errno, Outcome, Stop};
use crate::kernel::try_system_call;
use crate::{
    attributes, backing, copy, credentials, cwd, data, descriptors, dir, file_size, handlers, hook,
    kernel_aio, locks, map, names, opening, program, refused, rings, special, stat,
};
use data::At;
use libc::{c_char, c_int, c_long, c_uint, c_void, mode_t, off_t};

const HERE: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;

/// The arguments of a call, each read as the type that the call takes.
#[derive(Clone, Copy)]
struct Args([usize; 6]);

impl Args {
    fn int(self, at: usize) -> c_int {
        self.0[at] as c_int
    }

    fn uint(self, at: usize) -> c_uint {
        self.0[at] as c_uint
    }

    fn offset(self, at: usize) -> off_t {
        self.0[at] as off_t
    }

    fn size(self, at: usize) -> usize {
        self.0[at]
    }

    fn pointer<T>(self, at: usize) -> *mut T {
        self.0[at] as *mut T
    }

    fn path(self, at: usize) -> *const c_char {
        self.0[at] as *const c_char
    }

    /// The offset of `preadv` comes in two halves; 64-bit machines use the first.
    fn at(self, at: usize) -> Outcome<At> {
        At::offset(self.offset(at))
    }
}

/// A result as a machine word.
trait Word {
    fn word(self) -> c_long;
}

impl Word for c_int {
    fn word(self) -> c_long {
        self.into()
    }
}

impl Word for isize {
    fn word(self) -> c_long {
        self as c_long
    }
}

impl Word for u32 {
    fn word(self) -> c_long {
        self.into()
    }
}

impl<T> Word for *mut T {
    fn word(self) -> c_long {
        self as c_long
    }
}

fn word(outcome: Outcome<impl Word>) -> Outcome<c_long> {
    outcome.map(Word::word)
}

/// Reads, writes and other transfers.
fn transfers(number: c_long, a: Args) -> Outcome<c_long> {
    let fd = a.int(0);
    match number {
        libc::SYS_read => word(data::read_fd(fd, a.pointer(1), a.size(2), At::Current)),
        libc::SYS_write => word(data::write_fd(fd, a.pointer(1), a.size(2), At::Current)),
        libc::SYS_pread64 => word(data::read_fd(fd, a.pointer(1), a.size(2), a.at(3)?)),
        libc::SYS_pwrite64 => word(data::write_fd(fd, a.pointer(1), a.size(2), a.at(3)?)),
        libc::SYS_readv => word(data::read_vector(fd, a.pointer(1), a.int(2), At::Current)),
        libc::SYS_writev => word(data::write_vector(fd, a.pointer(1), a.int(2), At::Current)),
        libc::SYS_preadv => word(data::read_vector(fd, a.pointer(1), a.int(2), a.at(3)?)),
        libc::SYS_pwritev => word(data::write_vector(fd, a.pointer(1), a.int(2), a.at(3)?)),
        libc::SYS_preadv2 => word(data::read_vector2(fd, a.pointer(1), a.int(2), a.offset(3), a.int(5))),
        libc::SYS_pwritev2 => word(data::write_vector2(fd, a.pointer(1), a.int(2), a.offset(3), a.int(5))),
        libc::SYS_sendfile => word(copy::send(fd, a.int(1), a.pointer(2), a.size(3))),
        libc::SYS_copy_file_range => {
            word(copy::range(fd, a.pointer(1), a.int(2), a.pointer(3), a.size(4), a.uint(5)))
        }
        libc::SYS_splice => {
            word(copy::splice_between(fd, a.pointer(1), a.int(2), a.pointer(3), a.size(4), a.uint(5)))
        }
        libc::SYS_vmsplice => word(copy::splice_memory(fd)),
        libc::SYS_tee => word(copy::between_pipes(fd, a.int(1))),
        libc::SYS_lseek => data::seek(fd, a.offset(1), a.int(2)),
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_syncfs => word(data::sync_fd(fd)),
        libc::SYS_sync_file_range => word(data::sync_range(fd, a.offset(1), a.offset(2), a.uint(3))),
        libc::SYS_readahead => word(data::read_ahead(fd)),
        libc::SYS_ftruncate => word(data::truncate_open(fd, a.offset(1))),
        libc::SYS_fallocate => word(data::allocate(fd, a.int(1), a.offset(2), a.offset(3))),
        // The system call fails with its error; the function returns it.
        libc::SYS_fadvise64 => match data::advise(fd, a.offset(2), a.int(3))? {
            0 => Ok(0),
            error => Err(Errno(error).into()),
        },
        libc::SYS_getdents64 => word(dir::entries(fd, a.pointer(1), a.size(2))),
        _ => Err(Stop::Foreign),
    }
}

/// Other calls on descriptors, and on memory.
fn on_descriptor(number: c_long, a: Args) -> Outcome<c_long> {
    let fd = a.int(0);
    match number {
        libc::SYS_fstat => word(stat::of(fd, a.pointer(1))),
        libc::SYS_fstatfs => word(stat::fill_statfs(stat::by_fd(fd), a.pointer(1))),
        libc::SYS_close => word(descriptors::close_fd(fd)),
        libc::SYS_fcntl => word(descriptors::control(fd, a.int(1), a.pointer(2))),
        libc::SYS_ioctl => word(descriptors::device_control(fd, a.size(1) as _, a.pointer(2))),
        libc::SYS_dup => word(descriptors::control(fd, libc::F_DUPFD, std::ptr::null_mut())),
        libc::SYS_dup3 => word(descriptors::duplicate_to(fd, a.int(1), a.int(2))),
        libc::SYS_close_range => word(descriptors::close_some(a.uint(0), a.uint(1), a.uint(2))),
        libc::SYS_sendmsg => word(descriptors::sends(fd, a.pointer(1), a.int(2))),
        libc::SYS_sendmmsg => word(descriptors::sends_many(fd, a.pointer(1), a.uint(2))),
        libc::SYS_sendto => {
            word(special::send_to(fd, a.pointer(1), a.size(2), a.int(3), a.pointer(4), a.uint(5)))
        }
        libc::SYS_recvmsg => word(descriptors::receive(fd, a.pointer(1), a.int(2))),
        libc::SYS_recvmmsg => {
            word(descriptors::receive_many(fd, a.pointer(1), a.uint(2), a.int(3), a.pointer(4)))
        }
        libc::SYS_flock => word(locks::whole(fd, a.int(1))),
        libc::SYS_bind => word(special::bind_socket(fd, a.pointer(1), a.uint(2))),
        libc::SYS_connect => word(special::connect_socket(fd, a.pointer(1), a.uint(2))),
        libc::SYS_fchdir => word(cwd::change_to(fd)),
        libc::SYS_fchmod => word(attributes::change(attributes::file_of(fd), attributes::mode(a.uint(1)))),
        libc::SYS_fchown => {
            word(attributes::change(attributes::file_of(fd), attributes::owner(a.uint(1), a.uint(2))))
        }
        libc::SYS_fgetxattr => {
            word(attributes::get(attributes::file_of(fd), a.path(1), a.pointer(2), a.size(3)))
        }
        libc::SYS_fsetxattr => {
            word(attributes::set(attributes::file_of(fd), a.path(1), a.pointer(2), a.size(3), a.int(4)))
        }
        libc::SYS_flistxattr => word(attributes::list(attributes::file_of(fd), a.pointer(1), a.size(2))),
        libc::SYS_fremovexattr => word(attributes::remove(attributes::file_of(fd), a.path(1))),
        libc::SYS_mmap => word(map::map(a.pointer(0), a.size(1), a.int(2), a.int(3), a.int(4), a.offset(5))),
        libc::SYS_munmap => word(map::unmap(a.pointer(0), a.size(1))),
        libc::SYS_mremap => word(map::remap(a.pointer(0), a.size(1), a.size(2), a.int(3), a.pointer(4))),
        libc::SYS_msync => word(map::synchronise(a.pointer(0), a.size(1), a.int(2))),
        libc::SYS_umask => word(opening::note_mask(a.uint(0))),
        libc::SYS_prlimit64 => word(file_size::change(fd, a.offset(1), a.pointer(2), a.pointer(3))),
        _ => Err(Stop::Foreign),
    }
}

/// Asynchronous I/O of the kernel.
fn asynchronous(number: c_long, a: Args) -> Outcome<c_long> {
    match number {
        libc::SYS_io_setup => kernel_aio::set_up(a.uint(0), a.pointer(1)),
        libc::SYS_io_destroy => kernel_aio::destroy(a.size(0)),
        libc::SYS_io_submit => kernel_aio::submit(a.size(0), a.offset(1), a.pointer(2)),
        libc::SYS_io_cancel => kernel_aio::cancel(a.size(0), a.size(1), a.size(2)),
        libc::SYS_io_getevents | kernel_aio::WITH_SIGNALS => kernel_aio::events(number, a.0),
        libc::SYS_io_uring_setup => rings::set_up(a.size(0), a.pointer(1)),
        libc::SYS_io_uring_enter => rings::enter(a.0),
        libc::SYS_io_uring_register => rings::register(a.0),
        _ => Err(Stop::Foreign),
    }
}

/// Calls on paths from a directory.
fn on_path_at(number: c_long, a: Args) -> Outcome<c_long> {
    let (dirfd, path) = (a.int(0), a.path(1));
    match number {
        libc::SYS_openat => word(opening::open_at(dirfd, path, a.int(2), a.uint(3) as mode_t)),
        libc::SYS_openat2 => word(opening::open_how(dirfd, path, a.pointer(2), a.size(3))),
        libc::SYS_newfstatat => word(stat::at(dirfd, path, a.pointer(2), a.int(3))),
        libc::SYS_statx => word(stat::extended_at(dirfd, path, a.int(2), a.uint(3), a.pointer(4))),
        libc::SYS_faccessat => word(stat::access_at(dirfd, path, a.int(2), 0)),
        libc::SYS_faccessat2 => word(stat::access_at(dirfd, path, a.int(2), a.int(3))),
        libc::SYS_mkdirat => word(names::make_dir(dirfd, path, a.uint(2))),
        libc::SYS_mknodat => word(opening::make_node(dirfd, path, a.uint(2), a.size(3) as _)),
        libc::SYS_unlinkat => word(names::remove_at(dirfd, path, a.int(2))),
        libc::SYS_renameat2 => word(names::rename_at(dirfd, path, a.int(2), a.path(3), a.uint(4))),
        libc::SYS_renameat => word(names::rename_at(dirfd, path, a.int(2), a.path(3), 0)),
        libc::SYS_linkat => word(names::link_at(dirfd, path, a.int(2), a.path(3), a.int(4))),
        libc::SYS_symlinkat => word(names::symlink_at(a.path(0), a.int(1), a.path(2))),
        libc::SYS_readlinkat => word(names::read_link_at(dirfd, path, a.pointer(2), a.size(3))),
        libc::SYS_utimensat => word(attributes::times_at(dirfd, path, a.pointer(2), a.int(3))),
        libc::SYS_fchmodat => word(attributes::mode_at(dirfd, path, a.uint(2), 0)),
        libc::SYS_fchmodat2 => word(attributes::mode_at(dirfd, path, a.uint(2), a.int(3))),
        libc::SYS_fchownat => {
            let file = attributes::file_at(dirfd, path, a.int(4));
            word(attributes::change(file, attributes::owner(a.uint(2), a.uint(3))))
        }
        libc::SYS_execveat => word(program::run_at(dirfd, path, a.pointer(2), a.pointer(3), a.int(4))),
        libc::SYS_name_to_handle_at => word(refused::at(dirfd, path)),
        libc::SYS_fanotify_mark => word(refused::at(a.int(3), a.path(4))),
        _ => Err(Stop::Foreign),
    }
}

/// Calls on paths from the working directory.
fn on_path(number: c_long, a: Args) -> Outcome<c_long> {
    let path = a.path(0);
    let file = |flags| attributes::file_at(HERE, path, flags);
    match number {
        libc::SYS_truncate => word(data::truncate_path(path, a.offset(1))),
        libc::SYS_chdir => word(cwd::change(path)),
        libc::SYS_chroot => word(refused::change_root(path)),
        libc::SYS_getcwd => {
            let current = cwd::current_dir(a.pointer(0), a.size(1))?;
            // SAFETY: just filled with a path and its terminating zero.
            Ok(unsafe { libc::strlen(current) } as c_long + 1)
        }
        libc::SYS_statfs => word(stat::fill_statfs(stat::by_path(path), a.pointer(1))),
        libc::SYS_execve => word(program::run(HERE, path, a.pointer(1), a.pointer(2))),
        libc::SYS_inotify_add_watch => word(refused::watch(a.path(1))),
        libc::SYS_getxattr => word(attributes::get(file(0), a.path(1), a.pointer(2), a.size(3))),
        libc::SYS_lgetxattr => word(attributes::get(file(NOFOLLOW), a.path(1), a.pointer(2), a.size(3))),
        libc::SYS_setxattr => word(attributes::set(file(0), a.path(1), a.pointer(2), a.size(3), a.int(4))),
        libc::SYS_lsetxattr => {
            word(attributes::set(file(NOFOLLOW), a.path(1), a.pointer(2), a.size(3), a.int(4)))
        }
        libc::SYS_listxattr => word(attributes::list(file(0), a.pointer(1), a.size(2))),
        libc::SYS_llistxattr => word(attributes::list(file(NOFOLLOW), a.pointer(1), a.size(2))),
        libc::SYS_removexattr => word(attributes::remove(file(0), a.path(1))),
        libc::SYS_lremovexattr => word(attributes::remove(file(NOFOLLOW), a.path(1))),
        _ => older(number, a),
    }
}

/// Calls that newer architectures have no numbers for.
#[cfg(target_arch = "x86_64")]
fn older(number: c_long, a: Args) -> Outcome<c_long> {
    let path = a.path(0);
    let file = |flags| attributes::file_at(HERE, path, flags);
    match number {
        libc::SYS_open => word(opening::open_at(HERE, path, a.int(1), a.uint(2) as mode_t)),
        libc::SYS_creat => {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            word(opening::open_at(HERE, path, flags, a.uint(1) as mode_t))
        }
        libc::SYS_stat => word(stat::at(HERE, path, a.pointer(1), 0)),
        libc::SYS_lstat => word(stat::at(HERE, path, a.pointer(1), NOFOLLOW)),
        libc::SYS_access => word(stat::access_at(HERE, path, a.int(1), 0)),
        libc::SYS_mkdir => word(names::make_dir(HERE, path, a.uint(1))),
        libc::SYS_mknod => word(opening::make_node(HERE, path, a.uint(1), a.size(2) as _)),
        libc::SYS_rmdir => word(names::remove_at(HERE, path, libc::AT_REMOVEDIR)),
        libc::SYS_unlink => word(names::remove_at(HERE, path, 0)),
        libc::SYS_rename => word(names::rename_at(HERE, path, HERE, a.path(1), 0)),
        libc::SYS_link => word(names::link_at(HERE, path, HERE, a.path(1), 0)),
        libc::SYS_symlink => word(names::symlink_at(path, HERE, a.path(1))),
        libc::SYS_readlink => word(names::read_link_at(HERE, path, a.pointer(1), a.size(2))),
        libc::SYS_chmod => word(attributes::change(file(0), attributes::mode(a.uint(1)))),
        libc::SYS_chown => word(attributes::change(file(0), attributes::owner(a.uint(1), a.uint(2)))),
        libc::SYS_lchown => word(attributes::change(file(NOFOLLOW), attributes::owner(a.uint(1), a.uint(2)))),
        libc::SYS_utime => word(attributes::with(file(0), || attributes::oldest_times(a.pointer(1)))),
        libc::SYS_utimes => word(attributes::with(file(0), || attributes::old_times(a.pointer(1)))),
        libc::SYS_futimesat => {
            let file = attributes::file_at(a.int(0), a.path(1), 0);
            word(attributes::with(file, || attributes::old_times(a.pointer(2))))
        }
        libc::SYS_setrlimit => word(file_size::change(0, a.offset(0), a.pointer(1), std::ptr::null_mut())),
        libc::SYS_dup2 => word(descriptors::duplicate_to_same(a.int(0), a.int(1))),
        _ => Err(Stop::Foreign),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn older(_: c_long, _: Args) -> Outcome<c_long> {
    Err(Stop::Foreign)
}

/// Index of the path argument that is replaced when a symbolic link leads out of Forebay.
fn place_of_path(number: c_long) -> usize {
    match number {
        libc::SYS_openat
        | libc::SYS_openat2
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_faccessat
        | libc::SYS_faccessat2
        | libc::SYS_mkdirat
        | libc::SYS_mknodat
        | libc::SYS_unlinkat
        | libc::SYS_readlinkat
        | libc::SYS_utimensat
        | libc::SYS_fchmodat
        | libc::SYS_fchmodat2
        | libc::SYS_fchownat
        | libc::SYS_execveat
        | libc::SYS_inotify_add_watch
        | libc::SYS_name_to_handle_at => 1,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_futimesat | libc::SYS_symlink => 1,
        libc::SYS_symlinkat => 2,
        libc::SYS_fanotify_mark => 4,
        _ => 0,
    }
}

/// Executes a system call, if it concerns Forebay; otherwise returns `Foreign`.
pub(crate) fn perform(number: c_long, args: [usize; 6]) -> Outcome<c_long> {
    let a = Args(args);
    let mut outcome = Err(Stop::Foreign);
    let credentials = |number, Args(args)| credentials::by_number(number, args);
    for group in [transfers, on_descriptor, asynchronous, on_path_at, on_path, credentials] {
        outcome = group(number, a);
        if !matches!(outcome, Err(Stop::Foreign)) {
            break;
        }
    }
    match outcome {
        Err(Stop::Outside(path)) => {
            let mut args = args;
            args[place_of_path(number)] = path.as_ptr() as usize;
            // SAFETY: the application's own call, with an absolute path in place of the one it gave.
            Ok(unsafe { try_system_call(number, args) }? as c_long)
        }
        other => other,
    }
}

/// Records a fork by number: the child has a copy of every descriptor.
fn note_division(number: c_long, flags: usize) {
    #[cfg(target_arch = "x86_64")]
    let forks = number == libc::SYS_fork || number == libc::SYS_vfork;
    #[cfg(not(target_arch = "x86_64"))]
    let forks = false;
    let clones = number == libc::SYS_clone && flags & libc::CLONE_THREAD as usize == 0;
    if forks || clones || number == libc::SYS_clone3 {
        backing::note_sharing();
    }
}

/// `clone`. Its system call must be intercepted where all are, so it is not replaced by `hooks!`; the call is only
/// recorded.
macro_rules! clones {
    ($($name:ident)+) => {$(
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[cfg_attr(test, allow(dead_code))]
        unsafe extern "C" fn $name(
            begin: *const c_void,
            stack: *mut c_void,
            flags: c_int,
            argument: *mut c_void,
            parent: usize,
            storage: usize,
            child: usize,
        ) -> c_int {
            static REAL: hook::Real = hook::Real::new(concat!(stringify!($name), "\0"));
            type Real =
                unsafe extern "C" fn(*const c_void, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
            note_division(libc::SYS_clone, flags as usize);
            let Some(real) = REAL.address() else { return hook::failed(Errno(libc::ENOSYS)) };
            // SAFETY: the C library's function of this name has this signature, and the arguments are the caller's own;
            // those that the caller has not passed are not read.
            unsafe {
                let real: Real = std::mem::transmute(real);
                real(begin, stack, flags, argument, parent, storage, child)
            }
        }
    )+};
}

clones!(clone __clone);

hook::hooks! {
    fn [syscall](number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long =>
        { note_division(number, a); handlers::note_call(number, a, b); perform(number, [a, b, c, d, e, f]) };
}
