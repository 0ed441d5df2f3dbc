//! A minimal pass-through mount: a directory with one file, every request forwarded to a file in memory. Its
//! cost is the cost of FUSE.

use crate::Outcome;
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The name of the one file.
pub(crate) const NAME: &str = "data";
const FILE: INodeNo = INodeNo(2);
/// As in Forebay's mount.
const THREADS: usize = 8;
const LARGEST: u32 = 1 << 20;
const NOW: Duration = Duration::ZERO;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

struct Pass {
    file: File,
}

/// Mounts a file at a directory, until the session is dropped.
pub(crate) fn mount(file: File, dir: &Path) -> Outcome<BackgroundSession> {
    let mut config = Config::default();
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    Ok(fuser::spawn_mount(Pass { file }, dir, &config)?)
}

impl Pass {
    fn attr(&self, inode: INodeNo) -> io::Result<FileAttr> {
        let (now, is_file) = (SystemTime::UNIX_EPOCH, inode == FILE);
        Ok(FileAttr {
            ino: inode,
            size: if is_file { self.file.metadata()?.len() } else { 0 },
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o700 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn reply_attr(&self, inode: INodeNo, reply: ReplyAttr) {
        match self.attr(inode) {
            Ok(attr) => reply.attr(&NOW, &attr),
            Err(error) => reply.error(Errno::from(error)),
        }
    }
}

impl Filesystem for Pass {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        config.set_max_write(LARGEST).map(drop).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attr(FILE) {
            Ok(attr) if name == NAME => reply.entry(&NOW, &attr, Generation(0)),
            Ok(_) => reply.error(Errno::ENOENT),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.reply_attr(inode, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match size.map(|size| self.file.set_len(size)) {
            Some(Err(error)) => reply.error(Errno::from(error)),
            _ => self.reply_attr(inode, reply),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let how = FopenFlags::FOPEN_DIRECT_IO
            | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
            | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), how);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(buffer.len().max(size as usize), 0);
            match self.file.read_at(&mut buffer[..size as usize], offset) {
                Ok(count) => reply.data(&buffer[..count]),
                Err(error) => reply.error(Errno::from(error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.file.write_all_at(data, offset) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from(error)),
        }
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}
