//! Changes behind that are begun, done and finished, whatever happens in between.
//!
//! An intent holds the steps behind and the batch that makes the same change here. It is durable before the first step,
//! and goes together with the batch. A server that finds one when it starts does the steps (again) and commits the
//! batch: nobody else has touched these names meanwhile, because they were locked until the server died.

use super::Union;
use super::record::Record;
use forebay_backend::Backend;
use forebay_model::{Error, ErrorKind, FileId, Gid, Name, Result, Stamp, Uid};
use forebay_store::Batch;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::time::Duration;

const VERSION: u8 = 1;
const INTENTS: &[u8] = b"w";
/// How often it is asked whether a step that failed was done after all, and tried to take one back, each time after a longer
/// pause.
const QUESTIONS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(50);

/// One thing to do behind. `serial` says to which file: when it is done again, another that has come to have its path
/// is left alone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    Unlink { path: Vec<Name>, serial: u64 },
    RemoveDir { path: Vec<Name>, serial: u64 },
    Rename { from: Vec<Name>, to: Vec<Name>, serial: u64 },
    MakeDir { path: Vec<Name>, owner: (Uid, Gid), mode: u16 },
    Truncate { path: Vec<Name>, size: u64, serial: u64 },
}

/// What is to happen here afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Then {
    /// These changes of names.
    Commit(Batch),
    /// A file is cut, and seen anew.
    Cut { file: FileId, size: u64, record: Record },
}

/// A change that was begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Intent {
    pub(super) steps: Vec<Step>,
    pub(super) then: Then,
}

impl Step {
    fn perform(&self, backend: &dyn Backend) -> Result<()> {
        match self {
            Step::Unlink { path, .. } => backend.unlink(path).map(drop),
            Step::RemoveDir { path, .. } => backend.remove_dir(path).map(drop),
            Step::Rename { from, to, .. } => backend.rename(from, to).map(drop),
            Step::MakeDir { path, owner, mode } => backend.make_dir(path, *owner, *mode),
            Step::Truncate { path, size, .. } => backend.truncate(path, *size).map(drop),
        }
    }

    /// Whether there is nothing left to do: it was done, or somebody else has moved what it was about.
    fn is_done(&self, backend: &dyn Backend) -> Result<bool> {
        Ok(match self {
            Step::Unlink { path, serial } | Step::RemoveDir { path, serial } => {
                backend.find(path)?.is_none_or(|found| found.version.serial != *serial)
            }
            Step::Rename { from, serial, .. } => {
                backend.find(from)?.is_none_or(|found| found.version.serial != *serial)
            }
            Step::MakeDir { path, .. } => backend.find(path)?.is_some(),
            Step::Truncate { path, size, serial } => backend
                .find(path)?
                .is_none_or(|found| found.version.serial != *serial || found.version.size == *size),
        })
    }

    /// Takes it back, if that can be done and harms nothing else. Until then it would be taken for another's.
    fn undo(&self, backend: &dyn Backend) {
        for question in 1..=QUESTIONS {
            match self.try_to_undo(backend) {
                Ok(()) => return,
                Err(error) if question == QUESTIONS => {
                    tracing::error!(%error, "a rename behind could not be taken back");
                }
                Err(_) => std::thread::sleep(PAUSE * question),
            }
        }
    }

    fn try_to_undo(&self, backend: &dyn Backend) -> Result<()> {
        let Step::Rename { from, to, serial } = self else { return Ok(()) };
        let moved = backend.find(to)?.is_some_and(|found| found.version.serial == *serial);
        match moved && backend.find(from)?.is_none() {
            true => backend.rename(to, from).map(drop),
            false => Ok(()),
        }
    }
}

impl Union {
    /// Does steps behind under an intent, and then what has to happen here, together with the end of the intent.
    pub(super) fn carry_out(
        &self,
        stamp: Stamp,
        intent: &Intent,
        finish: impl FnOnce(Batch) -> Result<()>,
    ) -> Result<()> {
        let key = key(stamp);
        let mut begun = Batch::default();
        let value = postcard::to_extend(intent, vec![VERSION]).expect("an intent can always be written");
        begun.put(key.clone(), value);
        self.kv.commit(begun)?;
        let mut end = Batch::default();
        end.remove(key);
        if let Err(error) = self.kv.sync() {
            // Nothing was done, and nothing is to be done in the server's next life.
            self.kv.commit(end)?;
            return Err(error);
        }
        if let Err(error) = self.ask(|backend| perform(backend, &intent.steps, Start::Fresh)) {
            self.kv.commit(end)?;
            return Err(error);
        }
        finish(end)
    }

    /// Finishes what an earlier life of the server began. What cannot be done is taken back; if the back end does not
    /// answer, nothing can be said, and the server cannot start.
    pub(super) fn resume(&self, mut finish: impl FnMut(Then, Batch) -> Result<()>) -> Result<()> {
        for (key, intent) in self.intents()? {
            let mut end = Batch::default();
            end.remove(key);
            match perform(&*self.backend, &intent.steps, Start::Again) {
                Ok(()) => finish(intent.then, end)?,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Io | ErrorKind::Unreachable | ErrorKind::Busy) =>
                {
                    let what =
                        format!("a change that was begun in the back end {} cannot be finished", self.name());
                    return Err(error.within(what));
                }
                Err(error) => {
                    tracing::warn!(%error, "a change that was begun behind is given up");
                    self.kv.commit(end)?;
                }
            }
        }
        Ok(())
    }

    fn intents(&self) -> Result<Vec<(Vec<u8>, Intent)>> {
        let mut intents = Vec::new();
        let mut bad = false;
        self.kv.scan(INTENTS, &[], &mut |key, value| {
            let intent = match value {
                [VERSION, rest @ ..] => postcard::from_bytes(rest).ok(),
                _ => None,
            };
            bad |= intent.is_none();
            intents.extend(intent.map(|intent| (key.to_vec(), intent)));
            ControlFlow::Continue(())
        })?;
        match bad {
            false => Ok(intents),
            true => Err(Error::new(ErrorKind::BadStore, "a change that was begun behind cannot be read")),
        }
    }
}

fn key(stamp: Stamp) -> Vec<u8> {
    [INTENTS, &stamp.0.to_be_bytes()].concat()
}

/// Whether steps may have been done before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    Fresh,
    Again,
}

/// Does all steps, or none as far as that is possible: only the last ever destroys anything.
fn perform(backend: &dyn Backend, steps: &[Step], start: Start) -> Result<()> {
    for (index, step) in steps.iter().enumerate() {
        if start == Start::Again && step.is_done(backend)? {
            continue;
        }
        if let Err(error) = step.perform(backend)
            && !was_done_after_all(backend, step)
        {
            steps[..index].iter().rev().for_each(|step| step.undo(backend));
            return Err(error);
        }
    }
    Ok(())
}

/// A step failed; was it done all the same?
fn was_done_after_all(backend: &dyn Backend, step: &Step) -> bool {
    for question in 1..=QUESTIONS {
        match step.is_done(backend) {
            Ok(done) => return done,
            Err(_) => std::thread::sleep(PAUSE * question),
        }
    }
    tracing::error!(?step, "the back end does not say whether it did this: what is found there will count");
    false
}
