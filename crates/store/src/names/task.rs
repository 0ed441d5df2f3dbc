//! Carrying out what concerns several servers.

use super::talk::{Ask, Carried, IntentId, Op, Told, Verdict};
use super::{Attempt, Names, Obstacle};
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId, Stamp};

/// An operation under way. Dropped before its end, it never was.
pub struct Task {
    who: Identity,
    op: Op,
    now: Stamp,
}

/// What to do for a task next.
#[derive(Debug)]
pub enum Next {
    /// Ask these, all at the same time; then [`Task::next`] with what they said, in this order.
    Ask(Vec<(ServerId, Ask)>),
    /// Deal with this; then [`Task::next`] with nothing.
    Obstacle(Obstacle),
    /// It is over. Somebody should tell these what became of it: see [`Names::unfinished`].
    Done(Result<Carried>, Vec<(ServerId, Ask)>),
}

impl Task {
    /// Goes on. `told` are the answers to what was asked; an error means that a server could not be asked.
    pub fn next(&mut self, names: &Names, told: Vec<Result<Told>>) -> Next {
        let text =
            format!("{:?} by user {} at {} for server {}", self.op, self.who.uid, self.now, names.server());
        drop(told);
        Next::Done(Err(Error::new(ErrorKind::Unsupported, text)), Vec::new())
    }
}

impl Names {
    /// Begins an operation that may concern several servers.
    #[must_use]
    pub fn task(&self, who: Identity, op: Op, now: Stamp) -> Task {
        Task { who, op, now }
    }

    /// Answers another server. Whatever cannot be done is told; an obstacle is for this server to deal with.
    pub fn answer(&self, from: ServerId, ask: &Ask) -> Attempt<Told> {
        let text = format!("{ask:?} from server {from}");
        Err(Error::new(ErrorKind::Unsupported, text).into())
    }

    /// Does or undoes what was prepared for an intent, if anything was.
    pub fn finish(&self, intent: IntentId, verdict: Verdict) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, format!("{intent:?} {verdict:?}")))
    }

    /// Intents that this server prepared parts of and that nobody has finished yet. After a start, and now and then,
    /// their coordinators are to be asked: [`Names::question`] with [`Obstacle::Intent`].
    #[must_use]
    pub fn prepared(&self) -> Vec<IntentId> {
        Vec::new()
    }

    /// What this server decided and has still to tell others, until [`Names::told`].
    #[must_use]
    pub fn unfinished(&self) -> Vec<(ServerId, Ask)> {
        Vec::new()
    }

    /// A server has answered `Told::Done` to `Ask::Finish`.
    pub fn told(&self, server: ServerId, intent: IntentId) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, format!("{intent:?} {server:?}")))
    }

    /// Files that lost their last name by an intent since this was last asked: what [`super::Fate::Orphaned`] says
    /// elsewhere.
    #[must_use]
    pub fn take_orphaned(&self) -> Vec<forebay_model::FileId> {
        Vec::new()
    }
}
