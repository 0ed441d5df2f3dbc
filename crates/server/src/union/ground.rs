//! Whether what is behind is what was behind before.

use super::{Union, record};
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::Batch;
use std::ops::ControlFlow;

const KEY: &[u8] = b"g";

impl Union {
    /// Fails if another back end is behind than in earlier lives of the server: an empty directory on which nothing is
    /// mounted would look as if everybody had removed everything. Whoever has nothing behind may go elsewhere.
    pub(crate) fn recognise(&self) -> Result<()> {
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

    /// Whether anything but the root is known to be behind.
    fn has_any(&self) -> Result<bool> {
        let (root, mut any) = (record::key(FileId::ROOT), false);
        self.kv.scan(&root[..1], &[], &mut |key, _| {
            any |= key != root;
            if any { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        Ok(any)
    }
}
