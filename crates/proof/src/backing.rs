//! Compares the back-end directory with the model.

use crate::driver::Driver;
use crate::tree::{Body, NodeId, ROOT};
use forebay_client::blocking::Client;
use forebay_model::{Identity, Result, Time};
use forebay_testkit::{is_root, until};
use forebay_wire::DrainReport;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Upper limit for a drain.
const PATIENCE: Duration = Duration::from_secs(240);
/// The server's private directory.
const PRIVATE: &str = ".forebay";

impl Driver {
    /// Drains everything, and compares the back end with the model: names, bytes, owners, modes and times.
    pub fn check_backing(&mut self, place: &Path) {
        let client = self.client().as_identity(Identity::root());
        drain(&client);
        let _pause = self.pause();
        let names = self.names();
        let mut expected = BTreeSet::new();
        for (id, paths) in &names {
            // A file with several names has one of them in the back end.
            let found_at: Vec<&String> =
                paths.iter().filter(|path| place.join(path).symlink_metadata().is_ok()).collect();
            assert_eq!(found_at.len(), 1, "{paths:?}: {found_at:?} are in the back end");
            expected.insert(found_at[0].clone());
            self.compare_backing(&client, place, found_at[0], *id);
        }
        let mut found = BTreeSet::new();
        list(place, "", &mut found);
        assert_eq!(found, expected);
    }

    /// Runs the final drain, and compares the back end with the model: now with all names of files, and with extended
    /// attributes where the directory supports them. A server knows only one back-end name of each file, so nothing may
    /// be changed afterwards.
    pub fn check_last(mut self, place: &Path) {
        self.close_all();
        let client = self.client().as_identity(Identity::root());
        let notes = drain_by(&client, Client::drain_last).status.notes;
        let _pause = self.pause();
        let mut expected = BTreeSet::new();
        for (id, paths) in &self.names() {
            let number = |path: &String| place.join(path).symlink_metadata().map(|found| found.ino()).ok();
            let numbers: BTreeSet<Option<u64>> = paths.iter().map(number).collect();
            assert!(
                numbers.len() == 1 && !numbers.contains(&None),
                "{paths:?} have inodes {numbers:?} in the back end"
            );
            self.compare_backing(&client, place, &paths[0], *id);
            self.compare_attributes(place, &paths[0], *id, &notes);
            expected.extend(paths.iter().cloned());
        }
        let mut found = BTreeSet::new();
        list(place, "", &mut found);
        assert_eq!(found, expected);
    }

    /// An extended attribute is in the back end, or the drain has noted a loss.
    fn compare_attributes(&self, place: &Path, path: &str, id: NodeId, notes: &[String]) {
        let node = self.tree().node(id);
        if matches!(node.body, Body::Link(_)) {
            return;
        }
        for (name, value) in &node.xattrs {
            let mut found = vec![0; value.len() + 1];
            match rustix::fs::getxattr(place.join(path), name.as_str(), &mut found[..]) {
                Ok(len) => assert!(found[..len] == **value, "{name} of {path}"),
                Err(_) => assert!(!notes.is_empty(), "{path} has no {name} in the back end"),
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

    fn compare_backing(&self, client: &Client, place: &Path, path: &str, id: NodeId) {
        let (node, found_at) = (self.tree().node(id), place.join(path));
        let found = found_at.symlink_metadata().expect("attributes in the back end");
        let served = client.lstat(path).expect("attributes in the service");
        match &node.body {
            Body::File(bytes) => {
                let stored = fs::read(&found_at).expect("readable file");
                let at = stored.iter().zip(bytes.iter()).position(|(one, other)| one != other);
                let (count, len) = (stored.len(), bytes.len());
                assert!(
                    stored == **bytes,
                    "{path}: {count} of {len} bytes are in the back end, the first difference at {at:?}"
                );
            }
            Body::Link(target) => {
                assert_eq!(fs::read_link(&found_at).expect("a link").as_os_str(), target.as_str(), "{path}");
            }
            Body::Dir { .. } => assert!(found.is_dir(), "{path}"),
        }
        if !matches!(node.body, Body::Link(_)) {
            assert_eq!(found.mode() & 0o7777, u32::from(node.mode), "mode of {path}: {served:?}");
        }
        if is_root() {
            assert_eq!((found.uid(), found.gid()), (node.uid, node.gid), "owner of {path}");
        }
        let mtime = Time { secs: found.mtime(), nanos: found.mtime_nsec() as u32 };
        assert_eq!(mtime, served.mtime, "time of {path}: {served:?}");
    }
}

/// Drains everything, and retries until no file fails.
pub fn drain(client: &Client) {
    drain_by(client, |client| client.drain(None, None));
}

fn drain_by(client: &Client, begin_one: impl Fn(&Client) -> Result<DrainReport>) -> DrainReport {
    let begin = Instant::now();
    loop {
        let mut report = begin_one(client).expect("drain started");
        until("the drain finishes", || {
            let Some(ticket) = report.ticket.filter(|ticket| !ticket.done) else { return true };
            report = client.drain_state(Some(ticket.id)).expect("drain state");
            false
        });
        let ticket = report.ticket.expect("drain ticket");
        if ticket.failed == 0 {
            assert_eq!(ticket.skipped, 0, "{report:?}");
            return report;
        }
        assert!(begin.elapsed() < PATIENCE, "not everything can be drained: {report:?}");
    }
}

fn list(place: &Path, path: &str, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(place.join(path)).expect("listing") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8 name");
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
