//! Files and directories by path.

use crate::by_id::{ById, MAX_LINKS, Step, follow_link};
use crate::dir::{Listing, ReadDir};
use crate::file::{File, OpenOptions};
use crate::opens::unexpected;
use crate::path::{Last, bytes, split};
use crate::service::Service;
use crate::session::Session;
use crate::{Address, ClientConfig};
use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, FileKind, Gid, Identity, Layout, Name, Result, ServerId,
    SetTime, Striping, Uid, Usage,
};
use forebay_wire::{
    DrainCall, DrainReport, IfExists, KeyCall, KeyReply, Losses, RenameMode, RepairStep, Reply, Request,
    Sample, Sharing, Status, Welcome, XattrMode,
};
use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

/// A client of a service. Cheap to clone; all clones share one session and its connections.
///
/// Paths start at the service's root, with or without a leading slash. The client follows symbolic links itself, at
/// most [`MAX_LINKS`](crate::MAX_LINKS) of them; absolute links start at the service's root too.
#[derive(Clone)]
pub struct Client {
    by_id: ById,
}

/// A directory entry that a path names.
struct Place {
    dir: FileId,
    name: Name,
    /// Whether a slash follows the name, so that only a directory matches.
    slash: bool,
}

fn within<T>(what: &str, path: &Path, result: Result<T>) -> Result<T> {
    result.map_err(|error| error.within(format_args!("cannot {what} {}", path.display())))
}

fn between<T>(what: &str, from: &Path, to: &Path, result: Result<T>) -> Result<T> {
    let context: &dyn Display = &format_args!("cannot {what} {} to {}", from.display(), to.display());
    result.map_err(|error| error.within(context))
}

