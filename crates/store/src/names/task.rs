//! Carrying out what concerns several servers: the coordinator's side of an intent, one step at a time.

use super::copies::nonsense;
use super::intents::Claim;
use super::parts::Refusal;
use super::plan::{Known, Moving, NoPlan, Outcome, Plan, Planned};
use super::talk::{Ask, Carried, IntentId, Op, Part, Prepare, Told, Verdict};
use super::{Inode, Names, Obstacle, Stopped};
use forebay_model::{Error, ErrorKind, Identity, Result, ServerId, Stamp};
use std::collections::BTreeMap;

/// How often an operation is tried while others are in its way.
const MAX_ROUNDS: u32 = 500;
/// How many obstacles of its own an operation gets over: every directory above it may be one.
const MAX_OBSTACLES: u32 = 1 << 16;

/// An operation under way. Dropped before its end, it never was.
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
    /// Answers to what has to be known.
    Known(Vec<(ServerId, Ask)>),
    /// Another coordinator.
    Forwarded(ServerId),
    /// Servers that prepare their parts.
    Prepared(Box<Prepared>),
    /// Servers that undo what they prepared, so many, and then those where others have to finish first.
    Undone(usize),
    /// Nothing any more.
    Over,
}

struct Prepared {
    /// Our own parts, unless they cannot be.
    claim: Option<Claim>,
    intent: IntentId,
    others: Vec<ServerId>,
    refusals: Vec<(usize, Error)>,
    outcome: Outcome,
    linked: Option<Inode>,
}

/// What to do for a task next.
#[derive(Debug)]
pub enum Next {
    /// Ask these, all at the same time; then [`Task::next`] with what they said, in this order.
    Ask(Vec<(ServerId, Ask)>),
    /// Deal with this; then [`Task::next`] with nothing.
    Obstacle(Obstacle),
    /// It is over. Somebody should tell these what became of it; whoever does not hear it now will ask, or be told
    /// by way of [`Names::unfinished`].
    Done(Result<Carried>, Vec<(ServerId, Ask)>),
}

impl Names {
    /// Begins an operation that may concern several servers.
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
    /// Goes on. `told` are the answers to what was asked; an error means that a server could not be asked, or that it
    /// failed.
    pub fn next(&mut self, names: &Names, told: Vec<Result<Told>>) -> Next {
        let next = self.go_on(names, told);
        if matches!(next, Next::Done(..)) {
            self.moving = None;
        }
        next
    }

