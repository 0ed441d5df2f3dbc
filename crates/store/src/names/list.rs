//! Listing directories.

use super::key::{self, Target};
use super::{Attempt, Names, check_access};
use forebay_model::{Access, FileId, FileKind, Identity, Name, Result};
use std::ops::ControlFlow;

/// Maximum number of entries in one reply, except for names with equal hashes.
pub const MAX_LISTED: usize = 65_536;

/// A directory entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The name.
    pub name: Name,
    /// The file it leads to.
    pub file: FileId,
    /// Type of that file.
    pub kind: FileKind,
    /// Its position in the directory; listing continues after it.
    pub cookie: u64,
}

impl Names {
    /// About `limit` entries on this server after a cookie (0 for the beginning), and where to continue unless the
    /// listing is complete.
    ///
    /// An entry that exists from the first call to the last is listed exactly once.
    pub fn read_dir(
        &self,
        who: &Identity,
        dir: FileId,
        cookie: u64,
        limit: usize,
    ) -> Attempt<(Vec<Entry>, Option<u64>)> {
        check_access(who, dir, &self.dir(dir)?, Access::READ)?;
        self.holds.entries_are_settled(dir)?;
        let limit = limit.clamp(1, MAX_LISTED);
        let mut entries: Vec<Entry> = Vec::new();
        let (mut more, mut bad) = (false, None);
        let Some(from) = cookie.checked_add(1) else { return Ok((entries, None)) };
        self.kv.scan(&key::entries(dir), &key::entries_from(dir, from), &mut |key, value| {
            match read_entry(key, value) {
                // Names with equal hashes stay together, because a cookie cannot distinguish them.
                Ok(entry)
                    if entries.len() >= limit
                        && entries.last().is_some_and(|last| last.cookie != entry.cookie) =>
                {
                    more = true;
                    ControlFlow::Break(())
                }
                Ok(entry) => {
                    entries.push(entry);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    bad = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        let next = if more { entries.last().map(|last| last.cookie) } else { None };
        Ok(bad.map_or(Ok((entries, next)), Err)?)
    }
}

fn read_entry(key: &[u8], value: &[u8]) -> Result<Entry> {
    let (dir, cookie, name) = key::split_entry(key)?;
    let Target { file, kind } = Target::decode(dir, &name, value)?;
    Ok(Entry { name, file, kind, cookie })
}
