//! Resolves path arguments to files of the service.

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::quiet::Quiet;
use crate::table::{self, Held};
use crate::{cwd, engine, mem, path, process_state};
use forebay_client::{ById, MAX_LINKS, Step};
use forebay_model::{Attr, ErrorKind, FileId, FileKind, Name, Result};
use libc::{c_char, c_int};
use std::ffi::CString;

/// A path inside Forebay.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The directory at which it starts.
    pub(crate) dir: FileId,
    /// The path from there, as the application wrote it.
    pub(crate) rest: Vec<u8>,
    /// The whole path as text, with the prefix.
    pub(crate) full: Vec<u8>,
}

/// A name in a directory.
pub(crate) struct Entry {
    pub(crate) dir: FileId,
    pub(crate) name: Name,
    /// Whether a slash follows the name: it must be a directory.
    pub(crate) slash: bool,
}

/// The object of a call.
pub(crate) enum Subject {
    Open(Held),
    Place(Place),
}

/// The open file of Forebay with this descriptor.
pub(crate) fn ours(fd: c_int) -> Outcome<Held> {
    process_state::ready();
    table::get(fd).ok_or(Stop::Foreign)
}

/// Resolves a path argument, if it is inside Forebay.
pub(crate) fn locate(dirfd: c_int, start: *const c_char) -> Outcome<Place> {
    locate_in(&mut None, dirfd, start)
}

/// As [`locate`], but blocks signals first and leaves them blocked for the caller's next steps. Not for long
/// operations.
pub(crate) fn locate_in(quiet: &mut Option<Quiet>, dirfd: c_int, start: *const c_char) -> Outcome<Place> {
    process_state::ready();
    let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
    let prefix = &process_state::config().prefix;
    if text.first() == Some(&b'/') {
        let rest = match path::way(prefix, text) {
            path::Way::Inside(rest) => rest,
            // The kernel does not have the prefix.
            path::Way::Through => return Err(outside(path::normal(text))),
            path::Way::Outside => return Err(Stop::Foreign),
        };
        fits(text)?;
        *quiet = Some(Quiet::begin());
        return Ok(Place { dir: FileId::ROOT, rest: rest.to_vec(), full: text.to_vec() });
    }
    let (dir, base) = match table::get(dirfd) {
        Some(open) if dirfd >= 0 => {
            check_text(text)?;
            if open.kind() == Kind::File {
                return fail(libc::ENOTDIR);
            }
            (Some(open.id()), open.path().to_vec())
        }
        _ => match cwd::inside().filter(|_| dirfd == libc::AT_FDCWD) {
            Some(here) => (None, here),
            None => return from_above(dirfd, text),
        },
    };
    check_text(text)?;
    let full = path::join(&base, text);
    let Some(rest) = path::inside(prefix, &full) else { return Err(outside(path::normal(&full))) };
    match dir {
        Some(dir) => Ok(Place { dir, rest: text.to_vec(), full }),
        None if rest.len() < mem::PATH_MAX => Ok(Place { dir: FileId::ROOT, rest: rest.to_vec(), full }),
        // The length limit of paths does not include the directory at which the path starts.
        None => {
            let way = path::inside(prefix, &base).unwrap_or_default().to_vec();
            let here = Place { dir: FileId::ROOT, rest: way, full: base };
            Ok(Place { dir: here.find(true)?.id, rest: text.to_vec(), full })
        }
    }
}

/// The open file of Forebay that a path names by its descriptor, such as `/proc/self/fd/7`.
pub(crate) fn by_descriptor(start: *const c_char) -> Option<Held> {
    let text = mem::path(start)?;
    let number = text.strip_prefix(b"/dev/fd/").or_else(|| {
        let rest = text.strip_prefix(b"/proc/")?;
        let end = rest.iter().position(|&byte| byte == b'/')?;
        let (process, rest) = rest.split_at(end);
        let is_own = matches!(process, b"self" | b"thread-self")
            || process == rustix::process::getpid().as_raw_nonzero().to_string().as_bytes();
        rest.strip_prefix(b"/fd/").filter(|_| is_own)
    })?;
    let fd: c_int = std::str::from_utf8(number).ok()?.parse().ok()?;
    process_state::ready();
    table::get(fd).filter(|_| fd >= 0)
}

