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
//! buffered; several servers, each of which would have to know what the others write.

mod lanes;
mod meter;
mod past;
mod settings;

pub use forebay_policy::route::Mode;
pub(crate) use lanes::Lanes;
pub use settings::{Routing, Share};

use crate::service::Service;
use forebay_backend::Object;
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result, Span};
use forebay_policy::Tick;
use forebay_policy::drain::Layout;
use forebay_policy::route::{Route, Router, Write};
use forebay_store::MAX_FILE;
use meter::Meter;
use past::Queue;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Kibibytes that are in memory on their way past the buffer.
const ROOM: usize = 64 << 10;
/// Most files that are open to be written past the buffer.
const MOST_OPEN: usize = 1024;
/// Most files of which it is remembered that they were synced.
const MOST_SYNCED: usize = 1 << 16;
/// A file that nobody has written past the buffer for so long is done.
const IDLE: Duration = Duration::from_secs(1);
/// After a failure behind everything is buffered for so long.
const REST: Duration = Duration::from_secs(1);

/// The ways of writes: into the buffer, and past it.
pub(crate) struct Ways {
    pub(crate) lanes: Arc<Lanes>,
    mode: Mode,
    router: Mutex<Router>,
    /// What waits for each target.
    queues: Vec<Mutex<Queue>>,
    room: Semaphore,
    /// Files that were synced after their last write.
    synced: Mutex<HashSet<FileId>>,
    meter: Mutex<Meter>,
    /// Until then everything is buffered.
    resting: Mutex<Option<Instant>>,
}

/// A file behind that is written past the buffer.
pub(crate) struct Opened {
    objects: Vec<Mutex<Box<dyn Object>>>,
    layout: Layout,
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
            mode: routing.mode,
            router: Mutex::new(Router::new(routing.mode, routing.settings()?)),
            queues: (0..targets).map(|_| Mutex::default()).collect(),
            room: Semaphore::new(ROOM),
            synced: Mutex::default(),
            meter: Mutex::new(Meter::new(Instant::now())),
            resting: Mutex::default(),
        })
    }

    /// Whether writes may go past the buffer at all.
    pub(crate) fn are_open(&self) -> bool {
        self.mode != Mode::Buffer
    }

    /// Memory for a payload on its way past the buffer.
    pub(crate) async fn room(&self, len: u32) -> Result<SemaphorePermit<'_>> {
        let permit = self.room.acquire_many(len.div_ceil(1 << 10)).await;
        permit.map_err(|_| Error::from(ErrorKind::Busy))
    }

    /// A file was synced: whoever writes to it next and waits for that again writes synchronously.
    pub(crate) fn synced(&self, file: FileId) {
        if self.are_open() {
            let mut synced = lock(&self.synced);
            if synced.len() >= MOST_SYNCED {
                synced.clear();
            }
            synced.insert(file);
        }
    }

    fn rests(&self) -> bool {
        lock(&self.resting).is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        *lock(&self.resting) = Some(Instant::now() + REST);
    }

    /// Whether somebody is writing a file past the buffer.
    pub(crate) fn is_written(&self, file: FileId) -> bool {
        self.lanes.opened(file).is_some_and(|opened| lock(&opened.used).elapsed() < IDLE)
    }

    /// Sees that everything of a file that went past the buffer is on its device. Once that has failed it stays so.
    pub(crate) fn sync(&self, file: FileId) -> Result<()> {
        if self.lanes.is_broken(file) {
            let text =
                format!("what was written of file {file} could not be brought to its device: write it anew");
            return Err(Error::new(ErrorKind::Io, text));
        }
        self.settle(file)
    }

    /// The same for all files.
    pub(crate) fn sync_all(&self) -> Result<()> {
        self.lanes.all_open().into_iter().try_for_each(|(file, _)| self.sync(file))
    }

    /// The same for whoever tries until it is done.
    pub(crate) fn settle(&self, file: FileId) -> Result<()> {
        let synced = self.lanes.opened(file).map_or(Ok(()), |opened| opened.sync());
        synced.inspect_err(|_| self.lanes.break_off(file))
    }
}

impl Opened {
    fn new(objects: Vec<Box<dyn Object>>, layout: Layout) -> Opened {
        Opened {
            objects: objects.into_iter().map(Mutex::new).collect(),
            layout,
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
        let ways = &self.ways;
        let Some(span) = span.filter(|span| ways.are_open() && span.end <= MAX_FILE) else {
            return Route::Buffer;
        };
        let sync = lock(&ways.synced).remove(&file);
        let write = Write { file, offset: span.start, len: Bytes(span.len()), sync };
        let now = Tick(self.store.data().now().0);
        let route = lock(&ways.router).route(now, &write);
        let may = || self.drain.is_some() && self.is_alone() && !ways.rests();
        // Known early, so that what has to be buffered goes there straight from its socket.
        match route == Route::Direct && may() && self.store.data().is_blank(file, span).unwrap_or(false) {
            true => Route::Direct,
            false => Route::Buffer,
        }
    }

    /// Files that nobody writes past the buffer any more are to get their looks.
    pub(crate) fn sweep_ways(&self) {
        let Some(engine) = &self.drain else { return };
        for (file, opened) in self.ways.lanes.all_open() {
            if lock(&opened.used).elapsed() >= IDLE {
                engine.finish_later(file);
            }
        }
    }
}
