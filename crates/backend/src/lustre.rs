//! Lustre: its targets from its parameters, and the layouts of its files.

use crate::Layout;
use forebay_policy::place::lov::{ATTRIBUTE, LONGEST, Lov};
use forebay_policy::place::{Description, Server, State, Target};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

/// Directories of Lustre's parameters, in older and newer versions.
const ROOTS: [&str; 3] = ["/proc/fs/lustre", "/sys/fs/lustre", "/sys/kernel/debug/lustre"];

/// Lustre's file system type in statfs.
const MAGIC: u32 = 0x0BD0_0BD0;

/// The targets of the file system of an open directory; `None` if it is not Lustre, or its parameters are
/// missing.
pub(crate) fn on(root: &OwnedFd) -> Option<Description> {
    let is_lustre = rustix::fs::fstatfs(root).is_ok_and(|found| found.f_type as u32 == MAGIC);
    let path = fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd())).unwrap_or_default();
    is_lustre.then(|| described(&path)).flatten()
}

/// The names of targets, by index.
pub(crate) fn named(targets: &[Target]) -> Vec<String> {
    let most = targets.iter().map(|target| target.index as usize + 1).max().unwrap_or(0);
    let mut names: Vec<String> = (0..most.min(1 << 16)).map(|number| format!("OST{number:04x}")).collect();
    for target in targets {
        if let Some(name) = names.get_mut(target.index as usize) {
            name.clone_from(&target.name);
        }
    }
    names
}

/// Requests a layout. Only [`layout`] shows whether it was applied: a refusal may look like success.
pub(crate) fn request(file: &fs::File, layout: &Layout) -> rustix::io::Result<()> {
    let size = u32::try_from(layout.stripe).map_err(|_| rustix::io::Errno::INVAL)?;
    fsetxattr(file, ATTRIBUTE, &Lov::specific(&layout.targets, size).encode(), XattrFlags::empty())
}

/// The layout of a file, if it is plain and Lustre reports it.
pub(crate) fn layout(file: &fs::File) -> Option<Layout> {
    let mut bytes = vec![0; LONGEST];
    let length = fgetxattr(file, ATTRIBUTE, bytes.as_mut_slice()).ok()?;
    let (targets, stripe) = Lov::parse(&bytes[..length]).ok()?.stripes()?;
    Some(Layout { targets, stripe })
}

/// The targets of the Lustre that a path is on, from its parameters. For a path on another file system: those
/// of the only Lustre on this machine, if there is exactly one.
#[must_use]
pub fn described(path: &Path) -> Option<Description> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    read(&ROOTS.map(PathBuf::from), mounted(&mounts, path).as_deref())
}

/// The name of the Lustre that a path is on: `scratch` of a mount such as `10.0.0.1@tcp:/scratch`.
fn mounted(mounts: &str, path: &Path) -> Option<String> {
    let mount = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let mut after = after.split(' ');
        let (kind, source) = (after.next()?.to_owned(), after.next()?.to_owned());
        path.starts_with(&point).then_some((point.len(), kind, source))
    };
    // Of two mounts at one place the later one is visible.
    let (_, kind, source) = mounts.lines().filter_map(mount).max_by_key(|(length, ..)| *length)?;
    let (_, name) = source.split_once(":/")?;
    (kind == "lustre").then(|| name.split('/').next().unwrap_or(name).to_owned())
}

fn read(roots: &[PathBuf], name: Option<&str>) -> Option<Description> {
    let starts = |path: &Path| {
        let found = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.is_none_or(|name| found.starts_with(&format!("{name}-")))
    };
    let all = |kind: &str| -> Vec<PathBuf> {
        roots.iter().flat_map(|root| entries(&root.join(kind))).filter(|path| starts(path)).collect()
    };
    let clients = all("osc");
    let lists = all("lov").into_iter().filter_map(|dir| fs::read_to_string(dir.join("target_obd")).ok());
    let mut lists: BTreeSet<String> = lists.collect();
    if lists.is_empty() {
        lists.extend(listed(&clients));
    }
    // With several file systems it is ambiguous which one is meant.
    let list = lists.first().filter(|_| lists.len() == 1)?;
    let targets: Vec<Target> = list.lines().filter_map(|line| target(line, &clients)).collect();
    let servers: BTreeSet<&String> = targets.iter().map(|target| &target.server).collect();
    let server = |name: &String| Server { name: name.clone(), capacity: None };
    let servers = servers.into_iter().map(server).collect();
    (!targets.is_empty()).then_some(Description { servers, targets, ..Description::default() })
}

