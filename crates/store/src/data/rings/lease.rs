//! Leases: clients copy a file's bytes out of regions without requests, as long as the file does not change.
//!
//! **Invariant**: while a lease on a file is valid, its extents and its size are as leased, and no client but the
//! lease's holder can write to it without a request. Every index change ends the leases first; a region's file is
//! removed only when no client is copying from it.

use super::channel::Channel;
use super::{RingId, Rings, bytes_of};
use crate::data::Data;
use crate::data::file::File;
use crate::data::index::Source;
use crate::data::region::data_name;
use forebay_model::{Error, ErrorKind, FileId, MapAt, MapGrant, MapPiece, RegionId, Result, Span, Uid};
use forebay_shm::Epochs;
use std::sync::{Arc, OnceLock};

/// Largest number of pieces, and of regions, leased at once.
const MOST_PIECES: usize = 32_768;
const MOST_REGIONS: usize = 1024;

/// The leases on one file: on its bytes, and on cached answers about it.
#[derive(Default)]
pub(in crate::data) struct Leases {
    bytes: Vec<(Arc<Channel>, u64)>,
    watch: Option<Watch>,
}

/// The epochs to advance when a file's size, times or bytes change.
#[derive(Clone)]
pub(in crate::data) struct Watch {
    pub(in crate::data) file: FileId,
    pub(in crate::data) epochs: Arc<OnceLock<Arc<Epochs>>>,
}

impl Leases {
    /// Sets the epochs to advance.
    pub(in crate::data) fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Ends all leases, because the file changes.
    pub(in crate::data) fn end(&mut self) {
        self.end_bytes();
        self.notify();
    }

    fn end_bytes(&mut self) {
        for (channel, lease) in self.bytes.drain(..) {
            channel.end_lease(lease);
        }
    }

    /// Ends cached answers about the file. A client that requests it again waits for the file's lock, which the caller
    /// holds.
    pub(in crate::data) fn notify(&self) {
        if let Some(watch) = &self.watch
            && let Some(epochs) = watch.epochs.get()
        {
            epochs.changed(watch.file.0);
        }
    }

    /// Ends the leases of all rings but one, which is about to be written without requests.
    pub(super) fn end_of_others(&mut self, ring: RingId) {
        self.notify();
        self.bytes.retain(|(channel, lease)| {
            let own = channel.id == ring;
            if !own {
                channel.end_lease(*lease);
            }
            own
        });
    }

    fn add(&mut self, channel: &Arc<Channel>) -> u64 {
        self.bytes.retain(|(other, _)| other.id != channel.id);
        let lease = channel.begin_lease();
        self.bytes.push((channel.clone(), lease));
        lease
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        // The file is only evicted from memory; it has not changed.
        self.end_bytes();
    }
}

impl Rings {
    /// Ends all leases of all files.
    pub(in crate::data) fn end_leases(&self) {
        self.all().iter().for_each(|channel| channel.end_leases());
    }

    /// Whether any client may be copying under a lease, current or ended.
    pub(in crate::data) fn is_read(&self) -> bool {
        self.all().iter().any(|channel| channel.taker.is_read())
    }
}

impl Data {
    /// Leases the bytes of a file to a user's ring, from an offset on. Fails while other clients can write to the file
    /// without a request; they must send one before their next write.
    pub fn lease(&self, uid: Uid, file: FileId, ring: RingId, from: u64) -> Result<MapGrant> {
        let stale = || Error::new(ErrorKind::Stale, format!("ring {} no longer exists", ring.0));
        let channel = self.rings.table.lock().channels.get(&ring).cloned().ok_or_else(stale)?;
        {
            let mut state = channel.lock();
            state.confirmed = true;
            if state.bound != Some(file) || state.uid != uid {
                return Err(stale());
            }
        }
        for other in self.rings.of(file).iter().filter(|other| other.id != ring) {
            self.recall(other)?;
        }
        let locked = self.files.get(file, || self.load(file))?;
        let mut locked = locked.lock();
        self.consume(file, &mut locked)?;
        locked.alive()?;
        locked.check_unmapped()?;
        if self.is_filled_by_others(file, ring) {
            return Err(Error::new(ErrorKind::Busy, "other clients are writing to the file"));
        }
        let mut offer = self.pieces_of(&locked, uid, from)?;
        let state = channel.lock();
        if state.bound != Some(file) {
            return Err(stale());
        }
        offer.lease = locked.index.leases.add(&channel);
        Ok(offer)
    }

    /// Whether a client can write to a file without a request.
    #[must_use]
    pub fn is_filled(&self, file: FileId) -> bool {
        self.rings.of(file).iter().any(|ring| ring.lock().may_fill())
    }

    fn is_filled_by_others(&self, file: FileId, ring: RingId) -> bool {
        self.rings.of(file).iter().any(|other| other.id != ring && other.lock().may_fill())
    }

    /// The pieces of a file: all if they are few enough, else as many as possible from an offset on.
    fn pieces_of(&self, file: &File, uid: Uid, from: u64) -> Result<MapGrant> {
        if file.index.len() < MOST_PIECES {
            let offer = self.pieces_from(file, uid, 0)?;
            // Holes between extents are pieces too, so there may be more than expected.
            if offer.end() >= file.size {
                return Ok(offer);
            }
        }
        self.pieces_from(file, uid, from)
    }

    fn pieces_from(&self, file: &File, uid: Uid, from: u64) -> Result<MapGrant> {
        let mut regions: Vec<RegionId> = Vec::new();
        let mut pieces: Vec<MapPiece> = Vec::new();
        let mut at = from;
        let hole = |at: u64, len: u64| {
            let at = if at < file.lost_below { MapAt::Ask } else { MapAt::Zeros };
            MapPiece { len, at }
        };
        for extent in file.index.pieces(Span::new(from, file.size.max(from))) {
            if pieces.len() + 2 > MOST_PIECES || regions.len() >= MOST_REGIONS {
                break;
            }
            let Span { start, end } = extent.span;
            if at < start {
                pieces.push(hole(at, start - at));
            }
            let place = match extent.source {
                Source::Zero => MapAt::Zeros,
                Source::Data(bytes) if bytes.uid == uid => {
                    let region = self.region(bytes.region);
                    match self.damage.check(&region, bytes.slot) {
                        Ok(()) => {
                            let position = bytes.ticket(end - start).start();
                            MapAt::Region { file: number(&mut regions, bytes.region), position }
                        }
                        Err(_) => MapAt::Ask,
                    }
                }
                Source::Data(_) | Source::Backing => MapAt::Ask,
            };
            pieces.push(MapPiece { len: end - start, at: place });
            at = end;
        }
        if pieces.len() + 2 <= MOST_PIECES && regions.len() < MOST_REGIONS && at < file.size {
            pieces.push(hole(at, file.size - at));
        }
        let path = regions.first().map(|id| self.disk.path(&data_name(*id)).ok_or(ErrorKind::Unsupported));
        let path = path.transpose()?;
        let dir = path.and_then(|path| path.parent().map(|dir| bytes_of(dir.to_owned()))).unwrap_or_default();
        let names = regions.into_iter().map(|id| data_name(id).into_bytes()).collect();
        let (size, region) = (file.size, self.geometry.size);
        Ok(MapGrant { lease: 0, size, start: from, pieces, dir, names, region })
    }
}

/// The number of a region in a list, added if missing.
fn number(regions: &mut Vec<RegionId>, region: RegionId) -> u32 {
    let known = regions.iter().rposition(|&known| known == region);
    known.unwrap_or_else(|| {
        regions.push(region);
        regions.len() - 1
    }) as u32
}
