//! The record of a file in the back end.

use forebay_backend::{Found, Seen, Slot, Version};
use forebay_model::{Error, ErrorKind, FileId, Gid, Name, Result, Uid};
use forebay_store::KeySpace;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

/// Where a file is in the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Home {
    /// Under the name that it has in the buffer.
    Entry { dir: FileId, name: Name },
    /// In the server's own directory: it is unlinked and still open.
    Private,
}

/// Where a file is in the back end, and its version when last seen.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) home: Home,
    pub(super) version: Version,
    pub(super) mode: u16,
    pub(super) uid: Uid,
    pub(super) gid: Gid,
}

/// A name in a directory of the back end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct BackingSpot {
    /// The path of the directory, followed by the name.
    pub(super) path: Vec<Name>,
    /// The serial number of the directory; 0 matches any.
    pub(super) dir: u64,
}

impl BackingSpot {
    pub(super) fn slot(&self) -> Slot<'_> {
        Slot { path: &self.path, dir: self.dir }
    }

    /// The entry of this name with this serial number.
    pub(super) fn seen(&self, serial: u64) -> Seen<'_> {
        self.slot().seen(serial)
    }
}

pub(super) fn key(file: FileId) -> Vec<u8> {
    [KeySpace::BackingRecord.prefix(), &file.0.to_be_bytes()].concat()
}

impl Record {
    pub(super) fn of(home: Home, found: &Found) -> Record {
        let &Found { version, mode, uid, gid, .. } = found;
        Record { home, version, mode, uid, gid }
    }

    /// Whether this is its name in the back end.
    pub(super) fn lives_at(&self, dir: FileId, name: &Name) -> bool {
        matches!(&self.home, Home::Entry { dir: at, name: called } if *at == dir && called == name)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_extend(self, vec![VERSION]).expect("a record can always be written to memory")
    }

    pub(super) fn decode(file: FileId, bytes: &[u8]) -> Result<Record> {
        let record = match bytes {
            [VERSION, rest @ ..] => postcard::from_bytes(rest).ok(),
            _ => None,
        };
        let text = || format!("the record of file {file}'s place in the back end cannot be decoded");
        record.ok_or_else(|| Error::new(ErrorKind::BadStore, text()))
    }
}