/// The same lists from parameters that all users may read, where only root may read the lists: a client of
/// each target, such as `scratch-OST000a-osc-ffff8800`.
fn listed(clients: &[PathBuf]) -> Vec<String> {
    let mut lists: BTreeMap<String, BTreeMap<u32, String>> = BTreeMap::new();
    for client in clients {
        let name = client.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Some((target, _)) = name.split_once("-osc-") else { continue };
        let Some((system, number)) = target.rsplit_once("-OST") else { continue };
        let Ok(index) = u32::from_str_radix(number, 16) else { continue };
        let active = fs::read_to_string(client.join("active")).is_ok_and(|text| text.trim() == "1");
        let state = if active { "ACTIVE" } else { "INACTIVE" };
        let line = format!("{index}: {target}_UUID {state}\n");
        lists.entry(system.to_owned()).or_default().insert(index, line);
    }
    lists.into_values().map(|lines| lines.into_values().collect()).collect()
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = list.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Parses a line such as `3: scratch-OST0003_UUID ACTIVE`, and adds the parameters of that target's client.
fn target(line: &str, clients: &[PathBuf]) -> Option<Target> {
    let (index, rest) = line.split_once(':')?;
    let mut words = rest.split_whitespace();
    let name = words.next()?.trim_end_matches("_UUID").to_owned();
    let state = if words.next() == Some("ACTIVE") { State::Active } else { State::Inactive };
    let parameter = |key: &str| {
        let starts = format!("{name}-osc");
        let mine = clients
            .iter()
            .filter(|dir| dir.file_name().is_some_and(|found| found.to_string_lossy().starts_with(&starts)));
        mine.filter_map(|dir| fs::read_to_string(dir.join(key)).ok()).next()
    };
    let server = parameter("ost_conn_uuid").map_or("server0".to_owned(), |uuid| uuid.trim().to_owned());
    let free = parameter("kbytesavail").and_then(|text| text.trim().parse::<u64>().ok());
    let free = free.map(|kib| kib.saturating_mul(1024));
    Some(Target { name, server, index: index.trim().parse().ok()?, capacity: 1.0, free, state })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lustre_targets_are_read_from_its_parameters() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        let roots = [dir.path().join("proc"), dir.path().join("sys")];
        assert_eq!(read(&roots, None), None);
        let list = "0: s-OST0000_UUID ACTIVE\n1: s-OST0001_UUID INACTIVE\n7: s-OST0007_UUID ACTIVE\n";
        write("proc/lov/s-clilov-ffff/target_obd", list);
        for (number, server) in
            [("0000", "10.0.0.1@o2ib"), ("0001", "10.0.0.1@o2ib"), ("0007", "10.0.0.2@o2ib")]
        {
            write(&format!("sys/osc/s-OST{number}-osc-ffff/ost_conn_uuid"), &format!("{server}\n"));
            write(&format!("sys/osc/s-OST{number}-osc-ffff/kbytesavail"), "4\n");
            let active = if number == "0001" { "0\n" } else { "1\n" };
            write(&format!("sys/osc/s-OST{number}-osc-ffff/active"), active);
        }
        let found = read(&roots, None).expect("a file system");
        assert_eq!(
            read(&roots[1..], Some("s")).as_ref(),
            Some(&found),
            "without the list that only root reads"
        );
        assert_eq!(read(&roots, Some("t")), None);
        let targets: Vec<_> =
            found.targets.iter().map(|t| (t.index, t.server.as_str(), t.state, t.free)).collect();
        assert_eq!(
            targets,
            [
                (0, "10.0.0.1@o2ib", State::Active, Some(4096)),
                (1, "10.0.0.1@o2ib", State::Inactive, Some(4096)),
                (7, "10.0.0.2@o2ib", State::Active, Some(4096)),
            ]
        );
        assert_eq!(found.servers.len(), 2);
        let names = named(&found.targets);
        assert_eq!((names.len(), names[2].as_str(), names[7].as_str()), (8, "OST0002", "s-OST0007"));
        write("proc/lov/other-clilov-ffff/target_obd", "0: o-OST0000_UUID ACTIVE\n");
        assert_eq!(read(&roots, None), None, "ambiguous");
        assert_eq!(read(&roots, Some("s")).as_ref(), Some(&found));
    }

    #[test]
    fn path_selects_the_mounted_file_system() {
        let mounts = "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
                      40 22 0:50 / /scratch rw - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/fast rw,flock\n\
                      41 22 0:51 / /home rw - lustre 10.0.0.1@tcp:/home/all rw\n\
                      42 40 0:52 / /scratch/my\\040node rw - tmpfs none rw\n";
        for (path, name) in [
            ("/scratch/x/y", Some("fast")),
            ("/scratch", Some("fast")),
            ("/scratches", None),
            ("/home/me", Some("home")),
            ("/scratch/my node/x", None),
            ("/", None),
        ] {
            assert_eq!(mounted(mounts, Path::new(path)).as_deref(), name, "{path}");
        }
    }
}
