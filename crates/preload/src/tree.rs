//! Tree walks and glob patterns: the C library's own functions list directories bypassing this library.

use crate::errno::{Errno, Outcome, Stop};
use crate::place::{Place, locate};
use crate::{dir, hook, mem, path, process_state, stat};
use libc::{DIR, c_char, c_int, c_void, dirent64, stat as Stat};
use std::collections::BTreeSet;
use std::ffi::CString;

/// `struct FTW`, passed to the application's function.
#[repr(C)]
struct Level {
    base: c_int,
    level: c_int,
}

type Visit = unsafe extern "C" fn(*const c_char, *const Stat, c_int, *mut Level) -> c_int;
type OldVisit = unsafe extern "C" fn(*const c_char, *const Stat, c_int) -> c_int;

const FILE: c_int = 0;
const DIRECTORY: c_int = 1;
const UNREADABLE: c_int = 2;
const UNKNOWN: c_int = 3;
const LINK: c_int = 4;
const DIRECTORY_AFTER: c_int = 5;
const DANGLING: c_int = 6;

const PHYSICAL: c_int = 1;
const CHANGE_DIRECTORY: c_int = 4;
const DEPTH_FIRST: c_int = 8;
const WITH_ACTIONS: c_int = 16;

/// Deeper than any path.
const DEEPEST: c_int = 2048;

struct Walk<F> {
    visit: F,
    flags: c_int,
    /// Directories already visited, if symbolic links are followed: none is visited twice.
    seen: BTreeSet<(u64, u64)>,
    /// The initial working directory, if the walk changes it (`FTW_CHDIR`).
    origin: Option<Vec<u8>>,
}

impl<F: FnMut(&CString, &Stat, c_int, Level) -> c_int> Walk<F> {
    /// Visits the file at a path and everything below it. A result other than 0 ends the walk.
    fn at(&mut self, text: &[u8], level: c_int) -> Outcome<c_int> {
        let name = CString::new(text).map_err(|_| Errno(libc::ENOENT))?;
        let place = match &self.origin {
            Some(origin) if !text.starts_with(b"/") => path::join(origin, text),
            _ => text.to_vec(),
        };
        let place = CString::new(place).map_err(|_| Errno(libc::ENOENT))?;
        let base = text.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1) as c_int;
        let position = Level { base, level };
        // SAFETY: a structure of integers.
        let mut attributes: Stat = unsafe { std::mem::zeroed() };
        let mut kind = self.kind(&place, &mut attributes)?;
        if kind != DIRECTORY || level > DEEPEST {
            self.enter_parent(&place)?;
            return Ok((self.visit)(&name, &attributes, kind, position));
        }
        if self.flags & PHYSICAL == 0 && !self.seen.insert((attributes.st_dev, attributes.st_ino)) {
            return Ok(0);
        }
        let list = match dir::names(&place) {
            Ok(list) => list,
            Err(Stop::Errno(Errno(libc::EACCES))) => {
                self.enter_parent(&place)?;
                return Ok((self.visit)(&name, &attributes, UNREADABLE, position));
            }
            Err(stop) => return Err(stop),
        };
        let after = self.flags & DEPTH_FIRST != 0;
        if !after {
            self.enter_parent(&place)?;
            let answer = (self.visit)(&name, &attributes, kind, Level { base, level });
            match answer {
                0 => {}
                // With `FTW_ACTIONRETVAL`: 2 skips the subtree.
                2 if self.flags & WITH_ACTIONS != 0 => return Ok(0),
                answer => return Ok(answer),
            }
        }
        for child in list {
            match self.at(&path::join(text.strip_suffix(b"/").unwrap_or(text), &child), level + 1)? {
                0 => {}
                // With `FTW_ACTIONRETVAL`: 3 skips the remaining siblings.
                3 if self.flags & WITH_ACTIONS != 0 => break,
                answer => return Ok(answer),
            }
        }
        if after {
            kind = DIRECTORY_AFTER;
            self.enter_parent(&place)?;
            return Ok((self.visit)(&name, &attributes, kind, position));
        }
        Ok(0)
    }

    /// With `FTW_CHDIR`: changes the working directory to the directory that contains `place`.
    fn enter_parent(&self, place: &CString) -> Outcome<()> {
        if self.origin.is_none() {
            return Ok(());
        }
        let text = place.as_bytes();
        let parent = path::split(text).map_or(text, |(parent, ..)| parent);
        change_directory(if parent.is_empty() { b"/" } else { parent })
    }

    fn kind(&self, name: &CString, attributes: &mut Stat) -> Outcome<c_int> {
        let mut look = |flags| stat::at(libc::AT_FDCWD, name.as_ptr(), attributes, flags);
        let nofollow = libc::AT_SYMLINK_NOFOLLOW;
        let (found, dangling) = match look(if self.flags & PHYSICAL != 0 { nofollow } else { 0 }) {
            Err(Stop::Errno(Errno(libc::ENOENT))) if self.flags & PHYSICAL == 0 => (look(nofollow), true),
            found => (found, false),
        };
        match found {
            Err(Stop::Errno(Errno(libc::EACCES))) => return Ok(UNKNOWN),
            found => found?,
        };
        Ok(match attributes.st_mode & libc::S_IFMT {
            libc::S_IFDIR => DIRECTORY,
            libc::S_IFLNK if dangling => DANGLING,
            libc::S_IFLNK => LINK,
            _ => FILE,
        })
    }
}

