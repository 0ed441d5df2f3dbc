//! Past the buffer: writes that the storage behind likes go straight there.
//!
//! `policy::route` says which way a write should go. One that goes past the buffer is taken into memory, waits for a place
//! at its target beside the drain's own writers, goes down together with its neighbours (`past`), and counts when the back
//! end has taken all of it. Whatever is in the way, it is buffered instead.
//!
//! **Invariant**: only bytes that nobody can read yet are written past the buffer, so that a write appears whole or not at
//! all, whoever dies; no two writes behind meet at a byte (`lanes`); what was acknowledged is behind, and said to be there
//! by the store, before it is answered.
//!
//! **Deliberately absent**: which way (`forebay_policy::route`); overwriting what is behind, and appends, which are
//! buffered; making, growing and cutting files of several servers behind, which their authority does (`drain::shared`):
//! who holds bytes of one writes past the buffer with the leave that it drains with.

mod lanes;
mod lasting;
mod meter;
mod past;
mod rounds;
mod settings;

pub use forebay_policy::route::Mode;
pub(crate) use lanes::{Lanes, Quiet};
pub use settings::{Full, Pipeline, Routing, Share};

use crate::service::{Caller, Service};
use forebay_backend::Object;
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result, Span, Stamp};
use forebay_policy::Tick;
use forebay_policy::drain::Layout;
use forebay_policy::route::{Route, Router, Write, local};
use forebay_store::MAX_FILE;
use forebay_wire::RouteStatus;
use meter::Meter;
use past::Queue;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Kibibytes that are in memory on their way past the buffer.
const ROOM: usize = 64 << 10;
/// Most files that are open to be written past the buffer.
const MOST_OPEN: usize = 1024;
/// Files that are opened at the same time, at most.
const OPENING: usize = 16;
/// Most files of which it is remembered that they were synced, or how they are striped.
const MOST_KNOWN: usize = 1 << 16;
/// A file that nobody has written past the buffer for so long is done; one that is open, for longer.
const IDLE: Duration = Duration::from_secs(1);
const IDLE_AND_OPEN: Duration = Duration::from_secs(30);
/// Without a pipeline a burst is over when nothing came for so many nanoseconds.
const LULL: u64 = 300_000_000;
/// After a failure behind everything is buffered for so long, or everything of the file that it concerns.
const REST: Duration = Duration::from_secs(1);
/// Who finds no memory for so long on the way past the buffer is buffered.
const BRIEF: Duration = Duration::from_millis(100);

/// The ways of writes: into the buffer, and past it.
pub(crate) struct Ways {
    pub(crate) lanes: Arc<Lanes>,
    routing: Routing,
    /// The number of the mode that counts, among all.
    mode: AtomicUsize,
    router: Mutex<Router>,
    /// Nanoseconds that went into deciding which way.
    decided: AtomicU64,
    /// What waits for each target.
    queues: Vec<Mutex<Queue>>,
    room: Semaphore,
    /// Held by whoever opens one of these files, or asks for leave to write it: others wait for that.
    opening: Vec<tokio::sync::Mutex<()>>,
    /// Files that were synced after their last write.
    synced: Mutex<HashSet<FileId>>,
    /// Bytes of a stripe, and over how many servers they go round, of files that several servers may hold.
    stripes: Mutex<HashMap<FileId, (u64, u16)>>,
    meter: Mutex<Meter>,
    /// Files that an earlier life of the server wrote past the buffer, and nobody has synced since.
    left_over: Mutex<HashSet<FileId>>,
    /// Until then everything is buffered, or everything of a file.
    resting: Mutex<Option<Instant>>,
    resting_files: Mutex<HashMap<FileId, Instant>>,
    /// When the last write came.
    last: AtomicU64,
    written: AtomicU64,
    direct: AtomicU64,
}

/// Where a burst is, for whoever lets data leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Burst {
    /// It does not matter.
    Any,
    /// It goes on: nothing is to leave.
    GoesOn,
    /// It is over: everything is to leave.
    Over,
}

