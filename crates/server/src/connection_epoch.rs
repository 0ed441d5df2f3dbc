//! Abandoned connections.
//!
//! A client whose connection broke or timed out repeats its requests on another one. Requests on the old connection may
//! still be pending: in a socket, or waiting for their turn. If the server executed them after the repetition, they
//! would undo later changes of the client. So the client first reports which connection it has abandoned.
//!
//! A server that lost its connection to this one opens another and repeats its requests; that abandons the old
//! connection.
//!
//! **Invariant**: once the server has confirmed that a connection is abandoned, no request of that connection changes
//! anything.

use crate::key::random;
use crate::session::Owner;
use forebay_model::{Error, ErrorKind, Result, ServerId};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tokio::sync::Notify;

/// The connections that can be abandoned: those with requests in progress or open.
#[derive(Default)]
pub(crate) struct ConnectionEpochs {
    table: Mutex<HashMap<(Owner, u64), Weak<ConnectionEpoch>>>,
    /// The connections of other servers.
    peer_clients: Mutex<HashMap<ServerId, Weak<ConnectionEpoch>>>,
}

/// The state of one connection, held by every request on it.
pub(crate) struct ConnectionEpoch {
    number: u64,
    owner: Owner,
    connection_epochs: Arc<ConnectionEpochs>,
    state: Mutex<State>,
    /// Notified when the last request of an abandoned connection has ended.
    left: Notify,
}

#[derive(Default)]
struct State {
    /// Whether the client has abandoned the connection.
    closed: bool,
    /// Number of requests that hold a [`Pass`].
    inside: usize,
}

/// Permission to change state; while it is held, abandoning the connection waits.
pub(crate) struct Pass(Arc<ConnectionEpoch>);

impl ConnectionEpochs {
    /// For a new connection. Its number is random, so a number from another boot of the server matches no connection.
    pub(crate) fn raise(self: &Arc<ConnectionEpochs>, owner: Owner) -> Result<Arc<ConnectionEpoch>> {
        let bytes: [u8; 32] = random()?;
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        let number = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        let (state, left) = (Mutex::default(), Notify::new());
        let connection_epoch =
            Arc::new(ConnectionEpoch { number, owner, connection_epochs: self.clone(), state, left });
        self.table().insert((owner, number), Arc::downgrade(&connection_epoch));
        Ok(connection_epoch)
    }

    /// Abandons a connection and waits for its requests in progress. An unknown connection has already ended.
    pub(crate) async fn close(&self, owner: Owner, number: u64) {
        let connection_epoch = self.table().get(&(owner, number)).and_then(Weak::upgrade);
        if let Some(connection_epoch) = connection_epoch {
            connection_epoch.close().await;
        }
    }

    /// Another server has a new connection: requests on an earlier one are abandoned, and those in progress awaited.
    pub(crate) async fn renew(&self, server: ServerId, connection: &Arc<ConnectionEpoch>) {
        let earlier = {
            let mut peer_clients = self.peer_clients.lock();
            peer_clients.insert(server, Arc::downgrade(connection)).and_then(|earlier| earlier.upgrade())
        };
        if let Some(earlier) = earlier.filter(|earlier| !Arc::ptr_eq(earlier, connection)) {
            earlier.close().await;
        }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<(Owner, u64), Weak<ConnectionEpoch>>> {
        self.table.lock()
    }
}

impl ConnectionEpoch {
    /// The connection's number as the client knows it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Permission to change state.
    pub(crate) fn pass(self: &Arc<ConnectionEpoch>) -> Result<Pass> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Unreachable, "the client has abandoned this connection"));
        }
        state.inside += 1;
        drop(state);
        Ok(Pass(Arc::clone(self)))
    }

    /// Abandons the connection and waits for its requests in progress, without holding a thread: they may wait for a
    /// back end that does not answer, and a client may abandon a connection any number of times.
    async fn close(&self) {
        loop {
            let left = self.left.notified();
            if self.shut() == 0 {
                return;
            }
            left.await;
        }
    }

    /// Abandons the connection without waiting; returns the number of requests in progress, which finish.
    pub(crate) fn shut(&self) -> usize {
        let mut state = self.state();
        state.closed = true;
        state.inside
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.inside -= 1;
        // Only `close` waits, and a needless wake-up costs a system call.
        if state.inside == 0 && state.closed {
            self.0.left.notify_waiters();
        }
    }
}

impl Drop for ConnectionEpoch {
    fn drop(&mut self) {
        self.connection_epochs.table().remove(&(self.owner, self.number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Uid;
    use std::future::Future;
    use std::task::{Context, Waker};

    #[tokio::test]
    async fn connection_is_abandoned_by_its_client_and_forgotten_after_its_last_request() {
        let connection_epochs = Arc::new(ConnectionEpochs::default());
        let (alice, bob) = ((1, Uid(1)), (1, Uid(2)));
        let connection_epoch = connection_epochs.raise(alice).unwrap();
        connection_epochs.close(bob, connection_epoch.number()).await;
        connection_epochs.close(alice, connection_epoch.number().wrapping_add(1)).await;
        assert!(connection_epoch.pass().is_ok());
        connection_epochs.close(alice, connection_epoch.number()).await;
        assert!(connection_epoch.pass().is_err());
        let busy = connection_epoch.clone();
        drop(connection_epoch);
        assert_eq!(connection_epochs.table().len(), 1, "a request still holds it");
        drop(busy);
        assert!(connection_epochs.table().is_empty());
    }

    #[tokio::test]
    async fn each_server_has_one_current_connection() {
        let connection_epochs = Arc::new(ConnectionEpochs::default());
        let peer_clients: Vec<_> = (0..3).map(|_| connection_epochs.raise((1, Uid(0))).unwrap()).collect();
        connection_epochs.renew(ServerId(1), &peer_clients[0]).await;
        connection_epochs.renew(ServerId(2), &peer_clients[1]).await;
        connection_epochs.renew(ServerId(1), &peer_clients[0]).await;
        assert!(peer_clients.iter().all(|connection| connection.pass().is_ok()));
        connection_epochs.renew(ServerId(1), &peer_clients[2]).await;
        assert_eq!(
            peer_clients.iter().map(|connection| connection.pass().is_ok()).collect::<Vec<_>>(),
            [false, true, true]
        );
    }

    #[tokio::test]
    async fn abandoning_waits_for_requests_in_progress() {
        let connection_epochs = Arc::new(ConnectionEpochs::default());
        let connection_epoch = connection_epochs.raise((1, Uid(1))).unwrap();
        let passes = (connection_epoch.pass().unwrap(), connection_epoch.pass().unwrap());
        let close = || Box::pin(connection_epochs.close((1, Uid(1)), connection_epoch.number()));
        let (mut one, mut other) = (close(), close());
        let mut context = Context::from_waker(Waker::noop());
        assert!(one.as_mut().poll(&mut context).is_pending());
        assert!(connection_epoch.pass().is_err(), "it is abandoned while requests are in progress");
        drop(passes.0);
        assert!(
            one.as_mut().poll(&mut context).is_pending() && other.as_mut().poll(&mut context).is_pending()
        );
        drop(passes.1);
        one.await;
        other.await;
    }
}
