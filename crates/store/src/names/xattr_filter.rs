//! A filter of the files that may have extended attributes. Few files have any, and searching the store for them would
//! dominate the cost of removing a file.

use super::key;
use crate::meta::Kv;
use forebay_model::{FileId, Result};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

const BUCKETS: usize = 4096;

/// One flag for many files each: if it is clear, none of them has attributes.
pub(super) struct XattrFilter(Vec<AtomicBool>);

impl XattrFilter {
    /// Loads the flags from a store.
    pub(super) fn load(kv: &dyn Kv) -> Result<XattrFilter> {
        let xattr_filter = XattrFilter((0..BUCKETS).map(|_| AtomicBool::new(false)).collect());
        kv.scan(key::XATTRS, &[], &mut |key, _| {
            if let Some((file, _)) = key::split_id(key) {
                xattr_filter.note(file);
            }
            ControlFlow::Continue(())
        })?;
        Ok(xattr_filter)
    }

    fn mark(&self, file: FileId) -> &AtomicBool {
        &self.0[file.0 as usize % BUCKETS]
    }

    /// Records that a file is about to get an attribute.
    pub(super) fn note(&self, file: FileId) {
        self.mark(file).store(true, Ordering::Release);
    }

    /// Whether a file may have attributes.
    pub(super) fn may_have(&self, file: FileId) -> bool {
        self.mark(file).load(Ordering::Acquire)
    }
}
