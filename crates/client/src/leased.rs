//! Reads of an open file by shared memory: what the file is made of is asked for once, and copied straight out of the
//! server's regions for as long as the server says that nothing has happened to it.
//!
//! **Invariant**: what was copied counts only if the lease stood before and after, the connection is the one it was
//! granted on, and this client has not written by its own ring since it asked.

use crate::memory::Memory;
use forebay_model::ErrorKind;
use forebay_shm::{Pane, Reader};
use forebay_wire::{MapAt, MapGrant, Reply, Request};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// From so many bytes, or so many reads, on a lease is worth two requests and a mapping: a small file is read once.
const WORTH_BYTES: u64 = 1 << 20;
const ONE_READ: u64 = WORTH_BYTES / 32;
/// A lease that served so many reads was worth asking for, however it ended.
const WORTH_READS: u32 = 64;
/// After how many leases in a row that were not, the pauses between them do not grow any more.
const MOST_LOSSES: u32 = 10;

/// What an open file was leased.
#[derive(Default)]
pub(crate) struct Leased {
    map: Mutex<Option<Arc<Map>>>,
    /// Bytes that were read otherwise, and something for each read.
    seen: AtomicU64,
    /// Reads that go by the socket before it is asked for the next lease.
    pause: AtomicU32,
    /// Leases in a row that were not worth it.
    losses: AtomicU32,
}

/// One lease.
struct Map {
    reader: Reader,
    lease: u64,
    size: u64,
    /// Where pieces begin, in order; the last number is where they end.
    bounds: Vec<u64>,
    places: Vec<Place>,
    life: u64,
    /// How much this client had written before it asked.
    wrote: u64,
    served: AtomicU32,
}

enum Place {
    Zeros,
    Pane(Arc<Pane>, u32),
    Ask,
}

/// What came of a read.
enum Found {
    Read(usize),
    /// The lease says nothing about these bytes.
    Elsewhere,
    Over,
}

impl Map {
    fn read(&self, offset: u64, into: &mut [u8]) -> Found {
        let len =
            usize::try_from(self.size.saturating_sub(offset)).map_or(into.len(), |left| left.min(into.len()));
        let (first, end) = (self.bounds[0], self.bounds[self.bounds.len() - 1]);
        if len > 0 && (offset < first || offset + len as u64 > end) {
            return Found::Elsewhere;
        }
        let at = self.bounds.partition_point(|&start| start <= offset).saturating_sub(1);
        match self.reader.read(self.lease, || self.copy(at, offset, &mut into[..len])) {
            Some(true) => {
                self.served.fetch_add(1, Ordering::Relaxed);
                Found::Read(len)
            }
            Some(false) => Found::Elsewhere,
            None => Found::Over,
        }
    }

    fn copy(&self, mut piece: usize, offset: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let at = offset + done as u64;
            let len = ((self.bounds[piece + 1] - at) as usize).min(into.len() - done);
            let some = &mut into[done..done + len];
            match &self.places[piece] {
                Place::Zeros => some.fill(0),
                Place::Pane(pane, position) => pane.get(position + (at - self.bounds[piece]) as u32, some),
                Place::Ask => return false,
            }
            (done, piece) = (done + len, piece + 1);
        }
        true
    }
}

impl Memory {
    fn map(&self) -> Option<Arc<Map>> {
        // Tried only: a signal handler may have interrupted who has it.
        self.leased.map.try_lock().ok()?.clone()
    }

