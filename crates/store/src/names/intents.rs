//! Intents: what this server has prepared for others, and what it decides itself.
//!
//! A coordinator keeps nothing durable about an intent until it is done; then, in the batch that does its own parts,
//! it notes who has to hear of it. An intent that it does not know never was. Whoever has prepared something keeps a
//! durable note of it, and with it the locks, until it knows what became of the intent.

use super::holds::Holds;
use super::key;
use super::parts::Refusal;
use super::talk::{Ask, IntentId, Part, Prepare, Told, Verdict, from_record, to_bytes};
use super::{Attempt, Inode, Names, Obstacle, Stopped, damaged};
use crate::meta::Batch;
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId, Stamp};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const VERSION: u8 = 1;

/// Parts as they are noted in the store.
#[derive(Serialize, Deserialize)]
pub(super) struct Noted {
    pub(super) now: Stamp,
    pub(super) parts: Vec<Part>,
}

/// The intents that this server decides about, and those that it has prepared.
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
    /// Nothing is decided.
    Open,
    /// It is done, but the note may not survive the machine yet; these have to hear of it.
    Noted(Vec<ServerId>),
    /// It is done for good; these have to hear of it.
    Done(Vec<ServerId>),
}

/// An intent in the making, with its locks on what is here. Dropped before it is done, it never was.
pub(super) struct Claim {
    pub(super) intent: IntentId,
    pub(super) parts: Vec<Part>,
    holds: Arc<Holds>,
    intents: Arc<Intents>,
    done: bool,
}

impl Intents {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an intent has something locked here.
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
    /// Brings back what was prepared and what was decided.
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
        // What others will rely on must not depend on what the last life left unwritten.
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
                    held.map_err(|other| damaged(format!("{intent:?} and {other:?} have locked the same")))?;
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

