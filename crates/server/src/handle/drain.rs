//! Draining on request.

use crate::drain::Engine;
use crate::service::{Caller, Service};
use crate::several::Handled;
use forebay_model::{Error, ErrorKind, FileId};
use forebay_wire::{DrainCall, Reply, Request};

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
        let ticket = match call {
            DrainCall::Begin { file, order, last } => {
                match file {
                    Some(file) => self.reach(caller, *file)?,
                    None => self.demand(caller, "drain everything")?,
                }
                if order.is_some() && !self.is_alone() {
                    let text =
                        "several servers drain in the order of their settings: set order in [server.drain]";
                    return Err(Error::new(ErrorKind::Unsupported, text).into());
                }
                if order.is_some() || *last {
                    self.demand(caller, "say how the buffer drains")?;
                }
                Some(engine.begin(self, *file, order.as_deref(), *last)?)
            }
            DrainCall::Look { ticket } => *ticket,
        };
        Ok(Reply::Drain(Box::new(engine.report(self, ticket)?)))
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
