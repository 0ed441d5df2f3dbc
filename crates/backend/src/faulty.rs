//! A back end with injected faults, before or after a call takes effect.

use crate::{Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, Version};
use forebay_model::{Error, ErrorKind, Gid, Name, Result, Span, Time, Uid};
use forebay_policy::place::Description;
use std::sync::Arc;

/// How a call fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The call has no effect.
    Before,
    /// The call takes effect, but returns an error.
    After,
    /// The call has no effect: the user's quota is exceeded.
    Quota,
    /// The call writes wrong bytes and returns success.
    Wrong,
}

type Choose = Arc<dyn Fn(&str) -> Option<Fault> + Send + Sync>;

/// A back end with injected faults.
pub struct Faulty<B> {
    inner: B,
    choose: Choose,
}

impl<B> Faulty<B> {
    /// Calls `choose` with the name of every call to decide whether it fails.
    pub fn new(inner: B, choose: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static) -> Faulty<B> {
        Faulty { inner, choose: Arc::new(choose) }
    }

    /// The wrapped back end.
    pub fn inner(&self) -> &B {
        &self.inner
    }

    fn wrapped(&self, object: Result<Box<dyn Object>>) -> Result<Box<dyn Object>> {
        Ok(Box::new(FaultyObject { inner: object?, choose: self.choose.clone() }))
    }

    fn through<T>(&self, call: &str, perform: impl FnOnce(&B) -> Result<T>) -> Result<T> {
        through(&self.choose, call, || perform(&self.inner))
    }
}

fn through<T>(choose: &Choose, call: &str, perform: impl FnOnce() -> Result<T>) -> Result<T> {
    under(choose(call), call, perform)
}

fn under<T>(fault: Option<Fault>, call: &str, perform: impl FnOnce() -> Result<T>) -> Result<T> {
    let done = if matches!(fault, Some(Fault::Before | Fault::Quota)) { None } else { Some(perform()) };
    match (fault, done) {
        (None | Some(Fault::Wrong), Some(done)) => done,
        (Some(Fault::Quota), _) => {
            Err(Error::new(ErrorKind::NoSpace, format!("{call}: Disk quota exceeded")))
        }
        _ => Err(Error::new(ErrorKind::Io, format!("{call}: injected fault"))),
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        self.through("find", |inner| inner.find_at(at))
    }

    fn root(&self) -> Result<Option<Found>> {
        self.through("root", B::root)
    }

    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        self.through("list", |inner| inner.list_of(dir, show))
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("open", |inner| inner.open(file)))
    }

    fn gathers(&self) -> bool {
        self.inner.gathers()
    }

    fn targets(&self) -> Vec<String> {
        self.inner.targets()
    }

    fn identity(&self) -> Option<String> {
        self.inner.identity()
    }

    fn topology(&self) -> Option<Description> {
        self.inner.topology()
    }

    fn layout(&self, file: Path<'_>) -> Result<Layout> {
        self.through("layout", |inner| inner.layout(file))
    }

    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("create", |inner| inner.create_at(file, creation)))
    }

    fn create_on_at(&self, file: Slot<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("create", |inner| inner.create_on_at(file, creation, layout)))
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("open_to_write", |inner| inner.open_to_write(file)))
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        self.through("symlink", |inner| inner.symlink_at(at, target))
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.through("set_attr", |inner| inner.set_attr_of(it, owner, mode, mtime))
    }

    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        self.through("make_dir", |inner| inner.make_dir_at(dir, owner, mode))
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        self.through("unlink", |inner| inner.unlink_of(it))
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        self.through("remove_dir", |inner| inner.remove_dir_of(dir))
    }

    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool> {
        self.through("rename", |inner| inner.rename_of(from, to, target))
    }

    fn truncate_of(&self, file: Seen<'_>, size: u64) -> Result<bool> {
        self.through("truncate", |inner| inner.truncate_of(file, size))
    }

    fn link_of(&self, file: Seen<'_>, to: Slot<'_>) -> Result<()> {
        self.through("link", |inner| inner.link_of(file, to))
    }

    fn set_xattr_of(&self, it: Seen<'_>, name: &Name, value: &[u8]) -> Result<()> {
        self.through("set_xattr", |inner| inner.set_xattr_of(it, name, value))
    }
}

struct FaultyObject {
    inner: Box<dyn Object>,
    choose: Choose,
}

impl Object for FaultyObject {
    fn version(&self) -> Result<Version> {
        through(&self.choose, "version", || self.inner.version())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        through(&self.choose, "read", || self.inner.read_at(offset, into))
    }

    fn forget(&self, span: Span) {
        self.inner.forget(span);
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let fault = (self.choose)("write");
        let mut bytes = if fault == Some(Fault::Wrong) { parts.concat() } else { Vec::new() };
        let Some(first) = bytes.first_mut() else {
            return under(fault, "write", || self.inner.write_at(offset, parts));
        };
        *first ^= 1;
        self.inner.write_at(offset, &[&bytes])
    }

    fn sync(&self) -> Result<()> {
        through(&self.choose, "sync", || self.inner.sync())
    }

    fn gather(&self) -> Result<()> {
        through(&self.choose, "gather", || self.inner.gather())
    }
}
