//! A file in the back end that is open for direct writes.

use forebay_backend::Object;
use forebay_model::Result;
use forebay_policy::drain::Layout;
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A file in the back end that is open for direct writes.
pub(crate) struct Opened {
    pub(crate) objects: Vec<Mutex<Box<dyn Object>>>,
    pub(crate) layout: Layout,
    /// With a write lease: the file's serial number in the back end, and when the lease was requested.
    pub(crate) lease: Option<(u64, Mutex<Instant>)>,
    pub(crate) used: Mutex<Instant>,
    /// Some writes may not be synced. Set while the object that was used is locked.
    pub(crate) dirty: AtomicBool,
    /// Serializes syncs.
    pub(crate) syncing: Mutex<()>,
}

impl Opened {
    pub(crate) fn new(objects: Vec<Box<dyn Object>>, layout: Layout, serial: Option<u64>) -> Opened {
        Opened {
            objects: objects.into_iter().map(Mutex::new).collect(),
            layout,
            lease: serial.map(|serial| (serial, Mutex::new(Instant::now()))),
            used: Mutex::new(Instant::now()),
            dirty: AtomicBool::new(false),
            syncing: Mutex::default(),
        }
    }

    /// One of the objects, preferably an idle one.
    pub(crate) fn object(&self) -> MutexGuard<'_, Box<dyn Object>> {
        let free = self.objects.iter().find_map(|object| object.try_lock());
        free.unwrap_or_else(|| self.objects[0].lock())
    }

    /// Syncs all writes.
    pub(crate) fn sync(&self) -> Result<()> {
        tokio::task::block_in_place(|| {
            let _one = self.syncing.lock();
            if !self.dirty.swap(false, Ordering::AcqRel) {
                return Ok(());
            }
            let synced = self.objects.iter().try_for_each(|object| object.lock().sync());
            synced.inspect_err(|_| self.dirty.store(true, Ordering::Release))
        })
    }

    /// Syncs all earlier changes of the file, also those of other programs.
    pub(crate) fn sync_one(&self) -> Result<()> {
        tokio::task::block_in_place(|| self.object().sync())
    }
}
