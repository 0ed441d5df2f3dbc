//! Drain requests.

use super::FileAccess;
use crate::backing::{BackingLayer, Brought};
use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome, Peers};
use crate::drain::{BufferSpace, DrainEngine};
use crate::file_homes::FileHomes;
use crate::lifecycle::Lifecycle;
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Result, ServerId, Span};
use forebay_store::{Data, Store};
use forebay_wire::{DrainCall, DrainReport, MAX_FETCH, PeerRequest, Reply, Request};
use std::collections::HashSet;
use std::sync::Arc;

/// Serves requests about the drain, and notes for it what other requests change.
pub(crate) struct DrainRequests {
    pub(crate) access: Arc<FileAccess>,
    pub(crate) store: Arc<Store>,
    pub(crate) homes: Arc<FileHomes>,
    pub(crate) peers: Arc<Peers>,
    pub(crate) layer: Arc<BackingLayer>,
    pub(crate) drain: Option<Arc<DrainEngine>>,
    pub(crate) space: Arc<BufferSpace>,
    pub(crate) life: Arc<Lifecycle>,
}

impl DrainRequests {
    pub(super) fn serve(&self, caller: &Caller, call: &DrainCall) -> Outcome {
        let Some(engine) = &self.drain else {
            let text = "this server has no back end: start it with --backend";
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        };
        if matches!(call, DrainCall::Begin { .. }) && !self.homes.is_authority(FileId::ROOT) {
            let first = self.homes.authority(FileId::ROOT);
            let text = format!("server {first} owns the names of this service: send drain requests to it");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut brought = Brought::default();
        let ticket = match call {
            DrainCall::Begin { file, order, last } => {
                match file {
                    // The root stands for everything.
                    None | Some(FileId::ROOT) => caller.demand("drain everything")?,
                    Some(file) => self.check_drain(caller, *file)?,
                }
                if order.is_some() || *last {
                    caller.demand("set the drain order or start the final drain")?;
                }
                if let Some(order) = order {
                    self.set_order(order)?;
                }
                Some(self.begin(engine, caller, *file, *last)?)
            }
            DrainCall::Fetch { file, offset, len, turn } => {
                self.access.reach(caller, *file)?;
                self.store.names().check_open(&caller.who, *file, Access::READ).map_err(super::vanished)?;
                brought = self.bring_near(*file, (*offset, *len), *turn)?;
                None
            }
            DrainCall::Look { ticket } => *ticket,
        };
        let Brought { bytes: fetched, full } = brought;
        Ok(Reply::Drain(Box::new(DrainReport { fetched, full, ..engine.report(ticket, caller.only_own())? })))
    }

    /// Begins a drain. Data stored into mappings is drained too; if the buffer is full, draining frees space for it first.
    fn begin(&self, engine: &DrainEngine, caller: &Caller, file: Option<FileId>, last: bool) -> Result<u64> {
        let user = caller.who.uid;
        let mapped: Vec<FileId> =
            self.store.data().mapped().into_iter().filter(|&mapped| self.is_part_of(mapped, file)).collect();
        let write_back = |data: &Data| mapped.iter().try_for_each(|&file| data.write_back(file));
        if let Err(error) = write_back(self.store.data()) {
            if error.kind() != ErrorKind::NoSpace {
                return Err(error);
            }
            engine.begin(user, file, false)?;
            self.space.when_there_is_room(write_back)?;
        }
        engine.begin(user, file, last)
    }

    /// Whether a file is the drained one, or below it. A file with a name on another server may be.
    fn is_part_of(&self, file: FileId, drained: Option<FileId>) -> bool {
        let Some(drained) = drained.filter(|&drained| drained != FileId::ROOT) else { return true };
        let (mut above, mut seen) = (vec![file], HashSet::new());
        while let Some(at) = above.pop() {
            if at == drained {
                return true;
            }
            if at == FileId::ROOT || !seen.insert(at) {
                continue;
            }
            match self.store.names().inode(at) {
                Ok(inode) => above.extend(inode.parents),
                Err(_) => return !self.homes.is_authority(at),
            }
        }
        false
    }

    /// Fails unless the caller may drain a file: its own files, and files that it may write to.
    fn check_drain(&self, caller: &Caller, file: FileId) -> Result<(), Blocked> {
        self.access.reach(caller, file)?;
        let inode = self.store.names().inode(file).map_err(super::vanished)?;
        if inode.uid == caller.who.uid {
            return Ok(());
        }
        match inode.kind() {
            FileKind::File => {
                self.store.names().check_open(&caller.who, file, Access::WRITE).map_err(super::vanished)?;
                Ok(())
            }
            _ => Ok(caller.demand(&format!("drain what belongs to user {}", inode.uid))?),
        }
    }

    fn bring_near(&self, file: FileId, (offset, len): (u64, u64), turn: u64) -> Result<Brought> {
        let Some(span) = Span::at(offset, len.min(MAX_FETCH)) else { return Ok(Brought::default()) };
        self.store.names().inode(file)?;
        tokio::task::block_in_place(|| self.life.await_unless_it_ends(self.layer.fetch(file, span, turn)))?
    }

    /// Sets the drain order on all servers, or on none if one of them does not support it.
    fn set_order(&self, order: &str) -> Result<()> {
        for dry_run in [true, false] {
            self.drain.iter().try_for_each(|engine| engine.set_order(order, dry_run))?;
            if self.life.is_alone() {
                continue;
            }
            let servers = self.peers.others();
            let request =
                |&server: &ServerId| (server, PeerRequest::Order { order: order.to_owned(), dry_run });
            let list = servers.iter().map(request).collect();
            let answers =
                tokio::task::block_in_place(|| self.life.await_unless_it_ends(self.peers.request_all(list)))?;
            for (server, answer) in servers.into_iter().zip(answers) {
                answer.map_err(|error| error.within(format!("server {server} refused the drain order")))?;
            }
        }
        Ok(())
    }

    /// Records a file that was created or changed in the buffer, so that the drain updates the back end.
    pub(super) fn note_change(&self, request: &Request, reply: &Reply) {
        let Some(engine) = &self.drain else { return };
        let made = match reply {
            Reply::Attr(attr) | Reply::Opened { attr, created: true, .. } => Some(attr.id),
            _ => None,
        };
        match request {
            Request::Create { dir, name, .. }
            | Request::MakeDir { dir, name, .. }
            | Request::MakeSpecial { dir, name, .. }
            | Request::Link { dir, name, .. }
            | Request::Symlink { dir, name, .. } => {
                if let Some(file) = made {
                    engine.note_created(file, *dir, name.clone());
                }
            }
            Request::Unlink { dir, .. } | Request::RemoveDir { dir, .. } => engine.note(*dir),
            Request::Rename { dir, to_dir, .. } => {
                engine.note(*dir);
                engine.note(*to_dir);
            }
            Request::SetAttr { file, .. } | Request::TruncateFile { file, .. } => engine.note(*file),
            Request::Truncate { token, .. }
            | Request::Extend { token, .. }
            | Request::Punch { token, .. } => {
                engine.note(token.file);
            }
            _ => {}
        }
    }
}
