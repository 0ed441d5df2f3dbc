//! A stripe set over several directories, like a small parallel file system.
//!
//! The first directory holds the tree: directories, links, and for every file a *head* with its owner, mode, length and
//! time, but no bytes. A head carries its layout in the attribute `user.forebay.layout`: `ID COUNT SIZE FIRST`. Stripe *k*
//! of the file, `SIZE` bytes from `k · SIZE` on, is in the directory with the number `(FIRST + k mod COUNT) mod n`, or with
//! the number at place `k mod COUNT` of `FIRST` if that is a list (`7,0,3`), in the file `.objects/ID`, from `⌊k / COUNT⌋ · SIZE` on. So a rename or removal is one step in the first directory, and a file
//! can be put together again by hand.

use crate::dir::{Dir, DirObject, look, version};
use crate::{Backend, Creation, Found, Layout, Object, Path, Version, shown};
use forebay_model::{Error, ErrorKind, FileKind, Gid, Name, Result, Span, Time, Uid};
use rustix::fs::{Timespec, Timestamps, XattrFlags, fgetxattr, fsetxattr, ftruncate, futimens};
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const OBJECTS: &[u8] = b".objects";
const ATTRIBUTE: &str = "user.forebay.layout";
const STRIPE: u64 = 1 << 20;
/// The longest layout that is read.
const LONGEST: usize = 64 << 10;
const LAST_NANO: u32 = 999_999_999;
/// Most parts of a file that one object has open to write.
const MOST_WRITTEN: usize = 4;

/// A stripe set.
pub struct Stripes {
    dirs: Arc<Vec<Dir>>,
    /// Held while a file grows: lengths only grow by those who saw the present one.
    growing: Arc<Mutex<()>>,
}

/// How the bytes of one file lie.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Plan {
    id: u64,
    count: u32,
    size: u64,
    start: Start,
}

/// Which directories the parts of a file are in.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Start {
    /// One after the other, from this one on.
    Turn(u32),
    /// These.
    On(Arc<[u32]>),
}

impl Start {
    fn parse(word: &str, count: u32) -> Option<Start> {
        if !word.contains(',') {
            return word.parse().ok().map(Start::Turn);
        }
        let list = word.split(',').map(|number| number.parse().ok()).collect::<Option<Arc<[u32]>>>()?;
        (list.len() == count as usize).then_some(Start::On(list))
    }

    fn text(&self) -> String {
        match self {
            Start::Turn(first) => first.to_string(),
            Start::On(list) => list.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
        }
    }
}

impl Plan {
    fn parse(text: &[u8]) -> Option<Plan> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let (id, count) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let size = words.next()?.parse().ok()?;
        let plan = Plan { id, count, size, start: Start::parse(words.next()?, count)? };
        (words.next().is_none() && plan.count > 0 && plan.size > 0).then_some(plan)
    }

    fn text(&self) -> String {
        format!("{} {} {} {}", self.id, self.count, self.size, self.start.text())
    }

    fn object(&self) -> [Name; 2] {
        let name = |bytes: &[u8]| Name::new(bytes).expect("a name");
        [name(OBJECTS), name(self.id.to_string().as_bytes())]
    }

    /// The number of the directory that holds a part, and how many directories there are to choose from.
    fn dir(&self, part: u32, dirs: usize) -> usize {
        let number = match &self.start {
            Start::Turn(first) => u64::from(*first) + u64::from(part),
            Start::On(list) => u64::from(list[part as usize]),
        };
        (number % dirs as u64) as usize
    }

    /// Where bytes of the file are: the part, the offset in its object, and how many follow there.
    fn place(&self, offset: u64) -> (u32, u64, u64) {
        let stripe = offset / self.size;
        let within = offset % self.size;
        let part = (stripe % u64::from(self.count)) as u32;
        (part, stripe / u64::from(self.count) * self.size + within, self.size - within)
    }

    /// How long the object of a part is when the file has so many bytes.
    fn length(&self, part: u32, size: u64) -> u64 {
        let round = self.size * u64::from(self.count);
        let (whole, rest) = (size / round, size % round);
        whole * self.size + rest.saturating_sub(u64::from(part) * self.size).min(self.size)
    }
}