/// A file behind that is written past the buffer.
pub(crate) struct Opened {
    objects: Vec<Mutex<Box<dyn Object>>>,
    layout: Layout,
    /// Which file it is behind, where its authority had to be asked for leave, and when that was.
    leave: Option<(u64, Mutex<Instant>)>,
    used: Mutex<Instant>,
    /// Something was written that may not be on its device. Set while the object is locked that it was written with.
    dirty: AtomicBool,
    /// Whoever syncs waits for those who do so already.
    syncing: Mutex<()>,
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ways {
    pub(crate) fn new(routing: Routing, targets: usize) -> Result<Ways> {
        Ok(Ways {
            lanes: Arc::default(),
            routing,
            mode: AtomicUsize::new(number(routing.mode)),
            decided: AtomicU64::new(0),
            router: Mutex::new(Router::new(routing.mode, routing.settings()?)),
            queues: (0..targets).map(|_| Mutex::default()).collect(),
            room: Semaphore::new(ROOM),
            opening: (0..OPENING).map(|_| tokio::sync::Mutex::default()).collect(),
            synced: Mutex::default(),
            stripes: Mutex::default(),
            meter: Mutex::new(Meter::new(Instant::now())),
            left_over: Mutex::default(),
            resting: Mutex::default(),
            resting_files: Mutex::default(),
            last: AtomicU64::new(0),
            written: AtomicU64::new(0),
            direct: AtomicU64::new(0),
        })
    }

    /// Bytes have come from a client.
    pub(crate) fn came(&self, now: Stamp, bytes: u64) {
        self.written.fetch_add(bytes, Ordering::Relaxed);
        self.last.fetch_max(now.0, Ordering::Relaxed);
    }

    /// Bytes have gone past the buffer.
    pub(crate) fn passed(&self, bytes: u64) {
        self.direct.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Whether a write that finds no room goes past the buffer.
    pub(crate) fn bypass(&self) -> bool {
        self.routing.when_full() == Full::Bypass
    }

    /// Whether it matters when a burst ends.
    pub(crate) fn follows_bursts(&self) -> bool {
        self.routing.pipeline == Pipeline::Off
    }

    /// Whether data may leave, as far as bursts matter.
    pub(crate) fn burst(&self, now: Stamp) -> Burst {
        let last = self.last.load(Ordering::Relaxed);
        match self.routing.pipeline {
            Pipeline::On => Burst::Any,
            Pipeline::Off if now.0.saturating_sub(last) < LULL => Burst::GoesOn,
            Pipeline::Off => Burst::Over,
        }
    }

    /// How writes are routed.
    pub(crate) fn mode(&self) -> Mode {
        Mode::ALL[self.mode.load(Ordering::Relaxed)].1
    }

    /// Writes are routed in another way from now on. What is on its way goes on as it began.
    pub(crate) fn set_mode(&self, mode: Mode) {
        lock(&self.router).set_mode(mode);
        self.mode.store(number(mode), Ordering::Relaxed);
    }

    /// Whether writes may go past the buffer at all.
    pub(crate) fn are_open(&self) -> bool {
        self.mode() != Mode::Buffer || self.bypass()
    }

    /// Memory for a payload on its way past the buffer; nothing if there is none for a while.
    pub(crate) async fn room(&self, len: u32) -> Option<SemaphorePermit<'_>> {
        let permit = self.room.acquire_many(len.div_ceil(1 << 10));
        tokio::time::timeout(BRIEF, permit).await.ok()?.ok()
    }

    /// A file was synced: whoever writes to it next and waits for that again writes synchronously.
    pub(crate) fn synced(&self, file: FileId) {
        if self.are_open() {
            let mut synced = lock(&self.synced);
            if synced.len() >= MOST_KNOWN {
                synced.clear();
            }
            synced.insert(file);
        }
    }

    /// Stripes of a file have so many bytes, and go round over so many servers.
    pub(crate) fn laid(&self, file: FileId, stripes: (u64, u16)) {
        let mut known = lock(&self.stripes);
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(file, stripes);
    }

    fn rests(&self, file: FileId) -> bool {
        let now = Instant::now();
        let is_later = |until: &Instant| now < *until;
        lock(&self.resting).as_ref().is_some_and(is_later)
            || lock(&self.resting_files).get(&file).is_some_and(is_later)
    }

    /// Something has failed behind: what is no concern of others does not keep them from writing there.
    fn rest(&self, file: FileId, error: &Error) {
        let until = Instant::now() + REST;
        match error.kind() {
            ErrorKind::Io | ErrorKind::Unreachable | ErrorKind::Protocol => {
                *lock(&self.resting) = Some(until);
            }
            _ => {
                let mut files = lock(&self.resting_files);
                if files.len() >= MOST_OPEN {
                    files.clear();
                }
                files.insert(file, until);
            }
        }
    }
}

impl Opened {
    fn new(objects: Vec<Box<dyn Object>>, layout: Layout, serial: Option<u64>) -> Opened {
        Opened {
            objects: objects.into_iter().map(Mutex::new).collect(),
            layout,
            leave: serial.map(|serial| (serial, Mutex::new(Instant::now()))),
            used: Mutex::new(Instant::now()),
            dirty: AtomicBool::new(false),
            syncing: Mutex::default(),
        }
    }

