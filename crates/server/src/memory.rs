//! Clients that write and read by shared memory: who gets a ring, what it is granted and leased, and who hears it.
//!
//! **Invariant**: only who may open the store's files anyway is told where they are; a slab is granted in its job's
//! turn and paid for by its bytes; what is written or read without asking needs no other turn.

use crate::jobs::Membership;
use crate::opens::Hold;
use crate::service::{Caller, Service};
use crate::several::Stop;
use forebay_model::{Access, Error, ErrorKind, Result};
use forebay_store::{self as store, Body, RingId};
use forebay_wire::{Answer, MapAt, MapGrant, MapPiece, Reply, Request, RingGrant, SlabGrant, Token};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long rings fill before they are heard again, while something happens in them.
const TICK: Duration = Duration::from_micros(500);
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
    let counting = service;
    let (service, caller, job_id) = (service.clone(), caller.clone(), job.id());
    let (price, bytes) = match *request {
        Request::Slab { ring, least, .. } => {
            let len = service.store.data().next_slab(RingId(ring), least);
            (service.turns.price(len), len)
        }
        _ => (service.turns.price(0), 0),
    };
    let entry = job.enter(price, service.store.data().now())?;
    let mut turn = job.wait(entry).await?;
    let request = request.clone();
    // It may have to flush, and to wait for space.
    let done = tokio::task::spawn_blocking(move || match request {
        Request::Ring { token, own, write } => {
            let wanted = Wanted { own: own.map(RingId), write, job: job_id };
            ring(&service, &caller, &token, wanted)
        }
        Request::Map { token, ring, from } => map(&service, &caller, &token, RingId(ring), from),
        Request::Slab { ring, keep, .. } => slab(&service, &caller, RingId(ring), keep, bytes),
        other => Err(Error::new(ErrorKind::Protocol, format!("{other:?} is not about shared memory"))),
    });
    let answer = done.await.unwrap_or_else(|_| Err(ErrorKind::Io.into()));
    let granted = match &answer {
        Ok(Reply::Slab(slab)) => slab.len,
        _ => 0,
    };
    turn.spare(u64::from(bytes - granted.min(bytes)));
    job.wrote(u64::from(granted));
    counting.ways.came(counting.store.data().now(), u64::from(granted));
    answer
}

/// What a ring is wanted for.
#[derive(Clone, Copy)]
struct Wanted {
    own: Option<RingId>,
    write: bool,
    job: forebay_model::JobId,
}

fn claim(service: &Service, caller: &Caller, token: &Token, need: Access) -> Result<Arc<Hold>> {
    service.claim(caller, token, need).map_err(|stop| match stop {
        Stop::Failed(error) => error,
        _ => Error::new(ErrorKind::Invalid, "another server has the file's inode"),
    })
}

fn ring(service: &Service, caller: &Caller, token: &Token, wanted: Wanted) -> Answer {
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

fn slab(service: &Service, caller: &Caller, ring: RingId, keep: u32, len: u32) -> Answer {
    let offer = service.store.data().grant_slab(caller.who.uid, ring, keep, len)?;
    Ok(Reply::Slab(Box::new(SlabGrant {
        slab: offer.slab,
        path: bytes(offer.path),
        size: offer.size,
        start: offer.start,
        len: offer.len,
        records: offer.records,
        epoch: offer.epoch,
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
    let mut tended = Instant::now();
    while !*stopping.borrow() {
        match data.attend() {
            Ok(true) => std::thread::sleep(TICK),
            Ok(false) => data.doze(NAP),
            Err(error) => {
                tracing::error!(%error, "what clients wrote could not be taken: it stays in their rings");
                std::thread::sleep(TEND);
            }
        }
        if tended.elapsed() >= TEND {
            tended = Instant::now();
            report(data.tend_rings(IDLE));
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