impl Stripes {
    /// A stripe set over these directories; the first holds the names.
    pub fn open<'a>(paths: impl IntoIterator<Item = &'a str>) -> Result<Stripes> {
        let dirs = paths.into_iter().map(Dir::open).collect::<Result<Vec<Dir>>>()?;
        let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
        for dir in &dirs {
            dir.make_dir(&[Name::new(OBJECTS)?], me, 0o700)?;
        }
        Ok(Stripes { dirs: Arc::new(dirs), growing: Arc::default() })
    }

    fn names(&self) -> &Dir {
        &self.dirs[0]
    }

    fn object(&self, path: Path<'_>, head: File) -> Result<StripedObject> {
        let plan = self.plan(path, &head)?;
        Ok(StripedObject::new(plan, DirObject(head), self))
    }

    fn plan(&self, path: Path<'_>, head: &File) -> Result<Plan> {
        let mut text = vec![0; LONGEST];
        let len = fgetxattr(head, ATTRIBUTE, text.as_mut_slice()).unwrap_or(0);
        Plan::parse(&text[..len]).ok_or_else(|| {
            let text = format!(
                "{} in the back end {} has no layout: it is no file of a stripe set",
                shown(path),
                self.name()
            );
            Error::new(ErrorKind::Io, text)
        })
    }

    /// A new file: its head, its objects, and then what says how they belong together.
    fn made(
        &self,
        file: Path<'_>,
        creation: &Creation,
        plan: impl FnOnce(u64) -> Plan,
    ) -> Result<StripedObject> {
        let head = self.names().make(file, creation)?;
        let made = || {
            let id = look(&head).map_err(|errno| unusable(file, errno))?.stx_ino;
            let plan = plan(id);
            let plan = Plan { size: plan.size.max(1), ..plan };
            let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
            for part in 0..plan.count {
                let dir = &self.dirs[plan.dir(part, self.dirs.len())];
                // One of an earlier file that was not removed to the end.
                dir.unlink(&plan.object())?;
                dir.make(&plan.object(), &Creation { owner: me, mode: 0o600, stripes: None })?;
            }
            fsetxattr(&head, ATTRIBUTE, plan.text().as_bytes(), XattrFlags::empty())
                .map_err(|errno| unusable(file, errno))
        };
        if let Err(error) = made() {
            self.names().unlink(file)?;
            return Err(error);
        }
        self.object(file, head)
    }

    /// Removes the objects of a file that has lost its head.
    fn remove_objects(&self, plan: &Plan) -> Result<()> {
        for part in 0..plan.count {
            self.dirs[plan.dir(part, self.dirs.len())].unlink(&plan.object())?;
        }
        Ok(())
    }

    /// What replaces a file leaves its objects to nobody.
    fn plan_at(&self, path: Path<'_>) -> Option<Plan> {
        self.names().to_read(path).ok().and_then(|head| self.plan(path, &head).ok())
    }
}

impl Backend for Stripes {
    fn name(&self) -> String {
        format!("stripes:{}", self.targets().join(","))
    }

    fn identity(&self) -> Option<String> {
        let all: Option<Vec<String>> = self.dirs.iter().map(Backend::identity).collect();
        all.map(|all| all.join(", "))
    }

    fn find(&self, path: Path<'_>) -> Result<Option<Found>> {
        match path.first() {
            Some(name) if name.as_bytes() == OBJECTS => Ok(None),
            _ => self.names().find(path),
        }
    }

    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        let is_objects = |name: &Name| dir.is_empty() && name.as_bytes() == OBJECTS;
        self.names().list(dir, &mut |name| {
            if !is_objects(&name) {
                show(name);
            }
        })
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        let head = self.names().to_read(file)?;
        Ok(Box::new(self.object(file, head)?))
    }

    fn targets(&self) -> Vec<String> {
        self.dirs.iter().flat_map(Backend::targets).collect()
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        let plan = self.plan(file, &self.names().to_read(file)?)?;
        let targets = (0..plan.count).map(|part| plan.dir(part, self.dirs.len()) as u32).collect();
        Ok(Layout { targets, stripe: plan.size })
    }

    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        let (count, size) = creation.stripes.unwrap_or((self.dirs.len() as u32, STRIPE));
        let count = count.clamp(1, self.dirs.len() as u32);
        // The number of the head is the file's own for as long as it lives; its directory is where it begins.
        let plan = |id| Plan { id, count, size, start: Start::Turn((id % self.dirs.len() as u64) as u32) };
        self.made(file, creation, plan).map(|object| Box::new(object) as Box<dyn Object>)
    }

    fn create_on(&self, file: Path<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        let known = |&target: &u32| (target as usize) < self.dirs.len();
        if layout.targets.is_empty() || !layout.targets.iter().all(known) {
            let text = format!(
                "{} cannot lie on {:?}: there are {} targets",
                shown(file),
                layout.targets,
                self.dirs.len()
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let start = match &layout.targets[..] {
            [one] => Start::Turn(*one),
            several => Start::On(several.into()),
        };
        let plan = |id| Plan { id, count: layout.targets.len() as u32, size: layout.stripe, start };
        self.made(file, creation, plan).map(|object| Box::new(object) as Box<dyn Object>)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        let head = self.names().to_write(file)?;
        Ok(Box::new(self.object(file, head)?))
    }

    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()> {
        self.names().symlink(path, target)
    }

    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.names().set_attr(path, owner, mode, mtime)
    }

    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()> {
        self.names().make_dir(dir, owner, mode)
    }

    fn unlink(&self, path: Path<'_>) -> Result<bool> {
        let plan = self.plan_at(path);
        let was = self.names().unlink(path)?;
        plan.map_or(Ok(was), |plan| self.remove_objects(&plan).map(|()| was))
    }

    fn remove_dir(&self, dir: Path<'_>) -> Result<bool> {
        self.names().remove_dir(dir)
    }

    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool> {
        let replaced = self.plan_at(to).filter(|_| from != to);
        let was = self.names().rename(from, to)?;
        replaced.filter(|_| was).map_or(Ok(was), |plan| self.remove_objects(&plan).map(|()| was))
    }

    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool> {
        match self.names().find(file)?.map(|found| found.kind) {
            None => return Ok(false),
            // It says best itself what is wrong.
            Some(kind) if kind != FileKind::File => return self.names().truncate(file, size),
            Some(_) => {}
        }
        let head = self.names().to_write(file)?;
        let plan = self.plan(file, &head)?;
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
        // If only some parts are cut, what was read before is not what is there.
        touch(&head).map_err(|errno| unusable(file, errno))?;
        for part in 0..plan.count {
            self.dirs[plan.dir(part, self.dirs.len())].truncate(&plan.object(), plan.length(part, size))?;
        }
        ftruncate(&head, size).map_err(|errno| unusable(file, errno))?;
        Ok(true)
    }
}

