//! What fjall believes before it has checked it. Its files are archives that end with where their table of contents is;
//! room for the entries is made before their checksum is looked at, so that one flipped bit would take all memory and end
//! the process, which nothing can catch. Here such a file is found first.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const TRAILER: usize = 38;
const TRAILER_MAGIC: &[u8] = b"SFA!";
/// Where the trailer says where the table of contents is.
const PLACE: usize = 22;
const TABLE_MAGIC: &[u8] = b"TOC!";
/// The magic, and how many entries follow.
const TABLE_HEAD: usize = 8;
/// The least that an entry takes.
const ENTRY: u64 = 18;

/// A file below a directory whose table of contents cannot be as long as it says.
pub(super) fn overlong(dir: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir)? {
        let (path, kind) = {
            let entry = entry?;
            (entry.path(), entry.file_type()?)
        };
        let found = match (kind.is_dir(), kind.is_file()) {
            (true, _) => overlong(&path)?,
            (_, true) => says_too_much(&path)?.then_some(path),
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn says_too_much(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let Some(at) = len.checked_sub(TRAILER as u64) else { return Ok(false) };
    let mut trailer = [0; TRAILER];
    file.read_exact_at(&mut trailer, at)?;
    let place = trailer[PLACE..].first_chunk().map_or(u64::MAX, |place| u64::from_le_bytes(*place));
    if !trailer.starts_with(TRAILER_MAGIC) || place.saturating_add(TABLE_HEAD as u64) > len {
        return Ok(false);
    }
    let mut head = [0; TABLE_HEAD];
    file.read_exact_at(&mut head, place)?;
    let entries = head[TABLE_MAGIC.len()..].first_chunk().map_or(0, |count| u32::from_le_bytes(*count));
    Ok(head.starts_with(TABLE_MAGIC) && u64::from(entries) * ENTRY > len - place)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An archive with so many bytes of entries that says it has so many entries.
    fn archive(bytes: usize, entries: u32) -> Vec<u8> {
        let table = [TABLE_MAGIC, &entries.to_le_bytes(), &vec![0; bytes]].concat();
        [&[7; 100], &table[..], TRAILER_MAGIC, &[1, 0], &[0; 16], &100_u64.to_le_bytes(), &[0; 8]].concat()
    }

    #[test]
    fn a_table_of_contents_that_cannot_be_is_found_before_it_is_read() {
        for (bytes, is_found) in [
            (archive(40, 2), false),
            (archive(40, 1 << 30), true),
            (archive(40, u32::MAX), true),
            (archive(40, 2)[..120].to_vec(), false),
            (Vec::new(), false),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let file = dir.path().join("tables").join("1");
            fs::create_dir(dir.path().join("tables")).unwrap();
            fs::write(&file, &bytes).unwrap();
            assert_eq!(overlong(dir.path()).unwrap(), is_found.then_some(file), "{} bytes", bytes.len());
        }
    }
}
