//! What is in the directory behind, compared with the model.

use crate::driver::Driver;
use crate::found::{LARGEST, NAMES, attributes};
use crate::tree::{Body, NodeId, ROOT};
use forebay_client::blocking::Client;
use forebay_dice::{is_root, pattern};
use forebay_model::{Identity, Time};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// No drain of a test takes as long.
const PATIENCE: Duration = Duration::from_secs(240);
/// What a server keeps for itself.
const PRIVATE: &str = ".forebay";

impl Driver {
    /// Drains everything, and compares what is behind with the model: byte by byte, with owners, modes and times.
    pub fn check_behind(&mut self, place: &Path) {
        let client = self.client().as_identity(Identity::root());
        drain(&client);
        let mut names: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        self.collect(ROOT, "", &mut names);
        let mut expected = BTreeSet::new();
        for (id, paths) in &names {
            // A file with several names has one of them behind.
            let there: Vec<&String> =
                paths.iter().filter(|path| place.join(path).symlink_metadata().is_ok()).collect();
            assert_eq!(there.len(), 1, "{paths:?}: {there:?} are behind");
            expected.insert(there[0].clone());
            self.compare_behind(&client, place, there[0], *id);
        }
        let mut found = BTreeSet::new();
        list(place, "", &mut found);
        assert_eq!(found, expected);
    }

    /// Somebody changes what is behind, where everything is that the model has: files that nobody has open are written anew
    /// in their place, or removed, and new ones come to be.
    pub fn meddle(&mut self, place: &Path) {
        let mut names: BTreeMap<NodeId, Vec<String>> = BTreeMap::new();
        self.collect(ROOT, "", &mut names);
        let is_closed =
            |id: &NodeId| matches!(self.tree().node(*id).body, Body::File(_)) && !self.has_open(*id);
        let files: Vec<NodeId> = names.keys().copied().filter(is_closed).collect();
        let dirs: Vec<NodeId> = names.keys().copied().filter(|id| self.tree().is_dir(*id)).collect();
        let (tree, dice) = self.others();
        for id in files {
            let paths = &names[&id];
            let path =
                paths.iter().find(|path| place.join(path).exists()).expect("one of its names is behind");
            match dice.below(6) {
                0..2 => {
                    let bytes = pattern(dice.next(), dice.size(LARGEST) as usize);
                    fs::write(place.join(path), &bytes).expect("a file can be written");
                    *tree.bytes_mut(id) = bytes;
                }
                2 if paths.len() == 1 => {
                    fs::remove_file(place.join(path)).expect("a file can be removed");
                    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
                    let dir = names.iter().find(|(_, paths)| paths.iter().any(|path| path == above));
                    tree.entries_mut(dir.map_or(ROOT, |(dir, _)| *dir)).remove(name);
                }
                _ => {}
            }
        }
        for dir in dirs.into_iter().chain([ROOT]) {
            let name = *dice.pick(&NAMES);
            let path = place.join(names.get(&dir).map_or("", |paths| &paths[0])).join(name);
            if !dice.one_in(3) || path.symlink_metadata().is_ok() || tree.entries_mut(dir).contains_key(name)
            {
                continue;
            }
            let bytes = pattern(dice.next(), dice.size(LARGEST) as usize);
            fs::write(&path, &bytes).expect("a file can be made");
            let node = attributes(dice, &path, Body::File(Arc::new(bytes)));
            tree.nodes.push(node);
            let id = tree.nodes.len() - 1;
            tree.entries_mut(dir).insert(name.to_owned(), id);
        }
    }

    fn collect(&self, dir: NodeId, path: &str, names: &mut BTreeMap<NodeId, Vec<String>>) {
        let Body::Dir { entries, .. } = &self.tree().node(dir).body else { return };
        for (name, &id) in entries {
            let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            self.collect(id, &path, names);
            names.entry(id).or_default().push(path);
        }
    }

    fn compare_behind(&self, client: &Client, place: &Path, path: &str, id: NodeId) {
        let (node, there) = (self.tree().node(id), place.join(path));
        let found = there.symlink_metadata().expect("it was there a moment ago");
        let here = client.lstat(path).expect("it is in the model");
        match &node.body {
            Body::File(bytes) => {
                let behind = fs::read(&there).expect("root may read it");
                let at = behind.iter().zip(bytes.iter()).position(|(one, other)| one != other);
                let (count, len) = (behind.len(), bytes.len());
                assert!(
                    behind == **bytes,
                    "{path}: {count} of {len} bytes are behind, the first other at {at:?}"
                );
            }
            Body::Link(target) => {
                assert_eq!(fs::read_link(&there).expect("a link").as_os_str(), target.as_str(), "{path}");
            }
            Body::Dir { .. } => assert!(found.is_dir(), "{path}"),
        }
        if !matches!(node.body, Body::Link(_)) {
            assert_eq!(found.mode() & 0o7777, u32::from(node.mode), "mode of {path}");
        }
        if is_root() {
            assert_eq!((found.uid(), found.gid()), (node.uid, node.gid), "owner of {path}");
        }
        let mtime = Time { secs: found.mtime(), nanos: found.mtime_nsec() as u32 };
        assert_eq!(mtime, here.mtime, "time of {path}");
    }
}

/// Drains everything, however often something fails.
pub fn drain(client: &Client) {
    let begin = Instant::now();
    loop {
        let mut report = client.drain(None, None).expect("a server before a directory drains");
        while let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) {
            assert!(begin.elapsed() < PATIENCE, "the drain does not end: {report:?}");
            std::thread::sleep(Duration::from_millis(5));
            report = client.drain_state(Some(ticket.id)).expect("the server answers");
        }
        let ticket = report.ticket.expect("what was begun has a ticket");
        if ticket.failed == 0 {
            assert_eq!(ticket.skipped, 0, "{report:?}");
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "not everything can be drained: {report:?}");
    }
}

fn list(place: &Path, path: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(place.join(path)).expect("root may list it") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("names of the model are text");
        if path.is_empty() && name == PRIVATE {
            continue;
        }
        let below = if path.is_empty() { name } else { format!("{path}/{name}") };
        if entry.file_type().expect("a kind").is_dir() {
            list(place, &below, found);
        }
        found.insert(below);
    }
}
