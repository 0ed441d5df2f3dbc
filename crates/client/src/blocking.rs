//! A blocking client: every method does what the async method of the same name does.
//!
//! All blocking clients of a process share one small runtime. Calls from within an async task would block the task's
//! thread; tokio panics on them. Use the async client in async code.

use crate::dir::Listing;
use crate::file::OpenOptions;
use crate::memory::Now;
use crate::queue::waiting_here;
use crate::socket::here;
use crate::{Address, ById, ClientConfig};
use forebay_model::{
    Attr, Change, Error, ErrorKind, FileId, Gid, Identity, Layout, Name, Result, ServerId, SetTime, Striping,
    Uid, Usage,
};
use forebay_wire::{
    DrainReport, Entry, KeyCall, KeyReply, Losses, RenameMode, RepairStep, Sample, Sharing, Status, Token,
    Welcome, XattrMode,
};
use std::path::Path;
use std::sync::OnceLock;
use tokio::runtime::{Builder, Runtime};

static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();

fn runtime() -> Result<&'static Runtime> {
    let made = RUNTIME.get_or_init(|| {
        let runtime =
            Builder::new_multi_thread().worker_threads(2).thread_name("forebay-client").enable_all().build();
        runtime.map_err(|error| error.to_string())
    });
    made.as_ref()
        .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start the client's threads: {error}")))
}

/// Waits for a future. The calling thread polls the shared-memory queue itself where the service offers one.
fn wait<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    waiting_here(|| runtime.block_on(future))
}

macro_rules! blocking {
    ($owner:ident: $($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        impl $owner {
            $(
                #[doc = concat!("See [`", stringify!($owner), "::", stringify!($name), "`](crate::", stringify!($owner), "::", stringify!($name), ").")]
                pub fn $name(&self, $($arg: $type),*) -> Result<$out> {
                    wait(self.inner.$name($($arg),*))
                }
            )*
        }
    };
}

/// A blocking client.
///
/// ```
/// use forebay_client::blocking::Client;
/// use forebay_client::{Address, ClientConfig, OpenOptions};
/// use forebay_model::ErrorKind;
///
/// # let dir = tempfile::tempdir()?;
/// # let config = forebay_server::Config {
/// #     tcp: false,
/// #     capacity: forebay_model::Bytes::mib(64),
/// #     medium: forebay_server::Medium::Disk,
/// #     ..forebay_server::Config::for_store(dir.path().join("store"))
/// # };
/// # let socket = config.socket_path();
/// # let server = forebay_server::Server::start(config)?;
/// let client = Client::connect(ClientConfig::new(Address::Unix(socket)))?;
/// client.mkdir("/run1", 0o750)?;
/// client.open("/run1/log", OpenOptions::CREATE)?.close()?;
/// client.symlink("log", "/run1/latest")?;
/// assert_eq!(client.stat("/run1/latest")?.size, 0);
/// assert_eq!(client.rmdir("/run1").unwrap_err().kind(), ErrorKind::NotEmpty);
/// client.unlink("/run1/latest")?;
/// client.unlink("/run1/log")?;
/// client.rmdir("/run1")?;
/// # drop(client);
/// # server.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    inner: crate::Client,
}

impl Client {
    /// See [`Client::connect`](crate::Client::connect).
    pub fn connect(config: ClientConfig) -> Result<Client> {
        let inner = runtime()?.block_on(crate::Client::connect(config))?;
        Ok(Client { inner })
    }

    /// See [`Client::as_identity`](crate::Client::as_identity).
    #[must_use]
    pub fn as_identity(&self, identity: Identity) -> Client {
        Client { inner: self.inner.as_identity(identity) }
    }

    /// See [`Client::reached_at`](crate::Client::reached_at).
    #[must_use]
    pub fn reached_at(&self) -> Option<Address> {
        self.inner.reached_at()
    }

    /// The calls by id; they are async, for [`Client::wait`].
    #[must_use]
    pub fn by_id(&self) -> &ById {
        self.inner.by_id()
    }