/// A file of a stripe set.
struct StripedObject {
    plan: Plan,
    head: DirObject,
    dirs: Arc<Vec<Dir>>,
    growing: Arc<Mutex<()>>,
    /// Parts that were written and not synced, the latest last: whether that went well is told to who had them open.
    written: RefCell<Vec<(u32, DirObject)>>,
}

impl StripedObject {
    fn new(plan: Plan, head: DirObject, stripes: &Stripes) -> StripedObject {
        let (dirs, growing) = (stripes.dirs.clone(), stripes.growing.clone());
        StripedObject { plan, head, dirs, growing, written: RefCell::default() }
    }

    fn part(&self, part: u32) -> &Dir {
        &self.dirs[self.plan.dir(part, self.dirs.len())]
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
        Error::new(ErrorKind::Io, format!("the head of a striped file cannot be used: {errno}"))
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
            // What an object lacks was never written.
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
        let _growing = self.growing.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Gives a head a time after its own, whatever the clock says: that of a file system ticks slowly.
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
    let text =
        format!("{} cannot be striped: {errno}: the first directory must take user attributes", shown(file));
    Error::new(ErrorKind::Io, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was read before a cut that failed half way is never taken for what is there.
    #[test]
    fn a_cut_that_fails_half_way_is_seen_to_have_changed_the_file() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let stripes = Stripes::open(dirs.iter().map(|dir| dir.path().to_str().unwrap())).unwrap();
        let (file, me) = ([Name::new("f").unwrap()], rustix::process::geteuid().as_raw());
        let creation = Creation { owner: (Uid(me), Gid(me)), mode: 0o600, stripes: None };
        let layout = Layout { targets: vec![0, 1, 2], stripe: 4 };
        let object = stripes.create_on(&file, &creation, &layout).unwrap();
        object.write_at(0, &[b"0123456789abcdef"]).unwrap();
        // As far ahead as a clock that was set wrong.
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
        assert_eq!(after.size, before.size, "it was not cut");
        assert_ne!(after, before);
        assert!(stripes.truncate(&file, 2).unwrap());
        assert_eq!(object.version().unwrap().size, 2);
    }

    #[test]
    fn every_byte_has_one_place_and_lengths_add_up() {
        for (count, size) in [(1, 7), (3, 4), (4, 1)] {
            let plan = Plan { id: 5, count, size, start: Start::Turn(2) };
            assert_eq!(Plan::parse(plan.text().as_bytes()), Some(plan.clone()));
            for length in 0..60 {
                let mut lengths = vec![0; count as usize];
                for offset in 0..length {
                    let (part, at, follow) = plan.place(offset);
                    assert_eq!(lengths[part as usize], at, "bytes of an object come one after the other");
                    assert_eq!(follow, size - offset % size);
                    lengths[part as usize] += 1;
                }
                let reckoned: Vec<u64> = (0..count).map(|part| plan.length(part, length)).collect();
                assert_eq!(reckoned, lengths, "{count} × {size}, {length} bytes");
            }
        }
        let chosen = Plan { id: 5, count: 3, size: 4, start: Start::On([7, 0, 3].into()) };
        assert_eq!(chosen.text(), "5 3 4 7,0,3");
        assert_eq!(Plan::parse(b"5 3 4 7,0,3"), Some(chosen.clone()));
        assert_eq!((0..3).map(|part| chosen.dir(part, 8)).collect::<Vec<_>>(), [7, 0, 3]);
        for bad in
            ["", "1 2 3", "1 2 3 4,", "1 2 3 4,x", "1 3 3 4,5", "1 0 3 4", "1 2 0 4", "1 2 3 4 5", "x 2 3 4"]
        {
            assert_eq!(Plan::parse(bad.as_bytes()), None, "{bad}");
        }
    }
}
