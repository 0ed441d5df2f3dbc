//! One method for each request of the kernel.
//!
//! Each is asked of the service on the thread that took it from the kernel, with the payload where the kernel put it.
//!
//! The kernel has walked to every file it names, with the rights of the process in question, before it asks about it
//! by its number. So what only depends on the way to a file (attributes, the text of a link) is asked with our own
//! rights; what depends on the file's own mode is asked with the rights of the process.

use crate::convert::{self, BLOCK};
use crate::errno::errno;
use crate::list::Listing;
use crate::open::Open;
use crate::work::{Serve, id};
use forebay_client::{RenameMode, XattrMode};
use forebay_model::{Access, Attr, Error, ErrorKind, Result, may};
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// How long the kernel may believe what it is told: another client may change it at any time.
const NOW: Duration = Duration::ZERO;
/// Ids are never used again, so that one generation is enough.
const FIRST: Generation = Generation(0);
/// Requests that the kernel may have under way in the background.
const BACKGROUND: u16 = 64;

/// What we ask of the kernel, where it can.
const ABILITIES: [InitFlags; 6] = [
    // `O_TRUNC` happens with the open.
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    // The server clears set-id bits, so that the kernel need not look for them before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // Files that bypass the page cache can still be mapped and shared.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    // Pages of mapped files are dropped when the file is seen to have changed.
    InitFlags::FUSE_AUTO_INVAL_DATA,
];

thread_local! {
    /// What was read, on its way to the kernel.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Serve {
    fn answer_entry(&self, reply: ReplyEntry, attr: Result<Attr>) {
        match attr {
            Ok(attr) => reply.entry(&NOW, &self.shown(&attr), FIRST),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn answer_attr(&self, reply: ReplyAttr, attr: Result<Attr>) {
        match attr {
            Ok(attr) => reply.attr(&NOW, &self.shown(&attr)),
            Err(error) => reply.error(failed(&error)),
        }
    }
}

/// The number for an error; a person finds the sentence in the log.
fn failed(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Io | ErrorKind::Protocol | ErrorKind::Unauthenticated => {
            tracing::warn!("{error}");
        }
        _ => tracing::debug!("{error}"),
    }
    errno(error)
}

fn answer(reply: ReplyEmpty, done: Result<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(failed(&error)),
    }
}

/// Answers a question for bytes whose length may be asked first.
fn answer_bytes(reply: ReplyXattr, room: u32, bytes: Result<Vec<u8>>) {
    match bytes {
        Ok(bytes) if room == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() <= room as usize => reply.data(&bytes),
        Ok(_) => reply.error(errno(&ErrorKind::Range.into())),
        Err(error) => reply.error(failed(&error)),
    }
}

/// The page cache is passed by, disjoint writers of one file do not wait for each other, and closing needs no word
/// since nothing is held back.
fn how_opened() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH
}

