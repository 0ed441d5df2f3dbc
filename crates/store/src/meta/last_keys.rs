//! The largest key of every kind of record that the tree may have: larger keys need no lookup.
//!
//! Ids of files and directories grow, and so do the keys that begin with them. Records of new files are looked up
//! often, and mostly do not exist.

const KINDS: usize = 26;

/// Largest keys, by their first letter.
#[derive(Clone, Default)]
pub(super) struct LastKeys([Vec<u8>; KINDS]);

/// The first letters of all kinds of records.
pub(super) fn letters() -> impl Iterator<Item = u8> {
    (b'a'..).take(KINDS)
}

fn kind(key: &[u8]) -> Option<usize> {
    key.first().filter(|letter| letter.is_ascii_lowercase()).map(|letter| usize::from(letter - b'a'))
}

impl LastKeys {
    /// Whether the tree may have a key.
    pub(super) fn may_have(&self, key: &[u8]) -> bool {
        kind(key).is_none_or(|kind| key <= self.0[kind].as_slice())
    }

    /// Records that the tree has a key, or is about to.
    pub(super) fn raise(&mut self, key: &[u8]) {
        if let Some(kind) = kind(key)
            && key > self.0[kind].as_slice()
        {
            key.clone_into(&mut self.0[kind]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_beyond_the_largest_of_their_kind_are_absent() {
        let mut last_keys = LastKeys::default();
        assert!(!last_keys.may_have(b"i1") && last_keys.may_have(b"\0ahead") && last_keys.may_have(b""));
        for key in ["i3", "i1", "s7", "e"] {
            last_keys.raise(key.as_bytes());
        }
        for (key, expected) in [
            ("i3", true),
            ("i2", true),
            ("i", true),
            ("i30", false),
            ("i4", false),
            ("s5", true),
            ("s8", false),
        ] {
            assert_eq!(last_keys.may_have(key.as_bytes()), expected, "{key}");
        }
        assert_eq!(letters().last(), Some(b'z'));
    }
}
