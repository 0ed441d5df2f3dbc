//! The place of one run: a directory in memory with a store, a server, and a note of what is to become of the data.
//!
//! It outlives this process if that is killed, and says enough for another one to bring the data out.

use crate::failure::{Failure, Outcome};
use crate::keeper::Keeper;
use crate::up::fitting_memory;
use forebay_client::{PAGE, RunCounts};
use forebay_model::Bytes;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MEMORY: &str = "/dev/shm";
const NOTE: &str = "run.json";
const LOCK: &str = "lock";
const COUNTS: &str = "counts";
/// How long the server of a killed run may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the store needs beside the bytes of files.
const EXTRA: u64 = 32 << 20;

/// What a run leaves for whoever has to go on.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    /// Where the data is to go, if that was said.
    pub(super) pfs: Option<PathBuf>,
    /// The program, for people.
    pub(super) command: String,
}

impl Note {
    fn read(dir: &Path) -> Outcome<Note> {
        let path = dir.join(NOTE);
        let text = std::fs::read(&path).map_err(|error| Failure::local("read", &path, &error))?;
        let wrong = |error| Failure::Failed(format!("{} is not the note of a run: {error}", path.display()));
        serde_json::from_slice(&text).map_err(wrong)
    }
}

/// The directory of a run, held by this process alone.
pub(super) struct Berth {
    dir: PathBuf,
    pub(super) keeper: Keeper,
    pub(super) note: Note,
    _lock: File,
}

fn prefix() -> String {
    format!("forebay-run-{}-", rustix::process::geteuid().as_raw())
}

impl Berth {
    /// Makes a new one with a buffer of this size.
    pub(super) fn make(capacity: Option<Bytes>, policy: Option<String>, note: Note) -> Outcome<Berth> {
        let capacity = fitting(capacity)?;
        let dir = tempfile::Builder::new().prefix(&prefix()).tempdir_in(MEMORY);
        let dir = dir.map_err(|error| Failure::local("make a directory in", Path::new(MEMORY), &error))?;
        let lock = lock(dir.path())?;
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).map_err(|error| Failure::local("write", &path, &error))
        };
        let text = serde_json::to_vec(&note)
            .map_err(|error| Failure::Failed(format!("cannot write as JSON: {error}")))?;
        write(NOTE, &text)?;
        write(COUNTS, &[0; PAGE])?;
        let keeper = Keeper::new(dir.path(), Some(capacity)).sharing(policy).before(note.pfs.as_deref());
        // From here on it is removed only when there is nothing left in it.
        Ok(Berth { dir: dir.keep(), keeper, note, _lock: lock })
    }

    /// Takes over what a run has left behind.
    pub(super) fn take_over(dir: &Path) -> Outcome<Berth> {
        let note = Note::read(dir)?;
        let lock = lock(dir)?;
        await_end(&dir.join("store").join("lock"))?;
        // Whatever is left of the program does not know this socket, and writes no more.
        let keeper = Keeper::new(dir, None).apart("resume").before(note.pfs.as_deref());
        Ok(Berth { dir: dir.to_owned(), keeper, note, _lock: lock })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its data is to go there.
    pub(super) fn stand_before(&mut self, pfs: PathBuf) {
        self.keeper.stand_before(&pfs);
        self.note.pfs = Some(pfs);
    }

    /// The page in which the program's processes count.
    pub(super) fn counts_file(&self) -> PathBuf {
        self.dir.join(COUNTS)
    }

    pub(super) fn counts(&self) -> RunCounts {
        // A page that cannot be read has counted nothing.
        std::fs::read(self.counts_file()).ok().and_then(|page| RunCounts::read(&page)).unwrap_or_default()
    }

    /// Whether there is a store to take up.
    pub(super) fn has_store(&self) -> bool {
        self.keeper.store().join("store").exists()
    }

    /// Removes everything, data too.
    pub(super) fn remove(mut self) -> Outcome {
        self.keeper.clear()?;
        std::fs::remove_dir_all(&self.dir).map_err(|error| Failure::local("remove", &self.dir, &error))
    }
}

/// Directories of this user's runs that nobody holds any more, with what was to become of their data.
pub(super) fn left_behind() -> Vec<(PathBuf, Note)> {
    let me = rustix::process::geteuid().as_raw();
    let Ok(list) = std::fs::read_dir(MEMORY) else { return Vec::new() };
    let named = list.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix()));
    let own = named.filter(|entry| entry.metadata().is_ok_and(|meta| meta.is_dir() && meta.uid() == me));
    let noted = own.filter_map(|entry| Some((entry.path(), Note::read(&entry.path()).ok()?)));
    noted.filter(|(dir, _)| lock(dir).is_ok()).collect()
}

fn lock(dir: &Path) -> Outcome<File> {
    let path = dir.join(LOCK);
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = file.map_err(|error| Failure::local("open", &path, &error))?;
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        let holder = std::fs::read_to_string(&path).unwrap_or_default();
        return Err(Failure::Failed(format!(
            "{} is in use by process {}: wait for it, or stop it first",
            dir.display(),
            holder.trim()
        )));
    }
    let noted = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    noted.map_err(|error| Failure::local("write", &path, &error))?;
    Ok(file)
}

/// Waits until a server that was left alone has ended, in order.
fn await_end(lock: &Path) -> Outcome {
    let Ok(file) = File::open(lock) else { return Ok(()) };
    let begin = Instant::now();
    while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        if begin.elapsed() > PATIENCE {
            let text = format!("a server still uses {}: stop it first", lock.display());
            return Err(Failure::Failed(text));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// How large the buffer is to be; refused where memory files have no room for it.
fn fitting(asked: Option<Bytes>) -> Outcome<Bytes> {
    let facts = rustix::fs::statvfs(MEMORY)
        .map_err(|error| Failure::local("look at", Path::new(MEMORY), &error.into()))?;
    let free = facts.f_bavail * facts.f_frsize;
    let room = free.saturating_sub(EXTRA) / 64 * 63;
    match asked {
        None => Ok(Bytes(fitting_memory().0.min(room >> 20 << 20))),
        Some(asked) if asked.0 <= room => Ok(asked),
        Some(asked) => Err(Failure::Failed(format!(
            "{MEMORY} has no room for a buffer of {asked} ({} are free): ask for less with --capacity",
            Bytes(free)
        ))),
    }
}
