//! Queues: mapped files through which the threads of one process ask another, and are answered, without a socket.
//!
//! ```text
//! 0      magic, nonce                                            written once, by the clerk
//! 4096   posted: a bit for every slot in which something is asked
//! 8192   SLOTS slots of 2048 bytes: state, lengths, core of who asks, lease on a line of their own; request; reply
//! ```
//!
//! Who asks claims slots in memory of its own: nobody else asks in this queue. What is in the file is believed by
//! neither side: the clerk knows by itself which slots it has taken, and copies a request once before it looks at it.

mod aside;
mod protocol;
mod spin;

pub use aside::{Aside, Away, Core};
pub use spin::{Looked, Spin};

use crate::bell::Bell;
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

/// Slots of a queue.
pub const QUEUE_SLOTS: u32 = 32;
/// Most bytes of a request.
pub const MOST_REQUEST: usize = REPLY_AT - REQUEST_AT;
/// Most bytes of a reply.
pub const MOST_REPLY: usize = SLOT - REPLY_AT;
/// Bytes of a queue's file.
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

/// Lengths that are none.
const UNKNOWN: u32 = u32::MAX;
const ELSEWHERE: u32 = u32::MAX - 1;

struct Mapped {
    map: Map,
    bell: Arc<Bell>,
}

