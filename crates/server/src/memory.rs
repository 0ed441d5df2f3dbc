//! Clients that write and read through shared memory: assigns rings, grants slabs, leases ranges, and consumes the
//! rings.
//!
//! **Invariant**: the server reveals the paths of the store's files only to clients that may open them anyway; a slab
//! is granted in its job's turn at the price of its bytes; writes and reads without a request need no further turn.

use crate::caller::Caller;
use crate::cluster::Blocked;
use crate::error_limit::ErrorLimit;
use crate::jobs::Membership;
use crate::mapping;
use crate::opens::Hold;
use crate::service::Service;
use forebay_model::{Access, Error, ErrorKind, FileKind, JobId, Result, Span};
use forebay_store::{self as store, Body, RingId, SlabOffer, Traffic};
use forebay_wire::{Answer, MapAt, MapGrant, MapPiece, Reply, Request, RingGrant, SlabGrant, Token};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
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

pub(crate) async fn serve(
    service: &Arc<Service>,
    job: &Membership,
    caller: &Caller,
    request: &Request,
) -> Answer {
    if let Request::MapFile { token, offset, len, write } = *request {
        let map_request =
            mapping::MapRequest { token, span: Span::at(offset, len).ok_or(ErrorKind::TooLarge)?, write };
        return mapping::serve(service, job, caller, map_request).await;
    }
    if let Request::KeepPages { ref token } = *request {
        return mapping::keep_pages(service, job, caller, token).await;
    }
    check_shared(service, caller)?;
    if let Request::Slab { ring, keep, least } = *request {
        let granted = grant(service, job, caller, SlabRequest { ring: RingId(ring), keep, least }).await;
        return granted.map(|slab| Reply::Slab(Box::new(slab)));
    }
    let entry = job.enter(service.turns.price(0), service.store.data().now())?;
    let _turn = job.wait(entry).await?;
    if let Request::Ring { token, own: Some(own), write } = *request
        && service.store.data().is_quiet(RingId(own))
    {
        let wanted = Wanted { own: Some(RingId(own)), write, job: job.id() };
        return tokio::task::block_in_place(|| ring(service, caller, &token, wanted));
    }
    let (service, caller, job, request) = (service.clone(), caller.clone(), job.id(), request.clone());
    // These requests may have to flush.
    let done = tokio::task::spawn_blocking(move || match request {
        Request::Ring { token, own, write } => {
            ring(&service, &caller, &token, Wanted { own: own.map(RingId), write, job })
        }
        Request::Map { token, ring, from } => map(&service, &caller, &token, RingId(ring), from),
        _ => Err(Error::new(ErrorKind::Protocol, "the request does not concern shared memory")),
    });
    done.await.unwrap_or_else(|_| Err(ErrorKind::Io.into()))
}

/// Fails unless the caller may use rings and slabs.
fn check_shared(service: &Service, caller: &Caller) -> Result<()> {
    // Writes through shared memory would bypass a modelled device.
    let modelled = service.turns.rules().device.is_some();
    // They could not be written directly, and the server could not detect the end of a burst.
    let routed = service.writers.route.are_open() || service.writers.route.follows_bursts();
    if !(service.config.shared_memory && caller.local && caller.privileged) || modelled || routed {
        let text = "shared memory is off, or the program is not one of the service's own user on its machine";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    service.homes.demand_joined()
}

/// What a client wants for the file that it opens in the same message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WithOpen {
    /// An idle ring of the client, to be bound to the file.
    pub(crate) ring: RingId,
    /// Whether the ring is for writes. If not, the client also wants the file's extents.
    pub(crate) write: bool,
}

/// Binds a ring to a file that was just opened, and leases the extents of a small file that is read: the answers to
/// `Ring` and `Map`. Whatever takes long or fails is left out; the client then requests it when it needs it.
pub(crate) fn serve_with_open(
    service: &Service,
    job: JobId,
    caller: &Caller,
    opened: &Reply,
    WithOpen { ring: own, write }: WithOpen,
) -> Vec<Reply> {
    let Reply::Opened { token, attr, .. } = opened else { return Vec::new() };
    let is_wanted = attr.kind == FileKind::File && (write || attr.size <= SMALL);
    if !is_wanted || check_shared(service, caller).is_err() || !service.store.data().is_quiet(own) {
        return Vec::new();
    }
    let wanted = Wanted { own: Some(own), write, job };
    let Ok(bound) = tokio::task::block_in_place(|| ring(service, caller, token, wanted)) else {
        return Vec::new();
    };
    let leased = (!write).then(|| map(service, caller, token, own, 0));
    std::iter::once(bound).chain(leased.and_then(Result::ok)).collect()
}

/// A request for a slab of at least `least` bytes.
#[derive(Clone, Copy)]
struct SlabRequest {
    ring: RingId,
    keep: u32,
    least: u32,
}

