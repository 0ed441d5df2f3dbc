//! What is in the directory behind, compared with the model.

use crate::driver::Driver;
use crate::tree::{Body, NodeId, ROOT};
use forebay_client::blocking::Client;
use forebay_dice::is_root;
use forebay_model::{Identity, Result, Time};
use forebay_wire::DrainReport;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
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
        let _pause = self.pause();
        let names = self.names();
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

    /// Drains everything for the last time, and compares what is behind with the model again: now with all names of
    /// files, and with extended attributes where the directory takes them. Whoever serves it knows only one name of each
    /// file behind, so that nothing may be changed afterwards.
    pub fn check_last(mut self, place: &Path) {
        self.close_all();
        let client = self.client().as_identity(Identity::root());
        let notes = drain_by(&client, Client::drain_last).status.notes;
        let _pause = self.pause();
        let mut expected = BTreeSet::new();
        for (id, paths) in &self.names() {
            let number = |path: &String| place.join(path).symlink_metadata().map(|found| found.ino()).ok();
            let numbers: BTreeSet<Option<u64>> = paths.iter().map(number).collect();
            assert!(numbers.len() == 1 && !numbers.contains(&None), "{paths:?} are {numbers:?} behind");
            self.compare_behind(&client, place, &paths[0], *id);
            self.compare_attributes(place, &paths[0], *id, &notes);
            expected.extend(paths.iter().cloned());
        }
        let mut found = BTreeSet::new();
        list(place, "", &mut found);
        assert_eq!(found, expected);
    }

    /// An attribute is behind as it is here, or it is told that not all could be kept.
    fn compare_attributes(&self, place: &Path, path: &str, id: NodeId, notes: &[String]) {
        let node = self.tree().node(id);
        if matches!(node.body, Body::Link(_)) {
            return;
        }
        for (name, value) in &node.xattrs {
            let mut found = vec![0; value.len() + 1];
            match rustix::fs::getxattr(place.join(path), name.as_str(), &mut found[..]) {
                Ok(len) => assert!(found[..len] == **value, "{name} of {path}"),
                Err(_) => assert!(!notes.is_empty(), "{path} has no {name} behind"),
            }
        }
    }

    /// Everything but the root, with all its paths.
    pub(crate) fn names(&self) -> BTreeMap<NodeId, Vec<String>> {
        let mut names = BTreeMap::new();
        self.collect(ROOT, "", &mut names);
        names
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
        assert_eq!(mtime, here.mtime, "time of {path}: {here:?}");
    }
}

/// Drains everything, however often something fails.
pub fn drain(client: &Client) {
    drain_by(client, |client| client.drain(None, None));
}

fn drain_by(client: &Client, begin_one: impl Fn(&Client) -> Result<DrainReport>) -> DrainReport {
    let begin = Instant::now();
    loop {
        let mut report = begin_one(client).expect("a server before a directory drains");
        while let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) {
            assert!(begin.elapsed() < PATIENCE, "the drain does not end: {report:?}");
            std::thread::sleep(Duration::from_millis(5));
            report = client.drain_state(Some(ticket.id)).expect("the server answers");
        }
        let ticket = report.ticket.expect("what was begun has a ticket");
        if ticket.failed == 0 {
            assert_eq!(ticket.skipped, 0, "{report:?}");
            return report;
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
