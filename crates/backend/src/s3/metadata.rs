//! File attributes in the metadata of an object.
//!
//! Mode (with the file type), owner and mtime are stored under the names that s3fs uses (`mode`, `uid`,
//! `gid`, `mtime`), the file's id under `forebay-id`. Objects of other programs have none of these: they
//! belong to the server's user, and their id derives from key, ETag and time, so that a replaced object is
//! another file. An id is valid at one key only: a copy of an object, with all its metadata, is another file.
//! `forebay-upto` is the number of a change: all changes up to it are in the object, or have failed.

use super::store::{Head, Meta};
use crate::{Found, Version};
use forebay_model::{FileKind, Gid, Time, Uid};
use jiff::fmt::rfc2822::DateTimeParser;

const KIND: u32 = 0o170_000;
const FILE: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;
const NANOS: u64 = 1_000_000_000;

fn number<T: std::str::FromStr>(meta: &Meta, name: &str) -> Option<T> {
    meta.get(name).and_then(|text| text.parse().ok())
}

/// FNV-1a: the same in every version of this program.
fn hash(texts: &[&str]) -> u64 {
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// The id of a file.
pub(super) fn id(head: &Head) -> u64 {
    let (id, key) = head.meta.get("forebay-id").and_then(|text| text.split_once('-')).unzip();
    let here = key.and_then(hex) == Some(hash(&[&head.key]));
    let foreign = || hash(&[&head.key, &head.etag, &head.modified.secs.to_string()]);
    id.and_then(hex).filter(|_| here).unwrap_or_else(foreign)
}

/// Stores the id of the file at a key.
pub(super) fn set_id(meta: &mut Meta, key: &str, id: u64) {
    meta.insert("forebay-id".to_owned(), format!("{id:016x}-{:016x}", hash(&[key])));
}

/// The number of the last change that an object contains.
pub(super) fn upto(head: &Head) -> u64 {
    head.meta.get("forebay-upto").and_then(|text| hex(text)).unwrap_or(0)
}

/// Stores that an object contains all changes up to a number.
pub(super) fn set_upto(meta: &mut Meta, number: u64) {
    meta.insert("forebay-upto".to_owned(), format!("{number:016x}"));
}

/// The metadata of a new object.
pub(super) fn meta(
    kind: FileKind,
    (key, id): (&str, u64),
    owner: (Uid, Gid),
    mode: u16,
    mtime: Time,
) -> Meta {
    let kind = match kind {
        FileKind::Directory => DIRECTORY,
        FileKind::Symlink => SYMLINK,
        _ => FILE,
    };
    let mut meta = Meta::new();
    set_id(&mut meta, key, id);
    change(&mut meta, kind, owner, mode, mtime);
    meta
}

/// Changes attributes; the file type stays.
pub(super) fn set(meta: &mut Meta, head: &Head, owner: (Uid, Gid), mode: u16, mtime: Time) {
    let kind = number::<u32>(&head.meta, "mode").map_or(FILE, |mode| mode & KIND);
    set_id(meta, &head.key, id(head));
    change(meta, kind, owner, mode, mtime);
}

fn change(meta: &mut Meta, kind: u32, (uid, gid): (Uid, Gid), mode: u16, mtime: Time) {
    meta.insert("mode".to_owned(), (kind | u32::from(mode & 0o7777)).to_string());
    meta.insert("uid".to_owned(), uid.0.to_string());
    meta.insert("gid".to_owned(), gid.0.to_string());
    meta.insert("mtime".to_owned(), format!("{}.{:09}", mtime.secs, mtime.nanos));
}

/// The entry that an object represents. A key that ends in a slash is a directory.
pub(super) fn found(head: &Head, is_dir: bool) -> Found {
    let mode =
        number::<u32>(&head.meta, "mode").unwrap_or(if is_dir { DIRECTORY | 0o755 } else { FILE | 0o644 });
    let kind = match (is_dir, mode & KIND) {
        (true, _) => FileKind::Directory,
        (false, SYMLINK) => FileKind::Symlink,
        (false, _) => FileKind::File,
    };
    let time = mtime(&head.meta).unwrap_or(head.modified);
    let (me, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Found {
        kind,
        mode: (mode & 0o7777) as u16,
        uid: Uid(number(&head.meta, "uid").unwrap_or(me)),
        gid: Gid(number(&head.meta, "gid").unwrap_or(group)),
        version: Version { size: if is_dir { 0 } else { head.size }, mtime: time, serial: id(head) },
        atime: time,
        ctime: time,
        target: Vec::new(),
        mount: false,
    }
}

fn mtime(meta: &Meta) -> Option<Time> {
    let (secs, nanos) = meta.get("mtime")?.split_once('.')?;
    Some(Time {
        secs: secs.parse().ok()?,
        nanos: nanos.parse().ok().filter(|nanos| u64::from(*nanos) < NANOS)?,
    })
}

/// The time of a change, from its number.
pub(super) fn moment(number: u64) -> Time {
    Time { secs: (number / NANOS) as i64, nanos: (number % NANOS) as u32 }
}

/// Parses the time in a header, such as `Sun, 06 Nov 1994 08:49:37 GMT`.
pub(super) fn date(text: &str) -> Option<Time> {
    let date = DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text).ok()?;
    Some(Time { secs: date.as_second(), nanos: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_parsed() {
        for (text, secs) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Thu, 29 Feb 2024 23:59:59 GMT", Some(1_709_251_199)),
            ("Tue, 30 Feb 2024 23:59:59 GMT", None),
            ("yesterday", None),
        ] {
            assert_eq!(date(text).map(|time| time.secs), secs, "{text}");
        }
    }

    #[test]
    fn object_metadata_round_trips() {
        let time = Time { secs: 5, nanos: 7 };
        let meta = meta(FileKind::Symlink, ("k", 0xabc), (Uid(3), Gid(4)), 0o777, time);
        let (key, modified) = ("k".to_owned(), Time { secs: 1, nanos: 0 });
        let head = Head { key, size: 9, etag: "x".into(), modified, meta };
        let here = found(&head, false);
        assert_eq!((here.kind, here.mode, here.uid, here.gid), (FileKind::Symlink, 0o777, Uid(3), Gid(4)));
        assert_eq!(here.version, Version { size: 9, mtime: time, serial: 0xabc });
        let copied = Head { key: "copy".into(), ..head.clone() };
        assert_ne!(id(&copied), 0xabc, "a copy is another file");
        let foreign = Head { meta: Meta::new(), ..head };
        assert_eq!(
            (found(&foreign, false).kind, found(&foreign, false).version.mtime.secs),
            (FileKind::File, 1)
        );
        let others = [
            Head { etag: "y".into(), ..foreign.clone() },
            Head { key: "l".into(), ..foreign.clone() },
            Head { modified: time, ..foreign.clone() },
        ];
        assert!(others.iter().all(|other| id(other) != id(&foreign)), "{others:?}");
    }
}
