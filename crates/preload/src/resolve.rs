//! `openat2`: path resolution with restrictions.

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::{Place, locate, ours};
use crate::{cwd, engine, mem, path, process_state};
use forebay_client::{ById, MAX_LINKS, Step};
use forebay_model::{ErrorKind, FileId, FileKind, Result};
use libc::{c_char, c_int};
use std::collections::VecDeque;

const NO_XDEV: u64 = 1;
const NO_MAGICLINKS: u64 = 1 << 1;
const NO_SYMLINKS: u64 = 1 << 2;
const BENEATH: u64 = 1 << 3;
const IN_ROOT: u64 = 1 << 4;
const CACHED: u64 = 1 << 5;
const KNOWN: u64 = NO_XDEV | NO_MAGICLINKS | NO_SYMLINKS | BENEATH | IN_ROOT | CACHED;

/// The arguments of `openat2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct How {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    resolve: u64,
}

/// Flags that `openat2` accepts; the last is `O_LARGEFILE`.
const FLAGS: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_NOCTTY
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK
    | libc::O_SYNC
    | libc::O_ASYNC
    | libc::O_DIRECT
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_NOATIME
    | libc::O_CLOEXEC
    | libc::O_PATH
    | libc::O_TMPFILE
    | 0o100_000;

impl How {
    /// Reads the structure and rejects invalid values.
    pub(crate) fn take(how: *const How, size: usize) -> Outcome<(How, c_int)> {
        if size < size_of::<How>() {
            return fail(libc::EINVAL);
        }
        let more = mem::readable(how.wrapping_add(1).cast(), size - size_of::<How>())?;
        if more.iter().any(|byte| *byte != 0) {
            return fail(libc::E2BIG);
        }
        let how = mem::take(how)?;
        let flags = c_int::try_from(how.flags).map_err(|_| Errno(libc::EINVAL))?;
        let makes = flags & (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)) != 0;
        let means_nothing = flags & !FLAGS != 0
            || how.resolve & !KNOWN != 0
            || how.resolve & (BENEATH | IN_ROOT) == BENEATH | IN_ROOT
            || how.mode & !0o7777 != 0
            || !makes && how.mode != 0;
        if means_nothing { fail(libc::EINVAL) } else { Ok((how, flags)) }
    }

    /// Resolves a path under the restrictions. The second value says whether the last part was already resolved; then
    /// it is not followed if it has become a symbolic link meanwhile.
    pub(crate) fn place(&self, dirfd: c_int, start: *const c_char, flags: c_int) -> Outcome<(Place, bool)> {
        let Some(text) = mem::path(start) else { return Err(Stop::Foreign) };
        let (confined, absolute) = (self.resolve & (BENEATH | IN_ROOT) != 0, text.first() == Some(&b'/'));
        let own = match beginning(dirfd) {
            Err(Stop::Foreign) => None,
            own => Some(own?),
        };
        let Some((dir, base)) = own.filter(|_| confined || !absolute) else {
            return self.enter_from_elsewhere(dirfd, start, absolute, flags);
        };
        if text.is_empty() {
            return fail(libc::ENOENT);
        }
        if absolute && self.resolve & BENEATH != 0 {
            return fail(libc::EXDEV);
        }
        if self.resolve & CACHED != 0 {
            return fail(libc::EAGAIN);
        }
        if !confined && self.resolve & (NO_SYMLINKS | NO_XDEV) == 0 {
            return Ok((locate(dirfd, start)?, false));
        }
        self.walk(dir, text, path::join(&base, text.trim_ascii_start()), flags)
    }

    /// From a directory outside Forebay: the path crosses into another file system.
    fn enter_from_elsewhere(
        &self,
        dirfd: c_int,
        start: *const c_char,
        absolute: bool,
        flags: c_int,
    ) -> Outcome<(Place, bool)> {
        if self.resolve & IN_ROOT != 0 {
            return Err(Stop::Foreign);
        }
        let place = locate(dirfd, start)?;
        if self.resolve & NO_XDEV != 0 || absolute && self.resolve & BENEATH != 0 {
            return fail(libc::EXDEV);
        }
        if self.resolve & CACHED != 0 {
            return fail(libc::EAGAIN);
        }
        if self.resolve & (NO_SYMLINKS | BENEATH) == 0 {
            return Ok((place, false));
        }
        let (dir, rest, full) = (place.dir, place.rest, place.full);
        self.walk(dir, &rest, full, flags)
    }

    fn walk(&self, dir: FileId, way: &[u8], full: Vec<u8>, flags: c_int) -> Outcome<(Place, bool)> {
        let last = flags & libc::O_NOFOLLOW == 0
            && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL;
        let resolve = self.resolve;
        match engine::run(|engine| walk(engine.by_id(), dir, way, resolve, last))? {
            Walked::There(dir, rest) => Ok((Place { dir, rest, full }, true)),
            Walked::Escapes => fail(libc::EXDEV),
        }
    }
}

