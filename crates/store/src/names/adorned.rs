//! Which files may have extended attributes: few do, and looking for those of a file that has none costs more than all
//! the rest of removing it.

use super::key;
use crate::meta::Kv;
use forebay_model::{FileId, Result};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

const BUCKETS: usize = 4096;

/// A mark for many files each: one that is not set is right about all of them.
pub(super) struct Adorned(Vec<AtomicBool>);

impl Adorned {
    /// The marks of a store.
    pub(super) fn load(kv: &dyn Kv) -> Result<Adorned> {
        let adorned = Adorned((0..BUCKETS).map(|_| AtomicBool::new(false)).collect());
        kv.scan(key::XATTRS, &[], &mut |key, _| {
            if let Some((file, _)) = key::split_id(key) {
                adorned.note(file);
            }
            ControlFlow::Continue(())
        })?;
        Ok(adorned)
    }

    fn mark(&self, file: FileId) -> &AtomicBool {
        &self.0[file.0 as usize % BUCKETS]
    }

    /// A file is about to get an attribute.
    pub(super) fn note(&self, file: FileId) {
        self.mark(file).store(true, Ordering::Release);
    }

    /// Whether a file may have attributes.
    pub(super) fn may_have(&self, file: FileId) -> bool {
        self.mark(file).load(Ordering::Acquire)
    }
}
