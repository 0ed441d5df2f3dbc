//! Clients that write and read by shared memory: who gets a ring, what it is granted and leased, and who hears it.
//!
//! **Invariant**: only who may open the store's files anyway is told where they are; a slab is granted in its job's
//! turn and paid for by its bytes; what is written or read without asking needs no other turn.

use crate::jobs::Membership;
use crate::opens::Hold;
use crate::service::{Caller, Service};
use crate::several::Stop;
use forebay_model::{Access, Error, ErrorKind, JobId, Result};
use forebay_store::{self as store, Body, RingId, SlabOffer, Traffic};
use forebay_wire::{Answer, MapAt, MapGrant, MapPiece, Reply, Request, RingGrant, SlabGrant, Token};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long rings fill before they are heard again, while something happens in them.
const TICK: Duration = Duration::from_micros(300);
/// How long nobody looks, while nothing happens; who has much to say rings.
const NAP: Duration = Duration::from_millis(20);
/// How often it is looked after clients that are gone.
const TEND: Duration = Duration::from_millis(200);
/// What was granted and not used for so long is taken back.
const IDLE: Duration = Duration::from_secs(5);

/// Answers a request about shared memory.
pub(crate) async fn serve(
    service: &Arc<Service>,
    job: &Membership,
    caller: &Caller,
    request: &Request,
) -> Answer {
    // What is written without asking would pass a modelled device by.
    let modelled = service.turns.rules().device.is_some();
    // And it could not go past the buffer, nor would anybody see when a burst ends.
    let routed = service.ways.are_open() || service.ways.follows_bursts();
    if !(service.config.shared_memory && caller.local && caller.privileged) || modelled || routed {
        let text = "shared memory is for programs of the service's own user on its machine, if it is on";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    service.demand_joined()?;
    if let Request::Slab { ring, keep, least } = *request {
        let granted = grant(service, job, caller, Asked { ring: RingId(ring), keep, least }).await;
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
    // It may have to flush.
    let done = tokio::task::spawn_blocking(move || match request {
        Request::Ring { token, own, write } => {
            ring(&service, &caller, &token, Wanted { own: own.map(RingId), write, job })
        }
        Request::Map { token, ring, from } => map(&service, &caller, &token, RingId(ring), from),
        other => Err(Error::new(ErrorKind::Protocol, format!("{other:?} is not about shared memory"))),
    });
    done.await.unwrap_or_else(|_| Err(ErrorKind::Io.into()))
}

/// Who wants space, and how much at least.
#[derive(Clone, Copy)]
struct Asked {
    ring: RingId,
    keep: u32,
    least: u32,
}

/// Grants a slab in a turn of its job, at the price of its bytes.
async fn grant(service: &Arc<Service>, job: &Membership, caller: &Caller, asked: Asked) -> Result<SlabGrant> {
    let data = service.store.data();
    let len = data.next_slab(asked.ring, asked.least);
    let enter = |bytes: u32| job.enter(service.turns.price(bytes), data.now());
    let mut turn = Some(job.wait(enter(len)?).await?);
    // A full buffer is waited for without the turn.
    let rest = || {
        if let Some(mut turn) = turn.take() {
            turn.spare(u64::from(len));
        }
    };
    let granted = space(service, job, caller, asked, len, rest).await;
    let bytes = granted.as_ref().map_or(0, |offer| offer.len);
    match turn {
        Some(mut turn) => turn.spare(u64::from(len - bytes.min(len))),
        // It has what it waited for: should too many others wait for turns, it is not turned away.
        None if bytes > 0 => {
            if let Ok(entry) = enter(bytes) {
                drop(job.wait(entry).await);
            }
        }
        None => {}
    }
    job.wrote(u64::from(bytes));
    service.ways.came(data.now(), u64::from(bytes));
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

/// Space for a slab. Who needs it waits for it in the line of his job; who asks ahead does not.
async fn space(
    service: &Service,
    job: &Membership,
    caller: &Caller,
    asked: Asked,
    len: u32,
    rest: impl FnMut(),
) -> Result<SlabOffer> {
    let (data, uid) = (service.store.data(), caller.who.uid);
    let Asked { ring, keep, least } = asked;
    let uncontested = service.is_uncontested();
    if uncontested && let Some(offer) = data.try_grant_slab(uid, ring, keep, len)? {
        return Ok(offer);
    }
    // It may have to flush.
    let look = || data.grant_slab(uid, ring, keep, len);
    match (least, uncontested) {
        (0, true) => tokio::task::block_in_place(look),
        (0, false) => Err(Error::new(ErrorKind::NoSpace, "others wait for room: ask when it is needed")),
        _ => {
            // Whoever finds none waits for room with his bytes, on a connection where nobody waits for him.
            let full = || Error::new(ErrorKind::NoSpace, "too many wait for room on this connection");
            let _place = job.place().ok_or_else(full)?;
            let found = |offer: SlabOffer| {
                let len = offer.len;
                (offer, len)
            };
            service.find_room(job.id(), rest, || look().map(found)).await
        }
    }
}

/// What a ring is wanted for.
#[derive(Clone, Copy)]
struct Wanted {
    own: Option<RingId>,
    write: bool,
    job: JobId,
}

fn claim(service: &Service, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
    service.claim(caller, token, need).map_err(|stop| match stop {
        Stop::Failed(error) => error,
        _ => Error::new(ErrorKind::Invalid, "another server has the file's inode"),
    })
}

fn ring(service: &Service, caller: &Caller, token: &Token, wanted: Wanted) -> Answer {
    // Nobody binds a ring anew whose client has given this up and goes on elsewhere.
    let _pass = caller.fence.pass()?;
    let Wanted { own, write, job } = wanted;
    let need = if write { Access::WRITE } else { Access::READ };
    let hold = claim(service, caller, token, need)?;
    let here = matches!(service.store.names().inode(token.file)?.body,
        Body::File { ref layout, .. } if layout.only() == Some(service.config.server));
    if !here {
        return Err(Error::new(ErrorKind::Invalid, "the file's bytes do not all come here"));
    }
    if write {
        service.shed_set_id(caller, &hold)?;
    }
    let offer = service.store.data().bind_ring(token.uid, job, token.file, own, write)?;
    Ok(Reply::Ring(Box::new(RingGrant {
        ring: offer.ring.0,
        path: bytes(offer.path),
        bell: bytes(offer.bell),
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

/// Hears rings for as long as the server lives: soon while something happens, else when somebody rings.
pub(crate) fn attend(service: &Service) {
    let (stopping, data) = (service.stopping(), service.store.data());
    let others = std::thread::available_parallelism().map_or(0, |processors| processors.get() - 1);
    let mut tended = Instant::now();
    while !*stopping.borrow() {
        match data.attend(others) {
            // Whoever writes so fast would find his ring full before long.
            Ok(Traffic::Heavy) => {}
            Ok(Traffic::Light) => data.doze(TICK),
            Ok(Traffic::None) => data.doze(NAP),
            Err(error) => {
                tracing::error!(%error, "what clients wrote could not be taken: it stays in their rings");
                std::thread::sleep(TEND);
            }
        }
        if let Err(error) = data.settle_heard() {
            tracing::error!(%error, "a closed file could not be settled; the next start will do it");
        }
        if tended.elapsed() >= TEND {
            tended = Instant::now();
            report(data.tend_rings(IDLE));
            if let Err(error) = service.store.rest() {
                tracing::error!(%error, "names that were changed could not be put in order");
            }
        }
    }
}

fn report(tended: Result<(usize, u64)>) {
    match tended {
        Ok((gone, refused)) => {
            if gone > 0 {
                tracing::debug!(gone, "rings of clients that are gone were removed");
            }
            if refused > 0 {
                tracing::warn!(refused, "records in rings were not as they should be, and were passed over");
            }
        }
        Err(error) => tracing::error!(%error, "rings of clients that are gone could not be removed"),
    }
}