fn working_directory() -> Outcome<Vec<u8>> {
    match crate::cwd::inside() {
        Some(here) => Ok(here),
        None => Ok(rustix::process::getcwd(Vec::new())?.into_bytes()),
    }
}

/// Changes the working directory to one inside or outside Forebay.
fn change_directory(path: &[u8]) -> Outcome<()> {
    let path = CString::new(path).map_err(|_| Errno(libc::ENOENT))?;
    match crate::cwd::change(path.as_ptr()) {
        Err(Stop::Foreign) => Ok(rustix::process::chdir(path)?),
        Err(Stop::Outside(path)) => Ok(rustix::process::chdir(path)?),
        changed => changed.map(drop),
    }
}

fn text_of(start: *const c_char) -> Outcome<Vec<u8>> {
    let _: Place = locate(libc::AT_FDCWD, start)?;
    Ok(mem::path(start).ok_or(Stop::Foreign)?.to_vec())
}

fn walk_new(start: *const c_char, visit: Visit, flags: c_int) -> Outcome<c_int> {
    let text = text_of(start)?;
    let origin = if flags & CHANGE_DIRECTORY == 0 { None } else { Some(working_directory()?) };
    // SAFETY: the application's function is called with the arguments of its type.
    let visit = |name: &CString, attributes: &Stat, kind, mut level: Level| unsafe {
        visit(name.as_ptr(), attributes, kind, &raw mut level)
    };
    let walked = Walk { visit, flags, seen: BTreeSet::new(), origin: origin.clone() }.at(&text, 0);
    origin.map_or(Ok(()), |origin| change_directory(&origin))?;
    walked
}

fn walk_old(start: *const c_char, visit: OldVisit) -> Outcome<c_int> {
    let text = text_of(start)?;
    // SAFETY: as above.
    let visit =
        |name: &CString, attributes: &Stat, kind, _: Level| unsafe { visit(name.as_ptr(), attributes, kind) };
    Walk { visit, flags: 0, seen: BTreeSet::new(), origin: None }.at(&text, 0)
}

/// `glob_t` of the C library, with the functions that programs may replace.
#[repr(C)]
pub(crate) struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    offset: usize,
    flags: c_int,
    close: unsafe extern "C" fn(*mut DIR) -> c_int,
    next: unsafe extern "C" fn(*mut DIR) -> *mut dirent64,
    open: unsafe extern "C" fn(*const c_char) -> *mut DIR,
    look: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
    look_through: unsafe extern "C" fn(*const c_char, *mut Stat) -> c_int,
}

unsafe extern "C" {
    fn closedir(dir: *mut DIR) -> c_int;
    fn readdir64(dir: *mut DIR) -> *mut dirent64;
    fn opendir(path: *const c_char) -> *mut DIR;
    fn lstat(path: *const c_char, into: *mut Stat) -> c_int;
    fn stat(path: *const c_char, into: *mut Stat) -> c_int;
}

const OWN_FUNCTIONS: c_int = 1 << 9;

/// Whether a pattern could match a path inside Forebay: then the C library is made to use this library's functions.
fn concerns_us(pattern: *const c_char) -> bool {
    let Some(text) = mem::path(pattern) else { return false };
    match text.first() {
        Some(b'/') => path::inside(&process_state::config().prefix, text).is_some(),
        _ => crate::cwd::inside().is_some(),
    }
}

type GlobError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;

fn glob_with(
    real: impl Fn(*const c_char, c_int, GlobError, *mut Glob) -> c_int,
    pattern: *const c_char,
    flags: c_int,
    error: GlobError,
    into: *mut Glob,
) -> Outcome<c_int> {
    process_state::ready();
    if flags & OWN_FUNCTIONS != 0 || !concerns_us(pattern) {
        return Err(Stop::Foreign);
    }
    mem::writable(into.cast::<c_void>(), size_of::<Glob>())?;
    // SAFETY: the application's structure, accessible and writable; with `GLOB_ALTDIRFUNC` these fields are the
    // caller's to set.
    unsafe {
        (*into).close = closedir;
        (*into).next = readdir64;
        (*into).open = opendir;
        (*into).look = lstat;
        (*into).look_through = stat;
    }
    Ok(real(pattern, flags | OWN_FUNCTIONS, error, into))
}

static REAL_GLOB: hook::Real = hook::Real::new("glob64\0");

fn real_glob(pattern: *const c_char, flags: c_int, error: GlobError, into: *mut Glob) -> c_int {
    const NO_SPACE: c_int = 1;
    let Some(address) = REAL_GLOB.address() else { return NO_SPACE };
    // SAFETY: the C library's function of this name has this signature.
    unsafe {
        let real: unsafe extern "C" fn(*const c_char, c_int, GlobError, *mut Glob) -> c_int =
            std::mem::transmute(address);
        real(pattern, flags, error, into)
    }
}

hook::hooks! {
    fn [nftw, nftw64](path: *const c_char, visit: Visit, _descriptors: c_int, flags: c_int) -> c_int, at path =>
        walk_new(path, visit, flags);
    fn [ftw, ftw64](path: *const c_char, visit: OldVisit, _descriptors: c_int) -> c_int, at path =>
        walk_old(path, visit);
    fn [glob, glob64](pattern: *const c_char, flags: c_int, error: GlobError, into: *mut Glob) -> c_int =>
        glob_with(real_glob, pattern, flags, error, into);
}
