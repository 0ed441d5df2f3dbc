//! Claims: what the drain is writing to behind.
//!
//! A claim is durable before the first change behind, and goes when what is there was seen again. While it lasts, length
//! and time of the thing behind are our own doing and say nothing: it is known by its serial number alone.

use super::Union;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_store::Batch;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

const CLAIMS: &[u8] = b"l";

/// Everything that is claimed.
#[derive(Default)]
pub(super) struct Claims {
    /// How often bytes of it have come to be behind.
    table: Mutex<HashMap<FileId, u64>>,
}

fn key(file: FileId) -> Vec<u8> {
    [CLAIMS, &file.0.to_be_bytes()].concat()
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, u64>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Union {
    /// Claims something; true if it was not claimed before.
    pub(crate) fn claim(&self, file: FileId) -> Result<bool> {
        if self.claims.lock().contains_key(&file) {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.put(key(file), []);
        self.kv.commit(batch)?;
        if self.lasting {
            self.kv.sync()?;
        }
        self.claims.lock().insert(file, 0);
        self.near.forget(file);
        Ok(true)
    }

    /// How often bytes of a file have come to be behind under its claim; `None` if it is not claimed.
    pub(crate) fn claimed(&self, file: FileId) -> Option<u64> {
        self.claims.lock().get(&file).copied()
    }

    /// Bytes of a file are about to come to be behind.
    pub(crate) fn count_claim(&self, file: FileId) {
        if let Some(count) = self.claims.lock().get_mut(&file) {
            *count += 1;
        }
    }

    /// Does something if a file is claimed, and stays so meanwhile.
    pub(crate) fn while_claimed<T>(&self, file: FileId, act: impl FnOnce() -> T) -> Option<T> {
        let _length = self.length(file);
        self.claimed(file).is_some().then(act)
    }

    /// The end of a claim, for a batch that is committed with it.
    pub(crate) fn end_claim(file: FileId, batch: &mut Batch) {
        batch.remove(key(file));
    }

    /// The end of a claim was committed.
    pub(crate) fn unclaim(&self, file: FileId) {
        self.claims.lock().remove(&file);
    }

    /// Takes up the claims of an earlier life of the server.
    pub(super) fn load_claims(&self) -> Result<()> {
        let mut bad = false;
        let mut table = self.claims.lock();
        self.kv.scan(CLAIMS, &[], &mut |key, _| {
            match key[CLAIMS.len()..].try_into() {
                Ok(number) => drop(table.insert(FileId(u64::from_be_bytes(number)), 0)),
                Err(_) => bad = true,
            }
            ControlFlow::Continue(())
        })?;
        match bad {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::BadStore, "a claim of the drain cannot be read")),
        }
    }

    /// All that is claimed.
    pub(crate) fn all_claims(&self) -> Vec<FileId> {
        self.claims.lock().keys().copied().collect()
    }
}