impl Client {
    /// Connects to a service. Must be called within a tokio runtime, on which the session then runs.
    ///
    /// ```
    /// use forebay_client::{Address, Client, ClientConfig, OpenOptions};
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
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let client = Client::connect(ClientConfig::new(Address::Unix(socket))).await?;
    /// let log = client.open("/log", OpenOptions::APPEND).await?;
    /// assert_eq!(log.append(b"first\n").await?, 0);
    /// assert_eq!(log.append(b"second\n").await?, 6);
    /// log.close().await?;
    /// assert_eq!(client.stat("/log").await?.size, 13);
    /// # client.close();
    /// # Ok::<(), forebay_model::Error>(())
    /// # })?;
    /// # server.shutdown()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn connect(config: ClientConfig) -> Result<Client> {
        let service = Service::start(config).await?;
        Ok(Client { by_id: ById { service, who: None } })
    }

    /// Returns a client that sends requests on behalf of `identity`. Only root and the service's owner may do that.
    #[must_use]
    pub fn as_identity(&self, identity: Identity) -> Client {
        Client { by_id: ById { service: self.by_id.service.clone(), who: Some(Arc::new(identity)) } }
    }

    /// Ends the sessions of this client and all its clones: closes connections, rings and queues. Later requests fail.
    pub fn close(&self) {
        self.by_id.service.close();
    }

    /// The same operations by file id.
    #[must_use]
    pub fn by_id(&self) -> &ById {
        &self.by_id
    }

    /// The last welcome of the server to which the client was configured to connect.
    pub async fn welcome(&self) -> Result<Welcome> {
        Ok(self.by_id.service.first().control().await?.welcome().clone())
    }

    /// The address at which that server last accepted a connection.
    #[must_use]
    pub fn reached_at(&self) -> Option<Address> {
        self.by_id.service.first().reached_at()
    }

    async fn walk(&self, path: &Path, follow: bool) -> Result<Attr> {
        self.by_id.walk(FileId::ROOT, bytes(path)?, follow).await
    }

    /// Resolves a path to its parent directory and last name; fails with `if_directory` if the path ends in no name.
    async fn place(&self, from: FileId, path: &[u8], if_directory: ErrorKind) -> Result<Place> {
        let (parent, last) = split(path)?;
        let Last::Name { name, slash } = last else {
            return Err(if_directory.into());
        };
        let dir = match parent.iter().all(|&byte| byte == b'/') {
            true => from,
            false => self.by_id.directory(from, parent, &name).await?,
        };
        Ok(Place { dir, name, slash })
    }

    /// Like [`Client::place`], but from the name cache without a request. The directory may have been removed since.
    fn seen_place(&self, path: &[u8]) -> Option<(FileId, Name)> {
        let (parent, last) = split(path).ok()?;
        match last {
            Last::Name { name, slash: false } => {
                self.by_id.seen_dir(FileId::ROOT, parent).map(|dir| (dir, name))
            }
            _ => None,
        }
    }

    async fn place_of(&self, path: &Path, if_directory: ErrorKind) -> Result<Place> {
        self.place(FileId::ROOT, bytes(path)?, if_directory).await
    }

    /// Opens a file.
    pub async fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let path = path.as_ref();
        let file = match options.fault() {
            Some(fault) => Err(Error::new(ErrorKind::Invalid, fault)),
            None if options.create || options.create_new => Box::pin(self.open_or_make(path, options)).await,
            None => Box::pin(self.open_existing(path, options)).await,
        };
        let append_only = options.append && !options.write;
        Ok(within("open", path, file)?.known_as(path.display().to_string(), append_only))
    }

    async fn open_existing(&self, path: &Path, options: OpenOptions) -> Result<File> {
        let attr = self.walk(path, !options.nofollow).await?;
        self.by_id.open(attr.id, options.access(), options.truncate).await
    }

    async fn open_or_make(&self, path: &Path, options: OpenOptions) -> Result<File> {
        let if_exists = match options {
            OpenOptions { create_new: true, .. } => IfExists::Refuse,
            OpenOptions { truncate: true, .. } => IfExists::Truncate,
            _ => IfExists::Open,
        };
        let (mut from, mut path) = (FileId::ROOT, bytes(path)?.to_vec());
        if let Some((dir, name)) = self.seen_place(&path) {
            match self.by_id.create(dir, name, options.mode, options.access(), if_exists).await {
                Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::TooManyLinks) => {}
                made => return Ok(made?.0),
            }
        }
        for _ in 0..=MAX_LINKS {
            let Place { dir, name, slash } = self.place(from, &path, ErrorKind::IsDirectory).await?;
            if slash {
                return Err(ErrorKind::IsDirectory.into());
            }
            let made = self.by_id.create(dir, name.clone(), options.mode, options.access(), if_exists).await;
            match made {
                Err(error) if error.kind() == ErrorKind::TooManyLinks && !options.nofollow => {}
                made => return Ok(made?.0),
            }
            // A symbolic link has that name. If it has been removed since, the loop tries the name again.
            if let Step::Link { dir, target, rest } = self.by_id.step(dir, name.as_bytes(), true).await? {
                (from, path) = follow_link(dir, target, &rest);
            }
        }
        Err(ErrorKind::TooManyLinks.into())
    }

    /// Attributes of the file that a path resolves to.
    pub async fn stat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        within("stat", path, self.walk(path, true).await)
    }

    /// Like [`Client::stat`], but does not follow a symbolic link in the last component.
    pub async fn lstat(&self, path: impl AsRef<Path>) -> Result<Attr> {
        let path = path.as_ref();
        within("stat", path, self.walk(path, false).await)
    }

    /// Lists a directory.
    pub async fn read_dir(&self, path: impl AsRef<Path>, listing: Listing) -> Result<ReadDir> {
        let path = path.as_ref();
        let dir = match self.walk(path, true).await {
            Ok(attr) if attr.kind != FileKind::Directory => Err(ErrorKind::NotDirectory.into()),
            found => found,
        };
        let dir = within("list", path, dir)?.id;
        Ok(ReadDir::new(self.by_id.clone(), dir, listing, path.display().to_string()))
    }

    /// Creates a directory.
    pub async fn mkdir(&self, path: impl AsRef<Path>, mode: u16) -> Result<Attr> {
        let path = path.as_ref();
        let made = async {
            let place = self.place_of(path, ErrorKind::Exists).await?;
            self.by_id.mkdir(place.dir, place.name, mode).await
        };
        within("make directory", path, made.await)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let removed = async {
            let place = self.place_of(path, ErrorKind::Invalid).await?;
            self.by_id.rmdir(place.dir, place.name).await
        };
        within("remove directory", path, removed.await)
    }

    /// Removes a name of a file.
    pub async fn unlink(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let removed = async {
            if let Some((dir, name)) = self.seen_place(bytes(path)?) {
                match self.by_id.unlink(dir, name).await {
                    Err(error) if error.kind() == ErrorKind::Stale => {}
                    removed => return removed,
                }
            }
            let place = self.place_of(path, ErrorKind::IsDirectory).await?;
            if place.slash {
                return Err(ErrorKind::NotDirectory.into());
            }
            self.by_id.unlink(place.dir, place.name).await
        };
        within("remove", path, removed.await)
    }

    /// Renames an entry.
    pub async fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, mode: RenameMode) -> Result<()> {
        let (from, to) = (from.as_ref(), to.as_ref());
        let moved = async {
            let old = self.place_of(from, ErrorKind::Invalid).await?;
            let new = self.place_of(to, ErrorKind::Invalid).await?;
            if old.slash || new.slash {
                let attr = self.by_id.walk(old.dir, old.name.as_bytes(), false).await?;
                if attr.kind != FileKind::Directory {
                    return Err(ErrorKind::NotDirectory.into());
                }
            }
            self.by_id.rename(old.dir, old.name, new.dir, new.name, mode).await
        };
        between("move", from, to, Box::pin(moved).await)
    }

    /// Creates a hard link. A symbolic link is not followed; the new name refers to the link itself.
    pub async fn link(&self, file: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<Attr> {
        let (file, to) = (file.as_ref(), to.as_ref());
        let linked = async {
            let attr = self.walk(file, false).await?;
            let place = self.place_of(to, ErrorKind::Exists).await?;
            self.by_id.link(attr.id, place.dir, place.name).await
        };
        between("link", file, to, Box::pin(linked).await)
    }

    /// Creates a symbolic link at `path` with the given target.
    pub async fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<Attr> {
        let (target, path) = (target.as_ref(), path.as_ref());
        let made = async {
            let place = self.place_of(path, ErrorKind::Exists).await?;
            self.by_id.symlink(place.dir, place.name, bytes(target)?).await
        };
        within("make symbolic link", path, made.await)
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, path: impl AsRef<Path>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let target = async { self.by_id.read_link(self.walk(path, false).await?.id).await };
        within("read link", path, target.await)
    }

    /// Changes attributes of a file; follows a symbolic link in the last component if `follow`.
    pub async fn set_attr(&self, path: impl AsRef<Path>, follow: bool, change: Change) -> Result<Attr> {
        let path = path.as_ref();
        let changed = async { self.by_id.set_attr(self.walk(path, follow).await?.id, change).await };
        within("change", path, changed.await)
    }

    /// Sets permission bits.
    pub async fn chmod(&self, path: impl AsRef<Path>, mode: u16) -> Result<Attr> {
        self.set_attr(path, true, Change { mode: Some(mode), ..Change::default() }).await
    }

    /// Sets owner, group or both.
    pub async fn chown(&self, path: impl AsRef<Path>, uid: Option<Uid>, gid: Option<Gid>) -> Result<Attr> {
        self.set_attr(path, true, Change { uid, gid, ..Change::default() }).await
    }

    /// Sets times.
    pub async fn utimens(
        &self,
        path: impl AsRef<Path>,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    ) -> Result<Attr> {
        self.set_attr(path, true, Change { atime, mtime, ..Change::default() }).await
    }

    /// Sets the length of a file.
    pub async fn truncate(&self, path: impl AsRef<Path>, size: u64) -> Result<()> {
        let path = path.as_ref();
        let cut = async { self.by_id.truncate(self.walk(path, true).await?.id, size).await };
        within("truncate", path, cut.await)
    }

    /// Value of an extended attribute.
    pub async fn get_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let value = async { self.by_id.get_xattr(self.walk(path, true).await?.id, Name::new(name)?).await };
        within(&format!("read attribute {name} of"), path, value.await)
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let path = path.as_ref();
        let set = async {
            let file = self.walk(path, true).await?.id;
            self.by_id.set_xattr(file, Name::new(name)?, value, mode).await
        };
        within(&format!("set attribute {name} of"), path, set.await)
    }

    /// Names of all extended attributes.
    pub async fn list_xattr(&self, path: impl AsRef<Path>) -> Result<Vec<Name>> {
        let path = path.as_ref();
        let names = async { self.by_id.list_xattr(self.walk(path, true).await?.id).await };
        within("list attributes of", path, names.await)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, path: impl AsRef<Path>, name: &str) -> Result<()> {
        let path = path.as_ref();
        let removed =
            async { self.by_id.remove_xattr(self.walk(path, true).await?.id, Name::new(name)?).await };
        within(&format!("remove attribute {name} of"), path, removed.await)
    }

    /// The striping of a directory's new files (`None` if the servers choose), or the layout of a file.
    pub async fn layout(&self, path: impl AsRef<Path>) -> Result<(Option<Striping>, Option<Layout>)> {
        let path = path.as_ref();
        let layout = async { self.by_id.layout(self.walk(path, true).await?.id).await };
        within("read the layout of", path, layout.await)
    }

    /// Sets the striping of files that are created in a directory from now on; `None` lets the servers choose.
    pub async fn set_layout(&self, path: impl AsRef<Path>, striping: Option<Striping>) -> Result<()> {
        let path = path.as_ref();
        let set = async { self.by_id.set_layout(self.walk(path, true).await?.id, striping).await };
        within("set the layout of", path, set.await)
    }

    async fn send_request(&self, request: Request) -> Result<Reply> {
        self.by_id.service.call(&self.by_id.who, &request).await
    }

    async fn notify(&self, request: Request) -> Result<()> {
        match self.send_request(request.clone()).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Usage of the buffer, summed over all servers. Servers that do not answer are left out unless none answers.
    pub async fn statfs(&self) -> Result<Usage> {
        let mut sum: Option<Usage> = None;
        let mut last_error = None;
        for (_, answer) in self.by_id.service.survey(&self.by_id.who, &Request::StatFs).await {
            match answer {
                Ok(Reply::Usage(usage)) => sum = Some(sum.unwrap_or_default() + usage),
                Ok(other) => return Err(unexpected(&Request::StatFs, &other)),
                Err(error) => last_error = Some(error),
            }
        }
        sum.ok_or_else(|| last_error.unwrap_or_else(|| ErrorKind::Unreachable.into()))
    }

    /// Status of the server to which the client was configured to connect.
    pub async fn status(&self) -> Result<Status> {
        match self.send_request(Request::Status).await? {
            Reply::Status(status) => Ok(*status),
            other => Err(unexpected(&Request::Status, &other)),
        }
    }

    /// Status of every server in order of server id, or the error of a server that does not answer.
    pub async fn statuses(&self) -> Vec<(ServerId, Result<Status>)> {
        let answers = self.by_id.service.survey(&self.by_id.who, &Request::Status).await;
        let read = |(session, answer): (Arc<Session>, Result<Reply>)| {
            let status = match answer {
                Ok(Reply::Status(status)) => Ok(*status),
                Ok(other) => Err(unexpected(&Request::Status, &other)),
                Err(error) => Err(error),
            };
            (session.server().unwrap_or_default(), status)
        };
        answers.into_iter().map(read).collect()
    }

    /// Makes a server continue without data that was lost with failed stores, and returns what it did. Only root and
    /// the service's owner may request it. Send [`RepairStep::Rescue`] to all servers before [`RepairStep::Forgive`] to
    /// any.
    pub async fn repair(&self, server: ServerId, step: RepairStep) -> Result<Vec<String>> {
        let request = Request::Repair { step };
        match self.by_id.service.session(server)?.call(&self.by_id.who, &request).await? {
            Reply::Repaired(done) => Ok(done),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Grants, lists or revokes user keys. Only root and the service's owner may do that.
    pub async fn keys(&self, call: KeyCall) -> Result<KeyReply> {
        let request = Request::Keys(call);
        match self.by_id.service.call(&self.by_id.who, &request).await? {
            Reply::Keys(reply) => Ok(*reply),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// What a server knows to be lost with failed stores. Only root and the service's owner may request it.
    pub async fn losses(&self, server: ServerId) -> Result<Losses> {
        let request = Request::Losses;
        match self.by_id.service.session(server)?.call(&self.by_id.who, &request).await? {
            Reply::Losses(losses) => Ok(losses),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// The sharing policy of the service.
    pub async fn policy(&self) -> Result<Sharing> {
        match self.send_request(Request::GetPolicy).await? {
            Reply::Sharing(sharing) => Ok(*sharing),
            other => Err(unexpected(&Request::GetPolicy, &other)),
        }
    }

    /// Sets the sharing policy on all servers. Only root and the service's owner may do that.
    pub async fn set_policy(&self, policy: &str) -> Result<Sharing> {
        let request = Request::SetPolicy { policy: policy.to_owned() };
        match self.send_request(request.clone()).await? {
            Reply::Sharing(sharing) => Ok(*sharing),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// Sets the route of writes on all servers: `buffer`, `traffic`, `overflow` or `direct`. Only root and the
    /// service's owner may do that.
    pub async fn set_route(&self, mode: &str) -> Result<()> {
        let request = Request::SetRoute { mode: mode.to_owned() };
        for (_, answer) in self.by_id.service.call_all(&self.by_id.who, &request).await {
            match answer? {
                Reply::Done => {}
                other => return Err(unexpected(&request, &other)),
            }
        }
        Ok(())
    }

    /// Bytes that each job wrote and read in each second, as far back as the server keeps them.
    pub async fn history(&self) -> Result<Vec<Sample>> {
        let mut all = Vec::new();
        let mut from = Some(0);
        while let Some(cursor) = from {
            let request = Request::History { cursor };
            match self.send_request(request.clone()).await? {
                Reply::History { samples, next } => {
                    all.extend(samples);
                    from = next;
                }
                other => return Err(unexpected(&request, &other)),
            }
        }
        Ok(all)
    }

    /// Waits until all acknowledged data is durable on all servers.
    pub async fn sync_all(&self) -> Result<()> {
        for (_, answer) in self.by_id.service.call_all(&self.by_id.who, &Request::SyncAll).await {
            match answer? {
                Reply::Done => {}
                other => return Err(unexpected(&Request::SyncAll, &other)),
            }
        }
        Ok(())
    }

    /// Allows a server that lost its store to rejoin. Applies to the server to which the client was configured to
    /// connect; every other server needs the same request. Only root and the service's owner may do that.
    pub async fn replace_server(&self, server: ServerId) -> Result<()> {
        self.notify(Request::ReplaceServer { server }).await
    }

    /// Starts to drain the tree at a path, or everything, and changes the drain order if one is named. Only root and
    /// the service's owner may drain everything or change the order.
    pub async fn drain(&self, path: Option<&Path>, order: Option<&str>) -> Result<DrainReport> {
        let file = match path {
            Some(path) => Some(within("drain", path, self.walk(path, true).await)?.id),
            None => None,
        };
        self.drained(DrainCall::Begin { file, order: order.map(str::to_owned), last: false }).await
    }

    /// Starts the final drain of a buffer that is discarded afterwards. Drains hard links and extended attributes too,
    /// where the back end supports them.
    pub async fn drain_last(&self) -> Result<DrainReport> {
        self.drained(DrainCall::Begin { file: None, order: None, last: true }).await
    }

    /// Prefetches bytes of a file from the back end into the read cache: as many as fit without evicting bytes that were
    /// fetched with the same `turn`, and at most [`MAX_FETCH`](forebay_wire::MAX_FETCH) per call.
    pub async fn fetch(&self, file: FileId, offset: u64, len: u64, turn: u64) -> Result<DrainReport> {
        self.call_drain(DrainCall::Fetch { file, offset, len, turn }).await
    }

    /// Progress of the drain on all servers, and of the drain request with the given ticket.
    pub async fn drain_state(&self, ticket: Option<u64>) -> Result<DrainReport> {
        self.drained(DrainCall::Look { ticket }).await
    }

    /// Progress of a drain request on the server that issued the ticket. Other servers are not contacted.
    pub async fn drain_ticket(&self, ticket: u64) -> Result<DrainReport> {
        self.call_drain(DrainCall::Look { ticket: Some(ticket) }).await
    }

    async fn call_drain(&self, call: DrainCall) -> Result<DrainReport> {
        let request = Request::Drain(call);
        match self.send_request(request.clone()).await? {
            Reply::Drain(report) => Ok(*report),
            other => Err(unexpected(&request, &other)),
        }
    }

    async fn drained(&self, call: DrainCall) -> Result<DrainReport> {
        let mut report = self.call_drain(call).await?;
        if self.by_id.service.cluster().is_none() {
            return Ok(report);
        }
        let look = Request::Drain(DrainCall::Look { ticket: None });
        let all = self.by_id.service.survey(&self.by_id.who, &look).await;
        // Servers that do not answer are left out.
        let states = all.into_iter().filter_map(|(_, answer)| match answer {
            Ok(Reply::Drain(report)) => Some(report.status),
            _ => None,
        });
        if let Some(together) = states.reduce(forebay_wire::DrainStatus::and) {
            report.status = together;
        }
        Ok(report)
    }

    /// Stops the server. Only root and the service's owner may do that.
    pub async fn shutdown(&self) -> Result<()> {
        self.notify(Request::Shutdown).await
    }

    /// Checks that the server answers.
    pub async fn ping(&self) -> Result<()> {
        self.notify(Request::Ping).await
    }
}

impl OpenOptions {
    fn access(self) -> Access {
        Access { read: self.read, write: self.write || self.append, execute: false }
    }
}
