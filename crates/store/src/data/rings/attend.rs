//! Who hears rings when nobody else needs what is in them: as soon as that takes nobody's processor.

use super::channel::{Channel, Glance};
use super::{Pass, RingId};
use crate::data::clock::monotonic;
use crate::data::{Data, lock};
use forebay_model::{FileId, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Records that are heard at once, from which on more of them are expected at once.
const HEAVY: u64 = 64;
/// Records that are heard in no time.
const FEW: u64 = 4;
/// Bytes that are heard at once: a client that needs space meanwhile waits for no more.
const SOME: u64 = 32 << 20;

/// Counts somebody who hears, for as long as he does.
pub(super) struct Hearing<'a>(&'a AtomicUsize);

impl<'a> Hearing<'a> {
    pub(super) fn begin(count: &'a AtomicUsize) -> Hearing<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Hearing(count)
    }
}

impl Drop for Hearing<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How much there was in all rings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Traffic {
    /// Nothing.
    None,
    /// Something, or only what is left for later.
    Light,
    /// So much that there will be more in a moment.
    Heavy,
}

impl Data {
    /// Hears the rings in which something waits, and says how much that was. Where more clients are writing than the
    /// machine has other processors for, it would be their time that checksums take: what they write is heard when
    /// they pause, or when there is much of it.
    pub fn attend(&self, others: usize) -> Result<Traffic> {
        let glances: Vec<(Arc<Channel>, Glance)> =
            self.rings.all().into_iter().map(|channel| (channel.clone(), channel.glance())).collect();
        let moving = glances.iter().filter(|(_, glance)| matches!(glance, Glance::Moving(..))).count();
        let others = others.saturating_sub(self.rings.hearing.load(Ordering::Relaxed));
        let (mut files, mut records) = (BTreeMap::new(), 0);
        for (channel, glance) in &glances {
            match *glance {
                Glance::Moving(..) if moving > others => {}
                Glance::Moving(file, waiting) | Glance::Waiting(file, waiting) => {
                    let alone = self.rings.of(file).len() == 1;
                    let until = channel.sum_up(if alone { SOME } else { u64::MAX });
                    files.insert(file, (channel.id, until));
                    records += waiting;
                }
                Glance::Empty => {}
            }
        }
        files.into_iter().try_for_each(|(file, (ring, until))| self.listen_until(file, ring, until))?;
        if self.rings.dead.swap(false, Ordering::AcqRel) {
            self.reclaim_if(true);
        }
        Ok(match glances.iter().all(|(_, glance)| *glance == Glance::Empty) {
            true => Traffic::None,
            false if records < HEAVY => Traffic::Light,
            false => Traffic::Heavy,
        })
    }

    /// Hears a file: up to a record if this is its only ring, else everything. So whoever needs the file, or space, does
    /// not wait for checksums of what is written meanwhile.
    pub(super) fn listen_until(&self, id: FileId, ring: RingId, until: u64) -> Result<()> {
        let state = self.files.get(id, || self.load(id))?;
        let mut state = lock(&state);
        self.before.before(id);
        let all = Pass::all(monotonic());
        let channels = self.rings.of(id);
        let pass = match channels[..] {
            [ref only] if only.id == ring => Pass { until, ..all },
            // Of several all that each of them holds has to be known; another may end in the middle of a write there.
            _ => all,
        };
        self.hear_from(&channels, pass, id, &mut state)
    }

    /// [Settles](Data::settle) a file after its last close: now, or where that would take long, when what waits in its rings
    /// was heard.
    pub fn settle_soon(&self, id: FileId) -> Result<()> {
        if self.rings.of(id).iter().all(|channel| channel.glance().records() <= FEW) {
            return self.settle(id);
        }
        lock(&self.rings.closed).insert(id);
        Ok(())
    }

    /// Settles what was closed and is heard by now. What cannot be is given up, and the last reason told.
    pub fn settle_heard(&self) -> Result<()> {
        let closed: Vec<FileId> = lock(&self.rings.closed).iter().copied().collect();
        let mut done = Ok(());
        for id in closed {
            if self.rings.of(id).iter().all(|channel| channel.glance() == Glance::Empty) {
                // Before it is settled: it may be closed once more meanwhile.
                lock(&self.rings.closed).remove(&id);
                done = self.settle(id).and(done);
            }
        }
        done
    }

    /// Whether there is so little in a ring that it is heard in no time.
    #[must_use]
    pub fn is_quiet(&self, ring: RingId) -> bool {
        let channel = lock(&self.rings.table).channels.get(&ring).cloned();
        channel.is_some_and(|channel| channel.glance().records() <= FEW)
    }

    /// Sleeps until a client rings because its ring fills up, or for so long.
    pub fn doze(&self, patience: Duration) {
        match self.rings.bell.get() {
            Some(bell) => bell.sleep(patience, || false),
            None => std::thread::sleep(patience),
        }
    }
}
