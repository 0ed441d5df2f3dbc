//! Programs: those that live in Forebay are run from memory, and the end of this one is an end in order.

use crate::errno::{Outcome, Stop, fail};
use crate::kernel::ask;
use crate::place::{Place, locate};
use crate::{engine, exit, hook, life, map, path, stat};
use forebay_client::File;
use forebay_model::Access;
use libc::{c_char, c_int, c_void, pid_t};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::ffi::CString;
use std::sync::Arc;

type List = *const *const c_char;

/// The program at a place, as a descriptor that can be run. Scripts are opened again by their interpreter, so it stays
/// open across `exec`. No descriptor of ours is made for it: a process that borrows its parent's memory could not.
fn copy(place: &Place) -> Outcome<OwnedFd> {
    let id = stat::runnable(place)?;
    let file = Arc::new(engine::run(|engine| engine.by_id().open(id, Access::READ, false))?);
    let copied = copy_file(&file, place);
    exit::close(file);
    copied
}

fn copy_file(file: &File, place: &Place) -> Outcome<OwnedFd> {
    let name = path::split(&place.full).map_or(&b"program"[..], |(_, name, _)| name);
    let name = CString::new(&name[..name.len().min(200)]).unwrap_or_default();
    let program = rustix::fs::memfd_create(&name, MemfdFlags::empty())?;
    let (mut buffer, mut offset) = (vec![0; 1 << 20], 0);
    loop {
        let into = &mut buffer[..];
        let count = engine::run(move |_| file.pread(offset, into))?;
        if count == 0 {
            return Ok(program);
        }
        offset += count as u64;
        let mut left = &buffer[..count];
        while !left.is_empty() {
            left = &left[rustix::io::write(&program, left)?..];
        }
    }
}

/// What was changed in memory belongs to the file before this program is gone, and what it has closed is closed.
fn before_exec() {
    if !life::is_borrowed() {
        map::write_back_all();
        exit::wait_for_closes();
    }
}

fn run(dirfd: c_int, start: *const c_char, arguments: List, environment: List) -> Outcome<c_int> {
    let place = locate(dirfd, start).inspect_err(|_| before_exec())?;
    let program = copy(&place)?;
    before_exec();
    let empty = c"".as_ptr() as usize;
    let flags = libc::AT_EMPTY_PATH as usize;
    let args = [program.as_raw_fd() as usize, empty, arguments as usize, environment as usize, flags, 0];
    // SAFETY: the application's own arguments, and a program of ours in place of its path.
    unsafe { ask(libc::SYS_execveat, args) }?;
    Ok(0)
}

fn here(start: *const c_char, arguments: List) -> Outcome<c_int> {
    // SAFETY: the C library's variable, read as `execv` itself does.
    let environment = unsafe { environ };
    run(libc::AT_FDCWD, start, arguments, environment)
}

/// A name without a slash is looked for in directories, which the C library does.
fn in_path(start: *const c_char, arguments: List, environment: Option<List>) -> Outcome<c_int> {
    let Some(text) = crate::mem::path(start) else { return Err(Stop::Foreign) };
    if !text.contains(&b'/') {
        before_exec();
        return Err(Stop::Foreign);
    }
    match environment {
        Some(environment) => run(libc::AT_FDCWD, start, arguments, environment),
        None => here(start, arguments),
    }
}

unsafe extern "C" {
    static environ: List;
}

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

static REAL_SPAWN: hook::Real = hook::Real::new("posix_spawn\0");

/// `posix_spawn` returns its error.
fn spawn(
    pid: *mut pid_t,
    start: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
) -> Outcome<c_int> {
    let program = match locate(libc::AT_FDCWD, start).and_then(|place| copy(&place)) {
        Ok(program) => program,
        Err(Stop::Errno(errno)) => return Ok(errno.0),
        Err(stop) => return Err(stop),
    };
    let Some(real) = REAL_SPAWN.address() else { return fail(libc::ENOSYS) };
    let name = CString::new(format!("/proc/self/fd/{}", program.as_raw_fd())).unwrap_or_default();
    // SAFETY: the C library's function of this name has this signature, and the arguments are the application's.
    Ok(unsafe {
        let real: Spawn = std::mem::transmute(real);
        real(pid, name.as_ptr(), actions, attributes, arguments, environment)
    })
}

/// A child that borrows its parent's memory could neither connect nor note what becomes of its descriptors; programs
/// that change directory or run something in Forebay between `vfork` and `exec` need both.
fn own_memory() -> Outcome<pid_t> {
    // SAFETY: `fork` promises everything that `vfork` does, but for speed.
    Ok(unsafe { libc::fork() })
}

/// The process ends without the C library's own end.
fn end() -> Outcome<()> {
    if life::is_set_up() && !life::is_borrowed() {
        exit::let_go();
    }
    Err(Stop::Foreign)
}

hook::hooks! {
    fn [execve](path: *const c_char, arguments: List, environment: List) -> c_int, at path =>
        run(libc::AT_FDCWD, path, arguments, environment);
    fn [execv](path: *const c_char, arguments: List) -> c_int, at path => here(path, arguments);
    fn [execvp](path: *const c_char, arguments: List) -> c_int, at path => in_path(path, arguments, None);
    fn [execvpe](path: *const c_char, arguments: List, environment: List) -> c_int, at path =>
        in_path(path, arguments, Some(environment));
    fn [posix_spawn](pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int, at path =>
        spawn(pid, path, actions, attributes, arguments, environment);
    fn [vfork]() -> pid_t => own_memory();
    fn [_exit, _Exit](_code: c_int) -> () => end();
}
