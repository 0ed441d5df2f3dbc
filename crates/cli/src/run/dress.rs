//! Owner, mode, times and extended attributes of what was brought out.

use crate::failure::{Failure, Outcome};
use forebay_client::blocking::Client;
use forebay_model::{Attr, FileId, FileKind, Time};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, XattrFlags, futimens, utimensat};
use std::collections::BTreeMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown, lchown};
use std::path::Path;

/// Kinds of notes that are kept; the rest is counted.
const MOST: usize = 16;

/// What could not be kept, each said once.
#[derive(Default)]
pub(super) struct Notes {
    lines: BTreeMap<String, u64>,
    more: u64,
}

impl Notes {
    pub(super) fn add(&mut self, line: String) {
        if self.lines.len() < MOST || self.lines.contains_key(&line) {
            *self.lines.entry(line).or_default() += 1;
        } else {
            self.more += 1;
        }
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        let said = self.lines.into_iter().map(|(line, count)| match count {
            1 => line,
            _ => format!("{line} ({count} times)"),
        });
        let more = (self.more > 0).then(|| format!("and {} more notes", self.more));
        said.chain(more).collect()
    }
}

/// Makes a directory or link look like the one it was copied from.
pub(super) fn dress(
    client: &Client,
    source: &Path,
    attr: &Attr,
    target: &Path,
    notes: &mut Notes,
) -> Outcome {
    let failed = |error: io::Error| Failure::local("set the attributes of", target, &error);
    let now = target.symlink_metadata().map_err(failed)?;
    if (now.uid(), now.gid()) != (attr.uid.0, attr.gid.0) {
        owned(lchown(target, Some(attr.uid.0), Some(attr.gid.0)), notes).map_err(failed)?;
    }
    if attr.kind == FileKind::Directory {
        for (name, value) in xattrs(client, attr.id, source)? {
            let set = rustix::fs::setxattr(target, name.as_bytes(), &value, XattrFlags::empty());
            kept(set, notes).map_err(failed)?;
        }
        std::fs::set_permissions(target, Permissions::from_mode(attr.mode.into())).map_err(failed)?;
    }
    utimensat(CWD, target, &times(attr), AtFlags::SYMLINK_NOFOLLOW).map_err(|error| failed(error.into()))
}

/// The same for an open file.
pub(super) fn dress_file(
    client: &Client,
    source: &Path,
    attr: &Attr,
    target: &Path,
    file: &File,
    notes: &mut Notes,
) -> Outcome {
    let failed = |error: io::Error| Failure::local("set the attributes of", target, &error);
    let now = file.metadata().map_err(failed)?;
    if (now.uid(), now.gid()) != (attr.uid.0, attr.gid.0) {
        owned(fchown(file, Some(attr.uid.0), Some(attr.gid.0)), notes).map_err(failed)?;
    }
    for (name, value) in xattrs(client, attr.id, source)? {
        kept(rustix::fs::fsetxattr(file, name.as_bytes(), &value, XattrFlags::empty()), notes)
            .map_err(failed)?;
    }
    file.set_permissions(Permissions::from_mode(attr.mode.into())).map_err(failed)?;
    futimens(file, &times(attr)).map_err(|error| failed(error.into()))
}

/// Only root can give files away; everybody else keeps them.
fn owned(result: io::Result<()>, notes: &mut Notes) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            notes.add("owners could not be kept: only root can give files to others".to_owned());
            Ok(())
        }
        other => other,
    }
}

/// Not every file system has extended attributes, and not everybody may set all of them.
fn kept(result: rustix::io::Result<()>, notes: &mut Notes) -> io::Result<()> {
    use rustix::io::Errno;
    match result {
        Err(Errno::NOTSUP | Errno::PERM | Errno::NOSPC | Errno::TOOBIG) => {
            notes.add("extended attributes could not be kept: the target does not take them".to_owned());
            Ok(())
        }
        other => other.map_err(Into::into),
    }
}

fn xattrs(client: &Client, file: FileId, source: &Path) -> Outcome<Vec<(std::ffi::OsString, Vec<u8>)>> {
    let by_id = client.by_id();
    let within = |error: forebay_model::Error| {
        Failure::from(error.within(format_args!("cannot read the attributes of {}", source.display())))
    };
    let mut all = Vec::new();
    for name in client.wait(by_id.list_xattr(file)).map_err(within)? {
        let value = client.wait(by_id.get_xattr(file, name.clone())).map_err(within)?;
        all.push((std::ffi::OsStr::from_bytes(name.as_bytes()).to_owned(), value));
    }
    Ok(all)
}

fn times(attr: &Attr) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() };
    Timestamps { last_access: time(attr.atime), last_modification: time(attr.mtime) }
}
