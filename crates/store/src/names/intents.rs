//! Intents: the parts that this server prepared for others, and the intents that it coordinates.
//!
//! A coordinator stores nothing durable about an intent until it is done; then the batch that carries out its own parts
//! records which servers to notify. An intent unknown to its coordinator is undone. A server that has prepared parts
//! keeps a durable record of them, and the locks, until it knows the outcome.

use super::holds::Holds;
use super::key;
use super::messages::{IntentId, NameReply, NameRequest, Part, Prepare, Verdict, from_record, to_bytes};
use super::parts::Refusal;
use super::{Attempt, Inode, Names, Obstacle, Stopped, damaged};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId, Stamp};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

const VERSION: u8 = 1;

/// Prepared parts as stored.
#[derive(Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) now: Stamp,
    pub(super) parts: Vec<Part>,
}

/// The intents that this server coordinates, and those that it has prepared.
#[derive(Default)]
pub(super) struct Intents {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ours: HashMap<IntentId, Stage>,
    prepared: Vec<IntentId>,
    orphaned: Vec<FileId>,
}

enum Stage {
    /// Undecided.
    Open,
    /// Done, but the record may not be durable yet; these servers must be notified.
    Noted(Vec<ServerId>),
    /// Durably done; these servers must be notified.
    Done(Vec<ServerId>),
}

/// An intent in progress, with its locks on this server. If it is dropped before it is decided, the intent is undone.
pub(super) struct Claim {
    pub(super) intent: IntentId,
    pub(super) parts: Vec<Part>,
    holds: Arc<Holds>,
    intents: Arc<Intents>,
    done: bool,
}

impl Intents {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether an intent holds locks on this server.
    fn is_open(&self, intent: IntentId) -> bool {
        let state = self.state();
        state.prepared.contains(&intent) || matches!(state.ours.get(&intent), Some(Stage::Open))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.holds.release(self.intent, self.parts.iter());
        if !self.done {
            self.intents.state().ours.remove(&self.intent);
        }
    }
}

impl Names {
    /// Loads prepared parts and decisions after a restart.
    pub(super) fn load_intents(&self) -> Result<()> {
        let mut noted = Vec::new();
        for prefix in [key::PREPARED, key::DECIDED] {
            self.kv.scan(prefix, &[], &mut |key, value| {
                noted.push((key.to_vec(), value.to_vec()));
                ControlFlow::Continue(())
            })?;
        }
        if noted.is_empty() {
            return Ok(());
        }
        // Other servers rely on these records, so they must be durable, even if the last run did not sync them.
        self.kv.sync()?;
        for (key, value) in noted {
            let Some((id, [])) = key::split_id(&key) else {
                return Err(damaged(format!("\"{}\" is not the key of an intent", key.escape_ascii())));
            };
            let intent = IntentId(id);
            match key.starts_with(key::PREPARED) {
                true => {
                    let parts = Noted::decode(intent, &value)?.parts;
                    let held = self.holds.take(intent, parts.iter());
                    held.map_err(|other| {
                        damaged(format!("intents {} and {} hold the same lock", intent.0, other.0))
                    })?;
                    self.intents.state().prepared.push(intent);
                }
                false => {
                    let left = decode_decision(intent, &value)?;
                    self.intents.state().ours.insert(intent, Stage::Done(left));
                }
            }
        }
        Ok(())
    }

    /// Checks, locks and records parts for another server.
    pub(super) fn prepare(&self, prepare: &Prepare) -> Attempt<NameReply> {
        let Prepare { intent, now, parts, .. } = prepare;
        if intent.coordinator() == self.server() {
            return Err(Error::new(
                ErrorKind::Protocol,
                format!("intent {} belongs to this server", intent.0),
            )
            .into());
        }
        let guards: Vec<_> = parts.iter().map(|(_, part)| part.guard()).collect();
        let held = self.locks.hold(&guards);
        if self.kv.get(&key::prepared(*intent))?.is_some() {
            return Ok(NameReply::Prepared(Vec::new()));
        }
        let inodes = match self.check_and_lock(prepare) {
            Ok(inodes) => inodes,
            Err(Refusal::Refused(place, error)) => return Ok(NameReply::Refused(place, error)),
            // A part never waits for another intent, which may be waiting for it.
            Err(Refusal::Stopped(Stopped::Obstacle(Obstacle::Intent(other)))) => {
                return Ok(NameReply::Locked(other));
            }
            Err(Refusal::Stopped(Stopped::Obstacle(Obstacle::Busy))) => return Ok(NameReply::Busy),
            Err(Refusal::Stopped(stopped)) => return Err(stopped),
        };
        let noted = Noted { now: *now, parts: parts.iter().map(|(_, part)| part.clone()).collect() };
        let mut batch = Batch::default();
        batch.put(key::prepared(*intent), noted.encode());
        if let Err(error) = self.kv.commit(batch) {
            self.holds.release(*intent, noted.parts.iter());
            return Err(error.into());
        }
        self.intents.state().prepared.push(*intent);
        drop(held);
        self.kv.sync()?;
        Ok(NameReply::Prepared(inodes))
    }

