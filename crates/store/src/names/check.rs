//! Is a namespace what it should be?

use super::ids::Mark;
use super::key::{self, Target};
use super::{Inode, Share};
use crate::meta::Kv;
use forebay_model::{FileId, FileKind};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// Most findings that are told one by one.
const MAX_FINDINGS: usize = 1000;

/// Reads a whole namespace and says what is wrong with it, one sentence each; nothing if all is well. To be used
/// while nobody changes it.
#[must_use]
pub fn check(kv: &dyn Kv) -> Vec<String> {
    let mut checker = Checker::default();
    let steps = [Checker::inodes, Checker::entries, Checker::shares, Checker::orphans, Checker::xattrs];
    for step in steps {
        if let Err(error) = step(&mut checker, kv) {
            checker.find(format!("the metadata store cannot be read: {error}"));
        }
    }
    checker.counts();
    checker.reachable();
    checker.report()
}

/// What is known of an inode.
struct Seen {
    kind: FileKind,
    parents: Vec<FileId>,
    subdirs: u32,
    /// The directories in which entries for it were found.
    names: Vec<FileId>,
    /// Entries that lead from it to directories.
    found_subdirs: u32,
    orphan: bool,
}

#[derive(Default)]
struct Checker {
    seen: HashMap<FileId, Seen>,
    findings: Vec<String>,
    untold: usize,
}

impl Checker {
    fn find(&mut self, what: String) {
        match self.findings.len() < MAX_FINDINGS {
            true => self.findings.push(what),
            false => self.untold += 1,
        }
    }

    fn report(mut self) -> Vec<String> {
        if self.untold > 0 {
            self.findings.push(format!("and {} more", self.untold));
        }
        self.findings
    }

