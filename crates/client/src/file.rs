//! Open files.

use crate::flow::Target;
use crate::memory::{Memory, Now};
use crate::opens::{Held, done, unexpected};
use crate::transfer::WIDE;
use forebay_model::{Attr, Error, ErrorKind, FileId, Name, Result};
use forebay_wire::{Reply, Request, Token};
use std::fmt;
use std::sync::Arc;

/// How a file is opened. Without `read`, `write` or `append` it is opened for nothing, which is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenOptions {
    /// For reading.
    pub read: bool,
    /// For writing.
    pub write: bool,
    /// For writing at the end only.
    pub append: bool,
    /// Made if it is not there.
    pub create: bool,
    /// Made, and refused if it is there.
    pub create_new: bool,
    /// Cut to nothing.
    pub truncate: bool,
    /// Permission bits of a file that is made; the caller has applied its mask.
    pub mode: u16,
    /// A symbolic link in the last place is refused.
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

    /// For reading.
    pub const READ: OpenOptions = OpenOptions { read: true, ..OpenOptions::NOTHING };
    /// For reading and writing what is there.
    pub const WRITE: OpenOptions = OpenOptions { read: true, write: true, ..OpenOptions::NOTHING };
    /// For reading and writing; made if it is not there, cut to nothing if it is.
    pub const CREATE: OpenOptions = OpenOptions { create: true, truncate: true, ..OpenOptions::WRITE };
    /// For reading and writing; made, refused if it is there.
    pub const CREATE_NEW: OpenOptions = OpenOptions { create_new: true, ..OpenOptions::WRITE };
    /// For writing at the end; made if it is not there.
    pub const APPEND: OpenOptions = OpenOptions { append: true, create: true, ..OpenOptions::NOTHING };

    /// What makes no sense in these options, if anything.
    pub(crate) fn fault(self) -> Option<&'static str> {
        let writes = self.write || self.append;
        if !self.read && !writes {
            return Some("open it for reading, writing or appending");
        }
        let changes = self.create || self.create_new || self.truncate;
        (changes && !writes).then_some("only a file opened for writing can be made or cut")
    }
}

/// An open file. Share it by reference or in an `Arc`: nothing in it is locked, and any number of reads and
/// writes may be under way at once.
///
/// Dropping it closes it in the background; [`File::close`] waits for that.
pub struct File {
    held: Held,
    opened: Attr,
    label: Label,
    append_only: bool,
    /// Where all of it is on the server that opened it.
    memory: Option<Arc<Memory>>,
}

