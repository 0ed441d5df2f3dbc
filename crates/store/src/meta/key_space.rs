//! The first byte of every key in the metadata store.

/// Which kind of record a key belongs to. Two kinds cannot have the same letter: the compiler refuses it.
///
/// `docs/format.md` describes the keys and values of each kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum KeySpace {
    /// File systems that are mounted below the root of the back end.
    Mount = b'J',
    /// By how much stamps differ from the machine's clock.
    ClockOffset = b'T',
    /// Files that processes map, and the ranges that their objects hold.
    MappedFile = b'a',
    /// Where a file lies in the back end.
    BackingRecord = b'b',
    /// The last stamp of the clock.
    Clock = b'c',
    /// What a server counts for a directory.
    DirShare = b'd',
    /// Names.
    Entry = b'e',
    /// Whether the first server of a service has all names.
    NamesWithFirst = b'f',
    /// What tells the back end from others.
    BackendIdentity = b'g',
    /// What jobs wrote and read, second by second.
    History = b'h',
    /// Inodes.
    Inode = b'i',
    /// Directories that may be older than the loss of a store.
    DirOfLoss = b'j',
    /// The key that seals tokens.
    TokenSeal = b'k',
    /// Files that the drain is changing in the back end.
    WritebackMark = b'l',
    /// The other servers of the service.
    Membership = b'm',
    /// The first id that was never handed out.
    Ids = b'n',
    /// Files without a name that may be open.
    Orphan = b'o',
    /// Changes of names that this server has prepared.
    PreparedIntent = b'p',
    /// Files with direct writes that may not be synced.
    Unsynced = b'q',
    /// Changes of a striped file's bytes that this server has prepared.
    PreparedReshape = b'r',
    /// Sizes.
    Size = b's',
    /// Changes of names that were decided, until all servers know.
    DecidedIntent = b't',
    /// Changes of a striped file's bytes that were decided, until all servers know.
    DecidedReshape = b'u',
    /// Which store this is.
    Incarnation = b'v',
    /// Changes in the back end that were begun.
    BackingIntent = b'w',
    /// Extended attributes.
    Xattr = b'x',
    /// The sharing policy in force.
    Policy = b'y',
    /// Truncations, punched holes and deletions.
    Tombstone = b'z',
}

/// Every byte, at its own position: what a prefix points to.
const BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = at as u8;
        at += 1;
    }
    bytes
};

impl KeySpace {
    /// What all keys of this kind begin with.
    #[must_use]
    pub const fn prefix(self) -> &'static [u8] {
        std::slice::from_ref(&BYTES[self as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn format_document_describes_every_key_space() {
        let source = include_str!("key_space.rs");
        let defined: BTreeSet<&str> = source
            .lines()
            .take_while(|line| !line.starts_with('}'))
            .filter_map(|line| line.split_once("= b'")?.1.split_once('\''))
            .map(|(letter, _)| letter)
            .collect();
        let document = include_str!("../../../../docs/format.md");
        let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        let described: BTreeSet<&str> =
            rows.map(|(letter, _)| letter).filter(|letter| letter.len() == 1).collect();
        assert_eq!(described, defined);
        assert_eq!(KeySpace::Entry.prefix(), b"e");
    }
}
