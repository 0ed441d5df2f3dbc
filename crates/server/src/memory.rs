//! Clients that write and read through shared memory: assigns rings, grants slabs, leases ranges, and consumes the
//! rings.
//!
//! **Invariant**: the server reveals the paths of the store's files only to clients that may open them anyway; a slab
//! is granted in its job's turn at the price of its bytes; writes and reads without a request need no further turn.

use crate::caller::Caller;
use crate::direct::DirectIo;
use crate::drain::BufferSpace;
use crate::error_limit::ErrorLimit;
use crate::file_homes::FileHomes;
use crate::handle::FileAccess;
use crate::jobs::Membership;
use crate::lifecycle::Lifecycle;
use crate::mapping::{MapRequest, Mappings};
use crate::turns::Turns;
use crate::writers::Writers;
use forebay_model::{Access, Error, ErrorKind, FileKind, JobId, Result, ServerId, Span};
use forebay_shm::is_locked;
use forebay_store::{Body, Data, RingId, Store, Traffic};
use forebay_wire::{Answer, Reply, Request, SlabGrant, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Interval between two polls of busy rings.
const TICK: Duration = Duration::from_micros(300);
/// Interval between two polls of idle rings; a client with much to write rings the doorbell.
const NAP: Duration = Duration::from_millis(20);
/// Interval between two checks for dead clients.
const TEND: Duration = Duration::from_millis(200);
/// The extents of files up to this size are leased together with an open.
const SMALL: u64 = 256 << 10;
/// Grants unused for this long are taken back.
const IDLE: Duration = Duration::from_secs(5);
/// How long a client may take to confirm that it has a ring.
const UNCONFIRMED: Duration = Duration::from_secs(60);

/// Serves requests about shared memory.
pub(crate) struct MemoryRequests {
    pub(crate) own: ServerId,
    /// Whether clients on this machine may use shared memory.
    pub(crate) enabled: bool,
    pub(crate) access: Arc<FileAccess>,
    pub(crate) mappings: Arc<Mappings>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) writers: Arc<Writers>,
    pub(crate) space: Arc<BufferSpace>,
    pub(crate) direct: Arc<DirectIo>,
}

/// What a client wants for the file that it opens in the same message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WithOpen {
    /// An idle ring of the client, to be bound to the file.
    pub(crate) ring: RingId,
    /// Whether the ring is for writes. If not, the client also wants the file's extents.
    pub(crate) write: bool,
}

/// A request for a slab of at least `least` bytes.
#[derive(Clone, Copy)]
struct SlabRequest {
    ring: RingId,
    keep: u32,
    least: u32,
}

/// The purpose of a ring.
#[derive(Clone, Copy)]
struct Wanted {
    own: Option<RingId>,
    write: bool,
    job: JobId,
}

impl MemoryRequests {
    pub(crate) async fn serve(
        self: &Arc<MemoryRequests>,
        job: &Membership,
        caller: &Caller,
        request: &Request,
    ) -> Answer {
        if let Request::MapFile { token, offset, len, write } = *request {
            let map_request =
                MapRequest { token, span: Span::at(offset, len).ok_or(ErrorKind::TooLarge)?, write };
            return self.mappings.serve(job, caller, map_request).await;
        }
        if let Request::KeepPages { ref token } = *request {
            return self.mappings.keep_pages(job, caller, token).await;
        }
        self.check_shared(caller)?;
        if let Request::Slab { ring, keep, least } = *request {
            let granted = self.grant(job, caller, SlabRequest { ring: RingId(ring), keep, least }).await;
            return granted.map(|slab| Reply::Slab(Box::new(slab)));
        }
        let entry = job.enter(self.turns.price(0), self.store.data().now())?;
        let _turn = job.wait(entry).await?;
        if let Request::Ring { token, own: Some(own), write } = *request
            && self.store.data().is_quiet(RingId(own))
        {
            let wanted = Wanted { own: Some(RingId(own)), write, job: job.id() };
            return tokio::task::block_in_place(|| self.ring(caller, &token, wanted));
        }
        let (memory, caller, job, request) = (self.clone(), caller.clone(), job.id(), request.clone());
        // These requests may have to flush.
        let done = tokio::task::spawn_blocking(move || match request {
            Request::Ring { token, own, write } => {
                memory.ring(&caller, &token, Wanted { own: own.map(RingId), write, job })
            }
            Request::Map { token, ring, from } => memory.map(&caller, &token, RingId(ring), from),
            _ => Err(Error::new(ErrorKind::Protocol, "the request does not concern shared memory")),
        });
        done.await.unwrap_or_else(|_| Err(ErrorKind::Io.into()))
    }

