//! The drain: what was written here reaches the back end by itself, and then makes room.
//!
//! A *scout* decides what should leave (`trigger`), walks what somebody asked for (`ticket`), and chooses files. *Workers*
//! make them behind, ask for places at targets (`places`), write in the order of the index (`board`), see that it is on
//! its device, let go of it here, and give the file its length, owner, mode and time when all of it is out.
//!
//! **Invariant**: bytes are let go of here only after the back end has said that it has them on its device; what was
//! overwritten, cut or removed meanwhile is not let go of, and not written either if it was known in time; no two workers
//! write the same bytes of a file; whatever dies in between, everything is here or there, and claims say where to look.
//!
//! **Deliberately absent**: the order and whose turn it is (`forebay_policy`); knowledge of files behind (`union`).

mod alpha;
mod beside;
mod board;
mod court;
mod failures;
mod gauge;
mod line;
mod notes;
mod permits;
mod places;
mod remake;
mod report;
mod room;
mod rounds;
mod scout;
mod settings;
mod shared;
mod talk;
mod ticket;
mod trigger;
mod wish;
mod work;

pub use alpha::Alpha;
pub(crate) use permits::RENEW;
pub use settings::{Draining, Hours, Verify};
pub(crate) use shared::open_place;
pub(crate) use talk::converse;
pub use wish::Described;

use crate::service::Service;
use crate::union::Union;
use alpha::{Learner, Pace};
use board::Board;
use forebay_model::{FileId, Result, ServerId};
use gauge::{Gauge, Valve};
use line::Line;
use notes::Notes;
use permits::Permits;
use places::{Places, Terms};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::{Notify, mpsc};
use wish::Placement;

/// Fewest and most workers.
const WORKERS: std::ops::RangeInclusive<usize> = 2..=128;

/// What leaves for the back end.
pub(crate) struct Engine {
    pub(crate) settings: Draining,
    targets: Vec<String>,
    placement: Placement,
    workers: usize,
    board: Mutex<Board>,
    /// Rung when there is something to do: for one worker, who rings for the next if there was.
    bell: Condvar,
    /// Rung when a target may have a place for a writer past the buffer.
    door: Condvar,
    /// Told when there is something to say to other servers.
    talk: Notify,
    /// Told when there is room again.
    room: Notify,
    rooms: AtomicU64,
    line: Line,
    /// How often writers waited for room, and for how many nanoseconds.
    waits: AtomicU64,
    waited: AtomicU64,
    /// Nanoseconds that went into putting in order what leaves.
    indexed: AtomicU64,
    written: AtomicU64,
    freed: AtomicU64,
    /// Since when writers have waited for room and nobody has got any.
    stuck: Mutex<Option<Instant>>,
    /// Whether this is the last drain of this buffer.
    last: AtomicBool,
    /// What could not be kept.
    losses: Mutex<BTreeSet<String>>,
    notes: Mutex<Notes>,
    walks: Mutex<Vec<(u64, scout::Walk)>>,
    permits: Permits,
    parts: shared::Parts,
}

/// How many workers a server has: one for each place it may have, with several servers twice its part of them, since
/// others may have little to write, and some to write while others sync.
fn crew(targets: usize, most: usize, servers: usize) -> usize {
    let own = part(targets, most, servers).saturating_mul(if servers < 2 { 1 } else { 2 });
    own.saturating_add(targets.min(own).max(2)).clamp(*WORKERS.start(), *WORKERS.end())
}

/// A server's part of all places.
fn part(targets: usize, most: usize, servers: usize) -> usize {
    targets.saturating_mul(most).div_ceil(servers.max(1))
}

impl Engine {
    pub(crate) fn new(
        settings: Draining,
        server: ServerId,
        servers: Vec<ServerId>,
        described: Option<Described>,
        union: &Union,
    ) -> Result<Engine> {
        let (targets, now) = (union.ask(|backend| backend.targets()), Instant::now());
        let told = union.ask(|backend| backend.topology());
        let placement = Placement::new(server, targets.len(), described, told)?;
        let alpha = settings.alpha.of(&targets)?;
        let most = settings.alpha.most(&alpha) as usize;
        let count = servers.len();
        let workers = crew(targets.len(), most, count);
        let (choice, quantum, lease) = (settings.choice, settings.quantum, settings.lease());
        let places = Places::new(Terms { server, servers, alpha, choice, quantum, lease });
        let gauges = targets.iter().map(|_| Gauge::new(now)).collect();
        let mut board = Board::new(settings.order, settings.write, places, gauges);
        // Targets are not to wait until everything is made behind.
        board.preparers = (workers / 2).max(1);
        // All servers together have as many writers as they would if they asked.
        board.unasked = u32::try_from(part(targets.len(), most, count)).unwrap_or(u32::MAX);
        board.valve = settings.rate.map(|rate| Valve::new(rate.0, now));
        let pace = if count < 2 { Pace::Writes } else { Pace::Time };
        board.learner = (settings.alpha == Alpha::Learnt).then(|| Learner::new(targets.len(), pace));
        union.all_claims().into_iter().for_each(|file| board.take_up(file));
        Ok(Engine {
            settings,
            placement,
            workers,
            targets,
            board: Mutex::new(board),
            bell: Condvar::new(),
            door: Condvar::new(),
            talk: Notify::new(),
            room: Notify::new(),
            rooms: AtomicU64::new(0),
            line: Line::default(),
            waits: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            indexed: AtomicU64::new(0),
            written: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            stuck: Mutex::default(),
            last: AtomicBool::new(false),
            losses: Mutex::default(),
            // What an earlier life of the server did not bring behind is found by looking at everything.
            notes: Mutex::new(Notes::of_everything(now)),
            walks: Mutex::default(),
            permits: Permits::default(),
            parts: shared::Parts::default(),
        })
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something has a new name, or other attributes.
    pub(crate) fn note(&self, file: FileId) {
        self.notes().note(Instant::now(), file);
    }

    /// Begins to drain: the threads end when the server does, and let go of what says that something is alive.
    pub(crate) fn start(service: &Arc<Service>, alive: &mpsc::Sender<()>) {
        let Some(engine) = &service.drain else { return };
        service.store.data().be_patient(room::FRESH);
        for _ in 0..engine.workers {
            let (service, alive) = (service.clone(), alive.clone());
            tokio::task::spawn_blocking(move || {
                work::work(&service);
                drop(alive);
            });
        }
        let (service, alive) = (service.clone(), alive.clone());
        tokio::task::spawn_blocking(move || {
            scout::scout(&service);
            drop(alive);
        });
    }
}
