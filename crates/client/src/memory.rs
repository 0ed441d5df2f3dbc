//! Writes to an open file by shared memory, where the server is on this machine and runs as the same user. Reads are in
//! [`leased`](crate::leased).
//!
//! A write that finds space in its slabs, mapped, and room in its ring is done when it returns, without a system call. All
//! others map it, or ask: for a ring, for a slab, and if that comes to nothing they go by the socket, which is always right: the
//! server hears the ring before it does anything else to the file.

use crate::arrived::Arrived;
use crate::lane::{Lane, Wrote, monotonic, touch};
use crate::leased::Leased;
use crate::session::{Session, Who};
use forebay_model::{ErrorKind, Result};
use forebay_wire::{MAX_PAYLOAD, Reply, Request, RingGrant, Token};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// From so many bytes, or so many writes, on a ring is worth asking for.
const WORTH_BYTES: u64 = 64 << 10;
const WORTH_WRITES: u64 = 4;
/// What one write counts for.
const ONE_WRITE: u64 = WORTH_BYTES / WORTH_WRITES;
/// How often somebody looks whether the ring is free before he goes another way.
const SPINS: u32 = 500;
/// How often a write asks for more before it goes by the socket.
const TRIES: u32 = 12;
/// How many slabs are not asked for ahead when there was nothing to be had.
const SCARCE: u32 = 8;
/// How long it is looked whether a full ring is being heard before somebody sleeps: hearing all of it takes half as long, and
/// the runtime's timers are no finer.
const LOOK: Duration = Duration::from_millis(1);
/// Between two looks at a ring that is full or in use.
const PAUSE: Duration = Duration::from_micros(100);

/// Whether a write was done on the spot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Now {
    /// It is done. `ahead`: whoever has time should call [`File::prepare`](crate::File::prepare).
    Done {
        /// More space will be needed soon.
        ahead: bool,
    },
    /// Nothing was done: the server has to be asked.
    Ask,
}

/// The shared memory of an open file.
pub(crate) struct Memory {
    pub(crate) session: Arc<Session>,
    pub(crate) token: Token,
    pub(crate) who: Who,
    lane: Mutex<Option<Lane>>,
    /// Slabs for it that came while it was in use.
    arrived: Arrived,
    /// Held by whoever asks for a ring, a slab or a lease.
    pub(crate) asking: tokio::sync::Mutex<()>,
    /// Bytes that were written, and something for each write.
    seen: AtomicU64,
    /// How often something was written by the ring, or was tried to be.
    pub(crate) wrote: AtomicU64,
    pub(crate) leased: Leased,
    /// Somebody is about to get the next slab.
    preparing: AtomicBool,
    /// There was nothing to be had ahead: so many slabs are asked for when they are needed.
    scarce: AtomicU32,
}

/// How a slab is asked for.
#[derive(Clone, Copy)]
enum Ask {
    /// Before it is needed, while the program goes on.
    Ahead,
    /// By who waits for it, with room for so many bytes at least.
    Now { least: usize },
}

/// What an attempt came to.
enum Tried {
    Wrote(Wrote),
    Unbound,
    Locked,
}

impl Memory {
    pub(crate) fn new(session: Arc<Session>, token: Token, who: Who) -> Memory {
        Memory {
            session,
            token,
            who,
            lane: Mutex::default(),
            arrived: Arrived::default(),
            asking: tokio::sync::Mutex::default(),
            seen: AtomicU64::new(0),
            wrote: AtomicU64::new(0),
            leased: Leased::default(),
            preparing: AtomicBool::new(false),
            scarce: AtomicU32::new(0),
        }
    }

