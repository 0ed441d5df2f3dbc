//! A check of fjall's files before fjall opens them. Each file is an archive that ends with the position of its table
//! of contents. fjall allocates memory for the entries before it verifies their checksum, so one flipped bit could
//! exhaust all memory and abort the process. This module finds such a file first.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const TRAILER: usize = 38;
const TRAILER_MAGIC: &[u8] = b"SFA!";
/// Where the trailer holds the position of the table of contents.
const PLACE: usize = 22;
const TABLE_MAGIC: &[u8] = b"TOC!";
/// The magic and the number of entries.
const TABLE_HEAD: usize = 8;
/// The smallest size of an entry.
const ENTRY: u64 = 18;

/// Finds a file below a directory whose table of contents claims more entries than fit.
pub(super) fn overlong(dir: &Path) -> io::Result<Option<PathBuf>> {
    for entry in fs::read_dir(dir)? {
        let (path, kind) = {
            let entry = entry?;
            (entry.path(), entry.file_type()?)
        };
        let found = match (kind.is_dir(), kind.is_file()) {
            (true, _) => overlong(&path)?,
            (_, true) => claims_too_many_entries(&path)?.then_some(path),
            _ => None,
        };
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

fn claims_too_many_entries(path: &Path) -> io::Result<bool> {
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

    /// An archive with the given bytes of entries that claims the given number of entries.
    fn archive(bytes: usize, entries: u32) -> Vec<u8> {
        let table = [TABLE_MAGIC, &entries.to_le_bytes(), &vec![0; bytes]].concat();
        [&[7; 100], &table[..], TRAILER_MAGIC, &[1, 0], &[0; 16], &100_u64.to_le_bytes(), &[0; 8]].concat()
    }

    #[test]
    fn overlong_table_of_contents_is_found_before_fjall_reads_it() {
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
