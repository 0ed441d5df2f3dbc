//! What each request does. Everything here is plain calls of the store: turns were taken before, and nothing waits
//! but for the store itself.
//!
//! # Requests that name a file by its id
//!
//! Ids are numbers that anybody can guess, so naming one proves nothing, and a file of mode 0644 in a directory of
//! mode 0700 is protected by that directory alone. So every id in a request, of a file or a directory, must be one
//! to which the caller could walk: one of its names, and search permission on all directories above
//! ([`Names::reach`](forebay_store::Names::reach)). Or his session must have it open, as it is for a file that has
//! no name left. After that, the file's own mode decides as usual. This needs no memory of earlier walks, so it
//! survives restarts, and a mode that is changed anywhere on the way counts at once. A token, once given, counts
//! until it is closed, as an open file does everywhere.

mod attr;
mod drain;
mod names;
mod open;
mod sharing;
mod status;

pub(crate) use open::SET_ID;

use crate::members::check_maker;
use crate::service::{Caller, Service};
use crate::several::{Handled, Stop, is_afar};
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Stamp};
use forebay_store::{Body, Facts, Inode};
use forebay_wire::{DrainCall, Reply, Request};

/// How a request is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// At once and without a turn, so that heartbeats and diagnosis work on a server full of work.
    Urgent,
    /// Without a turn too, but other servers have to be waited for.
    Errand,
    /// In its turn.
    Usual,
    /// In its turn, and it waits for a device.
    Slow,
    /// In its turn, and it may wait for the back end.
    Behind,
    /// At once and without a turn: another server asks.
    Peer,
    /// In its turn, which it waits for with what it is about.
    Memory,
    /// On a data connection only.
    Data,
}

/// How a request is served by a server that has something behind it, or has not.
pub(crate) fn class(request: &Request, behind: bool) -> Class {
    match request {
        Request::Ping
        | Request::Status
        | Request::Shutdown
        | Request::GetPolicy
        | Request::Number { .. }
        | Request::Exchange(_)
        | Request::Drain(DrainCall::Look { .. })
        | Request::SetRoute { .. }
        | Request::Abandon { .. } => Class::Urgent,
        Request::SetPolicy { .. } | Request::ReplaceServer { .. } | Request::Losses => Class::Errand,
        Request::Peer(_) => Class::Peer,
        Request::Sync { .. } | Request::SyncAll => Class::Slow,
        Request::Ring { .. } | Request::Slab { .. } | Request::Map { .. } | Request::Queue => Class::Memory,
        Request::Write { .. } | Request::Read { .. } => Class::Data,
        _ if behind => Class::Behind,
        _ => Class::Usual,
    }
}

impl Service {
    /// Does what is asked.
    pub(crate) fn handle(&self, caller: &Caller, request: &Request) -> Handled {
        let handled = self.handle_alone(caller, request);
        if let (Some(engine), Ok(reply)) = (&self.drain, &handled) {
            self.note_change(engine, request, reply);
        }
        handled
    }

