//! Sessions: what a client has open, and whether it still lives.
//!
//! A session belongs to a client's number and the user its connections are authenticated as, so that guessing
//! somebody's number gains nothing. It ends with its last connection if nothing is open; else when no word has come on any of its connections for the configured
//! time; what it had open is closed then. Connections of a session that has ended begin a new one with their next
//! request: tokens outlive sessions, because their seal alone proves them.

use crate::opens::Hold;
use forebay_model::{Error, ErrorKind, FileId, Result, Uid};
use forebay_wire::Token;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Who a session belongs to.
pub(crate) type Owner = (u128, Uid);

/// All sessions.
pub(crate) struct Sessions {
    table: Mutex<HashMap<Owner, Arc<Session>>>,
    limit: usize,
    opens: usize,
}

/// One client.
pub(crate) struct Session {
    owner: Owner,
    /// When it was last heard of, in milliseconds since the server started.
    heard: AtomicU64,
    state: Mutex<State>,
    limit: usize,
}

enum State {
    /// What is open: by file, then by serial.
    Live(BTreeMap<(FileId, u64), Open>),
    Over,
}

struct Open {
    token: Token,
    hold: Arc<Hold>,
}

impl Sessions {
    /// At most `limit` sessions with `opens` open files each.
    pub(crate) fn new(limit: usize, opens: usize) -> Sessions {
        Sessions { table: Mutex::default(), limit, opens }
    }

