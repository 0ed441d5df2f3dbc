//! A stripe set over several directories, like a small parallel file system.
//!
//! The first directory holds the tree: directories, links, and for every file a *head* with its owner, mode,
//! length and mtime, but no data. A head has its layout in the attribute `user.forebay.layout`: `ID COUNT
//! SIZE FIRST`. Stripe *k* of the file, `SIZE` bytes from `k · SIZE` on, is in the directory with the number
//! `(FIRST + k mod COUNT) mod n`, or with the number at place `k mod COUNT` of `FIRST` if that is a list
//! (`7,0,3`), in the file `.objects/ID`, from `⌊k / COUNT⌋ · SIZE` on. So a rename or removal is one step in
//! the first directory, and a file can be reassembled by hand.
//!
//! `ID` is the inode number of the head and, where the file system has birth times, a dot and its birth time in
//! nanoseconds: a file that gets the inode number of a removed one is not taken for it. Objects are found through
//! the descriptor of `.objects`, which another user may rename.

use crate::dir::{Dir, DirObject, look, version};
use crate::stripe_plan::{Id, Plan, Start};
use crate::{Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, Version, shown};
use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Span, Time, Uid, list};
use parking_lot::Mutex;
use rustix::fs::{Timespec, Timestamps, XattrFlags, fgetxattr, fsetxattr, ftruncate, futimens};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const OBJECTS: &[u8] = b".objects";
const ATTRIBUTE: &str = "user.forebay.layout";
const STRIPE: u64 = 1 << 20;
/// Longest layout that is read.
const LONGEST: usize = 64 << 10;
const LAST_NANO: u32 = 999_999_999;
/// Most objects that one open file has open for writing.
const MOST_WRITTEN: usize = 4;

/// A stripe set.
pub struct Stripes {
    dirs: Arc<Vec<Dir>>,
    /// Their directories `.objects`, by descriptor.
    objects: Arc<Vec<Dir>>,
    /// Held while a file grows, so that two writers cannot both extend it from an old length.
    growing: Arc<Mutex<()>>,
}

impl Stripes {
    /// Opens a stripe set over these directories; the first holds the names.
    pub fn open<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<Stripes> {
        let dirs = paths.into_iter().map(Dir::open).collect::<Result<Vec<Dir>>>()?;
        let name = Name::new(OBJECTS)?;
        let private = |dir: &Dir| {
            let refused = || {
                let text = format!(
                    "\".objects\" in {} must be a directory of user {} with mode 700, because it holds the data of all users: \
                     remove it there",
                    dir.name(),
                    rustix::process::geteuid().as_raw()
                );
                Error::new(ErrorKind::NotPermitted, text)
            };
            dir.private(&name)?.ok_or_else(refused)
        };
        let objects = dirs.iter().map(private).collect::<Result<Vec<Dir>>>()?;
        Ok(Stripes { dirs: Arc::new(dirs), objects: Arc::new(objects), growing: Arc::default() })
    }

    /// The directory that holds a part of a file.
    fn part(&self, plan: &Plan, part: u32) -> &Dir {
        &self.objects[plan.dir(part, self.objects.len())]
    }

    fn names(&self) -> &Dir {
        &self.dirs[0]
    }

    fn object(&self, path: Path<'_>, head: File) -> Result<StripedObject> {
        let plan = self.plan(path, &head)?;
        Ok(StripedObject::new(plan, DirObject(head), self))
    }

    fn plan(&self, path: Path<'_>, head: &File) -> Result<Plan> {
        let wrong = |what: &str| {
            Error::new(ErrorKind::Io, format!("{} in the back end {} {what}", shown(path), self.name()))
        };
        let mut text = vec![0; LONGEST];
        let len = fgetxattr(head, ATTRIBUTE, text.as_mut_slice()).unwrap_or(0);
        let plan = Plan::parse(&text[..len], self.dirs.len())
            .ok_or_else(|| wrong("has no layout: it is not a file of a stripe set"))?;
        let stat = look(head).map_err(|errno| unusable(path, errno))?;
        // The owner of a head can write any layout, and must not reach the data of other users through it; root may have
        // got the head from another user. All heads of a service of one user are that user's own.
        let me = rustix::process::geteuid();
        match !me.is_root() && stat.stx_uid == me.as_raw() || plan.id.is_of(&stat) {
            true => Ok(plan),
            false => Err(wrong("has the layout of another file: its layout attribute was changed")),
        }
    }

