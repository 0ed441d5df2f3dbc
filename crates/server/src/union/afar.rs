//! Bytes behind of files whose names another server has.
//!
//! Where such a file is behind is asked of the server that knows, and counts as long as it is there. Several servers may
//! write to it, each its own stripes: so it is known by its serial number, and not by its length and time.

use super::read::{Part, behind, fetch};
use super::{MOST_SEEN, Union, changed_behind, gone_behind};
use crate::service::Service;
use crate::several::nonsense;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_wire::{PeerReply, PeerRequest, Place};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often a read starts again because the file was moved or cut meanwhile, and after how long.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(20);

impl Service {
    /// Where a file of ours is behind.
    pub(crate) fn place_behind(&self, file: FileId) -> Result<Option<Place>> {
        let Some(union) = &self.union else { return Ok(None) };
        let _still = union.still();
        let Some(record) = union.record(file)? else { return Ok(None) };
        Ok(union.path(file)?.map(|path| Place { path, serial: record.version.serial }))
    }

    /// Where a file is behind, whoever has its name.
    pub(crate) async fn whereabouts(&self, file: FileId) -> Result<Option<Place>> {
        let authority = self.members.members().authority(file);
        if authority == self.config.server {
            return self.place_behind(file);
        }
        match self.ask(authority, PeerRequest::Behind { file }).await? {
            PeerReply::Behind { place } => Ok(place),
            other => Err(nonsense(&other)),
        }
    }

    /// Reads a file of another server of which something is behind.
    pub(super) async fn read_afar(
        self: &Arc<Service>,
        file: FileId,
        offset: u64,
        len: u32,
    ) -> Result<Vec<Part>> {
        let Some(union) = &self.union else { return Err(gone_behind(file)) };
        for _ in 0..TRIES {
            let place = match union.known_place(file) {
                Some(place) => place,
                None => {
                    let place = self.whereabouts(file).await?.ok_or_else(|| gone_behind(file))?;
                    union.note_place(file, place)
                }
            };
            let service = self.clone();
            let read = tokio::task::spawn_blocking(move || service.read_at_place(file, offset, len, &place));
            let failed = |_| Err(Error::new(ErrorKind::Io, "the server failed while it read from behind"));
            if let Some(parts) = read.await.unwrap_or_else(failed)? {
                return Ok(parts);
            }
            union.forget_place(file);
            tokio::time::sleep(PAUSE).await;
        }
        Err(changed_behind(file))
    }

    fn read_at_place(&self, file: FileId, offset: u64, len: u32, place: &Place) -> Result<Option<Vec<Part>>> {
        let (Some(union), Some(engine)) = (&self.union, &self.drain) else { return Err(gone_behind(file)) };
        let watch = engine.permits().watch(file);
        let pieces = self.store.data().read(file, offset, len)?;
        let spans = behind(&pieces);
        let object = match union.ask(|backend| backend.open(&place.path)) {
            Ok(object) => object,
            // It may have another name by now, and this one be that of something else.
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
        let near = |version, span| match self.is_changing(union, file) {
            true => None,
            false => union.near.get(file, version, span),
        };
        let parts = union.ask(|_| fetch(&*object, |version| version.serial == place.serial, pieces, near))?;
        // Nothing was laid over it, and nothing that was came to be behind.
        let same = behind(&self.store.data().read(file, offset, len)?) == spans && watch.saw_nothing();
        Ok(parts.filter(|_| same))
    }
}

impl Union {
    fn known_place(&self, file: FileId) -> Option<Arc<Place>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).get(&file).cloned()
    }

    fn note_place(&self, file: FileId, place: Place) -> Arc<Place> {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= MOST_SEEN {
            places.clear();
        }
        let place = Arc::new(place);
        places.insert(file, place.clone());
        place
    }

    fn forget_place(&self, file: FileId) {
        self.places.lock().unwrap_or_else(PoisonError::into_inner).remove(&file);
    }
}
