//! Data connections: each is lent to one transfer at a time.

use crate::line::CallRef;
use crate::session::Session;
use crate::transport::Pipe;
use forebay_model::Result;
use forebay_wire::{Channel, Request};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// A data connection.
pub(crate) struct Connection {
    /// What the server calls it.
    number: u64,
    pub(crate) pipe: Pipe,
    pub(crate) next_id: u64,
    pub(crate) max_payload: usize,
}

/// The data connections of a session.
pub(crate) struct Pool {
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// Connections given up with something unanswered, of which the server does not know yet. No more than were in use.
    forsaken: Mutex<Vec<u64>>,
    /// How many these are, for those who may not wait for a lock.
    doubts: AtomicUsize,
}

/// A connection on which something may be unanswered: dropped, it is given up.
struct Risk<'a> {
    pool: &'a Pool,
    number: Option<u64>,
}

impl Drop for Risk<'_> {
    fn drop(&mut self) {
        self.number.into_iter().for_each(|number| self.pool.forsake(number));
    }
}

/// A connection lent to one transfer. Unless it is given back in step with the server it is closed: a transfer
/// that was dropped half-way never leaves the stream to the next one.
pub(crate) struct Lease<'a> {
    pub(crate) connection: Connection,
    risk: Risk<'a>,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    _slot: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(connections: usize) -> Pool {
        Pool {
            slots: Semaphore::new(connections),
            idle: Mutex::default(),
            forsaken: Mutex::default(),
            doubts: AtomicUsize::new(0),
        }
    }

    /// Waits until a connection may be lent.
    pub(crate) async fn slot(&self) -> SemaphorePermit<'_> {
        self.slots.acquire().await.expect("the semaphore is never closed")
    }

    /// Whether a connection is there for whoever needs one.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle().is_empty()
    }

    /// Notes that a connection was given up.
    pub(crate) fn forsake(&self, number: u64) {
        let mut forsaken = self.lock_forsaken();
        if !forsaken.contains(&number) {
            forsaken.push(number);
        }
        self.doubts.store(forsaken.len(), Ordering::SeqCst);
    }

    /// Whether something that was given up may still happen.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.doubts.load(Ordering::SeqCst) != 0
    }

    /// A connection that the server does not yet know to be given up.
    pub(crate) fn forsaken(&self) -> Option<u64> {
        self.lock_forsaken().first().copied()
    }

    /// The server knows.
    pub(crate) fn told(&self, number: u64) {
        let mut forsaken = self.lock_forsaken();
        forsaken.retain(|other| *other != number);
        self.doubts.store(forsaken.len(), Ordering::SeqCst);
    }

    fn lock_forsaken(&self) -> MutexGuard<'_, Vec<u64>> {
        self.forsaken.lock().expect("nothing panics while it holds the forsaken connections")
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it holds the idle connections")
    }
}

impl Session {
    /// Takes an idle data connection, or makes one.
    pub(crate) async fn lease<'a>(&'a self, slot: SemaphorePermit<'a>) -> Result<Lease<'a>> {
        if self.pool.forsaken().is_some() {
            // What was given up must not come after what is asked now.
            self.line().await?;
        }
        let mut found = self.pool.idle().pop();
        // One that the server has closed meanwhile, or talks on unasked, is of no use.
        while found.as_ref().is_some_and(|connection| !connection.pipe.inbox.is_quiet()) {
            found = self.pool.idle().pop();
        }
        let connection = match found {
            Some(connection) => connection,
            None => self.connect_data().await?,
        };
        let risk = Risk { pool: &self.pool, number: Some(connection.number) };
        Ok(Lease { connection, risk, patience: self.config.request_timeout, _slot: slot })
    }

    async fn connect_data(&self) -> Result<Connection> {
        let line = self.line().await?;
        let (pipe, welcome) = self.enter(Channel::Data).await?;
        // An answer on the control connection now proves that both lead to the same life of the server, the one
        // that knows the open files.
        let call = CallRef { identity: None, request: &Request::Ping };
        let alive = timeout(self.config.connect_timeout, line.call(&call, None)).await;
        match alive {
            Ok(Ok(_)) => {
                let (number, max_payload) = (welcome.connection, welcome.max_payload as usize);
                Ok(Connection { number, pipe, next_id: 1, max_payload })
            }
            Ok(Err(trouble)) => Err(self.at_service(trouble.error)),
            Err(_) => Err(self.no_answer()),
        }
    }
}

impl Lease<'_> {
    /// Gives the connection back. Only for one on which nothing is under way.
    pub(crate) fn give_back(self) {
        let Lease { connection, mut risk, .. } = self;
        risk.number = None;
        risk.pool.idle().push(connection);
    }
}