impl Filesystem for Serve {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for ability in ABILITIES {
            // An older kernel does without.
            let _ = config.add_capabilities(ability);
        }
        let refused = |_| io::Error::from(io::ErrorKind::InvalidInput);
        config.set_max_write(BLOCK).map_err(refused)?;
        config.set_max_background(BACKGROUND).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let client = self.speaker.of(request);
        self.answer_entry(reply, self.wait.block_on(client.by_id().walk(id(parent), name.as_bytes(), false)));
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.answer_attr(reply, self.get_attr(inode));
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let change = convert::change(mode, uid, gid, atime, mtime);
        self.answer_attr(reply, self.set_attr(&self.speaker.of(request), id(inode), handle, size, change));
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        match self.wait.block_on(self.speaker.trusted().by_id().read_link(id(inode))) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let made = convert::special(mode, device).and_then(|special| match special {
            Some(special) => self.make_special(request, id(parent), name, mode, special),
            None => {
                let flags = libc::O_EXCL | libc::O_RDONLY;
                let file = self.create_file(request, id(parent), name, mode, flags)?;
                Ok(file.opened().clone())
            }
        });
        self.answer_entry(reply, made);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let (client, mode) = (self.speaker.of(request), convert::permissions(mode));
        let made = convert::name(name)
            .and_then(|name| self.wait.block_on(client.by_id().mkdir(id(parent), name, mode)));
        self.answer_entry(reply, made);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let client = self.speaker.of(request);
        let gone =
            convert::name(name).and_then(|name| self.wait.block_on(client.by_id().unlink(id(parent), name)));
        answer(reply, gone);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let client = self.speaker.of(request);
        let gone =
            convert::name(name).and_then(|name| self.wait.block_on(client.by_id().rmdir(id(parent), name)));
        answer(reply, gone);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (client, target) = (self.speaker.of(request), target.as_os_str().as_bytes());
        let made = convert::name(name)
            .and_then(|name| self.wait.block_on(client.by_id().symlink(id(parent), name, target)));
        self.answer_entry(reply, made);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            _ if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let client = self.speaker.of(request);
        let moved = convert::name(name).and_then(|name| {
            let to_name = convert::name(to_name)?;
            self.wait.block_on(client.by_id().rename(id(parent), name, id(to_parent), to_name, mode))
        });
        answer(reply, moved);
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        to_parent: INodeNo,
        to_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let made = self.link_file(request, id(inode), id(to_parent), to_name);
        self.answer_entry(reply, made);
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(request, id(inode), flags.0) {
            Ok(file) => reply.opened(self.handles.insert(Open::File(file)), how_opened()),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        match self.create_file(request, id(parent), name, mode, flags) {
            Ok(file) => {
                let attr = convert::attr(file.opened());
                reply.created(&NOW, &attr, FIRST, self.handles.insert(Open::File(file)), how_opened());
            }
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let read = self
                .handles
                .with_file(handle, |file| self.wait.block_on(file.pread(offset, &mut buffer[..size])));
            match read {
                Ok(len) => reply.data(&buffer[..len]),
                Err(error) => reply.error(failed(&error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let cached = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let done =
            self.handles.with_file(handle, |file| self.write_file(file, offset, data, cached, flags.0));
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.remove(handle);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer(reply, self.handles.with_file(handle, |file| self.wait.block_on(file.sync())));
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let client = self.speaker.of(request);
        match self.wait.block_on(client.by_id().open(id(inode), Access::READ, false)) {
            Ok(held) => {
                let listing = Listing::new(client, id(inode), held);
                reply.opened(self.handles.insert(Open::Directory(listing)), FopenFlags::empty());
            }
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.handles.with_directory(handle, |listing| {
            listing.from(offset, &self.wait, |item| {
                let name = OsStr::from_bytes(item.name);
                !reply.add(INodeNo(item.file.0), item.place, convert::kind(item.kind), name)
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.handles.remove(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        answer(reply, self.wait.block_on(self.speaker.trusted().sync_all()));
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        const UNIT: u32 = 4096;
        /// More files than any store can hold: names are not what runs out.
        const FILES: u64 = 1 << 32;
        match self.wait.block_on(self.speaker.trusted().statfs()) {
            Ok(usage) => {
                let (all, used) = (usage.capacity / u64::from(UNIT), usage.live.div_ceil(u64::from(UNIT)));
                let free = all.saturating_sub(used);
                let more = FILES.saturating_sub(usage.files);
                reply.statfs(all, free, free, usage.files + more, more, UNIT, 255, UNIT);
            }
            Err(error) => reply.error(failed(&error)),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        let client = self.speaker.of(request);
        let set = convert::name(name)
            .and_then(|name| self.wait.block_on(client.by_id().set_xattr(id(inode), name, value, mode)));
        answer(reply, set);
    }

    fn getxattr(&self, request: &Request, inode: INodeNo, name: &OsStr, room: u32, reply: ReplyXattr) {
        let client = self.speaker.of(request);
        let value = convert::name(name)
            .and_then(|name| self.wait.block_on(client.by_id().get_xattr(id(inode), name)));
        answer_bytes(reply, room, value);
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, room: u32, reply: ReplyXattr) {
        let client = self.speaker.of(request);
        let names = self.wait.block_on(client.by_id().list_xattr(id(inode)));
        let bytes = names
            .map(|names| names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect());
        answer_bytes(reply, room, bytes);
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let client = self.speaker.of(request);
        let gone = convert::name(name)
            .and_then(|name| self.wait.block_on(client.by_id().remove_xattr(id(inode), name)));
        answer(reply, gone);
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let allowed = self.get_attr(inode).and_then(|attr| {
            match may(&self.speaker.identity(request), &attr, convert::wanted(mask)) {
                true => Ok(()),
                false => Err(ErrorKind::AccessDenied.into()),
            }
        });
        answer(reply, allowed);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        answer(reply, self.handles.with_file(handle, |file| self.allocate(file, offset, len, mode)));
    }
}
