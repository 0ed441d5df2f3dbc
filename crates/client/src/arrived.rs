//! Slabs that came while their ring was being written to: whoever writes next puts them to use.
//!
//! Nobody waits here for anybody: a signal handler may have interrupted who is in the middle of it.

use crate::lane::{Lane, Lanes};
use forebay_shm::Window;
use forebay_wire::SlabGrant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How often it is looked whether nobody else is here.
const SPINS: u32 = 500;
/// Nothing is known of any ring.
const NOTHING: u64 = u64::MAX;

/// What was granted to a ring and is not used yet, and what is to be asked for next.
pub(crate) struct Arrived {
    any: AtomicBool,
    /// Somebody who waits anyway has to map the region of one.
    unmapped: AtomicBool,
    slabs: Mutex<Vec<Slab>>,
    /// The ring, and the first of its slabs that is needed, as whoever wrote last has left them.
    need: AtomicU64,
}

/// A slab of a ring, and its region if that is mapped.
struct Slab {
    ring: u32,
    grant: SlabGrant,
    window: Option<Arc<Window>>,
}

impl Default for Arrived {
    fn default() -> Arrived {
        let (any, unmapped) = (AtomicBool::new(false), AtomicBool::new(false));
        Arrived { any, unmapped, slabs: Mutex::default(), need: AtomicU64::new(NOTHING) }
    }
}

impl Arrived {
    /// Says what a ring will need; its owner has done with all slabs before `keep`.
    pub(crate) fn will_need(&self, ring: u32, keep: u32) {
        self.need.store(u64::from(ring) << 32 | u64::from(keep), Ordering::Relaxed);
    }

    /// What was said last, as ring and first slab that is needed.
    pub(crate) fn needed(&self) -> Option<(u32, u32)> {
        let need = self.need.load(Ordering::Relaxed);
        (need != NOTHING).then_some(((need >> 32) as u32, need as u32))
    }

    /// A slab has come. False if nobody can take it in: it is as if it had not, and the server takes it back one day.
    /// Without its region, it waits for [`Arrived::map`].
    pub(crate) fn put(&self, ring: u32, grant: SlabGrant, window: Option<Arc<Window>>) -> bool {
        for _ in 0..SPINS {
            if let Ok(mut slabs) = self.slabs.try_lock() {
                match window.is_some() {
                    true => self.any.store(true, Ordering::Release),
                    false => self.unmapped.store(true, Ordering::Release),
                }
                slabs.push(Slab { ring, grant, window });
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Gives a lane what has come for its ring, up to the first whose region is not mapped.
    pub(crate) fn hand(&self, lane: &mut Lane) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Ok(mut slabs) = self.slabs.try_lock() {
            self.any.store(false, Ordering::Relaxed);
            let mapped = slabs.iter().position(|slab| slab.window.is_none()).unwrap_or(slabs.len());
            for Slab { ring, grant, window } in slabs.drain(..mapped) {
                if let Some(window) = window.filter(|_| ring == lane.ring) {
                    lane.add(&grant, window);
                }
            }
        }
    }

    /// Whether a region has to be mapped.
    pub(crate) fn is_unmapped(&self) -> bool {
        self.unmapped.load(Ordering::Acquire)
    }

    /// Maps regions; says which slabs in them are new here. One whose region cannot be mapped is as if it had not come.
    pub(crate) fn map(&self, lanes: &Lanes) -> Vec<(Arc<Window>, SlabGrant)> {
        if !self.is_unmapped() {
            return Vec::new();
        }
        let take = |mut slabs: MutexGuard<'_, Vec<Slab>>| {
            self.unmapped.store(false, Ordering::Relaxed);
            std::mem::take(&mut *slabs)
        };
        // Not while others wait for it.
        let Ok(taken) = self.slabs.try_lock().map(take) else { return Vec::new() };
        let (mut new, mut mapped) = (Vec::new(), Vec::with_capacity(taken.len()));
        for Slab { ring, grant, window } in taken {
            let known = window.is_some();
            let Ok(window) = window.map_or_else(|| lanes.map(&grant), Ok) else { continue };
            if !known {
                new.push((window.clone(), grant.clone()));
            }
            mapped.push(Slab { ring, grant, window: Some(window) });
        }
        self.put_back(mapped);
        new
    }

    /// Before what has come since.
    fn put_back(&self, first: Vec<Slab>) {
        for _ in 0..SPINS {
            if let Ok(mut slabs) = self.slabs.try_lock() {
                let later = std::mem::replace(&mut *slabs, first);
                slabs.extend(later);
                self.any.store(true, Ordering::Release);
                return;
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::Wrote;
    use forebay_model::Uid;
    use forebay_shm::{BELL_BYTES, RING_BYTES, Taker};
    use forebay_wire::RingGrant;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    const NONCE: u128 = 7;
    const SIZE: u32 = 4096;

    fn file(dir: &Path, name: &str, size: u64) -> (File, Vec<u8>) {
        let path = dir.join(name);
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        file.set_len(size).unwrap();
        (file, path.as_os_str().as_bytes().to_vec())
    }

    fn lane(dir: &Path, ring: u32) -> (Lane, Taker) {
        let ((file, path), (_, bell)) = (file(dir, "ring", RING_BYTES), file(dir, "bell", BELL_BYTES));
        let taker = Taker::create(&file, NONCE).unwrap();
        let grant = RingGrant { ring, path, bell, nonce: NONCE, binding: 0, clock: 0 };
        (Lane::open(&grant, Uid(0)).unwrap(), taker)
    }

    #[test]
    fn what_comes_is_for_its_ring_and_never_before_what_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (region, path) = file(dir.path(), "region", u64::from(SIZE));
        let window = Arc::new(Window::new(&region, SIZE).unwrap());
        let slab = |slab: u32, epoch: u64| SlabGrant {
            slab,
            path: path.clone(),
            size: SIZE,
            start: 0,
            len: 64,
            records: 4,
            epoch,
        };
        let ((mut lane, taker), arrived, lanes) = (lane(dir.path(), 3), Arrived::default(), Lanes::default());
        assert_eq!((lane.keep(), arrived.needed()), (0, None));
        for (ring, number, window) in
            [(3, 5, None), (4, 6, Some(window.clone())), (3, 7, Some(window.clone()))]
        {
            assert!(arrived.put(ring, slab(number, 1), window));
        }
        arrived.hand(&mut lane);
        assert_eq!(lane.keep(), 0, "not before the one that came first");
        assert!(arrived.is_unmapped() && lanes.known(&slab(8, 1)).is_none());
        let new: Vec<u32> = arrived.map(&lanes).into_iter().map(|(_, grant)| grant.slab).collect();
        assert_eq!(new, [5], "the others were mapped");
        assert!(!arrived.is_unmapped() && lanes.known(&slab(8, 1)).is_some());
        arrived.hand(&mut lane);
        arrived.hand(&mut lane);
        assert_eq!(lane.keep(), 5, "in their order, those of its own ring, once");
        arrived.will_need(lane.ring, lane.keep());
        assert_eq!(arrived.needed(), Some((3, 5)));
        lane.add(&slab(8, 2), window.clone());
        assert_eq!(lane.keep(), 8, "what was granted in an earlier epoch was taken back");
        assert!(taker.recall(3));
        assert_eq!(lane.write(0, b"x"), Wrote::Recalled);
        assert_eq!(lane.keep(), 9, "the next one is not given up before it is here");
    }
}