    /// One of the objects, if possible one that nobody uses.
    fn object(&self) -> MutexGuard<'_, Box<dyn Object>> {
        let free = self.objects.iter().find_map(|object| object.try_lock().ok());
        free.unwrap_or_else(|| lock(&self.objects[0]))
    }

    /// Brings everything to its device.
    fn sync(&self) -> Result<()> {
        tokio::task::block_in_place(|| {
            let _one = lock(&self.syncing);
            if !self.dirty.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
            let synced = self.objects.iter().try_for_each(|object| lock(object).sync());
            synced.inspect_err(|_| self.dirty.store(true, Ordering::Release))
        })
    }
}

impl Service {
    /// Which way a write goes that comes now.
    pub(crate) fn way(&self, file: FileId, span: Option<Span>) -> Route {
        let (ways, now) = (&self.ways, self.store.data().now());
        let Some(span) = span.filter(|_| ways.are_open()) else { return Route::Buffer };
        let Some(offset) = self.local_offset(file, span.start) else { return Route::Buffer };
        let begin = Instant::now();
        let sync = lock(&ways.synced).remove(&file);
        let write = Write { file, offset, len: Bytes(span.len()), sync };
        let route = lock(&ways.router).route(Tick(now.0), &write);
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        ways.decided.fetch_add(took, Ordering::Relaxed);
        match route {
            Route::Direct if self.may_fly(file, span) => Route::Direct,
            _ => Route::Buffer,
        }
    }

    /// Where a byte of a file is in this server's part of it; nothing if nobody has said how the file is striped.
    fn local_offset(&self, file: FileId, offset: u64) -> Option<u64> {
        if self.is_alone() {
            return Some(offset);
        }
        let known = lock(&self.ways.stripes).get(&file).copied();
        let (stripe, servers) = match known {
            Some(stripes) => stripes,
            None if self.is_authority(file) => {
                let stripes = self.stripes(file).ok()?;
                self.ways.laid(file, stripes);
                stripes
            }
            None => return None,
        };
        Some(local(offset, stripe.max(1), u64::from(servers.max(1))))
    }

    /// Whether a write can go past the buffer, for all one knows. Known early, so that what has to be buffered goes there
    /// straight from its socket.
    pub(crate) fn may_fly(&self, file: FileId, span: Span) -> bool {
        let may = self.drain.is_some() && !self.ways.rests(file) && span.end <= MAX_FILE;
        let may = may && !self.ways.lanes.is_broken(file);
        may && self.store.data().can_pass(file, span).unwrap_or(false)
    }

