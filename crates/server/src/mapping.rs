//! Shared file mappings: grants clients the memory object of a mapped file and passes its descriptor.
//!
//! The store has one memory object for each mapped file (decision 92). The client fetches its descriptor over a
//! separate Unix socket, because the kernel passes descriptors only there; a ticket from the client's connection
//! selects it. A file that is not completely on this server, or a client on another machine, gets no object: then a
//! mapping that may be written is refused, and one for reading is a copy of the file as it is at that moment, unless a
//! program has it open for writing. A writable mapping is refused too while a mount keeps pages of the file
//! (`kept_pages.rs`).
//!
//! **Invariant**: a writable descriptor goes only to clients that have the file open for writing; no client stores into
//! a mapping that is not the object; a copy is mapped only of a file that no client can write. No user except root and the owner has more pending descriptors, or more
//! connections that fetch one, than `limits.user_mappings`.

use crate::backing::{BackingLayer, Part, bytes_of};
use crate::caller::Caller;
use crate::file_homes::FileHomes;
use crate::handle::FileAccess;
use crate::jobs::Membership;
use crate::kept_pages::KeptPages;
use crate::key;
use crate::lifecycle::{Lifecycle, stopped};
use crate::log_limit::{LogLimit, about_peer};
use crate::per_user::{PerUser, UserCounts, UserLimit};
use crate::privileges::Privileges;
use crate::turns::Turns;
use forebay_model::{Access, Error, ErrorKind, FileId, Result, ServerId, Span, Uid};
use forebay_store::{Body, Mapper, Piece, Store};
use forebay_wire::{Answer, FileMap, Reply, Token};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Maximum number of pending descriptors, and how long they are kept.
const MOST_TICKETS: usize = 256;
const TICKET_LIFE: Duration = Duration::from_secs(10);
/// Maximum number of connections that fetch a descriptor.
const FETCHING: usize = 1024;
/// Interval between two checks for unused mappings.
const TEND: Duration = Duration::from_millis(100);
/// Minimum interval between two writebacks, and the maximum share of time they take (1/20).
const BACK: Duration = Duration::from_secs(1);
const BACK_SHARE: u32 = 20;
/// How long files that programs have just closed may take to be closed here, and the pause between two looks.
const CLOSING: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// How often a range that changes while it is read is filled again.
const TRIES: u32 = 1000;
/// Prefix that identifies these sockets in the list of the machine.
const PREFIX: &[u8] = b"forebay-map-";

const NO_OBJECT: &str = "it cannot be mapped for writing here: processes share the memory of a mapped file only on the \
                         machine of the server that has all its bytes; use a mount, or make the file on one server of \
                         this machine";
const NO_COPY: &str = "it cannot be mapped here while a program has it open for writing: away from the machine of the \
                       server that has all its bytes, a mapping is a copy; close it there first, or use a mount";

/// A request to map a file.
#[derive(Clone, Copy)]
pub(crate) struct MapRequest {
    pub(crate) token: Token,
    pub(crate) span: Span,
    pub(crate) write: bool,
}

/// Grants mappings, and keeps the descriptors that wait for their clients.
pub(crate) struct Mappings {
    parts: MapParts,
    /// The abstract name of the socket.
    socket: Vec<u8>,
    tickets: Mutex<Tickets>,
    /// Connections that fetch descriptors.
    fetching: Arc<PerUser>,
    kept_pages: KeptPages,
}

/// What mappings use.
pub(crate) struct MapParts {
    pub(crate) own: ServerId,
    pub(crate) access: Arc<FileAccess>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) privileges: Privileges,
    pub(crate) life: Arc<Lifecycle>,
    pub(crate) log: Arc<LogLimit>,
    /// How long a connection may take to send its ticket.
    pub(crate) patience: Duration,
}

/// Pending descriptors, with counts per user.
struct Tickets {
    waiting: HashMap<[u8; 16], Ticket>,
    users: UserCounts,
}

impl Tickets {
    /// Removes tickets that were not fetched in time.
    fn expire(&mut self) {
        let users = &mut self.users;
        self.waiting.retain(|_, ticket| {
            let lives = ticket.since.elapsed() < TICKET_LIFE;
            if !lives {
                users.remove(ticket.uid);
            }
            lives
        });
    }

    fn add(&mut self, number: [u8; 16], ticket: Ticket) -> Result<()> {
        self.expire();
        if self.waiting.len() >= MOST_TICKETS {
            return Err(Error::new(ErrorKind::Busy, "too many pending mappings: try again"));
        }
        self.users.add(ticket.uid)?;
        self.waiting.insert(number, ticket);
        Ok(())
    }

