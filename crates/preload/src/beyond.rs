//! Programs that this library cannot intercept, and that a program with the library is about to execute or spawn:
//! `forebay exec` runs them with a private mount instead.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::program::List;
use crate::{cwd, mem, path, process_state};
use forebay_client::{PROGRAM_HEAD, ProgramKind, names_prefix, program_kind};
use libc::c_char;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags};
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;

/// Nested interpreters that the kernel follows.
const DEPTH: usize = 5;
/// More arguments than any program has.
const MOST: usize = 1 << 20;

/// A command that replaces another one.
pub(crate) struct Detour {
    /// The strings that the pointers below point to.
    words: Vec<CString>,
    arguments: Vec<*const c_char>,
    environment: Vec<*const c_char>,
}

impl Detour {
    pub(crate) fn program(&self) -> *const c_char {
        self.words[0].as_ptr()
    }

    pub(crate) fn arguments(&self) -> List {
        self.arguments.as_ptr()
    }

    pub(crate) fn environment(&self) -> List {
        self.environment.as_ptr()
    }

    /// Executes the replacement command.
    pub(crate) fn take<T>(&self) -> Outcome<T> {
        let args = [self.program() as usize, self.arguments() as usize, self.environment() as usize, 0, 0, 0];
        // SAFETY: lists of strings of the library and of the application; a call that succeeds does not return.
        let failed = unsafe { try_system_call(libc::SYS_execve, args) };
        Err(failed.err().unwrap_or(Errno(libc::ENOEXEC)).into())
    }
}

/// Why the library has no effect in a program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beyond {
    /// The program does not load it.
    NotLoaded,
    /// The loader ignores it: the program has more rights than its user.
    Privileged,
    /// It is unknown: the program may be executed, but not read.
    Unreadable,
}

/// The strings of a list of the application.
fn strings<'a>(list: List) -> Vec<&'a CStr> {
    let mut found = Vec::new();
    if list.is_null() {
        return found;
    }
    for at in 0..MOST {
        let Ok(start) = mem::take(list.wrapping_add(at)) else { break };
        if start.is_null() || mem::path(start).is_none() && !is_string(start) {
            break;
        }
        // SAFETY: checked up to its terminating zero.
        found.push(unsafe { CStr::from_ptr(start) });
    }
    found
}

/// Arguments may be longer than paths.
fn is_string(start: *const c_char) -> bool {
    mem::readable(start.cast(), 1).is_ok()
}

fn value<'a>(environment: &[&'a CStr], name: &[u8]) -> Option<&'a [u8]> {
    environment.iter().find_map(|entry| entry.to_bytes().strip_prefix(name)?.strip_prefix(b"="))
}

fn is_library(path: &[u8]) -> bool {
    path::split(path).map_or(path, |(_, name, _)| name).starts_with(b"libforebay")
}

/// The kind of a program, from its first bytes.
fn look(file: impl AsFd) -> Option<ProgramKind> {
    let mut head = vec![0; PROGRAM_HEAD];
    let len = rustix::io::pread(file, &mut head, 0).ok()?;
    Some(program_kind(&head[..len]))
}

fn privileged(file: &OwnedFd) -> bool {
    let Ok(found) = rustix::fs::fstat(file) else { return false };
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    let as_user = found.st_mode & libc::S_ISUID != 0 && found.st_uid != user.as_raw();
    let both = libc::S_ISGID | libc::S_IXGRP;
    let as_group = found.st_mode & both == both && found.st_gid != group.as_raw();
    let mut value = [0; 64];
    let mut capable = || rustix::fs::fgetxattr(file, c"security.capability", &mut value).is_ok();
    as_user || as_group || !user.is_root() && capable()
}

/// What keeps the library out of a local program, if anything.
fn beyond(path: &CStr) -> Option<Beyond> {
    let mut path = path.to_owned();
    for _ in 0..DEPTH {
        let open = |flags| rustix::fs::openat(CWD, path.as_c_str(), flags | OFlags::CLOEXEC, Mode::empty());
        let file = match open(OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(rustix::io::Errno::ACCESS) => {
                rustix::fs::accessat(CWD, path.as_c_str(), Access::EXEC_OK, AtFlags::EACCESS).ok()?;
                let privileged = privileged(&open(OFlags::PATH).ok()?);
                return Some(if privileged { Beyond::Privileged } else { Beyond::Unreadable });
            }
            file => file.ok()?,
        };
        if privileged(&file) {
            return Some(Beyond::Privileged);
        }
        match look(&file)? {
            ProgramKind::Dynamic | ProgramKind::Unknown => return None,
            ProgramKind::Script(interpreter) => {
                path = CString::new(interpreter.as_os_str().as_bytes()).ok()?;
            }
            _ => return Some(Beyond::NotLoaded),
        }
    }
    None
}

