//! A back end with the speed of modelled targets, so that contention is visible on any machine.
//!
//! Written `model:DEVICE[,slower=N][,grain=N][,queue=N][,faults=N][,shared=DIR]:BACKEND`. `DEVICE` is an
//! entry of `scenarios/devices.toml`. `slower` multiplies all durations; `grain` lets every byte stand for N
//! bytes, so that little data takes as many writes and seeks as much would; `queue` sets the number of writes
//! that a disk sorts; `faults` makes every Nth write fail; `shared` keeps the state of the targets in a
//! directory, so that all servers of a machine that name it write to the same targets.
//!
//! **Invariant**: a write returns when it is done both in the wrapped back end and in the model; the model
//! runs in real time.
//!
//! **Deliberately absent**: reads (recently written data is in a target's cache), names and attributes: they
//! take as long as in the wrapped back end.

mod gauge;
mod spec;

use crate::{Backend, Creation, Found, Layout, Object, Path, Seen, Slot, Target, Version};
use forebay_model::{Error, ErrorKind, FileId, Gid, Name, Result, Span, Time, Uid};
use forebay_policy::place::Description;
use gauge::Gauge;
use spec::Spec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use spec::device;

/// A back end with modelled targets.
pub struct Model {
    inner: Arc<dyn Backend>,
    world: Arc<World>,
    name: String,
}

/// State shared by all open files.
struct World {
    gauges: Vec<Gauge>,
    /// Every Nth write fails.
    faults: Option<u64>,
    writes: AtomicU64,
}

impl Model {
    /// Slows a back end down; `text` is everything between `model:` and the wrapped back end's name.
    pub fn open(text: &str, inner: Arc<dyn Backend>) -> Result<Model> {
        let Spec { device, faults, shared } = text.parse()?;
        let count = inner.targets().len();
        let gauges = (0..count).map(|number| match &shared {
            None => Ok(Gauge::own(device.clone())),
            Some(dir) => Gauge::shared(device.clone(), dir, number),
        });
        let world = World { gauges: gauges.collect::<Result<_>>()?, faults, writes: AtomicU64::new(0) };
        let name = format!("model:{text}:{}", inner.name());
        Ok(Model { inner, world: Arc::new(world), name })
    }

    fn wrapped(&self, file: Path<'_>, object: Box<dyn Object>) -> Result<Box<dyn Object>> {
        let layout = self.inner.layout(file)?;
        let id = FileId(object.version()?.serial);
        Ok(Box::new(Modelled { inner: object, id, layout, world: self.world.clone() }))
    }
}

/// A file on modelled targets.
struct Modelled {
    inner: Box<dyn Object>,
    id: FileId,
    layout: Layout,
    world: Arc<World>,
}

impl Modelled {
    /// The targets of a span of the file, with the ranges of each target's own part.
    fn places(&self, span: Span) -> BTreeMap<u32, Vec<Span>> {
        let mut places: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
        let (stripe, count) = (self.layout.stripe, self.layout.targets.len() as u64);
        let mut at = span.start;
        while at < span.end {
            let number = at / stripe;
            let end = (number + 1).saturating_mul(stripe).min(span.end);
            let start = number / count * stripe + at % stripe;
            let there = places.entry(self.layout.targets[(number % count) as usize]).or_default();
            match there.last_mut() {
                Some(last) if last.end == start => last.end += end - at,
                _ => there.push(Span::new(start, start + (end - at))),
            }
            at = end;
        }
        places
    }
}

impl World {
    fn gauge(&self, target: u32) -> Result<&Gauge> {
        let text = || format!("the back end has {} targets: there is no target {target}", self.gauges.len());
        self.gauges.get(target as usize).ok_or_else(|| Error::new(ErrorKind::Io, text()))
    }
}

impl Object for Modelled {
    fn version(&self) -> Result<Version> {
        self.inner.version()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.inner.read_at(offset, into)
    }

    fn forget(&self, span: Span) {
        self.inner.forget(span);
    }

    fn zero(&self, span: Span) -> Result<()> {
        self.inner.zero(span)
    }

