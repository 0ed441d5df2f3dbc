//! This server's bytes of a file, which go when the file was removed or lost elsewhere.

use crate::opens::Opens;
use crate::session::Sessions;
use crate::writers::Writers;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::{Batch, Store};
use std::sync::Arc;

/// The bytes that this server holds, and who uses them.
pub(crate) struct LocalBytes {
    pub(crate) store: Arc<Store>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) opens: Arc<Opens>,
    pub(crate) writers: Arc<Writers>,
}

impl LocalBytes {
    /// Deletes this server's bytes of a file that was removed, or was lost with the store of its authority.
    pub(super) fn forget(&self, file: FileId) -> Result<()> {
        self.demand_closed(file)?;
        self.store.reshapes().delete(self.store.data(), file, Batch::default())?;
        self.writers.drop_direct(file);
        Ok(())
    }

    /// Drops what ended sessions had open of a file; fails while a client uses its bytes.
    pub(super) fn demand_closed(&self, file: FileId) -> Result<()> {
        self.sessions.purge(file);
        match self.opens.is_held(file) {
            true => {
                Err(Error::new(ErrorKind::Busy, format!("file {file} is in use on this server: try again")))
            }
            false => Ok(()),
        }
    }
}
