//! `posix_spawn`: programs in Forebay, and file actions on its paths.
//!
//! The C library performs the actions in the child, bypassing this library. An action that opens a file of Forebay is
//! replaced by one that duplicates a reserved descriptor, on which the parent opens the file just before it creates the
//! child. An action that changes the working directory is replaced by one that changes to the local directory that
//! represents it (see `cwd`).

use crate::beyond::Detour;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::lock::Lock;
use crate::place::{Place, locate};
use crate::{backing, beyond, cwd, descriptors, hook, locks, mem, opening, path, program};
use libc::{c_char, c_int, c_void, mode_t, pid_t};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::{CStr, CString};

type Spawn = unsafe extern "C" fn(
    *mut pid_t,
    *const c_char,
    *const c_void,
    *const c_void,
    *const *mut c_char,
    *const *mut c_char,
) -> c_int;

static REAL_SPAWN: hook::Real = hook::Real::new("posix_spawn\0");
static REAL_DUPLICATE: hook::Real = hook::Real::new("posix_spawn_file_actions_adddup2\0");
static REAL_CHANGE: hook::Real = hook::Real::new("posix_spawn_file_actions_addchdir_np\0");

/// An action on a path of Forebay.
struct Action {
    /// Address of the application's list of actions.
    list: usize,
    /// The path as given, or joined to the directory that an earlier action changes to.
    path: CString,
    what: What,
}

enum What {
    Open { kept: c_int, flags: c_int, mode: mode_t },
    Enter,
}

/// Actions of lists that still exist.
static ACTIONS: Lock<Vec<Action>> = Lock::new(Vec::new());
/// More than any program has: a program that never destroys its lists gets an error at this number.
const MOST: usize = 1024;

/// The path of an action as it will be resolved when it is performed.
fn effective(list: usize, text: &[u8]) -> Outcome<CString> {
    let last = ACTIONS.with(|actions| {
        let entered =
            actions.iter().rev().find(|action| action.list == list && matches!(action.what, What::Enter));
        entered.map(|action| action.path.clone())
    });
    let whole = match (text.first(), last) {
        (Some(b'/') | None, _) | (_, None) => text.to_vec(),
        (Some(_), Some(dir)) => path::join(dir.as_bytes(), text),
    };
    Ok(CString::new(whole).map_err(|_| Errno(libc::ENOENT))?)
}

fn note(action: Action) -> Outcome<()> {
    ACTIONS.with(|actions| match actions.len() < MOST {
        true => {
            actions.push(action);
            Ok(())
        }
        false => fail(libc::ENOMEM),
    })
}

/// These functions return their errors.
fn returned(outcome: Outcome<c_int>) -> Outcome<c_int> {
    match outcome {
        Err(Stop::Errno(errno)) => Ok(errno.0),
        other => other,
    }
}

fn add_open(
    list: *mut c_void,
    fd: c_int,
    start: *const c_char,
    flags: c_int,
    mode: mode_t,
) -> Outcome<c_int> {
    let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
    let path = effective(list as usize, text)?;
    locate(libc::AT_FDCWD, path.as_ptr())?;
    let Some(real) = REAL_DUPLICATE.address() else { return fail(libc::ENOSYS) };
    let kept = empty()?;
    let kept = descriptors::hide_high(kept.into_raw_fd())?;
    // SAFETY: the C library's function of this name has this signature.
    let added = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int = std::mem::transmute(real);
        real(list, kept, fd)
    };
    if added != 0 {
        return Ok(added);
    }
    note(Action { list: list as usize, path, what: What::Open { kept, flags, mode } })?;
    Ok(0)
}

