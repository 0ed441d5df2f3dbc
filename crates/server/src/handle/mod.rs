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
mod names;
mod open;
mod sharing;
mod status;

use crate::members::check_maker;
use crate::service::{Caller, Service};
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Result, Stamp};
use forebay_store::{Facts, Inode};
use forebay_wire::{Answer, Reply, Request};

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
    /// On a data connection only.
    Data,
}

/// How a request is served.
pub(crate) fn class(request: &Request) -> Class {
    match request {
        Request::Ping
        | Request::Status
        | Request::Shutdown
        | Request::GetPolicy
        | Request::Exchange(_)
        | Request::Abandon { .. } => Class::Urgent,
        Request::SetPolicy { .. } => Class::Errand,
        Request::Sync { .. } | Request::SyncAll => Class::Slow,
        Request::Write { .. } | Request::Read { .. } => Class::Data,
        _ => Class::Usual,
    }
}

impl Service {
    /// Does what is asked.
    pub(crate) fn handle(&self, caller: &Caller, request: Request) -> Answer {
        // Nothing else changes what a later request could meet.
        let _pass = match class(&request) {
            Class::Usual => Some(caller.fence.pass()?),
            Class::Urgent | Class::Errand | Class::Slow | Class::Data => None,
        };
        match request {
            Request::Ping => Ok(Reply::Done),
            Request::Walk { dir, path, follow } => self.walk(caller, dir, &path, follow),
            Request::GetAttr { file } => self.get_attr(caller, file),
            Request::SetAttr { file, change } => self.set_attr(caller, file, &change),
            Request::Open { file, access, truncate } => self.open(caller, file, access, truncate),
            Request::Create { dir, name, mode, access, if_exists } => {
                self.create(caller, (dir, &name), mode, access, if_exists)
            }
            Request::Reopen { token } => self.reopen(caller, &token),
            Request::Close { token } => self.close(caller, &token),
            Request::Truncate { token, size } => self.truncate(caller, &token, size),
            Request::TruncateFile { file, size } => self.truncate_file(caller, file, size),
            Request::Extend { token, size } => self.extend(caller, &token, size),
            Request::Punch { token, offset, len } => self.punch(caller, &token, offset, len),
            Request::Sync { token } => self.sync(caller, &token),
            Request::SyncAll => self.store.data().sync_all().map(|()| Reply::Done),
            Request::MakeDir { dir, name, mode } => self.make_dir(caller, dir, &name, mode),
            Request::MakeSpecial { dir, name, mode, special } => {
                self.make_special(caller, dir, &name, mode, special)
            }
            Request::RemoveDir { dir, name } => self.remove_dir(caller, dir, &name),
            Request::Unlink { dir, name } => self.unlink(caller, dir, &name),
            Request::Rename { dir, name, to_dir, to_name, mode } => {
                self.rename(caller, (dir, &name), (to_dir, &to_name), mode)
            }
            Request::Link { file, dir, name } => self.link(caller, file, dir, &name),
            Request::Symlink { dir, name, target } => self.symlink(caller, dir, &name, &target),
            Request::ReadLink { file } => self.read_link(caller, file),
            Request::ReadDir { dir, cookie, limit, plus } => self.read_dir(caller, dir, cookie, limit, plus),
            Request::GetXattr { file, name } => self.get_xattr(caller, file, &name),
            Request::SetXattr { file, name, value, mode } => {
                self.set_xattr(caller, file, &name, &value, mode)
            }
            Request::ListXattr { file } => self.list_xattr(caller, file),
            Request::RemoveXattr { file, name } => self.remove_xattr(caller, file, &name),
            Request::StatFs => Ok(Reply::Usage(self.usage())),
            Request::Status => Ok(Reply::Status(Box::new(self.status()))),
            Request::Shutdown => self.shutdown(caller),
            Request::History { cursor } => {
                let (samples, next) = self.history.from(cursor)?;
                Ok(Reply::History { samples, next })
            }
            Request::GetPolicy => Ok(Reply::Sharing(Box::new(self.sharing()))),
            Request::SetPolicy { .. } => {
                Err(Error::new(ErrorKind::Protocol, "a policy is set on control connections"))
            }
            Request::Exchange(told) => self.hear(caller, told),
            Request::Abandon { connection } => {
                self.fences.close(caller.session.owner(), connection);
                Ok(Reply::Done)
            }
            Request::Write { .. } | Request::Read { .. } => {
                Err(Error::new(ErrorKind::Protocol, "reads and writes travel on data connections"))
            }
        }
    }

    /// Fails unless the caller could have come to this file: see the head of this module.
    fn reach(&self, caller: &Caller, file: FileId) -> Result<()> {
        check_maker(&*self.members, file)?;
        if file == FileId::ROOT {
            return Ok(());
        }
        if caller.session.holds(file, caller.who.uid) {
            return Ok(());
        }
        // A name would have been looked up: an id that leads nowhere is one that has gone.
        self.store.names().reach(&caller.who, file).map_err(vanished)
    }

    fn attr(&self, file: FileId, inode: &Inode) -> Result<Attr> {
        let facts = match inode.kind() {
            FileKind::File => self.store.data().facts(file)?,
            FileKind::Directory | FileKind::Symlink | FileKind::Special(_) => Facts::default(),
        };
        Ok(inode.attr(file, &facts))
    }

    fn now(&self) -> Stamp {
        self.store.data().now()
    }
}

/// What was named by id and is not there was there once: the caller's knowledge is stale.
fn vanished(error: Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::Stale, error.to_string()),
        _ => error,
    }
}
