//! Whether a tmpfs outlives the process that fills it.
//!
//! A tmpfs lives as long as a mount of it, and a mount as long as its mount namespace. A server in a namespace of its
//! own (a hardened systemd unit, a container) takes both with it when it is killed, with every byte that it
//! acknowledged. So memory counts as lasting only if another process keeps its mount alive.

use rustix::fs::{major, minor};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How many ancestors of a process are inspected at most.
const GENERATIONS: usize = 64;

/// The process that keeps a tmpfs mounted when this process dies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum MountHolder {
    /// Process 1, whose mount namespace includes it.
    Init,
    /// An ancestor of this process in the same mount namespace: its pid and name.
    Ancestor(u32, String),
    /// No known process.
    Unknown,
}

/// The process that keeps the file system at a path mounted.
pub(crate) fn mount_holder(path: &Path) -> MountHolder {
    let own = std::process::id();
    if own != 1 && std::fs::metadata(path).is_ok_and(|facts| is_mounted_for(1, facts.dev())) {
        return MountHolder::Init;
    }
    let bound = is_bound_to_parent();
    let ancestors = std::iter::successors(parent_of(own), |&pid| parent_of(pid)).take(GENERATIONS);
    // An ancestor that runs the same program may exit after starting this process. It counts only if this process dies
    // with it.
    let mut holders = ancestors.filter(|&pid| shares_mounts(pid) && (bound || !is_same_program(pid)));
    match holders.next() {
        Some(1) => MountHolder::Init,
        Some(pid) => MountHolder::Ancestor(pid, name_of(pid)),
        None => MountHolder::Unknown,
    }
}

/// Whether a process's mount namespace includes the file system with this device number.
fn is_mounted_for(pid: u32, device: u64) -> bool {
    let number = format!("{}:{}", major(device), minor(device));
    std::fs::read_to_string(format!("/proc/{pid}/mountinfo"))
        .is_ok_and(|mounts| mounts.lines().any(|line| line.split(' ').nth(2) == Some(&number)))
}

fn shares_mounts(pid: u32) -> bool {
    let space = |whose: &str| std::fs::read_link(format!("/proc/{whose}/ns/mnt")).ok();
    space("self").is_some_and(|own| space(&pid.to_string()) == Some(own))
}

fn is_same_program(pid: u32) -> bool {
    let program = |whose: &str| -> Option<PathBuf> { std::fs::read_link(format!("/proc/{whose}/exe")).ok() };
    program("self") == program(&pid.to_string())
}

/// Whether the kernel kills this process when its parent dies.
fn is_bound_to_parent() -> bool {
    rustix::process::parent_process_death_signal().is_ok_and(|signal| signal.is_some())
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_field(pid, 1)?.parse().ok().filter(|&parent| parent > 0)
}

fn name_of(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned())
}

/// A field of `/proc/PID/stat`, counted after the process name, which may contain spaces and parentheses.
pub(crate) fn stat_field(pid: u32, number: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace().nth(number).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_system_mounted_for_process_1_is_kept_by_init() {
        assert_eq!(mount_holder(Path::new("/")), MountHolder::Init);
    }

    #[test]
    fn parent_processes_are_read_from_proc() {
        let own = std::process::id();
        let parent = rustix::process::getppid().expect("a test has a parent").as_raw_nonzero().get();
        assert_eq!(parent_of(own), u32::try_from(parent).ok());
        assert!(shares_mounts(own) && is_same_program(own));
        assert_eq!(parent_of(1), None);
    }
}
