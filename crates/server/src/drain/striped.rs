//! Striped files: each holder drains its own bytes, and the authority creates the file in the back end and sets its
//! size.
//!
//! ```text
//! holder                              authority
//!   Bear      has bytes to drain    →   creates the file, sets its writeback mark, extends it
//!   (writes and syncs its own bytes, frees them)
//!   Drained   has drained its bytes →   later:
//!   Level     suspends its writes,  ←   has all holders match their parts
//!             writes missing zeros  →   truncates the file to its size, sets its attributes,
//!                                       records its version, ends the writeback mark
//! ```
//!
//! **Invariant**: only the authority changes the size in the back end, under the file's order lock, and reduces it only
//! while all holders have suspended writes; a writeback mark that outlives its server process is finalized like any
//! other.

use super::DrainEngine;
use crate::backing::{Backing, Extras, missing_in_backing};
use crate::cluster::{and, nonsense};
use crate::writers::{Quiesced, SuspendedWrites};
use forebay_backend::Object;
use forebay_model::{ErrorKind, FileId, Layout, Reshape, Result, ServerId, Span, Stamp};
use forebay_store::{Batch, Data, Facts};
use forebay_wire::{BackingFile, FilePart, PeerReply, PeerRequest, Place, Undrained};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// A holder that has not renewed its lease for this long has given up draining.
const ABANDONED: Duration = Duration::from_secs(15);

/// The servers that drain bytes of this authority's files, and since when.
#[derive(Default)]
pub(super) struct Parts {
    table: Mutex<HashMap<FileId, BTreeMap<ServerId, Instant>>>,
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, BTreeMap<ServerId, Instant>>> {
        self.table.lock()
    }

    fn begin(&self, file: FileId, server: ServerId) {
        self.lock().entry(file).or_default().insert(server, Instant::now());
    }

    fn end(&self, file: FileId, server: ServerId) {
        let mut table = self.lock();
        if let Some(servers) = table.get_mut(&file) {
            servers.remove(&server);
            if servers.is_empty() {
                table.remove(&file);
            }
        }
    }

    /// Whether a server is draining bytes of a file.
    pub(super) fn are_busy(&self, file: FileId) -> bool {
        let table = self.lock();
        table.get(&file).is_some_and(|servers| servers.values().any(|since| since.elapsed() < ABANDONED))
    }
}

impl DrainEngine {
    /// Requests a write lease for a file from its authority, at least up to `end`. For threads that may block.
    pub(crate) fn request_lease(&self, file: FileId, end: u64) -> Result<Option<BackingFile>> {
        let size = self.store.data().facts(file)?.size.max(end);
        self.backing.read_cache.forget(file);
        let lease = async {
            if self.homes.is_authority(file) {
                return self.create_striped(self.own, file, size).await;
            }
            // Without a pending truncation, bytes would be written beyond the end.
            self.striped.learn_reshape(file).await?;
            match self
                .peers
                .ask(self.homes.authority(file), PeerRequest::CreateBacking { file, size })
                .await?
            {
                PeerReply::BackingFile { backing_file } => Ok(backing_file),
                other => Err(nonsense(&other)),
            }
        };
        self.life.await_unless_it_ends(lease)?
    }

    /// Creates a file of this authority in the back end with a writeback mark and at least this size, for a holder of
    /// bytes.
    pub(crate) async fn create_striped(
        &self,
        from: ServerId,
        file: FileId,
        size: u64,
    ) -> Result<Option<BackingFile>> {
        let backing = &*self.backing;
        tokio::task::block_in_place(|| self.layer.refresh(file))?;
        let _order = self.striped.order(file).lock().await;
        self.layer.recover_from_backing(file).await?;
        self.forget_vanished(file).await?;
        let backing_file = tokio::task::block_in_place(|| -> Result<_> {
            let Some(layout) = self.homes.shared_layout(file)? else { return Ok(None) };
            // The final size of a file with direct writers is unknown: the back end chooses the layout.
            let known = match self.writers.route.are_open() {
                true => self.layer.create_backing(backing, file, &|_| None)?,
                false => self.layer.create_backing(backing, file, &self.choose_layout(file))?,
            };
            let Some(known) = known else { return Ok(None) };
            let grown = self.layer.grow_shared(backing, file, size)?;
            Ok(grown.map(|(place, grown)| BackingFile { place, grown, layout, owner: known.owner }))
        });
        if from != self.own && matches!(backing_file, Ok(Some(_))) {
            self.parts.begin(file, from);
        }
        match backing_file {
            Err(error) if error.kind() == ErrorKind::NotFound && self.store.names().inode(file).is_err() => {
                Ok(None)
            }
            backing_file => backing_file,
        }
    }

