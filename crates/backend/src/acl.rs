//! POSIX access control lists: with one, the mode bits alone grant too much.

const USER: u16 = 0x02;
const GROUP_OWNER: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const VERSION: u32 = 2;

/// Narrows a mode so that users and groups named in the list gain nothing although the list is not evaluated:
/// they keep group and other permissions only as far as the list grants them to all entries.
pub(crate) fn narrowed(mode: u16, list: &[u8]) -> u16 {
    let owner_only = mode & !0o077;
    let Some((version, entries)) = list.split_first_chunk::<4>() else { return owner_only };
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return owner_only;
    }
    let (mut group, mut other) = (mode >> 3 & 7, mode & 7);
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let grants = u16::from_le_bytes([entry[2], entry[3]]) & 7;
        match tag {
            GROUP_OWNER | MASK => group &= grants,
            USER | GROUP => {
                group &= grants;
                other &= grants;
            }
            _ => {}
        }
    }
    owner_only | group << 3 | other
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entry = |&(tag, grants): &(u16, u16)| {
            [&tag.to_le_bytes()[..], &grants.to_le_bytes(), &7_u32.to_le_bytes()].concat()
        };
        [VERSION.to_le_bytes().to_vec(), entries.iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn acl_only_narrows_the_mode() {
        // In a mode with a list, the group bits are the mask.
        for (mode, entries, expected) in [
            (0o675, &[(0x01, 6), (GROUP_OWNER, 4), (MASK, 7), (0x20, 5)][..], 0o645),
            (0o674, &[(USER, 7), (GROUP_OWNER, 0), (MASK, 7)], 0o604),
            (0o644, &[(USER, 0), (GROUP_OWNER, 4), (MASK, 4)], 0o600),
            (0o4755, &[(GROUP, 1), (GROUP_OWNER, 5), (MASK, 5)], 0o4711),
            (0o755, &[], 0o755),
        ] {
            assert_eq!(narrowed(mode, &list(entries)), expected, "{mode:o} {entries:?}");
        }
        for bad in [&b""[..], b"\x02\0", b"\x01\0\0\0", b"\x02\0\0\0\x04\0"] {
            assert_eq!(narrowed(0o777, bad), 0o700, "{bad:?}");
        }
    }
}
