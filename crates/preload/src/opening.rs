//! `open` and its family.

use crate::backing::{self, Ahead, Birth, Kind};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::open::Open;
use crate::place::{
    Entry, Landing, Place, Subject, behind, entry, locate, locate_in, seen_entry, subject, walk,
};
use crate::quiet::Quiet;
use crate::{engine, hook, life, table};
use forebay_client::{ById, File, IfExists, MAX_LINKS, Step};
use forebay_model::{Access, Attr, ErrorKind, FileId, FileKind, Result};
use libc::{c_char, c_int, mode_t};
use rustix::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Flags that `fcntl` shows and can change.
pub(crate) const CHANGEABLE: c_int =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
/// Flags that stay as they were given.
const FIXED: c_int =
    libc::O_ACCMODE | libc::O_SYNC | libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_LARGEFILE;

/// −1: not asked yet.
static UMASK: AtomicI32 = AtomicI32::new(-1);

/// The mode of a new file, as far as this process's mask lets it.
pub(crate) fn masked(mode: mode_t) -> u16 {
    let mut mask = UMASK.load(Ordering::Relaxed);
    if mask < 0 {
        mask = life::status("Umask:", 8).map_or(0o022, |mask| mask as i32);
        UMASK.store(mask, Ordering::Relaxed);
    }
    (mode & 0o7777 & !(mask as u32)) as u16
}

/// What was found or made.
enum Found {
    File(Box<File>),
    Directory(FileId),
    Named(FileId),
}

fn access_of(flags: c_int) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ,
        libc::O_WRONLY => Access::WRITE,
        _ => Access::BOTH,
    }
}

/// Opens what is at a place.
pub(crate) fn open_place(place: &Place, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return fail(libc::EOPNOTSUPP);
    }
    let mode = if flags & libc::O_CREAT != 0 { masked(mode) } else { 0 };
    // Handlers may open files, too, and prepare for that in the same place.
    let _quiet = Quiet::begin();
    let ahead = Ahead::begin(flags & libc::O_CLOEXEC != 0);
    let found = engine::run_with(Ahead::ERRAND, |engine| find(engine.by_id(), place, flags, mode))?.here()?;
    if let (Found::File(file), true) = (&found, flags & libc::O_TRUNC != 0) {
        crate::map::zeroed(file.id(), 0, u64::MAX);
    }
    install(found, flags, &place.full, &ahead)
}

async fn find(by_id: &ById, place: &Place, flags: c_int, mode: u16) -> Result<Landing<Found>> {
    let nofollow = flags & libc::O_NOFOLLOW != 0;
    if flags & libc::O_PATH != 0 {
        return Ok(match walk(by_id, place.dir, &place.rest, !nofollow).await? {
            Landing::Here(attr) if flags & libc::O_DIRECTORY != 0 && attr.kind != FileKind::Directory => {
                return Err(ErrorKind::NotDirectory.into());
            }
            Landing::Here(attr) => Landing::Here(Found::Named(attr.id)),
            Landing::Outside(path) => Landing::Outside(path),
        });
    }
    if flags & libc::O_CREAT != 0 {
        if flags & libc::O_DIRECTORY != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        return Box::pin(make(by_id, place, flags, mode)).await;
    }
    match walk(by_id, place.dir, &place.rest, !nofollow).await? {
        Landing::Here(attr) => Ok(Landing::Here(Box::pin(enter(by_id, &attr, flags)).await?)),
        Landing::Outside(path) => Ok(Landing::Outside(path)),
    }
}

async fn enter(by_id: &ById, attr: &Attr, flags: c_int) -> Result<Found> {
    match attr.kind {
        FileKind::Symlink => Err(ErrorKind::TooManyLinks.into()),
        // The kernel that would have to open it does not know it.
        FileKind::Special(_) => Err(ErrorKind::Unsupported.into()),
        FileKind::Directory if flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0 => {
            Err(ErrorKind::IsDirectory.into())
        }
        FileKind::Directory => {
            // Whoever may not list it may not open it.
            by_id.read_dir(attr.id, u64::MAX >> 1, 1, false).await?;
            Ok(Found::Directory(attr.id))
        }
        FileKind::File if flags & libc::O_DIRECTORY != 0 => Err(ErrorKind::NotDirectory.into()),
        FileKind::File => {
            let truncate = flags & libc::O_TRUNC != 0;
            let mut access = access_of(flags);
            access.write |= truncate;
            Ok(Found::File(Box::new(by_id.open(attr.id, access, truncate).await?)))
        }
    }
}

