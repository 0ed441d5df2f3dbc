//! Intents: changes in the back end that survive a crash.
//!
//! An intent holds the steps in the back end and the batch that makes the same change in the buffer. It is durable
//! before the first step, and is removed together with the commit of the batch. A server that finds an intent when it
//! starts performs the steps (again) and commits the batch: no other request has changed these names, because they were
//! locked until the crash.

use super::Backing;
use super::record::{BackingSpot, Record};
use forebay_backend::{Backend, Target};
use forebay_model::{Error, ErrorKind, FileId, Result, Stamp};
use forebay_store::{Batch, KeySpace};
use forebay_wire::variant_name;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::time::Duration;

const VERSION: u8 = 2;
const INTENTS: &[u8] = KeySpace::BackingIntent.prefix();
/// How often the server checks whether a failed step was done after all, and tries to undo one, each time after a
/// longer pause.
const ATTEMPTS: u32 = 12;
const PAUSE: Duration = Duration::from_millis(50);

/// One step in the back end. `serial` identifies the file, and each place its directory: a step leaves another file
/// that has the path by now alone, and does nothing in another directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    Unlink { at: BackingSpot, serial: u64 },
    RemoveDir { at: BackingSpot, serial: u64 },
    Rename { from: BackingSpot, to: BackingSpot, serial: u64, target: Target },
    Truncate { at: BackingSpot, size: u64, serial: u64 },
}

/// What happens in the buffer afterwards.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Then {
    /// These changes of names.
    Commit(Batch),
    /// A file is truncated, and its version recorded.
    Cut { file: FileId, size: u64, record: Record },
}

/// A change that was begun.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Intent {
    pub(super) steps: Vec<Step>,
    pub(super) then: Then,
}

impl Step {
    /// Returns whether its file was there.
    fn perform(&self, backend: &dyn Backend) -> Result<bool> {
        match *self {
            Step::Unlink { ref at, serial } => backend.unlink_of(at.seen(serial)),
            Step::RemoveDir { ref at, serial } => backend.remove_dir_of(at.seen(serial)),
            Step::Rename { ref from, ref to, serial, target } => {
                backend.rename_of(from.seen(serial), to.slot(), target)
            }
            Step::Truncate { ref at, size, serial } => backend.truncate_of(at.seen(serial), size),
        }
    }

    /// Whether there is nothing left to do: the step was done, or another program has moved its file. Fails as stale if
    /// another directory has the path: what is in the one of the step cannot be seen.
    fn is_done(&self, backend: &dyn Backend) -> Result<bool> {
        Ok(match self {
            Step::Unlink { at, serial }
            | Step::RemoveDir { at, serial }
            | Step::Rename { from: at, serial, .. } => {
                backend.find_at(at.slot())?.is_none_or(|found| found.version.serial != *serial)
            }
            Step::Truncate { at, size, serial } => backend
                .find_at(at.slot())?
                .is_none_or(|found| found.version.serial != *serial || found.version.size == *size),
        })
    }

    /// Undoes a step, if that is possible and harmless. Until then the file would look like another program's.
    fn undo(&self, backend: &dyn Backend) {
        for attempt in 1..=ATTEMPTS {
            match self.try_to_undo(backend) {
                Ok(()) => return,
                Err(error) if attempt == ATTEMPTS => {
                    tracing::error!(%error, "cannot undo a rename in the back end");
                }
                Err(_) => std::thread::sleep(PAUSE * attempt),
            }
        }
    }

    fn try_to_undo(&self, backend: &dyn Backend) -> Result<()> {
        let &Step::Rename { ref from, ref to, serial, .. } = self else { return Ok(()) };
        let moved = backend.find_at(to.slot())?.is_some_and(|found| found.version.serial == serial);
        match moved && backend.find_at(from.slot())?.is_none() {
            true => backend.rename_of(to.seen(serial), from.slot(), Target::Nothing).map(drop),
            false => Ok(()),
        }
    }
}

