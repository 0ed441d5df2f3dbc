//! Free memory and disk space for a new store.
//!
//! A store on a disk allocates its whole capacity when it is created; in memory it allocates parts of regions before
//! they are granted. If a machine or a control group has less, the kernel would kill the server or another process
//! (OOM), so free space is checked first.

use forebay_model::{Bytes, Error, ErrorKind, Result};
use rustix::fs::statvfs;
use std::fmt;
use std::path::{Path, PathBuf};

/// A control group limit of this size or more means unlimited.
const UNLIMITED: u64 = 1 << 62;
/// Memory that is left to other programs when more is allocated.
const MARGIN: u64 = 64 << 20;

/// Free bytes, and where.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Free {
    bytes: u64,
    place: Place,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Place {
    Machine,
    Group(PathBuf),
    FileSystem(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Machine => write!(f, "in the memory of this machine"),
            Place::Group(dir) => write!(f, "below the memory limit of the control group {}", dir.display()),
            Place::FileSystem(dir) => write!(f, "on the file system of {}", dir.display()),
        }
    }
}

/// Memory available without swapping: of the machine, and below the limits of this process's control groups.
#[must_use]
pub fn available_memory() -> Option<Bytes> {
    memory().map(|free| Bytes(free.bytes))
}

fn memory() -> Option<Free> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let machine = machine.map(|bytes| Free { bytes, place: Place::Machine });
    let groups = groups().into_iter().filter_map(|group| group.free());
    machine.into_iter().chain(groups).min_by_key(|free| free.bytes)
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Fails if the given number of bytes does not fit: in memory, if `in_memory`, and on the file system of `place`, if
/// given.
pub(crate) fn demand(need: u64, in_memory: bool, place: Option<&Path>) -> Result<()> {
    let on_disk = place.and_then(|place| {
        let dir = place.ancestors().find(|dir| dir.exists())?;
        let facts = statvfs(dir).ok()?;
        Some(Free { bytes: facts.f_bavail * facts.f_frsize, place: Place::FileSystem(dir.to_owned()) })
    });
    let free = on_disk.into_iter().chain(memory().filter(|_| in_memory)).min_by_key(|free| free.bytes);
    match free {
        Some(free) if free.bytes < need => Err(refusal(need, &free, in_memory)),
        _ => Ok(()),
    }
}

/// Fails if the machine or a control group has too little memory for this many bytes more.
pub(crate) fn demand_memory(need: u64) -> Result<()> {
    match memory() {
        Some(free) if free.bytes < need.saturating_add(MARGIN) => Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the buffer cannot grow to its capacity: only {} are free {}: end other programs there, or choose a \
                 smaller --capacity",
                Bytes(free.bytes),
                free.place
            ),
        )),
        _ => Ok(()),
    }
}

fn refusal(need: u64, free: &Free, in_memory: bool) -> Error {
    let instead = if in_memory { ", or keep data on disk (--disk)" } else { "" };
    let text = format!(
        "a buffer of this capacity takes {}, and {} are free {}: free space there, or ask for less with \
         --capacity{instead}",
        Bytes(need),
        Bytes(free.bytes),
        free.place
    );
    Error::new(ErrorKind::NoSpace, text)
}

/// A control group that limits memory.
#[derive(PartialEq, Eq, Debug)]
struct Group {
    dir: PathBuf,
    unified: bool,
}

/// The control groups of this process, each with its ancestors.
fn groups() -> Vec<Group> {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    groups_in(&read("cgroup"), &read("mountinfo"))
}

fn groups_in(memberships: &str, mounts: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in memberships.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let unified = controllers.is_empty();
        if !unified && !controllers.split(',').any(|one| one == "memory") {
            continue;
        }
        let Some((root, top)) = mounts.lines().find_map(|line| mount_of(line, unified)) else { continue };
        let below = Path::new(path).strip_prefix(&root).unwrap_or_else(|_| Path::new(""));
        let own = if below.as_os_str().is_empty() { top.clone() } else { top.join(below) };
        let around = own.ancestors().take_while(|dir| dir.starts_with(&top));
        groups.extend(around.map(|dir| Group { dir: dir.to_owned(), unified }));
    }
    groups
}