impl Mapped {
    fn long(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page,
        // lives as long as the borrow, and is never used but as an atomic.
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
        // SAFETY: `at` checked the range; `bytes` is memory of this process that the mapping does not overlap, and
        // nobody in this process has a reference into the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    fn get(&self, slot: u32, at: usize, into: &mut [u8]) {
        let from = self.map.at(place(slot) + at, into.len());
        // SAFETY: as above. Another process may change the bytes meanwhile: any bytes are bytes, and whoever reads them
        // judges the copy.
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

    fn clerk_sleeps(&self) -> bool {
        self.bell.is_waited_for()
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The side that asks, in any number of threads of one process.
pub struct Asker {
    cells: Mapped,
    /// Slots that are in use, and of those the ones that nobody waits for.
    claimed: AtomicU64,
    forsaken: AtomicU64,
}

/// What came of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answered {
    /// These bytes.
    Bytes(Vec<u8>),
    /// It has to be asked elsewhere: nothing was done, or nothing that matters.
    Elsewhere,
    /// Nobody knows whether it was done.
    Unknown,
}

impl Asker {
    /// Opens a queue that has this nonce, and the bell of its clerk; a file with another nonce is not the one that was
    /// meant.
    pub fn open(file: &File, bell: &File, nonce: Nonce) -> io::Result<Arc<Asker>> {
        let map = Map::new(file, QUEUE_BYTES as usize)?;
        let cells = Mapped { map, bell: Arc::new(Bell::new(bell)?) };
        if cells.long(0).load(Ordering::Acquire) != MAGIC || cells.nonce() != nonce {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not the queue that was meant"));
        }
        Ok(Arc::new(Asker { cells, claimed: AtomicU64::new(0), forsaken: AtomicU64::new(0) }))
    }

    /// Asks; `None` if the request is too long, or every slot is in use.
    #[must_use]
    pub fn ask(self: &Arc<Asker>, request: &[u8]) -> Option<Asked> {
        if request.len() > MOST_REQUEST {
            return None;
        }
        let slot = self.claim()?;
        self.cells.put(slot, REQUEST_AT, request);
        self.cells.word(slot, REQUEST_LEN_AT).store(request.len() as u32, Ordering::Relaxed);
        self.cells.word(slot, CORE_AT).store(Core::here().word(), Ordering::Relaxed);
        if protocol::ask(&self.cells, slot) {
            self.cells.bell.wake();
        }
        Some(Asked { asker: Arc::clone(self), slot })
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

    /// Frees slots that nobody waits for and that are answered; the claims after that, if there were any.
    fn reap(&self) -> Option<u64> {
        let mut found = false;
        let mut forsaken = self.forsaken.load(Ordering::Acquire);
        while forsaken != 0 {
            let slot = forsaken.trailing_zeros();
            forsaken &= forsaken - 1;
            let bit = 1 << slot;
            // Whoever takes the bit away frees the slot.
            if protocol::is_answered(&self.cells, slot)
                && self.forsaken.fetch_and(!bit, Ordering::AcqRel) & bit != 0
            {
                self.claimed.fetch_and(!bit, Ordering::Release);
                found = true;
            }
        }
        found.then(|| self.claimed.load(Ordering::Relaxed))
    }
}

/// A request that was asked. Dropped, it is still carried out, and nobody hears of it.
pub struct Asked {
    asker: Arc<Asker>,
    slot: u32,
}

impl Asked {
    /// Whether it is answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        protocol::is_answered(&self.asker.cells, self.slot)
    }

    /// Whether it is in vain to look for the answer: who would give it waits for the core that this thread runs on.
    #[must_use]
    pub fn is_served_here(&self) -> bool {
        self.asker.cells.bell.core().is_some_and(Core::is_here)
    }

    /// Sleeps until it is answered, or for so long; it may wake up for no reason.
    pub fn sleep(&self, patience: Duration) {
        if !protocol::may_sleep(&self.asker.cells, self.slot) {
            return;
        }
        let patience = futex::Timespec {
            tv_sec: i64::try_from(patience.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        let word = self.asker.cells.word(self.slot, STATE_AT);
        let waited = futex::wait(word, futex::Flags::empty(), State::Asleep as u32, Some(&patience));
        debug_assert!(matches!(waited, Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT)));
    }

    /// How long the answer counts, if that was said with it.
    #[must_use]
    pub fn lease(&self) -> Option<Lease> {
        let words = self.asker.cells.lease(self.slot).map(|word| word.load(Ordering::Relaxed));
        Lease::of(words).filter(|_| self.is_answered())
    }

    /// What came of it; `None` before it is answered, and where the answer is none.
    #[must_use]
    pub fn answer(&self) -> Option<Answered> {
        if !self.is_answered() {
            return None;
        }
        match self.asker.cells.word(self.slot, REPLY_LEN_AT).load(Ordering::Relaxed) {
            UNKNOWN => Some(Answered::Unknown),
            ELSEWHERE => Some(Answered::Elsewhere),
            len if len as usize <= MOST_REPLY => {
                let mut bytes = vec![0; len as usize];
                self.asker.cells.get(self.slot, REPLY_AT, &mut bytes);
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
            true => self.asker.claimed.fetch_and(!bit, Ordering::Release),
            false => self.asker.forsaken.fetch_or(bit, Ordering::AcqRel),
        };
    }
}

/// The side that answers, and believes nothing.
pub struct Clerk {
    cells: Mapped,
    /// Slots whose request was taken and is not answered.
    taken: AtomicU64,
    /// The core that the last request came from, as it says.
    from: AtomicU32,
}

/// A request that was taken; whoever has it answers it.
#[derive(PartialEq, Eq, Debug)]
pub struct Taken(u32);

impl Clerk {
    /// Makes a queue in a file of zeros; `bell` is what wakes whoever serves it.
    pub fn create(file: &File, bell: Arc<Bell>, nonce: Nonce) -> io::Result<Clerk> {
        let cells = Mapped { map: Map::new(file, QUEUE_BYTES as usize)?, bell };
        cells.long(NONCE_AT).store(nonce as u64, Ordering::Relaxed);
        cells.long(NONCE_AT + 8).store((nonce >> 64) as u64, Ordering::Relaxed);
        cells.long(0).store(MAGIC, Ordering::Release);
        Ok(Clerk { cells, taken: AtomicU64::new(0), from: AtomicU32::new(0) })
    }

    /// Whether something seems to be asked.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.cells.is_posted()
    }

    /// Where who asked last was running, as far as that is known.
    #[must_use]
    pub fn asked_from(&self) -> Option<Core> {
        Core::of(self.from.load(Ordering::Relaxed))
    }

    /// Takes all that is asked, each copied once into `buffer`. What is not as it should be is passed over: says how
    /// often that was.
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

    /// Answers a request with bytes, or says that it has to be asked elsewhere if they are too many; with a lease, if what
    /// they say is leased.
    pub fn answer(&self, taken: Taken, reply: &[u8], lease: Option<Lease>) {
        if reply.len() > MOST_REPLY {
            return self.finish(taken, ELSEWHERE, None);
        }
        self.cells.put(taken.0, REPLY_AT, reply);
        self.finish(taken, reply.len() as u32, lease);
    }

    /// Says that a request has to be asked elsewhere.
    pub fn refer(&self, taken: Taken) {
        self.finish(taken, ELSEWHERE, None);
    }

    /// Says that nobody knows whether a request was carried out.
    pub fn give_up(&self, taken: Taken) {
        self.finish(taken, UNKNOWN, None);
    }

    #[expect(clippy::needless_pass_by_value, reason = "who has answered a request has it no more")]
    fn finish(&self, taken: Taken, len: u32, lease: Option<Lease>) {
        let Taken(slot) = taken;
        self.cells.word(slot, REPLY_LEN_AT).store(len, Ordering::Relaxed);
        for (word, value) in self.cells.lease(slot).into_iter().zip(Lease::words(lease)) {
            word.store(value, Ordering::Relaxed);
        }
        // Before it is answered: from then on it may be asked anew.
        self.taken.fetch_and(!(1 << slot), Ordering::AcqRel);
        if protocol::answer(&self.cells, slot) {
            // Nobody there any more: nobody to wake.
            let _ = futex::wake(self.cells.word(slot, STATE_AT), futex::Flags::empty(), 1);
        }
    }
}

#[cfg(test)]
mod tests;
