//! Files whose bytes several servers hold: each drains its own, and the authority says where and how long the file is.
//!
//! ```text
//! holder                              authority
//!   Bear      I have bytes of it    →   makes it behind, claims it, makes it long enough
//!   (writes and syncs its own bytes, lets go of them)
//!   Drained   they are out          →   soon:
//!   Level                           ←   write no more; have zeros where it has zeros of yours
//!                                       cuts it to its length, dresses it, sees it anew, ends the claim
//! ```
//!
//! **Invariant**: the length behind is changed by the authority alone, in the file's order, and made less only while all
//! holders are still; a claim that outlives its server is concluded like any other.

use super::Engine;
use super::permits::{Permits, Still};
use crate::route::Quiet;
use crate::service::Service;
use crate::several::{and, nonsense};
use crate::union::{Extras, Union, gone_behind};
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Layout, Reshape, Result, ServerId, Span, Stamp};
use forebay_store::{Batch, Facts};
use forebay_wire::{Born, Held, Left, PeerReply, PeerRequest, Place};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whoever wants to drain bytes of a file and was not heard of for so long has given up.
const FORGOTTEN: Duration = Duration::from_secs(15);

/// Who is draining bytes of files of ours, and since when.
#[derive(Default)]
pub(super) struct Parts {
    table: Mutex<HashMap<FileId, BTreeMap<ServerId, Instant>>>,
}

impl Parts {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, BTreeMap<ServerId, Instant>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Whether somebody is at work on a file.
    pub(super) fn are_busy(&self, file: FileId) -> bool {
        let table = self.lock();
        table.get(&file).is_some_and(|servers| servers.values().any(|since| since.elapsed() < FORGOTTEN))
    }
}

impl Service {
    /// Whether this server has the name of a file, if anybody does.
    pub(crate) fn is_authority(&self, file: FileId) -> bool {
        self.is_alone() || self.members.members().authority(file) == self.config.server
    }

    /// Whether other servers may hold bytes of a file, or its name.
    pub(crate) fn is_shared(&self, file: FileId) -> bool {
        !self.is_authority(file) || self.shared_layout(file).is_ok_and(|layout| layout.is_some())
    }

    /// Leave to write to a file behind, so far at least, from its authority. For threads that may wait.
    pub(crate) fn leave(self: &Arc<Service>, file: FileId, end: u64) -> Result<Option<Born>> {
        let size = self.store.data().facts(file)?.size.max(end);
        self.union.iter().for_each(|union| union.near.forget(file));
        let asked = async {
            if self.is_authority(file) {
                return self.bear_shared(self.config.server, file, size).await;
            }
            // What it has not heard of a cut would be written behind the end.
            self.learn_reshape(file).await?;
            match self.ask(self.members.members().authority(file), PeerRequest::Bear { file, size }).await? {
                PeerReply::Born { born } => Ok(born),
                other => Err(nonsense(&other)),
            }
        };
        self.await_unless_it_ends(asked)?
    }

    /// Has a file of ours behind, claimed, and so long at least, for a server that holds bytes of it.
    pub(crate) async fn bear_shared(
        self: &Arc<Service>,
        from: ServerId,
        file: FileId,
        size: u64,
    ) -> Result<Option<Born>> {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else {
            return Err(Error::new(ErrorKind::Unsupported, "this server has nothing behind it"));
        };
        tokio::task::block_in_place(|| self.refresh(file))?;
        let _order = self.afar.order(file).lock().await;
        self.recover_from_behind(file).await?;
        self.forget_vanished(file).await?;
        let born = tokio::task::block_in_place(|| -> Result<_> {
            let Some(layout) = self.shared_layout(file)? else { return Ok(None) };
            // Of what may go past the buffers nobody knows how long it will be: it lies as the back end likes.
            let known = match self.ways.are_open() {
                true => self.bear(union, file, &|_| None)?,
                false => self.bear(union, file, &engine.wish(self, file))?,
            };
            let Some(known) = known else { return Ok(None) };
            let grown = self.grow_shared(union, file, size)?;
            Ok(grown.map(|(place, grown)| Born { place, grown, layout, owner: known.owner }))
        });
        if from != self.config.server && matches!(born, Ok(Some(_))) {
            engine.parts.begin(file, from);
        }
        match born {
            Err(error) if error.kind() == ErrorKind::NotFound && self.store.names().inode(file).is_err() => {
                Ok(None)
            }
            born => born,
        }
    }