/// Grants a slab in a turn of its job, at the price of its bytes.
async fn grant(
    service: &Arc<Service>,
    job: &Membership,
    caller: &Caller,
    slab_request: SlabRequest,
) -> Result<SlabGrant> {
    let data = service.store.data();
    let len = data.next_slab(slab_request.ring, slab_request.least);
    let enter = |bytes: u32| job.enter(service.turns.price(bytes), data.now());
    let mut turn = Some(job.wait(enter(len)?).await?);
    // Give the turn back while waiting for a full buffer.
    let rest = || {
        if let Some(mut turn) = turn.take() {
            turn.spare(u64::from(len));
        }
    };
    let granted = space(service, job, caller, slab_request, len, rest).await;
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
    service.direct.came(data.now(), u64::from(bytes));
    let offer = granted?;
    Ok(SlabGrant {
        slab: offer.slab,
        path: self::bytes(offer.path),
        size: offer.size,
        start: offer.start,
        len: offer.len,
        records: offer.records,
        epoch: offer.epoch,
    })
}

/// Space for a slab. A client that needs it now waits in its job's space queue; a request ahead of time does not wait.
async fn space(
    service: &Service,
    job: &Membership,
    caller: &Caller,
    slab_request: SlabRequest,
    len: u32,
    rest: impl FnMut(),
) -> Result<SlabOffer> {
    let (data, uid) = (service.store.data(), caller.who.uid);
    let SlabRequest { ring, keep, least } = slab_request;
    let uncontested = service.is_uncontested();
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
            let found = |offer: SlabOffer| {
                let len = offer.len;
                (offer, len)
            };
            service.wait_for_space(job.id(), rest, || look().map(found)).await
        }
    }
}

/// The purpose of a ring.
#[derive(Clone, Copy)]
struct Wanted {
    own: Option<RingId>,
    write: bool,
    job: JobId,
}

pub(crate) fn claim(service: &Service, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
    service.claim(caller, token, need).map_err(|stop| match stop {
        Blocked::Failed(error) => error,
        _ => Error::new(ErrorKind::Invalid, "another server has the file's inode"),
    })
}

fn ring(service: &Service, caller: &Caller, token: &Token, wanted: Wanted) -> Answer {
    // A client that has abandoned this connection and continues on another one must not bind a ring through this one.
    let _pass = caller.connection_epoch.pass()?;
    let Wanted { own, write, job } = wanted;
    let need = if write { Access::WRITE } else { Access::READ };
    let hold = claim(service, caller, token, need)?;
    let here = matches!(service.store.names().inode(token.file)?.body,
        Body::File { ref layout, .. } if layout.only() == Some(service.config.server));
    if !here {
        return Err(Error::new(ErrorKind::Invalid, "other servers hold some of the file's bytes"));
    }
    if write {
        service.shed_set_id(caller, &hold)?;
    }
    let offer = service.store.data().bind_ring(token.uid, job, token.file, own, write)?;
    Ok(Reply::Ring(Box::new(RingGrant {
        ring: offer.ring.0,
        path: bytes(offer.path),
        doorbell: bytes(offer.doorbell),
        nonce: offer.nonce,
        binding: offer.binding,
        clock: offer.clock,
    })))
}

fn map(service: &Service, caller: &Caller, token: &Token, ring: RingId, from: u64) -> Answer {
    let _hold = claim(service, caller, token, Access::READ)?;
    let offer = service.store.data().lease(token.uid, token.file, ring, from)?;
    let dir = offer.regions.first().and_then(|path| path.parent()).map(Path::to_owned);
    let names = offer.regions.iter().filter_map(|path| path.file_name());
    let names = names.map(|name| name.as_bytes().to_vec()).collect();
    let pieces = offer.pieces.iter().map(|piece| MapPiece {
        len: piece.len,
        at: match piece.at {
            store::MapAt::Zeros => MapAt::Zeros,
            store::MapAt::Region(file, position) => MapAt::Region { file, position },
            store::MapAt::Ask => MapAt::Ask,
        },
    });
    Ok(Reply::Map(Box::new(MapGrant {
        lease: offer.lease,
        size: offer.size,
        start: offer.start,
        pieces: pieces.collect(),
        dir: dir.map(bytes).unwrap_or_default(),
        names,
        region: offer.region_size,
    })))
}

fn bytes(path: PathBuf) -> Vec<u8> {
    path.into_os_string().into_vec()
}

/// Consumes rings until the server stops: frequently while they are busy, otherwise when a client rings the doorbell.
pub(crate) fn poll_rings(service: &Service) {
    let (stopping, data) = (service.life.stopping(), service.store.data());
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
            report(data.tend_rings(IDLE));
            if let Err(error) = service.store.rest()
                && let Some(held_back) = tidy_errors.allows(Instant::now())
            {
                tracing::error!(%error, held_back, "the store could not do its deferred work");
            }
        }
    }
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
