//! Paths of the service; helpers for commands that take several paths.

use crate::failure::{Failure, Outcome};
use crate::output;
use forebay_client::Listing;
use forebay_client::blocking::Client;
use forebay_model::{Attr, ErrorKind, FileKind, Name};
use forebay_wire::Entry;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The path of an entry of a directory.
pub(crate) fn join(dir: &Path, name: &Name) -> PathBuf {
    dir.join(OsStr::from_bytes(name.as_bytes()))
}

/// The attributes at a path, or `None` if it does not exist.
pub(crate) fn stat_if_exists(client: &Client, path: &Path) -> Outcome<Option<Attr>> {
    match client.stat(path) {
        Ok(attr) => Ok(Some(attr)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The entries of a directory with their attributes, sorted by name.
pub(crate) fn entries(client: &Client, dir: &Path) -> Outcome<Vec<(Entry, Attr)>> {
    let mut entries = Vec::new();
    for entry in client.read_dir(dir, Listing::Attributes)? {
        let entry = entry?;
        let attr = match entry.attr.clone() {
            Some(attr) => attr,
            None => client.lstat(join(dir, &entry.name))?,
        };
        entries.push((entry, attr));
    }
    entries.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
    Ok(entries)
}

/// The last component of a path, which names its copy.
pub(crate) fn last_part(path: &Path) -> Outcome<OsString> {
    path.file_name()
        .map(OsStr::to_owned)
        .ok_or_else(|| Failure::Usage(format!("{} has no file name: name the entries in it", path.display())))
}

/// The destination of each source: in the target if that is a directory, else the target itself.
pub(crate) fn targets(is_directory: bool, target: &Path, sources: &[PathBuf]) -> Outcome<Vec<PathBuf>> {
    if is_directory {
        return sources.iter().map(|source| Ok(target.join(last_part(source)?))).collect();
    }
    if target.as_os_str().as_bytes().ends_with(b"/") || sources.len() > 1 {
        let text =
            format!("{} is not a directory: create it first, or give a single source", target.display());
        return Err(Failure::Failed(text));
    }
    Ok(vec![target.to_owned()])
}

/// Whether a path of the service is a directory.
pub(crate) fn is_directory(client: &Client, path: &Path) -> Outcome<bool> {
    Ok(stat_if_exists(client, path)?.is_some_and(|attr| attr.kind == FileKind::Directory))
}

/// Calls `act` for each item; reports a failure and continues.
pub(crate) fn each<T>(items: &[T], mut act: impl FnMut(&T) -> Outcome) -> Outcome {
    let mut all_well = true;
    for item in items {
        match act(item) {
            Ok(()) => {}
            Err(failure @ (Failure::Unread | Failure::Interrupted)) => return Err(failure),
            Err(failure) => {
                output::complain(&failure);
                all_well = false;
            }
        }
    }
    if all_well { Ok(()) } else { Err(Failure::Reported) }
}

/// The umask of this process.
pub(crate) fn mask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|text| u16::from_str_radix(text.trim(), 8).ok()).unwrap_or(0o022)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_of_sources() {
        let check = |is_directory, target: &str, sources: &[&str]| {
            let sources: Vec<PathBuf> = sources.iter().map(PathBuf::from).collect();
            let targets = targets(is_directory, Path::new(target), &sources).ok()?;
            Some(targets.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" "))
        };
        for (is_directory, target, sources, expected) in [
            (true, "/d", &["a", "x/b"][..], Some("/d/a /d/b")),
            (true, "/", &["a/"], Some("/a")),
            (false, "/n", &["a"], Some("/n")),
            (false, "/n", &["a", "b"], None),
            (false, "/n/", &["a"], None),
            (true, "/d", &[".."], None),
        ] {
            assert_eq!(check(is_directory, target, sources).as_deref(), expected, "{target} {sources:?}");
        }
    }
}