    /// A holder has drained all it held.
    pub(crate) fn part_drained(&self, from: ServerId, file: FileId) {
        if let Some(engine) = &self.drain {
            engine.parts.end(file, from);
            engine.bell.notify_one();
        }
    }

    /// A write to a file of ours is about to be cut or punched: it is claimed, so that what is behind is made the same
    /// whatever happens. The caller keeps the file's order.
    pub(crate) fn claim_shared(&self, file: FileId) -> Result<()> {
        match &self.union {
            Some(union) if union.knows(file)? => self.bear(union, file, &|_| None).map(drop),
            _ => Ok(()),
        }
    }

    /// A file was cut: so is what is behind, at once if that can be.
    pub(crate) fn trim_shared(&self, file: FileId, change: Reshape) {
        let (Some(union), Reshape::Cut(size)) = (&self.union, change) else { return };
        if let Err(error) = self.shorten(union, file, size) {
            tracing::warn!(%file, %error, "a file that was cut is still longer behind; it is cut there later");
        }
    }

    /// Writes nothing to a file behind as long as this is held, and afterwards only with new leave.
    pub(crate) fn be_still(&self, file: FileId) -> Result<Option<(Quiet, Still<'_>)>> {
        self.union.iter().for_each(|union| union.near.forget(file));
        // Less than those wait who ask for it.
        let patience = self.config.times.peer / 4;
        let Some(engine) = &self.drain else { return Ok(None) };
        let still = engine.permits.still(file, patience)?;
        // Nobody reserves anything without leave; what was reserved with it does not rise any more.
        let quiet = self.ways.lanes.quiet_within(file, patience)?;
        Ok(Some((quiet, still)))
    }

    /// Everything of this server's part of a file is made as it should be behind. It is still.
    pub(crate) fn level_here(
        &self,
        (file, layout): (FileId, &Layout),
        place: &Place,
        size: u64,
        lost_below: u64,
    ) -> Result<Held> {
        let Some(union) = &self.union else {
            return Err(Error::new(ErrorKind::Unsupported, "this server has nothing behind it"));
        };
        let data = self.store.data();
        if !layout.servers.contains(&self.config.server) {
            return self.held(file);
        }
        if lost_below > 0 {
            data.lose(file, lost_below)?;
        }
        // Also what went past the buffer is on its device before the claim ends.
        self.settle_past(file)?;
        let object = open_place(union, file, place)?;
        let there = union.ask(|_| object.version())?.size;
        // It may have been written here and drained since it was measured.
        let size = size.max(data.facts(file)?.size);
        let gaps = data.gaps(file, Span::new(0, size.min(there)))?;
        union.ask(|_| -> Result<()> {
            for &gap in &gaps {
                let mut own = layout.pieces(gap).filter(|(server, _)| *server == self.config.server);
                own.try_for_each(|(_, span)| object.zero(span))?;
            }
            object.sync()
        })?;
        self.forget_past(file);
        data.hollow(file, &gaps, Batch::default())?;
        self.held(file)
    }

