//! Reads of an open file by shared memory. The client requests the map of the file once, and copies data out of the
//! server's regions for as long as the server keeps the lease valid.
//!
//! **Invariant**: copied data is returned only if the lease was valid before and after the copy, the connection is the
//! one on which the lease was granted, and this client has not written by its own ring since the request.

use crate::memory::Memory;
use forebay_model::ErrorKind;
use forebay_shm::{Reader, RoMap};
use forebay_wire::{MapAt, MapGrant, Reply, Request};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// After this number of bytes or reads, a lease is worth two requests and a mapping. A small file is read once.
const WORTH_BYTES: u64 = 1 << 20;
const ONE_READ: u64 = WORTH_BYTES / 32;
/// A lease that served this number of reads was worth its request, however it ended.
const WORTH_READS: u32 = 64;
/// Number of useless leases in a row after which the pauses stop growing.
const MOST_USELESS: u32 = 10;

/// The read lease of an open file.
#[derive(Default)]
pub(crate) struct Leased {
    map: Mutex<Option<Arc<Map>>>,
    /// Bytes read by other means, plus a constant for each read.
    seen: AtomicU64,
    /// Number of reads by the socket before the next lease is requested.
    pause: AtomicU32,
    /// Number of useless leases in a row.
    useless: AtomicU32,
}

/// One lease.
struct Map {
    reader: Reader,
    lease: u64,
    size: u64,
    /// Offsets at which pieces begin, in order; the last one is the end.
    bounds: Vec<u64>,
    places: Vec<Place>,
    connection_epoch: u64,
    /// Number of this client's ring writes before the request.
    own_writes: u64,
    served: AtomicU32,
}

enum Place {
    Zeros,
    RoMap(Arc<RoMap>, u32),
    Ask,
}

/// Result of a read.
enum Found {
    Read(usize),
    /// The lease does not cover these bytes.
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
                Place::RoMap(ro_map, position) => {
                    // If the bytes cannot be copied, a request to the server reports why.
                    if ro_map.get(position + (at - self.bounds[piece]) as u32, some).is_err() {
                        return false;
                    }
                }
                Place::Ask => return false,
            }
            (done, piece) = (done + len, piece + 1);
        }
        true
    }
}

impl Leased {
    /// Whether anything was read.
    pub(crate) fn was_read(&mut self) -> bool {
        let lease = self.map.get_mut().ok().and_then(|map| map.as_ref());
        *self.seen.get_mut() > 0 || lease.is_some_and(|map| map.served.load(Ordering::Relaxed) > 0)
    }

    /// Drops the lease unless a thread is using it.
    pub(crate) fn clear(&self) {
        drop(self.map.try_lock().map(|mut map| map.take()));
    }
}

impl Memory {
    fn map(&self) -> Option<Arc<Map>> {
        // Never blocks: a signal handler may have interrupted the thread that holds the lock.
        self.leased.map.try_lock().ok()?.clone()
    }

