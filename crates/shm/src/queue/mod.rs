//! Queues: mapped files through which the threads of one process send requests to another, without a socket.
//!
//! ```text
//! 0      magic, nonce                                            written once, by the server
//! 4096   posted: one bit for every slot that holds a request
//! 8192   SLOTS slots of 2048 bytes: a line of state, lengths, client core and lease; request; reply
//! ```
//!
//! The client allocates slots in its private memory: it is the only client of the queue. Neither side trusts the file:
//! the server tracks in its own memory which slots it has taken, and copies a request once before it parses it.

mod core_affinity;
mod protocol;
mod spin;

pub use core_affinity::{Aside, Away, Core};
pub use spin::{Looked, Spin};

use crate::doorbell::Doorbell;
use crate::epochs::Lease;
use crate::map::Map;
use crate::ring::Nonce;
use protocol::{State, Words};
use rustix::io::Errno;
use rustix::thread::futex;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::Duration;

/// Number of slots of a queue.
pub const QUEUE_SLOTS: u32 = 32;
/// Maximum size of a request in bytes.
pub const MOST_REQUEST: usize = REPLY_AT - REQUEST_AT;
/// Maximum size of a reply in bytes.
pub const MOST_REPLY: usize = SLOT - REPLY_AT;
/// Size of a queue file in bytes.
pub const QUEUE_BYTES: u64 = (SLOTS_AT + QUEUE_SLOTS as usize * SLOT) as u64;

const MAGIC: u64 = u64::from_le_bytes(*b"fbqueue1");
const NONCE_AT: usize = 16;
const POSTED_AT: usize = 4096;
const SLOTS_AT: usize = 8192;
const SLOT: usize = 2048;
const STATE_AT: usize = 0;
const REQUEST_LEN_AT: usize = 4;
const REPLY_LEN_AT: usize = 8;
const CORE_AT: usize = 12;
const LEASE_AT: usize = 16;
const REQUEST_AT: usize = 64;
const REPLY_AT: usize = 1024;

/// Reply lengths with a special meaning.
const UNKNOWN: u32 = u32::MAX;
const ELSEWHERE: u32 = u32::MAX - 1;

struct Mapped {
    map: Map,
    doorbell: Arc<Doorbell>,
}

impl Mapped {
    fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page,
        // lives as long as the borrow, and is accessed only through atomics.
        unsafe { AtomicU64::from_ptr(self.map.at(at, 8).cast()) }
    }

    fn word(&self, slot: u32, at: usize) -> &AtomicU32 {
        // SAFETY: as above, at multiples of four.
        unsafe { AtomicU32::from_ptr(self.map.at(place(slot) + at, 4).cast()) }
    }

    fn lease(&self, slot: u32) -> [&AtomicU64; 2] {
        [0, 8].map(|at| self.long(place(slot) + LEASE_AT + at))
    }

    fn put(&self, slot: u32, at: usize, bytes: &[u8]) {
        let to = self.map.at(place(slot) + at, bytes.len());
        // SAFETY: `at` checked the range; `bytes` is memory of this process that the mapping does not overlap, and no
        // code in this process has a reference into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn get(&self, slot: u32, at: usize, into: &mut [u8]) {
        let from = self.map.at(place(slot) + at, into.len());
        // SAFETY: as above. Another process may change the bytes meanwhile: any byte value is valid, and the caller
        // validates the copy.
        unsafe { std::ptr::copy_nonoverlapping(from.cast_const(), into.as_mut_ptr(), into.len()) }
    }

    fn nonce(&self) -> Nonce {
        let half = |at| u128::from(self.long(at).load(Ordering::Relaxed));
        half(NONCE_AT) | half(NONCE_AT + 8) << 64
    }
}

fn place(slot: u32) -> usize {
    SLOTS_AT + slot as usize * SLOT
}

impl Words for Mapped {
    fn state(&self, slot: u32, order: Ordering) -> u32 {
        self.word(slot, STATE_AT).load(order)
    }

    fn set_state(&self, slot: u32, state: State, order: Ordering) {
        self.word(slot, STATE_AT).store(state as u32, order);
    }

    fn swap_state(&self, slot: u32, state: State) -> u32 {
        self.word(slot, STATE_AT).swap(state as u32, Ordering::AcqRel)
    }