async fn make(by_id: &ById, place: &Place, flags: c_int, mode: u16) -> Result<Landing<Found>> {
    let if_exists = match () {
        () if flags & libc::O_EXCL != 0 => IfExists::Refuse,
        () if flags & libc::O_TRUNC != 0 => IfExists::Truncate,
        () => IfExists::Open,
    };
    let mut access = access_of(flags);
    access.write |= if_exists == IfExists::Truncate;
    if let Some((dir, name)) = seen_entry(by_id, place.dir, &place.rest) {
        match by_id.create(dir, name, mode, access, if_exists).await {
            Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::TooManyLinks) => {}
            made => return Ok(Landing::Here(Found::File(Box::new(made?.0)))),
        }
    }
    let (mut from, mut way) = (place.dir, place.rest.clone());
    for _ in 0..=MAX_LINKS {
        let none = if if_exists == IfExists::Refuse { ErrorKind::Exists } else { ErrorKind::IsDirectory };
        let Entry { dir, name, slash } = match entry(by_id, from, &way, none).await? {
            Landing::Here(entry) => entry,
            Landing::Outside(path) => return Ok(Landing::Outside(path)),
        };
        if slash {
            return Err(ErrorKind::IsDirectory.into());
        }
        match by_id.create(dir, name.clone(), mode, access, if_exists).await {
            Ok((file, _)) => return Ok(Landing::Here(Found::File(Box::new(file)))),
            Err(error) if error.kind() == ErrorKind::TooManyLinks && flags & libc::O_NOFOLLOW == 0 => {}
            Err(error) => return Err(error),
        }
        // A link is in the way. It may be gone by now, and then its place is tried again.
        if let Step::Link { dir, target, rest } = by_id.step(dir, name.as_bytes(), true).await? {
            match behind(dir, target, &rest) {
                Landing::Here((next, path)) => (from, way) = (next, path),
                Landing::Outside(path) => return Ok(Landing::Outside(path)),
            }
        }
    }
    Err(ErrorKind::TooManyLinks.into())
}

/// Gives what was opened a descriptor.
fn install(found: Found, flags: c_int, path: &[u8], ahead: &Ahead) -> Outcome<c_int> {
    let (kind, id, file) = match found {
        Found::File(file) => (Kind::File, file.id(), Some(*file)),
        Found::Directory(id) => (Kind::Directory, id, None),
        Found::Named(id) => (Kind::Path, id, None),
    };
    let birth = Birth {
        kind,
        access: (flags & FIXED) as u32,
        flags: (flags & CHANGEABLE) as u32,
        file: id,
        token: file.as_ref().map(File::token),
        path: &if path.len() < 4096 { path.to_vec() } else { crate::path::normal(path) },
    };
    let made = backing::create(&birth, ahead);
    let (fd, mapped) = match made {
        Ok(made) => made,
        Err(stop) => {
            file.into_iter().for_each(|file| crate::exit::close(std::sync::Arc::new(file)));
            return Err(stop);
        }
    };
    let held = table::hold(Open::new(mapped, file));
    let fd = fd.into_raw_fd();
    if life::is_borrowed() {
        // The parent has no such descriptor; what it shares with us must outlive us.
        std::mem::forget(held);
    } else {
        table::put(fd, &held);
        crate::stdio::changed(fd);
    }
    Ok(fd)
}

pub(crate) fn open_at(dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    if flags & libc::O_PATH != 0
        && let Ok(Subject::Open(_)) = subject(dirfd, path, 0)
    {
        return fail(libc::ENOENT);
    }
    let mut quiet = None;
    let place = locate_in(&mut quiet, dirfd, path)?;
    let _quiet = Quiet::begin();
    let opened = open_place(&place, flags, mode);
    drop(place);
    opened
}