/// What a file is called in errors.
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
    pub(crate) fn new(held: Held, opened: Attr, label: Label) -> File {
        let near = held.spread().is_none();
        let memory = near.then(|| Memory::new(held.session().clone(), held.token(), held.who().clone()));
        File { held, opened, label, append_only: false, memory: memory.map(Arc::new) }
    }

    pub(crate) fn known_as(self, path: String, append_only: bool) -> File {
        File { label: Label::Path(path), append_only, ..self }
    }

    /// Which file this is.
    #[must_use]
    pub fn id(&self) -> FileId {
        self.opened.id
    }

    /// Its attributes as they were when it was opened.
    #[must_use]
    pub fn opened(&self) -> &Attr {
        &self.opened
    }

    /// The server's proof that it is open.
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

    /// Reads from an offset on until `into` is full or the file ends; says how many bytes that were.
    pub async fn pread(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if let Some(memory) = &self.memory
            && let Some(len) = Box::pin(memory.read(offset, into)).await
        {
            return Ok(len);
        }
        let read = match self.held.spread() {
            None => self.held.session().read_at(self.target(), offset, into).await,
            Some(spread) => Box::pin(spread.read_at(self.target(), offset, into)).await,
        };
        self.within("read", read)
    }

    /// Writes all of `data` at an offset. When it returns, every later read sees it; when it fails, some of it
    /// may have been written.
    pub async fn pwrite(&self, offset: u64, data: &[u8]) -> Result<()> {
        if self.append_only {
            let error = Error::new(ErrorKind::BadHandle, "it is open for appending only");
            return self.within("write", Err(error));
        }
        if data.is_empty() {
            return Ok(());
        }
        let (session, target) = (self.held.session(), self.target());
        let written = match (&self.memory, self.held.spread()) {
            (Some(memory), None) => Box::pin(session.write_near(memory, target, offset, data)).await,
            (None, None) => session.write_at(target, offset, data).await,
            (_, Some(spread)) => Box::pin(spread.write_at(target, offset, data)).await,
        };
        self.within("write", written)
    }

    /// Writes all of `data` at an offset without waiting for anybody, if that is possible: then it counts as if
    /// [`File::pwrite`] had returned. Never blocks, and may be called from a signal handler.
    #[must_use]
    pub fn write_now(&self, offset: u64, data: &[u8]) -> Now {
        match &self.memory {
            Some(memory) if !self.append_only && !data.is_empty() => memory.write_now(offset, data),
            _ => Now::Ask,
        }
    }

    /// Reads from an offset on until `into` is full or the file ends without waiting for anybody, if that is possible:
    /// then it counts as if [`File::pread`] had returned. Never blocks, and may be called from a signal handler.
    #[must_use]
    pub fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        self.memory.as_ref().filter(|_| !into.is_empty())?.read_now(offset, into)
    }

    /// Gets what the next writes will need, while nobody waits for it.
    pub fn prepare(&self) -> impl Future<Output = ()> + Send + use<> {
        let memory = self.memory.clone();
        async move {
            if let Some(memory) = memory {
                memory.prepare().await;
            }
        }
    }

    /// Writes all of `data` behind the last byte, in one piece whatever others append meanwhile, and says where
    /// that was. At most as many bytes as the server takes in one payload (4 MiB); more is refused.
    pub async fn append(&self, data: &[u8]) -> Result<u64> {
        if data.is_empty() {
            return self.stat().await.map(|attr| attr.size);
        }
        let written = match self.held.spread() {
            None => self.held.session().append(self.target(), data).await,
            Some(spread) => Box::pin(spread.append(self.target(), data)).await,
        };
        self.within("append to", written)
    }

    /// Whether a transfer goes over one connection only.
    pub(crate) fn is_narrow(&self, offset: u64, len: usize) -> bool {
        len <= WIDE && self.held.spread().is_none_or(|spread| spread.is_narrow(offset, len))
    }

    /// Asks whoever puts changes of the file's length in order.
    async fn tell(&self, what: &str, request: Request) -> Result<()> {
        let told = match self.held.spread() {
            None => done(self.held.session(), self.held.who(), &request).await,
            Some(spread) => Box::pin(spread.tell_order(self.target(), &request)).await,
        };
        self.within(what, told)
    }

    /// Sets the length of the file.
    pub async fn truncate(&self, size: u64) -> Result<()> {
        self.tell("truncate", Request::Truncate { token: self.token(), size }).await
    }

    /// Makes the file at least so long, and never shorter. What is new is zero.
    pub async fn extend(&self, size: u64) -> Result<()> {
        self.tell("extend", Request::Extend { token: self.token(), size }).await
    }

    /// Turns a range into zeros; the length stays. An empty range is refused, as `fallocate` does.
    pub async fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.tell("punch a hole into", Request::Punch { token: self.token(), offset, len }).await
    }

    /// Waits until everything acknowledged for this file is durable.
    pub async fn sync(&self) -> Result<()> {
        let request = Request::Sync { token: self.token() };
        match self.held.spread() {
            None => self.tell("sync", request).await,
            Some(spread) => self.within("sync", Box::pin(spread.tell_all(self.target(), &request)).await),
        }
    }

    /// The file's attributes.
    pub async fn stat(&self) -> Result<Attr> {
        let request = Request::GetAttr { file: self.opened.id };
        let attr = match self.held.session().call(self.held.who(), &request).await {
            Ok(Reply::Attr(attr)) => Ok(attr),
            Ok(other) => Err(unexpected(&request, &other)),
            Err(error) => Err(error),
        };
        self.within("stat", attr)
    }

    /// Closes the file without waiting for the answer, if that is possible: then it is to be used no more.
    #[must_use]
    pub fn close_now(&self) -> bool {
        self.held.close_now()
    }

    /// Closes the file and waits for the answer.
    pub async fn close(self) -> Result<()> {
        let closed = self.held.close().await;
        closed.map_err(|error| error.within(format_args!("cannot close {}", self.label)))
    }
}
