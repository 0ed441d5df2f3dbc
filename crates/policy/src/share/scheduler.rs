//! What every scheduler can be told and asked.

use super::cost::{Cost, Tick, Ticket};
use super::policy::Policy;
use forebay_model::{Job, JobId, Result};

/// A request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The job it is for.
    pub job: JobId,
    /// What it is expected to cost.
    pub cost: Cost,
    /// Its number.
    pub ticket: Ticket,
}

/// Who is next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// This request: it no longer waits.
    Turn(Ticket),
    /// Requests wait, but none may go before this moment: ask again then, or when something happens.
    NotBefore(Tick),
    /// Nobody waits.
    Nobody,
}

impl Next {
    /// The request that is next, if one is.
    #[must_use]
    pub fn ticket(self) -> Option<Ticket> {
        match self {
            Next::Turn(ticket) => Some(ticket),
            Next::NotBefore(_) | Next::Nobody => None,
        }
    }
}

/// Decides who is next. It is told of every job, arrival and end, and asked when a place is free.
///
/// The expected cost of a request is charged when it gets its turn, and put right when it is done: a request that
/// came to nothing, because its job vanished, costs its job nothing.
pub trait Scheduler: Send {
    /// A job has come, or is described anew. Refused when the table is full; requests of jobs that were never
    /// announced share one job's worth between them.
    fn join(&mut self, job: &Job) -> Result<()>;

    /// A job has gone. It is forgotten when its last request is done.
    fn leave(&mut self, job: JobId);

    /// Shares follow this policy from now on. A scheduler cannot become another: `fifo` changes nothing here.
    fn set_policy(&mut self, policy: &Policy);

    /// Shares of this server from now on, as the servers have agreed; an empty list returns to the policy's own.
    /// They need not sum to one. A job that is not listed counts as an average one until the next agreement; one
    /// listed with nothing keeps a thousandth of an average one, so that it never starves.
    fn assign(&mut self, shares: &[(JobId, f64)]);

    /// A request has come and waits.
    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket);

    /// Takes the request that is next.
    fn next(&mut self, now: Tick) -> Next;

    /// A request that had its turn is done; `asked` is the cost it arrived with, `actual` what was really done.
    fn done(&mut self, job: JobId, asked: Cost, actual: Cost);

    /// How many requests wait.
    fn waiting(&self) -> usize;

    /// Reads what a decision about a job will read, and decides nothing: who has thousands of schedulers looks at those it
    /// will ask next, one step with all of them and then another, and waits for memory once for all. Each step, from 0 to 3,
    /// reads what the one before has found. Says nothing of meaning.
    fn glance(&self, job: JobId, step: usize) -> usize {
        let _ = (job, step);
        self.waiting()
    }

    /// Takes all that wait, in the order of arrival, for another scheduler to go on with.
    fn take_all(&mut self) -> Vec<Request>;
}