    fn change_state(&self, slot: u32, from: State, to: State) -> bool {
        let word = self.word(slot, STATE_AT);
        word.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn post(&self, slots: u64) {
        self.long(POSTED_AT).fetch_or(slots, Ordering::AcqRel);
    }

    fn take_posted(&self) -> u64 {
        self.long(POSTED_AT).swap(0, Ordering::AcqRel)
    }

    fn is_posted(&self) -> bool {
        self.long(POSTED_AT).load(Ordering::Acquire) != 0
    }

    fn server_sleeps(&self) -> bool {
        self.doorbell.is_waited_for()
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The client side, for any number of threads of one process.
pub struct QueueClient {
    cells: Mapped,
    /// Slots in use, and the subset of them whose request was abandoned.
    claimed: AtomicU64,
    abandoned: AtomicU64,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// The reply.
    Bytes(Vec<u8>),
    /// The request must be sent over the socket: the server did not carry it out, or only in parts that may be
    /// repeated.
    Elsewhere,
    /// It is unknown whether the request was carried out.
    Unknown,
}

impl QueueClient {
    /// Opens the queue with this nonce and the doorbell of its server. A file with another nonce is refused.
    pub fn open(file: &File, doorbell: &File, nonce: Nonce) -> io::Result<Arc<QueueClient>> {
        let map = Map::new(file, QUEUE_BYTES as usize)?;
        let cells = Mapped { map, doorbell: Arc::new(Doorbell::new(doorbell)?) };
        if cells.long(0).load(Ordering::Acquire) != MAGIC || cells.nonce() != nonce {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the queue file has another magic number or nonce",
            ));
        }
        Ok(Arc::new(QueueClient { cells, claimed: AtomicU64::new(0), abandoned: AtomicU64::new(0) }))
    }

    /// Posts a request. `None` if it is too long or every slot is in use.
    #[must_use]
    pub fn ask(self: &Arc<QueueClient>, request: &[u8]) -> Option<Asked> {
        if request.len() > MOST_REQUEST {
            return None;
        }
        let slot = self.claim()?;
        self.cells.put(slot, REQUEST_AT, request);
        self.cells.word(slot, REQUEST_LEN_AT).store(request.len() as u32, Ordering::Relaxed);
        self.cells.word(slot, CORE_AT).store(Core::here().word(), Ordering::Relaxed);
        if protocol::post_request(&self.cells, slot) {
            self.cells.doorbell.wake();
        }
        Some(Asked { client: Arc::clone(self), slot })
    }

    fn claim(&self) -> Option<u32> {
        const ALL: u64 = (1 << QUEUE_SLOTS) - 1;
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let free = !claimed & ALL;
            if free == 0 {
                claimed = self.reap()?;
                continue;
            }
            let slot = free.trailing_zeros();
            let with = claimed | 1 << slot;
            match self.claimed.compare_exchange_weak(claimed, with, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Some(slot),
                Err(now) => claimed = now,
            }
        }
    }

    /// Frees abandoned slots that have a reply. Returns the slots then in use, if any were freed.
    fn reap(&self) -> Option<u64> {
        let mut found = false;
        let mut abandoned = self.abandoned.load(Ordering::Acquire);
        while abandoned != 0 {
            let slot = abandoned.trailing_zeros();
            abandoned &= abandoned - 1;
            let bit = 1 << slot;
            // The thread that clears the bit frees the slot.
            if protocol::is_answered(&self.cells, slot)
                && self.abandoned.fetch_and(!bit, Ordering::AcqRel) & bit != 0
            {
                self.claimed.fetch_and(!bit, Ordering::Release);
                found = true;
            }
        }
        found.then(|| self.claimed.load(Ordering::Relaxed))
    }
}

/// A posted request. If it is dropped, the server still carries it out and the reply is discarded.
pub struct Asked {
    client: Arc<QueueClient>,
    slot: u32,
}

impl Asked {
    /// Whether the reply is available.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        protocol::is_answered(&self.client.cells, self.slot)
    }

    /// Whether spinning for the reply is useless, because the server waits for the core of this thread.
    #[must_use]
    pub fn is_served_here(&self) -> bool {
        self.client.cells.doorbell.core().is_some_and(Core::is_here)
    }

    /// Sleeps until the reply is available or `patience` expires; may wake spuriously.
    pub fn sleep(&self, patience: Duration) {
        if !protocol::may_sleep(&self.client.cells, self.slot) {
            return;
        }
        let patience = futex::Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let word = self.client.cells.word(self.slot, STATE_AT);
        let waited = futex::wait(word, futex::Flags::empty(), State::Asleep as u32, Some(&patience));
        debug_assert!(matches!(waited, Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)));
    }

    /// The lease on the reply, if the server sent one.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        let words = self.client.cells.lease(self.slot).map(|word| word.load(Ordering::Relaxed));
        Lease::of(words).filter(|_| self.is_answered())
    }

    /// The result; `None` if there is no reply yet or the reply is malformed.
    #[must_use]
    pub fn answer(&self) -> Option<Answered> {
        if !self.is_answered() {
            return None;
        }
        match self.client.cells.word(self.slot, REPLY_LEN_AT).load(Ordering::Relaxed) {
            UNKNOWN => Some(Answered::Unknown),
            ELSEWHERE => Some(Answered::Elsewhere),
            len if len as usize <= MOST_REPLY => {
                let mut bytes = vec![0; len as usize];
                self.client.cells.get(self.slot, REPLY_AT, &mut bytes);
                Some(Answered::Bytes(bytes))
            }
            _ => None,
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let bit = 1 << self.slot;
        match self.is_answered() {
            true => self.client.claimed.fetch_and(!bit, Ordering::Release),
            false => self.client.abandoned.fetch_or(bit, Ordering::AcqRel),
        };
    }
}

