//! One ring: the slabs granted to its client, and the validation of its records.

use super::RingId;
use super::note::{Header, MOST_SLABS, Note, SlabNote};
use super::sums::Sums;
use crate::data::MAX_FILE;
use crate::data::region::Region;
use forebay_model::{FileId, JobId, Span, Uid};
use forebay_shm::{Commit, Found, RING_RECORDS, Slab, Taker, Ticket};
use parking_lot::{Mutex, MutexGuard};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Largest size of a record merged from adjacent writes.
const RUN: u64 = 16 << 20;
/// A ring that is being written is consumed when this many records or slabs wait in it.
const MANY_RECORDS: u64 = RING_RECORDS / 4;
const MANY_SLABS: usize = MOST_SLABS as usize * 2 / 3;
/// A client that has published nothing for this long is neither in the middle of a write nor preempted.
const STILL: Duration = Duration::from_millis(10);

/// A ring.
pub(super) struct Channel {
    pub(super) id: RingId,
    /// Locked by its client as long as the client lives.
    pub(super) file: File,
    pub(super) taker: Taker,
    state: Mutex<State>,
    /// The current lease of its client: odd while one exists. Locked after all other locks.
    lease: Mutex<u64>,
}

/// The mutable state.
pub(super) struct State {
    pub(super) note: Note,
    pub(super) uid: Uid,
    pub(super) job: JobId,
    /// The file that it is bound to; `None` after the file is removed.
    pub(super) bound: Option<FileId>,
    pub(super) binding: u32,
    pub(super) epoch: u64,
    pub(super) slabs: Vec<Granted>,
    /// Number of slabs about to be granted.
    pub(super) granting: u32,
    /// Whether its client may write to the file.
    pub(super) writes: bool,
    pub(super) next_slab: u32,
    /// Number of grants so far: grants grow.
    pub(super) grants: u32,
    /// The time of the last grant.
    pub(super) granted: Instant,
    pub(super) last_stamp: u64,
    /// Whether its client has sent a request since it got the ring, so that the lock on the ring is meaningful.
    pub(super) confirmed: bool,
    pub(super) idle_since: Instant,
    /// The position of the writer when it was last checked, and when it was first seen there.
    pub(super) seen: (u64, Instant),
    /// Checksums of waiting records, as far as they are computed.
    pub(super) sums: Sums,
    /// Records that were rejected.
    pub(super) refused: u64,
}

/// A summary of a ring: its file, and the number of waiting records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RingStatus {
    /// No records wait.
    Empty,
    /// Records wait in a ring that is being written and has space for more.
    Moving(FileId, u64),
    /// Records wait in a ring that is idle or nearly full: it must be consumed.
    Waiting(FileId, u64),
}

impl RingStatus {
    pub(super) fn records(self) -> u64 {
        match self {
            RingStatus::Empty => 0,
            RingStatus::Moving(_, records) | RingStatus::Waiting(_, records) => records,
        }
    }
}

/// A slab that its client may fill.
pub(super) struct Granted {
    pub(super) note: SlabNote,
    pub(super) region: Arc<Region>,
    pub(super) slab: Slab,
    /// Journal slots that are left.
    pub(super) slots: Range<u32>,
    /// The earliest position of the next bytes: no byte is published twice.
    pub(super) filled: u32,
}

/// Bytes that a record publishes.
pub(super) struct Part {
    pub(super) region: Arc<Region>,
    pub(super) slot: u32,
    pub(super) ticket: Ticket,
}

/// One write of a client, collected from a ring.
pub(super) struct RingWrite {
    /// By the machine's monotonic clock.
    pub(super) stamp: u64,
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) parts: Vec<Part>,
}

impl Channel {
    pub(super) fn new(id: RingId, file: File, taker: Taker, state: State) -> Channel {
        // Leases of an earlier server process are over.
        let lease = ended(taker.lease());
        taker.set_lease(lease);
        Channel { id, file, taker, state: Mutex::new(state), lease: Mutex::new(lease) }
    }

    /// Makes the client send a request before its next write.
    pub(super) fn revoke(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        let _ = self.taker.recall(state.epoch);
    }

    /// Begins a lease.
    pub(super) fn begin_lease(&self) -> u64 {
        let mut lease = self.lease.lock();
        *lease = ended(*lease).wrapping_add(1);
        self.taker.set_lease(*lease);
        *lease
    }

    /// Ends a lease, if it is current.
    pub(super) fn end_lease(&self, which: u64) {
        let mut lease = self.lease.lock();
        if *lease == which {
            *lease = which.wrapping_add(1);
            self.taker.set_lease(*lease);
        }
    }