    /// Takes a ticket if this user may have it; otherwise the ticket stays.
    fn take(&mut self, number: [u8; 16], may: impl FnOnce(Uid) -> bool) -> Option<Ticket> {
        self.waiting.get(&number).filter(|ticket| may(ticket.uid))?;
        let ticket = self.waiting.remove(&number)?;
        self.users.remove(ticket.uid);
        Some(ticket)
    }
}

/// A descriptor that waits for its client.
struct Ticket {
    file: File,
    uid: Uid,
    since: Instant,
}

impl Mappings {
    /// No mappings. At most `most` pending mappings per user, except for root and `owner`.
    pub(crate) fn open(parts: MapParts, most: usize, owner: Uid) -> Result<Mappings> {
        let random = key::random()?;
        let mut socket = PREFIX.to_vec();
        socket.extend(random[..16].iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
        let limit = UserLimit::new("pending mappings", "user_mappings", most, owner);
        let tickets = Tickets { waiting: HashMap::new(), users: UserCounts::new(limit) };
        let (tickets, fetching) = (Mutex::new(tickets), PerUser::new(limit));
        Ok(Mappings { parts, socket, tickets, fetching, kept_pages: KeptPages::default() })
    }

    /// Keeps a descriptor for its client.
    fn keep(&self, file: File, uid: Uid) -> Result<FileMap> {
        let random = key::random()?;
        let (ticket, _) = random.split_first_chunk::<16>().expect("32 bytes");
        self.tickets.lock().add(*ticket, Ticket { file, uid, since: Instant::now() })?;
        Ok(FileMap::Shared { socket: self.socket.clone(), ticket: *ticket })
    }

    pub(crate) async fn serve(&self, job: &Membership, caller: &Caller, request: MapRequest) -> Answer {
        self.parts.homes.demand_joined()?;
        let entry = job.enter(self.parts.turns.price(0), self.parts.store.data().now())?;
        drop(job.wait(entry).await?);
        let need = if request.write { Access::BOTH } else { Access::READ };
        let hold = self.parts.access.claim_here(caller, &request.token, need)?;
        if request.write {
            self.parts.access.shed_set_id(caller, &hold)?;
        }
        let file = request.token.file;
        let here = match self.parts.store.names().inode(file)?.body {
            Body::File { ref layout, .. } => layout.only() == Some(self.parts.own),
            _ => return Err(Error::new(ErrorKind::Unsupported, "only files can be mapped")),
        };
        let data = self.parts.store.data();
        if !here || !caller.local {
            return match request.write {
                true => Err(Error::new(ErrorKind::Unsupported, NO_OBJECT)),
                false => self.copy(file).await,
            };
        }
        let _guard = request.write.then(|| self.kept_pages.begin_mapping(file)).transpose()?;
        // Otherwise the object would end between two pieces that are filled.
        let _preparing = data.begin_map(file);
        let mapper = Mapper { uid: request.token.uid, job: job.id(), write: request.write };
        let mut tries = 0;
        while tries < TRIES {
            let missing = tokio::task::block_in_place(|| data.prepare_map(file, request.span, mapper))?;
            let Some(missing) = missing else {
                match data.share_map(file, request.span, request.write)? {
                    Some(shared) => return self.keep(shared, caller.who.uid).map(Reply::FileMap),
                    None => {
                        tries += 1;
                        continue;
                    }
                }
            };
            let bytes = self.read(caller.who.uid, file, missing.span).await?;
            if !tokio::task::block_in_place(|| data.fill_map(file, missing, &bytes))? {
                tries += 1;
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("file {file} changes faster than it can be mapped: try again"),
        ))
    }

    /// Lets a client map a copy of a file, if no program has it open for writing.
    async fn copy(&self, file: FileId) -> Answer {
        let begin = Instant::now();
        while self.parts.access.opens.has_writers(file) {
            if begin.elapsed() > CLOSING {
                return Err(Error::new(ErrorKind::Unsupported, NO_COPY));
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(Reply::FileMap(FileMap::Copy))
    }

    /// A client is about to keep pages of an open file that programs may store into.
    pub(crate) async fn keep_pages(&self, job: &Membership, caller: &Caller, token: &Token) -> Answer {
        self.parts.homes.demand_joined()?;
        let entry = job.enter(self.parts.turns.price(0), self.parts.store.data().now())?;
        drop(job.wait(entry).await?);
        let _pass = caller.connection_epoch.pass()?;
        let hold = self.parts.access.claim_here(caller, token, Access::WRITE)?;
        // What the session holds is dropped when the client closes the file.
        let hold = caller.session.hold(token).unwrap_or(hold);
        let data = self.parts.store.data();
        // A process may have ended just now.
        let is_mapped = || Ok(data.is_stored_into(token.file) && !data.end_map(token.file)?);
        tokio::task::block_in_place(|| self.kept_pages.keep(&hold, is_mapped))?;
        Ok(Reply::Done)
    }

    /// The contents of a range of a file, read for a user.
    async fn read(&self, uid: Uid, file: FileId, span: Span) -> Result<Vec<u8>> {
        let len = u32::try_from(span.len()).map_err(|_| ErrorKind::TooLarge)?;
        let pieces = self.parts.store.data().read(file, span.start, len)?;
        let parts = match pieces.iter().any(|piece| matches!(piece, Piece::Backing(_))) {
            false => pieces.into_iter().map(Part::Here).collect(),
            true => self.parts.layer.read_both(uid, file, span.start, len).await?,
        };
        Ok(bytes_of(&parts).0.into_iter().flatten().copied().collect())
    }

    /// Starts the tasks that pass descriptors and maintain mappings until the server stops.
    pub(crate) fn start(self: &Arc<Mappings>) -> Result<()> {
        let listen = || {
            let address = SocketAddr::from_abstract_name(&self.socket)?;
            let listener = std::os::unix::net::UnixListener::bind_addr(&address)?;
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener)
        };
        let listener = listen().map_err(|error: std::io::Error| {
            Error::new(ErrorKind::Unreachable, format!("cannot listen on the socket for mappings: {error}"))
        })?;
        tokio::spawn(self.clone().hand_over(listener));
        let mappings = self.clone();
        tokio::task::spawn_blocking(move || mappings.tend());
        Ok(())
    }

    async fn hand_over(self: Arc<Mappings>, listener: UnixListener) {
        let places = Arc::new(Semaphore::new(FETCHING));
        let mut stopping = self.parts.life.stopping();
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let accepted = tokio::select! {
                biased;
                () = stopped(&mut stopping) => return,
                accepted = listener.accept() => accepted,
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(TEND).await;
                continue;
            };
            let user = stream.peer_cred().map(|peer| Uid(peer.uid()));
            // In order of arrival: a user with too many connections loses the newest.
            let share = user.and_then(|user| {
                let share = self.fetching.take(user).map_err(std::io::Error::other)?;
                Ok((user, share))
            });
            let (user, share) = match share {
                Ok(share) => share,
                Err(error) => {
                    about_peer!(self.parts.log, %error, "refused a client that fetches a mapping");
                    continue;
                }
            };
            let mappings = self.clone();
            tokio::spawn(async move {
                match timeout(mappings.parts.patience, mappings.fetch(user, stream)).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => {
                        about_peer!(mappings.parts.log, %error, "could not pass the descriptor of a mapped file");
                    }
                    Err(_) => about_peer!(mappings.parts.log, "a client sent no ticket for its mapping"),
                }
                drop((place, share));
            });
        }
    }

