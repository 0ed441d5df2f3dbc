//! Sessions: the open files of a client, and whether the client is alive.
//!
//! A session belongs to a client's number and the user as which its connections authenticated, so guessing a number
//! gains nothing. It ends with its last connection if no file is open; otherwise when no message has arrived on any of
//! its connections for the configured time, and its files are closed then. Connections of an ended session begin a new
//! one with their next request; a token of the ended session reopens its file according to the file's current mode.

use crate::opens::Hold;
use crate::per_user::{UserCounts, UserLimit};
use crate::tokens::OpenTokens;
use forebay_model::{Error, ErrorKind, FileId, Result, Uid};
use forebay_wire::Token;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The owner of a session.
pub(crate) type Owner = (u128, Uid);

/// All sessions.
pub(crate) struct Sessions {
    table: Mutex<Table>,
    limit: usize,
    opens: usize,
    tokens: Arc<OpenTokens>,
}

struct Table {
    sessions: HashMap<Owner, Arc<Session>>,
    users: UserCounts,
}

/// One client.
pub(crate) struct Session {
    owner: Owner,
    /// Time of the last message, in milliseconds since the server started.
    last_message: AtomicU64,
    state: Mutex<State>,
    tokens: Arc<OpenTokens>,
}

enum State {
    Live(Live),
    Over,
}

struct Live {
    /// Open files, by file id and serial.
    opens: BTreeMap<(FileId, u64), Open>,
    /// Open files of each user: a mount is one client for many users.
    users: UserCounts,
}

struct Open {
    token: Token,
    hold: Arc<Hold>,
}

impl Sessions {
    /// At most `limit` sessions, and per user as `users` says; each session with at most `opens` open files per user,
    /// which are recorded in `tokens`.
    pub(crate) fn new(limit: usize, users: UserLimit, opens: usize, tokens: Arc<OpenTokens>) -> Sessions {
        let table = Table { sessions: HashMap::new(), users: UserCounts::new(users) };
        Sessions { table: Mutex::new(table), limit, opens, tokens }
    }

