//! Bringing everything out: a plain copy in the order of names, each file read back before it takes its place.
//!
//! **Invariant**: a name in the target is never half a file: bytes are written under a name of their own, synced, read
//! back and compared with what the buffer gave, and only then moved to where they belong.

use super::copy::{Copied, Way};
use super::dress::{Notes, dress};
use crate::failure::{Failure, Outcome};
use crate::human;
use crate::remote::{entries, join};
use crate::transfer::Progress;
use crate::view::Drained;
use forebay_client::blocking::Client;
use forebay_model::{Attr, FileId, FileKind};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Files that are synced and read back together, at most.
const BATCH: usize = 64;
const BATCH_BYTES: u64 = 256 << 20;

/// A copy under way.
pub(super) struct Drain<'a> {
    client: &'a Client,
    way: Way<'a>,
    progress: &'a Progress,
    /// Copied, and not yet in place.
    waiting: Vec<Copied>,
    /// Files with several names: where the first of them is.
    links: HashMap<FileId, PathBuf>,
    /// Made here, so that they look as they should when everything is in them.
    made: Vec<(PathBuf, PathBuf, Attr)>,
    notes: Notes,
    result: Drained,
}

impl<'a> Drain<'a> {
    /// By a client that may read everything. `name` marks what is not in place yet.
    pub(super) fn new(
        client: &'a Client,
        stop: &'a AtomicBool,
        name: &str,
        progress: &'a Progress,
    ) -> Drain<'a> {
        Drain {
            client,
            way: Way::new(client, stop, format!(".{name}-")),
            progress,
            waiting: Vec::new(),
            links: HashMap::new(),
            made: Vec::new(),
            notes: Notes::default(),
            result: Drained::default(),
        }
    }

    /// Copies everything to a directory; what fails is told, and the rest goes on.
    pub(super) fn run(mut self, target: &Path) -> Outcome<Drained> {
        let begin = Instant::now();
        self.directory(Path::new("/"), target)?;
        self.settle()?;
        for (source, target, attr) in std::mem::take(&mut self.made).into_iter().rev() {
            let dressed = dress(self.client, &source, &attr, &target, &mut self.notes);
            self.told(dressed)?;
        }
        self.result.notes = self.notes.into_lines();
        let verifying = self.way.verifying;
        self.result.verifying = verifying.as_secs_f64();
        self.result.seconds = begin.elapsed().saturating_sub(verifying).as_secs_f64();
        Ok(self.result)
    }

    /// Goes on after a failure, unless the next one would be the same.
    fn told(&mut self, outcome: Outcome) -> Outcome {
        match outcome {
            Err(Failure::Failed(text)) if !self.way.is_hopeless() && self.client.ping().is_ok() => {
                self.progress.complain(&Failure::Failed(text));
                self.result.failed += 1;
                Ok(())
            }
            other => other,
        }
    }

    fn directory(&mut self, source: &Path, target: &Path) -> Outcome {
        self.way.sweep(target);
        for (entry, attr) in entries(self.client, source)? {
            if self.way.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
            let (source, target) = (join(source, &entry.name), join(target, &entry.name));
            let done = self.one(&source, &target, &attr);
            self.told(done)?;
        }
        Ok(())
    }

    fn one(&mut self, source: &Path, target: &Path, attr: &Attr) -> Outcome {
        match attr.kind {
            FileKind::Directory => {
                match fs::DirBuilder::new().mode(0o700).create(target) {
                    Ok(()) => self.made.push((source.to_owned(), target.to_owned(), attr.clone())),
                    // What was there before stays as it looks.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_dir() => {}
                    Err(error) => return Err(Failure::local("make", target, &error)),
                }
                self.result.directories += 1;
                self.directory(source, target)
            }
            FileKind::File => self.file(source, target, attr),
            FileKind::Symlink => self.symlink(source, target, attr),
            FileKind::Special(_) => {
                let text = format!("{} is a {}: left out", source.display(), human::kind(attr.kind));
                self.notes.add(text);
                Ok(())
            }
        }
    }

    fn symlink(&mut self, source: &Path, target: &Path, attr: &Attr) -> Outcome {
        let says = OsString::from_vec(self.client.read_link(source)?);
        let failed = |error: io::Error| Failure::local("make link", target, &error);
        match symlink(&says, target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !is_directory(target) => {
                fs::remove_file(target).and_then(|()| symlink(&says, target)).map_err(failed)?;
            }
            made => made.map_err(failed)?,
        }
        self.result.files += 1;
        dress(self.client, source, attr, target, &mut self.notes)
    }

    fn file(&mut self, source: &Path, target: &Path, attr: &Attr) -> Outcome {
        if let Some(first) = self.links.get(&attr.id).cloned() {
            self.settle()?;
            return self.hard_link(&first, target);
        }
        let copied = self.way.copy(source, target, attr, &mut self.notes, self.progress)?;
        if attr.links > 1 {
            self.links.insert(attr.id, target.to_owned());
        }
        self.waiting.push(copied);
        let bytes: u64 = self.waiting.iter().map(|copied| copied.bytes).sum();
        if self.waiting.len() >= BATCH || bytes >= BATCH_BYTES { self.settle() } else { Ok(()) }
    }

    /// Gives a file that is in place another name.
    fn hard_link(&mut self, first: &Path, target: &Path) -> Outcome {
        let identity = |path: &Path| path.symlink_metadata().map(|meta| (meta.dev(), meta.ino())).ok();
        let failed = |error: io::Error| Failure::local("link", target, &error);
        if identity(first).is_none() {
            return Err(Failure::Failed(format!(
                "cannot link {}: {} could not be copied",
                target.display(),
                first.display()
            )));
        }
        if identity(first) != identity(target) {
            if target.symlink_metadata().is_ok() && !is_directory(target) {
                fs::remove_file(target).map_err(failed)?;
            }
            fs::hard_link(first, target).map_err(failed)?;
        }
        self.result.files += 1;
        Ok(())
    }

    /// Syncs what waits, reads it back, and moves it to its place.
    fn settle(&mut self) -> Outcome {
        for copied in std::mem::take(&mut self.waiting) {
            let bytes = copied.bytes;
            let placed = self.way.place(copied);
            match &placed {
                Ok(()) => {
                    self.result.files += 1;
                    self.result.bytes += bytes;
                }
                Err(Failure::Interrupted) => return placed,
                Err(_) => {}
            }
            self.told(placed)?;
        }
        Ok(())
    }
}

fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|meta| meta.is_dir())
}