    /// The session of a client, new if it has none.
    pub(crate) fn attach(&self, owner: Owner, now: Duration) -> Result<Arc<Session>> {
        let mut table = self.lock();
        if let Some(session) = table.get(&owner) {
            session.heard(now);
            return Ok(session.clone());
        }
        if table.len() >= self.limit {
            let text =
                format!("{} clients are served already: try again, or raise limits.sessions", self.limit);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let session = Arc::new(Session {
            owner,
            heard: AtomicU64::new(millis(now)),
            state: Mutex::new(State::Live(BTreeMap::new())),
            limit: self.opens,
        });
        table.insert(owner, session.clone());
        Ok(session)
    }

    /// A connection has gone. A session without any, and with nothing open, has nothing to come back for.
    pub(crate) fn leave(&self, session: Arc<Session>) {
        let owner = session.owner;
        drop(session);
        let mut table = self.lock();
        let idle = |session: &Arc<Session>| Arc::strong_count(session) == 1 && session.is_idle();
        if table.get(&owner).is_some_and(idle) {
            table.remove(&owner);
        }
    }

    /// Ends the sessions that were not heard of for longer than `silence`, closes what they had open, and says
    /// how many they were.
    pub(crate) fn expire(&self, now: Duration, silence: Duration) -> usize {
        let Some(before) = now.checked_sub(silence).map(millis) else { return 0 };
        let mut ended = Vec::new();
        self.lock().retain(|_, session| {
            let lives = session.heard.load(Ordering::Relaxed) >= before;
            if !lives {
                ended.push(session.clone());
            }
            lives
        });
        // Closing may have to bury files: not under the lock that every new client needs.
        ended.iter().for_each(|session| drop(session.end()));
        ended.len()
    }

    /// Whether just this token is open in any session.
    pub(crate) fn knows(&self, token: &Token) -> bool {
        self.lock().values().any(|session| session.hold(token).is_some())
    }

    /// Closes a file in all sessions: whoever still has it open has to be vouched for again.
    pub(crate) fn purge(&self, file: FileId) {
        let sessions: Vec<Arc<Session>> = self.lock().values().cloned().collect();
        sessions.iter().for_each(|session| session.purge(file));
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Arc<Session>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Whose it is.
    pub(crate) fn owner(&self) -> Owner {
        self.owner
    }

    /// A word has come.
    pub(crate) fn heard(&self, now: Duration) {
        self.heard.fetch_max(millis(now), Ordering::Relaxed);
    }

    /// Whether it has ended.
    pub(crate) fn is_over(&self) -> bool {
        matches!(*self.lock(), State::Over)
    }

    fn is_idle(&self) -> bool {
        match &*self.lock() {
            State::Live(opens) => opens.is_empty(),
            State::Over => true,
        }
    }

    /// The hold on the file of just this token, if it is open here.
    pub(crate) fn hold(&self, token: &Token) -> Option<Arc<Hold>> {
        match &*self.lock() {
            State::Live(opens) => {
                let open = opens.get(&(token.file, token.serial))?;
                (open.token == *token).then(|| open.hold.clone())
            }
            State::Over => None,
        }
    }

    /// Whether a user has a file open here.
    pub(crate) fn holds(&self, file: FileId, uid: Uid) -> bool {
        match &*self.lock() {
            State::Live(opens) => {
                opens.range((file, 0)..=(file, u64::MAX)).any(|(_, open)| open.token.uid == uid)
            }
            State::Over => false,
        }
    }

    fn purge(&self, file: FileId) {
        let mut gone = BTreeMap::new();
        if let State::Live(opens) = &mut *self.lock() {
            let mut later = opens.split_off(&(file, 0));
            let mut others = later.split_off(&(FileId(file.0.saturating_add(1)), 0));
            opens.append(&mut others);
            gone = later;
        }
        // Letting go may do more than forget: not under the lock.
        drop(gone);
    }

    /// Fails if nothing more can be opened.
    pub(crate) fn check_room(&self) -> Result<()> {
        match &*self.lock() {
            State::Live(opens) if opens.len() >= self.limit => Err(self.full()),
            _ => Ok(()),
        }
    }

    fn full(&self) -> Error {
        Error::new(ErrorKind::Busy, format!("this client has {} files open already: close some", self.limit))
    }

    /// Notes an open file. Noting it again changes nothing.
    pub(crate) fn insert(&self, token: Token, hold: Arc<Hold>) -> Result<()> {
        match &mut *self.lock() {
            State::Live(opens) if opens.contains_key(&(token.file, token.serial)) => Ok(()),
            State::Live(opens) if opens.len() >= self.limit => Err(self.full()),
            State::Live(opens) => {
                opens.insert((token.file, token.serial), Open { token, hold });
                Ok(())
            }
            State::Over => Err(Error::new(ErrorKind::Stale, "the client's session has ended: try again")),
        }
    }

    /// Forgets an open file; `None` if it was not open here. The caller lets go of the hold.
    pub(crate) fn remove(&self, token: &Token) -> Option<Arc<Hold>> {
        match &mut *self.lock() {
            State::Live(opens) => opens.remove(&(token.file, token.serial)).map(|open| open.hold),
            State::Over => None,
        }
    }

    fn end(&self) -> State {
        std::mem::replace(&mut *self.lock(), State::Over)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    use forebay_model::Access;

    fn token(file: u64, serial: u64) -> Token {
        Token { file: FileId(file), access: Access::READ, uid: Uid(7), serial, seal: [0; 16] }
    }

    const fn at(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_silent_session_ends_and_closes_what_it_had_open() {
        let diary = Diary::default();
        let opens = Opens::new(99, Box::new(diary.clone()));
        let open = |file| Arc::new(opens.hold(FileId(file)).unwrap());
        let sessions = Sessions::new(2, 2);
        let quiet = sessions.attach((1, Uid(7)), at(0)).unwrap();
        let lively = sessions.attach((1, Uid(8)), at(0)).unwrap();
        assert_eq!(sessions.attach((2, Uid(7)), at(0)).err().expect("refused").kind(), ErrorKind::Busy);
        quiet.insert(token(5, 1), open(5)).unwrap();
        quiet.insert(token(5, 1), open(5)).unwrap();
        quiet.insert(token(6, 2), open(6)).unwrap();
        assert_eq!(quiet.insert(token(7, 3), open(7)).unwrap_err().kind(), ErrorKind::Busy);
        diary.check(&["closed 7"]);
        assert!(quiet.holds(FileId(5), Uid(7)) && !quiet.holds(FileId(5), Uid(8)));
        assert!(quiet.remove(&token(6, 2)).is_some() && quiet.remove(&token(6, 2)).is_none());
        assert!(quiet.hold(&Token { access: Access::BOTH, ..token(5, 1) }).is_none(), "a changed token");
        let reading = quiet.hold(&token(5, 1)).unwrap();
        lively.heard(at(50));
        assert_eq!((sessions.expire(at(59), at(60)), sessions.expire(at(60), at(60))), (0, 0));
        assert_eq!(sessions.expire(at(61), at(60)), 1);
        assert!(quiet.is_over() && !lively.is_over() && quiet.hold(&token(5, 1)).is_none());
        diary.check(&["closed 7", "closed 6"]);
        drop(reading);
        diary.check(&["closed 7", "closed 6", "closed 5"]);
        assert_eq!(quiet.insert(token(5, 1), open(5)).unwrap_err().kind(), ErrorKind::Stale);
        assert_eq!(sessions.count(), 1);
    }

    #[test]
    fn a_session_ends_with_its_last_connection_unless_something_is_open() {
        let opens = Opens::new(99, Box::new(Diary::default()));
        let sessions = Sessions::new(9, 9);
        let attach = || sessions.attach((1, Uid(7)), at(0)).unwrap();
        let (one, two) = (attach(), attach());
        sessions.leave(one);
        assert_eq!(sessions.count(), 1, "another connection is there");
        two.insert(token(5, 1), Arc::new(opens.hold(FileId(5)).unwrap())).unwrap();
        sessions.leave(two);
        assert_eq!(sessions.count(), 1, "a file is open");
        let three = attach();
        drop(three.remove(&token(5, 1)));
        sessions.leave(three);
        assert_eq!(sessions.count(), 0);
    }
}
