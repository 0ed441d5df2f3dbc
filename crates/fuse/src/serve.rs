//! One method for each request of the kernel.
//!
//! The thread that received a request calls the service, with the payload in the kernel's buffer, unless all receiving
//! threads are busy (see [`Dispatcher`]).
//!
//! The kernel resolves the path to a file with the permissions of the calling process before it sends requests by inode
//! number. So requests that depend only on the path (attributes, link targets) use the mount's own permissions;
//! requests that depend on the file's mode use those of the process.

use crate::convert::{self, BLOCK};
use crate::dispatcher::Dispatcher;
use crate::errno::errno;
use crate::list::Listing;
use crate::open::Open;
use crate::pages::{Answer, Stale};
use crate::speaker::Caller;
use crate::work::{Serve, id};
use forebay_client::{RenameMode, XattrMode, called_at};
use forebay_model::{Access, Attr, Error, ErrorKind, Result, may};
use fuser::{
    AccessFlags, BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow,
    WriteFlags,
};
use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

/// How long the kernel may cache attributes and entries: another client may change them at any time.
const NOW: Duration = Duration::ZERO;
/// Ids are never reused, so one generation is enough.
const FIRST: Generation = Generation(0);
/// Limit on background requests of the kernel.
const BACKGROUND: u16 = 64;

/// Features requested from the kernel, if it has them.
const FEATURES: [InitFlags; 6] = [
    // `O_TRUNC` is part of the open.
    InitFlags::FUSE_ATOMIC_O_TRUNC,
    // The server clears set-id bits, so the kernel need not check them before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    // Files that bypass the page cache can still be mapped and shared.
    InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_PARALLEL_DIROPS,
    // The kernel drops pages of mapped files when it sees that the file has changed.
    InitFlags::FUSE_AUTO_INVAL_DATA,
];

