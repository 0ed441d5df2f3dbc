//! Taking a service out of the tree of directories.

use forebay_model::{Error, ErrorKind, Result};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Unmounts a service. One that is in use is `Busy`, unless `lazy`: then it disappears at once, and ends with its last
/// user.
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

/// Only root may unmount; for others there is a program.
fn unmount_as_user(dir: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
    let output = command.output().map_err(|error| {
        let text = format!(
            "cannot unmount {}: fusermount3 cannot be run ({error}): install fuse3, or do it as root",
            dir.display()
        );
        Error::new(ErrorKind::NotPermitted, text)
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    match said.contains("busy") {
        true => Err(busy(dir)),
        false => Err(Error::new(
            ErrorKind::NotPermitted,
            format!("cannot unmount {}: {}", dir.display(), said.trim()),
        )),
    }
}

fn busy(dir: &Path) -> Error {
    let text = format!(
        "cannot unmount {}: it is in use: close what is open there and leave it, or unmount it lazily (-l)",
        dir.display()
    );
    Error::new(ErrorKind::Busy, text)
}

/// The directory as the kernel knows it, if a service is mounted there. It is not looked at itself: whoever served
/// it may be gone.
fn mounted_at(dir: &Path) -> Result<PathBuf> {
    let mut full = std::path::absolute(dir)
        .map_err(|error| Error::new(ErrorKind::Invalid, format!("{}: {error}", dir.display())))?;
    if let (Some(parent), Some(name)) = (full.parent(), full.file_name())
        && let Ok(parent) = parent.canonicalize()
    {
        full = parent.join(name);
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot read the table of mounts: {error}")))?;
    match table.lines().any(|line| is_ours(line, &full)) {
        true => Ok(full),
        false => Err(Error::new(
            ErrorKind::NotFound,
            format!("cannot unmount {}: no service is mounted there", dir.display()),
        )),
    }
}

/// Whether a line of the table of mounts is about a service at this directory.
fn is_ours(line: &str, dir: &Path) -> bool {
    let (before, after) = line.split_once(" - ").unwrap_or((line, ""));
    let place = before.split(' ').nth(4).map(unescape);
    place.as_deref() == dir.to_str() && after.starts_with("fuse.forebay ")
}

/// Undoes the escapes of the table of mounts.
fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_found_in_the_table() {
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