    fn handle_alone(&self, caller: &Caller, request: &Request) -> Handled {
        // Nothing else changes what a later request could meet.
        let _pass = match class(request, self.union.is_some()) {
            Class::Usual | Class::Behind => Some(caller.fence.pass()?),
            Class::Urgent | Class::Errand | Class::Slow | Class::Peer | Class::Memory | Class::Data => None,
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
            Request::SyncAll => {
                self.sync_all_past()?;
                Ok(self.store.data().sync_all().map(|()| Reply::Done)?)
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
            Request::ReadDir { dir, cookie, limit, plus } => self.read_dir(caller, dir, cookie, limit, plus),
            Request::GetXattr { file, ref name } => self.get_xattr(caller, file, name),
            Request::SetXattr { file, ref name, ref value, mode } => {
                self.set_xattr(caller, file, name, value, mode)
            }
            Request::ListXattr { file } => self.list_xattr(caller, file),
            Request::RemoveXattr { file, ref name } => self.remove_xattr(caller, file, name),
            Request::StatFs => Ok(Reply::Usage(self.usage())),
            Request::Status => Ok(Reply::Status(Box::new(self.status()))),
            Request::Shutdown => self.shutdown(caller),
            Request::History { cursor } => {
                let (samples, next) = self.history.from(cursor)?;
                Ok(Reply::History { samples, next })
            }
            Request::Number { row } => Ok(Reply::Number(self.rows.next(caller.who.uid, row))),
            Request::GetPolicy => Ok(Reply::Sharing(Box::new(self.sharing()))),
            Request::Exchange(ref told) => self.hear(caller, told.clone()),
            Request::Abandon { connection } => {
                // What is being done for it may wait for another server.
                tokio::task::block_in_place(|| self.fences.close(caller.session.owner(), connection));
                Ok(Reply::Done)
            }
            Request::Drain(ref call) => self.drain(caller, call),
            Request::SetRoute { ref mode } => Ok(self.set_route(caller, mode).map(|()| Reply::Done)?),
            Request::Write { .. } | Request::Read { .. } => {
                Err(Error::new(ErrorKind::Protocol, "reads and writes travel on data connections").into())
            }
            Request::SetPolicy { .. }
            | Request::ReplaceServer { .. }
            | Request::Losses
            | Request::Ring { .. }
            | Request::Slab { .. }
            | Request::Map { .. }
            | Request::Queue
            | Request::Peer(_) => {
                Err(Error::new(ErrorKind::Protocol, "this travels on control connections").into())
            }
        }
    }

    /// Fails unless the caller could have come to this file: see the head of this module.
    fn reach(&self, caller: &Caller, file: FileId) -> Result<(), Stop> {
        check_maker(&*self.members, file)?;
        if file == FileId::ROOT {
            return Ok(());
        }
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        self.refresh_above(file)?;
        // A name would have been looked up: an id that leads nowhere is one that has gone.
        self.store.names().reach(&caller.who, file).map_err(|stopped| match Stop::from(stopped) {
            Stop::Failed(miss)
                if miss.kind() == ErrorKind::NotFound && self.joining.may_have_lost_file(file) =>
            {
                self.joining.lost(&miss).into()
            }
            stop => vanished(stop),
        })
    }

    /// What `stat` says of a file of ours.
    fn attr(&self, caller: &Caller, file: FileId, inode: &Inode) -> Result<Attr, Stop> {
        let facts = match &inode.body {
            Body::File { extent, .. } if is_afar(extent) => {
                let mut facts = self.store.data().facts(file)?;
                (facts.size, facts.touched) =
                    (facts.size.max(extent.least), facts.touched.max(extent.touched));
                match (extent.is_open(), caller.helps.held.get(&file)) {
                    (true, None) => return Err(Stop::Gather(file)),
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
            Body::Directory { .. } if self.has_all_names() => self.store.names().share(file)?.into(),
            Body::Directory { .. } => match caller.helps.shares.get(&file) {
                Some(&share) => share.into(),
                None => return Err(Stop::Shares(file)),
            },
            Body::Symlink { .. } | Body::Special { .. } => Facts::default(),
        };
        Ok(self.shown(file, inode, &facts))
    }

    fn shown(&self, file: FileId, inode: &Inode, facts: &Facts) -> Attr {
        let mut attr = inode.attr(file, facts);
        if self.union.is_some() && attr.kind == FileKind::Directory {
            // How many directories are in it behind is only known to who lists it: one says that nobody counted.
            attr.links = 1;
        }
        attr
    }

    fn now(&self) -> Stamp {
        self.store.data().now()
    }
}

/// What was named by id and is not there was there once: the caller's knowledge is stale.
fn vanished(stop: impl Into<Stop>) -> Stop {
    stop.into().map(|error| match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
        _ => error,
    })
}
