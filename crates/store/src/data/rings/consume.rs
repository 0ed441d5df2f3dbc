//! Consuming rings in the background, without taking processors from writing clients.

use super::channel::{Channel, RingStatus};
use super::{Pass, RingId};
use crate::data::Data;
use crate::data::file::SizeRecord;
use crate::meta::Batch;
use forebay_model::{FileId, Result};
use forebay_shm::monotonic;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// If at least this many records were consumed at once, more are expected soon.
const HEAVY: u64 = 64;
/// This many records are consumed in negligible time.
const FEW: u64 = 4;
/// Bytes consumed at once: the longest that a client that needs space has to wait for.
const SOME: u64 = 32 << 20;
/// Sizes of closed files that are persisted at once.
const TOGETHER: usize = 256;

/// Counts a consuming thread while it exists.
pub(super) struct Consuming<'a>(&'a AtomicUsize);

impl<'a> Consuming<'a> {
    pub(super) fn begin(count: &'a AtomicUsize) -> Consuming<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Consuming(count)
    }
}

impl Drop for Consuming<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The amount of records in all rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// Nothing.
    None,
    /// Some, or only records left for later.
    Light,
    /// So many that more are expected soon.
    Heavy,
}

impl Data {
    /// Consumes the rings in which records wait, and returns how many there were. If more clients are writing than the
    /// machine has other processors for, checksums would take processor time from them: their rings are consumed when
    /// they pause, or when much waits.
    pub fn poll_rings(&self, others: usize) -> Result<Traffic> {
        let statuses: Vec<(Arc<Channel>, RingStatus)> =
            self.rings.all().into_iter().map(|channel| (channel.clone(), channel.ring_status())).collect();
        let moving =
            statuses.iter().filter(|(_, ring_status)| matches!(ring_status, RingStatus::Moving(..))).count();
        let others = others.saturating_sub(self.rings.consuming.load(Ordering::Relaxed));
        let (mut files, mut records) = (BTreeMap::new(), 0);
        for (channel, ring_status) in &statuses {
            match *ring_status {
                RingStatus::Moving(..) if moving > others => {}
                RingStatus::Moving(file, waiting) | RingStatus::Waiting(file, waiting) => {
                    let alone = self.rings.of(file).len() == 1;
                    let until = channel.sum_up(if alone { SOME } else { u64::MAX });
                    files.insert(file, (channel.id, until));
                    records += waiting;
                }
                RingStatus::Empty => {}
            }
        }
        files.into_iter().try_for_each(|(file, (ring, until))| self.poll_file_until(file, ring, until))?;
        if self.rings.dead.swap(false, Ordering::AcqRel) {
            self.reclaim_if(true);
        }
        Ok(match statuses.iter().all(|(_, ring_status)| *ring_status == RingStatus::Empty) {
            true => Traffic::None,
            false if records < HEAVY => Traffic::Light,
            false => Traffic::Heavy,
        })
    }

    /// Consumes the rings of a file: up to a record if this is its only ring, else completely. An operation that needs
    /// the file, or space, then does not wait for checksums of records published meanwhile.
    pub(super) fn poll_file_until(&self, id: FileId, ring: RingId, until: u64) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = state.lock();
        let all = Pass::all(monotonic());
        let channels = self.rings.of(id);
        let pass = match channels[..] {
            [ref only] if only.id == ring => Pass { until, ..all },
            // Of several rings, all records of each must be consumed; the given record may be in the middle of another
            // ring's write.
            _ => all,
        };
        self.consume_from(&channels, pass, id, &mut state)
    }

    /// [Persists the size](Data::persist_size) of a file after its last close: together with those of other files, when
    /// its rings were consumed. Until then recovery finds it in the regions.
    pub fn persist_size_soon(&self, id: FileId) -> Result<()> {
        if !self.rings.any() {
            return self.persist_size(id);
        }
        let Some(state) = self.in_memory(id)? else { return Ok(()) };
        let is_pending = {
            let mut state = state.lock();
            let few = self.rings.of(id).iter().all(|channel| channel.ring_status().records() <= FEW);
            if few {
                self.consume(id, &mut state)?;
            }
            !few || state.size_pending && !state.deleted
        };
        drop(state);
        if !is_pending {
            self.evict(id);
            return Ok(());
        }
        let count = {
            let mut closed = self.rings.closed.lock();
            closed.insert(id);
            closed.len()
        };
        if count >= TOGETHER { self.persist_consumed_sizes() } else { Ok(()) }
    }

    /// Persists the sizes of closed files whose rings are consumed by now. Skips failures, and returns the last one.
    pub fn persist_consumed_sizes(&self) -> Result<()> {
        let closed: Vec<FileId> = self.rings.closed.lock().iter().copied().collect();
        let is_consumed =
            |id: &FileId| self.rings.of(*id).iter().all(|channel| channel.ring_status() == RingStatus::Empty);
        let consumed: Vec<FileId> = closed.into_iter().filter(is_consumed).collect();
        let mut done = Ok(());
        for ids in consumed.chunks(TOGETHER) {
            done = self.persist_sizes(ids).and(done);
        }
        done
    }

    /// Persists the sizes of some files in one batch, and evicts them from memory if possible. Leaves files that are
    /// being used for later.
    fn persist_sizes(&self, ids: &[FileId]) -> Result<()> {
        let mut states = Vec::with_capacity(ids.len());
        for &id in ids {
            match self.files.resident(id) {
                Some(state) => states.push((id, state)),
                None => {
                    self.rings.closed.lock().remove(&id);
                }
            }
        }
        let (mut batch, mut locked, mut done) = (Batch::default(), Vec::with_capacity(states.len()), Ok(()));
        for (id, state) in &states {
            // Waiting here could deadlock: the locks of other files are held.
            let Some(file) = state.try_lock() else { continue };
            if !self.rings.closed.lock().remove(id) {
                // A ring was bound to it again.
                continue;
            }
            if file.size_pending && !file.deleted {
                match file.record(&file.index, self.incarnation, false) {
                    Ok(record) => {
                        batch.put(SizeRecord::key(*id), record.encode());
                        locked.push(file);
                    }
                    Err(error) => done = Err(error),
                }
            }
        }
        if !batch.is_empty() {
            self.kv.commit(batch)?;
            locked.iter_mut().for_each(|file| file.size_pending = false);
        }
        drop(locked);
        drop(states);
        ids.iter().for_each(|id| self.evict(*id));
        done
    }

    /// Whether a ring holds so few records that consuming it takes negligible time.
    #[must_use]
    pub fn is_quiet(&self, ring: RingId) -> bool {
        let channel = self.rings.table.lock().channels.get(&ring).cloned();
        channel.is_some_and(|channel| channel.ring_status().records() <= FEW)
    }

    /// Sleeps until a client rings because its ring fills up, at most for the given time.
    pub fn wait_for_doorbell(&self, patience: Duration) {
        match self.rings.doorbell.get() {
            Some(doorbell) => doorbell.sleep(patience, || false),
            None => std::thread::sleep(patience),
        }
    }
}
