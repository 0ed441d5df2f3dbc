//! A back end that fails when it is told to, before or after it has done what was asked.

use crate::{Backend, Creation, Found, Layout, Object, Path, Version};
use forebay_model::{Error, ErrorKind, Gid, Name, Result, Span, Time, Uid};
use forebay_policy::place::Description;
use std::sync::Arc;

/// How a call goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing was done.
    Before,
    /// It was done, and nobody is told.
    After,
    /// Nothing was done: whoever it is for has used all that he may.
    Quota,
    /// Other bytes were written, and it is told to be done.
    Wrong,
}

type Choose = Arc<dyn Fn(&str) -> Option<Fault> + Send + Sync>;

/// A back end with faults.
pub struct Faulty<B> {
    inner: B,
    choose: Choose,
}

impl<B> Faulty<B> {
    /// Asks `choose` at every call, by the call's name, whether it goes wrong.
    pub fn new(inner: B, choose: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static) -> Faulty<B> {
        Faulty { inner, choose: Arc::new(choose) }
    }

    /// What it is in front of.
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
        _ => Err(Error::new(ErrorKind::Io, format!("{call}: the back end was told to fail"))),
    }
}

impl<B: Backend> Backend for Faulty<B> {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn find(&self, path: Path<'_>) -> Result<Option<Found>> {
        self.through("find", |inner| inner.find(path))
    }

    fn list(&self, dir: Path<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        self.through("list", |inner| inner.list(dir, show))
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

    fn create(&self, file: Path<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("create", |inner| inner.create(file, creation)))
    }

    fn create_on(&self, file: Path<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("create", |inner| inner.create_on(file, creation, layout)))
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.wrapped(self.through("open_to_write", |inner| inner.open_to_write(file)))
    }

    fn symlink(&self, path: Path<'_>, target: &[u8]) -> Result<()> {
        self.through("symlink", |inner| inner.symlink(path, target))
    }

    fn set_attr(&self, path: Path<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.through("set_attr", |inner| inner.set_attr(path, owner, mode, mtime))
    }

    fn make_dir(&self, dir: Path<'_>, owner: (Uid, Gid), mode: u16) -> Result<()> {
        self.through("make_dir", |inner| inner.make_dir(dir, owner, mode))
    }

    fn unlink(&self, path: Path<'_>) -> Result<bool> {
        self.through("unlink", |inner| inner.unlink(path))
    }

    fn remove_dir(&self, dir: Path<'_>) -> Result<bool> {
        self.through("remove_dir", |inner| inner.remove_dir(dir))
    }

    fn rename(&self, from: Path<'_>, to: Path<'_>) -> Result<bool> {
        self.through("rename", |inner| inner.rename(from, to))
    }

    fn truncate(&self, file: Path<'_>, size: u64) -> Result<bool> {
        self.through("truncate", |inner| inner.truncate(file, size))
    }

    fn link(&self, file: Path<'_>, to: Path<'_>) -> Result<()> {
        self.through("link", |inner| inner.link(file, to))
    }

    fn set_xattr(&self, path: Path<'_>, name: &Name, value: &[u8]) -> Result<()> {
        self.through("set_xattr", |inner| inner.set_xattr(path, name, value))
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
