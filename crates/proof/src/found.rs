//! A tree of files that exists before the server, in the back end and in the model.

use crate::tree::{Body, Node, NodeId, ROOT, Tree};
use forebay_model::Time;
use forebay_testkit::{Rng, is_root, pattern};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::Arc;

pub(crate) const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const MODES: [u16; 6] = [0o755, 0o777, 0o700, 0o644, 0o640, 0o1777];
const OWNERS: [(u32, u32); 3] = [(6001, 6100), (6002, 6200), (0, 0)];
const DEPTH: u32 = 3;
pub(crate) const LARGEST: u64 = 300_000;

/// Creates a tree of files below an existing directory, and below the root of the model.
pub(crate) fn find(rng: &mut Rng, place: &Path, tree: &mut Tree) {
    tree.hides_links = true;
    fill(rng, place, tree, ROOT, DEPTH);
}

fn fill(rng: &mut Rng, place: &Path, tree: &mut Tree, dir: NodeId, depth: u32) {
    for name in NAMES {
        let path = place.join(name);
        let body = match rng.below(6) {
            0..2 if depth > 1 => {
                fs::create_dir(&path).expect("directory created");
                Body::Dir { parent: dir, entries: BTreeMap::new() }
            }
            2..4 => {
                let bytes = pattern(rng.next(), rng.size(LARGEST) as usize);
                fs::write(&path, &bytes).expect("file created");
                Body::File(Arc::new(bytes))
            }
            4 => {
                let target = (*rng.pick(&NAMES)).to_owned();
                symlink(&target, &path).expect("link created");
                Body::Link(target)
            }
            _ => continue,
        };
        let node = attributes(rng, &path, body);
        let is_dir = matches!(node.body, Body::Dir { .. });
        tree.nodes.push(node);
        let id = tree.nodes.len() - 1;
        tree.entries_mut(dir).insert(name.to_owned(), id);
        if is_dir {
            fill(rng, &path, tree, id, depth - 1);
        }
    }
}

pub(crate) fn attributes(rng: &mut Rng, path: &Path, body: Body) -> Node {
    if !matches!(body, Body::Link(_)) {
        let mode = u32::from(*rng.pick(&MODES));
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode set");
        if is_root() {
            let (uid, gid) = *rng.pick(&OWNERS);
            chown(path, Some(uid), Some(gid)).expect("owner set");
        }
    }
    let attr = fs::symlink_metadata(path).expect("attributes");
    let mtime =
        matches!(body, Body::File(_)).then(|| Time { secs: attr.mtime(), nanos: attr.mtime_nsec() as u32 });
    let mode = (attr.mode() & 0o7777) as u16;
    Node { mode, uid: attr.uid(), gid: attr.gid(), xattrs: BTreeMap::new(), mtime, body }
}
