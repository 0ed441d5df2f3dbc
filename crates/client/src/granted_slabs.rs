//! Slabs that were granted while their ring was in use. The next writer adds them to the ring.
//!
//! No function blocks: a signal handler may have interrupted the thread that holds the lock.

use crate::ring_writer::RingWriter;
use forebay_shm::RwMap;
use forebay_wire::SlabGrant;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// How often the lock is tried.
const SPINS: u32 = 500;
/// No ring is known.
const NOTHING: u64 = u64::MAX;

/// Slabs that were granted but not added to the ring, and the state from which the next request is made.
pub(crate) struct GrantedSlabs {
    any: AtomicBool,
    slabs: Mutex<Vec<Slab>>,
    /// The ring and the first of its slabs that is still needed, as of the last write.
    need: AtomicU64,
}

/// Number of the ring, the slab, and its region if that is mapped.
type Slab = (u32, SlabGrant, Option<Arc<RwMap>>);

impl Default for GrantedSlabs {
    fn default() -> GrantedSlabs {
        GrantedSlabs { any: AtomicBool::new(false), slabs: Mutex::default(), need: AtomicU64::new(NOTHING) }
    }
}

impl GrantedSlabs {
    /// Records the ring and the first slab that it still needs.
    pub(crate) fn will_need(&self, ring: u32, keep: u32) {
        self.need.store(u64::from(ring) << 32 | u64::from(keep), Ordering::Relaxed);
    }

    /// The ring and the first slab that it needs, as last recorded.
    pub(crate) fn needed(&self) -> Option<(u32, u32)> {
        let need = self.need.load(Ordering::Relaxed);
        (need != NOTHING).then_some(((need >> 32) as u32, need as u32))
    }

    /// Stores a granted slab. False if the lock is taken: the slab is dropped, and the server recalls it later.
    pub(crate) fn put(&self, ring: u32, grant: SlabGrant, rw_map: Option<Arc<RwMap>>) -> bool {
        for _ in 0..SPINS {
            if let Ok(mut slabs) = self.slabs.try_lock() {
                slabs.push((ring, grant, rw_map));
                self.any.store(true, Ordering::Release);
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Adds the stored slabs to their ring.
    pub(crate) fn add_to(&self, ring_writer: &mut RingWriter) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        if let Ok(mut slabs) = self.slabs.try_lock() {
            self.any.store(false, Ordering::Relaxed);
            let own = ring_writer.ring;
            for (_, grant, rw_map) in slabs.drain(..).filter(|(ring, ..)| *ring == own) {
                ring_writer.add(grant, rw_map);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring_writer::{SharedRings, Wrote};
    use forebay_model::Uid;
    use forebay_shm::{DOORBELL_BYTES, RING_BYTES, Taker};
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

    fn ring_writer(dir: &Path, ring: u32) -> (RingWriter, Taker) {
        let ((file, path), (_, doorbell)) =
            (file(dir, "ring", RING_BYTES), file(dir, "bell", DOORBELL_BYTES));
        let taker = Taker::create(&file, NONCE).unwrap();
        let grant = RingGrant { ring, path, doorbell, nonce: NONCE, binding: 0, clock: 0 };
        (RingWriter::open(&grant, Uid(0)).unwrap(), taker)
    }

    #[test]
    fn granted_slabs_join_their_own_ring_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let (region, path) = file(dir.path(), "region", u64::from(SIZE));
        let rw_map = Arc::new(RwMap::new(&region, SIZE).unwrap());
        let slab = |slab: u32, epoch: u64| SlabGrant {
            slab,
            path: path.clone(),
            size: SIZE,
            start: 0,
            len: 64,
            records: 4,
            epoch,
        };
        let ((mut ring_writer, taker), granted) = (ring_writer(dir.path(), 3), GrantedSlabs::default());
        assert_eq!((ring_writer.keep(), granted.needed()), (0, None));
        for (ring, number) in [(3, 5), (4, 6), (3, 7)] {
            assert!(granted.put(ring, slab(number, 1), Some(rw_map.clone())));
        }
        granted.add_to(&mut ring_writer);
        granted.add_to(&mut ring_writer);
        assert_eq!(ring_writer.keep(), 5, "slabs of its own ring, in order, once");
        granted.will_need(ring_writer.ring, ring_writer.keep());
        assert_eq!(granted.needed(), Some((3, 5)));
        ring_writer.add(slab(8, 2), Some(rw_map.clone()));
        assert_eq!(ring_writer.keep(), 8, "slabs of an earlier epoch are dropped");
        assert!(taker.recall(3));
        assert_eq!(ring_writer.write(0, b"x"), Wrote::Recalled);
        assert_eq!(ring_writer.keep(), 9, "a slab that is still to arrive is kept");
    }

    #[test]
    fn regions_are_mapped_on_demand_and_then_reused() {
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
        let ((mut ring_writer, _taker), shared_rings) = (ring_writer(dir.path(), 3), SharedRings::default());
        let grants = [slab(0, 0, &path), slab(1, 64, &path), slab(2, 128, b"/nowhere")];
        assert!(shared_rings.known(&grants[0]).is_none());
        grants.iter().for_each(|grant| ring_writer.add(grant.clone(), None));
        assert_eq!(ring_writer.write(0, b"x"), Wrote::Unmapped);
        let mapped = ring_writer.map(&shared_rings);
        let new: Vec<u32> = mapped.new.iter().map(|(_, grant)| grant.slab).collect();
        assert_eq!((new, mapped.all), (vec![0, 1], false), "the slab that cannot be mapped is dropped");
        assert!(shared_rings.known(&grants[1]).is_some());
        assert!(matches!(ring_writer.write(0, &[7; 100]), Wrote::All { .. }));
        ring_writer.add(slab(3, 128, &path), None);
        assert!(matches!(ring_writer.write(0, &[7; 20]), Wrote::All { .. }), "the mapped slabs are enough");
        assert_eq!(ring_writer.write(0, &[7; 20]), Wrote::Unmapped);
    }
}
