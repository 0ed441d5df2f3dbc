//! Claims: what the drain is writing to behind.
//!
//! A claim is durable before the first change behind, and goes when what is there was seen again. While it lasts, length
//! and time of the thing behind are our own doing and say nothing: it is known by its serial number alone.
//!
//! Where the back end puts a file together when the last who writes it lets go, a claim keeps it open: otherwise all that
//! is there already would be copied again whenever the drain pauses.

use super::Union;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Name, Result};
use forebay_store::Batch;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, PoisonError};

const CLAIMS: &[u8] = b"l";

/// Everything that is claimed.
#[derive(Default)]
pub(super) struct Claims {
    table: Mutex<HashMap<FileId, Claim>>,
}

#[derive(Default)]
struct Claim {
    /// How often bytes of it have come to be behind.
    count: u64,
    /// What keeps it open behind, where it has to be.
    keep: Option<Box<dyn Object>>,
}

fn key(file: FileId) -> Vec<u8> {
    [CLAIMS, &file.0.to_be_bytes()].concat()
}

impl Claims {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Claim>> {
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
        self.claims.lock().insert(file, Claim::default());
        self.near.forget(file);
        Ok(true)
    }

    /// How often bytes of a file have come to be behind under its claim; `None` if it is not claimed.
    pub(crate) fn claimed(&self, file: FileId) -> Option<u64> {
        self.claims.lock().get(&file).map(|claim| claim.count)
    }

    /// Bytes of a file are about to come to be behind.
    pub(crate) fn count_claim(&self, file: FileId) {
        if let Some(claim) = self.claims.lock().get_mut(&file) {
            claim.count += 1;
        }
    }

    /// Keeps a claimed file open, where what is behind puts it together when nobody has it open.
    pub(super) fn keep(&self, file: FileId, path: &[Name]) -> Result<()> {
        if !self.backend.gathers() || self.is_kept(file) {
            return Ok(());
        }
        let keep = self.ask(|backend| backend.open_to_write(path))?;
        self.keep_on(file, keep);
        Ok(())
    }

    /// Keeps this one, if it is needed.
    fn keep_on(&self, file: FileId, keep: Box<dyn Object>) {
        let spare = match self.claims.lock().get_mut(&file) {
            Some(claim) if claim.keep.is_none() => {
                claim.keep = Some(keep);
                None
            }
            _ => Some(keep),
        };
        if spare.is_some() {
            self.ask(|_| drop(spare));
        }
    }

    /// Whether a claimed file lies in parts behind.
    pub(crate) fn is_kept(&self, file: FileId) -> bool {
        self.claims.lock().get(&file).is_some_and(|claim| claim.keep.is_some())
    }

    /// All claimed files that lie in parts behind.
    pub(crate) fn all_kept(&self) -> Vec<FileId> {
        if !self.backend.gathers() {
            return Vec::new();
        }
        let claims = self.claims.lock();
        claims.iter().filter(|(_, claim)| claim.keep.is_some()).map(|(file, _)| *file).collect()
    }

    /// Has a file put together that is kept open, and lets go of it. One that cannot be is kept on.
    pub(super) fn gather(&self, file: FileId) -> Result<()> {
        let keep = self.claims.lock().get_mut(&file).and_then(|claim| claim.keep.take());
        let Some(keep) = keep else { return Ok(()) };
        match self.ask(|_| keep.gather()) {
            Err(error) if error.kind() != ErrorKind::Stale => {
                self.keep_on(file, keep);
                Err(error)
            }
            // One that has gone meanwhile is nothing to put together.
            _ => {
                self.ask(|_| drop(keep));
                Ok(())
            }
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
        let claim = self.claims.lock().remove(&file);
        if let Some(keep) = claim.and_then(|claim| claim.keep) {
            self.ask(|_| drop(keep));
        }
    }

    /// Takes up the claims of an earlier life of the server.
    pub(super) fn load_claims(&self) -> Result<()> {
        let mut bad = false;
        let mut table = self.claims.lock();
        self.kv.scan(CLAIMS, &[], &mut |key, _| {
            match key[CLAIMS.len()..].try_into() {
                Ok(number) => drop(table.insert(FileId(u64::from_be_bytes(number)), Claim::default())),
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