    /// The underlying async client.
    #[must_use]
    pub fn inner(&self) -> &crate::Client {
        &self.inner
    }

    /// Waits for any future of the async client, on the runtime that all blocking clients share.
    pub fn wait<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        wait(future)
    }

    /// See [`Client::open`](crate::Client::open).
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let inner = wait(self.inner.open(path, options))?;
        Ok(File { inner })
    }

    /// See [`Client::statuses`](crate::Client::statuses).
    pub fn statuses(&self) -> Result<Vec<(ServerId, Result<Status>)>> {
        Ok(runtime()?.block_on(self.inner.statuses()))
    }

    /// See [`Client::read_dir`](crate::Client::read_dir).
    pub fn read_dir(&self, path: impl AsRef<Path>, listing: Listing) -> Result<ReadDir> {
        let inner = wait(self.inner.read_dir(path, listing))?;
        Ok(ReadDir { inner })
    }
}

blocking! { Client:
    welcome() -> Welcome;
    stat(path: impl AsRef<Path>) -> Attr;
    lstat(path: impl AsRef<Path>) -> Attr;
    mkdir(path: impl AsRef<Path>, mode: u16) -> Attr;
    rmdir(path: impl AsRef<Path>) -> ();
    unlink(path: impl AsRef<Path>) -> ();
    rename(from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> ();
    link(file: impl AsRef<Path>, to: impl AsRef<Path>) -> Attr;
    symlink(target: impl AsRef<Path>, path: impl AsRef<Path>) -> Attr;
    read_link(path: impl AsRef<Path>) -> Vec<u8>;
    set_attr(path: impl AsRef<Path>, follow: bool, change: Change) -> Attr;
    chmod(path: impl AsRef<Path>, mode: u16) -> Attr;
    chown(path: impl AsRef<Path>, uid: Option<Uid>, gid: Option<Gid>) -> Attr;
    utimens(path: impl AsRef<Path>, atime: Option<SetTime>, mtime: Option<SetTime>) -> Attr;
    truncate(path: impl AsRef<Path>, size: u64) -> ();
    get_xattr(path: impl AsRef<Path>, name: &str) -> Vec<u8>;
    set_xattr(path: impl AsRef<Path>, name: &str, value: &[u8], mode: XattrMode) -> ();
    list_xattr(path: impl AsRef<Path>) -> Vec<Name>;
    remove_xattr(path: impl AsRef<Path>, name: &str) -> ();
    layout(path: impl AsRef<Path>) -> (Option<Striping>, Option<Layout>);
    set_layout(path: impl AsRef<Path>, striping: Option<Striping>) -> ();
    replace_server(server: ServerId) -> ();
    losses(server: ServerId) -> Losses;
    repair(server: ServerId, step: RepairStep) -> Vec<String>;
    keys(call: KeyCall) -> KeyReply;
    statfs() -> Usage;
    status() -> Status;
    history() -> Vec<Sample>;
    policy() -> Sharing;
    set_policy(policy: &str) -> Sharing;
    set_route(mode: &str) -> ();
    sync_all() -> ();
    drain(path: Option<&Path>, order: Option<&str>) -> DrainReport;
    drain_last() -> DrainReport;
    fetch(file: FileId, offset: u64, len: u64, turn: u64) -> DrainReport;
    drain_state(ticket: Option<u64>) -> DrainReport;
    drain_ticket(ticket: u64) -> DrainReport;
    shutdown() -> ();
    ping() -> ();
}

/// A blocking open file.
///
/// ```
/// use forebay_client::blocking::Client;
/// use forebay_client::{Address, ClientConfig, OpenOptions};
///
/// # let dir = tempfile::tempdir()?;
/// # let config = forebay_server::Config {
/// #     tcp: false,
/// #     capacity: forebay_model::Bytes::mib(64),
/// #     medium: forebay_server::Medium::Disk,
/// #     ..forebay_server::Config::for_store(dir.path().join("store"))
/// # };
/// # let socket = config.socket_path();
/// # let server = forebay_server::Server::start(config)?;
/// let client = Client::connect(ClientConfig::new(Address::Unix(socket)))?;
/// let file = client.open("/results", OpenOptions::CREATE)?;
/// file.pwrite(4, b"data")?;
/// assert_eq!(file.append(b" and more")?, 8);
/// file.punch(5, 3)?;
/// file.truncate(12)?;
/// file.sync()?;
/// let mut bytes = [1; 32];
/// assert_eq!(file.pread(0, &mut bytes)?, 12);
/// assert_eq!(&bytes[..12], b"\0\0\0\0d\0\0\0 and");
/// assert_eq!(file.stat()?.size, 12);
/// file.close()?;
/// # drop(client);
/// # server.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct File {
    inner: crate::File,
}

