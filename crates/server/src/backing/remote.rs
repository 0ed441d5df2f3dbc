//! Reads of files in the back end whose authority is another server.
//!
//! The authority reports the place of such a file, which is used as long as the file is there. Several servers may
//! write to it, each its own stripes, so that it is identified by its serial number, not by size and time.

use super::BackingLayer;
use super::read::{Part, backing_spans, fetch};
use super::{Backing, MOST_SEEN, changed_in_backing, missing_in_backing};
use crate::cluster::nonsense;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_wire::{PeerReply, PeerRequest, Place};
use std::sync::Arc;
use std::time::Duration;

/// How often a read is repeated because the file was moved or truncated meanwhile, and the pause in between.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);

impl BackingLayer {
    /// The place in the back end of a file of this authority.
    pub(crate) fn backing_place(&self, file: FileId) -> Result<Option<Place>> {
        let Some(backing) = &self.backing else { return Ok(None) };
        let _tree = backing.lock_tree();
        let Some(record) = backing.record(file)? else { return Ok(None) };
        Ok(backing.path(file)?.map(|path| Place { path, serial: record.version.serial }))
    }

    /// The place of a file in the back end, on any authority.
    pub(crate) async fn place_of(&self, file: FileId) -> Result<Option<Place>> {
        let authority = self.homes.authority(file);
        if authority == self.own {
            return self.backing_place(file);
        }
        match self.peers.ask(authority, PeerRequest::Backing { file }).await? {
            PeerReply::Backing { place } => Ok(place),
            other => Err(nonsense(&other)),
        }
    }

    /// Reads a file of another authority with bytes in the back end.
    pub(super) async fn read_remote(
        self: &Arc<BackingLayer>,
        file: FileId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Part>> {
        let Some(backing) = &self.backing else { return Err(missing_in_backing(file)) };
        for _ in 0..TRIES {
            let place = match backing.known_place(file) {
                Some(place) => place,
                None => {
                    let place = self.place_of(file).await?.ok_or_else(|| missing_in_backing(file))?;
                    backing.note_place(file, place)
                }
            };
            let layer = self.clone();
            let read = tokio::task::spawn_blocking(move || layer.read_at_place(file, offset, len, &place));
            let failed =
                |_| Err(Error::new(ErrorKind::Io, "the server failed while it read from the back end"));
            if let Some(parts) = read.await.unwrap_or_else(failed)? {
                return Ok(parts);
            }
            backing.forget_place(file);
            tokio::time::sleep(PAUSE).await;
        }
        Err(changed_in_backing(file))
    }

    fn read_at_place(&self, file: FileId, offset: u64, len: u32, place: &Place) -> Result<Option<Vec<Part>>> {
        let Some(backing) = &self.backing else { return Err(missing_in_backing(file)) };
        let watch = self.writers.leases.watch(file);
        let pieces = self.store.data().read(file, offset, len)?;
        let spans = backing_spans(&pieces);
        let object = match backing.ask(|backend| backend.open(&place.path)) {
            Ok(object) => object,
            // It may have been renamed, and another file may have its old name.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::NotFound
                        | ErrorKind::Invalid
                        | ErrorKind::NotDirectory
                        | ErrorKind::IsDirectory
                        | ErrorKind::TooManyLinks
                        | ErrorKind::AccessDenied
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let read_cache = |version, span| match self.is_changing(backing, file) {
            true => None,
            false => backing.read_cache.get(file, version, span),
        };
        let parts =
            backing.ask(|_| fetch(&*object, |version| version.serial == place.serial, pieces, read_cache))?;
        // Valid if none of the bytes was overwritten meanwhile, and no overwritten byte reached the back end.
        let same =
            backing_spans(&self.store.data().read(file, offset, len)?) == spans && watch.is_unchanged();
        Ok(parts.filter(|_| same))
    }
}

impl Backing {
    fn known_place(&self, file: FileId) -> Option<Arc<Place>> {
        self.places.lock().get(&file).cloned()
    }

    fn note_place(&self, file: FileId, place: Place) -> Arc<Place> {
        let mut places = self.places.lock();
        if places.len() >= MOST_SEEN {
            places.clear();
        }
        let place = Arc::new(place);
        places.insert(file, place.clone());
        place
    }

    fn forget_place(&self, file: FileId) {
        self.places.lock().remove(&file);
    }
}
