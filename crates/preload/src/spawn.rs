//! `posix_spawn`: programs in Forebay, and file actions on its paths.
//!
//! The C library performs the actions in a child of its own, past us. An action that opens a file of ours becomes one
//! that duplicates a descriptor kept for it, on which the parent opens the file just before the child is made; one that
//! changes directory becomes one that changes to where such a working directory is parked.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::lock::Lock;
use crate::place::{Place, locate};
use crate::{backing, cwd, descriptors, hook, locks, mem, opening, path, program};
use libc::{c_char, c_int, c_void, mode_t, pid_t};
use rustix::fd::{AsRawFd, IntoRawFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use std::ffi::CString;

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

/// An action on a path of ours.
struct Action {
    /// The application's list of actions.
    list: usize,
    /// The path as it was given, or behind the directory that an earlier action changes to.
    path: CString,
    what: What,
}

enum What {
    Open { kept: c_int, flags: c_int, mode: mode_t },
    Enter,
}

/// Actions that are waiting for a child.
static ACTIONS: Lock<Vec<Action>> = Lock::new(Vec::new());
/// More than any program has: whoever never destroys its lists is told in the end.
const MOST: usize = 1024;

/// The path of an action as it will be understood when it is performed.
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
    let kept = descriptors::lift(kept.into_raw_fd())?;
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

/// Something for a descriptor to be while it is kept.
fn empty() -> Outcome<OwnedFd> {
    Ok(rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn add_change(list: *mut c_void, start: *const c_char) -> Outcome<c_int> {
    let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
    let path = effective(list as usize, text)?;
    let place = locate(libc::AT_FDCWD, path.as_ptr())?;
    let parked = cwd::parking(&path::normal(&place.full))?;
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

/// The list goes; so does what was kept for it.
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
            // SAFETY: kept for this action alone.
            unsafe { rustix::io::close(kept) };
        }
    }
    Err(Stop::Foreign)
}

/// What a list of actions has open while its child is made.
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

/// Opens what the actions want open, and looks at where they go.
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

/// What a child is made from.
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
        locks::prepare_to_share();
        backing::divide();
        // SAFETY: the C library's function of this name has this signature, and the arguments are the application's.
        let made = unsafe {
            let real: Spawn = std::mem::transmute(real);
            real(self.pid, path, self.actions, self.attributes, self.arguments, self.environment)
        };
        backing::divide();
        Ok(made)
    }

    /// From a file, which may be ours.
    fn run_file(&self, start: *const c_char) -> Outcome<c_int> {
        match locate(libc::AT_FDCWD, start).and_then(|place| program::copy(&place)) {
            Ok(copy) => {
                let name = CString::new(format!("/proc/self/fd/{}", copy.as_raw_fd())).unwrap_or_default();
                self.make(name.as_ptr())
            }
            Err(Stop::Foreign) => self.make(start),
            Err(Stop::Outside(path)) => self.make(path.as_ptr()),
            Err(stop) => Err(stop),
        }
    }

    /// From a name that is looked for in directories, unless the C library can do that alone.
    fn run_name(&self, start: *const c_char) -> Outcome<c_int> {
        let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
        if text.contains(&b'/') {
            return self.run_file(start);
        }
        let mut refused = libc::ENOENT;
        for path in program::own_search(text).ok_or(Stop::Foreign)? {
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
    crate::life::ready();
    let _ready = if child.actions.is_null() { Ready(Vec::new()) } else { ready(child.actions)? };
    let made = if search { child.run_name(start) } else { child.run_file(start) };
    match made {
        // What is ready must stay so until the child is there.
        Err(Stop::Foreign) if search => spawn_in_path(child, start),
        made => made,
    }
}

static REAL_SPAWN_IN_PATH: hook::Real = hook::Real::new("posix_spawnp\0");

fn spawn_in_path(child: &Child, start: *const c_char) -> Outcome<c_int> {
    let Some(real) = REAL_SPAWN_IN_PATH.address() else { return fail(libc::ENOSYS) };
    locks::prepare_to_share();
    backing::divide();
    // SAFETY: as for `posix_spawn`.
    let made = unsafe {
        let real: Spawn = std::mem::transmute(real);
        real(child.pid, start, child.actions, child.attributes, child.arguments, child.environment)
    };
    backing::divide();
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