    /// Creates a file: first its head, then its objects, then the layout that links them.
    fn made(
        &self,
        at: Slot<'_>,
        creation: &Creation,
        plan: impl FnOnce(Id) -> Plan,
    ) -> Result<StripedObject> {
        let (file, head) = (demand_free(at.path)?, self.names().make(at, creation)?);
        let stat = look(&head).map_err(|errno| unusable(file, errno))?;
        let made = || {
            let plan = plan(Id::of(&stat));
            let plan = Plan { size: plan.size.max(1), ..plan };
            if !plan.fits(self.dirs.len()) {
                let text = format!(
                    "cannot stripe {}: {} parts of {} bytes do not fit {} directories, one part each",
                    shown(file),
                    plan.count,
                    plan.size,
                    self.dirs.len()
                );
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
            for part in 0..plan.count {
                let dir = self.part(&plan, part);
                // A leftover of an earlier file whose removal was interrupted.
                dir.unlink(&plan.object())?;
                let own = Creation { owner: me, mode: 0o600, stripes: None };
                dir.make(Slot::any(&plan.object()), &own)?;
            }
            fsetxattr(&head, ATTRIBUTE, plan.text().as_bytes(), XattrFlags::empty())
                .map_err(|errno| unusable(file, errno))
        };
        if let Err(error) = made() {
            self.names().unlink_of(at.seen(version(&stat).serial))?;
            return Err(error);
        }
        self.object(file, head)
    }

    /// Removes the objects of a file if its head is gone: another hard link may have been made to it, or another
    /// file may have had its name when the head was opened.
    fn remove_objects(&self, head: Option<(File, Plan)>) -> Result<()> {
        let Some((head, plan)) = head else { return Ok(()) };
        if look(&head).map_err(StripedObject::failed)?.stx_nlink > 0 {
            return Ok(());
        }
        for part in 0..plan.count {
            self.part(&plan, part).unlink(&plan.object())?;
        }
        Ok(())
    }

    /// The head of a file that is about to go, and its layout, so that its objects can be removed.
    fn head_at(&self, path: Path<'_>) -> Option<(File, Plan)> {
        let head = self.names().to_read(path).ok()?;
        let plan = self.plan(path, &head).ok()?;
        Some((head, plan))
    }
}

/// Fails for paths in `.objects`.
fn demand_free(path: Path<'_>) -> Result<Path<'_>> {
    if !is_objects(path) {
        return Ok(path);
    }
    let text =
        "\".objects\" at the root is a name that the stripe set keeps for its data: rename it".to_owned();
    Err(Error::new(ErrorKind::Invalid, text))
}

fn is_objects(path: Path<'_>) -> bool {
    path.first().is_some_and(|name| name.as_bytes() == OBJECTS)
}

impl Backend for Stripes {
    fn name(&self) -> String {
        format!("stripes:{}", self.targets().join(","))
    }

    fn identity(&self) -> Option<String> {
        let all: Option<Vec<String>> = self.dirs.iter().map(Backend::identity).collect();
        all.map(|all| all.join(", "))
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        if is_objects(at.path) { Ok(None) } else { self.names().find_at(at) }
    }

    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        demand_free(dir.path)?;
        self.names().list_of(dir, &mut |name| {
            if !(dir.path.is_empty() && is_objects(std::slice::from_ref(&name))) {
                show(name);
            }
        })
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        let head = self.names().to_read(demand_free(file)?)?;
        Ok(Box::new(self.object(file, head)?))
    }

    fn targets(&self) -> Vec<String> {
        self.dirs.iter().flat_map(Backend::targets).collect()
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        let plan = self.plan(file, &self.names().to_read(demand_free(file)?)?)?;
        let targets = (0..plan.count).map(|part| plan.dir(part, self.dirs.len()) as u32).collect();
        Ok(Layout { targets, stripe: plan.size })
    }

    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        let (count, size) = creation.stripes.unwrap_or((self.dirs.len() as u32, STRIPE));
        let count = count.clamp(1, self.dirs.len() as u32);
        // The inode number of the head is unique while the file exists; it also selects the first directory.
        let first = |id: Id| Start::Turn((id.inode % self.dirs.len() as u64) as u32);
        let plan = |id| Plan { id, count, size, start: first(id) };
        self.made(file, creation, plan).map(|object| Box::new(object) as Box<dyn Object>)
    }

