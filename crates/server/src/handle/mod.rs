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

mod attr;
mod drain;
mod keys;
mod names;
mod open;
mod sharing;
mod status;

pub(crate) use open::SET_ID;

use crate::caller::Caller;
use crate::cluster::{Blocked, Outcome};
use crate::file_homes::is_striped;
use crate::members::check_maker;
use crate::service::Service;
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Stamp};
use forebay_store::{Body, Data, Facts, Inode};
use forebay_wire::{DrainCall, Reply, Request};

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

impl Service {
    /// Executes a request.
    pub(crate) fn handle(&self, caller: &Caller, request: &Request) -> Outcome {
        let handled = self.handle_alone(caller, request);
        if let (Some(engine), Ok(reply)) = (&self.drain, &handled) {
            self.note_change(engine, request, reply);
        }
        handled
    }

    fn handle_alone(&self, caller: &Caller, request: &Request) -> Outcome {
        // Only these classes change state that a later request could observe.
        let _pass = match class(request, self.backing.is_some()) {
            Class::Usual | Class::Backing | Class::Listing => Some(caller.connection_epoch.pass()?),
            Class::Urgent
            | Class::WaitsForPeers
            | Class::Slow
            | Class::Peer
            | Class::Memory
            | Class::Data => None,
        };
        match *request {
            Request::Ping => Ok(Reply::Done),
            Request::Walk { dir, ref path, follow } => self.walk(caller, dir, path, follow),
            Request::Jump { ref path, follow, known } => self.jump(caller, path, follow, known),
            Request::GetAttr { file } => self.get_attr(caller, file),
            Request::SetAttr { file, ref change } => self.set_attr(caller, file, change),
            Request::Open { file, access, truncate } => self.open(caller, file, access, truncate),
            Request::Create { dir, ref name, mode, access, if_exists } => {
                self.create(caller, (dir, name), mode, access, if_exists)
            }
            Request::Reopen { ref token } => self.reopen(caller, token),
            Request::Close { ref token } => self.close(caller, token),
            Request::Truncate { ref token, size } => self.truncate(caller, token, size),
            Request::TruncateFile { file, size } => self.truncate_file(caller, file, size),
            Request::Extend { ref token, size } => self.extend(caller, token, size),
            Request::Punch { ref token, offset, len } => self.punch(caller, token, offset, len),
            Request::Sync { ref token } => self.sync(caller, token),
            Request::Seek { ref token, offset, to, end, stripes } => {
                self.seek(caller, token, offset, to, end, stripes)
            }
            Request::SyncAll => {
                self.sync_all_direct()?;
                Ok(self.when_there_is_room(Data::sync_all).map(|()| Reply::Done)?)
            }
            Request::GetLayout { file } => self.get_layout(caller, file),
            Request::SetLayout { dir, striping } => self.set_layout(caller, dir, striping),
            Request::MakeDir { dir, ref name, mode } => self.make_dir(caller, dir, name, mode),
            Request::MakeSpecial { dir, ref name, mode, special } => {
                self.make_special(caller, dir, name, mode, special)
            }
            Request::RemoveDir { dir, ref name } => self.remove_dir(caller, dir, name),
            Request::Unlink { dir, ref name } => self.unlink(caller, dir, name),
            Request::Rename { dir, ref name, to_dir, ref to_name, mode } => {
                self.rename(caller, (dir, name), (to_dir, to_name), mode)
            }
            Request::Link { file, dir, ref name } => self.link(caller, file, dir, name),
            Request::Symlink { dir, ref name, ref target } => self.symlink(caller, dir, name, target),
            Request::ReadLink { file } => self.read_link(caller, file),
            Request::LocalPipe { file } => self.local_pipe(caller, file),
            Request::ReadDir { dir, cookie, limit, plus } => self.read_dir(caller, dir, cookie, limit, plus),
            Request::GetXattr { file, ref name } => self.get_xattr(caller, file, name),
            Request::SetXattr { file, ref name, ref value, mode } => {
                self.set_xattr(caller, file, name, value, mode)
            }
            Request::ListXattr { file } => self.list_xattr(caller, file),
            Request::RemoveXattr { file, ref name } => self.remove_xattr(caller, file, name),
            Request::StatFs => Ok(Reply::Usage(self.usage())),
            Request::Status => Ok(Reply::Status(Box::new(self.status(caller)))),
            Request::Shutdown => self.shutdown(caller),
            Request::History { cursor } => {
                let (samples, next) = self.history.from(cursor)?;
                Ok(Reply::History { samples, next })
            }
            Request::Number { row } => Ok(Reply::Number(self.rows.next(caller.who.uid, row))),
            Request::GetPolicy => Ok(Reply::Sharing(Box::new(self.sharing()))),
            Request::Exchange(ref exchange) => self.receive_table(caller, exchange.clone()),
            Request::Drain(ref call) => self.drain(caller, call),
            Request::SetRoute { ref mode } => {
                caller.demand("change the routing mode of this service")?;
                Ok(self.set_route(caller.who.uid, mode).map(|()| Reply::Done)?)
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

    /// Fails unless the caller can reach this file; see the head of this module.
    fn reach(&self, caller: &Caller, file: FileId) -> Result<(), Blocked> {
        check_maker(&*self.members, file)?;
        if file == FileId::ROOT {
            return Ok(());
        }
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        self.layer.refresh_above(file)?;
        // A name would have been looked up before: an id that leads nowhere belongs to a removed file.
        self.store.names().reach(&caller.who, file).map_err(|stopped| match Blocked::from(stopped) {
            Blocked::Failed(miss)
                if miss.kind() == ErrorKind::NotFound && self.join_state.may_have_lost_file(file) =>
            {
                self.join_state.lost(&miss).into()
            }
            stop => vanished(stop),
        })
    }

    /// The `stat` attributes of a file of this server.
    fn attr(&self, caller: &Caller, file: FileId, inode: &Inode) -> Result<Attr, Blocked> {
        let facts = match &inode.body {
            Body::File { extent, .. } if is_striped(extent) => {
                let mut facts = self.store.data().facts(file)?;
                (facts.size, facts.touched) =
                    (facts.size.max(extent.least), facts.touched.max(extent.touched));
                match (extent.is_open(), caller.retry_context.held.get(&file)) {
                    (true, None) => return Err(Blocked::Gather(file)),
                    (true, Some(held)) => {
                        facts.size = facts.size.max(held.size);
                        facts.touched = facts.touched.max(held.touched);
                        facts.buffered += held.buffered;
                    }
                    (false, _) => facts.buffered += extent.elsewhere.unwrap_or(0),
                }
                facts
            }
            Body::File { .. } => self.store.data().facts(file)?,
            Body::Directory { .. } if self.homes.has_all_names() => self.store.names().share(file)?.into(),
            Body::Directory { .. } => match caller.retry_context.shares.get(&file) {
                Some(&share) => share.into(),
                None => return Err(Blocked::Shares(file)),
            },
            Body::Symlink { .. } | Body::Special { .. } => Facts::default(),
        };
        Ok(self.shown(file, inode, &facts))
    }

    fn shown(&self, file: FileId, inode: &Inode, facts: &Facts) -> Attr {
        let mut attr = inode.attr(file, facts, self.store.data().times());
        if self.backing.is_some() && attr.kind == FileKind::Directory {
            // The number of subdirectories in the back end is unknown without listing; a link count of 1 means "not
            // counted".
            attr.links = 1;
        }
        attr
    }

    fn now(&self) -> Stamp {
        self.store.data().now()
    }
}

/// A file that was named by id and does not exist existed once: the caller's id is stale.
fn vanished(stop: impl Into<Blocked>) -> Blocked {
    stop.into().map(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
        _ => error,
    })
}