    /// Ends any lease of its client.
    pub(super) fn end_leases(&self) {
        let mut lease = self.lease.lock();
        *lease = ended(*lease);
        self.taker.set_lease(*lease);
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Checks whether records wait.
    pub(super) fn ring_status(&self) -> RingStatus {
        let mut state = self.lock();
        let taken = state.note.taken();
        let (Some(file), Some(waiting)) = (state.bound, self.taker.waiting(taken)) else {
            return RingStatus::Empty;
        };
        let still = state.still(taken + waiting) > STILL;
        let scarce = state.slabs.len() > MANY_SLABS;
        match waiting {
            0 => RingStatus::Empty,
            1..=MANY_RECORDS if !still && !scarce => RingStatus::Moving(file, waiting),
            _ => RingStatus::Waiting(file, waiting),
        }
    }

    /// How long its client has published nothing and was granted nothing.
    pub(super) fn still(&self) -> Duration {
        let mut state = self.lock();
        let taken = state.note.taken();
        let waiting = self.taker.waiting(taken).unwrap_or(0);
        state.still(taken + waiting).min(state.granted.elapsed())
    }

    /// Collects the writes that wait in the ring up to a record, and returns the number of their records. Invalid
    /// records are skipped and counted.
    pub(super) fn collect(&self, state: &mut State, until: u64, clock: fn() -> u64) -> (Vec<RingWrite>, u64) {
        let taken = state.note.taken();
        let Some(waiting) = self.taker.waiting(taken) else {
            state.refused += 1;
            return (Vec::new(), 0);
        };
        let waiting = waiting.min(until.saturating_sub(taken));
        // Read after the records were published: a valid stamp is never later.
        let now = clock();
        let mut writes: Vec<RingWrite> = Vec::new();
        let mut open: Option<RingWrite> = None;
        for sequence in taken..taken + waiting {
            let commit = match self.taker.read(sequence) {
                Found::Commit(commit) => Some(commit),
                Found::Torn => None,
            };
            let part = commit.and_then(|commit| Some((commit, state.publish(&commit, now)?)));
            let Some((commit, part)) = part else {
                // The other parts of the same write are dropped too.
                state.refused += 1;
                open = None;
                continue;
            };
            let mut write = match open.take() {
                Some(write) if write.stamp == commit.stamp && write.offset + write.len == commit.offset => {
                    write
                }
                Some(_) => {
                    state.refused += 1;
                    continue;
                }
                None => RingWrite { stamp: commit.stamp, offset: commit.offset, len: 0, parts: Vec::new() },
            };
            write.len += u64::from(commit.len);
            write.parts.push(part);
            match commit.more {
                true => open = Some(write),
                false => writes.push(write),
            }
        }
        state.refused += u64::from(open.is_some());
        (writes, waiting)
    }
}

/// The number that ends a lease; unchanged if there is none. In shared memory it may be any number.
pub(super) fn ended(lease: u64) -> u64 {
    lease.wrapping_add(lease % 2)
}

impl State {
    pub(super) fn new(note: Note, header: &Header, epoch: u64) -> State {
        State {
            note,
            uid: header.uid,
            job: header.job,
            bound: Some(header.file).filter(|file| file.0 != 0),
            binding: header.binding,
            epoch,
            slabs: Vec::new(),
            granting: 0,
            writes: true,
            next_slab: 0,
            grants: 0,
            granted: Instant::now(),
            last_stamp: 0,
            confirmed: false,
            idle_since: Instant::now(),
            seen: (0, Instant::now()),
            sums: Sums::default(),
            refused: 0,
        }
    }

    /// How long its client has published nothing beyond `head`.
    fn still(&mut self, head: u64) -> Duration {
        if self.seen.0 != head {
            self.seen = (head, Instant::now());
        }
        self.seen.1.elapsed()
    }

    /// Whether its client can write without a request.
    pub(super) fn may_fill(&self) -> bool {
        self.writes && (self.granting > 0 || !self.slabs.is_empty())
    }

    /// The bytes that a record publishes, if it is valid.
    fn publish(&mut self, commit: &Commit, now: u64) -> Option<Part> {
        let fits = Span::at(commit.offset, u64::from(commit.len)).is_some_and(|span| span.end <= MAX_FILE);
        let timely = commit.stamp >= self.last_stamp && commit.stamp <= now;
        if !self.writes || commit.binding != self.binding || commit.len == 0 || !fits || !timely {
            return None;
        }
        let granted = self.slabs.iter_mut().find(|granted| granted.note.number == commit.slab)?;
        if commit.position < granted.filled {
            return None;
        }
        let ticket = granted.slab.publish(commit.position, commit.len)?;
        let slot = granted.slots.next()?;
        granted.filled = commit.position + commit.len;
        self.last_stamp = commit.stamp;
        Some(Part { region: Arc::clone(&granted.region), slot, ticket })
    }

    /// Releases all slabs before this one, and returns the number of their unused bytes. Their records must have been
    /// consumed before.
    pub(super) fn release(&mut self, before: u32) -> u64 {
        let (note, mut unused) = (&self.note, 0);
        self.slabs.retain(|granted| {
            let keep = granted.note.number >= before;
            if !keep {
                note.remove_slab(granted.note.number);
                unused += u64::from(granted.note.start + granted.note.len - granted.filled);
            }
            keep
        });
        unused
    }
}

impl RingWrite {
    /// Whether another write continues this one, in the file and in the region.
    pub(super) fn continues(&self, next: &RingWrite) -> bool {
        let ([one], [other]) = (&self.parts[..], &next.parts[..]) else { return false };
        self.offset + self.len == next.offset
            && Arc::ptr_eq(&one.region, &other.region)
            && one.ticket.is_followed_by(other.ticket)
            && self.len + next.len <= RUN
    }

    pub(super) fn join(&mut self, next: &RingWrite) {
        self.len += next.len;
        self.parts[0].ticket = self.parts[0].ticket.extended(next.parts[0].ticket);
    }
}
