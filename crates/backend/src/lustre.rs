//! Lustre: its targets as its own parameters tell them, and the layouts of its files.

use crate::Layout;
use forebay_policy::place::lov::{ATTRIBUTE, LONGEST, Lov};
use forebay_policy::place::{Description, Server, State, Target};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where Lustre's parameters are, in older and newer versions.
const ROOTS: [&str; 3] = ["/proc/fs/lustre", "/sys/fs/lustre", "/sys/kernel/debug/lustre"];

/// What statfs says a Lustre is.
const MAGIC: u32 = 0x0BD0_0BD0;

/// The names of the targets of the file system that something is on, by their numbers; none if it is no Lustre.
pub(crate) fn targets(on: &impl std::os::fd::AsFd) -> Vec<String> {
    let is_lustre = rustix::fs::fstatfs(on).is_ok_and(|found| found.f_type as u32 == MAGIC);
    match described().filter(|_| is_lustre) {
        None => Vec::new(),
        Some(description) => named(&description.targets),
    }
}

fn named(targets: &[Target]) -> Vec<String> {
    let most = targets.iter().map(|target| target.index as usize + 1).max().unwrap_or(0);
    let mut names: Vec<String> = (0..most.min(1 << 16)).map(|number| format!("OST{number:04x}")).collect();
    for target in targets {
        if let Some(name) = names.get_mut(target.index as usize) {
            name.clone_from(&target.name);
        }
    }
    names
}

/// Asks for a layout. Whether it has taken only [`layout`] tells: a refusal may look like success.
pub(crate) fn ask(file: &fs::File, layout: &Layout) -> rustix::io::Result<()> {
    let size = u32::try_from(layout.stripe).map_err(|_| rustix::io::Errno::INVAL)?;
    fsetxattr(file, ATTRIBUTE, &Lov::specific(&layout.targets, size).encode(), XattrFlags::empty())
}

/// How a file lies, if it lies in one way and Lustre tells it.
pub(crate) fn layout(file: &fs::File) -> Option<Layout> {
    let mut bytes = vec![0; LONGEST];
    let length = fgetxattr(file, ATTRIBUTE, bytes.as_mut_slice()).ok()?;
    let (targets, stripe) = Lov::parse(&bytes[..length]).ok()?.stripes()?;
    Some(Layout { targets, stripe })
}

/// The targets of the file system on this machine, if there is one and only one.
#[must_use]
pub fn described() -> Option<Description> {
    read(&ROOTS.map(PathBuf::from))
}

fn read(roots: &[PathBuf]) -> Option<Description> {
    let lists = roots.iter().flat_map(|root| entries(&root.join("lov")));
    let mut lists: Vec<String> =
        lists.filter_map(|dir| fs::read_to_string(dir.join("target_obd")).ok()).collect();
    lists.sort();
    lists.dedup();
    // Of several file systems nobody knows which is meant.
    let [list] = &lists[..] else { return None };
    let clients: Vec<PathBuf> = roots.iter().flat_map(|root| entries(&root.join("osc"))).collect();
    let targets: Vec<Target> = list.lines().filter_map(|line| target(line, &clients)).collect();
    let servers: BTreeSet<&String> = targets.iter().map(|target| &target.server).collect();
    let server = |name: &String| Server { name: name.clone(), capacity: None };
    let servers = servers.into_iter().map(server).collect();
    (!targets.is_empty()).then_some(Description { servers, targets, ..Description::default() })
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let list = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = list.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// A line such as `3: scratch-OST0003_UUID ACTIVE`, with what the client of that target knows.
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
    fn lustre_tells_its_targets() {
        let dir = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            fs::write(path, text).expect("a file");
        };
        let roots = [dir.path().join("proc"), dir.path().join("sys")];
        assert_eq!(read(&roots), None);
        let list = "0: s-OST0000_UUID ACTIVE\n1: s-OST0001_UUID INACTIVE\n7: s-OST0007_UUID ACTIVE\n";
        write("proc/lov/s-clilov-ffff/target_obd", list);
        for (number, server) in
            [("0000", "10.0.0.1@o2ib"), ("0001", "10.0.0.1@o2ib"), ("0007", "10.0.0.2@o2ib")]
        {
            write(&format!("sys/osc/s-OST{number}-osc-ffff/ost_conn_uuid"), &format!("{server}\n"));
            write(&format!("sys/osc/s-OST{number}-osc-ffff/kbytesavail"), "4\n");
        }
        let found = read(&roots).expect("a file system");
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
        assert_eq!(read(&roots), None, "nobody knows which");
    }
}
