//! The drain: writes buffered data back to the back end and frees the space it occupied.
//!
//! A *scanner* decides which files are drained (`forebay_policy::drain::want`), walks the trees that drain requests name (`ticket`), and
//! chooses files. *Workers* create the files in the back end, obtain write slots at targets (`grants`), write in the
//! order of the index (`queue`), sync, free the buffered bytes, and set the file's size, owner, mode and time when all
//! of its bytes are written.
//!
//! **Invariant**: the buffer frees bytes only after the back end has acknowledged that they are on stable storage;
//! bytes that were overwritten, truncated or removed meanwhile are not freed, and not written either if the worker
//! knows in time; no two workers write the same bytes of a file; after any crash, every byte is in the buffer or in the
//! back end, and writeback marks tell which files to check.
//!
//! **Deliberately absent**: the order of writes and the choice of the next job (`forebay_policy`); knowledge of files
//! in the back end (`backing`).

mod alpha;
mod arbiter_rpc;
mod direct_writers;
mod failures;
mod gauge;
mod grant_exchange;
mod grants;
mod notes;
mod placement;
mod queue;
mod remake;
mod report;
mod rounds;
mod scanner;
mod settings;
mod space_wait;
mod striped;
mod ticket;
mod worker;

pub use alpha::Alpha;
pub(crate) use arbiter_rpc::Statement;
pub(crate) use grant_exchange::converse;

pub use settings::{Described, Draining, Hours, Verify};
pub(crate) use space_wait::BufferSpace;
pub(crate) use striped::{never_drained, open_place};

use crate::backing::{Backing, BackingLayer, DrainNotices};
use crate::cluster::{Peers, StripedFiles};
use crate::file_homes::FileHomes;
use crate::jobs::Jobs;
use crate::lifecycle::Lifecycle;
use crate::opens::Opens;
use crate::per_user::UserLimit;
use crate::writers::Writers;
use alpha::{Learner, Pace};
use forebay_model::{FileId, Name, Result, ServerId};
use forebay_policy::arbiter::slots;
use forebay_policy::share::SpaceQueue;
use forebay_store::Store;
use gauge::{Gauge, Valve};
use grants::{Grants, Terms};
use notes::Notes;
use parking_lot::{Condvar, Mutex, MutexGuard};
use placement::Placement;
use queue::DrainQueue;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc};

/// Most new files that wait for the scanner.
const MOST_CREATED: usize = 1024;

/// The drain of one server: its queue, workers' state and statistics.
pub(crate) struct DrainEngine {
    pub(crate) settings: Draining,
    targets: Vec<String>,
    placement: Placement,
    workers: usize,
    drain_queue: Mutex<DrainQueue>,
    /// Wakes one worker when there is a task; that worker wakes the next one.
    doorbell: Condvar,
    /// Wakes direct writers when a target may have a free write slot.
    slot_freed: Condvar,
    /// Wakes the tasks that exchange grants with other servers.
    exchange: Notify,
    /// Wakes writers that wait for buffer space.
    space_freed: Notify,
    waiting_writers: AtomicU64,
    space_queue: Mutex<SpaceQueue>,
    /// How often writers waited for space, and for how many nanoseconds.
    waits: AtomicU64,
    waited: AtomicU64,
    /// Nanoseconds spent on building the index.
    indexed: AtomicU64,
    written: AtomicU64,
    freed: AtomicU64,
    /// Since when writers have waited for space without any of them getting some.
    stuck: Mutex<Option<Instant>>,
    /// Whether this is the final drain of this buffer.
    last: AtomicBool,
    /// Attributes and other extras that the back end could not store.
    losses: Mutex<BTreeSet<String>>,
    notes: Mutex<Notes>,
    /// New files with their directories and names, until the scanner takes them.
    created: Mutex<Vec<(FileId, FileId, Name)>>,
    walks: Mutex<Vec<(u64, scanner::Walk)>>,
    /// How many drain requests of one user are remembered.
    tickets_of_user: UserLimit,
    parts: striped::Parts,
    own: ServerId,
    store: Arc<Store>,
    backing: Arc<Backing>,
    layer: Arc<BackingLayer>,
    homes: Arc<FileHomes>,
    peers: Arc<Peers>,
    striped: Arc<StripedFiles>,
    writers: Arc<Writers>,
    opens: Arc<Opens>,
    jobs: Arc<Jobs>,
    life: Arc<Lifecycle>,
    /// How long writes to a file may take to be suspended: shorter than the timeout of the servers that request it.
    suspension: Duration,
}

/// What the drain uses.
pub(crate) struct DrainParts {
    pub(crate) own: ServerId,
    pub(crate) store: Arc<Store>,
    pub(crate) backing: Arc<Backing>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) striped: Arc<StripedFiles>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) suspension: Duration,
    pub(crate) tickets_of_user: UserLimit,
}

