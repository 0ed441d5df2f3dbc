//! The interface of all schedulers.

use super::cost::{Cost, Tick, Ticket};
use super::policy::Policy;
use forebay_model::{Job, JobId, Result};

/// A waiting request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its job.
    pub job: JobId,
    /// Its expected cost.
    pub cost: Cost,
    /// Its number.
    pub ticket: Ticket,
}

/// The next decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This request is served; it no longer waits.
    Turn(Ticket),
    /// Requests wait, but none may start before this instant: call again then, or on the next event.
    NotBefore(Tick),
    /// No request waits.
    Idle,
}

impl Next {
    /// The request to serve, if there is one.
    #[must_use]
    pub fn ticket(self) -> Option<Ticket> {
        match self {
            Next::Turn(ticket) => Some(ticket),
            Next::NotBefore(_) | Next::Idle => None,
        }
    }
}

/// Picks the next request. It gets every job, arrival and completion, and is called when the server can start
/// a request.
///
/// The expected cost of a request is charged when the request starts, and corrected when it is done: a
/// request that did nothing, because its job vanished, costs its job nothing.
pub trait Scheduler: Send {
    /// A job joined, or its description changed. Fails when the table is full. Requests of jobs that were
    /// never announced share the weight of one job.
    fn join(&mut self, job: &Job) -> Result<()>;

    /// A job left. It is removed when its last request is done.
    fn leave(&mut self, job: JobId);

    /// Changes the policy. This does not change the kind of scheduler: `fifo` has no effect here.
    fn set_policy(&mut self, policy: &Policy);

    /// Sets the shares on this server, as computed from all servers' tables; an empty list returns to the
    /// policy's own shares. They need not sum to one. A job that is not listed counts as an average one until
    /// the next call; a job listed with zero keeps a thousandth of an average share, so that it never
    /// starves.
    fn assign(&mut self, shares: &[(JobId, f64)]);

    /// A request arrived and waits.
    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket);

    /// Takes the next request.
    fn next(&mut self, now: Tick) -> Next;

    /// A started request is done; `asked` is the cost it arrived with, `actual` the work that was done.
    fn done(&mut self, job: JobId, asked: Cost, actual: Cost);

    /// How many requests wait.
    fn waiting(&self) -> usize;

    /// Prefetches the memory that a decision about a job will read, and decides nothing. A caller with
    /// thousands of schedulers runs each step over all schedulers it will call next, so that the cache misses
    /// overlap. Steps are 0 to 3; each reads memory that the one before has found. The result has no meaning.
    fn prefetch(&self, job: JobId, step: usize) -> usize {
        let _ = (job, step);
        self.waiting()
    }

    /// Takes all waiting requests, in order of arrival, to hand them to another scheduler.
    fn take_all(&mut self) -> Vec<Request>;
}
