//! Iteration over all records that one server holds of the namespace.

use super::key::{self, Target};
use super::{Inode, Names};
use forebay_model::{FileId, Name, Result, ServerId, Sieve};
use std::ops::ControlFlow;

impl Names {
    /// Visits every inode on this server. Skips unreadable ones, which the store check reports.
    pub fn each_inode(&self, visit: &mut dyn FnMut(FileId, &Inode) -> ControlFlow<()>) -> Result<()> {
        self.kv.scan(key::INODES, &[], &mut |key, value| {
            let inode = key::split_id(key).and_then(|(id, _)| Some((id, Inode::decode(id, value).ok()?)));
            inode.map_or(ControlFlow::Continue(()), |(id, inode)| visit(id, &inode))
        })
    }

    /// Whether the inode of a file is on this server.
    pub fn has_inode(&self, file: FileId) -> Result<bool> {
        Ok(self.kv.get(&key::inode(file))?.is_some())
    }

    /// Visits every entry on this server. Skips unreadable ones, which the store check reports.
    pub fn each_entry(&self, visit: &mut dyn FnMut(FileId, &Name, Target) -> ControlFlow<()>) -> Result<()> {
        self.kv.scan(key::ENTRIES, &[], &mut |key, value| {
            let entry = key::split_entry(key).and_then(|(dir, _, name)| {
                let target = Target::decode(dir, &name, value)?;
                Ok((dir, name, target))
            });
            entry.map_or(ControlFlow::Continue(()), |(dir, name, target)| visit(dir, &name, target))
        })
    }

    /// Whether no intent may change entries of a directory.
    #[must_use]
    pub fn is_settled(&self, dir: FileId) -> bool {
        self.holds.entries_are_settled(dir).is_ok()
    }

    /// Every name recorded in an inode on this server, by the directory that should hold it.
    pub fn sift_inodes(&self, sample: u8) -> Result<Sieve> {
        let mut sieve = Sieve::new(sample);
        self.each_inode(&mut |file, inode| {
            if file != FileId::ROOT {
                inode.parents.iter().for_each(|&dir| sieve.put(dir, file));
            }
            ControlFlow::Continue(())
        })?;
        Ok(sieve)
    }

    /// Every entry on this server that leads to a file created by `maker`.
    pub fn sift_entries(&self, maker: ServerId, sample: u8) -> Result<Sieve> {
        let mut sieve = Sieve::new(sample);
        self.each_entry(&mut |dir, _, target| {
            if target.file.maker() == maker {
                sieve.put(dir, target.file);
            }
            ControlFlow::Continue(())
        })?;
        Ok(sieve)
    }
}
