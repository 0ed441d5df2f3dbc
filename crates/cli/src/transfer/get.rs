//! Copies files out of the buffer.

use super::PIECE;
use super::passage::{Passage, pass};
use super::pool::{self, Queue};
use super::tally::Tally;
use crate::failure::{Failure, Outcome};
use crate::remote::{each, entries, join, targets};
use crate::{human, output};
use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Attr, FileKind};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Finds the files to copy.
pub(super) struct Walk<'a> {
    pub(super) client: &'a Client,
    pub(super) tally: &'a Tally,
    pub(super) recursive: bool,
}

/// A file of the service and its local copy.
struct Download {
    remote: File,
    local: fs::File,
    path: PathBuf,
}

impl<'a> Walk<'a> {
    pub(super) fn all(&self, sources: &[PathBuf], target: &Path) -> Outcome {
        let targets = targets(target.is_dir(), target, sources)?;
        pool::run(self.tally, |queue| {
            for (source, target) in sources.iter().zip(targets) {
                // Symbolic links named on the command line are followed.
                let attr = self.tally.checked(self.client.stat(source));
                self.report(attr.and_then(|attr| self.one(queue, source, target, &attr)));
            }
            Ok(())
        })
    }

    fn report(&self, outcome: Outcome) {
        if let Err(failure) = outcome {
            self.tally.fail(&failure);
        }
    }

    fn one(&self, queue: &Queue<'a>, source: &Path, target: PathBuf, attr: &Attr) -> Outcome {
        if self.tally.is_halted() {
            return Ok(());
        }
        match attr.kind {
            FileKind::Directory => self.directory(queue, source, &target, attr),
            FileKind::File => self.file(queue, source, target, attr),
            FileKind::Symlink => {
                let link_target = self.tally.checked(self.client.read_link(source))?;
                link(&OsString::from_vec(link_target), &target)
                    .map_err(|error| Failure::local("make link", &target, &error))?;
                self.tally.file();
                Ok(())
            }
            FileKind::Special(_) => {
                let text = format!(
                    "cannot get {}: it is a {}, which has no bytes to copy",
                    source.display(),
                    human::kind(attr.kind)
                );
                Err(Failure::Failed(text))
            }
        }
    }

    fn directory(&self, queue: &Queue<'a>, source: &Path, target: &Path, attr: &Attr) -> Outcome {
        if !self.recursive {
            let text = format!("cannot get {}: it is a directory: use \"forebay get -r\"", source.display());
            return Err(Failure::Failed(text));
        }
        // Entries are written to the directory, so its owner needs access whatever its mode.
        let mode = u32::from(attr.mode) & 0o777 | 0o700;
        match fs::DirBuilder::new().mode(mode).create(target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && target.is_dir() => {}
            made => made.map_err(|error| Failure::local("make", target, &error))?,
        }
        self.tally.directory();
        for (entry, attr) in entries(self.client, source)? {
            let path = join(source, &entry.name);
            self.report(self.one(queue, &path, join(target, &entry.name), &attr));
        }
        Ok(())
    }

    fn file(&self, queue: &Queue<'a>, source: &Path, path: PathBuf, attr: &Attr) -> Outcome {
        let (client, tally, source) = (self.client, self.tally, source.to_owned());
        let mode = u32::from(attr.mode) & 0o777;
        pass(queue, tally, attr.size, move || {
            let remote = tally.checked(client.open(&source, OpenOptions::READ))?;
            let local = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(&path);
            let local = local.map_err(|error| Failure::local("write", &path, &error))?;
            Ok(Download { remote, local, path })
        })
    }
}

/// Creates a symbolic link; replaces an existing one.
fn link(link_target: &OsStr, path: &Path) -> io::Result<()> {
    match symlink(link_target, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_symlink() => {
            fs::remove_file(path)?;
            symlink(link_target, path)
        }
        made => made,
    }
}

impl Passage for Download {
    fn piece(&self, tally: &Tally, offset: u64, buffer: &mut [u8]) -> Outcome<usize> {
        let count = tally.checked(self.remote.pread(offset, buffer))?;
        let written = self.local.write_all_at(&buffer[..count], offset);
        written.map_err(|error| Failure::local("write", &self.path, &error))?;
        tally.copied(count as u64);
        Ok(count)
    }

    fn close(self, tally: &Tally) -> Outcome {
        tally.checked(self.remote.close())
    }
}

/// Writes files to standard output, one after the other.
pub(super) fn stream(client: &Client, paths: &[PathBuf]) -> Outcome {
    let mut buffer = vec![0; PIECE];
    each(paths, |path| {
        let remote = client.open(path, OpenOptions::READ)?;
        if remote.stat()?.kind == FileKind::Directory {
            let text =
                format!("cannot read {}: it is a directory: list it with \"forebay ls\"", path.display());
            return Err(Failure::Failed(text));
        }
        let mut offset = 0;
        loop {
            let count = remote.pread(offset, &mut buffer)?;
            output::bytes(&buffer[..count])?;
            offset += count as u64;
            if count < buffer.len() {
                return Ok(remote.close()?);
            }
        }
    })
}
