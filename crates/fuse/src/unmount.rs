//! Unmounting a service.

use crate::users::users;
use forebay_model::{Error, ErrorKind, Result};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Unmounts a service. Returns `Busy` if it is in use, unless `lazy`: then it is detached at once, and ends with its
/// last user.
pub fn unmount(dir: &Path, lazy: bool) -> Result<()> {
    let dir = mounted_at(dir)?;
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(&dir, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::BUSY) => Err(busy(&dir)),
        Err(rustix::io::Errno::PERM) => unmount_as_user(&dir, lazy),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("cannot unmount {}: {error}", dir.display()))),
    }
}

/// Only root may unmount; other users need `fusermount3`.
fn unmount_as_user(dir: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        let text = format!(
            "cannot unmount {}: cannot run fusermount3 ({error}): install fuse3, or unmount as root",
            dir.display()
        );
        Error::new(ErrorKind::NotPermitted, text)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    match stderr.contains("busy") {
        true => Err(busy(dir)),
        false => Err(Error::new(
            ErrorKind::NotPermitted,
            format!("cannot unmount {}: {}", dir.display(), stderr.trim()),
        )),
    }
}

fn busy(dir: &Path) -> Error {
    let by = match users(dir) {
        Some(users) => format!("by process {users}"),
        None => "by processes of other users".to_owned(),
    };
    let text = format!(
        "cannot unmount {}: it is in use {by}: close its files and leave the directory, or unmount it lazily (-l)",
        dir.display()
    );
    Error::new(ErrorKind::Busy, text)
}

/// The directory as the kernel knows it, if a service is mounted there. Does not access the directory itself: the
/// process that serves it may be gone.
fn mounted_at(dir: &Path) -> Result<PathBuf> {
    let mut full = std::path::absolute(dir)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("{}: {error}", dir.display())))?;
    if let (Some(parent), Some(name)) = (full.parent(), full.file_name())
        && let Ok(parent) = parent.canonicalize()
    {
        full = parent.join(name);
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot read the mount table: {error}")))?;
    match table.lines().any(|line| is_ours(line, &full)) {
        true => Ok(full),
        false => Err(Error::new(
            ErrorKind::NotFound,
            format!("cannot unmount {}: no service is mounted there", dir.display()),
        )),
    }
}

/// Whether a line of the mount table is a service at this directory.
fn is_ours(line: &str, dir: &Path) -> bool {
    let (before, after) = line.split_once(" - ").unwrap_or((line, ""));
    let place = before.split(' ').nth(4).map(unescape);
    place.as_deref() == dir.to_str() && after.starts_with("fuse.forebay ")
}

/// Decodes the escapes of the mount table.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forebay_mounts_are_found_in_the_mount_table() {
        let line =
            |place: &str, kind: &str| format!("30 1 0:44 / {place} rw shared:1 - {kind} src rw,user_id=0");
        for (line, dir, expected) in [
            (line("/mnt/fb", "fuse.forebay"), "/mnt/fb", true),
            (line("/mnt/fb", "fuse.other"), "/mnt/fb", false),
            (line("/mnt/fb", "fuse.forebay"), "/mnt", false),
            (line("/a\\040b", "fuse.forebay"), "/a b", true),
            ("nonsense".to_owned(), "/", false),
        ] {
            assert_eq!(is_ours(&line, Path::new(dir)), expected, "{line}");
        }
    }
}