    fn create_on_at(&self, file: Slot<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        let known = |&target: &u32| (target as usize) < self.dirs.len();
        if layout.targets.is_empty() || !layout.targets.iter().all(known) {
            let text = format!(
                "cannot place {} on targets {}: the stripe set has {} targets",
                shown(file.path),
                list(&layout.targets),
                self.dirs.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let start = match &layout.targets[..] {
            [one] => Start::Turn(*one),
            targets => Start::On(targets.into()),
        };
        let plan = |id| Plan { id, count: layout.targets.len() as u32, size: layout.stripe, start };
        self.made(file, creation, plan).map(|object| Box::new(object) as Box<dyn Object>)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        let head = self.names().to_write(demand_free(file)?)?;
        Ok(Box::new(self.object(file, head)?))
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        demand_free(at.path)?;
        self.names().symlink_at(at, target)
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        demand_free(it.path)?;
        self.names().set_attr_of(it, owner, mode, mtime)
    }

    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        demand_free(dir.path)?;
        self.names().make_dir_at(dir, owner, mode)
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        let head = self.head_at(demand_free(it.path)?);
        let was = self.names().unlink_of(it)?;
        self.remove_objects(head).map(|()| was)
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        demand_free(dir.path)?;
        self.names().remove_dir_of(dir)
    }

    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool> {
        demand_free(from.path)?;
        let replaced = self.head_at(demand_free(to.path)?);
        let was = self.names().rename_of(from, to, target)?;
        self.remove_objects(replaced).map(|()| was)
    }

    fn truncate_of(&self, it: Seen<'_>, size: u64) -> Result<bool> {
        let file = demand_free(it.path)?;
        match self.names().find(file)?.map(|found| found.kind) {
            None => return Ok(false),
            // Truncating the entry itself returns the right error.
            Some(kind) if kind != FileKind::File => return self.names().truncate_of(it, size),
            Some(_) => {}
        }
        let head = self.names().to_write(file)?;
        it.demand(version(&look(&head).map_err(|errno| unusable(file, errno))?).serial)?;
        let plan = self.plan(file, &head)?;
        let _growing = self.growing.lock();
        // If only some parts are truncated, cached contents must not match the file's version.
        touch(&head).map_err(|errno| unusable(file, errno))?;
        for part in 0..plan.count {
            self.part(&plan, part).truncate(&plan.object(), plan.length(part, size))?;
        }
        ftruncate(&head, size).map_err(|errno| unusable(file, errno))?;
        Ok(true)
    }
}

/// A file of a stripe set.
struct StripedObject {
    plan: Plan,
    head: DirObject,
    objects: Arc<Vec<Dir>>,
    growing: Arc<Mutex<()>>,
    /// Parts that were written and not synced, the latest last. They stay open, because the kernel reports
    /// write-back errors to open descriptors.
    written: RefCell<Vec<(u32, DirObject)>>,
}

impl StripedObject {
    fn new(plan: Plan, head: DirObject, stripes: &Stripes) -> StripedObject {
        let (objects, growing) = (stripes.objects.clone(), stripes.growing.clone());
        StripedObject { plan, head, objects, growing, written: RefCell::default() }
    }

