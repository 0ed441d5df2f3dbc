//! Draining on request.

use crate::drain::Engine;
use crate::service::{Caller, Service};
use crate::several::Handled;
use crate::union::Brought;
use forebay_model::{Error, ErrorKind, FileId, Result, ServerId, Span};
use forebay_wire::{DrainCall, DrainReport, MAX_FETCH, PeerRequest, Reply, Request};

impl Service {
    pub(super) fn drain(&self, caller: &Caller, call: &DrainCall) -> Handled {
        let Some(engine) = &self.drain else {
            let text = "this server has nothing behind it: start it with --backend";
            return Err(Error::new(ErrorKind::Unsupported, text).into());
        };
        if matches!(call, DrainCall::Begin { .. }) && !self.is_authority(FileId::ROOT) {
            let first = self.members.members().authority(FileId::ROOT);
            let text = format!("server {first} has the names of this service: it is asked to drain");
            return Err(Error::new(ErrorKind::Invalid, text).into());
        }
        let mut brought = Brought::default();
        let ticket = match call {
            DrainCall::Begin { file, order, last } => {
                match file {
                    Some(file) => self.reach(caller, *file)?,
                    None => self.demand(caller, "drain everything")?,
                }
                if order.is_some() || *last {
                    self.demand(caller, "say how the buffer drains")?;
                }
                if let Some(order) = order {
                    self.set_order(order)?;
                }
                Some(engine.begin(self, *file, *last)?)
            }
            DrainCall::Fetch { file, offset, len, turn } => {
                self.reach(caller, *file)?;
                brought = self.bring_near(*file, (*offset, *len), *turn)?;
                None
            }
            DrainCall::Look { ticket } => *ticket,
        };
        let Brought { bytes: fetched, full } = brought;
        Ok(Reply::Drain(Box::new(DrainReport { fetched, full, ..engine.report(self, ticket)? })))
    }

    fn bring_near(&self, file: FileId, (offset, len): (u64, u64), turn: u64) -> Result<Brought> {
        let (Some(service), Some(span)) = (self.me(), Span::at(offset, len.min(MAX_FETCH))) else {
            return Ok(Brought::default());
        };
        self.store.names().inode(file)?;
        tokio::task::block_in_place(|| self.await_unless_it_ends(service.fetch(file, span, turn)))?
    }

    /// From now on things leave all servers in this order; or none, if one of them cannot say so.
    fn set_order(&self, order: &str) -> Result<()> {
        for ask in [true, false] {
            self.set_order_here(order, ask)?;
            let (false, Some(service)) = (self.is_alone(), self.me()) else { continue };
            let (members, own) = (self.members.members(), self.config.server);
            let others = members.servers().filter(|server| *server != own);
            let list = others.map(|server| (server, PeerRequest::Order { order: order.to_owned(), ask }));
            let list: Vec<_> = list.collect();
            let servers: Vec<ServerId> = list.iter().map(|(server, _)| *server).collect();
            let told = tokio::task::block_in_place(|| self.await_unless_it_ends(service.ask_all(list)))?;
            for (server, answer) in servers.into_iter().zip(told) {
                answer.map_err(|error| error.within(format!("server {server} keeps its order")))?;
            }
        }
        Ok(())
    }

    /// The same of this server alone.
    pub(crate) fn set_order_here(&self, order: &str, ask: bool) -> Result<()> {
        self.drain.as_ref().map_or(Ok(()), |engine| engine.set_order(order, ask))
    }

    /// Remembers what was made or changed here, and may have to be so behind.
    pub(super) fn note_change(&self, engine: &Engine, request: &Request, reply: &Reply) {
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
                if let (Some(file), Some(union)) = (made, &self.union) {
                    union.note_name(file, *dir, name.clone());
                    engine.note(file);
                    engine.note(*dir);
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