    fn go_on(&mut self, names: &Names, told: Vec<Result<Told>>) -> Next {
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Plan => self.plan(names),
            Stage::Known(asked) => match self.learn(asked, told) {
                Ok(()) => self.plan(names),
                Err(error) => over(Err(error)),
            },
            Stage::Forwarded(server) => over(match told.into_iter().next() {
                Some(Ok(Told::Carried(carried))) => Ok(carried),
                Some(Err(error)) => Err(error),
                told => Err(strange(server, &format!("{told:?}"))),
            }),
            Stage::Prepared(prepared) => self.weigh(names, *prepared, told),
            // Whoever did not hear that it was undone will ask. But those in the way have to get out of it.
            Stage::Undone(count) => match told.into_iter().skip(count).find_map(Result::err) {
                Some(error) => over(Err(error)),
                None => self.pause(),
            },
            Stage::Over => over(Err(Error::new(ErrorKind::Invalid, "the operation is over already"))),
        }
    }

    fn plan(&mut self, names: &Names) -> Next {
        match names.plan(&self.who, &self.op, &self.known, &mut self.moving) {
            Ok(Planned::Forward(server)) => {
                self.stage = Stage::Forwarded(server);
                Next::Ask(vec![(server, Ask::Carry(self.who.clone(), self.op.clone()))])
            }
            Ok(Planned::Parts(plan)) => self.prepare(names, *plan),
            Err(NoPlan::Unknown(server, ask)) => {
                self.stage = Stage::Known(vec![(server, ask.clone())]);
                Next::Ask(vec![(server, ask)])
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
                self.unless_endless().unwrap_or(Next::Obstacle(obstacle))
            }
        }
    }

    /// Lets others go first, and plans anew.
    fn pause(&mut self) -> Next {
        self.known = Known::default();
        self.moving = None;
        self.stage = Stage::Plan;
        self.rounds += 1;
        self.unless_endless().unwrap_or(Next::Obstacle(Obstacle::Busy))
    }

    /// Ends the task if it gets nowhere.
    fn unless_endless(&mut self) -> Option<Next> {
        (self.rounds > MAX_ROUNDS || self.obstacles > MAX_OBSTACLES).then(|| {
            self.stage = Stage::Over;
            let text = format!("{:?} met others in its way {} times: try again", self.op, self.rounds);
            over(Err(Error::new(ErrorKind::Busy, text)))
        })
    }

    fn learn(&mut self, asked: Vec<(ServerId, Ask)>, told: Vec<Result<Told>>) -> Result<()> {
        for ((server, ask), told) in asked.into_iter().zip(told) {
            match (ask, told?) {
                (Ask::Entry(dir, name), Told::Entry(target)) => {
                    self.known.entries.insert((dir, name), target);
                }
                (Ask::Kind(file), Told::Kind(kind)) => drop(self.known.kinds.insert(file, kind)),
                (ask, told) => return Err(nonsense(server, &ask, &told)),
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
        let asks: Vec<_> =
            by_server.into_iter().map(|(server, parts)| (server, Ask::Prepare(prepare(parts)))).collect();
        let prepared = Prepared { claim, intent, others, refusals, outcome, linked };
        if asks.is_empty() {
            return self.weigh(names, prepared, Vec::new());
        }
        self.stage = Stage::Prepared(Box::new(prepared));
        Next::Ask(asks)
    }

    /// All have said whether they are prepared: decides.
    fn weigh(&mut self, names: &Names, prepared: Prepared, told: Vec<Result<Told>>) -> Next {
        let Prepared { claim, intent, others, mut refusals, outcome, mut linked } = prepared;
        let tell = |verdict| -> Vec<_> {
            others.iter().map(|&server| (server, Ask::Finish(intent, verdict))).collect()
        };
        let (mut busy, mut locked, mut failed) = (false, Vec::new(), None);
        for (&server, told) in others.iter().zip(told) {
            match told {
                Ok(Told::Prepared(inodes)) => {
                    linked = inodes.into_iter().next().map(|(_, inode)| inode).or(linked);
                }
                Ok(Told::Busy) => busy = true,
                Ok(Told::Locked(other)) => locked.push((server, Ask::Settle(other))),
                Ok(Told::Refused(place, error)) => refusals.push((place, error)),
                Ok(other) => failed = Some(strange(server, &format!("{other:?}"))),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Next::Done(Err(error), tell(Verdict::Undone));
        }
        if busy || !locked.is_empty() {
            drop(claim);
            let undo = tell(Verdict::Undone);
            self.stage = Stage::Undone(undo.len());
            return Next::Ask(undo.into_iter().chain(locked).collect());
        }
        refusals.sort_by_key(|(place, _)| *place);
        let refusal = refusals.into_iter().next().map(|(_, error)| error);
        match (refusal, claim, outcome) {
            (None, Some(claim), Outcome::Carried(carried)) => {
                match names.decide(claim, self.now, others.clone()) {
                    Ok(()) => Next::Done(
                        Ok(Carried { linked: linked.map(Box::new), ..carried }),
                        tell(Verdict::Done),
                    ),
                    Err(error) => over(Err(error)),
                }
            }
            (None, _, Outcome::Told(told)) => Next::Done(told, tell(Verdict::Undone)),
            (refusal, ..) => {
                let error = refusal.unwrap_or_else(|| Error::from(ErrorKind::Busy));
                Next::Done(Err(error), tell(Verdict::Undone))
            }
        }
    }
}

fn over(result: Result<Carried>) -> Next {
    Next::Done(result, Vec::new())
}

fn strange(server: ServerId, told: &str) -> Error {
    let text = format!("server {server} said {told} about an intent: are all servers of one version?");
    Error::new(ErrorKind::Protocol, text)
}