    fn write_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        let number = self.world.writes.fetch_add(1, Ordering::Relaxed) + 1;
        if self.world.faults.is_some_and(|every| number.is_multiple_of(every)) {
            return Err(Error::new(ErrorKind::Io, "injected fault of a modelled target"));
        }
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let span = Span::at(offset, len).ok_or_else(|| Error::from(ErrorKind::TooLarge))?;
        let mut works = Vec::new();
        for (target, spans) in self.places(span) {
            let gauge = self.world.gauge(target)?;
            for span in spans {
                works.push((gauge, gauge.begin(self.id, span)?));
            }
        }
        let done = self.inner.write_at(offset, parts);
        works.into_iter().try_for_each(|(gauge, work)| gauge.wait(work))?;
        done
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()?;
        let mut targets = self.layout.targets.clone();
        targets.sort_unstable();
        targets.dedup();
        let flush = |target| {
            let gauge = self.world.gauge(target)?;
            gauge.flush().map(|work| (gauge, work))
        };
        let works: Vec<_> = targets.into_iter().map(flush).collect::<Result<_>>()?;
        works.into_iter().try_for_each(|(gauge, work)| gauge.wait(work))
    }

    fn gather(&self) -> Result<()> {
        self.inner.gather()
    }
}

impl Backend for Model {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn find_at(&self, at: Slot<'_>) -> Result<Option<Found>> {
        self.inner.find_at(at)
    }

    fn root(&self) -> Result<Option<Found>> {
        self.inner.root()
    }

    fn list_of(&self, dir: Seen<'_>, show: &mut dyn FnMut(Name)) -> Result<()> {
        self.inner.list_of(dir, show)
    }

    fn open(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        self.inner.open(file)
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
        self.inner.layout(file)
    }

    fn create_at(&self, file: Slot<'_>, creation: &Creation) -> Result<Box<dyn Object>> {
        let object = self.inner.create_at(file, creation)?;
        self.wrapped(file.path, object)
    }

    fn create_on_at(&self, file: Slot<'_>, creation: &Creation, layout: &Layout) -> Result<Box<dyn Object>> {
        let object = self.inner.create_on_at(file, creation, layout)?;
        self.wrapped(file.path, object)
    }

    fn open_to_write(&self, file: Path<'_>) -> Result<Box<dyn Object>> {
        let object = self.inner.open_to_write(file)?;
        self.wrapped(file, object)
    }

    fn symlink_at(&self, at: Slot<'_>, target: &[u8]) -> Result<()> {
        self.inner.symlink_at(at, target)
    }

    fn set_attr_of(&self, it: Seen<'_>, owner: (Uid, Gid), mode: u16, mtime: Time) -> Result<()> {
        self.inner.set_attr_of(it, owner, mode, mtime)
    }

    fn make_dir_at(&self, dir: Slot<'_>, owner: (Uid, Gid), mode: u16) -> Result<Option<u64>> {
        self.inner.make_dir_at(dir, owner, mode)
    }

    fn unlink_of(&self, it: Seen<'_>) -> Result<bool> {
        self.inner.unlink_of(it)
    }

    fn remove_dir_of(&self, dir: Seen<'_>) -> Result<bool> {
        self.inner.remove_dir_of(dir)
    }

    fn rename_of(&self, from: Seen<'_>, to: Slot<'_>, target: Target) -> Result<bool> {
        self.inner.rename_of(from, to, target)
    }

    fn truncate_of(&self, file: Seen<'_>, size: u64) -> Result<bool> {
        self.inner.truncate_of(file, size)
    }

    fn link_of(&self, file: Seen<'_>, to: Slot<'_>) -> Result<()> {
        self.inner.link_of(file, to)
    }

    fn set_xattr_of(&self, it: Seen<'_>, name: &Name, value: &[u8]) -> Result<()> {
        self.inner.set_xattr_of(it, name, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;

    #[test]
    fn contiguous_stripes_on_a_target_are_one_write() {
        let memory = Memory::default();
        memory.put(&[Name::new("f").expect("a name")], (Uid(0), Gid(0)), 0o644, b"");
        let inner = memory.open(&[Name::new("f").expect("a name")]).expect("it is there");
        let world = World { gauges: Vec::new(), faults: None, writes: AtomicU64::new(0) };
        let layout = Layout { targets: vec![5, 3], stripe: 10 };
        let file = Modelled { inner, id: FileId(1), layout, world: Arc::new(world) };
        for (from, to, expected) in [
            (0, 0, vec![]),
            (12, 18, vec![(3, vec![(2, 8)])]),
            (5, 45, vec![(3, vec![(0, 20)]), (5, vec![(5, 25)])]),
        ] {
            let places: Vec<(u32, Vec<(u64, u64)>)> = file
                .places(Span::new(from, to))
                .into_iter()
                .map(|(target, spans)| (target, spans.iter().map(|span| (span.start, span.end)).collect()))
                .collect();
            assert_eq!(places, expected, "{from}..{to}");
        }
        assert_eq!(file.write_at(0, &[b"x"]).unwrap_err().kind(), ErrorKind::Io, "no such target");
    }
}
