//! What clients have given up.
//!
//! A client whose connection broke, or was silent for too long, asks again on another one. What it asked on the old one
//! may still be on its way here: in a socket, or waiting for its turn. Were that carried out after the repetition, it
//! would undo what the client did since. So the client first says which connection it has given up.
//!
//! **Invariant**: once a client was told that its connection is given up, nothing that was asked there changes anything.

use crate::key::random;
use crate::session::Owner;
use forebay_model::{Error, ErrorKind, Result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

/// The connections that can be given up: those of which something is left.
#[derive(Default)]
pub(crate) struct Fences {
    table: Mutex<HashMap<(Owner, u64), Weak<Fence>>>,
}

/// One connection's, held by all that is done for it.
pub(crate) struct Fence {
    number: u64,
    owner: Owner,
    fences: Arc<Fences>,
    /// Whether the client has given the connection up.
    closed: RwLock<bool>,
}

impl Fences {
    /// For a new connection. Its number is random, so that one from another life of the server means nobody.
    pub(crate) fn raise(self: &Arc<Fences>, owner: Owner) -> Result<Arc<Fence>> {
        let bytes: [u8; 32] = random()?;
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let fence = Fence { number, owner, fences: self.clone(), closed: RwLock::new(false) };
        let fence = Arc::new(fence);
        self.table().insert((owner, number), Arc::downgrade(&fence));
        Ok(fence)
    }

    /// Gives a connection up, and waits for what is just being done for it. One that is not known has come to its end.
    pub(crate) fn close(&self, owner: Owner, number: u64) {
        let fence = self.table().get(&(owner, number)).and_then(Weak::upgrade);
        if let Some(fence) = fence {
            *fence.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<(Owner, u64), Weak<Fence>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fence {
    /// What the client calls the connection.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Leave to change something; while it is held, the connection is not given up.
    pub(crate) fn pass(&self) -> Result<RwLockReadGuard<'_, bool>> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        match *closed {
            false => Ok(closed),
            true => Err(Error::new(ErrorKind::Unreachable, "the client has given this connection up")),
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.fences.table().remove(&(self.owner, self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Uid;

    #[test]
    fn a_connection_is_given_up_by_its_own_client_and_forgotten_with_its_last_request() {
        let fences = Arc::new(Fences::default());
        let (alice, bob) = ((1, Uid(1)), (1, Uid(2)));
        let fence = fences.raise(alice).unwrap();
        fences.close(bob, fence.number());
        fences.close(alice, fence.number().wrapping_add(1));
        assert!(fence.pass().is_ok());
        fences.close(alice, fence.number());
        assert!(fence.pass().is_err());
        let busy = fence.clone();
        drop(fence);
        assert_eq!(fences.table().len(), 1, "something is still done for it");
        drop(busy);
        assert!(fences.table().is_empty());
    }

    #[test]
    fn whoever_gives_up_waits_for_what_is_being_done() {
        let fences = Arc::new(Fences::default());
        let fence = fences.raise((1, Uid(1))).unwrap();
        let pass = fence.pass().unwrap();
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| fences.close((1, Uid(1)), fence.number()));
            assert!(!closing.is_finished());
            drop(pass);
            closing.join().unwrap();
        });
        assert!(fence.pass().is_err());
    }
}