    /// Everything of a file of ours is out, or is to be as it should be behind: it gets its length, zeros, owner, mode
    /// and time, and is seen anew.
    pub(crate) async fn conclude_shared(self: &Arc<Service>, file: FileId, last: bool) -> Result<Extras> {
        let Some(union) = &self.union else { return Ok(Extras::default()) };
        let _order = self.afar.order(file).lock().await;
        let Some((layout, place)) = tokio::task::block_in_place(|| self.to_conclude(union, file))? else {
            return tokio::task::block_in_place(|| self.conclude(union, file, last, None));
        };
        self.tell_reshaped(file).await?;
        let size = self.length(file).await?;
        // Zeros at its end are behind, too, as soon as it is so long there.
        tokio::task::block_in_place(|| self.grow_shared(union, file, size))?;
        let mut list = Vec::new();
        for server in self.holders(file)? {
            let lost_below = self.lost_below(file, server)?;
            let (layout, place) = (layout.clone(), place.clone());
            list.push((server, PeerRequest::Level { file, layout, place, size, lost_below }));
        }
        let mut others = Held::default();
        for answer in self.ask_all(list).await {
            match answer? {
                PeerReply::Facts(held) => others = and(others, held),
                other => return Err(nonsense(&other)),
            }
        }
        tokio::task::block_in_place(|| {
            let _still = self.be_still(file)?;
            let own = self.level_here((file, &layout), &place, size, 0)?;
            // Somebody may have written more since it was measured, and drained it before it was told to be still.
            let held = and(own, others);
            let facts = Facts { size: size.max(held.size), touched: held.touched, ..Facts::default() };
            let extras = self.conclude(union, file, last, Some(facts))?;
            self.note_extent(file, |extent| {
                if !extent.unsettled {
                    extent.elsewhere = Some(others.buffered);
                    extent.touched = extent.touched.max(others.touched);
                }
            })?;
            Ok(extras)
        })
    }

    /// Which bytes of a claimed file are whose, and where it is; nothing if it has no name or is not there.
    fn to_conclude(&self, union: &Union, file: FileId) -> Result<Option<(Layout, Place)>> {
        let named = self.store.names().inode(file).is_ok_and(|inode| !inode.parents.is_empty());
        if !named || union.claimed(file).is_none() || union.has_vanished(file)? {
            return Ok(None);
        }
        let Some(layout) = self.shared_layout(file)? else { return Ok(None) };
        Ok(self.grow_shared(union, file, 0)?.map(|(place, _)| (layout, place)))
    }

    /// What of these files was written before and is not drained here; they are, if they are to be.
    pub(crate) fn undrained(&self, files: &[FileId], before: Stamp, drain: bool) -> PeerReply {
        let (data, now) = (self.store.data(), Instant::now());
        let left = files.iter().map(|&file| {
            // Whoever asks again wants to know whether anything is left, and not how much.
            let bytes = match data.backlog(file) {
                Ok(None) => 0,
                Ok(Some(backlog)) if before == Stamp(u64::MAX) => backlog.bytes,
                Ok(Some(backlog)) => u64::from(backlog.oldest <= before),
                // What cannot be heard now is not drained either.
                Err(_) => 1,
            };
            let Some(engine) = &self.drain else { return Left { bytes, tries: u32::MAX } };
            let mut board = engine.board();
            if bytes > 0 && drain {
                if before == Stamp(u64::MAX) {
                    // The first question about it of somebody who waits.
                    board.failures.try_anew(now, file);
                }
                board.choose(now, file);
            }
            Left { bytes, tries: board.failures.tries(file) }
        });
        let left = left.collect();
        if let Some(engine) = &self.drain {
            engine.bell.notify_one();
        }
        PeerReply::Undrained { now: data.now(), left }
    }
}

impl Engine {
    /// Files of ours whose claims nobody is at work on.
    pub(super) fn abandoned(&self, service: &Service, union: &Union) -> BTreeSet<FileId> {
        let claims = union.all_claims().into_iter();
        claims.filter(|&file| service.is_shared(file) && !self.parts.are_busy(file)).collect()
    }

    pub(crate) fn permits(&self) -> &Permits {
        &self.permits
    }
}

/// Opens a file to be written whose name another server may have.
pub(crate) fn open_place(union: &Union, file: FileId, place: &Place) -> Result<Box<dyn Object>> {
    let opened = union.ask(|backend| backend.open_to_write(&place.path));
    let object = opened.map_err(|error| match error.kind() {
        ErrorKind::NotFound => gone_behind(file),
        _ => error,
    })?;
    match union.ask(|_| object.version())?.serial == place.serial {
        true => Ok(object),
        false => Err(gone_behind(file)),
    }
}
