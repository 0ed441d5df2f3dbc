//! Running programs that are stored in Forebay, from a copy in memory; forks; orderly end of this program.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::place::{Place, Subject, locate, ours, subject};
use crate::table::Held;
use crate::{
    backing, beyond, descriptors, dispatch, engine, exit, hook, locks, mem, path, process_state, stat,
};
use forebay_client::File;
use forebay_model::Access;
use libc::{c_char, c_int, c_void, pid_t};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

pub(crate) type List = *const *const c_char;

/// A copy of the program at a place, as a descriptor that can be executed. It stays open across `exec`, since the
/// interpreter of a script opens it again. It needs no descriptor of Forebay, which a process that borrows its parent's
/// memory could not create.
pub(crate) fn copy(place: &Place) -> Outcome<OwnedFd> {
    let id = stat::runnable(place)?;
    let file = Arc::new(engine::run(|engine| engine.by_id().open(id, Access::READ, false))?);
    let copied = copy_file(&file, &place.full);
    exit::close(file);
    copied
}

/// As [`copy`], for an open file.
fn copy_open(open: &Held) -> Outcome<OwnedFd> {
    if open.kind() != backing::Kind::File {
        return fail(libc::EACCES);
    }
    if !stat::may_run(&open.attr()?) {
        return fail(libc::EACCES);
    }
    copy_file(&*open.for_reading()?, open.path())
}

fn copy_file(file: &File, full: &[u8]) -> Outcome<OwnedFd> {
    let name = path::split(full).map_or(&b"program"[..], |(_, name, _)| name);
    let name = CString::new(&name[..name.len().min(200)]).unwrap_or_default();
    let program = match rustix::fs::memfd_create(&name, MemfdFlags::EXEC) {
        Err(rustix::io::Errno::INVAL) => rustix::fs::memfd_create(&name, MemfdFlags::empty())?,
        made => made?,
    };
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

/// Before `exec`: waits for closes in flight, and keeps locks.
fn before_exec() {
    if !process_state::is_borrowed() {
        exit::wait_for_closes();
        locks::prepare_for_exec();
    }
}

fn become_copy(program: &OwnedFd, arguments: List, environment: List) -> Outcome<c_int> {
    before_exec();
    let empty = c"".as_ptr() as usize;
    let flags = libc::AT_EMPTY_PATH as usize;
    let args = [program.as_raw_fd() as usize, empty, arguments as usize, environment as usize, flags, 0];
    // SAFETY: the application's own arguments, and a descriptor of the library in place of its path.
    unsafe { try_system_call(libc::SYS_execveat, args) }?;
    Ok(0)
}

pub(crate) fn run(dirfd: c_int, start: *const c_char, arguments: List, environment: List) -> Outcome<c_int> {
    let place = match locate(dirfd, start) {
        Ok(place) => place,
        Err(stop) => {
            before_exec();
            beyond::instead(dirfd, start, &stop, arguments, environment)?;
            return Err(stop);
        }
    };
    become_program(&place, arguments, environment)
}

fn become_program(place: &Place, arguments: List, environment: List) -> Outcome<c_int> {
    let copy = copy(place)?;
    if let Some(detour) = beyond::detour_inside(&place.full, &copy, arguments, environment) {
        before_exec();
        return detour.take();
    }
    become_copy(&copy, arguments, environment)
}

pub(crate) fn run_at(
    dirfd: c_int,
    start: *const c_char,
    arguments: List,
    environment: List,
    flags: c_int,
) -> Outcome<c_int> {
    match subject(dirfd, start, flags).inspect_err(|_| before_exec())? {
        Subject::Open(open) => become_copy(&copy_open(&open)?, arguments, environment),
        Subject::Place(place) => become_program(&place, arguments, environment),
    }
}

fn run_open(fd: c_int, arguments: List, environment: List) -> Outcome<c_int> {
    let open = ours(fd).inspect_err(|_| before_exec())?;
    become_copy(&copy_open(&open)?, arguments, environment)
}

/// The environment that `execv` uses.
pub(crate) fn present_environment() -> List {
    // SAFETY: the C library's variable, read as `execv` itself does.
    unsafe { environ }
}

/// Searches `PATH` for a name without a slash. The C library does that, unless a directory of `PATH` is inside Forebay.
pub(crate) fn in_path(start: *const c_char, arguments: List, environment: List) -> Outcome<c_int> {
    let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
    if text.contains(&b'/') {
        return run(libc::AT_FDCWD, start, arguments, environment);
    }
    let Some(places) = own_search(text) else {
        before_exec();
        let found = beyond::first_in_path(text);
        if let Some(detour) = found.and_then(|path| beyond::detour(&path, arguments, environment)) {
            return detour.take();
        }
        return Err(Stop::Foreign);
    };
    let mut refused = libc::ENOENT;
    for path in places {
        let tried = match run(libc::AT_FDCWD, path.as_ptr(), arguments, environment) {
            Err(Stop::Errno(errno)) => errno,
            Err(Stop::Outside(path)) => become_foreign(&path, arguments, environment),
            _ => become_foreign(&path, arguments, environment),
        };
        match tried.0 {
            libc::EACCES => refused = libc::EACCES,
            libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP => {}
            other => return fail(other),
        }
    }
    fail(refused)
}

fn become_foreign(path: &CString, arguments: List, environment: List) -> Errno {
    let args = [path.as_ptr() as usize, arguments as usize, environment as usize, 0, 0, 0];
    // SAFETY: the application's own arguments; a call that succeeds does not return.
    unsafe { try_system_call(libc::SYS_execve, args) }.err().unwrap_or(Errno(libc::ENOEXEC))
}

/// All paths that a name could refer to by `PATH`, if one of them could be inside Forebay.
pub(crate) fn own_search(name: &[u8]) -> Option<Vec<CString>> {
    let path = std::env::var_os("PATH")?;
    let files: Vec<Vec<u8>> = path
        .as_bytes()
        .split(|&byte| byte == b':')
        .map(|dir| path::join(if dir.is_empty() { b"." } else { dir }, name))
        .collect();
    let prefix = &process_state::config().prefix;
    let inside = crate::cwd::inside().is_some();
    let mine = |file: &Vec<u8>| match file.first() {
        Some(b'/') => path::inside(prefix, file).is_some(),
        _ => inside,
    };
    files.iter().any(mine).then(|| files.into_iter().filter_map(|file| CString::new(file).ok()).collect())
}

unsafe extern "C" {
    static environ: List;
}

/// `vfork` as `fork`: a child that borrows its parent's memory could neither connect nor track its descriptors, and
/// programs that change directory or run a program in Forebay between `vfork` and `exec` need both.
fn own_memory() -> Outcome<pid_t> {
    // SAFETY: `fork` gives all guarantees of `vfork`, except for speed.
    match unsafe { libc::fork() } {
        -1 => Err(Errno::last().into()),
        child => Ok(child),
    }
}

static REAL_FORK: hook::Real = hook::Real::new("fork\0");

/// Forks the process.
fn fork_both() -> Outcome<pid_t> {
    locks::prepare_for_fork();
    let Some(real) = REAL_FORK.address() else { return fail(libc::ENOSYS) };
    backing::note_fork();
    // SAFETY: the C library's function of this name has this signature.
    let child = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> pid_t>(real)() };
    backing::note_fork();
    match child {
        -1 => Err(Errno::last().into()),
        child => {
            if child == 0 {
                dispatch::arm();
            }
            Ok(child)
        }
    }
}

