//! What this server still has of what other servers search for.

use super::LossSearch;
use forebay_model::{FileId, Layout, Result, ServerId};
use forebay_wire::{Remain, Remains};
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;

/// How many names lead to a file, in a directory or anywhere; `None` while that changes.
type Times = HashMap<(Option<FileId>, FileId), Option<u32>>;

impl LossSearch {
    /// Answers what this server still has of what another server searches for.
    pub(in crate::cluster) fn remains(&self, from: ServerId, of: &[Remain]) -> Result<Vec<Remains>> {
        let names = self.store.names();
        let mut wanted = HashSet::new();
        for one in of {
            if let Remain::Name { dir, file, like } = one
                && !like.as_ref().map_or(Ok(false), |like| names.leads(*dir, like, *file))?
            {
                wanted.insert((*dir, *file));
            }
        }
        let (found, times) = (self.names_of(&wanted)?, self.times(of)?);
        let answer = |one: &Remain| {
            Ok(match one {
                Remain::Inode(file) => match names.has_inode(*file)? {
                    true => Remains::All,
                    false => Remains::NoInode,
                },
                Remain::Bytes { file, layout, below } => {
                    let below = (*file).maker().ne(&self.own).then_some(*below);
                    let missing = self.missing(*file, layout, below)?;
                    missing.map_or(Remains::All, |(count, open)| Remains::NotBytes { count, open })
                }
                Remain::Name { dir, file, like } => Remains::Name(match wanted.contains(&(*dir, *file)) {
                    true => found.get(&(*dir, *file)).cloned(),
                    false => like.clone(),
                }),
                Remain::Times { dir, file } => Remains::Times(times.get(&(*dir, *file)).copied().flatten()),
                Remain::Names(sample) => Remains::Names(Box::new(names.sift_entries(from, *sample)?)),
            })
        };
        of.iter().map(answer).collect()
    }

    /// How many names on this server lead to files; `None` for those that are changing.
    fn times(&self, of: &[Remain]) -> Result<Times> {
        let names = self.store.names();
        let mut times = HashMap::new();
        for one in of {
            if let Remain::Times { dir, file } = *one {
                // A name to be added on this server is recorded before its file lists it. A dangling name does not
                // move.
                let settled = dir.is_none_or(|dir| names.is_settled(dir));
                times.insert((dir, file), settled.then_some(0));
            }
        }
        if times.is_empty() {
            return Ok(times);
        }
        names.each_entry(&mut |dir, _, target| {
            for dir in [Some(dir), None] {
                if let Some(Some(times)) = times.get_mut(&(dir, target.file)) {
                    *times += 1;
                }
            }
            ControlFlow::Continue(())
        })?;
        Ok(times)
    }

    /// How many bytes of a file are missing on this server, and whether an unknown number more.
    pub(super) fn missing(
        &self,
        file: FileId,
        layout: &Layout,
        below: Option<u64>,
    ) -> Result<Option<(u64, bool)>> {
        let index = layout.servers.iter().position(|&server| server == self.own);
        let share = |end: u64| index.map_or(0, |index| layout.share(index, end));
        let (count, open) = self.store.data().missing(file, below, &share)?;
        Ok((count > 0 || open).then_some((count, open)))
    }
}
