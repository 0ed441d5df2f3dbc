//! Creates files with their planned layout.

use crate::decide::{FileHint, decide};
use crate::report::{self, COUNTS, count};
use crate::{layout, real, setting};
use forebay_model::list;
use forebay_policy::place::lov::Lov;
use libc::{c_char, c_int, mode_t};
use std::cell::Cell;
use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// `O_LOV_DELAY_CREATE`: Lustre creates the name, but not yet the layout.
const DELAY: c_int = libc::O_NOCTTY | libc::O_ASYNC;
const WRITABLE: mode_t = 0o200;

thread_local! {
    /// Set while this library itself opens files, which are not placed.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// The file system under the prefix has no layouts: placement is disabled.
static PLAIN: AtomicBool = AtomicBool::new(false);

/// Creates a file if it is to be placed and does not exist; otherwise has no effect and returns `None`.
/// Preserves `errno`.
pub(crate) fn create(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    hint: FileHint,
) -> Option<c_int> {
    const NOT: c_int = libc::O_PATH | libc::O_DIRECTORY;
    if flags & libc::O_CREAT == 0 || flags & NOT != 0 || path.is_null() || PLAIN.load(Ordering::Relaxed) {
        return None;
    }
    if INSIDE.try_with(|inside| inside.replace(true)).unwrap_or(true) {
        return None;
    }
    // SAFETY: `errno` is this thread's own.
    let before = unsafe { *libc::__errno_location() };
    // SAFETY: the caller passes a NUL-terminated string, as the interposed function requires.
    let path = unsafe { CStr::from_ptr(path) };
    // A panic must not unwind into the program.
    let made = std::panic::catch_unwind(|| attempt(dirfd, path, flags, mode, hint)).unwrap_or(None);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = before };
    let _ = INSIDE.try_with(|inside| inside.set(false));
    made
}

/// The full path of a file, if it is below the prefix.
pub(crate) fn concerns(dirfd: c_int, path: &CStr) -> Option<Vec<u8>> {
    let ready = setting::ready()?;
    let full = absolute(dirfd, path.to_bytes())?;
    let rest = full.strip_prefix(ready.setting.prefix.as_slice())?;
    (rest.starts_with(b"/") || ready.setting.prefix == b"/").then_some(full)
}

/// An absolute path. Resolves `..`, so that a path outside does not pass as inside.
fn absolute(dirfd: c_int, path: &[u8]) -> Option<Vec<u8>> {
    let mut full = match (path.first()?, dirfd) {
        (b'/', _) => path.to_vec(),
        (_, libc::AT_FDCWD) => {
            [std::env::current_dir().ok()?.into_os_string().into_vec(), path.to_vec()].join(&b'/')
        }
        (_, dirfd) => {
            let link = std::fs::read_link(format!("/proc/self/fd/{dirfd}")).ok()?;
            [link.into_os_string().into_vec(), path.to_vec()].join(&b'/')
        }
    };
    if full.windows(3).any(|window| window == b"/..") {
        let whole = Path::new(OsStr::from_bytes(&full));
        let parent = std::fs::canonicalize(whole.parent()?).ok()?;
        full = parent.join(whole.file_name()?).into_os_string().into_vec();
    }
    Some(full)
}

fn attempt(dirfd: c_int, path: &CStr, flags: c_int, mode: mode_t, hint: FileHint) -> Option<c_int> {
    let full = concerns(dirfd, path)?;
    let shown = full.escape_ascii();
    if layout::of_directory(&full) {
        count(&COUNTS.left);
        report::note(format_args!("{shown}: not placed: its directory has its own layout"));
        return None;
    }
    let exclusive = (flags & !libc::O_TRUNC) | libc::O_CREAT | libc::O_EXCL;
    let fd = real::openat(dirfd, path.as_ptr(), exclusive | DELAY, mode | WRITABLE);
    // It exists, or cannot be created: the interposed function returns the error to the program.
    if fd < 0 {
        count(&COUNTS.left);
        return None;
    }
    if let Some(asked) = decide(&full, hint) {
        match layout::set(fd, &asked) {
            Ok(()) => {
                count(&COUNTS.placed);
                report::note(format_args!("{shown}: {}", described(&asked)));
            }
            Err(None) => PLAIN.store(true, Ordering::Relaxed),
            Err(Some(why)) => {
                count(&COUNTS.refused);
                report::trouble(format_args!("{shown}: the layout was not set: {why}"));
            }
        }
    }
    // SAFETY: the descriptor is ours; this removes the flags that were added for the layout.
    unsafe {
        libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_ASYNC);
        if mode & WRITABLE == 0 {
            let mut stat = std::mem::zeroed::<libc::stat>();
            if libc::fstat(fd, &raw mut stat) == 0 {
                libc::fchmod(fd, stat.st_mode & 0o7777 & !WRITABLE);
            }
        }
    }
    Some(fd)
}

fn described(lov: &Lov) -> String {
    match lov {
        Lov::Plain(plain) => {
            let targets: Vec<u32> = plain.objects.iter().map(|object| object.target).collect();
            format!("{} × {} bytes on {}", plain.count, plain.size, list(&targets))
        }
        Lov::Composite(composite) => {
            let counts: Vec<u16> = composite.entries.iter().map(|entry| entry.plain.count).collect();
            format!("growing over {} targets", list(&counts))
        }
    }
}