/// `openat2` takes its arguments in a structure.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct How {
    flags: u64,
    mode: u64,
    resolve: u64,
}

pub(crate) fn open_how(dirfd: c_int, path: *const c_char, how: *const How, size: usize) -> Outcome<c_int> {
    let place = locate(dirfd, path)?;
    if size < size_of::<How>() {
        return fail(libc::EINVAL);
    }
    let how = crate::mem::take(how)?;
    let flags = c_int::try_from(how.flags).map_err(|_| Errno(libc::EINVAL))?;
    open_place(&place, flags, how.mode as mode_t)
}

pub(crate) fn note_mask(mask: mode_t) -> Outcome<mode_t> {
    UMASK.store((mask & 0o777) as i32, Ordering::Relaxed);
    Err(Stop::Foreign)
}

impl hook::Failed for mode_t {
    const FAILED: mode_t = 0;
}

hook::hooks! {
    fn [open, open64, __open, __open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int, at path =>
        open_at(libc::AT_FDCWD, path, flags, mode);
    fn [__open_2, __open64_2](path: *const c_char, flags: c_int) -> c_int, at path =>
        open_at(libc::AT_FDCWD, path, flags, 0);
    fn [openat, openat64](dirfd: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int, at path =>
        open_at(dirfd, path, flags, mode);
    fn [__openat_2, __openat64_2](dirfd: c_int, path: *const c_char, flags: c_int) -> c_int, at path =>
        open_at(dirfd, path, flags, 0);
    fn [creat, creat64](path: *const c_char, mode: mode_t) -> c_int, at path =>
        open_at(libc::AT_FDCWD, path, libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC, mode);
    fn [openat2](dirfd: c_int, path: *const c_char, how: *const How, size: usize) -> c_int, at path =>
        open_how(dirfd, path, how, size);
    fn [umask](mask: mode_t) -> mode_t => note_mask(mask);
    fn [mkfifo](path: *const c_char, mode: mode_t) -> c_int, at path =>
        make_node(libc::AT_FDCWD, path, mode & 0o7777 | libc::S_IFIFO, 0);
    fn [mkfifoat](dirfd: c_int, path: *const c_char, mode: mode_t) -> c_int, at path =>
        make_node(dirfd, path, mode & 0o7777 | libc::S_IFIFO, 0);
    fn [mknod](path: *const c_char, mode: mode_t, dev: libc::dev_t) -> c_int, at path =>
        make_node(libc::AT_FDCWD, path, mode, dev);
    fn [mknodat](dirfd: c_int, path: *const c_char, mode: mode_t, dev: libc::dev_t) -> c_int, at path =>
        make_node(dirfd, path, mode, dev);
    fn [__xmknod](_version: c_int, path: *const c_char, mode: mode_t, dev: *const libc::dev_t) -> c_int, at path =>
        { locate(libc::AT_FDCWD, path)?; make_node(libc::AT_FDCWD, path, mode, crate::mem::take(dev)?) };
    fn [__xmknodat](_version: c_int, dirfd: c_int, path: *const c_char, mode: mode_t, dev: *const libc::dev_t)
        -> c_int, at path => { locate(dirfd, path)?; make_node(dirfd, path, mode, crate::mem::take(dev)?) };
}

/// Special files have a name and attributes; they cannot be opened here.
pub(crate) fn make_node(dirfd: c_int, path: *const c_char, mode: mode_t, dev: libc::dev_t) -> Outcome<c_int> {
    let place = locate(dirfd, path)?;
    let Some(special) = crate::stat::special(mode, dev)? else {
        let fd = open_place(&place, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode & 0o7777)?;
        return crate::descriptors::close_fd(fd);
    };
    let (entry, mode) = (place.entry(ErrorKind::Exists)?, masked(mode));
    engine::run(|engine| engine.by_id().make_special(entry.dir, entry.name, mode, special))?;
    Ok(0)
}
