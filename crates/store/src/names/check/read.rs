//! Reads every record of a namespace.

use super::{Checker, Kind, Seen};
use crate::meta::Kv;
use crate::names::ids::Mark;
use crate::names::intents::{Noted, decode_decision};
use crate::names::key::{self, Target};
use crate::names::messages::IntentId;
use crate::names::{Body, Inode, Share};
use forebay_model::{FileId, Result};
use std::ops::ControlFlow;

impl Checker<'_> {
    /// Reads the server id of a store.
    pub(super) fn mark(&mut self, kv: &dyn Kv) {
        let mark = Mark::load(kv).map_err(|error| self.find(error.to_string())).ok();
        self.servers.push(mark.map(|mark| mark.server));
        self.marks.push(mark.map_or(0, |mark| mark.next));
    }

    pub(super) fn inodes(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        let mark = Mark::load(kv).ok();
        kv.scan(key::INODES, &[], &mut |key, value| {
            match key::split_id(key) {
                Some((id, [])) => self.inode(store, id, value, mark),
                _ => self.find(format!("\"{}\" is not the key of an inode", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    fn inode(&mut self, store: usize, id: FileId, value: &[u8], mark: Option<Mark>) {
        let inode = match Inode::decode(id, value) {
            Ok(inode) => inode,
            Err(error) => return self.find(error.to_string()),
        };
        if let Some(mark) = mark {
            if id.maker() == mark.server && id >= FileId(FileId::made_by(mark.server, 0).0 + mark.next) {
                self.find(format!("inode {id} has an id that was never handed out"));
            }
            if self.members.is_some_and(|members| members.authority(id) != mark.server) {
                self.find(format!("inode {id} is on server {}, which did not make it", mark.server));
            }
        }
        let name = match &inode.body {
            Body::Directory { name, .. } => name.clone(),
            _ => None,
        };
        let (kind, parents) = (inode.kind(), inode.parents);
        let (bytes, incarnations) = match inode.body {
            Body::File { layout, incarnations, extent } => (Some(Box::new((layout, extent))), incarnations),
            _ => (None, Vec::new()),
        };
        let seen = Seen { kind, parents, name, names: Vec::new(), orphan: false, store, bytes, incarnations };
        self.seen.insert(id, seen);
    }

    pub(super) fn entries(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        kv.scan(key::ENTRIES, &[], &mut |key, value| {
            let entry = key::split_entry(key)
                .and_then(|(dir, _, name)| Ok((dir, Target::decode(dir, &name, value)?, name)));
            match entry {
                Ok((dir, target, name)) => self.entry(store, dir, name, target),
                Err(error) => self.find(error.to_string()),
            }
            ControlFlow::Continue(())
        })
    }

    pub(super) fn shares(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        kv.scan(key::SHARES, &[], &mut |key, value| {
            match key::split_id(key) {
                Some((id, [])) => match Share::decode(id, value) {
                    Ok(share) => self.counted.entry((store, id)).or_default().says = Some(share),
                    Err(error) => self.find(error.to_string()),
                },
                _ => self.find(format!("\"{}\" is not the key of counts", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    pub(super) fn orphans(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        kv.scan(key::ORPHANS, &[], &mut |key, _| {
            match key::split_id(key) {
                Some((id, [])) => match self.seen.get_mut(&id) {
                    Some(seen) if seen.store == store => seen.orphan = true,
                    _ => self.find_kind(Kind::Orphan, format!("orphan {id} has no inode"), None),
                },
                _ => self.find(format!("\"{}\" is not the key of an orphan", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    pub(super) fn xattrs(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        kv.scan(key::XATTRS, &[], &mut |key, _| {
            match key::split_id(key) {
                Some((id, name))
                    if self.seen.get(&id).is_some_and(|seen| seen.store == store) && !name.is_empty() => {}
                Some((id, _)) => self.find(format!("an attribute of file {id}, which has no inode")),
                None => self.find(format!("\"{}\" is not the key of an attribute", key.escape_ascii())),
            }
            ControlFlow::Continue(())
        })
    }

    pub(super) fn intents(&mut self, store: usize, kv: &dyn Kv) -> Result<()> {
        for prefix in [key::PREPARED, key::DECIDED] {
            kv.scan(prefix, &[], &mut |key, value| {
                let Some((id, [])) = key::split_id(key) else {
                    self.find(format!("\"{}\" is not the key of an intent", key.escape_ascii()));
                    return ControlFlow::Continue(());
                };
                let intent = IntentId(id);
                let read = match prefix == key::PREPARED {
                    true => Noted::decode(intent, value).map(|_| self.prepared.push((store, intent))),
                    false => decode_decision(intent, value).map(|_| self.decided.extend([intent])),
                };
                if let Err(error) = read {
                    self.find(error.to_string());
                }
                ControlFlow::Continue(())
            })?;
        }
        Ok(())
    }
}