/// The server side, which does not trust the file.
pub struct QueueServer {
    cells: Mapped,
    /// Slots whose request was taken and has no reply yet.
    taken: AtomicU64,
    /// The core of the last request, as the client reports it.
    from: AtomicU32,
}

/// A request that was taken; the holder must reply to it.
#[derive(PartialEq, Eq, Debug)]
pub struct Taken(u32);

impl QueueServer {
    /// Creates a queue in a file of zeros. `doorbell` wakes the thread that serves it.
    pub fn create(file: &File, doorbell: Arc<Doorbell>, nonce: Nonce) -> io::Result<QueueServer> {
        let cells = Mapped { map: Map::new(file, QUEUE_BYTES as usize)?, doorbell };
        cells.long(NONCE_AT).store(nonce as u64, Ordering::Relaxed);
        cells.long(NONCE_AT + 8).store((nonce >> 64) as u64, Ordering::Relaxed);
        cells.long(0).store(MAGIC, Ordering::Release);
        Ok(QueueServer { cells, taken: AtomicU64::new(0), from: AtomicU32::new(0) })
    }

    /// Whether a request seems to be posted.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.cells.is_posted()
    }

    /// The core of the last client thread, as far as it is known.
    #[must_use]
    pub fn asked_from(&self) -> Option<Core> {
        Core::of(self.from.load(Ordering::Relaxed))
    }

    /// Takes all posted requests, each copied once into `buffer`. Skips malformed ones and returns their number.
    pub fn take(&self, buffer: &mut Vec<u8>, mut each: impl FnMut(Taken, &[u8])) -> u64 {
        if !self.cells.is_posted() {
            return 0;
        }
        let (mut posted, mut refused) = (self.cells.take_posted(), 0);
        while posted != 0 {
            let slot = posted.trailing_zeros();
            posted &= posted - 1;
            let bit = 1 << slot;
            if slot >= QUEUE_SLOTS
                || self.taken.load(Ordering::Acquire) & bit != 0
                || !protocol::is_asked(&self.cells, slot)
            {
                refused += 1;
                continue;
            }
            let len = self.cells.word(slot, REQUEST_LEN_AT).load(Ordering::Relaxed) as usize;
            if len > MOST_REQUEST {
                refused += 1;
                continue;
            }
            self.from.store(self.cells.word(slot, CORE_AT).load(Ordering::Relaxed), Ordering::Relaxed);
            buffer.clear();
            buffer.resize(len, 0);
            self.cells.get(slot, REQUEST_AT, buffer);
            self.taken.fetch_or(bit, Ordering::AcqRel);
            each(Taken(slot), buffer);
        }
        refused
    }

    /// Sends a reply, with a lease if its content is leased. If the reply is too long, refers the client to the socket.
    pub fn answer(&self, taken: Taken, reply: &[u8], lease: Option<Lease>) {
        if reply.len() > MOST_REPLY {
            return self.finish(taken, ELSEWHERE, None);
        }
        self.cells.put(taken.0, REPLY_AT, reply);
        self.finish(taken, reply.len() as u32, lease);
    }

    /// Refers a request to the socket.
    pub fn refer(&self, taken: Taken) {
        self.finish(taken, ELSEWHERE, None);
    }

    /// Replies that it is unknown whether the request was carried out.
    pub fn give_up(&self, taken: Taken) {
        self.finish(taken, UNKNOWN, None);
    }

    #[expect(clippy::needless_pass_by_value, reason = "the reply consumes the taken request")]
    fn finish(&self, taken: Taken, len: u32, lease: Option<Lease>) {
        let Taken(slot) = taken;
        self.cells.word(slot, REPLY_LEN_AT).store(len, Ordering::Relaxed);
        for (word, value) in self.cells.lease(slot).into_iter().zip(Lease::words(lease)) {
            word.store(value, Ordering::Relaxed);
        }
        // Clear the bit before the reply is visible: the client may reuse the slot from then on.
        self.taken.fetch_and(!(1 << slot), Ordering::AcqRel);
        if protocol::answer(&self.cells, slot) {
            // An error means that the sleeper is gone.
            let _ = futex::wake(self.cells.word(slot, STATE_AT), futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests;
