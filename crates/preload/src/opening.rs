//! `open` and its family.

use crate::backing::{self, Ahead, Kind, NewOpen};
use crate::credentials::Credentials;
use crate::errno::{Outcome, Stop, fail};
use crate::open::Open;
use crate::place::{
    Entry, Landing, Place, Subject, by_descriptor, entry, locate, locate_in, resolve_link, seen_entry,
    subject, walk,
};
use crate::quiet::Quiet;
use crate::resolve::How;
use crate::{engine, hook, process_state, special, table};
use forebay_client::{ById, File, IfExists, MAX_LINKS, Step};
use forebay_model::{Access, Attr, ErrorKind, FileId, FileKind, Name, Result, Special, may};
use libc::{c_char, c_int, mode_t};
use rustix::fd::IntoRawFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Flags that `fcntl` reports and can change.
pub(crate) const CHANGEABLE: c_int =
    libc::O_APPEND | libc::O_NONBLOCK | libc::O_DIRECT | libc::O_NOATIME | libc::O_ASYNC;
/// Flags that never change after the open.
const FIXED: c_int = libc::O_ACCMODE
    | libc::O_SYNC
    | libc::O_PATH
    | libc::O_DIRECTORY
    | libc::O_NOFOLLOW
    | libc::O_LARGEFILE
    | UNNAMED;

/// Marks a file created without a name that may be linked. Not visible to programs.
pub(crate) const LINKABLE: u32 = 1 << 31;
/// Marks a file that the open created. Visible to programs only by `F_CREATED_QUERY`.
pub(crate) const CREATED: u32 = 1 << 30;
const UNNAMED: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

/// The process's umask; −1: not read yet.
static UMASK: AtomicI32 = AtomicI32::new(-1);

/// The mode of a new file after the process's umask.
pub(crate) fn masked(mode: mode_t) -> u16 {
    let mut mask = UMASK.load(Ordering::Relaxed);
    if mask < 0 {
        mask = process_state::status("Umask:", 8).map_or(0o022, |mask| mask as i32);
        UMASK.store(mask, Ordering::Relaxed);
    }
    (mode & 0o7777 & !(mask as u32)) as u16
}

/// The file that an open found or created.
enum Found {
    /// A file, and whether the open created it.
    File(Box<File>, bool),
    Directory(FileId),
    Named(FileId),
    /// A socket: `open` fails.
    Socket,
}

fn access_of(flags: c_int) -> Access {
    match flags & libc::O_ACCMODE {
        libc::O_RDONLY => Access::READ,
        libc::O_WRONLY => Access::WRITE,
        _ => Access::BOTH,
    }
}

/// Opens the file at a place.
pub(crate) fn open_place(place: &Place, flags: c_int, mode: mode_t) -> Outcome<c_int> {
    if flags & libc::O_TMPFILE == libc::O_TMPFILE && flags & libc::O_ACCMODE == libc::O_RDONLY {
        return fail(libc::EINVAL);
    }
    let makes = flags & libc::O_CREAT != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE;
    let mode = if makes { masked(mode) } else { 0 };
    // A signal handler may also open a file, and would use the same thread-local.
    let _quiet = Quiet::begin();
    let ahead = Ahead::begin(flags & libc::O_CLOEXEC != 0);
    let found = engine::run_with(Ahead::WAIT_HOOKS, |engine| find(engine.by_id(), place, flags, mode));
    let found = crate::place::found(found)?.here()?;
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
    if flags & libc::O_NOATIME != 0 {
        Box::pin(may_leave_times(by_id, place, nofollow)).await?;
    }
    if flags & libc::O_TMPFILE == libc::O_TMPFILE {
        return Box::pin(make_unnamed(by_id, place, flags, mode)).await;
    }
    if flags & libc::O_CREAT != 0 {
        if flags & libc::O_DIRECTORY != 0 {
            return Err(ErrorKind::Invalid.into());
        }
        return match Box::pin(make(by_id, place, flags, mode)).await {
            // The path names something other than a regular file.
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                match walk(by_id, place.dir, &place.rest, true).await? {
                    Landing::Here(attr) if attr.kind == PIPE => pipe(by_id, &attr, flags).await,
                    _ => Err(error),
                }
            }
            made => made,
        };
    }
    match walk(by_id, place.dir, &place.rest, !nofollow).await? {
        Landing::Here(attr) if attr.kind == PIPE && flags & libc::O_DIRECTORY == 0 => {
            pipe(by_id, &attr, flags).await
        }
        Landing::Here(attr) => Ok(Landing::Here(Box::pin(enter(by_id, &attr, flags)).await?)),
        Landing::Outside(path) => Ok(Landing::Outside(path)),
    }
}

