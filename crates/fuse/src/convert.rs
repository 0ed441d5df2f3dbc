//! Conversion between FUSE types and ours.

use forebay_model::{
    Access, Attr, Change, ErrorKind, FileKind, Gid, Name, Result, SetTime, Special, Time, Uid,
};
use fuser::{AccessFlags, FileAttr, FileType, INodeNo, TimeOrNow};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The preferred I/O size that `stat` reports: the largest request the kernel sends.
pub(crate) const BLOCK: u32 = 1 << 20;
/// Flag of an open to execute a program.
const EXEC: i32 = 0x20;

pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Special(Special::Pipe) => FileType::NamedPipe,
        FileKind::Special(Special::Socket) => FileType::Socket,
        FileKind::Special(Special::Character(_)) => FileType::CharDevice,
        FileKind::Special(Special::Block(_)) => FileType::BlockDevice,
    }
}

/// The special file that `mknod` requests; `None` for a regular one.
pub(crate) fn special(mode: u32, device: u32) -> Result<Option<Special>> {
    match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Ok(None),
        libc::S_IFIFO => Ok(Some(Special::Pipe)),
        libc::S_IFSOCK => Ok(Some(Special::Socket)),
        libc::S_IFCHR => Ok(Some(Special::Character(device))),
        libc::S_IFBLK => Ok(Some(Special::Block(device))),
        _ => Err(ErrorKind::Invalid.into()),
    }
}

fn device(kind: FileKind) -> u32 {
    match kind {
        FileKind::Special(Special::Character(number) | Special::Block(number)) => number,
        _ => 0,
    }
}

pub(crate) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.id.0),
        size: attr.size,
        blocks: blocks(attr),
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.ctime),
        kind: kind(attr.kind),
        perm: attr.mode,
        nlink: attr.links,
        uid: attr.uid.0,
        gid: attr.gid.0,
        rdev: device(attr.kind),
        blksize: BLOCK,
        flags: 0,
    }
}

/// Archivers take a file without blocks for one large hole and never read it, so a non-empty file reports at least one.
fn blocks(attr: &Attr) -> u64 {
    match attr.kind {
        FileKind::File if attr.size > 0 => attr.buffered.div_ceil(512).max(1),
        _ => 0,
    }
}

fn system_time(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let whole = Duration::from_secs(time.secs.unsigned_abs());
    let second = if time.secs < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    second.and_then(|second| second.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

fn set_time(time: TimeOrNow) -> SetTime {
    let time = match time {
        TimeOrNow::Now => return SetTime::Now,
        TimeOrNow::SpecificTime(time) => time,
    };
    SetTime::To(match time.duration_since(UNIX_EPOCH) {
        Ok(since) => {
            Time { secs: i64::try_from(since.as_secs()).unwrap_or(i64::MAX), nanos: since.subsec_nanos() }
        }
        // The kernel's pair for a time before the epoch arrives as whole seconds back and nanoseconds further back; it
        // means nanoseconds forward from there.
        Err(before) => {
            let before = before.duration();
            let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
            Time { secs, nanos: before.subsec_nanos() }
        }
    })
}

/// The change that `chmod`, `chown` and `utimens` request.
pub(crate) fn change(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
) -> Change {
    Change {
        mode: mode.map(permissions),
        uid: uid.map(Uid),
        gid: gid.map(Gid),
        atime: atime.map(set_time),
        mtime: mtime.map(set_time),
    }
}

/// The permission bits of a mode.
pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & 0o7777) as u16
}

/// The name of an entry or an extended attribute.
pub(crate) fn name(name: &OsStr) -> Result<Name> {
    Name::new(name.as_bytes())
}

/// The purpose of an open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// The access that a program requests.
    Use(Access),
    /// To execute: the kernel reads the file for a user that may lack read permission.
    Run,
}

/// The purpose in the flags of `open`.
pub(crate) fn purpose(flags: i32) -> Purpose {
    match flags & libc::O_ACCMODE {
        _ if flags & EXEC != 0 => Purpose::Run,
        libc::O_RDONLY => Purpose::Use(Access::READ),
        libc::O_WRONLY => Purpose::Use(Access::WRITE),
        _ => Purpose::Use(Access::BOTH),
    }
}

/// The access that `access` checks.
pub(crate) fn wanted(mask: AccessFlags) -> Access {
    Access {
        read: mask.contains(AccessFlags::R_OK),
        write: mask.contains(AccessFlags::W_OK),
        execute: mask.contains(AccessFlags::X_OK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::FileId;

    #[test]
    fn times_before_the_epoch_keep_their_meaning() {
        for (secs, nanos) in [(0, 0), (5, 7), (-1, 0), (-2, 800_000_000), (i64::MAX, 1)] {
            let time = Time { secs, nanos };
            let shown = system_time(time);
            let back = match shown.duration_since(UNIX_EPOCH) {
                Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
                Err(before) => {
                    let before = before.duration();
                    match before.subsec_nanos() {
                        0 => (-(before.as_secs() as i64), 0),
                        nanos => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
                    }
                }
            };
            assert_eq!(back, (secs, nanos));
        }
        let before_epoch = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let expected = SetTime::To(Time { secs: -2, nanos: 800_000_000 });
        assert_eq!(set_time(TimeOrNow::SpecificTime(before_epoch)), expected, "as the kernel's pair arrives");
    }

    #[test]
    fn open_flags_give_the_purpose() {
        for (flags, expected) in [
            (libc::O_RDONLY, Purpose::Use(Access::READ)),
            (libc::O_WRONLY | libc::O_APPEND, Purpose::Use(Access::WRITE)),
            (libc::O_RDWR | libc::O_TRUNC, Purpose::Use(Access::BOTH)),
            (EXEC, Purpose::Run),
        ] {
            assert_eq!(purpose(flags), expected, "{flags:o}");
        }
    }

    #[test]
    fn non_empty_file_reports_at_least_one_block() {
        for (size, buffered, expected) in [(0, 0, 0), (1, 1, 1), (1 << 30, 0, 1), (4096, 4096, 8)] {
            let attr = Attr {
                id: FileId(9),
                kind: FileKind::File,
                mode: 0o644,
                links: 1,
                uid: Uid(1),
                gid: Gid(1),
                size,
                buffered,
                atime: Time::default(),
                mtime: Time::default(),
                ctime: Time::default(),
            };
            assert_eq!(super::attr(&attr).blocks, expected, "{size} {buffered}");
        }
    }
}
