//! Open files.

use crate::flow::Target;
use crate::mapped::{self, Mapping};
use crate::memory::{Memory, Now};
use crate::opens::{Held, Opened, done, position, unexpected};
use crate::transfer::WIDE;
use forebay_model::{Attr, Error, ErrorKind, FileId, Name, Result, SeekTo};
use forebay_shm::Lease;
use forebay_wire::{Reply, Request, Token};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How to open a file. At least one of `read`, `write` and `append` is required.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
    /// Open for writing at the end only.
    pub append: bool,
    /// Create the file if it does not exist.
    pub create: bool,
    /// Create the file; fail if it exists.
    pub create_new: bool,
    /// Truncate the file to length 0.
    pub truncate: bool,
    /// Permission bits of a created file. The caller has applied its umask.
    pub mode: u16,
    /// Fail if the last component is a symbolic link.
    pub nofollow: bool,
}

impl OpenOptions {
    const NOTHING: OpenOptions = OpenOptions {
        read: false,
        write: false,
        append: false,
        create: false,
        create_new: false,
        truncate: false,
        mode: 0o644,
        nofollow: false,
    };

    /// Read an existing file.
    pub const READ: OpenOptions = OpenOptions { read: true, ..OpenOptions::NOTHING };
    /// Read and write an existing file.
    pub const WRITE: OpenOptions = OpenOptions { read: true, write: true, ..OpenOptions::NOTHING };
    /// Read and write; create the file or truncate it.
    pub const CREATE: OpenOptions = OpenOptions { create: true, truncate: true, ..OpenOptions::WRITE };
    /// Read and write; create the file, fail if it exists.
    pub const CREATE_NEW: OpenOptions = OpenOptions { create_new: true, ..OpenOptions::WRITE };
    /// Append; create the file if it does not exist.
    pub const APPEND: OpenOptions = OpenOptions { append: true, create: true, ..OpenOptions::NOTHING };

    /// Why this combination of options is invalid, if it is.
    pub(crate) fn fault(self) -> Option<&'static str> {
        let writes = self.write || self.append;
        if !self.read && !writes {
            return Some("a file must be opened for reading, writing or appending");
        }
        let changes = self.create || self.create_new || self.truncate;
        (changes && !writes).then_some("only a file opened for writing can be created or truncated")
    }
}

/// An open file. Share it by reference or in an `Arc`: it holds no lock, and any number of reads and writes may run
/// concurrently.
///
/// Dropping it closes the file in the background; [`File::close`] waits for the answer.
pub struct File {
    held: Held,
    opened: Attr,
    /// The lease of these attributes, and the control connection on which it was granted.
    lease: Option<(Lease, u64)>,
    label: Label,
    append_only: bool,
    /// Shared-memory state; `None` for a striped file.
    memory: Option<Arc<Memory>>,
    /// The connection on which the server learnt that this client keeps pages; 0 if none.
    keeps_pages: AtomicU64,
}

/// How error messages name the file.
pub(crate) enum Label {
    Number(FileId),
    Entry(FileId, Name),
    Path(String),
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Label::Number(file) => write!(f, "file {file}"),
            Label::Entry(dir, name) => write!(f, "\"{name}\" in directory {dir}"),
            Label::Path(path) => f.write_str(path),
        }
    }
}

impl File {
    pub(crate) fn new(opened: Opened, label: Label) -> File {
        let Opened { held, attr, bound, lease, .. } = opened;
        let unstriped = held.striped().is_none();
        let memory = unstriped
            .then(|| Memory::new(held.session().clone(), held.token(), held.who().clone()).with_ring(bound));
        let memory = memory.map(Arc::new);
        File { held, opened: attr, lease, label, append_only: false, memory, keeps_pages: AtomicU64::new(0) }
    }

    pub(crate) fn known_as(self, path: String, append_only: bool) -> File {
        File { label: Label::Path(path), append_only, ..self }
    }

