//! Leases: clients that copy a file's bytes out of regions without asking, for as long as nothing happens to the file.
//!
//! **Invariant**: while a lease on a file stands, its extents and its length are those that were leased, and nobody but
//! the lease's holder can write to it without asking. Whoever changes an index ends the leases first; a region's file is
//! taken away only when nobody copies any more.

use super::channel::Channel;
use super::{RingId, Rings};
use crate::data::file::File;
use crate::data::index::Source;
use crate::data::region::data_name;
use crate::data::{Data, lock};
use forebay_model::{Error, ErrorKind, FileId, RegionId, Result, Span, Uid};
use forebay_shm::Epochs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// Most pieces, and regions, that are leased at once.
const MOST_PIECES: usize = 32_768;
const MOST_REGIONS: usize = 1024;

/// What a client may copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapOffer {
    /// The lease's number.
    pub lease: u64,
    /// The length of the file.
    pub size: u64,
    /// What of it is known here: from this offset on, piece by piece.
    pub start: u64,
    /// The pieces.
    pub pieces: Vec<MapPiece>,
    /// Where the regions are.
    pub regions: Vec<PathBuf>,
    /// Bytes of a region.
    pub region_size: u32,
}

impl MapOffer {
    /// Where what is known ends.
    fn end(&self) -> u64 {
        self.start + self.pieces.iter().map(|piece| piece.len).sum::<u64>()
    }
}

/// A stretch of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapPiece {
    /// Its bytes.
    pub len: u64,
    /// Where they are.
    pub at: MapAt,
}

/// Where bytes are that somebody wants to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MapAt {
    /// Nowhere: they are zeros.
    Zeros,
    /// In the region with this number of the offer, at this position.
    Region(u32, u32),
    /// Only the server knows.
    Ask,
}

/// The leases on one file: on its bytes, and on what was told about it.
#[derive(Default)]
pub(in crate::data) struct Leases {
    bytes: Vec<(Arc<Channel>, u64)>,
    watch: Option<Watch>,
}

/// Who is told that a file's length, times or bytes change.
#[derive(Clone)]
pub(in crate::data) struct Watch {
    pub(in crate::data) file: FileId,
    pub(in crate::data) epochs: Arc<OnceLock<Arc<Epochs>>>,
}

impl Leases {
    /// Says who is to be told.
    pub(in crate::data) fn watch(&mut self, watch: Watch) {
        self.watch = Some(watch);
    }

    /// Ends all of them: the file is changing.
    pub(in crate::data) fn end(&mut self) {
        self.end_bytes();
        self.tell();
    }

    fn end_bytes(&mut self) {
        for (channel, lease) in self.bytes.drain(..) {
            channel.end_lease(lease);
        }
    }

    /// What was told about the file counts no more. Whoever wants to know waits for its lock, which the caller holds.
    pub(in crate::data) fn tell(&self) {
        if let Some(watch) = &self.watch
            && let Some(epochs) = watch.epochs.get()
        {
            epochs.changed(watch.file.0);
        }
    }

    /// Ends those of all rings but one, which is about to be written to without a word to anybody.
    pub(super) fn end_of_others(&mut self, ring: RingId) {
        self.tell();
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
        // What is only let go of has not changed.
        self.end_bytes();
    }
}

impl Rings {
    /// Ends all leases of all files.
    pub(in crate::data) fn end_leases(&self) {
        self.all().iter().for_each(|channel| channel.end_leases());
    }

    /// Whether any client may be copying what it was leased, now or before.
    pub(in crate::data) fn is_read(&self) -> bool {
        self.all().iter().any(|channel| channel.taker.is_read())
    }
}

impl Data {
    /// Leases the bytes of a user's ring's file, from an offset on. Refused while others can write to it without asking;
    /// they are told to ask before their next write.
    pub fn lease(&self, uid: Uid, file: FileId, ring: RingId, from: u64) -> Result<MapOffer> {
        let stale = || Error::new(ErrorKind::Stale, format!("ring {} is not there any more", ring.0));
        let channel = lock(&self.rings.table).channels.get(&ring).cloned().ok_or_else(stale)?;
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
        let mut locked = lock(&locked);
        self.hear(file, &mut locked)?;
        locked.alive()?;
        if self.is_filled_by_others(file, ring) {
            return Err(Error::new(ErrorKind::Busy, "others are writing to the file"));
        }
        let mut offer = self.pieces_of(&locked, uid, from)?;
        let state = channel.lock();
        if state.bound != Some(file) {
            return Err(stale());
        }
        offer.lease = locked.index.leases.add(&channel);
        Ok(offer)
    }

    /// Whether somebody can write to a file without asking.
    #[must_use]
    pub fn is_filled(&self, file: FileId) -> bool {
        self.rings.of(file).iter().any(|ring| ring.lock().may_fill())
    }

    fn is_filled_by_others(&self, file: FileId, ring: RingId) -> bool {
        self.rings.of(file).iter().any(|other| other.id != ring && other.lock().may_fill())
    }

    /// What a file is made of: all of it if that is not too much, else as much as can be told from an offset on.
    fn pieces_of(&self, file: &File, uid: Uid, from: u64) -> Result<MapOffer> {
        if file.index.len() < MOST_PIECES {
            let offer = self.pieces_from(file, uid, 0)?;
            // Between pieces there may be holes, and so more than it seemed.
            if offer.end() >= file.size {
                return Ok(offer);
            }
        }
        self.pieces_from(file, uid, from)
    }

    fn pieces_from(&self, file: &File, uid: Uid, from: u64) -> Result<MapOffer> {
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
                            MapAt::Region(number(&mut regions, bytes.region), position)
                        }
                        Err(_) => MapAt::Ask,
                    }
                }
                Source::Data(_) | Source::Behind => MapAt::Ask,
            };
            pieces.push(MapPiece { len: end - start, at: place });
            at = end;
        }
        if pieces.len() + 2 <= MOST_PIECES && regions.len() < MOST_REGIONS && at < file.size {
            pieces.push(hole(at, file.size - at));
        }
        let path = |id: RegionId| self.disk.path(&data_name(id)).ok_or(ErrorKind::Unsupported);
        let regions = regions.into_iter().map(path).collect::<Result<_, _>>()?;
        let (size, region_size) = (file.size, self.geometry.size);
        Ok(MapOffer { lease: 0, size, start: from, pieces, regions, region_size })
    }
}

/// The number of a region in a list, where it may have to be added.
fn number(regions: &mut Vec<RegionId>, region: RegionId) -> u32 {
    let known = regions.iter().rposition(|&known| known == region);
    known.unwrap_or_else(|| {
        regions.push(region);
        regions.len() - 1
    }) as u32
}
