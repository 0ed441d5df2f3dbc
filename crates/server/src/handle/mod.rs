//! Handlers of requests. They call the store synchronously: the turn was taken before, and they wait only for the
//! store.
//!
//! # Requests that name a file by its id
//!
//! Ids are guessable, so knowing an id proves nothing; a file of mode 0644 in a directory of mode 0700 is protected
//! only by that directory. The caller must therefore be able to reach every file or directory that a request names by
//! id: through one of its names, with search permission on all directories above
//! ([`Names::reach`](forebay_store::Names::reach)). Alternatively, the caller's session has the file open, as for a
//! file without a name. After that the file's own mode decides as usual. This check needs no record of earlier lookups,
//! so it survives restarts, and a mode change on the path takes effect at once. An issued token stays valid until it is
//! closed, like an open file on any POSIX file system.

mod access;
mod attr;
mod drain;
mod keys;
mod names;
mod open;
mod resolve;
mod sharing;
mod status;

pub(crate) use access::FileAccess;
pub(crate) use attr::AttrRequests;
pub(crate) use drain::DrainRequests;
pub(crate) use keys::KeyRequests;
pub(crate) use names::NameRequests;
pub(crate) use open::OpenRequests;
pub(crate) use resolve::Resolver;
pub(crate) use sharing::SharingRequests;
pub(crate) use status::StatusRequests;

use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome};
use crate::connection_epoch::Pass;
use crate::direct::DirectIo;
use crate::history::History;
use crate::rows::Rows;
use forebay_model::{Error, ErrorKind, Result};
use forebay_wire::{DrainCall, Reply, Request};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// At once and without a turn, so that heartbeats and diagnosis work on a busy server.
    Urgent,
    /// Without a turn, but it waits for other servers, or for requests in progress.
    WaitsForPeers,
    /// In its turn.
    Usual,
    /// In its turn; it waits for a device.
    Slow,
    /// In its turn; it may wait for the back end.
    Backing,
    /// In one turn per piece.
    Listing,
    /// At once and without a turn, because another server sent it.
    Peer,
    /// In its turn, for which the shared-memory handler waits itself.
    Memory,
    /// On a data connection only.
    Data,
}

/// How a request is served, with or without a back end.
pub(crate) fn class(request: &Request, has_backing: bool) -> Class {
    match request {
        Request::Ping
        | Request::Status
        | Request::Shutdown
        | Request::GetPolicy
        | Request::Number { .. }
        | Request::Exchange(_)
        | Request::Drain(DrainCall::Look { .. })
        | Request::SetRoute { .. } => Class::Urgent,
        Request::SetPolicy { .. }
        | Request::ReplaceServer { .. }
        | Request::Losses
        | Request::Repair { .. }
        | Request::Keys(_)
        | Request::Abandon { .. } => Class::WaitsForPeers,
        Request::Peer(_) => Class::Peer,
        Request::Sync { .. } | Request::SyncAll | Request::Seek { .. } => Class::Slow,
        Request::Ring { .. }
        | Request::Slab { .. }
        | Request::Map { .. }
        | Request::MapFile { .. }
        | Request::KeepPages { .. }
        | Request::Queue => Class::Memory,
        Request::Write { .. } | Request::Read { .. } => Class::Data,
        Request::ReadDir { .. } => Class::Listing,
        _ if has_backing => Class::Backing,
        _ => Class::Usual,
    }
}

/// Serves requests by their families.
pub(crate) struct Requests {
    pub(crate) names: Arc<NameRequests>,
    pub(crate) attrs: Arc<AttrRequests>,
    pub(crate) open_files: Arc<OpenRequests>,
    pub(crate) drains: DrainRequests,
    pub(crate) sharing: Arc<SharingRequests>,
    pub(crate) status: StatusRequests,
    pub(crate) direct: Arc<DirectIo>,
    pub(crate) history: Arc<History>,
    pub(crate) rows: Rows,
    pub(crate) has_backing: bool,
}

impl Requests {
    /// Executes a request.
    pub(crate) fn handle(&self, caller: &Caller, request: &Request) -> Outcome {
        let handled = self.handle_alone(caller, request);
        if let Ok(reply) = &handled {
            self.drains.note_change(request, reply);
        }
        handled
    }

    /// The permit of the caller's connection to change state that a later request could observe.
    fn pass(&self, caller: &Caller, request: &Request) -> Result<Option<Pass>> {
        match class(request, self.has_backing) {
            Class::Usual | Class::Backing | Class::Listing => caller.connection_epoch.pass().map(Some),
            Class::Urgent
            | Class::WaitsForPeers
            | Class::Slow
            | Class::Peer
            | Class::Memory
            | Class::Data => Ok(None),
        }
    }

