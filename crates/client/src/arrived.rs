//! Slabs that came while their ring was being written to: whoever writes next puts them to use.
//!
//! Nobody waits here for anybody: a signal handler may have interrupted who is in the middle of it.

use crate::lane::Lane;
use forebay_shm::Window;
use forebay_wire::SlabGrant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often it is looked whether nobody else is here.
const SPINS: u32 = 500;
/// Nothing is known of any ring.
const NOTHING: u64 = u64::MAX;

/// What was granted to a ring and is not used yet, and what is to be asked for next.
pub(crate) struct Arrived {
    any: AtomicBool,
    slabs: Mutex<Vec<Slab>>,
    /// The ring, and the first of its slabs that is needed, as whoever wrote last has left them.
    need: AtomicU64,
}

/// A slab of a ring, and its region if that is mapped.
type Slab = (u32, SlabGrant, Option<Arc<Window>>);

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived { any: AtomicBool::new(false), slabs: Mutex::default(), need: AtomicU64::new(NOTHING) }
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
    pub(crate) fn put(&self, ring: u32, grant: SlabGrant, window: Option<Arc<Window>>) -> bool {
        for _ in 0..SPINS {
            if let Ok(mut slabs) = self.slabs.try_lock() {
                slabs.push((ring, grant, window));
                self.any.store(true, Ordering::Release);
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Gives a lane what has come for its ring.
    pub(crate) fn hand(&self, lane: &mut Lane) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Ok(mut slabs) = self.slabs.try_lock() {
            self.any.store(false, Ordering::Relaxed);
            let own = lane.ring;
            for (_, grant, window) in slabs.drain(..).filter(|(ring, ..)| *ring == own) {
                lane.add(grant, window);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Lanes, Wrote};
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
        let ((mut lane, taker), arrived) = (lane(dir.path(), 3), Arrived::default());
        assert_eq!((lane.keep(), arrived.needed()), (0, None));
        for (ring, number) in [(3, 5), (4, 6), (3, 7)] {
            assert!(arrived.put(ring, slab(number, 1), Some(window.clone())));
        }
        arrived.hand(&mut lane);
        arrived.hand(&mut lane);
        assert_eq!(lane.keep(), 5, "in their order, those of its own ring, once");
        arrived.will_need(lane.ring, lane.keep());
        assert_eq!(arrived.needed(), Some((3, 5)));
        lane.add(slab(8, 2), Some(window.clone()));
        assert_eq!(lane.keep(), 8, "what was granted in an earlier epoch was taken back");
        assert!(taker.recall(3));
        assert_eq!(lane.write(0, b"x"), Wrote::Recalled);
        assert_eq!(lane.keep(), 9, "the next one is not given up before it is here");
    }

    #[test]
    fn a_region_is_mapped_when_it_is_needed_and_known_from_then_on() {
        let dir = tempfile::tempdir().unwrap();
        let (_, path) = file(dir.path(), "region", u64::from(SIZE));
        let slab = |slab: u32, start: u32, path: &[u8]| SlabGrant {
            slab,
            path: path.to_vec(),
            size: SIZE,
            start,
            len: 64,
            records: 4,
            epoch: 0,
        };
        let ((mut lane, _taker), lanes) = (lane(dir.path(), 3), Lanes::default());
        let grants = [slab(0, 0, &path), slab(1, 64, &path), slab(2, 128, b"/nowhere")];
        assert!(lanes.known(&grants[0]).is_none());
        grants.iter().for_each(|grant| lane.add(grant.clone(), None));
        assert_eq!(lane.write(0, b"x"), Wrote::Unmapped);
        let mapped = lane.map(&lanes);
        let new: Vec<u32> = mapped.new.iter().map(|(_, grant)| grant.slab).collect();
        assert_eq!((new, mapped.all), (vec![0, 1], false), "the last one is as if it had not come");
        assert!(lanes.known(&grants[1]).is_some());
        assert!(matches!(lane.write(0, &[7; 100]), Wrote::All { .. }));
        lane.add(slab(3, 128, &path), None);
        assert!(matches!(lane.write(0, &[7; 20]), Wrote::All { .. }), "what is mapped is enough");
        assert_eq!(lane.write(0, &[7; 20]), Wrote::Unmapped);
    }
}