/// Only the owner of a file may open it with `O_NOATIME`. Checked before the file is truncated.
async fn may_leave_times(by_id: &ById, place: &Place, nofollow: bool) -> Result<()> {
    let who = Credentials::read().for_files();
    match walk(by_id, place.dir, &place.rest, !nofollow).await {
        Ok(Landing::Here(attr)) if !who.is_root() && who.uid != attr.uid => {
            Err(ErrorKind::NotPermitted.into())
        }
        _ => Ok(()),
    }
}

const PIPE: FileKind = FileKind::Special(Special::Pipe);

/// The kernel opens a named pipe at a path of this machine: that of the server, if it is on this machine and root's, which all
/// users share; otherwise one of the pipe's owner.
async fn pipe(by_id: &ById, attr: &Attr, flags: c_int) -> Result<Landing<Found>> {
    if !may(&Credentials::read().for_files(), attr, access_of(flags)) {
        return Err(ErrorKind::AccessDenied.into());
    }
    match by_id.local_pipe(attr.id).await {
        Ok(path) if special::is_pipe(&path) => return Ok(Landing::Outside(path)),
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::Unsupported => {}
        Err(error) => return Err(error),
    }
    special::pipe(attr).map(Landing::Outside).map_err(|_| ErrorKind::Unsupported.into())
}

/// Creates a file without a name. Its creator may link it, unless `O_EXCL` is set.
async fn make_unnamed(by_id: &ById, place: &Place, flags: c_int, mode: u16) -> Result<Landing<Found>> {
    let dir = match walk(by_id, place.dir, &place.rest, true).await? {
        Landing::Here(attr) if attr.kind == FileKind::Directory => attr.id,
        Landing::Here(_) => return Err(ErrorKind::NotDirectory.into()),
        Landing::Outside(path) => return Ok(Landing::Outside(path)),
    };
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| forebay_model::Error::from(ErrorKind::Io))?;
    let name = Name::new(format!(".forebay-unnamed-{:016x}", u64::from_ne_bytes(random)).as_bytes())?;
    let (file, _) = by_id.create(dir, name.clone(), mode, access_of(flags), IfExists::Refuse).await?;
    by_id.unlink(dir, name).await?;
    Ok(Landing::Here(Found::File(Box::new(file), true)))
}

async fn enter(by_id: &ById, attr: &Attr, flags: c_int) -> Result<Found> {
    match attr.kind {
        FileKind::Symlink => Err(ErrorKind::TooManyLinks.into()),
        FileKind::Special(_) if flags & libc::O_DIRECTORY != 0 => Err(ErrorKind::NotDirectory.into()),
        FileKind::Special(Special::Socket) => Ok(Found::Socket),
        // The kernel cannot open it, since the file exists only in Forebay.
        FileKind::Special(_) => Err(ErrorKind::Unsupported.into()),
        FileKind::Directory if flags & (libc::O_ACCMODE | libc::O_TRUNC) != 0 => {
            Err(ErrorKind::IsDirectory.into())
        }
        FileKind::Directory => {
            // Opening a directory requires permission to list it.
            by_id.read_dir(attr.id, u64::MAX >> 1, 1, false).await?;
            Ok(Found::Directory(attr.id))
        }
        FileKind::File if flags & libc::O_DIRECTORY != 0 => Err(ErrorKind::NotDirectory.into()),
        FileKind::File => {
            let truncate = flags & libc::O_TRUNC != 0;
            let mut access = access_of(flags);
            access.write |= truncate;
            Ok(Found::File(Box::new(by_id.open(attr.id, access, truncate).await?), false))
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
            made => {
                let (file, created) = made?;
                return Ok(Landing::Here(Found::File(Box::new(file), created)));
            }
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
            Ok((file, created)) => return Ok(Landing::Here(Found::File(Box::new(file), created))),
            Err(error) if error.kind() == ErrorKind::TooManyLinks && flags & libc::O_NOFOLLOW == 0 => {}
            Err(error) => return Err(error),
        }
        // A symbolic link has this name. If it has been removed meanwhile, the create is tried again.
        if let Step::Link { dir, target, rest } = by_id.step(dir, name.as_bytes(), true).await? {
            match resolve_link(dir, target, &rest) {
                Landing::Here((next, path)) => (from, way) = (next, path),
                Landing::Outside(path) => return Ok(Landing::Outside(path)),
            }
        }
    }
    Err(ErrorKind::TooManyLinks.into())
}

