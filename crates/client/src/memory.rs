//! Writes to an open file by shared memory, if the server is on this machine and runs as the same user.
//! [`leased`](crate::leased) has the reads.
//!
//! A write that finds space in mapped slabs and free records in its ring is complete when it returns, without a system
//! call. Other writes first map a slab, or request a ring or a slab. If that fails they use the socket, which is always
//! correct: the server consumes the ring before any other operation on the file.

use crate::granted_slabs::GrantedSlabs;
use crate::leased::Leased;
use crate::open_with_ring::BoundRing;
use crate::ring_writer::{RingWriter, Wrote, touch};
use crate::session::{Session, Who};
use forebay_model::{ErrorKind, Result};
use forebay_shm::monotonic;
use forebay_wire::{MAX_PAYLOAD, Reply, Request, RingGrant, Token};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// After this number of bytes or writes, a ring is worth a request.
const WORTH_BYTES: u64 = 64 << 10;
const WORTH_WRITES: u64 = 4;
/// The number of bytes that one write counts for.
const ONE_WRITE: u64 = WORTH_BYTES / WORTH_WRITES;
/// How often a thread tries the ring's lock before it uses the socket.
const SPINS: u32 = 500;
/// How often a write requests more space before it uses the socket.
const TRIES: u32 = 12;
/// Number of slabs that are not requested ahead after a request found no space.
const SCARCE: u32 = 8;
/// How long a writer polls a full ring before it sleeps. The server consumes a full ring in half that time, and the
/// runtime's timers are no finer.
const POLL_TIME: Duration = Duration::from_millis(1);
/// Pause between two polls of a ring that is full or in use.
const PAUSE: Duration = Duration::from_micros(100);

/// Whether a write was done without a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Now {
    /// The data is written. `ahead`: the caller should call [`File::prepare`](crate::File::prepare) when it has time.
    Done {
        /// More space will be needed soon.
        ahead: bool,
    },
    /// Nothing was written; a request is necessary.
    Ask,
}

/// The shared-memory state of an open file.
pub(crate) struct Memory {
    pub(crate) session: Arc<Session>,
    pub(crate) token: Token,
    pub(crate) who: Who,
    ring_writer: Mutex<Option<RingWriter>>,
    /// Slabs that were granted while the ring was in use.
    granted_slabs: GrantedSlabs,
    /// Held by the task that requests a ring, a slab or a lease.
    pub(crate) request_lock: tokio::sync::Mutex<()>,
    /// Bytes written, plus [`ONE_WRITE`] for each write.
    seen: AtomicU64,
    /// Number of writes by the ring, failed ones included.
    pub(crate) own_writes: AtomicU64,
    pub(crate) leased: Leased,
    /// Whether a task is requesting the next slab.
    preparing: AtomicBool,
    /// Number of slabs that are not requested ahead, because a request found no space.
    scarce: AtomicU32,
}

/// When a slab is requested.
#[derive(Clone, Copy)]
enum SlabRequest {
    /// Before it is needed, while the program continues.
    Ahead,
    /// By a waiting writer, with space for at least `least` bytes.
    Now { least: usize },
}

