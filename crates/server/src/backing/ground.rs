//! Checks that the back end is the same as before.

use super::{Backing, record};
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::{Batch, KeySpace};
use std::ops::ControlFlow;

const KEY: &[u8] = KeySpace::BackendIdentity.prefix();

impl Backing {
    /// Fails if the back end is another one than in earlier runs of the server: an empty, unmounted mount point would
    /// look as if all files had been removed. A store without files in the back end may change to another one.
    pub(crate) fn check_identity(&self) -> Result<()> {
        let now = self.ask(|backend| backend.identity()).map(String::into_bytes);
        let known = self.kv.get(KEY)?;
        match (now, known) {
            (now, Some(known)) if now.as_ref() != Some(&known) && self.has_any()? => {
                let text = format!(
                    "{} is not the back end that this store stood before: mount it if it is not mounted, or begin with a new store",
                    self.name()
                );
                Err(Error::new(ErrorKind::Invalid, text))
            }
            (Some(now), known) if known.as_ref() != Some(&now) => {
                let mut batch = Batch::default();
                batch.put(KEY, now);
                self.kv.commit(batch)
            }
            _ => Ok(()),
        }
    }

    /// Whether any file but the root is known to be in the back end.
    fn has_any(&self) -> Result<bool> {
        let (root, mut any) = (record::key(FileId::ROOT), false);
        self.kv.scan(&root[..1], &[], &mut |key, _| {
            any |= key != root;
            if any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(any)
    }
}
