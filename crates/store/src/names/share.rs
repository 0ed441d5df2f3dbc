//! Each server's contribution to the attributes of a directory.

use super::{Attempt, Facts, Names, damaged, key};
use forebay_model::{FileId, Result, Stamp};

const VERSION: u8 = 1;

/// The contribution of the entries on this server to the attributes of their directory.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Share {
    /// Number of subdirectories among them.
    pub subdirs: u32,
    /// Their last change.
    pub touched: Option<Stamp>,
}

impl Share {
    /// The sum of two shares.
    #[must_use]
    pub fn and(self, other: Share) -> Share {
        let subdirs = self.subdirs.saturating_add(other.subdirs);
        Share { subdirs, touched: self.touched.max(other.touched) }
    }

    pub(super) fn changed(self, dir: FileId, by: i32, now: Stamp) -> Result<Share> {
        Ok(Share { touched: self.touched.max(Some(now)), ..self.counted(dir, by)? })
    }

    pub(super) fn counted(self, dir: FileId, by: i32) -> Result<Share> {
        let subdirs = self.subdirs.checked_add_signed(by);
        let subdirs = subdirs
            .ok_or_else(|| damaged(format!("directory {dir} has a wrong number of subdirectories")))?;
        Ok(Share { subdirs, ..self })
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut value = Vec::with_capacity(13);
        value.push(VERSION);
        value.extend(self.subdirs.to_be_bytes());
        value.extend(self.touched.unwrap_or_default().0.to_be_bytes());
        value
    }

    pub(super) fn decode(dir: FileId, value: &[u8]) -> Result<Share> {
        let parts = match value {
            [VERSION, rest @ ..] => rest.split_first_chunk::<4>(),
            _ => None,
        };
        let share = parts.and_then(|(subdirs, touched)| {
            let touched = Stamp(u64::from_be_bytes(touched.try_into().ok()?));
            Some(Share { subdirs: u32::from_be_bytes(*subdirs), touched: Some(touched) })
        });
        share.ok_or_else(|| damaged(format!("the share of directory {dir} cannot be read")))
    }
}

impl From<Share> for Facts {
    fn from(share: Share) -> Facts {
        Facts { subdirs: share.subdirs, touched: share.touched, ..Facts::default() }
    }
}

impl Names {
    /// This server's contribution to a directory's attributes, once no intent has its entries locked.
    pub fn settled_share(&self, dir: FileId) -> Attempt<Share> {
        self.holds.entries_are_settled(dir)?;
        Ok(self.share(dir)?)
    }

    /// This server's contribution to a directory's attributes.
    pub fn share(&self, dir: FileId) -> Result<Share> {
        let mut found = None;
        self.kv.view(&key::share(dir), &mut |bytes| found = bytes.map(|bytes| Share::decode(dir, bytes)))?;
        found.unwrap_or_else(|| Ok(Share::default()))
    }
}
