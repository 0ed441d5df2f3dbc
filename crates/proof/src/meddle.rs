//! Another process changes drained files in the back end while no client has them open.

use crate::driver::Driver;
use crate::found::{LARGEST, NAMES, attributes};
use crate::tree::{Body, NodeId, ROOT, Tree};
use forebay_testkit::{Rng, pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

impl Driver {
    /// Rewrites, removes and creates files in the back end and in the model. Everything in the model must be drained.
    pub fn change_backing(&mut self, place: &Path) {
        let names = self.names();
        let is_closed =
            |id: &NodeId| matches!(self.tree().node(*id).body, Body::File(_)) && !self.has_open(*id);
        let files: Vec<NodeId> = names.keys().copied().filter(is_closed).collect();
        let (tree, rng) = self.others();
        // A name that is removed and given to another file at once looks like a changed file.
        let mut removed = BTreeSet::new();
        for id in files {
            match rng.below(6) {
                0..2 => rewrite(rng, place, tree, (id, &names[&id])),
                2 if names[&id].len() == 1 => {
                    remove(place, tree, &names, &names[&id][0]);
                    removed.insert(names[&id][0].clone());
                }
                _ => {}
            }
        }
        for (dir, path) in directories(tree, &names) {
            let name = *rng.pick(&NAMES);
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let taken = tree.entries_mut(dir).contains_key(name) || removed.contains(&below);
            if rng.one_in(3) && !taken {
                make(rng, &place.join(below), tree, (dir, name));
            }
        }
    }
}

fn directories(tree: &Tree, names: &BTreeMap<NodeId, Vec<String>>) -> Vec<(NodeId, String)> {
    let dirs = names.iter().filter(|(id, _)| tree.is_dir(**id));
    dirs.map(|(id, paths)| (*id, paths[0].clone())).chain([(ROOT, String::new())]).collect()
}

/// Rewrites a file. If it has several names, one is in the back end.
fn rewrite(rng: &mut Rng, place: &Path, tree: &mut Tree, (id, paths): (NodeId, &[String])) {
    let path = paths.iter().map(|path| place.join(path)).find(|path| path.exists());
    let bytes = pattern(rng.next(), rng.size(LARGEST) as usize);
    fs::write(path.expect("name in the back end"), &bytes).expect("file written");
    *tree.bytes_mut(id) = bytes;
}

fn remove(place: &Path, tree: &mut Tree, names: &BTreeMap<NodeId, Vec<String>>, path: &str) {
    fs::remove_file(place.join(path)).expect("file removed");
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = names.iter().find(|(_, paths)| paths.iter().any(|path| path == above));
    tree.entries_mut(dir.map_or(ROOT, |(dir, _)| *dir)).remove(name);
}

fn make(rng: &mut Rng, path: &Path, tree: &mut Tree, (dir, name): (NodeId, &str)) {
    let bytes = pattern(rng.next(), rng.size(LARGEST) as usize);
    fs::write(path, &bytes).expect("file created");
    let node = attributes(rng, path, Body::File(Arc::new(bytes)));
    tree.nodes.push(node);
    let id = tree.nodes.len() - 1;
    tree.entries_mut(dir).insert(name.to_owned(), id);
}