    fn part(&self, part: u32) -> &Dir {
        &self.objects[self.plan.dir(part, self.objects.len())]
    }

    /// Writes to a part, which stays open until it is synced.
    fn write_part(&self, part: u32, write: impl FnOnce(&DirObject) -> Result<()>) -> Result<()> {
        let mut written = self.written.borrow_mut();
        if let Some((_, object)) = written.iter().rev().find(|(other, _)| *other == part) {
            return write(object);
        }
        if written.len() == MOST_WRITTEN {
            written[0].1.sync()?;
            written.remove(0);
        }
        let object = DirObject(self.part(part).to_write(&self.plan.object())?);
        let done = write(&object);
        written.push((part, object));
        done
    }

    fn failed(errno: Errno) -> Error {
        Error::new(ErrorKind::Io, format!("cannot access the head of a striped file: {errno}"))
    }
}

impl Object for StripedObject {
    fn version(&self) -> Result<Version> {
        look(&self.head.0).map(|stat| version(&stat)).map_err(StripedObject::failed)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let size = self.version()?.size;
        let len = (into.len() as u64).min(size.saturating_sub(offset)) as usize;
        let mut done = 0;
        while done < len {
            let (part, at, follow) = self.plan.place(offset + done as u64);
            let end = len.min(done + usize::try_from(follow).unwrap_or(usize::MAX));
            let object = DirObject(self.part(part).to_read(&self.plan.object())?);
            let count = object.read_at(at, &mut into[done..end])?;
            // Bytes past the end of an object were never written.
            into[done + count..end].fill(0);
            done = end;
        }
        Ok(len)
    }

    fn forget(&self, span: Span) {
        let mut at = span.start;
        while at < span.end {
            let (part, place, follow) = self.plan.place(at);
            let len = follow.min(span.end - at);
            if let Ok(object) = self.part(part).to_read(&self.plan.object()) {
                DirObject(object).forget(Span::new(place, place + len));
            }
            at += len;
        }
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let mut at = offset;
        for mut bytes in parts.iter().copied() {
            while !bytes.is_empty() {
                let (part, place, follow) = self.plan.place(at);
                let (now, later) =
                    bytes.split_at(bytes.len().min(usize::try_from(follow).unwrap_or(usize::MAX)));
                self.write_part(part, |object| object.write_at(place, &[now]))?;
                at += now.len() as u64;
                bytes = later;
            }
        }
        let _growing = self.growing.lock();
        if self.version()?.size < at {
            return ftruncate(&self.head.0, at).map_err(StripedObject::failed);
        }
        let now = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
        let times = Timestamps { last_access: now, last_modification: now };
        futimens(&self.head.0, &times).map_err(StripedObject::failed)
    }