    async fn fetch(&self, user: Uid, mut stream: UnixStream) -> std::io::Result<()> {
        let mut ticket = [0; 16];
        stream.read_exact(&mut ticket).await?;
        let may = |uid| uid == user || self.parts.privileges.trusts_user(user);
        let Some(kept) = self.tickets.lock().take(ticket, may) else {
            return Err(std::io::Error::other(format!("user {user} has no such ticket")));
        };
        stream.writable().await?;
        let (mut space, fds) =
            ([MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))], [kept.file.as_fd()]);
        let mut message = SendAncillaryBuffer::new(&mut space);
        if !message.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(std::io::Error::other("no space for a descriptor in the message"));
        }
        sendmsg(&stream, &[IoSlice::new(&[1])], &mut message, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Writes data of mappings back, and closes mappings without users.
    fn tend(&self) {
        let (stopping, data) = (self.parts.life.stopping(), self.parts.store.data());
        let mut next: HashMap<FileId, Instant> = HashMap::new();
        while !*stopping.borrow() {
            std::thread::sleep(TEND);
            let files = data.mapped();
            next.retain(|file, _| files.contains(file));
            for file in files {
                let begin = Instant::now();
                let tended = data.end_map(file).and_then(|ended| {
                    let due = next.get(&file).is_none_or(|next| begin >= *next);
                    if !ended && due {
                        data.write_back(file)?;
                    }
                    Ok(due)
                });
                match tended {
                    Ok(true) => {
                        next.insert(file, Instant::now() + BACK.max(begin.elapsed() * BACK_SHARE));
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%file, %error, "could not write a mapping back yet; will retry");
                        next.insert(file, Instant::now() + BACK);
                    }
                }
            }
        }
    }
}