/// The root and the mount point of a mount of control groups that limit memory.
fn mount_of(line: &str, unified: bool) -> Option<(PathBuf, PathBuf)> {
    let (front, back) = line.split_once(" - ")?;
    let mut front = front.split(' ').skip(3);
    let (root, at) = (front.next()?, front.next()?);
    let mut back = back.split(' ');
    let (kind, options) = (back.next()?, back.nth(1)?);
    let fits = match unified {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    fits.then(|| (PathBuf::from(root), PathBuf::from(at)))
}

impl Group {
    /// The bytes left below its limit; `None` without a limit. Reclaimable file pages count as free.
    fn free(&self) -> Option<Free> {
        let [limit, usage, cache] = match self.unified {
            true => ["memory.max", "memory.current", "inactive_file"],
            false => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"],
        };
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let limit = number(limit).filter(|&limit| limit < UNLIMITED)?;
        let cached = read("memory.stat")
            .and_then(|text| {
                let line = text.lines().find_map(|line| line.strip_prefix(cache)?.strip_prefix(' '))?;
                line.trim().parse::<u64>().ok()
            })
            .unwrap_or(0);
        let used = number(usage)?.saturating_sub(cached);
        Some(Free { bytes: limit.saturating_sub(used), place: Place::Group(self.dir.clone()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_cgroups_v1_and_v2_are_found_with_their_ancestors() {
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
                      35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                      41 31 0:38 /pod /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let dirs = |memberships: &str| -> Vec<String> {
            let shown = |group: Group| format!("{} {}", group.dir.display(), u8::from(group.unified) + 1);
            groups_in(memberships, mounts).into_iter().map(shown).collect()
        };
        assert_eq!(
            dirs("4:memory:/a/b\n3:cpu:/c\n"),
            ["/sys/fs/cgroup/memory/a/b 1", "/sys/fs/cgroup/memory/a 1", "/sys/fs/cgroup/memory 1"]
        );
        assert_eq!(dirs("0::/pod/x\n"), ["/sys/fs/cgroup/unified/x 2", "/sys/fs/cgroup/unified 2"]);
        // A path of another namespace: the mount's own group is used.
        assert_eq!(dirs("0::/elsewhere\n"), ["/sys/fs/cgroup/unified 2"]);
        assert_eq!(dirs("3:cpu:/c\nnonsense\n"), [""; 0]);
    }

    #[test]
    fn cgroup_limits_count_reclaimable_pages_as_free() {
        for (unified, files, free) in [
            (
                true,
                [
                    ("memory.max", "1000\n"),
                    ("memory.current", "700\n"),
                    ("memory.stat", "anon 5\ninactive_file 50\n"),
                ],
                Some(350),
            ),
            (true, [("memory.max", "max\n"), ("memory.current", "700\n"), ("memory.stat", "")], None),
            (
                false,
                [
                    ("memory.limit_in_bytes", "1000"),
                    ("memory.usage_in_bytes", "1200"),
                    ("memory.stat", "total_inactive_file 100\n"),
                ],
                Some(0),
            ),
            (
                false,
                [
                    ("memory.limit_in_bytes", "9223372036854771712"),
                    ("memory.usage_in_bytes", "1"),
                    ("memory.stat", ""),
                ],
                None,
            ),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in files {
                std::fs::write(dir.path().join(name), text).unwrap();
            }
            let group = Group { dir: dir.path().to_owned(), unified };
            assert_eq!(group.free().map(|free| free.bytes), free, "{files:?}");
        }
    }

    #[test]
    fn too_large_capacity_is_refused_with_numbers_and_advice() {
        let text = "MemTotal: 9 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(available(text), Some(2 << 20));
        let error = demand(1 << 60, true, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        for part in ["takes 1 EiB,", " are free ", "--capacity", "--disk"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(demand_memory(1 << 20).is_ok());
        let error = demand_memory(1 << 60).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("cannot grow to its capacity"), "{error}");
        let error = demand(1 << 60, false, Some(Path::new("/no/such/place"))).unwrap_err();
        assert!(error.to_string().contains("on the file system of /:"), "{error}");
        assert!(demand(1, true, Some(Path::new("/"))).is_ok());
    }
}