    /// Reads from an offset on as far as the file goes, if that is possible without a request.
    pub(crate) fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        let map = self.map()?;
        if map.connection_epoch != self.session.opens.connection_epoch()
            || map.own_writes != self.own_writes.load(Ordering::Acquire)
        {
            self.drop_lease(&map);
            return None;
        }
        match map.read(offset, into) {
            Found::Read(len) => Some(len),
            Found::Elsewhere | Found::Over => {
                self.drop_lease(&map);
                None
            }
        }
    }

    /// Drops an expired lease. The pause before the next request grows with the number of useless leases.
    fn drop_lease(&self, map: &Arc<Map>) {
        let Ok(mut place) = self.leased.map.try_lock() else { return };
        if !place.as_ref().is_some_and(|known| Arc::ptr_eq(known, map)) {
            return;
        }
        *place = None;
        let worth = map.served.load(Ordering::Relaxed) >= WORTH_READS;
        let useless = if worth { 0 } else { self.leased.useless.load(Ordering::Relaxed) + 1 };
        self.leased.useless.store(useless.min(MOST_USELESS), Ordering::Relaxed);
        self.leased.pause.store((1 << useless.min(MOST_USELESS)) - 1, Ordering::Relaxed);
    }

    /// Requests a lease if it is worth it, and reads.
    pub(crate) async fn read(&self, offset: u64, into: &mut [u8]) -> Option<usize> {
        if let Some(len) = self.read_now(offset, into) {
            return Some(len);
        }
        if self.session.shared_rings.is_off() || !self.token.access.read {
            return None;
        }
        let seen = self.leased.seen.fetch_add(into.len() as u64 + ONE_READ, Ordering::Relaxed);
        // A program that reads small files gets a ring at its second one; later opens then come with a lease.
        let first_ring = self.session.shared_rings.last_was_read.load(Ordering::Relaxed)
            && !self.session.shared_rings.has_idle(self.token.uid);
        let early = seen + (into.len() as u64) < WORTH_BYTES && !first_ring;
        let pauses = |left: u32| left.checked_sub(1);
        if early || self.leased.pause.fetch_update(Ordering::Relaxed, Ordering::Relaxed, pauses).is_ok() {
            return None;
        }
        let request_lock = self.request_lock.try_lock().ok()?;
        let leased = self.lease(offset).await;
        drop(request_lock);
        if !leased {
            let useless = self.leased.useless.fetch_add(1, Ordering::Relaxed) + 1;
            self.leased.useless.fetch_min(MOST_USELESS, Ordering::Relaxed);
            self.leased.pause.store(1 << useless.min(MOST_USELESS), Ordering::Relaxed);
            return None;
        }
        self.read_now(offset, into)
    }

    async fn lease(&self, from: u64) -> bool {
        let connection_epoch = self.session.opens.connection_epoch();
        let bound = || {
            self.ring_writer().and_then(|ring_writer| {
                let ring_writer = ring_writer
                    .as_ref()
                    .filter(|ring_writer| ring_writer.connection_epoch == connection_epoch)?;
                Some((ring_writer.ring, ring_writer.reader()))
            })
        };
        let mut ring = bound();
        if ring.is_none() && self.bind(false).await {
            ring = bound();
        }
        let Some((ring, reader)) = ring else { return false };
        let own_writes = self.own_writes.load(Ordering::Acquire);
        match self.session.call(&self.who, &Request::Map { token: self.token, ring, from }).await {
            Ok(Reply::Map(grant)) => self.keep_lease(&grant, reader, connection_epoch, own_writes),
            Err(error) if error.kind() == ErrorKind::Stale => {
                if let Some(mut ring_writer) = self.ring_writer() {
                    ring_writer.take_if(|ring_writer| ring_writer.ring == ring);
                }
                false
            }
            _ => false,
        }
    }

    /// Maps the regions of a lease, and reads by it from now on. False if they cannot be mapped.
    pub(crate) fn keep_lease(
        &self,
        grant: &MapGrant,
        reader: Reader,
        connection_epoch: u64,
        own_writes: u64,
    ) -> bool {
        let Ok((bounds, places)) = self.mapped(grant) else { return false };
        let (lease, size, served) = (grant.lease, grant.size, AtomicU32::new(0));
        let map = Map { reader, lease, size, bounds, places, connection_epoch, own_writes, served };
        if let Ok(mut place) = self.leased.map.try_lock() {
            *place = Some(Arc::new(map));
        }
        true
    }

    /// Maps the regions of a lease.
    fn mapped(&self, grant: &MapGrant) -> io::Result<(Vec<u64>, Vec<Place>)> {
        let broken = || io::Error::new(io::ErrorKind::InvalidData, "the lease is invalid");
        let dir = PathBuf::from(OsString::from_vec(grant.dir.clone()));
        let ro_maps = grant.names.iter().map(|name| {
            let path = dir.join(OsString::from_vec(name.clone()));
            self.session.shared_rings.ro_map(path, grant.region)
        });
        let ro_maps: Vec<Arc<RoMap>> = ro_maps.collect::<io::Result<_>>()?;
        let (mut bounds, mut places) = (vec![grant.start], Vec::new());
        let mut end = grant.start;
        for piece in &grant.pieces {
            end = end.checked_add(piece.len).filter(|_| piece.len > 0).ok_or_else(broken)?;
            bounds.push(end);
            places.push(match piece.at {
                MapAt::Zeros => Place::Zeros,
                MapAt::Ask => Place::Ask,
                MapAt::Region { file, position } => {
                    let ro_map = ro_maps.get(file as usize).ok_or_else(broken)?;
                    let last = u64::from(position).checked_add(piece.len);
                    last.filter(|&last| last <= u64::from(ro_map.len())).ok_or_else(broken)?;
                    Place::RoMap(ro_map.clone(), position)
                }
            });
        }
        Ok((bounds, places))
    }
}