/// Whether a command refers to files of Forebay.
fn is_about_forebay(arguments: &[&CStr]) -> bool {
    let prefix = &process_state::config().prefix;
    cwd::inside().is_some() || arguments.iter().any(|argument| names_prefix(argument.to_bytes(), prefix))
}

/// The replacement for a local program, if it needs one.
pub(crate) fn detour(path: &CStr, arguments: List, environment: List) -> Option<Detour> {
    let variables = strings(environment);
    // A program that removes the library from the environment does not want it.
    value(&variables, b"LD_PRELOAD").filter(|list| list.split(is_separator).any(is_library))?;
    let arguments = strings(arguments);
    match beyond(path)? {
        Beyond::Privileged | Beyond::Unreadable if !is_about_forebay(&arguments) => None,
        _ => around(path.to_owned(), &arguments, &variables),
    }
}

/// As [`detour`], for a program in Forebay of which there is a copy.
pub(crate) fn detour_inside(
    full: &[u8],
    copy: &OwnedFd,
    arguments: List,
    environment: List,
) -> Option<Detour> {
    match look(copy)? {
        ProgramKind::Dynamic | ProgramKind::Unknown | ProgramKind::Script(_) => None,
        _ => around(CString::new(full).ok()?, &strings(arguments), &strings(environment)),
    }
}

fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// `forebay exec` with a command.
fn around(path: CString, arguments: &[&CStr], variables: &[&CStr]) -> Option<Detour> {
    // Inside a private mount no replacement is needed.
    if value(variables, b"FOREBAY_MOUNTED").is_some() {
        return None;
    }
    let forebay = CString::new(value(variables, b"FOREBAY_EXEC")?).ok()?;
    let mut words = vec![forebay];
    words.extend([c"exec", c"--by-mount", c"--config", c"/dev/null", c"--argv0"].map(CStr::to_owned));
    words.push(arguments.first().map_or_else(|| path.clone(), |name| (*name).to_owned()));
    if let Some(dir) = cwd::inside() {
        words.extend([c"--cwd".to_owned(), CString::new(dir).ok()?]);
    }
    words.extend([c"--".to_owned(), path]);
    let end = std::ptr::null();
    let mut pointers: Vec<_> = words.iter().map(|word| word.as_ptr()).collect();
    pointers.extend(arguments.iter().skip(1).map(|argument| argument.as_ptr()));
    pointers.push(end);
    // The library is not loaded into `forebay` itself.
    let preload = value(variables, b"LD_PRELOAD").unwrap_or_default();
    let others: Vec<_> = preload.split(is_separator).filter(|path| !is_library(path)).collect();
    let others = CString::new([b"LD_PRELOAD=", &others.join(&b':')[..]].concat()).ok()?;
    let is_preload = |entry: &&&CStr| !entry.to_bytes().starts_with(b"LD_PRELOAD=");
    let mut environment: Vec<_> = variables.iter().filter(is_preload).map(|entry| entry.as_ptr()).collect();
    environment.extend([others.as_ptr(), end]);
    words.push(others);
    Some(Detour { words, arguments: pointers, environment })
}

/// The file that a name without a slash refers to, as the C library would find it.
pub(crate) fn first_in_path(name: &[u8]) -> Option<CString> {
    let path = std::env::var_os("PATH")?;
    let dirs = path.as_bytes().split(|byte| *byte == b':');
    let mut files =
        dirs.filter_map(|dir| CString::new(path::join(if dir.is_empty() { b"." } else { dir }, name)).ok());
    files.find(|file| rustix::fs::accessat(CWD, file.as_c_str(), Access::EXEC_OK, AtFlags::EACCESS).is_ok())
}

/// Executes the replacement of a program that needs one; `stop` says where its path led.
pub(crate) fn instead(
    dirfd: i32,
    start: *const c_char,
    stop: &Stop,
    arguments: List,
    environment: List,
) -> Outcome<()> {
    let path = match stop {
        Stop::Outside(path) => path.clone(),
        Stop::Foreign => {
            let Some(text) = mem::path(start) else { return Ok(()) };
            if dirfd != libc::AT_FDCWD && text.first() != Some(&b'/') {
                return Ok(());
            }
            let Ok(path) = CString::new(text) else { return fail(libc::ENOENT) };
            path
        }
        Stop::Errno(_) => return Ok(()),
    };
    detour(&path, arguments, environment).map_or(Ok(()), |detour| detour.take())
}
