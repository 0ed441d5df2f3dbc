//! Data connections: one transfer at a time uses each of them.

use crate::control::CallRef;
use crate::session::Session;
use crate::transport::Pipe;
use forebay_model::Result;
use forebay_wire::{Channel, Request};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout};

/// A data connection.
pub(crate) struct Connection {
    /// The number by which the server knows it.
    number: u64,
    pub(crate) pipe: Pipe,
    pub(crate) next_id: u64,
    pub(crate) max_payload: usize,
}

/// The data connections of a session.
pub(crate) struct Pool {
    slots: Semaphore,
    idle: Mutex<Vec<Connection>>,
    /// Connections that were abandoned with unanswered requests, of which the server has not been notified. At most as
    /// many as were in use.
    abandoned: Mutex<Vec<u64>>,
    /// Length of `abandoned`, for callers that must not wait for a lock.
    abandoned_count: AtomicUsize,
    made: Instant,
    /// When the server last answered on one of the connections, in microseconds since the pool was created; 0 if never.
    last_answer: AtomicU64,
    is_closed: AtomicBool,
}

/// A connection with a possibly unanswered request. Dropping it abandons the connection.
struct AbandonGuard<'a> {
    pool: &'a Pool,
    number: Option<u64>,
}

impl Drop for AbandonGuard<'_> {
    fn drop(&mut self) {
        self.number.into_iter().for_each(|number| self.pool.abandon(number));
    }
}

/// A connection that one transfer uses. It is closed unless it is returned in sync with the server, so an aborted
/// transfer never leaves its stream to the next one.
pub(crate) struct Lease<'a> {
    pub(crate) connection: Connection,
    guard: AbandonGuard<'a>,
    /// Deadline of the first answer.
    pub(crate) deadline: Instant,
    /// Timeout of each further answer.
    pub(crate) patience: Duration,
    _slot: SemaphorePermit<'a>,
}

impl Pool {
    pub(crate) fn new(connections: usize) -> Pool {
        Pool {
            slots: Semaphore::new(connections),
            idle: Mutex::default(),
            abandoned: Mutex::default(),
            abandoned_count: AtomicUsize::new(0),
            made: Instant::now(),
            last_answer: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Closes all connections; those in use when they are returned.
    pub(crate) fn close(&self) {
        let mut idle = self.idle();
        self.is_closed.store(true, Ordering::Relaxed);
        idle.clear();
    }

    /// Waits until a connection may be used.
    pub(crate) async fn slot(&self) -> SemaphorePermit<'_> {
        self.slots.acquire().await.expect("the semaphore is never closed")
    }

    /// A permit to use a connection, if one is free.
    pub(crate) fn free_slot(&self) -> Option<SemaphorePermit<'_>> {
        self.slots.try_acquire().ok()
    }

    /// Records that the server has answered.
    pub(crate) fn note_answer(&self) {
        let since = u64::try_from(self.made.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last_answer.store(since.max(1), Ordering::Relaxed);
    }

    /// Whether the server has answered since `time`.
    pub(crate) fn has_answered_since(&self, time: Instant) -> bool {
        match self.last_answer.load(Ordering::Relaxed) {
            0 => false,
            last_answer => self.made + Duration::from_micros(last_answer) > time,
        }
    }

    /// Whether there is an idle connection.
    pub(crate) fn has_idle(&self) -> bool {
        !self.idle().is_empty()
    }

    /// Records that a connection was abandoned.
    pub(crate) fn abandon(&self, number: u64) {
        let mut abandoned = self.lock_abandoned();
        if !abandoned.contains(&number) {
            abandoned.push(number);
        }
        self.abandoned_count.store(abandoned.len(), Ordering::SeqCst);
    }

    /// Whether requests on an abandoned connection may still run.
    pub(crate) fn has_abandoned(&self) -> bool {
        self.abandoned_count.load(Ordering::SeqCst) != 0
    }

    /// An abandoned connection of which the server has not been notified.
    pub(crate) fn abandoned(&self) -> Option<u64> {
        self.lock_abandoned().first().copied()
    }

    /// Records that the server was notified of an abandoned connection.
    pub(crate) fn mark_announced(&self, number: u64) {
        let mut abandoned = self.lock_abandoned();
        abandoned.retain(|other| *other != number);
        self.abandoned_count.store(abandoned.len(), Ordering::SeqCst);
    }

    fn lock_abandoned(&self) -> MutexGuard<'_, Vec<u64>> {
        self.abandoned.lock().expect("no thread panics while it holds this lock")
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().expect("no thread panics while it holds this lock")
    }
}

impl Session {
    /// Takes an idle data connection, or opens one.
    pub(crate) async fn lease<'a>(
        &'a self,
        slot: SemaphorePermit<'a>,
        deadline: Instant,
    ) -> Result<Lease<'a>> {
        if self.pool.abandoned().is_some() {
            // Requests on abandoned connections must not run after this one.
            self.control().await?;
        }
        let mut found = self.pool.idle().pop();
        // Skips connections that the server has closed, or on which unrequested bytes arrived.
        while found.as_ref().is_some_and(|connection| !connection.pipe.frame_reader.is_quiet()) {
            found = self.pool.idle().pop();
        }
        let connection = match found {
            Some(connection) => connection,
            None => self.connect_data().await?,
        };
        let guard = AbandonGuard { pool: &self.pool, number: Some(connection.number) };
        Ok(Lease { connection, guard, deadline, patience: self.config.request_timeout, _slot: slot })
    }

    async fn connect_data(&self) -> Result<Connection> {
        let control = self.control().await?;
        let (pipe, welcome) = self.open_connection(Channel::Data).await?;
        // An answer on the control connection proves that both connections lead to the same run of the server process,
        // the one that knows the open files.
        let call = CallRef { identity: None, request: &Request::Ping };
        let alive = timeout(self.config.connect_timeout, control.call(&call, None)).await;
        match alive {
            Ok(Ok(_)) => {
                let (number, max_payload) = (welcome.connection, welcome.max_payload as usize);
                Ok(Connection { number, pipe, next_id: 1, max_payload })
            }
            Ok(Err(failure)) => Err(self.at_service(failure.error)),
            Err(_) => Err(self.no_answer()),
        }
    }
}

impl<'a> Lease<'a> {
    pub(crate) fn pool(&self) -> &'a Pool {
        self.guard.pool
    }

    /// Returns the connection to the pool. The caller has received every answer.
    pub(crate) fn give_back(self) {
        let Lease { connection, mut guard, .. } = self;
        guard.number = None;
        let mut idle = guard.pool.idle();
        if !guard.pool.is_closed.load(Ordering::Relaxed) {
            idle.push(connection);
        }
    }
}
