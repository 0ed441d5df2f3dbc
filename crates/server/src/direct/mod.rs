//! Direct writes: writes that suit the back end bypass the buffer.
//!
//! `policy::route` decides which way a write takes. A direct write is received into memory, waits for a write slot at
//! its target together with the drain's own writers, is written together with its neighbours (`writer`), and is
//! complete when the back end has accepted all of it. If anything prevents that, the write is buffered instead.
//!
//! **Invariant**: only ranges that no reader can see yet are written directly, so that a write appears whole or not at
//! all after any crash; no two writes to the back end overlap (`range_locks`); an acknowledged write is in the back
//! end, and recorded so in the store.
//!
//! **Deliberately absent**: the choice of the way (`forebay_policy::route`); overwrites of bytes in the back end, and
//! appends, which are buffered; creating, extending and truncating striped files in the back end, which their authority
//! does (`drain::striped`): a holder writes directly with the same write lease that its drain uses.

mod meter;
mod rounds;
mod settings;
mod sync;
mod writer;

pub use forebay_policy::route::Mode;
pub use settings::{Full, Pipeline, Routing, Share};

use crate::backing::{Backing, BackingLayer};
use crate::drain::DrainEngine;
use crate::file_homes::FileHomes;
use crate::jobs::Jobs;
use crate::lifecycle::Lifecycle;
use crate::writers::Writers;
use forebay_model::{Bytes, Error, ErrorKind, FileId, Result, ServerId, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::route::{Route, Write, WriteRouter, local};
use forebay_store::{MAX_FILE, Store};
use forebay_wire::RouteStatus;
use meter::Meter;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};
use writer::Queue;

/// Memory for direct writes, in KiB.
const MEMORY_KIB: usize = 64 << 10;
/// Most files that are open for direct writes.
const MOST_OPEN: usize = 1024;
/// Most files that are being opened at the same time.
const OPENING: usize = 16;
/// Most files whose last sync or striping is remembered.
const MOST_KNOWN: usize = 1 << 16;
/// After a failure in the back end, all writes are buffered for this long, or all writes of the file concerned.
const PAUSE: Duration = Duration::from_secs(1);
/// A direct write that gets no memory for this long is buffered.
const MEMORY_WAIT: Duration = Duration::from_millis(100);

/// Routes writes into the buffer or directly to the back end.
pub(crate) struct DirectIo {
    router: Mutex<WriteRouter>,
    /// Nanoseconds spent on routing decisions.
    decided: AtomicU64,
    /// The writes that wait for each target.
    queues: Vec<Mutex<Queue>>,
    memory: Semaphore,
    /// Held while one of these files is opened or its write lease is requested: other writers wait.
    opening: Vec<tokio::sync::Mutex<()>>,
    /// Files that were synced after their last write.
    synced: Mutex<HashSet<FileId>>,
    /// Stripe size and number of servers of files that several servers may hold.
    stripes: Mutex<HashMap<FileId, (u64, u16)>>,
    meter: Mutex<Meter>,
    pauses: Pauses,
    direct: AtomicU64,
    own: ServerId,
    store: Arc<Store>,
    backing: Option<Arc<Backing>>,
    layer: Arc<BackingLayer>,
    homes: Arc<FileHomes>,
    writers: Arc<Writers>,
    /// Shares the write slots of targets with these writes; there is one if there is a back end.
    drain: Option<Arc<DrainEngine>>,
    jobs: Arc<Jobs>,
    life: Arc<Lifecycle>,
}

/// What direct writes use.
pub(crate) struct DirectParts {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) life: Arc<Lifecycle>,
}

/// Until when writes are buffered after a failure: all of them, or all of a file.
#[derive(Default)]
struct Pauses {
    all: Mutex<Option<Instant>>,
    files: Mutex<HashMap<FileId, Instant>>,
}

impl Pauses {
    fn covers(&self, file: FileId) -> bool {
        let now = Instant::now();
        let is_later = |until: &Instant| now < *until;
        self.all.lock().as_ref().is_some_and(is_later) || self.files.lock().get(&file).is_some_and(is_later)
    }

    /// A write to the back end failed: buffers all writes for a while, or only those of the file if the error concerns
    /// no other.
    fn begin(&self, file: FileId, error: &Error) {
        let until = Instant::now() + PAUSE;
        match error.kind() {
            ErrorKind::Io | ErrorKind::Unreachable | ErrorKind::Protocol => {
                *self.all.lock() = Some(until);
            }
            _ => {
                let mut files = self.files.lock();
                if files.len() >= MOST_OPEN {
                    files.clear();
                }
                files.insert(file, until);
            }
        }
    }
}

impl DirectIo {
    pub(crate) fn new(routing: Routing, parts: DirectParts) -> Result<DirectIo> {
        let DirectParts { own, store, layer, homes, writers, drain, jobs, life } = parts;
        let backing = layer.backing.clone();
        let targets = backing.as_ref().map_or(0, |backing| backing.ask(|backend| backend.targets().len()));
        Ok(DirectIo {
            decided: AtomicU64::new(0),
            router: Mutex::new(WriteRouter::new(routing.mode, routing.settings()?)),
            queues: (0..targets).map(|_| Mutex::default()).collect(),
            memory: Semaphore::new(MEMORY_KIB),
            opening: (0..OPENING).map(|_| tokio::sync::Mutex::default()).collect(),
            synced: Mutex::default(),
            stripes: Mutex::default(),
            meter: Mutex::new(Meter::new(Instant::now())),
            pauses: Pauses::default(),
            direct: AtomicU64::new(0),
            own,
            store,
            backing,
            layer,
            homes,
            writers,
            drain,
            jobs,
            life,
        })
    }

