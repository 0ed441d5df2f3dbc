//! Copies local files into the buffer.

use super::PIECE;
use super::passage::{Passage, pass};
use super::pool::{self, Queue};
use super::tally::Tally;
use crate::failure::{Failure, Outcome};
use crate::remote::{is_directory, targets};
use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{ErrorKind, FileKind};
use std::fs::{self, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Finds the files to copy.
pub(super) struct Walk<'a> {
    pub(super) client: &'a Client,
    pub(super) tally: &'a Tally,
    pub(super) recursive: bool,
    pub(super) mask: u16,
}

/// A local file and its copy in the service.
struct Upload {
    local: fs::File,
    path: PathBuf,
    remote: File,
}

impl<'a> Walk<'a> {
    pub(super) fn all(&self, sources: &[PathBuf], target: &Path) -> Outcome {
        let targets = targets(is_directory(self.client, target)?, target, sources)?;
        pool::run(self.tally, |queue| {
            for (source, target) in sources.iter().zip(targets) {
                // Symbolic links named on the command line are followed.
                let meta = fs::metadata(source).map_err(|error| Failure::local("read", source, &error));
                self.report(meta.and_then(|meta| self.one(queue, source, target, &meta)));
            }
            Ok(())
        })
    }

    fn report(&self, outcome: Outcome) {
        if let Err(failure) = outcome {
            self.tally.fail(&failure);
        }
    }

    fn one(&self, queue: &Queue<'a>, source: &Path, target: PathBuf, meta: &Metadata) -> Outcome {
        if self.tally.is_halted() {
            return Ok(());
        }
        let kind = meta.file_type();
        if kind.is_dir() {
            return self.directory(queue, source, &target, meta);
        }
        if kind.is_symlink() {
            let link_target =
                fs::read_link(source).map_err(|error| Failure::local("read link", source, &error))?;
            self.link(&link_target, &target)?;
            self.tally.file();
            return Ok(());
        }
        if !kind.is_file() {
            let text =
                format!("cannot put {}: neither file nor directory nor link: leave it out", source.display());
            return Err(Failure::Failed(text));
        }
        self.file(queue, source, target, meta)
    }

    fn directory(&self, queue: &Queue<'a>, source: &Path, target: &Path, meta: &Metadata) -> Outcome {
        if !self.recursive {
            let text = format!("cannot put {}: it is a directory: use \"forebay put -r\"", source.display());
            return Err(Failure::Failed(text));
        }
        let failed = |error: io::Error| Failure::local("list", source, &error);
        match self.client.mkdir(target, self.mode(meta)) {
            Err(error) if error.kind() == ErrorKind::Exists && is_directory(self.client, target)? => {}
            made => {
                self.tally.checked(made)?;
            }
        }
        self.tally.directory();
        for entry in fs::read_dir(source).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let (path, target) = (entry.path(), target.join(entry.file_name()));
            let meta = entry.metadata().map_err(|error| Failure::local("read", &path, &error));
            self.report(meta.and_then(|meta| self.one(queue, &path, target, &meta)));
        }
        Ok(())
    }

    /// Creates a symbolic link; replaces an existing one.
    fn link(&self, link_target: &Path, target: &Path) -> Outcome {
        match self.client.symlink(link_target, target) {
            Err(error) if error.kind() == ErrorKind::Exists && self.is_link(target) => {
                self.tally.checked(self.client.unlink(target))?;
                self.tally.checked(self.client.symlink(link_target, target))?;
            }
            made => {
                self.tally.checked(made)?;
            }
        }
        Ok(())
    }

    fn is_link(&self, path: &Path) -> bool {
        self.client.lstat(path).is_ok_and(|attr| attr.kind == FileKind::Symlink)
    }

    fn mode(&self, meta: &Metadata) -> u16 {
        meta.permissions().mode() as u16 & 0o777 & !self.mask
    }

    fn file(&self, queue: &Queue<'a>, source: &Path, target: PathBuf, meta: &Metadata) -> Outcome {
        let (client, tally, mode, path) = (self.client, self.tally, self.mode(meta), source.to_owned());
        pass(queue, tally, meta.len(), move || {
            let local = fs::File::open(&path).map_err(|error| Failure::local("open", &path, &error))?;
            let remote = tally.checked(client.open(target, OpenOptions { mode, ..OpenOptions::CREATE }))?;
            Ok(Upload { local, path, remote })
        })
    }
}

impl Passage for Upload {
    fn piece(&self, tally: &Tally, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let mut place = offset;
        let count = fill(buffer, |rest| {
            let read = self.local.read_at(rest, place);
            place += read.as_ref().map_or(0, |count| *count as u64);
            read
        });
        let count = count.map_err(|error| Failure::local("read", &self.path, &error))?;
        tally.checked(self.remote.pwrite(offset, &buffer[..count]))?;
        tally.copied(count as u64);
        Ok(count)
    }

    fn close(self, tally: &Tally) -> Outcome {
        tally.checked(self.remote.close())
    }
}

/// Reads until the buffer is full or the input ends.
fn fill(buffer: &mut [u8], mut read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Copies standard input to a file.
pub(super) fn stream(client: &Client, target: &Path, tally: &Tally) -> Outcome {
    if is_directory(client, target)? {
        let text = format!("{} is a directory: name a file for standard input", target.display());
        return Err(Failure::Failed(text));
    }
    let mode = 0o666 & !crate::remote::mask();
    let remote = client.open(target, OpenOptions { mode, ..OpenOptions::CREATE })?;
    let (mut buffer, mut offset) = (vec![0; PIECE], 0);
    loop {
        let count = fill(&mut buffer, |rest| io::stdin().lock().read(rest))
            .map_err(|error| Failure::Failed(format!("cannot read standard input: {error}")))?;
        remote.pwrite(offset, &buffer[..count])?;
        offset += count as u64;
        tally.expect(count as u64);
        tally.copied(count as u64);
        if count < buffer.len() {
            break;
        }
    }
    remote.close()?;
    tally.file();
    Ok(())
}