    /// The session of a client; creates one if needed.
    pub(crate) fn attach(&self, owner: Owner, now: Duration) -> Result<Arc<Session>> {
        let mut table = self.lock();
        if let Some(session) = table.sessions.get(&owner) {
            session.note_message(now);
            return Ok(session.clone());
        }
        if table.sessions.len() >= self.limit {
            let text = format!("all {} sessions are in use: try again, or raise limits.sessions", self.limit);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        table.users.add(owner.1)?;
        let each = UserLimit {
            what: "files open in this session",
            key: "session_opens",
            most: self.opens,
            owner: None,
        };
        let live = Live { opens: BTreeMap::new(), users: UserCounts::new(each) };
        let session = Arc::new(Session {
            owner,
            last_message: AtomicU64::new(millis(now)),
            state: Mutex::new(State::Live(live)),
            tokens: self.tokens.clone(),
        });
        table.sessions.insert(owner, session.clone());
        Ok(session)
    }

    /// Removes a connection. The session ends if it has no other connection and no open file.
    pub(crate) fn leave(&self, session: Arc<Session>) {
        let owner = session.owner;
        drop(session);
        let mut table = self.lock();
        let idle = |session: &Arc<Session>| Arc::strong_count(session) == 1 && session.is_idle();
        if table.sessions.get(&owner).is_some_and(idle) {
            table.sessions.remove(&owner);
            table.users.remove(owner.1);
        }
    }

    /// Ends sessions without a message for longer than `silence`, closes their files, and returns their number.
    pub(crate) fn expire(&self, now: Duration, silence: Duration) -> usize {
        let Some(before) = now.checked_sub(silence).map(millis) else { return 0 };
        let mut ended = Vec::new();
        let mut table = self.lock();
        let Table { sessions, users } = &mut *table;
        sessions.retain(|owner, session| {
            let lives = session.last_message.load(Ordering::Relaxed) >= before;
            if !lives {
                users.remove(owner.1);
                ended.push(session.clone());
            }
            lives
        });
        drop(table);
        // Closing may reap files: not under the lock that every new client needs.
        ended.iter().for_each(|session| drop(session.end()));
        ended.len()
    }

    /// Restarts the timeout of every session.
    pub(crate) fn renew(&self, now: Duration) {
        self.lock().sessions.values().for_each(|session| session.note_message(now));
    }

    /// Ends a session and closes its files.
    pub(crate) fn finish(&self, owner: Owner) {
        let session = {
            let mut table = self.lock();
            let session = table.sessions.remove(&owner);
            session.iter().for_each(|_| table.users.remove(owner.1));
            session
        };
        // Closing may reap files: not under the lock that every new client needs.
        if let Some(session) = session {
            drop(session.end());
        }
    }

    /// Whether exactly this token is open in any session.
    pub(crate) fn knows(&self, token: &Token) -> bool {
        self.lock().sessions.values().any(|session| session.hold(token).is_some())
    }

    /// Closes a file in all sessions; clients that still have it open must be vouched for again.
    pub(crate) fn purge(&self, file: FileId) {
        let sessions: Vec<Arc<Session>> = self.lock().sessions.values().cloned().collect();
        sessions.iter().for_each(|session| session.purge(file));
    }

    /// Number of sessions.
    pub(crate) fn count(&self) -> usize {
        self.lock().sessions.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Session {
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// Records that a message arrived.
    pub(crate) fn note_message(&self, now: Duration) {
        self.last_message.fetch_max(millis(now), Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.lock(), State::Over)
    }

    fn is_idle(&self) -> bool {
        match &*self.lock() {
            State::Live(live) => live.opens.is_empty(),
            State::Over => true,
        }
    }

    /// The hold of exactly this token, if it is open in this session.
    pub(crate) fn hold(&self, token: &Token) -> Option<Arc<Hold>> {
        match &*self.lock() {
            State::Live(live) => {
                let open = live.opens.get(&(token.file, token.serial))?;
                (open.token == *token).then(|| open.hold.clone())
            }
            State::Over => None,
        }
    }

    /// Whether a user has a file open in this session.
    pub(crate) fn holds(&self, file: FileId, uid: Uid) -> bool {
        match &*self.lock() {
            State::Live(live) => {
                live.opens.range((file, 0)..=(file, u64::MAX)).any(|(_, open)| open.token.uid == uid)
            }
            State::Over => false,
        }
    }

    fn purge(&self, file: FileId) {
        let mut gone = BTreeMap::new();
        if let State::Live(live) = &mut *self.lock() {
            let mut later = live.opens.split_off(&(file, 0));
            let mut others = later.split_off(&(FileId(file.0.saturating_add(1)), 0));
            live.opens.append(&mut others);
            later.values().for_each(|open| live.users.remove(open.token.uid));
            gone = later;
        }
        gone.values().for_each(|open: &Open| self.tokens.closed(&open.token, self.owner.0));
        // Dropping a hold may reap a file: not under the lock.
        drop(gone);
    }

    /// Fails if this user is at the limit of open files.
    pub(crate) fn check_room(&self, uid: Uid) -> Result<()> {
        match &*self.lock() {
            State::Live(live) => live.users.check(uid),
            State::Over => Ok(()),
        }
    }

    /// Records an open file. Recording it again has no effect.
    pub(crate) fn insert(&self, token: Token, hold: Arc<Hold>) -> Result<()> {
        match &mut *self.lock() {
            State::Live(live) if live.opens.contains_key(&(token.file, token.serial)) => Ok(()),
            State::Live(live) => {
                live.users.add(token.uid)?;
                live.opens.insert((token.file, token.serial), Open { token, hold });
                self.tokens.opened(&token, self.owner.0);
                Ok(())
            }
            State::Over => Err(Error::new(ErrorKind::Stale, "the client's session has ended: try again")),
        }
    }

    /// Removes an open file; `None` if it is not open in this session. The caller drops the hold.
    pub(crate) fn remove(&self, token: &Token) -> Option<Arc<Hold>> {
        let removed = match &mut *self.lock() {
            State::Live(live) => {
                let open = live.opens.remove(&(token.file, token.serial))?;
                // The token in the request may name a different user than the recorded one.
                live.users.remove(open.token.uid);
                Some(open)
            }
            State::Over => None,
        };
        removed.map(|open| {
            self.tokens.closed(&open.token, self.owner.0);
            open.hold
        })
    }

    fn end(&self) -> State {
        let state = std::mem::replace(&mut *self.lock(), State::Over);
        if let State::Live(live) = &state {
            live.opens.values().for_each(|open| self.tokens.closed(&open.token, self.owner.0));
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opens::Opens;
    use crate::opens::tests::Diary;
    use crate::per_user::tests::UNPRIVILEGED;
    use forebay_model::Access;

    fn token(file: u64, serial: u64) -> Token {
        Token { file: FileId(file), access: Access::READ, uid: Uid(7), serial, seal: [0; 16] }
    }

    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn silent_session_ends_and_closes_its_files() {
        let diary = Diary::default();
        let opens = Opens::new(99, UNPRIVILEGED, Box::new(diary.clone()));
        let open = |file| Arc::new(opens.hold(FileId(file)).unwrap());
        let sessions = Sessions::new(2, UNPRIVILEGED, 2, Arc::default());
        let silent = sessions.attach((1, Uid(7)), at(0)).unwrap();
        let lively = sessions.attach((1, Uid(8)), at(0)).unwrap();
        assert_eq!(sessions.attach((2, Uid(7)), at(0)).err().expect("refused").kind(), ErrorKind::Busy);
        silent.insert(token(5, 1), open(5)).unwrap();
        silent.insert(token(5, 1), open(5)).unwrap();
        silent.insert(token(6, 2), open(6)).unwrap();
        assert_eq!(silent.insert(token(7, 3), open(7)).unwrap_err().kind(), ErrorKind::Busy);
        diary.check(&["closed 7"]);
        assert!(silent.holds(FileId(5), Uid(7)) && !silent.holds(FileId(5), Uid(8)));
        assert!(silent.remove(&token(6, 2)).is_some() && silent.remove(&token(6, 2)).is_none());
        assert!(silent.hold(&Token { access: Access::BOTH, ..token(5, 1) }).is_none(), "a changed token");
        let reading = silent.hold(&token(5, 1)).unwrap();
        lively.note_message(at(50));
        assert_eq!((sessions.expire(at(59), at(60)), sessions.expire(at(60), at(60))), (0, 0));
        assert_eq!(sessions.expire(at(61), at(60)), 1);
        assert!(silent.is_over() && !lively.is_over() && silent.hold(&token(5, 1)).is_none());
        diary.check(&["closed 7", "closed 6"]);
        drop(reading);
        diary.check(&["closed 7", "closed 6", "closed 5"]);
        assert_eq!(silent.insert(token(5, 1), open(5)).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(sessions.count(), 1);
    }

    #[test]
    fn renewed_sessions_get_the_full_timeout_again() {
        let sessions = Sessions::new(2, UNPRIVILEGED, 2, Arc::default());
        let (one, two) =
            (sessions.attach((1, Uid(7)), at(0)).unwrap(), sessions.attach((2, Uid(7)), at(0)).unwrap());
        sessions.renew(at(90));
        assert_eq!(sessions.expire(at(150), at(60)), 0);
        two.note_message(at(100));
        assert_eq!(sessions.expire(at(151), at(60)), 1);
        assert!(one.is_over() && !two.is_over());
    }

    #[test]
    fn session_ends_with_its_last_connection_unless_a_file_is_open() {
        let opens = Opens::new(99, UNPRIVILEGED, Box::new(Diary::default()));
        let sessions = Sessions::new(9, UNPRIVILEGED, 9, Arc::default());
        let attach = || sessions.attach((1, Uid(7)), at(0)).unwrap();
        let (one, two) = (attach(), attach());
        sessions.leave(one);
        assert_eq!(sessions.count(), 1, "another connection is left");
        two.insert(token(5, 1), Arc::new(opens.hold(FileId(5)).unwrap())).unwrap();
        sessions.leave(two);
        assert_eq!(sessions.count(), 1, "a file is open");
        let three = attach();
        drop(three.remove(&token(5, 1)));
        sessions.leave(three);
        assert_eq!(sessions.count(), 0);
    }

    #[test]
    fn sessions_and_open_files_per_user_are_limited() {
        let opens = Opens::new(99, UNPRIVILEGED, Box::new(Diary::default()));
        let users = UserLimit { what: "sessions", key: "user_sessions", most: 2, owner: Some(Uid(1)) };
        let sessions = Sessions::new(9, users, 2, Arc::default());
        let first = sessions.attach((1, Uid(7)), at(0)).unwrap();
        let second = sessions.attach((2, Uid(7)), at(0)).unwrap();
        let refused = sessions.attach((3, Uid(7)), at(0)).err().expect("the third").to_string();
        assert!(refused.contains("limits.user_sessions"), "{refused}");
        assert!(sessions.attach((1, Uid(7)), at(1)).is_ok(), "an existing session is not counted twice");
        for client in 1..=4 {
            drop(sessions.attach((client, Uid(1)), at(1)).unwrap());
        }
        sessions.leave(second);
        sessions.attach((3, Uid(7)), at(1)).unwrap();
        drop(first);
        assert_eq!(sessions.expire(at(99), at(60)), 6);
        assert!(sessions.attach((4, Uid(7)), at(99)).is_ok(), "ended sessions do not count");

        let mount = sessions.attach((1, Uid(1)), at(99)).unwrap();
        let open = |file| Arc::new(opens.hold(FileId(file)).unwrap());
        let of = |uid, file| Token { uid: Uid(uid), ..token(file, file) };
        mount.insert(of(7, 1), open(1)).unwrap();
        mount.insert(of(7, 2), open(2)).unwrap();
        assert!(mount.insert(of(7, 3), open(3)).is_err() && mount.check_room(Uid(7)).is_err());
        mount.insert(of(9, 3), open(3)).unwrap();
        assert!(mount.remove(&of(7, 1)).is_some());
        mount.insert(of(7, 4), open(4)).unwrap();
        sessions.purge(FileId(4));
        mount.insert(of(7, 5), open(5)).unwrap();
    }
}
