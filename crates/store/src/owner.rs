//! Whose a directory is: a store uses only directories that no other user can change, or put in another one's place.

use crate::files::{bad, failed};
use forebay_model::{Error, ErrorKind, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::geteuid;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Links that one path may lead through, as in the kernel.
const MOST_LINKS: usize = 40;
const STICKY: u32 = 0o1000;

/// Opens a directory that belongs to this process's user and that no other user can write to. Links are refused.
pub(crate) fn open_own_dir(dir: &Path) -> Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = open(dir, flags, Mode::empty()).map(File::from).map_err(|error| match is_link(dir) {
        true => bad(format!("{} is a link: name the directory that it leads to", dir.display())),
        false => failed("open", dir, &error.into()),
    })?;
    let facts = file.metadata().map_err(|error| failed("stat", dir, &error))?;
    demand_own(dir, facts.uid())?;
    if is_open_to_others(&facts) {
        let advice = format!("run \"chmod 700 {}\" first", dir.display());
        return Err(bad(format!("other users may write to {}: {advice}", dir.display())));
    }
    Ok(file)
}

/// Fails unless an owner is this process's user.
pub(crate) fn demand_own(path: &Path, owner: u32) -> Result<()> {
    let me = geteuid().as_raw();
    if owner == me {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::BadStore,
        format!(
            "{} belongs to user {owner}, not to user {me} who runs this: run it as user {owner}, or choose another directory",
            path.display()
        ),
    ))
}

/// Whether other users may write to a directory. The group of the owner's own number has no other members.
fn is_open_to_others(facts: &Metadata) -> bool {
    facts.mode() & 0o002 != 0 || (facts.mode() & 0o020 != 0 && facts.gid() != facts.uid())
}

fn is_link(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|found| found.is_symlink())
}

/// Who, beside root and this process's user, may put something else in the place of a path or of what it leads
/// through; `None` if no other user may. Only the part of the path that exists counts. The owner of `/` counts as root: in a user
/// namespace that does not know root, as in a container without privileges, it is who root is there.
pub fn who_may_replace(path: &Path) -> io::Result<Option<String>> {
    let trusted = [0, geteuid().as_raw(), Path::new("/").metadata()?.uid()];
    let (mut at, mut links) = (PathBuf::from("/"), 0);
    let path = std::path::absolute(path)?;
    let mut rest: VecDeque<OsString> = names_of(&path);
    loop {
        let facts = match at.symlink_metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            facts => facts?,
        };
        if !trusted.contains(&facts.uid()) {
            return Ok(Some(format!("user {}, who owns {}", facts.uid(), at.display())));
        }
        if facts.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            let target = at.read_link()?;
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            for name in names_of(&target).into_iter().rev() {
                rest.push_front(name);
            }
        } else if is_open_to_others(&facts) && facts.mode() & STICKY == 0 && !rest.is_empty() {
            return Ok(Some(format!("every user who may write to {}", at.display())));
        }
        let Some(name) = rest.pop_front() else { return Ok(None) };
        match name == ".." {
            true => drop(at.pop()),
            false => at.push(name),
        }
    }
}

fn names_of(path: &Path) -> VecDeque<OsString> {
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    #[test]
    fn writable_parents_and_links_of_others_may_be_replaced() {
        let room = tempfile::tempdir().unwrap();
        let (parent, dir) = (room.path().join("parent"), room.path().join("parent/dir"));
        create_dir(&parent).unwrap();
        create_dir(&dir).unwrap();
        symlink("parent", room.path().join("link")).unwrap();
        let by_link = room.path().join("link/../link/dir/later/on");
        for (mode, open) in [(0o700, false), (0o755, false), (0o777, true), (0o1777, false)] {
            set_permissions(&parent, Permissions::from_mode(mode)).unwrap();
            for path in [&dir, &by_link] {
                let found = who_may_replace(path).unwrap();
                assert_eq!(
                    found.is_some_and(|who| who.contains("may write")),
                    open,
                    "{mode:o} {}",
                    path.display()
                );
            }
        }
        symlink("loop", room.path().join("loop")).unwrap();
        assert!(who_may_replace(&room.path().join("loop")).is_err());
        if geteuid().is_root() {
            std::os::unix::fs::lchown(room.path().join("link"), Some(4711), None).unwrap();
            assert!(who_may_replace(&by_link).unwrap().unwrap().contains("user 4711"));
            assert_eq!(who_may_replace(&dir).unwrap(), None);
            set_permissions(&parent, Permissions::from_mode(0o775)).unwrap();
            for (group, open) in [(0, false), (4711, true)] {
                chown(&parent, None, Some(group)).unwrap();
                assert_eq!(who_may_replace(&dir).unwrap().is_some(), open, "group {group}");
            }
            chown(&parent, Some(4711), None).unwrap();
            assert!(who_may_replace(&dir).unwrap().unwrap().contains("user 4711"));
        }
    }
}
