//! What becomes of a file after its last close.

use crate::backing::Backing;
use crate::cluster::StripedQueue;
use crate::file_homes::is_striped;
use crate::opens::AfterLastClose;
use forebay_model::FileId;
use forebay_store::{Body, Extent, Store};
use std::sync::Arc;

/// Persists the sizes of files after their last close, and removes files without a name.
pub(crate) struct OrphanReaper {
    pub(crate) store: Arc<Store>,
    pub(crate) backing: Option<Arc<Backing>>,
    pub(crate) queue: Arc<StripedQueue>,
    /// Whether this is the only server of its service.
    pub(crate) alone: bool,
}

impl OrphanReaper {
    /// Whether other servers must act before a file can be closed or removed.
    fn concerns_others(&self, file: FileId, about: impl FnOnce(&Extent) -> bool) -> bool {
        if self.alone {
            return false;
        }
        match self.store.names().inode(file).map(|inode| inode.body) {
            Ok(Body::File { extent, .. }) => about(&extent),
            _ => false,
        }
    }
}

impl AfterLastClose for OrphanReaper {
    fn closed(&self, file: FileId) {
        if let Err(error) = self.store.data().persist_size_soon(file) {
            tracing::error!(%file, %error, "could not persist the size of a closed file; recovery does it at the next start");
        }
        if self.concerns_others(file, |extent| is_striped(extent) && extent.is_open()) {
            self.queue.persist_size_later(file);
        }
    }

    fn reap(&self, file: FileId) -> bool {
        if self.concerns_others(file, is_striped) {
            self.queue.reap_later(file);
            return false;
        }
        // The back end may be slow, so no lock is held during the call.
        let missing_in_backing = self.backing.as_ref().map_or(Ok(()), |backing| backing.remove_private(file));
        let reaped = missing_in_backing.and_then(|()| {
            self.store.names().reap(file, |mut batch| {
                self.backing.iter().for_each(|backing| backing.reap(file, &mut batch));
                self.store.data().delete(file, batch)
            })
        });
        if let Err(error) = reaped {
            tracing::error!(%file, %error, "could not remove a file without a name; recovery does it at the next start");
        }
        true
    }
}