    /// The file's id.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.opened.id
    }

    /// The attributes at the time of the open.
    #[must_use]
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// The server's token for this open file.
    #[must_use]
    pub fn token(&self) -> Token {
        self.held.token()
    }

    fn target(&self) -> Target<'_> {
        Target { who: self.held.who(), token: self.held.token() }
    }

    fn within<T>(&self, what: &str, result: Result<T>) -> Result<T> {
        result.map_err(|error| error.within(format_args!("cannot {what} {}", self.label)))
    }

    /// Reads from `offset` until `into` is full or the file ends, and returns the number of bytes.
    pub async fn pread(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if let Some(memory) = &self.memory
            && let Some(len) = Box::pin(memory.read(offset, into)).await
        {
            return Ok(len);
        }
        let read = match self.held.striped() {
            None => self.held.session().read_at(self.target(), offset, into).await,
            Some(striped) => Box::pin(striped.read_at(self.target(), offset, into)).await,
        };
        self.within("read", read)
    }

    /// Writes all of `data` at an offset. Once it has returned, every later read sees the data; if it fails, part of
    /// the data may have been written.
    pub async fn pwrite(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.append_only {
            let error = Error::new(ErrorKind::BadHandle, "the file is open for appending only");
            return self.within("write", Err(error));
        }
        if data.is_empty() {
            return Ok(());
        }
        let (session, target) = (self.held.session(), self.target());
        let written = match (&self.memory, self.held.striped()) {
            (Some(memory), None) => Box::pin(session.write_near(memory, target, offset, data)).await,
            (None, None) => session.write_at(target, offset, data).await,
            (_, Some(striped)) => Box::pin(striped.write_at(target, offset, data)).await,
        };
        self.within("write", written)
    }

    /// Writes all of `data` at an offset if that is possible without a request. On success it has the same effect as
    /// [`File::pwrite`]. Never blocks, and is safe in a signal handler.
    #[must_use]
    pub fn write_now(&self, offset: u64, data: &[u8]) -> Now {
        match &self.memory {
            Some(memory) if !self.append_only && !data.is_empty() => memory.write_now(offset, data),
            _ => Now::Ask,
        }
    }

    /// Reads from `offset` until `into` is full or the file ends, if that is possible without a request. On success it
    /// has the same effect as [`File::pread`]. Never blocks, and is safe in a signal handler.
    #[must_use]
    pub fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        self.memory.as_ref().filter(|_| !into.is_empty())?.read_now(offset, into)
    }

    /// Requests buffer space for the next writes ahead of time.
    pub fn prepare(&self) -> impl Future<Output = ()> + Send + use<> {
        let memory = self.memory.clone();
        async move {
            if let Some(memory) = memory {
                memory.prepare().await;
            }
        }
    }

    /// Appends all of `data` atomically with respect to other appends, and returns its offset. Fails if `data` is
    /// larger than the server's maximum payload (4 MiB).
    pub async fn append(&self, data: &[u8]) -> Result<u64> {
        if data.is_empty() {
            return self.stat().await.map(|attr| attr.size);
        }
        let written = match self.held.striped() {
            None => self.held.session().append(self.target(), data).await,
            Some(striped) => Box::pin(striped.append(self.target(), data)).await,
        };
        self.within("append to", written)
    }

    /// Whether a transfer uses only one connection.
    pub(crate) fn is_narrow(&self, offset: u64, len: usize) -> bool {
        len <= WIDE && self.held.striped().is_none_or(|striped| striped.is_narrow(offset, len))
    }

    /// Sends a request to the server that orders changes of the file's length.
    async fn notify(&self, what: &str, request: Request) -> Result<()> {
        let result = match self.held.striped() {
            None => done(self.held.session(), self.held.who(), &request).await,
            Some(striped) => Box::pin(striped.notify_order(self.target(), &request)).await,
        };
        self.within(what, result)
    }

    /// Sets the length of the file.
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.notify("truncate", Request::Truncate { token: self.token(), size }).await
    }

    /// Grows the file to at least `size` bytes; never shrinks it. The new bytes are zero.
    pub async fn extend(&self, size: u64) -> Result<()> {
        self.notify("extend", Request::Extend { token: self.token(), size }).await
    }

    /// Zeroes a range; the length stays. An empty range is refused, as by `fallocate`.
    pub async fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.notify("punch a hole into", Request::Punch { token: self.token(), offset, len }).await
    }

    /// The first offset at or after `offset` that is data, or in a hole; the end of the file counts as a hole. `None`
    /// at and after the end, and if no data follows.
    pub async fn seek(&self, offset: u64, to: SeekTo) -> Result<Option<u64>> {
        let request = Request::Seek { token: self.token(), offset, to, end: None, stripes: None };
        let found = match self.held.striped() {
            None => position(self.held.session(), self.held.who(), &request).await,
            Some(striped) => Box::pin(striped.seek(self.target(), offset, to)).await,
        };
        self.within("seek in", found)
    }

    /// Prepares a range of the file for a shared memory mapping; the range may extend past the end of the file. A
    /// mapping for writing needs a file open for reading and writing. Fails with *unsupported* if processes cannot share
    /// its memory.
    pub async fn map(&self, offset: u64, len: u64, write: bool) -> Result<Mapping> {
        let request = Request::MapFile { token: self.token(), offset, len, write };
        let mapped = match self.held.session().call(self.held.who(), &request).await {
            Ok(Reply::FileMap(answer)) => mapped::fetch(answer, self.held.session().server_user()).await,
            Ok(other) => Err(unexpected(&request, &other)),
            Err(error) => Err(error),
        };
        self.within("map", mapped)
    }

    /// Announces that this client keeps pages of the file into which programs may store, until the file is closed.
    /// Fails with *unsupported* while a process maps the file for writing through shared memory. Cheap if it is
    /// announced already on the present connection.
    pub async fn keep_pages(&self) -> Result<()> {
        let epoch = self.held.session().opens.connection_epoch();
        if self.keeps_pages.load(Ordering::Acquire) == epoch {
            return Ok(());
        }
        // A striped file is never mapped through shared memory.
        if self.held.striped().is_none() {
            let kept =
                done(self.held.session(), self.held.who(), &Request::KeepPages { token: self.token() }).await;
            self.within("map", kept)?;
        }
        self.keeps_pages.store(epoch, Ordering::Release);
        Ok(())
    }

    /// Waits until all acknowledged writes to this file are durable.
    pub async fn sync(&self) -> Result<()> {
        let request = Request::Sync { token: self.token() };
        match self.held.striped() {
            None => self.notify("sync", request).await,
            Some(striped) => {
                self.within("sync", Box::pin(striped.notify_every(self.target(), &request)).await)
            }
        }
    }

    /// The file's attributes.
    pub async fn stat(&self) -> Result<Attr> {
        if let Some((lease, connection_epoch)) = self.lease
            && self.held.striped().is_none()
            && self.held.session().stands(lease, self.opened.id, connection_epoch)
        {
            return Ok(self.opened.clone());
        }
        let request = Request::GetAttr { file: self.opened.id };
        let attr = match self.held.session().call(self.held.who(), &request).await {
            Ok(Reply::Attr(attr)) => Ok(attr),
            Ok(other) => Err(unexpected(&request, &other)),
            Err(error) => Err(error),
        };
        self.within("stat", attr)
    }

    /// Closes the file without waiting for the answer, if possible. If it returns true, the file must not be used
    /// again.
    #[must_use]
    pub fn close_now(&self) -> bool {
        self.held.close_now()
    }

    /// Drops the file's rings and leases unless they are in use. For connections that are about to be closed.
    pub fn let_go_of_memory(&self) {
        self.memory.iter().for_each(|memory| memory.release());
    }

    /// Closes the file on the server even if other threads of this process still use it. For a process that exits.
    pub async fn close_for_all(&self) -> Result<()> {
        done(self.held.session(), self.held.who(), &Request::Close { token: self.token() }).await
    }

    /// Closes the file and waits for the answer.
    pub async fn close(self) -> Result<()> {
        let closed = self.held.close().await;
        closed.map_err(|error| error.within(format_args!("cannot close {}", self.label)))
    }
}