    fn inodes(&mut self, kv: &dyn Kv) -> forebay_model::Result<()> {
        let mark = Mark::load(kv).map_err(|error| self.find(error.to_string())).ok();
        kv.scan(key::INODES, &[], &mut |key, value| {
            match key::split_id(key) {
                Some((id, [])) => self.inode(id, value, mark),
                _ => self.find(format!("\"{}\" is not the key of an inode", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    fn inode(&mut self, id: FileId, value: &[u8], mark: Option<Mark>) {
        let inode = match Inode::decode(id, value) {
            Ok(inode) => inode,
            Err(error) => return self.find(error.to_string()),
        };
        if let Some(mark) = mark
            && id.maker() == mark.server
            && id >= FileId(FileId::made_by(mark.server, 0).0 + mark.next)
        {
            self.find(format!("inode {id} has an id that was never handed out"));
        }
        let seen = Seen {
            kind: inode.kind(),
            parents: inode.parents,
            subdirs: 0,
            names: Vec::new(),
            found_subdirs: 0,
            orphan: false,
        };
        self.seen.insert(id, seen);
    }

    fn entries(&mut self, kv: &dyn Kv) -> forebay_model::Result<()> {
        kv.scan(key::ENTRIES, &[], &mut |key, value| {
            let entry = key::split_entry(key)
                .and_then(|(dir, _, name)| Ok((dir, Target::decode(dir, &name, value)?, name)));
            match entry {
                Ok((dir, target, name)) => {
                    self.entry(dir, target, &format!("entry {name:?} of directory {dir}"));
                }
                Err(error) => self.find(error.to_string()),
            }
            ControlFlow::Continue(())
        })
    }

    fn entry(&mut self, dir: FileId, target: Target, entry: &str) {
        match self.seen.get_mut(&dir) {
            None => self.find(format!("{entry}: there is no such directory")),
            Some(parent) if parent.kind != FileKind::Directory => {
                self.find(format!("{entry}: that is not a directory"));
            }
            Some(parent) => parent.found_subdirs += u32::from(target.kind == FileKind::Directory),
        }
        match self.seen.get_mut(&target.file) {
            None => self.find(format!("{entry}: its inode {} is missing", target.file)),
            Some(child) => {
                child.names.push(dir);
                if child.kind != target.kind {
                    self.find(format!("{entry}: its inode {} is of another kind", target.file));
                }
            }
        }
    }

    fn shares(&mut self, kv: &dyn Kv) -> forebay_model::Result<()> {
        kv.scan(key::SHARES, &[], &mut |key, value| {
            match key::split_id(key) {
                Some((id, [])) => match (Share::decode(id, value), self.seen.get_mut(&id)) {
                    (Ok(share), Some(seen)) if seen.kind == FileKind::Directory => {
                        seen.subdirs += share.subdirs
                    }
                    (Ok(_), _) => self.find(format!("counts of directory {id}, which does not exist")),
                    (Err(error), _) => self.find(error.to_string()),
                },
                _ => self.find(format!("\"{}\" is not the key of counts", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    fn orphans(&mut self, kv: &dyn Kv) -> forebay_model::Result<()> {
        kv.scan(key::ORPHANS, &[], &mut |key, _| {
            match key::split_id(key) {
                Some((id, [])) => match self.seen.get_mut(&id) {
                    Some(seen) => seen.orphan = true,
                    None => self.find(format!("orphan {id} has no inode")),
                },
                _ => self.find(format!("\"{}\" is not the key of an orphan", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    fn xattrs(&mut self, kv: &dyn Kv) -> forebay_model::Result<()> {
        kv.scan(key::XATTRS, &[], &mut |key, _| {
            match key::split_id(key) {
                Some((id, name)) if self.seen.contains_key(&id) && !name.is_empty() => {}
                Some((id, _)) => self.find(format!("an attribute of file {id}, which has no inode")),
                None => self.find(format!("\"{}\" is not the key of an attribute", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    /// Does every inode know its names?
    fn counts(&mut self) {
        let mut seen = std::mem::take(&mut self.seen);
        let mut ids: Vec<_> = seen.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let inode = seen.get_mut(&id).expect("the ids are those of the map");
            if id == FileId::ROOT {
                // The one directory without an entry.
                inode.names.push(FileId::ROOT);
            }
            inode.names.sort_unstable();
            inode.parents.sort_unstable();
            if inode.names != inode.parents {
                self.find(format!(
                    "inode {id} says it has names in directories {:?}, but they are in {:?}",
                    inode.parents, inode.names
                ));
            }
            if inode.subdirs != inode.found_subdirs {
                let (says, are) = (inode.subdirs, inode.found_subdirs);
                self.find(format!("directory {id} says it holds {says} directories, but they are {are}"));
            }
            let nameless = inode.names.is_empty();
            match (inode.kind, nameless, inode.orphan) {
                (FileKind::File, true, false) => self.find(format!("file {id} has no name and is no orphan")),
                (FileKind::File, true, true) | (_, false, false) => {}
                (_, true, _) => self.find(format!("inode {id} has no name")),
                (_, false, true) => self.find(format!("orphan {id} has a name")),
            }
        }
        self.seen = seen;
    }

    /// Does every directory lead up to the root?
    fn reachable(&mut self) {
        if self.seen.get(&FileId::ROOT).is_none_or(|root| root.kind != FileKind::Directory) {
            return self.find("the root directory is missing".to_owned());
        }
        let mut good = HashSet::from([FileId::ROOT]);
        let mut lost = Vec::new();
        for (&id, seen) in &self.seen {
            if seen.kind != FileKind::Directory {
                continue;
            }
            let (mut way, mut on_way, mut at) = (Vec::new(), HashSet::new(), id);
            while !good.contains(&at) && on_way.insert(at) {
                way.push(at);
                match self.seen.get(&at).and_then(|seen| seen.parents.first()) {
                    Some(&above) => at = above,
                    None => break,
                }
            }
            match good.contains(&at) {
                true => good.extend(way),
                false => lost.push(id),
            }
        }
        lost.sort_unstable();
        for id in lost {
            self.find(format!("directory {id} is not below the root"));
        }
    }
}
