//! The directory of one run, in memory: a store, a server, and a note of the target.
//!
//! It outlives this process if that is killed, and has all that another process needs to drain the data.

use crate::exec::mounted_mark;
use crate::failure::{Failure, Outcome};
use crate::server_process::ServerProcess;
use crate::up::fitting_memory;
use forebay_client::{PAGE, RUN_SOCKET, RunCounts};
use forebay_model::Bytes;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use serde::{Deserialize, Serialize};
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MEMORY: &str = "/dev/shm";
const NOTE: &str = "run.json";
const LOCK: &str = "lock";
const COUNTS: &str = "counts";
const PROGRAMS: &str = "programs";
/// How long the server of a killed run may take to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Space that the store needs beside file data.
const EXTRA: u64 = 32 << 20;

/// What a resumed run has to know.
#[derive(Serialize, Deserialize)]
pub(super) struct Note {
    /// The target directory, if one was given.
    pub(super) pfs: Option<PathBuf>,
    /// The command line of the program, for messages.
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

/// The directory of a run, locked by this process.
pub(super) struct RunDir {
    dir: PathBuf,
    pub(super) server_process: ServerProcess,
    pub(super) note: Note,
    _lock: File,
}

fn prefix() -> String {
    format!("forebay-run-{}-", rustix::process::geteuid().as_raw())
}

impl RunDir {
    /// Creates a directory with a buffer of this capacity.
    pub(super) fn make(capacity: Option<Bytes>, policy: Option<String>, note: Note) -> Outcome<RunDir> {
        let capacity = fitting(capacity)?;
        let dir = tempfile::Builder::new().prefix(&prefix()).permissions(private()).tempdir_in(MEMORY);
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
        let mut server_process = ServerProcess::new(dir.path(), Some(capacity))
            .with_policy(policy)
            .with_backing(note.pfs.as_deref());
        if rustix::process::geteuid().is_root() {
            server_process =
                server_process.with_programs_socket(&make_programs_dir(dir.path())?.join(RUN_SOCKET));
        }
        // From now on the directory is removed only when it has no data.
        Ok(RunDir { dir: dir.keep(), server_process, note, _lock: lock })
    }

