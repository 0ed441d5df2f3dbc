//! Operations that involve several servers: the coordinator's side of an intent, as a state machine.

use super::copies::unexpected_reply;
use super::intents::Claim;
use super::messages::{Carried, IntentId, NameReply, NameRequest, Op, Part, Prepare, Verdict};
use super::parts::Refusal;
use super::plan::{Known, Moving, NoPlan, Outcome, Plan, Planned};
use super::{Inode, Names, Obstacle, Stopped};
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId, Stamp};
use std::collections::BTreeMap;

/// Maximum number of attempts of an operation that conflicts with others.
const MAX_ROUNDS: u32 = 500;
/// Maximum number of obstacles of an operation: every directory above it may be one.
const MAX_OBSTACLES: u32 = 1 << 16;

/// An operation in progress. If it is dropped before its end, it is undone.
pub struct Task {
    who: Identity,
    op: Op,
    now: Stamp,
    stage: Stage,
    known: Known,
    moving: Option<Moving>,
    rounds: u32,
    obstacles: u32,
}

/// What the task waits for.
enum Stage {
    /// Nothing: it is to be planned.
    Plan,
    /// Replies needed for planning.
    Known(Vec<(ServerId, NameRequest)>),
    /// Another coordinator.
    Forwarded(ServerId),
    /// Servers that prepare their parts.
    Prepared(Box<Prepared>),
    /// The given number of servers that undo their prepared parts, followed by servers on which conflicting intents
    /// must finish.
    Undone(usize),
    /// Nothing: the task has ended.
    Over,
}

struct Prepared {
    /// Our own parts, unless they were refused.
    claim: Option<Claim>,
    intent: IntentId,
    others: Vec<ServerId>,
    refusals: Vec<(usize, Error)>,
    outcome: Outcome,
    linked: Option<Inode>,
}

/// The next action for a task.
#[derive(Debug)]
pub enum Next {
    /// Send these requests concurrently; then call [`Task::next`] with the replies, in this order.
    NameRequest(Vec<(ServerId, NameRequest)>),
    /// Resolve this obstacle; then call [`Task::next`] without replies.
    Obstacle(Obstacle),
    /// The task has ended. Send these servers the outcome; a server that does not receive it will query it, or is
    /// notified through [`Names::unfinished`].
    Done(Result<Carried>, Vec<(ServerId, NameRequest)>),
}

impl Names {
    /// Begins an operation that may involve several servers.
    #[must_use]
    pub fn task(&self, who: Identity, op: Op, now: Stamp) -> Task {
        Task {
            who,
            op,
            now,
            stage: Stage::Plan,
            known: Known::default(),
            moving: None,
            rounds: 0,
            obstacles: 0,
        }
    }
}

impl Task {
    /// Continues with the replies to the last requests; an error means that a server could not be reached or failed.
    pub fn next(&mut self, names: &Names, replies: Vec<Result<NameReply>>) -> Next {
        let next = self.advance(names, replies);
        if matches!(next, Next::Done(..)) {
            self.moving = None;
        }
        next
    }