/// A path from the parent directory of the prefix, such as `fb/x` from the root.
fn from_above(dirfd: c_int, text: &[u8]) -> Outcome<Place> {
    let prefix = &process_state::config().prefix;
    let (above, name, _) = path::split(prefix).ok_or(Stop::Foreign)?;
    if path::first(text) != Some(name) {
        return Err(Stop::Foreign);
    }
    if dirfd < 0 && dirfd != libc::AT_FDCWD {
        return Err(Stop::Foreign);
    }
    // SAFETY: borrowed for one call; a descriptor that is closed meanwhile gives an error.
    let dir = unsafe { rustix::fd::BorrowedFd::borrow_raw(dirfd) };
    let found = if dirfd == libc::AT_FDCWD { rustix::fs::stat(c".") } else { rustix::fs::fstat(dir) };
    match (found, rustix::fs::stat(above)) {
        (Ok(found), Ok(above)) if (found.st_dev, found.st_ino) == (above.st_dev, above.st_ino) => {}
        _ => return Err(Stop::Foreign),
    }
    fits(text)?;
    let full = path::join(above.strip_suffix(b"/").unwrap_or(above), text);
    match path::way(prefix, &full) {
        path::Way::Inside(rest) => Ok(Place { dir: FileId::ROOT, rest: rest.to_vec(), full }),
        _ => Err(outside(path::normal(&full))),
    }
}

fn fits(text: &[u8]) -> Outcome<()> {
    if text.len() >= mem::PATH_MAX { fail(libc::ENAMETOOLONG) } else { Ok(()) }
}

/// Checks a relative path, whatever directory it starts at.
fn check_text(text: &[u8]) -> Outcome<()> {
    if text.is_empty() { fail(libc::ENOENT) } else { fits(text) }
}

/// Turns `ESTALE` into `ENOENT`: an open descriptor names a directory that was removed.
pub(crate) fn found<T>(result: std::result::Result<T, Errno>) -> Outcome<T> {
    result
        .map_err(|errno| Stop::Errno(if errno == Errno(libc::ESTALE) { Errno(libc::ENOENT) } else { errno }))
}

fn outside(path: Vec<u8>) -> Stop {
    match CString::new(path) {
        Ok(path) => Stop::Outside(path),
        Err(_) => Stop::Errno(Errno(libc::ENOENT)),
    }
}

/// As [`locate`]; with `AT_EMPTY_PATH` and an empty path, the descriptor itself.
pub(crate) fn subject(dirfd: c_int, start: *const c_char, flags: c_int) -> Outcome<Subject> {
    subject_in(&mut None, dirfd, start, flags)
}

/// As [`subject`], with signals blocked: see [`locate_in`].
pub(crate) fn subject_in(
    quiet: &mut Option<Quiet>,
    dirfd: c_int,
    start: *const c_char,
    flags: c_int,
) -> Outcome<Subject> {
    process_state::ready();
    if flags & libc::AT_EMPTY_PATH != 0 && (start.is_null() || mem::path(start).is_some_and(<[u8]>::is_empty))
    {
        if dirfd == libc::AT_FDCWD {
            let full = cwd::inside().ok_or(Stop::Foreign)?;
            let rest = path::inside(&process_state::config().prefix, &full).ok_or(Stop::Foreign)?.to_vec();
            return Ok(Subject::Place(Place { dir: FileId::ROOT, rest, full }));
        }
        return ours(dirfd).map(Subject::Open);
    }
    locate_in(quiet, dirfd, start).map(Subject::Place)
}

impl Subject {
    pub(crate) fn attr(&self, follow: bool) -> Outcome<Attr> {
        match self {
            Subject::Open(open) => open.attr(),
            Subject::Place(place) => place.find(follow),
        }
    }

    /// As [`Subject::attr`], and drops the subject.
    pub(crate) fn into_attr(self, follow: bool) -> Outcome<Attr> {
        let _quiet = Quiet::begin();
        let attr = self.attr(follow);
        drop(self);
        attr
    }

    /// The file's id.
    pub(crate) fn id(&self, follow: bool) -> Outcome<FileId> {
        match self {
            Subject::Open(open) => Ok(open.id()),
            Subject::Place(place) => Ok(place.find(follow)?.id),
        }
    }
}