impl Backing {
    /// Performs the steps of an intent, then calls `finish` with the batch that ends the intent.
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
        // In a store that ends with the machine the log is enough: it survives the death of this process.
        let synced = if self.durable { self.kv.sync() } else { Ok(()) };
        if let Err(error) = synced {
            // Nothing was done, so the next start must not find the intent.
            self.kv.commit(end)?;
            return Err(error);
        }
        if let Err(error) =
            self.ask(|backend| perform(backend, &intent.steps, Start::Fresh, &|| self.demand_all_mounted()))
        {
            self.kv.commit(end)?;
            return Err(error);
        }
        finish(end)
    }

    /// Finishes the intents of an earlier run of the server. A change that is impossible is undone; if the back end
    /// does not answer, the server cannot start.
    pub(super) fn resume(&self, mut finish: impl FnMut(Then, Batch) -> Result<()>) -> Result<()> {
        let intents = self.intents()?;
        if !intents.is_empty() {
            self.demand_all_mounted()?;
        }
        for (key, intent) in intents {
            let mut end = Batch::default();
            end.remove(key);
            match perform(&*self.backend, &intent.steps, Start::Again, &|| self.demand_all_mounted()) {
                Ok(()) => finish(intent.then, end)?,
                Err(error)
                    if matches!(error.kind(), ErrorKind::Io | ErrorKind::Unreachable | ErrorKind::Busy) =>
                {
                    let what =
                        format!("cannot finish a change that was begun in the back end {}", self.name());
                    return Err(error.within(what));
                }
                Err(error) => {
                    tracing::warn!(%error, "a change that was begun in the back end is impossible and was undone");
                    self.kv.commit(end)?;
                }
            }
        }
        Ok(())
    }

    fn intents(&self) -> Result<Vec<(Vec<u8>, Intent)>> {
        let mut intents = Vec::new();
        let (mut bad, mut earlier) = (false, false);
        self.kv.scan(INTENTS, &[], &mut |key, value| {
            earlier |= value.first() == Some(&1);
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
            // Its steps name paths alone, which may lead to directories of other users by now.
            true if earlier => Err(Error::new(
                ErrorKind::BadStore,
                "an earlier version of the server was interrupted while it changed the back end: start that version \
                 once, so that it finishes the change, and stop it",
            )),
            true => Err(Error::new(
                ErrorKind::BadStore,
                "an intent (a change begun in the back end) cannot be decoded",
            )),
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

/// Performs all steps, or none as far as possible: only the last step is destructive. `see_all` fails if a file system is
/// not mounted: then a file that is not found is not known to be gone.
fn perform(
    backend: &dyn Backend,
    steps: &[Step],
    start: Start,
    see_all: &dyn Fn() -> Result<()>,
) -> Result<()> {
    for (index, step) in steps.iter().enumerate() {
        if let Err(error) = perform_step(backend, step, start, see_all) {
            steps[..index].iter().rev().for_each(|step| step.undo(backend));
            return Err(error);
        }
    }
    Ok(())
}

fn perform_step(
    backend: &dyn Backend,
    step: &Step,
    start: Start,
    see_all: &dyn Fn() -> Result<()>,
) -> Result<()> {
    if start == Start::Again && step.is_done(backend)? {
        return Ok(());
    }
    match step.perform(backend) {
        Ok(true) => Ok(()),
        Ok(false) => see_all(),
        Err(error) if was_done_after_all(backend, step) => see_all().map_err(|_| error),
        Err(error) => Err(error),
    }
}

/// Whether a failed step was done after all.
fn was_done_after_all(backend: &dyn Backend, step: &Step) -> bool {
    for attempt in 1..=ATTEMPTS {
        match step.is_done(backend) {
            Ok(done) => return done,
            // Its directory is not there.
            Err(error) if error.kind() == ErrorKind::Stale => return false,
            Err(_) => std::thread::sleep(PAUSE * attempt),
        }
    }
    tracing::error!(
        step = variant_name(step),
        "the back end does not answer whether a step was done; the next lookup decides"
    );
    false
}