    /// Fails unless the caller may use rings and slabs.
    fn check_shared(&self, caller: &Caller) -> Result<()> {
        // Writes through shared memory would bypass a modelled device.
        let modelled = self.turns.rules().device.is_some();
        // They could not be written directly, and the server could not detect the end of a burst.
        let routed = self.writers.route.are_open() || self.writers.route.follows_bursts();
        if !(self.enabled && caller.local && caller.privileged) || modelled || routed {
            let text =
                "shared memory is off, or the program is not one of the service's own user on its machine";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        self.homes.demand_joined()
    }

    /// Binds a ring to a file that was just opened, and leases the extents of a small file that is read: the answers to
    /// `Ring` and `Map`. Whatever takes long or fails is left out; the client then requests it when it needs it.
    pub(crate) fn serve_with_open(
        &self,
        job: JobId,
        caller: &Caller,
        opened: &Reply,
        WithOpen { ring: own, write }: WithOpen,
    ) -> Vec<Reply> {
        let Reply::Opened { token, attr, .. } = opened else { return Vec::new() };
        let is_wanted = attr.kind == FileKind::File && (write || attr.size <= SMALL);
        if !is_wanted || self.check_shared(caller).is_err() || !self.store.data().is_quiet(own) {
            return Vec::new();
        }
        let wanted = Wanted { own: Some(own), write, job };
        let Ok(bound) = tokio::task::block_in_place(|| self.ring(caller, token, wanted)) else {
            return Vec::new();
        };
        let leased = (!write).then(|| self.map(caller, token, own, 0));
        std::iter::once(bound).chain(leased.and_then(Result::ok)).collect()
    }

    /// Grants a slab in a turn of its job, at the price of its bytes.
    async fn grant(&self, job: &Membership, caller: &Caller, slab_request: SlabRequest) -> Result<SlabGrant> {
        let data = self.store.data();
        let len = data.next_slab(slab_request.ring, slab_request.least);
        let enter = |bytes: u32| job.enter(self.turns.price(bytes), data.now());
        let mut turn = Some(job.wait(enter(len)?).await?);
        // Give the turn back while waiting for a full buffer.
        let rest = || {
            if let Some(mut turn) = turn.take() {
                turn.spare(u64::from(len));
            }
        };
        let granted = self.space(job, caller, slab_request, len, rest).await;
        let bytes = granted.as_ref().map_or(0, |offer| offer.len);
        match turn {
            Some(mut turn) => turn.spare(u64::from(len - bytes.min(len))),
            // The request has its space: it is not refused if too many others wait for turns.
            None if bytes > 0 => {
                if let Ok(entry) = enter(bytes) {
                    drop(job.wait(entry).await);
                }
            }
            None => {}
        }
        job.wrote(u64::from(bytes));
        self.direct.came(data.now(), u64::from(bytes));
        granted
    }

    /// Space for a slab. A client that needs it now waits in its job's space queue; a request ahead of time does not wait.
    async fn space(
        &self,
        job: &Membership,
        caller: &Caller,
        slab_request: SlabRequest,
        len: u32,
        rest: impl FnMut(),
    ) -> Result<SlabGrant> {
        let (data, uid) = (self.store.data(), caller.who.uid);
        let SlabRequest { ring, keep, least } = slab_request;
        let uncontested = self.space.is_uncontested();
        if uncontested && let Some(offer) = data.try_grant_slab(uid, ring, keep, len)? {
            return Ok(offer);
        }
        // This may have to flush.
        let look = || data.grant_slab(uid, ring, keep, len);
        match (least, uncontested) {
            (0, true) => tokio::task::block_in_place(look),
            (0, false) => Err(Error::new(
                ErrorKind::NoSpace,
                "other writers wait for space: request a slab when it is needed",
            )),
            _ => {
                // The client waits for space, on a connection where its other requests do not depend on this one.
                let full =
                    || Error::new(ErrorKind::NoSpace, "too many requests wait for space on this connection");
                let _place = job.place().ok_or_else(full)?;
                let found = |offer: SlabGrant| {
                    let len = offer.len;
                    (offer, len)
                };
                self.space.wait_for_space(job.id(), rest, || look().map(found)).await
            }
        }
    }

    fn ring(&self, caller: &Caller, token: &Token, wanted: Wanted) -> Answer {
        // A client that has abandoned this connection and continues on another one must not bind a ring through this one.
        let _pass = caller.connection_epoch.pass()?;
        let Wanted { own, write, job } = wanted;
        let need = if write { Access::WRITE } else { Access::READ };
        let hold = self.access.claim_here(caller, token, need)?;
        let here = matches!(self.store.names().inode(token.file)?.body,
            Body::File { ref layout, .. } if layout.only() == Some(self.own));
        if !here {
            return Err(Error::new(ErrorKind::Invalid, "other servers hold some of the file's bytes"));
        }
        if write {
            self.access.shed_set_id(caller, &hold)?;
        }
        let bound = self.store.data().bind_ring(token.uid, job, token.file, own, write)?;
        Ok(Reply::Ring(Box::new(bound)))
    }

    fn map(&self, caller: &Caller, token: &Token, ring: RingId, from: u64) -> Answer {
        let _hold = self.access.claim_here(caller, token, Access::READ)?;
        let leased = self.store.data().lease(token.uid, token.file, ring, from)?;
        Ok(Reply::Map(Box::new(leased)))
    }
}

/// Consumes rings until the server stops: frequently while they are busy, otherwise when a client rings the doorbell.
pub(crate) fn poll_rings(store: &Store, life: &Lifecycle) {
    let (stopping, data) = (life.stopping(), store.data());
    let others = std::thread::available_parallelism().map_or(0, |processors| processors.get() - 1);
    let mut tended = Instant::now();
    let (mut consume_errors, mut size_errors, mut tidy_errors) =
        (ErrorLimit::default(), ErrorLimit::default(), ErrorLimit::default());
    while !*stopping.borrow() {
        match data.poll_rings(others) {
            // Poll again at once: a client that writes this fast would soon find its ring full.
            Ok(Traffic::Heavy) => {}
            Ok(Traffic::Light) => data.wait_for_doorbell(TICK),
            Ok(Traffic::None) => data.wait_for_doorbell(NAP),
            Err(error) => {
                if let Some(held_back) = consume_errors.allows(Instant::now()) {
                    tracing::error!(%error, held_back, "could not consume what clients wrote: it stays in their rings");
                }
                std::thread::sleep(TEND);
            }
        }
        if let Err(error) = data.persist_consumed_sizes()
            && let Some(held_back) = size_errors.allows(Instant::now())
        {
            tracing::error!(%error, held_back, "could not persist the size of a closed file; recovery does it at the next start");
        }
        if tended.elapsed() >= TEND {
            tended = Instant::now();
            let refused = data.take_refused();
            report(tend_rings(data, IDLE).map(|gone| (gone, refused)));
            if let Err(error) = store.rest()
                && let Some(held_back) = tidy_errors.allows(Instant::now())
            {
                tracing::error!(%error, held_back, "the store could not do its deferred work");
            }
        }
    }
}

/// Recalls slabs that clients have not used for the given time, and removes the rings of clients that are gone. Returns
/// the number of removed rings.
fn tend_rings(data: &Data, idle: Duration) -> Result<usize> {
    let mut gone = 0;
    for ring in data.rings() {
        let is_dead = match ring.confirmed {
            true => !is_locked(ring.file()),
            false => ring.idle > UNCONFIRMED,
        };
        if is_dead {
            data.end_ring(&ring)?;
            gone += 1;
        } else if ring.idle > idle {
            data.recall_ring(&ring)?;
        }
    }
    Ok(gone)
}

/// Removes the rings of clients that are gone: before the server serves, and when it stops, because the next server
/// process must find only those of live ones.
pub(crate) fn end_dead_rings(store: &Store) -> Result<()> {
    tend_rings(store.data(), Duration::MAX).map(drop)
}

fn report(tended: Result<(usize, u64)>) {
    match tended {
        Ok((gone, refused)) => {
            if gone > 0 {
                tracing::debug!(gone, "removed the rings of dead clients");
            }
            if refused > 0 {
                tracing::warn!(refused, "skipped malformed records in rings");
            }
        }
        Err(error) => tracing::error!(%error, "could not remove the rings of dead clients"),
    }
}