/// The empty queue of a server, and the number of its workers.
fn new_queue(
    settings: &Draining,
    own: ServerId,
    servers: Vec<ServerId>,
    targets: &[String],
    now: Instant,
) -> Result<(DrainQueue, usize)> {
    let alpha = settings.alpha.of(targets)?;
    let count = |many: usize| u32::try_from(many).unwrap_or(u32::MAX);
    let slots = slots(settings.alpha.most(&alpha), count(targets.len()), count(servers.len()));
    let (workers, is_alone) = (slots.workers as usize, servers.len() < 2);
    let (choice, quantum, lease) = (settings.choice, settings.quantum, settings.lease());
    let grants = Grants::new(Terms { server: own, servers, alpha, choice, quantum, lease });
    let gauges = targets.iter().map(|_| Gauge::new(now)).collect();
    let mut drain_queue = DrainQueue::new(settings.order, settings.write, grants, gauges);
    // Writing starts before all files are created.
    drain_queue.preparers = (workers / 2).max(1);
    // All servers together have as many writers as they would have with an arbiter.
    drain_queue.max_writers = slots.writers;
    drain_queue.valve = settings.rate.map(|rate| Valve::new(rate.0, now));
    let pace = if is_alone { Pace::Writes } else { Pace::Time };
    drain_queue.learner = (settings.alpha == Alpha::Learnt).then(|| Learner::new(targets.len(), pace));
    Ok((drain_queue, workers))
}

impl DrainEngine {
    pub(crate) fn new(
        settings: Draining,
        servers: Vec<ServerId>,
        described: Option<Described>,
        parts: DrainParts,
    ) -> Result<DrainEngine> {
        let DrainParts { own, store, backing, layer, homes, peers, striped, .. } = parts;
        let DrainParts { writers, opens, jobs, life, suspension, tickets_of_user, .. } = parts;
        let (targets, now) = (backing.ask(|backend| backend.targets()), Instant::now());
        let topology = backing.ask(|backend| backend.topology());
        let placement = Placement::new(own, targets.len(), described, topology)?;
        let (mut drain_queue, workers) = new_queue(&settings, own, servers, &targets, now)?;
        backing.all_marked().into_iter().for_each(|file| drain_queue.resume(file));
        Ok(DrainEngine {
            settings,
            placement,
            workers,
            targets,
            drain_queue: Mutex::new(drain_queue),
            doorbell: Condvar::new(),
            slot_freed: Condvar::new(),
            exchange: Notify::new(),
            space_freed: Notify::new(),
            waiting_writers: AtomicU64::new(0),
            space_queue: Mutex::default(),
            waits: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            indexed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            stuck: Mutex::default(),
            last: AtomicBool::new(false),
            losses: Mutex::default(),
            // Scanning everything finds what an earlier run of the server did not drain.
            notes: Mutex::new(Notes::of_everything(now)),
            created: Mutex::default(),
            walks: Mutex::default(),
            tickets_of_user,
            parts: striped::Parts::default(),
            own,
            store,
            backing,
            layer,
            homes,
            peers,
            striped,
            writers,
            opens,
            jobs,
            life,
            suspension,
        })
    }

    /// The queue, with all that others left for the drain until now.
    fn drain_queue(&self) -> MutexGuard<'_, DrainQueue> {
        let mut drain_queue = self.drain_queue.lock();
        let DrainNotices { dirs, finish } = self.backing.take_drain_notices();
        if !dirs.is_empty() {
            drain_queue.touch_dirs(&Vec::from_iter(dirs));
        }
        finish.into_iter().for_each(|file| drain_queue.resume(file));
        drain_queue
    }

    fn space_queue(&self) -> MutexGuard<'_, SpaceQueue> {
        self.space_queue.lock()
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock()
    }

    /// Records that a file has a new name or other attributes.
    pub(crate) fn note(&self, file: FileId) {
        self.notes().note(Instant::now(), file);
    }

    /// Records a new file, and that its directory changed.
    pub(crate) fn note_created(&self, file: FileId, dir: FileId, name: Name) {
        let count = {
            let mut created = self.created.lock();
            created.push((file, dir, name));
            created.len()
        };
        if count >= MOST_CREATED {
            self.take_created();
        }
    }

    /// Notes the files that were created since the last call.
    fn take_created(&self) {
        let created = std::mem::take(&mut *self.created.lock());
        if created.is_empty() {
            return;
        }
        {
            let (mut notes, now) = (self.notes(), Instant::now());
            for &(file, dir, _) in &created {
                notes.note(now, file);
                notes.note(now, dir);
            }
        }
        self.backing.note_names(created);
    }

    /// Starts the scanner and the workers. The threads end with the server and then drop their clone of `alive`.
    pub(crate) fn start(self: &Arc<DrainEngine>, alive: &mpsc::Sender<()>) {
        self.store.data().keep_slabs(space_wait::FRESH);
        for _ in 0..self.workers {
            let (engine, alive) = (self.clone(), alive.clone());
            tokio::task::spawn_blocking(move || {
                worker::run_worker(&engine);
                drop(alive);
            });
        }
        let (engine, alive) = (self.clone(), alive.clone());
        tokio::task::spawn_blocking(move || {
            scanner::scanner(&engine);
            drop(alive);
        });
    }
}