impl File {
    /// See [`File::id`](crate::File::id).
    #[must_use]
    pub fn id(&self) -> FileId {
        self.inner.id()
    }

    /// See [`File::token`](crate::File::token).
    #[must_use]
    pub fn token(&self) -> Token {
        self.inner.token()
    }

    /// See [`File::pread`](crate::File::pread).
    pub fn pread(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        if let Some(len) = self.inner.read_now(offset, into) {
            return Ok(len);
        }
        transfer(self.inner.is_narrow(offset, into.len()), self.inner.pread(offset, into))
    }

    /// See [`File::pwrite`](crate::File::pwrite).
    pub fn pwrite(&self, offset: u64, data: &[u8]) -> Result<()> {
        if let Now::Done { ahead } = self.inner.write_now(offset, data) {
            if ahead {
                runtime()?.spawn(self.inner.prepare());
            }
            return Ok(());
        }
        transfer(self.inner.is_narrow(offset, data.len()), self.inner.pwrite(offset, data))
    }

    /// See [`File::append`](crate::File::append).
    pub fn append(&self, data: &[u8]) -> Result<u64> {
        transfer(true, self.inner.append(data))
    }

    /// See [`File::close`](crate::File::close).
    pub fn close(self) -> Result<()> {
        wait(self.inner.close())
    }
}

/// The calling thread itself waits for a transfer over one connection; the runtime waits for one over several.
fn transfer<T>(narrow: bool, future: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = runtime()?;
    if narrow { here(|| waiting_here(|| runtime.block_on(future))) } else { runtime.block_on(future) }
}

blocking! { File:
    truncate(size: u64) -> ();
    punch(offset: u64, len: u64) -> ();
    sync() -> ();
    stat() -> Attr;
}

/// A directory being listed.
///
/// ```
/// use forebay_client::blocking::Client;
/// use forebay_client::{Address, ClientConfig, Listing, OpenOptions};
///
/// # let dir = tempfile::tempdir()?;
/// # let config = forebay_server::Config {
/// #     tcp: false,
/// #     capacity: forebay_model::Bytes::mib(64),
/// #     medium: forebay_server::Medium::Disk,
/// #     ..forebay_server::Config::for_store(dir.path().join("store"))
/// # };
/// # let socket = config.socket_path();
/// # let server = forebay_server::Server::start(config)?;
/// let client = Client::connect(ClientConfig::new(Address::Unix(socket)))?;
/// client.open("/b", OpenOptions::CREATE)?.close()?;
/// client.mkdir("/a", 0o755)?;
/// let mut names = Vec::new();
/// for entry in client.read_dir("/", Listing::Attributes)? {
///     let entry = entry?;
///     assert!(entry.attr.is_some());
///     names.push(entry.name.to_string());
/// }
/// names.sort();
/// assert_eq!(names, ["a", "b"]);
/// # drop(client);
/// # server.shutdown()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ReadDir {
    inner: crate::ReadDir,
}

impl Iterator for ReadDir {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Result<Entry>> {
        match runtime() {
            Ok(runtime) => runtime.block_on(self.inner.next()).transpose(),
            Err(error) => Some(Err(error)),
        }
    }
}