    fn advance(&mut self, names: &Names, replies: Vec<Result<NameReply>>) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Plan => self.plan(names),
            Stage::Known(asked) => match self.learn(asked, replies) {
                Ok(()) => self.plan(names),
                Err(error) => over(Err(error)),
            },
            Stage::Forwarded(server) => over(match replies.into_iter().next() {
                Some(Ok(NameReply::Carried(carried))) => Ok(carried),
                Some(Err(error)) => Err(error),
                _ => Err(unexpected_reply(server)),
            }),
            Stage::Prepared(prepared) => self.decide_prepared(names, *prepared, replies),
            // A server that did not receive the undo will query the outcome, but conflicting intents must have
            // finished.
            Stage::Undone(count) => match replies.into_iter().skip(count).find_map(Result::err) {
                Some(error) => over(Err(error)),
                None => self.pause(),
            },
            Stage::Over => over(Err(Error::new(ErrorKind::Invalid, "the operation has already ended"))),
        }
    }

    fn plan(&mut self, names: &Names) -> Next {
        match names.plan(&self.who, &self.op, &self.known, &mut self.moving) {
            Ok(Planned::Forward(server)) => {
                self.stage = Stage::Forwarded(server);
                Next::NameRequest(vec![(server, NameRequest::Carry(self.who.clone(), self.op.clone()))])
            }
            Ok(Planned::Parts(plan)) => self.prepare(names, *plan),
            Err(NoPlan::Unknown(server, ask)) => {
                self.stage = Stage::Known(vec![(server, ask.clone())]);
                Next::NameRequest(vec![(server, ask)])
            }
            Err(NoPlan::Stopped(stopped)) => self.stop(stopped),
        }
    }

    fn stop(&mut self, stopped: Stopped) -> Next {
        match stopped {
            Stopped::Failed(error) => over(Err(error)),
            Stopped::Obstacle(Obstacle::Busy) => self.pause(),
            Stopped::Obstacle(obstacle) => {
                self.stage = Stage::Plan;
                self.obstacles += 1;
                self.check_limits().unwrap_or(Next::Obstacle(obstacle))
            }
        }
    }

    /// Waits for conflicting operations, then plans again.
    fn pause(&mut self) -> Next {
        self.known = Known::default();
        self.moving = None;
        self.stage = Stage::Plan;
        self.rounds += 1;
        self.check_limits().unwrap_or(Next::Obstacle(Obstacle::Busy))
    }

    /// Ends the task if it makes no progress.
    fn check_limits(&mut self) -> Option<Next> {
        (self.rounds > MAX_ROUNDS || self.obstacles > MAX_OBSTACLES).then(|| {
            self.stage = Stage::Over;
            let text = format!("the operation conflicted with others {} times: try again", self.rounds);
            over(Err(Error::new(ErrorKind::Busy, text)))
        })
    }

    fn learn(&mut self, asked: Vec<(ServerId, NameRequest)>, replies: Vec<Result<NameReply>>) -> Result<()> {
        for ((server, ask), reply) in asked.into_iter().zip(replies) {
            match (ask, reply?) {
                (NameRequest::Entry(dir, name), NameReply::Entry(target)) => {
                    self.known.entries.insert((dir, name), target);
                }
                (NameRequest::Kind(file), NameReply::Kind(kind)) => drop(self.known.kinds.insert(file, kind)),
                _ => return Err(unexpected_reply(server)),
            }
        }
        Ok(())
    }

    fn prepare(&mut self, names: &Names, plan: Plan) -> Next {
        let intent = match names.new_intent() {
            Ok(intent) => intent,
            Err(error) => return over(Err(error)),
        };
        let Plan { parts, mut refusals, outcome } = plan;
        let mut linked = None;
        let mut by_server: BTreeMap<ServerId, Vec<(usize, Part)>> = BTreeMap::new();
        for (server, place, part) in parts {
            by_server.entry(server).or_default().push((place, part));
        }
        let prepare = |parts| Prepare { intent, who: self.who.clone(), now: self.now, parts };
        let ours = prepare(by_server.remove(&names.server()).unwrap_or_default());
        let claim = match names.claim(&ours) {
            Ok((claim, inodes)) => {
                linked = inodes.into_iter().next().map(|(_, inode)| inode);
                Some(claim)
            }
            Err(Refusal::Refused(place, error)) => {
                refusals.push((place, error));
                None
            }
            Err(Refusal::Stopped(stopped)) => return self.stop(stopped),
        };
        let others: Vec<_> = by_server.keys().copied().collect();
        let asks: Vec<_> = by_server
            .into_iter()
            .map(|(server, parts)| (server, NameRequest::Prepare(prepare(parts))))
            .collect();
        let prepared = Prepared { claim, intent, others, refusals, outcome, linked };
        if asks.is_empty() {
            return self.decide_prepared(names, prepared, Vec::new());
        }
        self.stage = Stage::Prepared(Box::new(prepared));
        Next::NameRequest(asks)
    }

    /// Decides after all servers have replied to the prepare requests.
    fn decide_prepared(
        &mut self,
        names: &Names,
        prepared: Prepared,
        replies: Vec<Result<NameReply>>,
    ) -> Next {
        let Prepared { claim, intent, others, mut refusals, outcome, mut linked } = prepared;
        let notify = |verdict| -> Vec<_> {
            others.iter().map(|&server| (server, NameRequest::Finish(intent, verdict))).collect()
        };
        let (mut busy, mut locked, mut failed) = (false, Vec::new(), None);
        for (&server, reply) in others.iter().zip(replies) {
            match reply {
                Ok(NameReply::Prepared(inodes)) => {
                    linked = inodes.into_iter().next().map(|(_, inode)| inode).or(linked);
                }
                Ok(NameReply::Busy) => busy = true,
                Ok(NameReply::Locked(other)) => locked.push((server, NameRequest::AwaitUnlock(other))),
                Ok(NameReply::Refused(place, error)) => refusals.push((place, error)),
                Ok(_) => failed = Some(unexpected_reply(server)),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Next::Done(Err(error), notify(Verdict::Undone));
        }
        if busy || !locked.is_empty() {
            drop(claim);
            let undo = notify(Verdict::Undone);
            self.stage = Stage::Undone(undo.len());
            return Next::NameRequest(undo.into_iter().chain(locked).collect());
        }
        refusals.sort_by_key(|(place, _)| *place);
        let refusal = refusals.into_iter().next().map(|(_, error)| error);
        match (refusal, claim, outcome) {
            (None, Some(claim), Outcome::Carried(carried)) => {
                match names.decide(claim, self.now, others.clone()) {
                    Ok(()) => Next::Done(
                        Ok(Carried { linked: linked.map(Box::new), ..carried }),
                        notify(Verdict::Done),
                    ),
                    Err(error) => over(Err(error)),
                }
            }
            (None, _, Outcome::Unchanged(result)) => Next::Done(result, notify(Verdict::Undone)),
            (refusal, ..) => {
                let error = refusal.unwrap_or_else(|| Error::from(ErrorKind::Busy));
                Next::Done(Err(error), notify(Verdict::Undone))
            }
        }
    }
}

fn over(result: Result<Carried>) -> Next {
    Next::Done(result, Vec::new())
}