    fn check_and_lock(&self, prepare: &Prepare) -> Result<Vec<(FileId, Inode)>, Refusal> {
        let parts = prepare.parts.iter().map(|(_, part)| part);
        if let Some(other) = self.holds.conflicting(parts.clone()) {
            return Err(Refusal::Stopped(Obstacle::Intent(other).into()));
        }
        let (mut inodes, mut refused) = (Vec::new(), None);
        for (place, part) in &prepare.parts {
            match self.check_part(&prepare.who, prepare.now, *place, part) {
                Ok(inode) => inodes.extend(inode),
                // Of several refusals, report the one that a single server would report first.
                Err(Refusal::Refused(place, error)) => {
                    if refused.as_ref().is_none_or(|(first, _)| place < *first) {
                        refused = Some((place, error));
                    }
                }
                Err(stopped) => return Err(stopped),
            }
        }
        if let Some((place, error)) = refused {
            return Err(Refusal::Refused(place, error));
        }
        let taken = self.holds.take(prepare.intent, parts);
        taken.map_err(|other| Refusal::Stopped(Obstacle::Intent(other).into()))?;
        Ok(inodes)
    }

    /// Begins an intent of our own: checks and locks the parts on this server.
    pub(super) fn claim(&self, prepare: &Prepare) -> Result<(Claim, Vec<(FileId, Inode)>), Refusal> {
        let guards: Vec<_> = prepare.parts.iter().map(|(_, part)| part.guard()).collect();
        let _held = self.locks.hold(&guards);
        let inodes = self.check_and_lock(prepare)?;
        self.intents.state().ours.insert(prepare.intent, Stage::Open);
        let parts = prepare.parts.iter().map(|(_, part)| part.clone()).collect();
        let (holds, intents) = (Arc::clone(&self.holds), Arc::clone(&self.intents));
        Ok((Claim { intent: prepare.intent, parts, holds, intents, done: false }, inodes))
    }

    pub(super) fn new_intent(&self) -> Result<IntentId> {
        Ok(IntentId(self.ids.next(&*self.kv)?))
    }

    /// Carries out our own parts and records in the same batch that the intent is done.
    pub(super) fn decide(&self, mut claim: Claim, now: Stamp, others: Vec<ServerId>) -> Result<()> {
        let intent = claim.intent;
        let held = self.locks.hold(&claim.parts.iter().map(Part::guard).collect::<Vec<_>>());
        let mut edit = self.edit();
        let mut orphaned = Vec::new();
        for part in &claim.parts {
            orphaned.extend(self.do_part(&mut edit, now, part)?);
        }
        if !others.is_empty() {
            edit.put(key::decided(intent), &encode_decision(&others));
        }
        edit.commit()?;
        drop(held);
        claim.done = true;
        let mut state = self.intents.state();
        state.orphaned.extend(orphaned);
        if others.is_empty() {
            state.ours.remove(&intent);
            return Ok(());
        }
        state.ours.insert(intent, Stage::Noted(others));
        drop(state);
        // From here on the intent is done, also if this fails; the next attempt notifies the other servers.
        self.make_durable(intent)
    }

    /// Makes a decision durable before other servers are notified of it.
    fn make_durable(&self, intent: IntentId) -> Result<()> {
        self.kv.sync()?;
        let mut state = self.intents.state();
        if let Some(Stage::Noted(left)) = state.ours.get_mut(&intent) {
            let left = std::mem::take(left);
            state.ours.insert(intent, Stage::Done(left));
        }
        Ok(())
    }

    /// The outcome of an intent of ours; `None` while undecided.
    pub(super) fn verdict(&self, intent: IntentId) -> Result<Option<Verdict>> {
        let noted = matches!(self.intents.state().ours.get(&intent), Some(Stage::Noted(_)));
        if noted {
            self.make_durable(intent)?;
        }
        Ok(match self.intents.state().ours.get(&intent) {
            None => Some(Verdict::Undone),
            Some(Stage::Done(_)) => Some(Verdict::Done),
            Some(Stage::Open | Stage::Noted(_)) => None,
        })
    }

    /// Carries out or undoes the prepared parts of an intent, if there are any.
    pub fn finish(&self, intent: IntentId, verdict: Verdict) -> Result<()> {
        let Some(value) = self.kv.get(&key::prepared(intent))? else { return Ok(()) };
        let noted = Noted::decode(intent, &value)?;
        let held = self.locks.hold(&noted.parts.iter().map(Part::guard).collect::<Vec<_>>());
        // Another thread may have finished it.
        if self.kv.get(&key::prepared(intent))?.is_none() {
            return Ok(());
        }
        let mut edit = self.edit();
        let mut orphaned = Vec::new();
        if verdict == Verdict::Done {
            for part in &noted.parts {
                orphaned.extend(self.do_part(&mut edit, noted.now, part)?);
            }
        }
        edit.remove(key::prepared(intent));
        edit.commit()?;
        self.holds.release(intent, noted.parts.iter());
        drop(held);
        let mut state = self.intents.state();
        state.prepared.retain(|&other| other != intent);
        state.orphaned.extend(orphaned);
        drop(state);
        // The coordinator forgets the intent when all servers have finished it.
        self.kv.sync()
    }