    /// Takes over the directory of an earlier run.
    pub(super) fn take_over(dir: &Path) -> Outcome<RunDir> {
        let own = open_own(dir)?;
        let note = Note::read(dir)?;
        own.set_permissions(private()).map_err(|error| Failure::local("use", dir, &error))?;
        let lock = lock(dir)?;
        await_end(&dir.join("store").join("lock"))?;
        // Processes left over from the program do not know this socket and cannot write any more.
        let server_process =
            ServerProcess::new(dir, None).with_socket("resume").with_backing(note.pfs.as_deref());
        Ok(RunDir { dir: dir.to_owned(), server_process, note, _lock: lock })
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The directory of the socket for programs that have changed from root to other users.
    pub(super) fn programs_dir(&self) -> Option<PathBuf> {
        self.server_process.programs_socket()?.parent().map(Path::to_owned)
    }

    /// Sets the target of the drain.
    pub(super) fn set_backing(&mut self, pfs: PathBuf) {
        self.server_process.set_backing(&pfs);
        self.note.pfs = Some(pfs);
    }

    /// The page of call counters that the program's processes share.
    pub(super) fn counts_file(&self) -> PathBuf {
        self.dir.join(COUNTS)
    }

    /// Whether programs of the run used a private mount.
    pub(super) fn was_mounted(&self) -> bool {
        mounted_mark(&self.counts_file()).exists()
    }

    pub(super) fn counts(&self) -> RunCounts {
        // A page that cannot be read counts as empty.
        std::fs::read(self.counts_file()).ok().and_then(|page| RunCounts::read(&page)).unwrap_or_default()
    }

    /// Whether the directory has a store.
    pub(super) fn has_store(&self) -> bool {
        self.server_process.store().join("store").exists()
    }

    /// Removes the directory with all data.
    pub(super) fn remove(mut self) -> Outcome {
        self.server_process.clear()?;
        std::fs::remove_dir_all(&self.dir).map_err(|error| Failure::local("remove", &self.dir, &error))
    }
}

/// Where the memory of a run's store is mounted, if it has a mount of its own.
pub(super) fn mounted_memory(dir: &Path) -> Option<PathBuf> {
    let at = dir.join("store").join("regions");
    let device = |path: &Path| path.symlink_metadata().ok().map(|facts| facts.dev());
    (device(&at)? != device(dir)?).then_some(at)
}

/// Permissions that admit only the user of the run.
fn private() -> Permissions {
    Permissions::from_mode(0o700)
}

/// Makes a directory that admits all who reach it, inside of the run's directory, which admits only root: programs of the
/// run reach it by a descriptor that they inherit.
fn make_programs_dir(dir: &Path) -> Outcome<PathBuf> {
    let path = dir.join(PROGRAMS);
    let made = std::fs::create_dir(&path)
        .and_then(|()| std::fs::set_permissions(&path, Permissions::from_mode(0o711)));
    made.map(|()| path.clone()).map_err(|error| Failure::local("make", &path, &error))
}

/// Opens the directory of an earlier run. Refuses a directory that another user owns or can write to: its store would be
/// drained with the privileges of the user who resumes it.
fn open_own(dir: &Path) -> Outcome<File> {
    let failed = |error: std::io::Error| Failure::local("use", dir, &error);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let own = open(dir, flags, Mode::empty()).map(File::from).map_err(|error| failed(error.into()))?;
    let (found, me) = (own.metadata().map_err(failed)?, rustix::process::geteuid().as_raw());
    let owner = found.uid();
    if owner != me {
        return Err(Failure::Failed(format!(
            "{} belongs to user {owner}, so user {me} cannot resume it: resume it as user {owner}",
            dir.display()
        )));
    }
    match found.mode() & 0o022 {
        0 => Ok(own),
        _ => Err(Failure::Failed(format!(
            "{} is not the directory of a run: other users can write to it",
            dir.display()
        ))),
    }
}

/// Directories of this user's earlier runs that no process holds, with their notes.
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

/// Waits until the server of an earlier run has ended.
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

/// The capacity of the buffer; fails if `/dev/shm` has less free space.
fn fitting(requested: Option<Bytes>) -> Outcome<Bytes> {
    let facts = rustix::fs::statvfs(MEMORY)
        .map_err(|error| Failure::local("look at", Path::new(MEMORY), &error.into()))?;
    let free = facts.f_bavail * facts.f_frsize;
    let available = free.saturating_sub(EXTRA) / 64 * 63;
    match requested {
        None => Ok(Bytes(fitting_memory().0.min(available >> 20 << 20))),
        Some(requested) if requested.0 <= available => Ok(requested),
        Some(requested) => Err(Failure::Failed(format!(
            "{MEMORY} has no space for a buffer of {requested} ({} are free): choose a smaller --capacity",
            Bytes(free)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn directory_of_another_user_is_refused_before_its_note_is_read() {
        let room = tempfile::tempdir().expect("a directory");
        let (dir, link) = (room.path().join("run"), room.path().join("link"));
        std::fs::create_dir(&dir).expect("a directory");
        std::fs::write(dir.join(NOTE), "not JSON").expect("a note");
        symlink(&dir, &link).expect("a link");
        let refused = |dir: &Path| match RunDir::take_over(dir) {
            Err(Failure::Failed(why)) => why,
            _ => panic!("{} is taken over", dir.display()),
        };
        let mode = || dir.metadata().expect("it is there").mode() & 0o777;
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).expect("a mode");
        assert!(refused(&dir).contains("is not the note of a run"));
        assert!(refused(&link).contains("cannot use"), "{}", refused(&link));
        assert_eq!(mode(), 0o755, "only a directory of a run is made private");
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("a mode");
        assert!(refused(&dir).contains("other users can write to it"));
        if rustix::process::geteuid().is_root() {
            chown(&dir, Some(4711), None).expect("another owner");
            assert!(refused(&dir).contains("belongs to user 4711"), "{}", refused(&dir));
        }
    }
}