    /// Reads from an offset on as much as there is, if that is possible without asking anybody.
    pub(crate) fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let map = self.map()?;
        if map.life != self.session.opens.life() || map.wrote != self.wrote.load(Ordering::Acquire) {
            self.lose(&map);
            return None;
        }
        match map.read(offset, into) {
            Found::Read(len) => Some(len),
            Found::Elsewhere | Found::Over => {
                self.lose(&map);
                None
            }
        }
    }

    /// A lease is over. The next one is asked for later the less they were worth.
    fn lose(&self, map: &Arc<Map>) {
        let Ok(mut place) = self.leased.map.try_lock() else { return };
        if !place.as_ref().is_some_and(|known| Arc::ptr_eq(known, map)) {
            return;
        }
        *place = None;
        let worth = map.served.load(Ordering::Relaxed) >= WORTH_READS;
        let losses = if worth { 0 } else { self.leased.losses.load(Ordering::Relaxed) + 1 };
        self.leased.losses.store(losses.min(MOST_LOSSES), Ordering::Relaxed);
        self.leased.pause.store((1 << losses.min(MOST_LOSSES)) - 1, Ordering::Relaxed);
    }

    /// Asks for a lease, if one is worth it, and reads.
    pub(crate) async fn read(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        if let Some(len) = self.read_now(offset, into) {
            return Some(len);
        }
        if self.session.lanes.is_off() || !self.token.access.read {
            return None;
        }
        let seen = self.leased.seen.fetch_add(into.len() as u64 + ONE_READ, Ordering::Relaxed);
        let early = seen + (into.len() as u64) < WORTH_BYTES;
        let pauses = |left: u32| left.checked_sub(1);
        if early || self.leased.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pauses).is_ok() {
            return None;
        }
        let asking = self.asking.try_lock().ok()?;
        let leased = self.lease(offset).await;
        drop(asking);
        if !leased {
            let losses = self.leased.losses.fetch_add(1, Ordering::Relaxed) + 1;
            self.leased.losses.fetch_min(MOST_LOSSES, Ordering::Relaxed);
            self.leased.pause.store(1 << losses.min(MOST_LOSSES), Ordering::Relaxed);
            return None;
        }
        self.read_now(offset, into)
    }

    async fn lease(&self, from: u64) -> bool {
        let life = self.session.opens.life();
        let bound = || {
            self.lane().and_then(|lane| {
                let lane = lane.as_ref().filter(|lane| lane.life == life)?;
                Some((lane.ring, lane.reader()))
            })
        };
        let mut ring = bound();
        if ring.is_none() && self.bind(false).await {
            ring = bound();
        }
        let Some((ring, reader)) = ring else { return false };
        let wrote = self.wrote.load(Ordering::Acquire);
        match self.session.call(&self.who, &Request::Map { token: self.token, ring, from }).await {
            Ok(Reply::Map(grant)) => match self.mapped(&grant) {
                Ok((bounds, places)) => {
                    let (lease, size, served) = (grant.lease, grant.size, AtomicU32::new(0));
                    let map = Map { reader, lease, size, bounds, places, life, wrote, served };
                    if let Ok(mut place) = self.leased.map.try_lock() {
                        *place = Some(Arc::new(map));
                    }
                    true
                }
                Err(_) => false,
            },
            Err(error) if error.kind() == ErrorKind::Stale => {
                if let Some(mut lane) = self.lane() {
                    lane.take_if(|lane| lane.ring == ring);
                }
                false
            }
            _ => false,
        }
    }

    /// Opens what was leased.
    fn mapped(&self, grant: &MapGrant) -> io::Result<(Vec<u64>, Vec<Place>)> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "a lease that cannot be");
        let dir = PathBuf::from(OsString::from_vec(grant.dir.clone()));
        let panes = grant.names.iter().map(|name| {
            let path = dir.join(OsString::from_vec(name.clone()));
            self.session.lanes.pane(path, grant.region)
        });
        let panes: Vec<Arc<Pane>> = panes.collect::<io::Result<_>>()?;
        let (mut bounds, mut places) = (vec![grant.start], Vec::new());
        let mut end = grant.start;
        for piece in &grant.pieces {
            end = end.checked_add(piece.len).filter(|_| piece.len > 0).ok_or_else(broken)?;
            bounds.push(end);
            places.push(match piece.at {
                MapAt::Zeros => Place::Zeros,
                MapAt::Ask => Place::Ask,
                MapAt::Region { file, position } => {
                    let pane = panes.get(file as usize).ok_or_else(broken)?;
                    let last = u64::from(position).checked_add(piece.len);
                    last.filter(|&last| last <= u64::from(pane.len())).ok_or_else(broken)?;
                    Place::Pane(pane.clone(), position)
                }
            });
        }
        Ok((bounds, places))
    }
}