    /// Counts bytes that arrived from a client.
    pub(crate) fn came(&self, now: Stamp, bytes: u64) {
        self.writers.route.came(now, bytes);
    }

    /// Counts bytes that were written directly.
    pub(crate) fn passed(&self, bytes: u64) {
        self.direct.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Changes the routing mode. Writes under way continue as they began.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.router.lock().set_mode(mode);
        self.writers.route.set_mode(mode);
    }

    /// Memory for the payload of a direct write; `None` if there is none for a while.
    pub(crate) async fn room(&self, len: u32) -> Option<SemaphorePermit<'_>> {
        let permit = self.memory.acquire_many(len.div_ceil(1 << 10));
        tokio::time::timeout(MEMORY_WAIT, permit).await.ok()?.ok()
    }

    /// A file was synced: its next write, if it is followed by a sync again, counts as synchronous.
    pub(crate) fn synced(&self, file: FileId) {
        if self.writers.route.are_open() {
            let mut synced = self.synced.lock();
            if synced.len() >= MOST_KNOWN {
                synced.clear();
            }
            synced.insert(file);
        }
    }

    /// Records stripe size and number of servers of a file.
    pub(crate) fn note_stripes(&self, file: FileId, stripes: (u64, u16)) {
        let mut known = self.stripes.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(file, stripes);
    }

    /// Decides which way a write takes.
    pub(crate) fn route_of(&self, file: FileId, span: Option<Span>) -> Route {
        let now = self.store.data().now();
        let Some(span) = span.filter(|_| self.writers.route.are_open()) else { return Route::Buffer };
        let Some(offset) = self.local_offset(file, span.start) else { return Route::Buffer };
        let begin = Instant::now();
        let sync = self.synced.lock().remove(&file);
        let write = Write { file, offset, len: Bytes(span.len()), sync };
        let route = self.router.lock().route(Tick(now.0), &write);
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.decided.fetch_add(took, Ordering::Relaxed);
        match route {
            Route::Direct if self.may_bypass(file, span) => Route::Direct,
            _ => Route::Buffer,
        }
    }

    /// The offset of a byte in this server's part of a file; `None` if the striping is not known.
    fn local_offset(&self, file: FileId, offset: u64) -> Option<u64> {
        if self.life.is_alone() {
            return Some(offset);
        }
        let known = self.stripes.lock().get(&file).copied();
        let (stripe, servers) = match known {
            Some(stripes) => stripes,
            None if self.homes.is_authority(file) => {
                let stripes = self.homes.stripes(file).ok()?;
                self.note_stripes(file, stripes);
                stripes
            }
            None => return None,
        };
        Some(local(offset, stripe.max(1), u64::from(servers.max(1))))
    }

    /// Whether a write can probably bypass the buffer. Checked early, so that a write that has to be buffered is
    /// received directly into the buffer.
    pub(crate) fn may_bypass(&self, file: FileId, span: Span) -> bool {
        let may = self.drain.is_some() && !self.pauses.covers(file) && span.end <= MAX_FILE;
        let may = may && !self.writers.range_locks.is_broken(file);
        may && self.store.data().can_pass(file, span).unwrap_or(false)
    }

    /// Changes the routing mode on behalf of an administrator.
    pub(crate) fn set_route(&self, by: Uid, mode: &str) -> Result<()> {
        let mode: Mode = mode.parse()?;
        if self.drain.is_none() && mode != Mode::Buffer {
            let text = "this server has no back end for direct writes: start it with --backend";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        tracing::info!(uid = %by, mode = mode.name(), "the routing mode has changed");
        self.set_mode(mode);
        if self.writers.route.are_open() {
            // Writes through shared memory cannot bypass the buffer.
            self.store.data().recall_all();
        }
        Ok(())
    }

    /// Routing statistics.
    pub(crate) fn status(&self) -> Option<RouteStatus> {
        let engine = self.drain.as_ref()?;
        let (extents, index) = self.store.data().index_size();
        let written = self.writers.route.arrived();
        let direct = self.direct.load(Ordering::Relaxed);
        let (waits, waited) = engine.waits();
        Some(RouteStatus {
            mode: self.writers.route.mode().name().to_owned(),
            pipeline: !self.writers.route.follows_bursts(),
            bypass: self.writers.route.bypass(),
            buffered: written.saturating_sub(direct),
            direct,
            waits,
            waited,
            decided: self.decided.load(Ordering::Relaxed),
            indexed: engine.indexed().saturating_add(self.store.data().index_time()),
            waiting: self.jobs.named(&engine.space_waiters()),
            extents,
            index,
        })
    }

    /// Has files finalized that have no direct writers any more.
    pub(crate) fn sweep(&self) {
        let Some(engine) = &self.drain else { return };
        for (file, opened) in self.writers.range_locks.all_open() {
            if !self.writers.is_in_use(file, &opened) {
                engine.finish_later(file);
            }
        }
        self.drop_removed();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_of_one_file_does_not_affect_others() {
        let pauses = Pauses::default();
        let (one, other) = (FileId(1), FileId(2));
        for kind in [ErrorKind::NoSpace, ErrorKind::TooLarge, ErrorKind::Stale] {
            pauses.begin(one, &Error::from(kind));
            assert!(pauses.covers(one) && !pauses.covers(other), "{kind:?}");
        }
        pauses.begin(one, &Error::from(ErrorKind::Io));
        assert!(pauses.covers(other));
    }
}
