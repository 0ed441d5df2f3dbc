//! Data connections: each is lent to one transfer at a time.

use crate::line::CallRef;
use crate::session::Session;
use crate::transport::Pipe;
use forebay_model::Result;
use forebay_wire::{Channel, Request};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

/// A data connection.
pub(crate) struct Connection {
    pub(crate) pipe: Pipe,
    pub(crate) next_id: u64,
    pub(crate) max_payload: usize,
}

/// The data connections of a session.
pub(crate) struct Pool {
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
}

/// A connection lent to one transfer. Unless it is given back in step with the server it is closed: a transfer
/// that was dropped half-way never leaves the stream to the next one.
pub(crate) struct Lease<'a> {
    pool: &'a Pool,
    pub(crate) connection: Connection,
    /// How long an answer may take.
    pub(crate) patience: Duration,
    _slot: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(connections: usize) -> Pool {
        Pool { slots: Semaphore::new(connections), idle: Mutex::new(Vec::new()) }
    }

    /// Waits until a connection may be lent.
    pub(crate) async fn slot(&self) -> SemaphorePermit<'_> {
        self.slots.acquire().await.expect("the semaphore is never closed")
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("nothing panics while it holds the idle connections")
    }
}

impl Session {
    /// Takes an idle data connection, or makes one.
    pub(crate) async fn lease<'a>(&'a self, slot: SemaphorePermit<'a>) -> Result<Lease<'a>> {
        let mut found = self.pool.idle().pop();
        // One that the server has closed meanwhile, or talks on unasked, is of no use.
        while found.as_ref().is_some_and(|connection| !connection.pipe.inbox.is_quiet()) {
            found = self.pool.idle().pop();
        }
        let connection = match found {
            Some(connection) => connection,
            None => self.connect_data().await?,
        };
        Ok(Lease { pool: &self.pool, connection, patience: self.config.request_timeout, _slot: slot })
    }

    async fn connect_data(&self) -> Result<Connection> {
        let line = self.line().await?;
        let (pipe, welcome) = self.enter(Channel::Data).await?;
        // An answer on the control connection now proves that both lead to the same life of the server, the one
        // that knows the open files.
        let call = CallRef { identity: None, request: &Request::Ping };
        let alive = timeout(self.config.connect_timeout, line.call(&call, None)).await;
        match alive {
            Ok(Ok(_)) => Ok(Connection { pipe, next_id: 1, max_payload: welcome.max_payload as usize }),
            Ok(Err(trouble)) => Err(self.at_service(trouble.error)),
            Err(_) => Err(self.no_answer()),
        }
    }
}

impl Lease<'_> {
    /// Gives the connection back. Only for one on which nothing is under way.
    pub(crate) fn give_back(self) {
        self.pool.idle().push(self.connection);
    }
}