/// A placeholder for a reserved descriptor.
fn empty() -> Outcome<OwnedFd> {
    Ok(rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn add_change(list: *mut c_void, start: *const c_char) -> Outcome<c_int> {
    let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
    let path = effective(list as usize, text)?;
    let place = locate(libc::AT_FDCWD, path.as_ptr())?;
    let parked = cwd::local_dir(&path::normal(&place.full))?;
    let Some(real) = REAL_CHANGE.address() else { return fail(libc::ENOSYS) };
    // SAFETY: as above.
    let added = unsafe {
        let real: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int = std::mem::transmute(real);
        real(list, parked.as_ptr())
    };
    if added != 0 {
        return Ok(added);
    }
    note(Action { list: list as usize, path, what: What::Enter })?;
    Ok(0)
}

/// Destroys a list and closes the descriptors reserved for it.
fn forget(list: *mut c_void) -> Outcome<c_int> {
    let gone = ACTIONS.with(|actions| {
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(actions).into_iter().partition(|action| action.list == list as usize);
        *actions = left;
        gone
    });
    for action in gone {
        if let What::Open { kept, .. } = action.what {
            drop(crate::table::remove(kept));
            // SAFETY: reserved for this action alone.
            unsafe { rustix::io::close(kept) };
        }
    }
    Err(Stop::Foreign)
}

/// Descriptors that are open for a list of actions while the child is created.
struct Ready(Vec<c_int>);

impl Drop for Ready {
    fn drop(&mut self) {
        if let Ok(nothing) = empty() {
            for kept in &self.0 {
                let _ = descriptors::replace(nothing.as_raw_fd(), *kept);
            }
        }
    }
}

/// Opens the files of a list's actions, and checks their working directories.
fn ready(list: *const c_void) -> Outcome<Ready> {
    let mine = ACTIONS.with(|actions| {
        let mine = actions.iter().filter(|action| action.list == list as usize);
        mine.map(|action| {
            let open = match action.what {
                What::Open { kept, flags, mode } => Some((kept, flags, mode)),
                What::Enter => None,
            };
            (action.path.clone(), open)
        })
        .collect::<Vec<_>>()
    });
    let mut ready = Ready(Vec::new());
    for (path, open) in mine {
        let place: Place = locate(libc::AT_FDCWD, path.as_ptr())?;
        match open {
            Some((kept, flags, mode)) => {
                let fd = opening::open_place(&place, flags | libc::O_CLOEXEC, mode)?;
                ready.0.push(kept);
                let put = descriptors::replace(fd, kept);
                descriptors::close_fd(fd)?;
                put?;
            }
            None => cwd::may_enter(&place)?,
        }
    }
    Ok(ready)
}

/// Arguments for creating a child.
struct Child {
    pid: *mut pid_t,
    actions: *const c_void,
    attributes: *const c_void,
    arguments: *const *mut c_char,
    environment: *const *mut c_char,
}

impl Child {
    fn make(&self, path: *const c_char) -> Outcome<c_int> {
        let Some(real) = REAL_SPAWN.address() else { return fail(libc::ENOSYS) };
        locks::prepare_for_fork();
        backing::note_fork();
        // SAFETY: the C library's function of this name has this signature, and the arguments are the application's.
        let made = unsafe {
            let real: Spawn = std::mem::transmute(real);
            real(self.pid, path, self.actions, self.attributes, self.arguments, self.environment)
        };
        backing::note_fork();
        Ok(made)
    }

    /// Runs a file, which may be inside Forebay.
    fn run_file(&self, start: *const c_char) -> Outcome<c_int> {
        match locate(libc::AT_FDCWD, start) {
            Ok(place) => self.run_ours(&place),
            Err(Stop::Foreign) => {
                let path = mem::path(start).and_then(|path| CString::new(path).ok());
                match path.and_then(|path| self.detour(&path)) {
                    Some(detour) => self.make_instead(&detour),
                    None => self.make(start),
                }
            }
            Err(Stop::Outside(path)) => match self.detour(&path) {
                Some(detour) => self.make_instead(&detour),
                None => self.make(path.as_ptr()),
            },
            Err(stop) => Err(stop),
        }
    }

    fn run_ours(&self, place: &Place) -> Outcome<c_int> {
        let copy = program::copy(place)?;
        let (arguments, environment) = (self.arguments.cast(), self.environment.cast());
        if let Some(detour) = beyond::detour_inside(&place.full, &copy, arguments, environment) {
            return self.make_instead(&detour);
        }
        let name = CString::new(format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap_or_default();
        self.make(name.as_ptr())
    }

    fn detour(&self, path: &CStr) -> Option<Detour> {
        beyond::detour(path, self.arguments.cast(), self.environment.cast())
    }

    /// Runs another command in the child, with the same actions.
    fn make_instead(&self, detour: &Detour) -> Outcome<c_int> {
        let (arguments, environment) = (detour.arguments().cast(), detour.environment().cast());
        Child { arguments, environment, ..*self }.make(detour.program())
    }

    /// Runs a program found by `PATH`, unless the C library can do it alone.
    fn run_name(&self, start: *const c_char) -> Outcome<c_int> {
        let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
        if text.contains(&b'/') {
            return self.run_file(start);
        }
        let mut refused = libc::ENOENT;
        let Some(places) = program::own_search(text) else {
            let found = beyond::first_in_path(text).and_then(|path| self.detour(&path));
            return found.map_or(Err(Stop::Foreign), |detour| self.make_instead(&detour));
        };
        for path in places {
            match returned(self.run_file(path.as_ptr()))? {
                libc::EACCES => refused = libc::EACCES,
                libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG | libc::ELOOP => {}
                other => return Ok(other),
            }
        }
        Ok(refused)
    }
}

fn spawn(child: &Child, start: *const c_char, search: bool) -> Outcome<c_int> {
    crate::process_state::ready();
    let _ready = if child.actions.is_null() { Ready(Vec::new()) } else { ready(child.actions)? };
    let made = if search { child.run_name(start) } else { child.run_file(start) };
    match made {
        // The reserved descriptors must stay open until the child exists.
        Err(Stop::Foreign) if search => spawn_in_path(child, start),
        made => made,
    }
}

static REAL_SPAWN_IN_PATH: hook::Real = hook::Real::new("posix_spawnp\0");

fn spawn_in_path(child: &Child, start: *const c_char) -> Outcome<c_int> {
    let Some(real) = REAL_SPAWN_IN_PATH.address() else { return fail(libc::ENOSYS) };
    locks::prepare_for_fork();
    backing::note_fork();
    // SAFETY: as for `posix_spawn`.
    let made = unsafe {
        let real: Spawn = std::mem::transmute(real);
        real(child.pid, start, child.actions, child.attributes, child.arguments, child.environment)
    };
    backing::note_fork();
    Ok(made)
}

hook::hooks! {
    fn [posix_spawn](pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int =>
        returned(spawn(&Child { pid, actions, attributes, arguments, environment }, path, false));
    fn [posix_spawnp](pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: *const *mut c_char, environment: *const *mut c_char) -> c_int =>
        returned(spawn(&Child { pid, actions, attributes, arguments, environment }, path, true));
    fn [posix_spawn_file_actions_addopen](list: *mut c_void, fd: c_int, path: *const c_char, flags: c_int, mode: mode_t)
        -> c_int => returned(add_open(list, fd, path, flags, mode));
    fn [posix_spawn_file_actions_addchdir_np](list: *mut c_void, path: *const c_char) -> c_int =>
        returned(add_change(list, path));
    fn [posix_spawn_file_actions_destroy](list: *mut c_void) -> c_int => forget(list);
}