    fn handle_alone(&self, caller: &Caller, request: &Request) -> Outcome {
        let _pass = self.pass(caller, request)?;
        match *request {
            Request::Ping => Ok(Reply::Done),
            Request::Walk { dir, ref path, follow } => self.names.walk(caller, dir, path, follow),
            Request::Jump { ref path, follow, known } => self.names.jump(caller, path, follow, known),
            Request::GetAttr { file } => self.attrs.get_attr(caller, file),
            Request::SetAttr { file, ref change } => self.attrs.set_attr(caller, file, change),
            Request::Open { file, access, truncate } => self.open_files.open(caller, file, access, truncate),
            Request::Create { dir, ref name, mode, access, if_exists } => {
                self.open_files.create(caller, (dir, name), mode, access, if_exists)
            }
            Request::Reopen { ref token } => self.open_files.reopen(caller, token),
            Request::Close { ref token } => self.open_files.close(caller, token),
            Request::Truncate { ref token, size } => self.attrs.truncate(caller, token, size),
            Request::TruncateFile { file, size } => self.attrs.truncate_file(caller, file, size),
            Request::Extend { ref token, size } => self.attrs.extend(caller, token, size),
            Request::Punch { ref token, offset, len } => self.attrs.punch(caller, token, offset, len),
            Request::Sync { ref token } => self.open_files.sync(caller, token),
            Request::Seek { ref token, offset, to, end, stripes } => {
                self.open_files.seek(caller, token, offset, to, end, stripes)
            }
            Request::SyncAll => self.open_files.sync_all(),
            Request::GetLayout { file } => self.attrs.get_layout(caller, file),
            Request::SetLayout { dir, striping } => self.attrs.set_layout(caller, dir, striping),
            Request::MakeDir { dir, ref name, mode } => self.names.make_dir(caller, dir, name, mode),
            Request::MakeSpecial { dir, ref name, mode, special } => {
                self.names.make_special(caller, dir, name, mode, special)
            }
            Request::RemoveDir { dir, ref name } => self.names.remove_dir(caller, dir, name),
            Request::Unlink { dir, ref name } => self.names.unlink(caller, dir, name),
            Request::Rename { dir, ref name, to_dir, ref to_name, mode } => {
                self.names.rename(caller, (dir, name), (to_dir, to_name), mode)
            }
            Request::Link { file, dir, ref name } => self.names.link(caller, file, dir, name),
            Request::Symlink { dir, ref name, ref target } => self.names.symlink(caller, dir, name, target),
            Request::ReadLink { file } => self.names.read_link(caller, file),
            Request::LocalPipe { file } => self.names.local_pipe(caller, file),
            Request::ReadDir { dir, cookie, limit, plus } => {
                self.names.read_dir(caller, dir, cookie, limit, plus)
            }
            Request::GetXattr { file, ref name } => self.attrs.get_xattr(caller, file, name),
            Request::SetXattr { file, ref name, ref value, mode } => {
                self.attrs.set_xattr(caller, file, name, value, mode)
            }
            Request::ListXattr { file } => self.attrs.list_xattr(caller, file),
            Request::RemoveXattr { file, ref name } => self.attrs.remove_xattr(caller, file, name),
            Request::StatFs => Ok(Reply::Usage(self.status.usage())),
            Request::Status => Ok(Reply::Status(Box::new(self.status.status(caller)))),
            Request::Shutdown => self.status.shutdown(caller),
            Request::History { cursor } => {
                let (samples, next) = self.history.from(cursor)?;
                Ok(Reply::History { samples, next })
            }
            Request::Number { row } => Ok(Reply::Number(self.rows.next(caller.who.uid, row))),
            Request::GetPolicy => Ok(Reply::Sharing(Box::new(self.sharing.sharing()))),
            Request::Exchange(ref exchange) => self.sharing.receive_table(caller, exchange.clone()),
            Request::Drain(ref call) => self.drains.serve(caller, call),
            Request::SetRoute { ref mode } => {
                caller.demand("change the routing mode of this service")?;
                Ok(self.direct.set_route(caller.who.uid, mode).map(|()| Reply::Done)?)
            }
            Request::Write { .. } | Request::Read { .. } => {
                Err(Error::new(ErrorKind::Protocol, "reads and writes belong on data connections").into())
            }
            Request::SetPolicy { .. }
            | Request::ReplaceServer { .. }
            | Request::Losses
            | Request::Repair { .. }
            | Request::Ring { .. }
            | Request::Slab { .. }
            | Request::Map { .. }
            | Request::MapFile { .. }
            | Request::KeepPages { .. }
            | Request::Queue
            | Request::Keys(_)
            | Request::Abandon { .. }
            | Request::Peer(_) => {
                Err(Error::new(ErrorKind::Protocol, "this request belongs on control connections").into())
            }
        }
    }
}

/// A file that was named by id and does not exist existed once: the caller's id is stale.
fn vanished(stop: impl Into<Blocked>) -> Blocked {
    stop.into().map(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
        _ => error,
    })
}
