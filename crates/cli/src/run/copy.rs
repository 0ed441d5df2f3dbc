//! The bytes of one file, out of the buffer and read back.

use super::dress::{Notes, dress_file};
use crate::failure::{Failure, Outcome};
use crate::transfer::Progress;
use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::Attr;
use rustix::fs::{Advice, fadvise};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;
use xxhash_rust::xxh3::Xxh3;

/// Bytes that are read and written at once.
const PIECE: usize = 8 << 20;
/// Zeros of this length become holes where a file had some.
const GRAIN: usize = 64 << 10;

/// A file that is copied, and not yet in place.
pub(super) struct Copied {
    file: NamedTempFile,
    target: PathBuf,
    pub(super) bytes: u64,
    checksum: u64,
}

/// How files are copied.
pub(super) struct Way<'a> {
    client: &'a Client,
    pub(super) stop: &'a AtomicBool,
    /// How names begin that are not in place yet.
    mark: String,
    buffer: Vec<u8>,
    full: bool,
    /// Time spent on reading back.
    pub(super) verifying: Duration,
}

impl<'a> Way<'a> {
    pub(super) fn new(client: &'a Client, stop: &'a AtomicBool, mark: String) -> Way<'a> {
        Way { client, stop, mark, buffer: vec![0; PIECE], full: false, verifying: Duration::ZERO }
    }

    /// Whether the target is full, so that nothing more can be done.
    pub(super) fn is_hopeless(&self) -> bool {
        self.full
    }

    /// Removes what an earlier attempt has left in a directory.
    pub(super) fn sweep(&self, dir: &Path) {
        let Ok(list) = fs::read_dir(dir) else { return };
        for entry in
            list.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(&self.mark))
        {
            // It is in nobody's way.
            let _ = fs::remove_file(entry.path());
        }
    }

    fn failed(&mut self, what: &str, path: &Path, error: &io::Error) -> Failure {
        self.full |= matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        Failure::local(what, path, error)
    }

    /// Copies a file beside its place.
    pub(super) fn copy(
        &mut self,
        source: &Path,
        target: &Path,
        attr: &Attr,
        notes: &mut Notes,
        progress: &Progress,
    ) -> Outcome<Copied> {
        let remote = self.client.open(source, OpenOptions { nofollow: true, ..OpenOptions::READ })?;
        let dir = target.parent().unwrap_or(Path::new("/"));
        let file = tempfile::Builder::new().prefix(&self.mark).tempfile_in(dir);
        let file = file.map_err(|error| self.failed("make a file in", dir, &error))?;
        let has_holes = attr.buffered < attr.size;
        let (mut sum, mut offset) = (Xxh3::new(), 0);
        loop {
            self.check()?;
            let count = remote.pread(offset, &mut self.buffer)?;
            let piece = &self.buffer[..count];
            sum.update(piece);
            let written = if has_holes {
                sparsely(file.as_file(), piece, offset)
            } else {
                file.as_file().write_all_at(piece, offset)
            };
            written.map_err(|error| self.failed("write", target, &error))?;
            progress.copied(count as u64);
            offset += count as u64;
            if count < PIECE {
                break;
            }
        }
        let sized = file.as_file().set_len(offset);
        sized.map_err(|error| self.failed("write", target, &error))?;
        remote.close()?;
        dress_file(self.client, source, attr, target, file.as_file(), notes)?;
        Ok(Copied { file, target: target.to_owned(), bytes: offset, checksum: sum.digest() })
    }

    /// Syncs a copy, reads it back, and moves it to its place.
    pub(super) fn place(&mut self, copied: Copied) -> Outcome {
        let Copied { file, target, bytes, checksum } = copied;
        file.as_file().sync_all().map_err(|error| self.failed("sync", &target, &error))?;
        let begin = Instant::now();
        let found = self.read_back(file.as_file(), &target)?;
        self.verifying += begin.elapsed();
        if found != (bytes, checksum) {
            return Err(Failure::Failed(format!(
                "{} does not hold what was written to it (read back {} of {bytes} bytes, checksum {:016x}, not {checksum:016x}): \
                 check that file system",
                target.display(),
                found.0,
                found.1
            )));
        }
        file.persist(&target).map_err(|error| self.failed("replace", &target, &error.error))?;
        Ok(())
    }

    fn read_back(&mut self, file: &File, target: &Path) -> Outcome<(u64, u64)> {
        // What the kernel still has in memory proves nothing about the file system; not all of them can forget it.
        let _ = fadvise(file, 0, None, Advice::DontNeed);
        let (mut sum, mut offset) = (Xxh3::new(), 0);
        loop {
            self.check()?;
            let read = file.read_at(&mut self.buffer, offset);
            let count = read.map_err(|error| Failure::local("read back", target, &error))?;
            if count == 0 {
                return Ok((offset, sum.digest()));
            }
            sum.update(&self.buffer[..count]);
            offset += count as u64;
        }
    }

    fn check(&self) -> Outcome {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// Writes what is not zero.
fn sparsely(file: &File, piece: &[u8], offset: u64) -> io::Result<()> {
    for (index, grain) in piece.chunks(GRAIN).enumerate() {
        if grain.iter().any(|&byte| byte != 0) {
            file.write_all_at(grain, offset + (index * GRAIN) as u64)?;
        }
    }
    Ok(())
}