thread_local! {
    /// Buffer for data that is read.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The result of a write, and the kernel's pages that must be dropped before the reply.
type Written = (Result<()>, Option<Stale>);

impl Serve {
    fn write(
        &self,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: i32,
        called: Instant,
    ) -> Result<Written> {
        let len = data.len() as u64;
        self.handles.with_pages(handle, |file, pages| {
            if how.contains(WriteFlags::FUSE_WRITE_CACHE) {
                let part =
                    |span: Range<u64>| &data[(span.start - offset) as usize..(span.end - offset) as usize];
                let write_span =
                    |span: Range<u64>| self.take_page(file, span.start, part(span.clone()), flags, called);
                return Ok((pages.take_back(offset..offset + len, write_span), None));
            }
            Ok(pages.write(|| {
                let (written, start) = self.write_file(file, offset, data, flags, called);
                // A failed write has an empty range.
                let len = if written.is_ok() { len } else { 0 };
                (written, start..start.saturating_add(len))
            }))
        })
    }

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

/// The error number; the log has the message.
fn failed(error: &Error) -> Errno {
    match error.kind() {
        ErrorKind::Io | ErrorKind::Protocol | ErrorKind::Unauthenticated => tracing::warn!("{error}"),
        kind if kind.is_no_answer() => tracing::warn!("{error}"),
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

/// Replies with bytes, or with their length if `size_limit` is zero.
fn answer_bytes(reply: ReplyXattr, size_limit: u32, bytes: Result<Vec<u8>>) {
    match bytes {
        Ok(bytes) if size_limit == 0 => reply.size(bytes.len() as u32),
        Ok(bytes) if bytes.len() <= size_limit as usize => reply.data(&bytes),
        Ok(_) => reply.error(errno(&ErrorKind::Range.into())),
        Err(error) => reply.error(failed(&error)),
    }
}

/// Bypass the page cache, let disjoint writers of one file run in parallel, and skip `flush`, since nothing is held
/// back.
fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH
}

impl Filesystem for Dispatcher {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for feature in FEATURES {
            // An older kernel lacks it.
            let _ = config.add_capabilities(feature);
        }
        let refused = |_| io::Error::from(io::ErrorKind::InvalidInput);
        config.set_max_write(BLOCK).map_err(refused)?;
        config.set_max_background(BACKGROUND).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            serve.used();
            let client = serve.speaker.of(caller);
            serve.answer_entry(
                reply,
                serve.wait.block_on(client.by_id().walk(id(parent), name.as_bytes(), false)),
            );
        });
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.run(move |serve| {
            serve.answer_attr(reply, serve.get_attr(inode));
        });
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
        let caller = Caller::from(request);
        self.run(move |serve| {
            let change = convert::change(mode, uid, gid, atime, mtime);
            serve.answer_attr(
                reply,
                serve.set_attr(&serve.speaker.of(caller), id(inode), handle, size, change),
            );
        });
    }

    fn readlink(&self, _: &Request, inode: INodeNo, reply: ReplyData) {
        self.run(move |serve| {
            match serve.wait.block_on(serve.speaker.trusted().by_id().read_link(id(inode))) {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(failed(&error)),
            }
        });
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
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let made = convert::special(mode, device).and_then(|special| match special {
                Some(special) => serve.make_special(caller, id(parent), &name, mode, special),
                None => {
                    let flags = libc::O_EXCL | libc::O_RDONLY;
                    let file = serve.create_file(caller, id(parent), &name, mode, flags)?;
                    Ok(file.opened().clone())
                }
            });
            serve.answer_entry(reply, made);
        });
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
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let (client, mode) = (serve.speaker.of(caller), convert::permissions(mode));
            let made = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().mkdir(id(parent), name, mode)));
            serve.answer_entry(reply, made);
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let client = serve.speaker.of(caller);
            let gone = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().unlink(id(parent), name)));
            answer(reply, gone);
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let client = serve.speaker.of(caller);
            let gone = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().rmdir(id(parent), name)));
            answer(reply, gone);
        });
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let (caller, name, target) = (Caller::from(request), name.to_owned(), target.to_owned());
        self.run(move |serve| {
            let (client, target) = (serve.speaker.of(caller), target.as_os_str().as_bytes());
            let made = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().symlink(id(parent), name, target)));
            serve.answer_entry(reply, made);
        });
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
        let (caller, name, to_name) = (Caller::from(request), name.to_owned(), to_name.to_owned());
        self.run(move |serve| {
            let mode = match flags {
                _ if flags.is_empty() => RenameMode::Replace,
                RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
                RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
                _ => return reply.error(Errno::EINVAL),
            };
            let client = serve.speaker.of(caller);
            let moved = convert::name(&name).and_then(|name| {
                let to_name = convert::name(&to_name)?;
                serve.wait.block_on(client.by_id().rename(id(parent), name, id(to_parent), to_name, mode))
            });
            answer(reply, moved);
        });
    }

    fn link(
        &self,
        request: &Request,
        inode: INodeNo,
        to_parent: INodeNo,
        to_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, to_name) = (Caller::from(request), to_name.to_owned());
        self.run(move |serve| {
            let made = serve.link_file(caller, id(inode), id(to_parent), &to_name);
            serve.answer_entry(reply, made);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let caller = Caller::from(request);
        self.run(move |serve| match serve.open_file(caller, id(inode), flags.0) {
            Ok(file) => reply.opened(serve.handle(file), open_flags()),
            Err(error) => reply.error(failed(&error)),
        });
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
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| match serve.create_file(caller, id(parent), &name, mode, flags) {
            Ok(file) => {
                let attr = convert::attr(file.opened());
                reply.created(&NOW, &attr, FIRST, serve.handle(file), open_flags());
            }
            Err(error) => reply.error(failed(&error)),
        });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let called = Instant::now();
        self.run(move |serve| {
            // The kernel sets the lock owner for reads of a program, and not for page reads.
            let paged = owner.is_none();
            BUFFER.with_borrow_mut(|buffer| {
                let size = size as usize;
                if buffer.len() < size {
                    buffer.resize(size, 0);
                }
                let read = serve.handles.with_pages(handle, |file, pages| {
                    let mut read = || {
                        let read = file.pread(offset, &mut buffer[..size]);
                        serve.wait.block_on(called_at(called, read))
                    };
                    if !paged {
                        return read();
                    }
                    serve.keep_pages(file, called)?;
                    pages.read(offset..offset + size as u64, read)
                });
                match read {
                    Ok(len) => reply.data(&buffer[..len]),
                    Err(error) => reply.error(failed(&error)),
                }
            });
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
        let called = Instant::now();
        let write = move |serve: &Serve, data: &[u8]| {
            let done = serve.write(handle, offset, data, how, flags.0, called);
            let (done, stale) = done.unwrap_or_else(|error| (Err(error), None));
            let done = done.map(|()| data.len() as u32).map_err(|error| failed(&error));
            match (stale, done) {
                (None, Ok(len)) => reply.written(len),
                (None, Err(errno)) => reply.error(errno),
                // The receiver is gone when the mount has ended.
                (Some(stale), done) => drop(serve.answers.send(Answer { stale, reply, done })),
            }
        };
        match self.seat() {
            Some(_seat) => write(self.serve(), data),
            None => {
                let data = data.to_vec();
                self.run_elsewhere(move |serve| write(serve, &data));
            }
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.run(move |serve| {
            serve.handles.remove(handle);
            serve.pages.closed(inode);
            reply.ok();
        });
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.run(move |serve| {
            answer(reply, serve.handles.with_file(handle, |file| serve.wait.block_on(file.sync())));
        });
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let caller = Caller::from(request);
        self.run(move |serve| {
            serve.used();
            let client = serve.speaker.of(caller);
            match serve.wait.block_on(client.by_id().open(id(inode), Access::READ, false)) {
                Ok(held) => {
                    let listing = Listing::new(client, id(inode), held);
                    reply.opened(serve.handles.insert(Open::Directory(listing)), FopenFlags::empty());
                }
                Err(error) => reply.error(failed(&error)),
            }
        });
    }

    fn readdir(&self, _: &Request, _: INodeNo, handle: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.run(move |serve| {
            let listed = serve.handles.with_directory(handle, |listing| {
                listing.from(offset, &serve.wait, |item| {
                    let name = OsStr::from_bytes(item.name);
                    !reply.add(INodeNo(item.file.0), item.place, convert::kind(item.kind), name)
                })
            });
            match listed {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(failed(&error)),
            }
        });
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.run(move |serve| {
            serve.handles.remove(handle);
            reply.ok();
        });
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _data_only: bool, reply: ReplyEmpty) {
        self.run(move |serve| {
            answer(reply, serve.wait.block_on(serve.speaker.trusted().sync_all()));
        });
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        self.run(move |serve| {
            const UNIT: u32 = 4096;
            /// More files than any store can hold: the number of files is not limited.
            const FILES: u64 = 1 << 32;
            match serve.wait.block_on(serve.speaker.trusted().statfs()) {
                Ok(usage) => {
                    let (all, used) =
                        (usage.capacity / u64::from(UNIT), usage.live.div_ceil(u64::from(UNIT)));
                    let free = all.saturating_sub(used);
                    let more = FILES.saturating_sub(usage.files);
                    reply.statfs(all, free, free, usage.files + more, more, UNIT, 255, UNIT);
                }
                Err(error) => reply.error(failed(&error)),
            }
        });
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
        let (caller, name, value) = (Caller::from(request), name.to_owned(), value.to_vec());
        self.run(move |serve| {
            let mode = match flags {
                libc::XATTR_CREATE => XattrMode::Create,
                libc::XATTR_REPLACE => XattrMode::Replace,
                _ => XattrMode::Any,
            };
            let client = serve.speaker.of(caller);
            let set = convert::name(&name).and_then(|name| {
                serve.wait.block_on(client.by_id().set_xattr(id(inode), name, &value, mode))
            });
            answer(reply, set);
        });
    }

    fn getxattr(&self, request: &Request, inode: INodeNo, name: &OsStr, size_limit: u32, reply: ReplyXattr) {
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let client = serve.speaker.of(caller);
            let value = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().get_xattr(id(inode), name)));
            answer_bytes(reply, size_limit, value);
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size_limit: u32, reply: ReplyXattr) {
        let caller = Caller::from(request);
        self.run(move |serve| {
            let client = serve.speaker.of(caller);
            let names = serve.wait.block_on(client.by_id().list_xattr(id(inode)));
            let bytes = names.map(|names| {
                names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect()
            });
            answer_bytes(reply, size_limit, bytes);
        });
    }

    fn removexattr(&self, request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (Caller::from(request), name.to_owned());
        self.run(move |serve| {
            let client = serve.speaker.of(caller);
            let gone = convert::name(&name)
                .and_then(|name| serve.wait.block_on(client.by_id().remove_xattr(id(inode), name)));
            answer(reply, gone);
        });
    }

    fn access(&self, request: &Request, inode: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let caller = Caller::from(request);
        self.run(move |serve| {
            let allowed = serve.get_attr(inode).and_then(|attr| {
                match may(&serve.speaker.identity(caller), &attr, convert::wanted(mask)) {
                    true => Ok(()),
                    false => Err(ErrorKind::AccessDenied.into()),
                }
            });
            answer(reply, allowed);
        });
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
        self.run(move |serve| {
            answer(reply, serve.handles.with_file(handle, |file| serve.allocate(file, offset, len, mode)));
        });
    }

    /// The kernel sends requests for data and holes only.
    fn lseek(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.run(move |serve| {
            match serve.handles.with_pages(handle, |file, pages| serve.seek(file, pages, offset, whence)) {
                Ok(Some(found)) => reply.offset(found as i64),
                Ok(None) => reply.error(Errno::ENXIO),
                Err(error) => reply.error(failed(&error)),
            }
        });
    }
}
