//! What clients have given up.
//!
//! A client whose connection broke, or was silent for too long, asks again on another one. What it asked on the old one
//! may still be on its way here: in a socket, or waiting for its turn. Were that carried out after the repetition, it
//! would undo what the client did since. So the client first says which connection it has given up.
//!
//! A server that lost its line to this one makes another, and asks again there: with that the old one is given up.
//!
//! **Invariant**: once a client was told that its connection is given up, nothing that was asked there changes anything.

use crate::key::random;
use crate::session::Owner;
use forebay_model::{Error, ErrorKind, Result, ServerId};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

/// The connections that can be given up: those of which something is left.
#[derive(Default)]
pub(crate) struct Fences {
    table: Mutex<HashMap<(Owner, u64), Weak<Fence>>>,
    /// The lines of other servers.
    lines: Mutex<HashMap<ServerId, Weak<Fence>>>,
}

/// One connection's, held by all that is done for it.
pub(crate) struct Fence {
    number: u64,
    owner: Owner,
    fences: Arc<Fences>,
    door: Mutex<Door>,
    left: Condvar,
}

#[derive(Default)]
struct Door {
    /// Whether the client has given the connection up.
    closed: bool,
    /// How much is just being done for it.
    inside: usize,
}

/// Leave to change something; while it is held, the connection is not given up.
pub(crate) struct Pass(Arc<Fence>);

impl Fences {
    /// For a new connection. Its number is random, so that one from another life of the server means nobody.
    pub(crate) fn raise(self: &Arc<Fences>, owner: Owner) -> Result<Arc<Fence>> {
        let bytes: [u8; 32] = random()?;
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let (door, left) = (Mutex::default(), Condvar::new());
        let fence = Arc::new(Fence { number, owner, fences: self.clone(), door, left });
        self.table().insert((owner, number), Arc::downgrade(&fence));
        Ok(fence)
    }

    /// Gives a connection up, and waits for what is just being done for it. One that is not known has come to its end.
    pub(crate) fn close(&self, owner: Owner, number: u64) {
        let fence = self.table().get(&(owner, number)).and_then(Weak::upgrade);
        if let Some(fence) = fence {
            fence.close();
        }
    }

    /// Another server has a new line: whatever comes over an earlier one is too late.
    pub(crate) fn renew(&self, server: ServerId, line: &Arc<Fence>) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let earlier = lines.insert(server, Arc::downgrade(line)).and_then(|earlier| earlier.upgrade());
        drop(lines);
        if let Some(earlier) = earlier.filter(|earlier| !Arc::ptr_eq(earlier, line)) {
            earlier.close();
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

    /// Leave to change something.
    pub(crate) fn pass(self: &Arc<Fence>) -> Result<Pass> {
        let mut door = self.door();
        if door.closed {
            return Err(Error::new(ErrorKind::Unreachable, "the client has given this connection up"));
        }
        door.inside += 1;
        drop(door);
        Ok(Pass(Arc::clone(self)))
    }

    /// Gives the connection up, and waits for what is just being done for it.
    pub(crate) fn close(&self) {
        let mut door = self.door();
        door.closed = true;
        while door.inside > 0 {
            door = self.left.wait(door).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut door = self.0.door();
        door.inside -= 1;
        // Nobody waits for an open door, and to wake nobody costs a system call.
        if door.inside == 0 && door.closed {
            self.0.left.notify_all();
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
    fn a_server_has_one_line() {
        let fences = Arc::new(Fences::default());
        let lines: Vec<_> = (0..3).map(|_| fences.raise((1, Uid(0))).unwrap()).collect();
        fences.renew(ServerId(1), &lines[0]);
        fences.renew(ServerId(2), &lines[1]);
        fences.renew(ServerId(1), &lines[0]);
        assert!(lines.iter().all(|line| line.pass().is_ok()));
        fences.renew(ServerId(1), &lines[2]);
        assert_eq!(lines.iter().map(|line| line.pass().is_ok()).collect::<Vec<_>>(), [false, true, true]);
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