    /// Checks, locks and notes parts for another server.
    pub(super) fn prepare(&self, prepare: &Prepare) -> Attempt<Told> {
        let Prepare { intent, now, parts, .. } = prepare;
        if intent.coordinator() == self.server() {
            return Err(Error::new(ErrorKind::Protocol, format!("{intent:?} is our own")).into());
        }
        let guards: Vec<_> = parts.iter().map(|(_, part)| part.guard()).collect();
        let held = self.locks.hold(&guards);
        if self.kv.get(&key::prepared(*intent))?.is_some() {
            return Ok(Told::Prepared(Vec::new()));
        }
        let inodes = match self.check_and_lock(prepare) {
            Ok(inodes) => inodes,
            Err(Refusal::Refused(place, error)) => return Ok(Told::Refused(place, error)),
            // A part never waits for another intent, which may wait for it.
            Err(Refusal::Stopped(Stopped::Obstacle(Obstacle::Intent(other)))) => {
                return Ok(Told::Locked(other));
            }
            Err(Refusal::Stopped(Stopped::Obstacle(Obstacle::Busy))) => return Ok(Told::Busy),
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
        Ok(Told::Prepared(inodes))
    }

    fn check_and_lock(&self, prepare: &Prepare) -> Result<Vec<(FileId, Inode)>, Refusal> {
        let parts = prepare.parts.iter().map(|(_, part)| part);
        if let Some(other) = self.holds.in_the_way(parts.clone()) {
            return Err(Refusal::Stopped(Obstacle::Intent(other).into()));
        }
        let (mut inodes, mut refused) = (Vec::new(), None);
        for (place, part) in &prepare.parts {
            match self.check_part(&prepare.who, prepare.now, *place, part) {
                Ok(inode) => inodes.extend(inode),
                // Of several that cannot be, the one that is checked first elsewhere too.
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

    /// Begins an intent of our own: checks and locks the parts that are here.
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

    /// Does our own parts, and with them notes that the intent is done.
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
        // From here on it is done, whatever happens; that nobody hears of it is for the next attempt to mend.
        self.make_durable(intent)
    }

    /// Others may hear of what is done only when that survives the death of the machine.
    fn make_durable(&self, intent: IntentId) -> Result<()> {
        self.kv.sync()?;
        let mut state = self.intents.state();
        if let Some(Stage::Noted(left)) = state.ours.get_mut(&intent) {
            let left = std::mem::take(left);
            state.ours.insert(intent, Stage::Done(left));
        }
        Ok(())
    }

    /// What became of an intent of ours; nothing if that is open.
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

    /// Does or undoes what was prepared for an intent, if anything was.
    pub fn finish(&self, intent: IntentId, verdict: Verdict) -> Result<()> {
        let Some(value) = self.kv.get(&key::prepared(intent))? else { return Ok(()) };
        let noted = Noted::decode(intent, &value)?;
        let held = self.locks.hold(&noted.parts.iter().map(Part::guard).collect::<Vec<_>>());
        // Somebody else may have been faster.
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
        // The coordinator forgets the intent when all have finished it.
        self.kv.sync()
    }

    /// Intents that this server prepared parts of and that nobody has finished yet. After a start, and now and then,
    /// their coordinators are to be asked: [`Names::question`] with [`Obstacle::Intent`].
    #[must_use]
    pub fn prepared(&self) -> Vec<IntentId> {
        self.intents.state().prepared.clone()
    }

    /// What this server decided and has still to tell others, until [`Names::told`].
    pub fn unfinished(&self) -> Result<Vec<(ServerId, Ask)>> {
        let noted: Vec<_> = {
            let state = self.intents.state();
            let noted = state.ours.iter().filter(|(_, stage)| matches!(stage, Stage::Noted(_)));
            noted.map(|(&intent, _)| intent).collect()
        };
        noted.into_iter().try_for_each(|intent| self.make_durable(intent))?;
        let mut tell = Vec::new();
        for (&intent, stage) in &self.intents.state().ours {
            if let Stage::Done(left) = stage {
                tell.extend(left.iter().map(|&server| (server, Ask::Finish(intent, Verdict::Done))));
            }
        }
        Ok(tell)
    }

    /// A server has answered [`Told::Done`] to [`Ask::Finish`].
    pub fn told(&self, server: ServerId, intent: IntentId) -> Result<()> {
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

    /// Files that lost their last name by an intent since this was last asked: what [`super::Fate::Orphaned`] says
    /// elsewhere.
    #[must_use]
    pub fn take_orphaned(&self) -> Vec<FileId> {
        std::mem::take(&mut self.intents.state().orphaned)
    }

    /// Answers another server. An obstacle is for this server to deal with, before it calls again.
    pub fn answer(&self, from: ServerId, ask: &Ask) -> Attempt<Told> {
        let misdirected = || {
            let text = format!("server {from} is not the one to say {ask:?}");
            Stopped::from(Error::new(ErrorKind::Protocol, text))
        };
        Ok(match ask {
            Ask::Copy(dir) => Told::Copy(self.lend_copy(*dir)?),
            Ask::Drop(dir) if self.authority(*dir) != from => return Err(misdirected()),
            Ask::Drop(dir) => {
                self.drop_copy(*dir);
                Told::Done
            }
            Ask::Kind(file) => Told::Kind(self.inode(*file)?.kind()),
            Ask::Entry(dir, name) => {
                self.demand_home(*dir, name)?;
                Told::Entry(self.settled_entry(*dir, name)?)
            }
            Ask::Reach(who, file) => {
                self.reach(who, *file)?;
                Told::Done
            }
            Ask::Prepare(prepare) if prepare.intent.coordinator() != from => return Err(misdirected()),
            Ask::Prepare(prepare) => self.prepare(prepare)?,
            Ask::Finish(intent, _) if intent.coordinator() != from => return Err(misdirected()),
            Ask::Finish(intent, verdict) => {
                self.finish(*intent, *verdict)?;
                Told::Done
            }
            Ask::Verdict(intent) if intent.coordinator() != self.server() => return Err(misdirected()),
            Ask::Verdict(intent) => Told::Verdict(self.verdict(*intent)?),
            Ask::Settle(intent) if self.intents.is_open(*intent) => {
                return Err(Obstacle::Intent(*intent).into());
            }
            Ask::Settle(_) => Told::Done,
            Ask::Carry(..) => return Err(misdirected()),
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
            [VERSION, rest @ ..] => from_record(rest, format!("what was prepared for {intent:?}")),
            _ => Err(damaged(format!("what was prepared for {intent:?} cannot be read"))),
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
        [VERSION, rest @ ..] => from_record(rest, format!("who has to hear of {intent:?}")),
        _ => Err(damaged(format!("who has to hear of {intent:?} cannot be read"))),
    }
}