    /// Intents of which this server prepared parts that are not finished. After a restart, and periodically, the caller
    /// queries their coordinators: [`Names::question`] with [`Obstacle::Intent`].
    #[must_use]
    pub fn prepared(&self) -> Vec<IntentId> {
        self.intents.state().prepared.clone()
    }

    /// Decisions of this server to send to others, until [`Names::acknowledged`] confirms them.
    pub fn unfinished(&self) -> Result<Vec<(ServerId, NameRequest)>> {
        let noted: Vec<_> = {
            let state = self.intents.state();
            let noted = state.ours.iter().filter(|(_, stage)| matches!(stage, Stage::Noted(_)));
            noted.map(|(&intent, _)| intent).collect()
        };
        noted.into_iter().try_for_each(|intent| self.make_durable(intent))?;
        let mut notify = Vec::new();
        for (&intent, stage) in &self.intents.state().ours {
            if let Stage::Done(left) = stage {
                notify
                    .extend(left.iter().map(|&server| (server, NameRequest::Finish(intent, Verdict::Done))));
            }
        }
        Ok(notify)
    }

    /// Records that a server has replied [`NameReply::Done`] to [`NameRequest::Finish`].
    pub fn acknowledged(&self, server: ServerId, intent: IntentId) -> Result<()> {
        let mut state = self.intents.state();
        let Some(Stage::Done(left)) = state.ours.get_mut(&intent) else { return Ok(()) };
        left.retain(|&other| other != server);
        if !left.is_empty() {
            return Ok(());
        }
        state.ours.remove(&intent);
        drop(state);
        let mut batch = Batch::default();
        batch.remove(key::decided(intent));
        self.kv.commit(batch)
    }

    /// Files that lost their last name through an intent since the last call; the counterpart of
    /// [`super::Fate::Orphaned`].
    #[must_use]
    pub fn take_orphaned(&self) -> Vec<FileId> {
        std::mem::take(&mut self.intents.state().orphaned)
    }

    /// Handles a request of another server. The caller resolves an obstacle on this server and calls again.
    pub fn answer(&self, from: ServerId, ask: &NameRequest) -> Attempt<NameReply> {
        let misdirected = || {
            let text = format!("server {from} may not send this request about names");
            Stopped::from(Error::new(ErrorKind::Protocol, text))
        };
        Ok(match ask {
            NameRequest::Copy(dir) => NameReply::Copy(self.lend_copy(*dir)?),
            NameRequest::Drop(dir) if self.authority(*dir) != from => return Err(misdirected()),
            NameRequest::Drop(dir) => {
                self.drop_copy(*dir);
                NameReply::Done
            }
            NameRequest::Kind(file) => NameReply::Kind(self.inode(*file)?.kind()),
            NameRequest::Entry(dir, name) => {
                self.check_home(*dir, name)?;
                NameReply::Entry(self.settled_entry(*dir, name)?)
            }
            NameRequest::Reach(who, file) => {
                self.reach(who, *file)?;
                NameReply::Done
            }
            NameRequest::Prepare(prepare) if prepare.intent.coordinator() != from => {
                return Err(misdirected());
            }
            NameRequest::Prepare(prepare) => self.prepare(prepare)?,
            NameRequest::Finish(intent, _) if intent.coordinator() != from => return Err(misdirected()),
            NameRequest::Finish(intent, verdict) => {
                self.finish(*intent, *verdict)?;
                NameReply::Done
            }
            NameRequest::Verdict(intent) if intent.coordinator() != self.server() => {
                return Err(misdirected());
            }
            NameRequest::Verdict(intent) => NameReply::Verdict(self.verdict(*intent)?),
            NameRequest::AwaitUnlock(intent) if self.intents.is_open(*intent) => {
                return Err(Obstacle::Intent(*intent).into());
            }
            NameRequest::AwaitUnlock(_) => NameReply::Done,
            NameRequest::Carry(..) => return Err(misdirected()),
            NameRequest::Revive(dir, place) => {
                self.revive(*dir, place.as_ref())?;
                NameReply::Done
            }
        })
    }
}

impl Noted {
    fn encode(&self) -> Vec<u8> {
        let mut value = vec![VERSION];
        value.extend(to_bytes(self));
        value
    }

    pub(super) fn decode(intent: IntentId, value: &[u8]) -> Result<Noted> {
        match value {
            [VERSION, rest @ ..] => from_record(rest, format!("the prepared parts of intent {}", intent.0)),
            _ => Err(damaged(format!("the prepared parts of intent {} cannot be read", intent.0))),
        }
    }
}

fn encode_decision(left: &[ServerId]) -> Vec<u8> {
    let mut value = vec![VERSION];
    value.extend(to_bytes(&left));
    value
}

pub(super) fn decode_decision(intent: IntentId, value: &[u8]) -> Result<Vec<ServerId>> {
    match value {
        [VERSION, rest @ ..] => from_record(rest, format!("the decision on intent {}", intent.0)),
        _ => Err(damaged(format!("the decision on intent {} cannot be read", intent.0))),
    }
}