/// Result of a path walk.
pub(crate) enum Landing<T> {
    Here(T),
    /// A symbolic link led out of Forebay, to this absolute path.
    Outside(Vec<u8>),
}

impl<T> Landing<T> {
    pub(crate) fn here(self) -> Outcome<T> {
        match self {
            Landing::Here(value) => Ok(value),
            Landing::Outside(path) => Err(outside(path)),
        }
    }
}

impl Place {
    /// The attributes of the file at this path.
    pub(crate) fn find(&self, follow: bool) -> Outcome<Attr> {
        found(engine::run(|engine| walk(engine.by_id(), self.dir, &self.rest, follow)))?.here()
    }

    /// The directory and the name the path ends in; fails with `if_none` if it ends in no name.
    pub(crate) fn entry(&self, if_none: ErrorKind) -> Outcome<Entry> {
        found(engine::run(|engine| entry(engine.by_id(), self.dir, &self.rest, if_none)))?.here()
    }

    /// As [`Place::entry`]; a path that leads out of Forebay fails with `EXDEV`.
    pub(crate) fn own_entry(&self, if_none: ErrorKind) -> Outcome<Entry> {
        match self.entry(if_none) {
            Err(Stop::Outside(_)) => fail(libc::EXDEV),
            other => other,
        }
    }
}

/// Follows a path and the symbolic links in it. An absolute link is an ordinary absolute path, which may or may not
/// lead back under the prefix.
pub(crate) async fn walk(by_id: &ById, dir: FileId, way: &[u8], follow: bool) -> Result<Landing<Attr>> {
    let (mut dir, mut way) = (dir, way.to_vec());
    for _ in 0..=MAX_LINKS {
        let through = follow || way.ends_with(b"/");
        match by_id.step(dir, &way, through).await? {
            Step::Found(attr) => return Ok(Landing::Here(attr)),
            Step::Link { dir: holder, target, rest } => match resolve_link(holder, target, &rest) {
                Landing::Here((next, path)) => (dir, way) = (next, path),
                Landing::Outside(path) => return Ok(Landing::Outside(path)),
            },
        }
    }
    Err(ErrorKind::TooManyLinks.into())
}

/// Resolves the target of a symbolic link.
pub(crate) fn resolve_link(holder: FileId, target: Vec<u8>, rest: &[u8]) -> Landing<(FileId, Vec<u8>)> {
    let mut whole = target;
    if !rest.is_empty() {
        whole.push(b'/');
        whole.extend_from_slice(rest);
    }
    if whole.first() != Some(&b'/') {
        return Landing::Here((holder, whole));
    }
    match path::inside(&process_state::config().prefix, &whole) {
        Some(inside) => Landing::Here((FileId::ROOT, inside.to_vec())),
        None => Landing::Outside(whole),
    }
}

/// The directory and the name a path ends in, if the client knows them without a request. The directory may have been
/// removed: a caller that gets `Stale` has to walk. Unknown for names followed by a slash.
pub(crate) fn seen_entry(by_id: &ById, dir: FileId, way: &[u8]) -> Option<(FileId, Name)> {
    let (parent, name, slash) = path::split(way)?;
    if slash {
        return None;
    }
    Some((by_id.seen_dir(dir, parent)?, Name::new(name).ok()?))
}

/// The directory and the name a path ends in.
pub(crate) async fn entry(
    by_id: &ById,
    dir: FileId,
    way: &[u8],
    if_none: ErrorKind,
) -> Result<Landing<Entry>> {
    let Some((parent, name, slash)) = path::split(way) else { return Err(if_none.into()) };
    let name = Name::new(name)?;
    if parent.iter().all(|&byte| byte == b'/') {
        return Ok(Landing::Here(Entry { dir, name, slash }));
    }
    Ok(match walk(by_id, dir, parent, true).await? {
        Landing::Here(attr) if attr.kind != FileKind::Directory => return Err(ErrorKind::NotDirectory.into()),
        Landing::Here(attr) => Landing::Here(Entry { dir: attr.id, name, slash }),
        Landing::Outside(path) => Landing::Outside(path::join(&path, name.as_bytes())),
    })
}