/// Creates the descriptor of an opened file.
fn install(found: Found, flags: c_int, path: &[u8], ahead: &Ahead) -> Outcome<c_int> {
    let created = if matches!(found, Found::File(_, true)) { CREATED } else { 0 };
    let (kind, id, file) = match found {
        Found::File(file, _) => (Kind::File, file.id(), Some(*file)),
        Found::Directory(id) => (Kind::Directory, id, None),
        Found::Named(id) => (Kind::Path, id, None),
        Found::Socket => return fail(libc::ENXIO),
    };
    let unnamed = flags & UNNAMED != 0;
    let linkable = if unnamed && flags & libc::O_EXCL == 0 { LINKABLE } else { 0 };
    let new_open = NewOpen {
        kind,
        access: (flags & FIXED) as u32 | linkable | created,
        flags: (flags & CHANGEABLE) as u32,
        file: id,
        token: file.as_ref().map(File::token),
        path: &if path.len() <= backing::PATH { path.to_vec() } else { crate::path::normal(path) },
    };
    let made = backing::create(&new_open, ahead);
    let (fd, mapped) = match made {
        Ok(made) => made,
        Err(stop) => {
            file.into_iter().for_each(|file| crate::exit::close(std::sync::Arc::new(file)));
            return Err(stop);
        }
    };
    let held = table::hold(Open::new(mapped, file));
    let fd = fd.into_raw_fd();
    if process_state::is_borrowed() {
        // The parent has no such descriptor; the shared state must outlive this process.
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
    let place = match locate_in(&mut quiet, dirfd, path) {
        Err(Stop::Foreign) => return open_again(path, flags),
        place => place?,
    };
    let _quiet = Quiet::begin();
    let opened = open_place(&place, flags, mode);
    drop(place);
    opened
}

/// Opens again the file of a descriptor, by a path such as `/proc/self/fd/7`.
fn open_again(path: *const c_char, flags: c_int) -> Outcome<c_int> {
    let open = by_descriptor(path).ok_or(Stop::Foreign)?;
    if flags & libc::O_NOFOLLOW != 0 {
        return Err(Stop::Foreign);
    }
    if flags & (libc::O_CREAT | libc::O_EXCL) == libc::O_CREAT | libc::O_EXCL {
        return fail(libc::EEXIST);
    }
    let place = Place { dir: open.id(), rest: Vec::new(), full: open.path().to_vec() };
    open_place(&place, flags & !libc::O_CREAT, 0)
}

pub(crate) fn open_how(dirfd: c_int, path: *const c_char, how: *const How, size: usize) -> Outcome<c_int> {
    // Errors in the structure are reported only for paths inside Forebay.
    let (how, flags) = match How::take(how, size) {
        Ok(taken) => taken,
        Err(stop) => return locate(dirfd, path).and(Err(stop)),
    };
    let (place, known) = how.place(dirfd, path, flags)?;
    let flags = if known { flags | libc::O_NOFOLLOW } else { flags };
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

/// Special files have a name and attributes, but cannot be opened through Forebay.
pub(crate) fn make_node(dirfd: c_int, path: *const c_char, mode: mode_t, dev: libc::dev_t) -> Outcome<c_int> {
    let place = locate(dirfd, path)?;
    let Some(special) = crate::stat::special(mode, dev)? else {
        let fd = open_place(&place, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, mode & 0o7777)?;
        return crate::descriptors::close_fd(fd);
    };
    let (entry, mode) = (place.entry(ErrorKind::Exists)?, masked(mode));
    crate::place::found(engine::run(|engine| {
        engine.by_id().make_special(entry.dir, entry.name, mode, special)
    }))?;
    Ok(0)
}