/// The directory at which relative paths start, if it is inside Forebay.
fn beginning(dirfd: c_int) -> Outcome<(FileId, Vec<u8>)> {
    if dirfd != libc::AT_FDCWD {
        let open = ours(dirfd)?;
        return match open.kind() {
            Kind::File => fail(libc::ENOTDIR),
            _ => Ok((open.id(), open.path().to_vec())),
        };
    }
    process_state::ready();
    let here = cwd::inside().ok_or(Stop::Foreign)?;
    let rest = path::inside(&process_state::config().prefix, &here).ok_or(Stop::Foreign)?.to_vec();
    let found = Place { dir: FileId::ROOT, rest, full: here.clone() }.find(true)?;
    Ok((found.id, here))
}

enum Walked {
    /// A directory, and the last part of the path.
    There(FileId, Vec<u8>),
    /// The path leaves the directory it must stay in.
    Escapes,
}

fn parts(way: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    way.split(|byte| *byte == b'/').filter(|part| !part.is_empty() && *part != b".").map(<[u8]>::to_vec)
}

/// Leaves the last directory. Returns false if that leads out of the directory that the path must stay in.
async fn go_up(by_id: &ById, dirs: &mut Vec<FileId>, resolve: u64) -> Result<bool> {
    if resolve & (BENEATH | IN_ROOT) != 0 {
        let is_below = dirs.len() > 1;
        if is_below {
            dirs.pop();
        }
        return Ok(is_below || resolve & BENEATH == 0);
    }
    let here = dirs.last().copied();
    if let Some(here) = here
        && let Step::Found(attr) = by_id.step(here, b"..", true).await?
    {
        *dirs = vec![attr.id];
    }
    Ok(true)
}

/// Follows a path part by part.
async fn walk(by_id: &ById, start: FileId, way: &[u8], resolve: u64, follow_last: bool) -> Result<Walked> {
    let mut dirs = vec![start];
    let mut left: VecDeque<Vec<u8>> = parts(way).collect();
    let slash = way.ends_with(b"/") || way.ends_with(b"/.");
    let mut links = 0;
    while let Some(mut name) = left.pop_front() {
        let here = *dirs.last().unwrap_or(&start);
        let last = left.is_empty();
        if name == b".." {
            if !go_up(by_id, &mut dirs, resolve).await? {
                return Ok(Walked::Escapes);
            }
            continue;
        }
        let attr = match by_id.step(here, &name, false).await {
            Ok(Step::Found(attr)) => attr,
            Ok(Step::Link { .. }) => return Err(ErrorKind::TooManyLinks.into()),
            Err(error) if last && error.kind() == ErrorKind::NotFound => {
                return Ok(Walked::There(here, name));
            }
            Err(error) => return Err(error),
        };
        match attr.kind {
            FileKind::Symlink if !last || follow_last || slash => {
                links += 1;
                if resolve & NO_SYMLINKS != 0 || links > MAX_LINKS {
                    return Err(ErrorKind::TooManyLinks.into());
                }
                let target = by_id.read_link(attr.id).await?;
                if target.first() == Some(&b'/') {
                    if resolve & IN_ROOT == 0 {
                        return Ok(Walked::Escapes);
                    }
                    dirs.truncate(1);
                }
                parts(&target).rev().for_each(|part| left.push_front(part));
            }
            FileKind::Directory if !last => dirs.push(attr.id),
            _ if !last => return Err(ErrorKind::NotDirectory.into()),
            _ => {
                if slash {
                    name.push(b'/');
                }
                return Ok(Walked::There(here, name));
            }
        }
    }
    Ok(Walked::There(*dirs.last().unwrap_or(&start), b".".to_vec()))
}
