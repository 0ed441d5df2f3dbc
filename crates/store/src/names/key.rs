//! Keys of the namespace, and the value of an entry.

use super::damaged;
use super::messages::IntentId;
use crate::meta::KeySpace;
use forebay_model::{FileId, FileKind, Name, Result, Special};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

pub(super) const INODES: &[u8] = KeySpace::Inode.prefix();
pub(super) const ENTRIES: &[u8] = KeySpace::Entry.prefix();
pub(super) const XATTRS: &[u8] = KeySpace::Xattr.prefix();
pub(super) const ORPHANS: &[u8] = KeySpace::Orphan.prefix();
/// Where files lie in the back end, which the server records.
pub(super) const BACKING_RECORDS: &[u8] = KeySpace::BackingRecord.prefix();
pub(super) const SHARES: &[u8] = KeySpace::DirShare.prefix();
pub(super) const PREPARED: &[u8] = KeySpace::PreparedIntent.prefix();
pub(super) const DECIDED: &[u8] = KeySpace::DecidedIntent.prefix();
const VERSION: u8 = 1;
const ID: usize = 8;
/// A letter and an id.
pub(super) type Short = [u8; 1 + ID];

pub(super) fn ids() -> Vec<u8> {
    KeySpace::Ids.prefix().to_vec()
}

pub(super) fn inode(id: FileId) -> Short {
    join(INODES, id)
}

pub(super) fn orphan(id: FileId) -> Short {
    join(ORPHANS, id)
}

pub(super) fn share(dir: FileId) -> Short {
    join(SHARES, dir)
}

/// Key of the parts of an intent that this server prepared.
pub(super) fn prepared(intent: IntentId) -> Short {
    join(PREPARED, intent.0)
}

/// Key of the record that an intent is done, with the servers to notify.
pub(super) fn decided(intent: IntentId) -> Short {
    join(DECIDED, intent.0)
}

/// The prefix of all entries of a directory.
pub(super) fn entries(dir: FileId) -> Short {
    join(ENTRIES, dir)
}

/// The first key of the entries with this cookie or a later one.
pub(super) fn entries_from(dir: FileId, cookie: u64) -> Vec<u8> {
    long(entries(dir), &cookie.to_be_bytes(), &[])
}

pub(super) fn entry(dir: FileId, name: &Name) -> Vec<u8> {
    long(entries(dir), &cookie(name).to_be_bytes(), name.as_bytes())
}

/// The prefix of all extended attributes of a file.
pub(super) fn xattrs(file: FileId) -> Short {
    join(XATTRS, file)
}

pub(super) fn xattr(file: FileId, name: &Name) -> Vec<u8> {
    long(xattrs(file), name.as_bytes(), &[])
}

/// The position of a name in its directory: 1 to 2^63 − 1, so that it fits a file offset and 0 precedes all.
pub(super) fn cookie(name: &Name) -> u64 {
    (xxh3_64(name.as_bytes()) >> 1).max(1)
}

/// The file id after the letter of a key, and the rest of the key.
pub(super) fn split_id(key: &[u8]) -> Option<(FileId, &[u8])> {
    let (id, rest) = key.get(1..)?.split_first_chunk::<ID>()?;
    Some((FileId(u64::from_be_bytes(*id)), rest))
}

/// The directory, cookie and name of an entry's key.
pub(super) fn split_entry(key: &[u8]) -> Result<(FileId, u64, Name)> {
    let parts = split_id(key).and_then(|(dir, rest)| {
        let (hash, name) = rest.split_first_chunk::<8>()?;
        let name = Name::new(name).ok()?;
        let found = u64::from_be_bytes(*hash);
        (found == cookie(&name)).then_some((dir, found, name))
    });
    parts.ok_or_else(|| damaged(format!("\"{}\" is not the key of an entry", key.escape_ascii())))
}

/// The target of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// The file.
    pub file: FileId,
    /// Its type.
    pub kind: FileKind,
}

impl Target {
    pub(super) fn encode(self) -> Vec<u8> {
        let (kind, device) = match self.kind {
            FileKind::File => (0, None),
            FileKind::Directory => (1, None),
            FileKind::Symlink => (2, None),
            FileKind::Special(Special::Pipe) => (3, None),
            FileKind::Special(Special::Socket) => (4, None),
            FileKind::Special(Special::Character(number)) => (5, Some(number)),
            FileKind::Special(Special::Block(number)) => (6, Some(number)),
        };
        let mut value = Vec::with_capacity(2 + ID + 4);
        value.extend([VERSION, kind]);
        value.extend(self.file.0.to_be_bytes());
        value.extend(device.into_iter().flat_map(u32::to_be_bytes));
        value
    }

    pub(super) fn decode(dir: FileId, name: &Name, value: &[u8]) -> Result<Target> {
        Target::read(value).ok_or_else(|| {
            damaged(format!("entry {name} of directory {dir} cannot be read", name = name.quoted()))
        })
    }

    /// Decodes the value of an entry.
    pub(super) fn read(value: &[u8]) -> Option<Target> {
        let [VERSION, kind, rest @ ..] = value else { return None };
        let (id, device) = rest.split_first_chunk::<ID>()?;
        let device = match device {
            [] => None,
            number => Some(u32::from_be_bytes(number.try_into().ok()?)),
        };
        let kind = match (kind, device) {
            (0, None) => FileKind::File,
            (1, None) => FileKind::Directory,
            (2, None) => FileKind::Symlink,
            (3, None) => FileKind::Special(Special::Pipe),
            (4, None) => FileKind::Special(Special::Socket),
            (5, Some(number)) => FileKind::Special(Special::Character(number)),
            (6, Some(number)) => FileKind::Special(Special::Block(number)),
            _ => return None,
        };
        Some(Target { file: FileId(u64::from_be_bytes(*id)), kind })
    }
}

fn join(letter: &[u8], id: FileId) -> Short {
    let mut key = [0; 1 + ID];
    let (first, rest) = key.split_at_mut(1);
    first.copy_from_slice(letter);
    rest.copy_from_slice(&id.0.to_be_bytes());
    key
}

fn long(first: Short, then: &[u8], last: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(first.len() + then.len() + last.len());
    key.extend(first);
    key.extend(then);
    key.extend(last);
    key
}