    /// The lane, unless somebody else has it: a signal handler that interrupted him would wait for ever.
    pub(crate) fn lane(&self) -> Option<MutexGuard<'_, Option<Lane>>> {
        for _ in 0..SPINS {
            if let Ok(lane) = self.lane.try_lock() {
                return Some(lane);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Maps the regions of slabs that have come ahead, and makes them ready to be filled.
    fn map_regions(&self) {
        let mut lane = self.lane();
        let Some(lane) = lane.as_deref_mut().and_then(Option::as_mut) else { return };
        let mapped = lane.map(&self.session.lanes);
        if !mapped.all {
            self.scarce.store(SCARCE, Ordering::Relaxed);
        }
        mapped.new.iter().for_each(|(window, grant)| touch(window, grant));
    }

    fn attempt(&self, offset: u64, data: &[u8]) -> Tried {
        // What was given up on a socket must not come after this.
        if self.session.pool.is_in_doubt() {
            return Tried::Locked;
        }
        let Some(mut lane) = self.lane() else { return Tried::Locked };
        let life = self.session.opens.life();
        match lane.as_mut() {
            Some(lane) if lane.life == life && lane.writes => {
                self.arrived.hand(lane);
                let wrote = lane.write(offset, data);
                if matches!(wrote, Wrote::All { ahead: true } | Wrote::NoSpace) {
                    self.arrived.will_need(lane.ring, lane.keep());
                }
                // After it counts and before it returns: whoever reads then must not find what was leased before, nor
                // what was asked for while it was on its way.
                self.wrote.fetch_add(1, Ordering::AcqRel);
                Tried::Wrote(wrote)
            }
            _ => Tried::Unbound,
        }
    }

    /// Writes all of `data` on the spot, if that is possible.
    pub(crate) fn write_now(&self, offset: u64, data: &[u8]) -> Now {
        if !self.token.access.write
            || data.len() > MAX_PAYLOAD as usize
            || crate::transfer::check_range(offset, data.len()).is_err()
        {
            return Now::Ask;
        }
        let mut full_since = None;
        loop {
            match self.attempt(offset, data) {
                Tried::Wrote(Wrote::All { ahead }) => {
                    return Now::Done { ahead: ahead && self.prepares() };
                }
                Tried::Wrote(Wrote::Full) if self.looks_on(&mut full_since) => {}
                _ => return Now::Ask,
            }
        }
    }

    /// Whether it is worth a look whether a ring is still full.
    fn looks_on(&self, full_since: &mut Option<Instant>) -> bool {
        let now = Instant::now();
        if full_since.is_none()
            && let Some(lane) = self.lane().as_deref().and_then(Option::as_ref)
        {
            lane.ring();
        }
        // Who hears it may need this processor.
        std::thread::yield_now();
        now - *full_since.get_or_insert(now) < LOOK
    }

    /// Writes all of `data`, at most as much as one payload, or nothing: then it has to go by the socket.
    pub(crate) async fn write(self: &Arc<Memory>, offset: u64, data: &[u8]) -> bool {
        let session = &self.session;
        if !self.token.access.write
            || session.lanes.is_off()
            || crate::transfer::check_range(offset, data.len()).is_err()
        {
            return false;
        }
        let seen = self.seen.fetch_add(data.len() as u64 + ONE_WRITE, Ordering::Relaxed);
        // Where it would have to make a connection first, asking for a ring takes no longer; where one waits for its next
        // file, less.
        let early = seen + (data.len() as u64) < WORTH_BYTES;
        if early && session.pool.has_idle() && !session.lanes.has_idle(self.token.uid) {
            return false;
        }
        if session.pool.is_in_doubt() && session.line().await.is_err() {
            return false;
        }
        let _asking = self.asking.lock().await;
        for _ in 0..TRIES {
            let goes_on = match self.attempt(offset, data) {
                Tried::Wrote(Wrote::All { ahead }) => {
                    if ahead && self.prepares() {
                        session.runtime.spawn(self.clone().prepare());
                    }
                    return true;
                }
                Tried::Wrote(Wrote::NoSpace) => {
                    let scarce = self.scarce.load(Ordering::Relaxed);
                    self.scarce.store(scarce.saturating_sub(1), Ordering::Relaxed);
                    self.ask(Ask::Now { least: data.len() }).await
                }
                Tried::Wrote(Wrote::Unmapped) => {
                    self.map_regions();
                    true
                }
                Tried::Wrote(Wrote::TooMuch) => false,
                Tried::Wrote(Wrote::Recalled) | Tried::Unbound => self.bind(true).await,
                Tried::Wrote(Wrote::Full) => {
                    if let Some(lane) = self.lane().as_deref().and_then(Option::as_ref) {
                        lane.ring();
                    }
                    tokio::time::sleep(PAUSE).await;
                    true
                }
                Tried::Locked => {
                    tokio::time::sleep(PAUSE).await;
                    true
                }
            };
            if !goes_on {
                return false;
            }
        }
        false
    }

    /// Whether the caller is the one to see to the next slab.
    fn prepares(&self) -> bool {
        self.scarce.load(Ordering::Relaxed) == 0
            && !self.preparing.load(Ordering::Relaxed)
            && !self.preparing.swap(true, Ordering::AcqRel)
    }

    /// Gets the next slab before it is needed.
    pub(crate) async fn prepare(self: Arc<Memory>) {
        self.get_ahead().await;
        self.preparing.store(false, Ordering::Release);
    }

    async fn get_ahead(&self) {
        if let Ok(_asking) = self.asking.try_lock() {
            let found = self.ask(Ask::Ahead).await;
            self.scarce.store(if found { 0 } else { SCARCE }, Ordering::Relaxed);
        }
    }

    /// Has a ring bound to the file; false if there is none to be had.
    pub(crate) async fn bind(&self, write: bool) -> bool {
        let life = self.session.opens.life();
        let Some(mut before) = self.lane().map(|mut lane| lane.take()) else { return true };
        before.iter_mut().for_each(|lane| self.arrived.hand(lane));
        let before = before.or_else(|| self.session.lanes.take(self.token.uid));
        let own = before.as_ref().map(|lane| lane.ring);
        let request = Request::Ring { token: self.token, own, write };
        let asked = monotonic();
        match self.session.call(&self.who, &request).await {
            // In another namespace of time than the server's, stamps would mean something else.
            Ok(Reply::Ring(grant)) if !(asked..=monotonic()).contains(&grant.clock) => {
                self.session.lanes.switch_off();
                false
            }
            Ok(Reply::Ring(grant)) => self.take(before, &grant, life, write),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.session.lanes.rest();
                false
            }
            _ => false,
        }
    }

    fn take(&self, before: Option<Lane>, grant: &RingGrant, life: u64, write: bool) -> bool {
        let mut lane = match before.filter(|lane| lane.ring == grant.ring) {
            Some(lane) => lane,
            None => match Lane::open(grant, self.token.uid) {
                Ok(lane) => lane,
                // The server's files cannot be seen from here.
                Err(_) => {
                    self.session.lanes.switch_off();
                    return false;
                }
            },
        };
        lane.bound(grant, life, write);
        match self.lane() {
            Some(mut place) => *place = Some(lane),
            None => self.session.lanes.put(lane),
        }
        true
    }

    /// Asks for a slab; false if there is none to be had.
    async fn ask(&self, how: Ask) -> bool {
        let Some((ring, keep)) = self.arrived.needed() else { return false };
        let least = match how {
            Ask::Ahead => 0,
            Ask::Now { least } => u32::try_from(least).unwrap_or(u32::MAX),
        };
        let (lanes, request) = (&self.session.lanes, Request::Slab { ring, keep, least });
        match self.session.call(&self.who, &request).await {
            Ok(Reply::Slab(grant)) => {
                let window = match how {
                    Ask::Ahead => Ok(lanes.known(&grant)),
                    Ask::Now { .. } => lanes.map(&grant).map(Some),
                };
                match window {
                    Ok(window) => {
                        window.iter().for_each(|window| touch(window, &grant));
                        self.arrived.put(ring, *grant, window)
                    }
                    // Taken back already, and its region's file is just being made anew.
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => false,
                    Err(_) => {
                        lanes.switch_off();
                        false
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Stale => {
                // It may have another by now.
                self.lane().map(|mut lane| lane.take_if(|lane| lane.ring == ring)).is_some()
            }
            _ => false,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let lane = self.lane.get_mut().ok().and_then(Option::take);
        if let Some(mut lane) = lane {
            self.arrived.hand(&mut lane);
            self.session.lanes.put(lane);
        }
    }
}

impl Session {
    /// Writes by shared memory as far as that goes, and the rest by the socket.
    pub(crate) async fn write_near(
        &self,
        memory: &Arc<Memory>,
        target: crate::flow::Target<'_>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let piece = MAX_PAYLOAD as usize;
        for (number, some) in data.chunks(piece).enumerate() {
            let at = number * piece;
            if !Box::pin(memory.write(offset + at as u64, some)).await {
                return self.write_at(target, offset + at as u64, &data[at..]).await;
            }
        }
        Ok(())
    }
}