    /// A holder has drained all its bytes.
    pub(crate) fn part_drained(&self, from: ServerId, file: FileId) {
        self.parts.end(file, from);
        self.doorbell.notify_one();
    }

    /// Sets the writeback mark of a file of this authority before it is truncated or punched, so that the change
    /// reaches the back end after a crash too. The caller holds the file's order lock.
    pub(crate) fn claim_shared(&self, file: FileId) -> Result<()> {
        match self.backing.knows(file)? {
            true => self.layer.create_backing(&self.backing, file, &|_| None).map(drop),
            false => Ok(()),
        }
    }

    /// A file was truncated: truncates it in the back end at once if possible.
    pub(crate) fn trim_shared(&self, file: FileId, change: Reshape) {
        let Reshape::Cut(size) = change else { return };
        if let Err(error) = self.layer.shorten(&self.backing, file, size) {
            tracing::warn!(%file, %error, "cannot truncate a file in the back end; it is truncated later");
        }
    }

    /// Suspends writes to a file in the back end while the result is held; afterwards they need a new lease.
    pub(crate) fn be_still(&self, file: FileId) -> Result<(Quiesced, SuspendedWrites<'_>)> {
        self.backing.read_cache.forget(file);
        let suspended = self.writers.leases.suspend(file, self.suspension)?;
        // Without a lease nothing is reserved; ranges that were reserved with one do not start their I/O any more.
        let quiesce = self.writers.range_locks.quiesce_within(file, self.suspension)?;
        Ok((quiesce, suspended))
    }

    /// Makes this server's part of a file in the back end match the buffer. Writes are suspended.
    pub(crate) fn match_part(
        &self,
        (file, layout): (FileId, &Layout),
        place: &Place,
        size: u64,
        lost_below: u64,
    ) -> Result<FilePart> {
        let (data, backing) = (self.store.data(), &*self.backing);
        if !layout.servers.contains(&self.own) {
            return self.homes.held(file);
        }
        if lost_below > 0 {
            data.lose(file, lost_below)?;
        }
        // Direct writes, too, are synced before the writeback mark ends.
        self.writers.sync_direct_until_done(file)?;
        let object = open_place(backing, file, place)?;
        let there = backing.ask(|_| object.version())?.size;
        // Bytes may have been written and drained on this server since the size was measured.
        let size = size.max(data.facts(file)?.size);
        let gaps = data.gaps(file, Span::new(0, size.min(there)))?;
        backing.ask(|_| -> Result<()> {
            for &gap in &gaps {
                let mut own = layout.pieces(gap).filter(|(server, _)| *server == self.own);
                own.try_for_each(|(_, span)| object.zero(span))?;
            }
            object.sync()
        })?;
        self.writers.forget_direct(file);
        data.hollow(file, &gaps, Batch::default())?;
        self.homes.held(file)
    }