    fn zero(&self, span: Span) -> Result<()> {
        let mut at = span.start;
        while at < span.end {
            let (part, place, follow) = self.plan.place(at);
            let len = follow.min(span.end - at);
            self.write_part(part, |object| object.zero(Span::new(place, place + len)))?;
            at += len;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let mut written = self.written.borrow_mut();
        while let Some((_, object)) = written.last() {
            object.sync()?;
            written.pop();
        }
        self.head.sync()
    }
}

/// Sets the head's mtime to a later one, even if the coarse clock of the file system has not advanced.
fn touch(head: &File) -> rustix::io::Result<()> {
    let Time { secs, nanos } = version(&look(head)?).mtime;
    let next = (secs + i64::from(nanos == LAST_NANO), (nanos + 1) % (LAST_NANO + 1));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (secs, nanos) = next.max((now.as_secs() as i64, now.subsec_nanos()));
    let last_access = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let last_modification = Timespec { tv_sec: secs, tv_nsec: i64::from(nanos) };
    futimens(head, &Timestamps { last_access, last_modification })
}

fn unusable(file: Path<'_>, errno: Errno) -> Error {
    let text = format!(
        "cannot stripe {}: {errno}: the first directory must support user extended attributes",
        shown(file)
    );
    Error::new(ErrorKind::Io, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contents cached before an interrupted truncation never match the file's version.
    #[test]
    fn interrupted_truncation_changes_the_file_version() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let stripes = Stripes::open(dirs.iter().map(|dir| dir.path().to_str().unwrap())).unwrap();
        let (file, me) = ([Name::new("f").unwrap()], rustix::process::geteuid().as_raw());
        let creation = Creation { owner: (Uid(me), Gid(me)), mode: 0o600, stripes: None };
        let layout = Layout { targets: vec![0, 1, 2], stripe: 4 };
        let object = stripes.create_on(&file, &creation, &layout).unwrap();
        object.write_at(0, &[b"0123456789abcdef"]).unwrap();
        // As far ahead as a misset clock.
        let ahead = Time { secs: 1 << 33, nanos: LAST_NANO };
        stripes.set_attr(&file, creation.owner, creation.mode, ahead).unwrap();
        let before = object.version().unwrap();
        let second =
            std::fs::read_dir(dirs[1].path().join(".objects")).unwrap().next().unwrap().unwrap().path();
        let aside = dirs[1].path().join("aside");
        std::fs::rename(&second, &aside).unwrap();
        std::fs::create_dir(&second).unwrap();
        stripes.truncate(&file, 0).unwrap_err();
        std::fs::remove_dir(&second).unwrap();
        std::fs::rename(&aside, &second).unwrap();
        let after = object.version().unwrap();
        assert_eq!(after.size, before.size, "it was not truncated");
        assert_ne!(after, before);
        assert!(stripes.truncate(&file, 2).unwrap());
        assert_eq!(object.version().unwrap().size, 2);
    }

    /// The owner of a head may write any layout there: it costs no memory, and leads to no other file.
    #[test]
    fn written_layouts_are_bounded_and_lead_to_no_other_file() {
        let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let stripes = Stripes::open(dirs.iter().map(|dir| dir.path().to_str().unwrap())).unwrap();
        let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
        let creation = Creation { owner: me, mode: 0o600, stripes: Some((2, 4)) };
        let path = |name: &str| [Name::new(name).unwrap()];
        for name in ["secret", "mine"] {
            stripes.create(&path(name), &creation).unwrap().write_at(0, &[b"0123456789"]).unwrap();
        }
        let head = |name: &str| File::options().write(true).open(dirs[0].path().join(name)).unwrap();
        let mut theirs = vec![0; LONGEST];
        let len = fgetxattr(head("secret"), ATTRIBUTE, theirs.as_mut_slice()).unwrap();
        theirs.truncate(len);
        let own = Id::of(&look(&head("mine")).unwrap()).text();
        let huge = format!("{own} 4294967295 1 0");
        let wraps = format!("{own} 2 9223372036854775808 0");
        let mut forged = vec![huge.as_bytes(), wraps.as_bytes()];
        // Root alone serves the files of several users.
        if rustix::process::geteuid().is_root() {
            forged.push(&theirs);
        }
        for layout in forged {
            fsetxattr(head("mine"), ATTRIBUTE, layout, XattrFlags::empty()).unwrap();
            let file = path("mine");
            assert_eq!(stripes.open(&file).err().expect("refused").kind(), ErrorKind::Io);
            assert_eq!(stripes.layout(&file).unwrap_err().kind(), ErrorKind::Io);
            assert_eq!(stripes.truncate(&file, 1).unwrap_err().kind(), ErrorKind::Io);
        }
        assert!(stripes.unlink(&path("mine")).unwrap());
        let mut bytes = [0; 10];
        assert_eq!(stripes.open(&path("secret")).unwrap().read_at(0, &mut bytes).unwrap(), 10);
        assert_eq!(&bytes, b"0123456789", "the objects of the other file are still there");
    }
}
