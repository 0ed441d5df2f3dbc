//! Hands connections and open files on when a process permanently gives up the user who connected.
//!
//! A connection of root can name any user, so it is no security boundary. A program that can never be root again gets
//! connections of its new user, if the service accepts that user, and all of root's connections are closed. Open files
//! stay open, as descriptors do: root's connection first hands each file on to the new user.

use crate::credentials::{self, Credentials};
use crate::engine::{self, Engine, Threads};
use crate::errno::Errno;
use crate::{backing, table};

/// Connects as the calling thread's user, and replaces the threads of another user.
pub(crate) fn replace(old: &'static Threads, now: &Credentials) -> Result<&'static Threads, Errno> {
    let new = Threads::start(now)?;
    if let Err(errno) = new.connect() {
        new.end();
        if old.live_in(now) {
            // The service refuses this user: the old connections continue in its name, if they may.
            return if old.may_name(&now.identity) { Ok(old) } else { Err(errno) };
        }
        // No connection of root outlives root in the program.
        old.client().close();
        old.end();
        return Err(errno);
    }
    let engine = new.engine(&now.identity);
    each_file(|open| hand_on(open, old, engine));
    if !new.take_over_from(old) {
        // Another thread has replaced them meanwhile.
        new.client().close();
        new.end();
        return engine::threads().ok_or(Errno(libc::EAGAIN));
    }
    credentials::note_change();
    old.retire(new);
    Ok(new)
}

/// At program start: reopens the files that were handed on to this user. The session that handed them on has ended, and
/// the right to use the files would expire with it.
pub(crate) fn reopen_handed_on() {
    let user = Credentials::read().identity.uid;
    each_file(|open| {
        if open.handed_to(user).is_some() {
            // The call that uses the file reports the error.
            let _ = open.data();
        }
    });
}

/// Visits every open file of Forebay once.
fn each_file(mut visit: impl FnMut(&table::Held)) {
    let mut seen = Vec::new();
    table::each(0, i32::MAX, |fd| {
        if let Some(open) = table::get(fd)
            && open.kind() == backing::Kind::File
            && !seen.contains(&open.address())
        {
            seen.push(open.address());
            visit(&open);
        }
    });
}

/// Opens a file on new connections that is open on old ones. It may have been handed on to the same user before, by a
/// process that has closed it since: then it is handed on again.
fn hand_on(open: &table::Held, old: &'static Threads, engine: &'static Engine) {
    let Some(token) = open.token_for(engine) else { return };
    let needs_none = token.uid == engine.identity().uid;
    let mut renewed = if needs_none { open.renew(engine) } else { Err(Errno(libc::EACCES)) };
    let mut handed = None;
    let first = open.token().filter(|first| first.uid != engine.identity().uid);
    if let (Err(_), Some(first)) = (&renewed, first) {
        let named = old.client().as_identity(engine.identity().clone());
        let Ok(file) = old.wait_for(async move { named.by_id().reopen(first).await }) else { return };
        open.hand(&file.token());
        handed = Some(file);
        renewed = open.renew(engine);
    }
    // Closes the file on the old connections; on failure it is closed when their session ends.
    if let Some(file) = handed {
        let _ = old.wait_for(file.close());
    }
    if let Ok(Some(file)) = renewed {
        file.let_go_of_memory();
        let _ = old.wait_for(async move { file.close_for_all().await });
    }
}