    /// Makes a file of this authority match in the back end and finalizes it: sets its size, zeros, owner, mode and
    /// time, and records its version.
    pub(crate) async fn finalize_striped(&self, file: FileId, last: bool) -> Result<Extras> {
        let backing = &*self.backing;
        let _order = self.striped.order(file).lock().await;
        let Some((layout, place)) = tokio::task::block_in_place(|| self.to_finalize(backing, file))? else {
            return tokio::task::block_in_place(|| self.layer.finalize(backing, file, last, None));
        };
        self.striped.notify_reshaped(file).await?;
        let size = self.striped.length(file).await?;
        // Trailing zeros are in the back end as soon as the file has its size there.
        tokio::task::block_in_place(|| self.layer.grow_shared(backing, file, size))?;
        let mut list = Vec::new();
        for server in self.homes.holders(file)? {
            let lost_below = self.homes.lost_below(file, server)?;
            let (layout, place) = (layout.clone(), place.clone());
            list.push((server, PeerRequest::MatchSize { file, layout, place, size, lost_below }));
        }
        let mut others = FilePart::default();
        for answer in self.peers.request_all(list).await {
            match answer? {
                PeerReply::Facts(held) => others = and(others, held),
                other => return Err(nonsense(&other)),
            }
        }
        tokio::task::block_in_place(|| {
            let _suspended = self.be_still(file)?;
            let own = self.match_part((file, &layout), &place, size, 0)?;
            // A holder may have written and drained more between the measurement and the suspension.
            let held = and(own, others);
            let facts = Facts { size: size.max(held.size), touched: held.touched, ..Facts::default() };
            let extras = self.layer.finalize(backing, file, last, Some(facts))?;
            self.homes.note_extent(file, |extent| {
                if !extent.size_pending {
                    extent.elsewhere = Some(others.buffered);
                    extent.touched = extent.touched.max(others.touched);
                }
            })?;
            Ok(extras)
        })
    }

    /// Layout and place of a file with a writeback mark; `None` if it has no name or is missing in the back end.
    fn to_finalize(&self, backing: &Backing, file: FileId) -> Result<Option<(Layout, Place)>> {
        let named = self.store.names().inode(file).is_ok_and(|inode| !inode.parents.is_empty());
        if !named || backing.mark(file).is_none() || backing.has_vanished(file)? {
            return Ok(None);
        }
        let Some(layout) = self.homes.shared_layout(file)? else { return Ok(None) };
        Ok(self.layer.grow_shared(backing, file, 0)?.map(|(place, _)| (layout, place)))
    }

    /// How much of these files was written before `before` and is not drained on this server. Queues them if `drain` is
    /// set.
    pub(crate) fn undrained(&self, files: &[FileId], before: Stamp, drain: bool) -> PeerReply {
        let (data, now) = (self.store.data(), Instant::now());
        let left = files.iter().map(|&file| {
            let bytes = bytes_left(data, file, before);
            let mut drain_queue = self.drain_queue();
            if bytes > 0 && drain {
                if before == Stamp(u64::MAX) {
                    // The first poll for a drain request.
                    drain_queue.failures.retry_now(now, file);
                }
                drain_queue.choose(now, file);
            }
            Undrained { bytes, tries: drain_queue.failures.tries(file) }
        });
        let left = left.collect();
        self.doorbell.notify_one();
        PeerReply::Undrained { now: data.now(), left }
    }

    /// Files of this authority with writeback marks that no server works on.
    pub(super) fn abandoned(&self, backing: &Backing) -> BTreeSet<FileId> {
        let writeback_marks = backing.all_marked().into_iter();
        writeback_marks.filter(|&file| self.homes.is_shared(file) && !self.parts.are_busy(file)).collect()
    }
}

/// How much of a file was written before `before` and is still in the buffer. A repeated poll only needs to know whether
/// anything is left.
fn bytes_left(data: &Data, file: FileId, before: Stamp) -> u64 {
    match data.write_back(file).and_then(|()| data.backlog(file)) {
        Ok(None) => 0,
        Ok(Some(backlog)) if before == Stamp(u64::MAX) => backlog.bytes,
        Ok(Some(backlog)) => u64::from(backlog.oldest <= before),
        // A file whose backlog cannot be read is not drained.
        Err(_) => 1,
    }
}

/// The same answer from a server without a back end, which never drains them.
pub(crate) fn never_drained(data: &Data, files: &[FileId], before: Stamp) -> PeerReply {
    let left = files.iter().map(|&file| Undrained { bytes: bytes_left(data, file, before), tries: u32::MAX });
    PeerReply::Undrained { left: left.collect(), now: data.now() }
}

/// Opens a file for writing whose name another server may have.
pub(crate) fn open_place(backing: &Backing, file: FileId, place: &Place) -> Result<Box<dyn Object>> {
    let opened = backing.ask(|backend| backend.open_to_write(&place.path));
    let object = opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound => missing_in_backing(file),
        _ => error,
    })?;
    match backing.ask(|_| object.version())?.serial == place.serial {
        true => Ok(object),
        false => Err(missing_in_backing(file)),
    }
}