    /// Writes go another way from now on.
    pub(crate) fn set_route(&self, caller: &Caller, mode: &str) -> Result<()> {
        self.demand(caller, "say which way the writes of this service go")?;
        let mode: Mode = mode.parse()?;
        if self.drain.is_none() && mode != Mode::Buffer {
            let text = "there is nothing behind this server that writes could go to: start it with --backend";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        tracing::info!(uid = %caller.who.uid, mode = mode.name(), "writes go another way");
        self.ways.set_mode(mode);
        if self.ways.are_open() {
            // What is written by shared memory could not go past the buffer.
            self.store.data().recall_all();
        }
        Ok(())
    }

    /// What was buffered, and what went past the buffer.
    pub(crate) fn route_status(&self) -> Option<RouteStatus> {
        let engine = self.drain.as_ref()?;
        let (extents, index) = self.store.data().index_size();
        let written = self.ways.written.load(Ordering::Relaxed);
        let direct = self.ways.direct.load(Ordering::Relaxed);
        let (waits, waited) = engine.waits();
        Some(RouteStatus {
            mode: self.ways.mode().name().to_owned(),
            pipeline: self.ways.routing.pipeline == Pipeline::On,
            bypass: self.ways.bypass(),
            buffered: written.saturating_sub(direct),
            direct,
            waits,
            waited,
            decided: self.ways.decided.load(Ordering::Relaxed),
            indexed: engine.indexed().saturating_add(self.store.data().index_time()),
            waiting: self.jobs.named(&engine.who_waits()),
            extents,
            index,
        })
    }

    /// Files that nobody writes past the buffer any more are to get their looks.
    pub(crate) fn sweep_ways(&self) {
        let Some(engine) = &self.drain else { return };
        for (file, opened) in self.ways.lanes.all_open() {
            if !self.is_in_use(file, &opened) {
                engine.finish_later(file);
            }
        }
        self.drop_removed();
    }

    /// Whether somebody is writing a file past the buffer.
    pub(crate) fn is_written_past(&self, file: FileId) -> bool {
        self.ways.lanes.opened(file).is_some_and(|opened| self.is_in_use(file, &opened))
    }

    fn is_in_use(&self, file: FileId, opened: &Opened) -> bool {
        let limit = if self.opens.is_held(file) { IDLE_AND_OPEN } else { IDLE };
        lock(&opened.used).elapsed() < limit
    }
}

fn number(mode: Mode) -> usize {
    Mode::ALL.iter().position(|(_, one)| *one == mode).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_goes_on_as_long_as_bytes_come() {
        let at = |routing| Ways::new(routing, 1).expect("usual settings");
        let ways = at(Routing { pipeline: Pipeline::Off, ..Routing::default() });
        let second = 1_000_000_000;
        assert_eq!(ways.burst(Stamp(second)), Burst::Over);
        ways.came(Stamp(second), 1);
        assert_eq!(
            ways.burst(Stamp(second + LULL - 1)),
            Burst::GoesOn,
            "whatever they are, and however slowly"
        );
        assert_eq!(ways.burst(Stamp(second + LULL)), Burst::Over);
        let usual = at(Routing::default());
        usual.came(Stamp(second), 1);
        assert_eq!(usual.burst(Stamp(second)), Burst::Any);
    }

    #[test]
    fn what_fails_for_one_file_is_no_concern_of_others() {
        let ways = Ways::new(Routing::default(), 1).expect("usual settings");
        let (one, other) = (FileId(1), FileId(2));
        for kind in [ErrorKind::NoSpace, ErrorKind::TooLarge, ErrorKind::Stale] {
            ways.rest(one, &Error::from(kind));
            assert!(ways.rests(one) && !ways.rests(other), "{kind:?}");
        }
        ways.rest(one, &Error::from(ErrorKind::Io));
        assert!(ways.rests(other));
    }
}
