//! Somebody else who changes what is behind, while nobody here has it open and everything is there.

use crate::driver::Driver;
use crate::found::{LARGEST, NAMES, attributes};
use crate::tree::{Body, NodeId, ROOT, Tree};
use forebay_dice::{Dice, pattern};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

impl Driver {
    /// Files are written anew in their place or removed, and new ones come to be, behind and in the model. Everything that the
    /// model has is to be behind.
    pub fn meddle(&mut self, place: &Path) {
        let names = self.names();
        let is_closed =
            |id: &NodeId| matches!(self.tree().node(*id).body, Body::File(_)) && !self.has_open(*id);
        let files: Vec<NodeId> = names.keys().copied().filter(is_closed).collect();
        let (tree, dice) = self.others();
        // A name that is removed and given to another file at once looks like one file that was changed.
        let mut removed = BTreeSet::new();
        for id in files {
            match dice.below(6) {
                0..2 => rewrite(dice, place, tree, (id, &names[&id])),
                2 if names[&id].len() == 1 => {
                    remove(place, tree, &names, &names[&id][0]);
                    removed.insert(names[&id][0].clone());
                }
                _ => {}
            }
        }
        for (dir, path) in directories(tree, &names) {
            let name = *dice.pick(&NAMES);
            let below = if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            let taken = tree.entries_mut(dir).contains_key(name) || removed.contains(&below);
            if dice.one_in(3) && !taken {
                make(dice, &place.join(below), tree, (dir, name));
            }
        }
    }
}

fn directories(tree: &Tree, names: &BTreeMap<NodeId, Vec<String>>) -> Vec<(NodeId, String)> {
    let dirs = names.iter().filter(|(id, _)| tree.is_dir(**id));
    dirs.map(|(id, paths)| (*id, paths[0].clone())).chain([(ROOT, String::new())]).collect()
}

/// A file gets other bytes. Of several names one is behind.
fn rewrite(dice: &mut Dice, place: &Path, tree: &mut Tree, (id, paths): (NodeId, &[String])) {
    let path = paths.iter().map(|path| place.join(path)).find(|path| path.exists());
    let bytes = pattern(dice.next(), dice.size(LARGEST) as usize);
    fs::write(path.expect("one of its names is behind"), &bytes).expect("a file can be written");
    *tree.bytes_mut(id) = bytes;
}

fn remove(place: &Path, tree: &mut Tree, names: &BTreeMap<NodeId, Vec<String>>, path: &str) {
    fs::remove_file(place.join(path)).expect("a file can be removed");
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let dir = names.iter().find(|(_, paths)| paths.iter().any(|path| path == above));
    tree.entries_mut(dir.map_or(ROOT, |(dir, _)| *dir)).remove(name);
}

fn make(dice: &mut Dice, path: &Path, tree: &mut Tree, (dir, name): (NodeId, &str)) {
    let bytes = pattern(dice.next(), dice.size(LARGEST) as usize);
    fs::write(path, &bytes).expect("a file can be made");
    let node = attributes(dice, path, Body::File(Arc::new(bytes)));
    tree.nodes.push(node);
    let id = tree.nodes.len() - 1;
    tree.entries_mut(dir).insert(name.to_owned(), id);
}