/// Before the C library creates a child.
fn divide<T>() -> Outcome<T> {
    backing::note_sharing();
    locks::prepare_for_fork();
    Err(Stop::Foreign)
}

/// Calls a function of the C library that changes standard descriptors and the working directory by itself.
fn then_look_again(name: &hook::Real, call: impl FnOnce(*mut c_void) -> c_int) -> Outcome<c_int> {
    let Some(real) = name.address() else { return fail(libc::ENOSYS) };
    backing::note_sharing();
    locks::prepare_for_fork();
    let (result, errno) = (call(real), Errno::last());
    dispatch::arm();
    crate::cwd::forget();
    descriptors::look_again();
    if result == -1 { Err(errno.into()) } else { Ok(result) }
}

static REAL_DAEMON: hook::Real = hook::Real::new("daemon\0");
static REAL_LOGIN: hook::Real = hook::Real::new("login_tty\0");
static REAL_FORKPTY: hook::Real = hook::Real::new("forkpty\0");

fn to_background(stay: c_int, keep: c_int) -> Outcome<c_int> {
    then_look_again(&REAL_DAEMON, |real| {
        // SAFETY: the C library's function of this name has this signature.
        unsafe {
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int, c_int) -> c_int>(real)(stay, keep)
        }
    })
}

fn log_in(fd: c_int) -> Outcome<c_int> {
    then_look_again(&REAL_LOGIN, |real| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(c_int) -> c_int>(real)(fd) }
    })
}

type ForkPty = unsafe extern "C" fn(*mut c_int, *mut c_char, *const c_void, *const c_void) -> pid_t;

fn fork_on_terminal(
    master: *mut c_int,
    name: *mut c_char,
    settings: *const c_void,
    size: *const c_void,
) -> Outcome<pid_t> {
    then_look_again(&REAL_FORKPTY, |real| {
        // SAFETY: as above.
        unsafe { std::mem::transmute::<*mut c_void, ForkPty>(real)(master, name, settings, size) }
    })
}

/// The process ends without running the C library's exit handlers.
fn end() -> Outcome<()> {
    if process_state::is_set_up() && !process_state::is_borrowed() {
        exit::close_all();
    }
    Err(Stop::Foreign)
}

hook::hooks! {
    fn [execve](path: *const c_char, arguments: List, environment: List) -> c_int, at path =>
        run(libc::AT_FDCWD, path, arguments, environment);
    fn [execv](path: *const c_char, arguments: List) -> c_int, at path =>
        run(libc::AT_FDCWD, path, arguments, present_environment());
    fn [execvp](path: *const c_char, arguments: List) -> c_int, at path =>
        in_path(path, arguments, present_environment());
    fn [execvpe](path: *const c_char, arguments: List, environment: List) -> c_int, at path =>
        in_path(path, arguments, environment);
    fn [execveat](dirfd: c_int, path: *const c_char, arguments: List, environment: List, flags: c_int) -> c_int, at path =>
        run_at(dirfd, path, arguments, environment, flags);
    fn [fexecve](fd: c_int, arguments: List, environment: List) -> c_int => run_open(fd, arguments, environment);
    fn [fork, __fork]() -> pid_t => fork_both();
    fn [vfork, __vfork]() -> pid_t => own_memory();
    fn [system](_command: *const c_char) -> c_int => divide();
    fn [popen](_command: *const c_char, _mode: *const c_char) -> *mut libc::FILE => divide();
    fn [daemon](stay: c_int, keep: c_int) -> c_int => to_background(stay, keep);
    fn [login_tty](fd: c_int) -> c_int => log_in(fd);
    fn [forkpty](master: *mut c_int, name: *mut c_char, settings: *const c_void, size: *const c_void) -> pid_t =>
        fork_on_terminal(master, name, settings, size);
    fn [_exit, _Exit, quick_exit](_code: c_int) -> () => end();
}