/// Outcome of an attempt.
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
            ring_writer: Mutex::default(),
            granted_slabs: GrantedSlabs::default(),
            request_lock: tokio::sync::Mutex::default(),
            seen: AtomicU64::new(0),
            own_writes: AtomicU64::new(0),
            leased: Leased::default(),
            preparing: AtomicBool::new(false),
            scarce: AtomicU32::new(0),
        }
    }

    /// The same, with the ring that was bound when the file was opened.
    pub(crate) fn with_ring(self, bound: Option<BoundRing>) -> Memory {
        if let (Some(BoundRing { ring_writer, extents }), Some(mut place)) = (bound, self.ring_writer()) {
            if let Some(grant) = extents {
                self.keep_lease(&grant, ring_writer.reader(), ring_writer.connection_epoch, 0);
            }
            *place = Some(ring_writer);
        }
        self
    }

    /// The ring, unless another thread uses it. Never blocks: a signal handler would deadlock with the thread that it
    /// interrupted.
    pub(crate) fn ring_writer(&self) -> Option<MutexGuard<'_, Option<RingWriter>>> {
        for _ in 0..SPINS {
            if let Ok(ring_writer) = self.ring_writer.try_lock() {
                return Some(ring_writer);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Drops the ring and the read lease.
    pub(crate) fn release(&self) {
        self.leased.clear();
        if let Some(mut ring_writer) = self.ring_writer().and_then(|mut ring_writer| ring_writer.take()) {
            self.granted_slabs.add_to(&mut ring_writer);
        }
    }

    /// Maps and populates the regions of slabs that were granted ahead.
    fn map_regions(&self) {
        let mut ring_writer = self.ring_writer();
        let Some(ring_writer) = ring_writer.as_deref_mut().and_then(Option::as_mut) else { return };
        let mapped = ring_writer.map(&self.session.shared_rings);
        if !mapped.all {
            self.scarce.store(SCARCE, Ordering::Relaxed);
        }
        mapped.new.iter().for_each(|(rw_map, grant)| touch(rw_map, grant));
    }

    fn attempt(&self, offset: u64, data: &[u8]) -> Tried {
        // Requests on abandoned sockets must not run after this write.
        if self.session.pool.has_abandoned() {
            return Tried::Locked;
        }
        let Some(mut ring_writer) = self.ring_writer() else { return Tried::Locked };
        let connection_epoch = self.session.opens.connection_epoch();
        match ring_writer.as_mut() {
            Some(ring_writer) if ring_writer.connection_epoch == connection_epoch && ring_writer.writes => {
                self.granted_slabs.add_to(ring_writer);
                let wrote = ring_writer.write(offset, data);
                if matches!(wrote, Wrote::All { ahead: true } | Wrote::NoSpace) {
                    self.granted_slabs.will_need(ring_writer.ring, ring_writer.keep());
                }
                // After the write is visible and before it returns: later reads must not use a lease granted before the
                // write, or requested while the write was in progress.
                self.own_writes.fetch_add(1, Ordering::AcqRel);
                Tried::Wrote(wrote)
            }
            _ => Tried::Unbound,
        }
    }

    /// Writes all of `data` if that is possible without a request.
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
                Tried::Wrote(Wrote::Full) if self.keeps_polling(&mut full_since) => {}
                _ => return Now::Ask,
            }
        }
    }

    /// Whether to continue polling a full ring.
    fn keeps_polling(&self, full_since: &mut Option<Instant>) -> bool {
        let now = Instant::now();
        if full_since.is_none()
            && let Some(ring_writer) = self.ring_writer().as_deref().and_then(Option::as_ref)
        {
            ring_writer.ring();
        }
        // The server's consumer may need this processor.
        std::thread::yield_now();
        now - *full_since.get_or_insert(now) < POLL_TIME
    }

    /// Writes all of `data` (at most one payload) or nothing. If it returns false, the caller uses the socket.
    pub(crate) async fn write(self: &Arc<Memory>, offset: u64, data: &[u8]) -> bool {
        let session = &self.session;
        if !self.token.access.write
            || session.shared_rings.is_off()
            || crate::transfer::check_range(offset, data.len()).is_err()
        {
            return false;
        }
        let seen = self.seen.fetch_add(data.len() as u64 + ONE_WRITE, Ordering::Relaxed);
        // Requesting a ring takes no longer than opening a data connection, and less if an idle ring is available.
        let early = seen + (data.len() as u64) < WORTH_BYTES
            && !session.shared_rings.last_was_written.load(Ordering::Relaxed);
        if early && session.pool.has_idle() && !session.shared_rings.has_idle(self.token.uid) {
            return false;
        }
        if session.pool.has_abandoned() && session.control().await.is_err() {
            return false;
        }
        let _lock = self.request_lock.lock().await;
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
                    self.request_slab(SlabRequest::Now { least: data.len() }).await
                }
                Tried::Wrote(Wrote::Unmapped) => {
                    self.map_regions();
                    true
                }
                Tried::Wrote(Wrote::TooMuch) => false,
                Tried::Wrote(Wrote::Recalled) | Tried::Unbound => self.bind(true).await,
                Tried::Wrote(Wrote::Full) => {
                    if let Some(ring_writer) = self.ring_writer().as_deref().and_then(Option::as_ref) {
                        ring_writer.ring();
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

    /// Whether the caller should request the next slab.
    fn prepares(&self) -> bool {
        self.scarce.load(Ordering::Relaxed) == 0
            && !self.preparing.load(Ordering::Relaxed)
            && !self.preparing.swap(true, Ordering::AcqRel)
    }

    /// Requests the next slab before it is needed.
    pub(crate) async fn prepare(self: Arc<Memory>) {
        self.get_ahead().await;
        self.preparing.store(false, Ordering::Release);
    }

    async fn get_ahead(&self) {
        if let Ok(_lock) = self.request_lock.try_lock() {
            let found = self.request_slab(SlabRequest::Ahead).await;
            self.scarce.store(if found { 0 } else { SCARCE }, Ordering::Relaxed);
        }
    }

    /// Binds a ring to the file; false if none is available.
    pub(crate) async fn bind(&self, write: bool) -> bool {
        let connection_epoch = self.session.opens.connection_epoch();
        let Some(mut before) = self.ring_writer().map(|mut ring_writer| ring_writer.take()) else {
            return true;
        };
        before.iter_mut().for_each(|ring_writer| self.granted_slabs.add_to(ring_writer));
        let before = before.or_else(|| self.session.shared_rings.take(self.token.uid));
        let own = before.as_ref().map(|ring_writer| ring_writer.ring);
        let request = Request::Ring { token: self.token, own, write };
        let asked = monotonic();
        match self.session.call(&self.who, &request).await {
            // Client and server are in different time namespaces, so time stamps are not comparable.
            Ok(Reply::Ring(grant)) if !(asked..=monotonic()).contains(&grant.clock) => {
                self.session.shared_rings.switch_off();
                false
            }
            Ok(Reply::Ring(grant)) => self.take(before, &grant, connection_epoch, write),
            Err(error) if error.kind() == ErrorKind::Unsupported => {
                self.session.shared_rings.rest();
                false
            }
            // For example while the file is mapped. Avoids a request before every write.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.seen.store(0, Ordering::Relaxed);
                false
            }
            _ => false,
        }
    }

    fn take(
        &self,
        before: Option<RingWriter>,
        grant: &RingGrant,
        connection_epoch: u64,
        write: bool,
    ) -> bool {
        let mut ring_writer = match before.filter(|ring_writer| ring_writer.ring == grant.ring) {
            Some(ring_writer) => ring_writer,
            None => match RingWriter::open(grant, self.token.uid) {
                Ok(ring_writer) => ring_writer,
                Err(error) => {
                    self.session.shared_rings.unusable(&error);
                    return false;
                }
            },
        };
        ring_writer.bound(grant, connection_epoch, write);
        match self.ring_writer() {
            Some(mut place) => *place = Some(ring_writer),
            None => self.session.shared_rings.put(ring_writer),
        }
        true
    }

    /// Requests a slab; false if none is available.
    async fn request_slab(&self, how: SlabRequest) -> bool {
        let Some((ring, keep)) = self.granted_slabs.needed() else { return false };
        let least = match how {
            SlabRequest::Ahead => 0,
            SlabRequest::Now { least } => u32::try_from(least).unwrap_or(u32::MAX),
        };
        let (shared_rings, request) = (&self.session.shared_rings, Request::Slab { ring, keep, least });
        match self.session.call(&self.who, &request).await {
            Ok(Reply::Slab(grant)) => {
                let rw_map = match how {
                    SlabRequest::Ahead => Ok(shared_rings.known(&grant)),
                    SlabRequest::Now { .. } => shared_rings.map(&grant).map(Some),
                };
                match rw_map {
                    Ok(rw_map) => {
                        rw_map.iter().for_each(|rw_map| touch(rw_map, &grant));
                        self.granted_slabs.put(ring, *grant, rw_map)
                    }
                    // The slab was recalled already, and the file of its region is being recreated.
                    Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => false,
                    Err(error) => {
                        shared_rings.unusable(&error);
                        false
                    }
                }
            }
            Err(error) if error.kind() == ErrorKind::Stale => {
                // The file may have another ring by now.
                self.ring_writer()
                    .map(|mut ring_writer| ring_writer.take_if(|ring_writer| ring_writer.ring == ring))
                    .is_some()
            }
            _ => false,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let shared_rings = &self.session.shared_rings;
        if self.token.access.write {
            let was_written = *self.seen.get_mut() > 0 || *self.own_writes.get_mut() > 0;
            shared_rings.last_was_written.store(was_written, Ordering::Relaxed);
        } else if self.token.access.read {
            shared_rings.last_was_read.store(self.leased.was_read(), Ordering::Relaxed);
        }
        let ring_writer = self.ring_writer.get_mut().ok().and_then(Option::take);
        if let Some(mut ring_writer) = ring_writer {
            self.granted_slabs.add_to(&mut ring_writer);
            self.session.shared_rings.put(ring_writer);
        }
    }
}

impl Session {
    /// Writes by shared memory as far as possible, and the rest by the socket.
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
