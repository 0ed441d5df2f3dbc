//! Limits per user: how much of a shared resource one uid may have.
//!
//! **Invariant**: a user never exceeds the limit, and a user with nothing takes no memory in these tables.
//!
//! Root and the service's owner are exempt: they may stop the service anyway, and mounts and other servers act through
//! them. Only the total limits apply to them.

use crate::config::Limits;
use crate::working::Working;
use forebay_model::{Error, ErrorKind, Result, Uid};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The limit per user of a resource, with its name in messages and in `forebay.toml`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UserLimit {
    /// For example "open files".
    pub(crate) what: &'static str,
    /// The key in the table `limits`.
    pub(crate) key: &'static str,
    pub(crate) most: usize,
    /// The user who is exempt besides root; if `None`, no user is exempt, not even root.
    pub(crate) owner: Option<Uid>,
}

impl UserLimit {
    /// For all users except root and the service's owner.
    pub(crate) fn new(what: &'static str, key: &'static str, most: usize, owner: Uid) -> UserLimit {
        UserLimit { what, key, most, owner: Some(owner) }
    }

    /// Whether only the total limit applies to this user.
    pub(crate) fn exempts(&self, uid: Uid) -> bool {
        self.owner.is_some_and(|owner| uid == owner || uid == Uid(0))
    }

    /// The error for a user at the limit.
    pub(crate) fn refusal(&self, uid: Uid) -> Error {
        let UserLimit { what, key, most, .. } = self;
        let text = format!("user {uid} has {most} {what}: release some, or raise limits.{key}");
        Error::new(ErrorKind::Busy, text)
    }
}

/// Counts per user. For use under an existing lock: allocates only when there are more users than ever before.
#[derive(Debug)]
pub(crate) struct UserCounts {
    limit: UserLimit,
    /// Sorted by uid; no zeros.
    counts: Vec<(Uid, usize)>,
}

impl UserCounts {
    pub(crate) fn new(limit: UserLimit) -> UserCounts {
        UserCounts { limit, counts: Vec::new() }
    }

    fn find(&self, uid: Uid) -> Result<usize, usize> {
        self.counts.binary_search_by_key(&uid.0, |(uid, _)| uid.0)
    }

    /// The count of a user; always 0 for exempt users.
    pub(crate) fn of(&self, uid: Uid) -> usize {
        self.find(uid).map_or(0, |at| self.counts[at].1)
    }

    /// Fails if the user is at the limit.
    pub(crate) fn check(&self, uid: Uid) -> Result<()> {
        match self.limit.exempts(uid) || self.of(uid) < self.limit.most {
            true => Ok(()),
            false => Err(self.limit.refusal(uid)),
        }
    }

    /// Counts one more, unless the user is at the limit.
    pub(crate) fn add(&mut self, uid: Uid) -> Result<()> {
        self.check(uid)?;
        if !self.limit.exempts(uid) {
            match self.find(uid) {
                Ok(at) => self.counts[at].1 += 1,
                Err(at) => self.counts.insert(at, (uid, 1)),
            }
        }
        Ok(())
    }

    /// Counts one less.
    pub(crate) fn remove(&mut self, uid: Uid) {
        if self.limit.exempts(uid) {
            return;
        }
        let at = self.find(uid).expect("a unit that is returned was taken");
        self.counts[at].1 -= 1;
        if self.counts[at].1 == 0 {
            self.counts.remove(at);
        }
    }
}

/// Counts per user with their own lock, and guards.
pub(crate) struct PerUser(Mutex<UserCounts>);

/// One counted unit of a user; returned on drop.
pub(crate) struct UserShare {
    table: Arc<PerUser>,
    uid: Uid,
}

impl PerUser {
    pub(crate) fn new(limit: UserLimit) -> Arc<PerUser> {
        Arc::new(PerUser(Mutex::new(UserCounts::new(limit))))
    }

    /// Takes one unit for this user, unless the user is at the limit.
    pub(crate) fn take(self: &Arc<PerUser>, uid: Uid) -> Result<UserShare> {
        self.lock().add(uid)?;
        Ok(UserShare { table: self.clone(), uid })
    }

    fn lock(&self) -> MutexGuard<'_, UserCounts> {
        self.0.lock()
    }
}

impl Drop for UserShare {
    fn drop(&mut self) {
        self.table.lock().remove(self.uid);
    }
}

/// Permits per user: a user waits only for its own permits.
pub(crate) struct UserPlaces {
    limit: UserLimit,
    users: Mutex<HashMap<Uid, Arc<Semaphore>>>,
}

/// The permits of one user; removed when unused.
pub(crate) struct Places {
    table: Arc<UserPlaces>,
    uid: Uid,
    /// `None` for exempt users.
    places: Option<Arc<Semaphore>>,
}

/// Some permits of a user, returned on drop.
pub(crate) struct UserPlace {
    // Returned before the user's entry is removed.
    permit: Option<OwnedSemaphorePermit>,
    _places: Places,
}

impl UserPlaces {
    pub(crate) fn new(limit: UserLimit) -> Arc<UserPlaces> {
        let limit = UserLimit { most: limit.most.min(Semaphore::MAX_PERMITS), ..limit };
        Arc::new(UserPlaces { limit, users: Mutex::default() })
    }

    pub(crate) fn of(self: &Arc<UserPlaces>, uid: Uid) -> Places {
        let new = || Arc::new(Semaphore::new(self.limit.most));
        let places = (!self.limit.exempts(uid)).then(|| self.lock().entry(uid).or_insert_with(new).clone());
        Places { table: self.clone(), uid, places }
    }

    /// Waits for a permit of this user; fails after `patience`.
    pub(crate) async fn wait(self: &Arc<UserPlaces>, uid: Uid, patience: Duration) -> Result<UserPlace> {
        let places = self.of(uid);
        let permit = match places.places.clone() {
            Some(places) => {
                let place = timeout(patience, places.acquire_owned()).await;
                let place = place.map_err(|_| self.limit.refusal(uid))?;
                Some(place.expect("the semaphore is never closed"))
            }
            None => None,
        };
        Ok(UserPlace { permit, _places: places })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uid, Arc<Semaphore>>> {
        self.users.lock()
    }
}

impl Places {
    /// `None` for exempt users.
    pub(crate) fn places(&self) -> Option<&Arc<Semaphore>> {
        self.places.as_ref()
    }

    /// Total number of permits; `None` for exempt users.
    pub(crate) fn most(&self) -> Option<usize> {
        self.places.as_ref().map(|_| self.table.limit.most)
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        self.permit.take();
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        let Some(places) = self.places.take() else { return };
        let mut users = self.table.lock();
        drop(places);
        if users.get(&self.uid).is_some_and(|places| Arc::strong_count(places) == 1) {
            users.remove(&self.uid);
        }
    }
}

/// Limits of connections, permits and unsent answers of each user.
pub(crate) struct UserBounds {
    pub(crate) connections: Arc<PerUser>,
    /// Flushes in progress.
    pub(crate) syncs: Arc<UserPlaces>,
    /// Requests that may wait for the back end.
    pub(crate) backend: Arc<UserPlaces>,
    /// Requests that run as tasks and do not need the back end.
    pub(crate) buffer: Arc<UserPlaces>,
    /// Concurrent requests, except those served inline.
    pub(crate) working: Arc<Working>,
    /// Bytes of answers that the user's clients have not read.
    pub(crate) answers: Arc<UserPlaces>,
    /// Changes of names on several servers.
    pub(crate) transactions: Arc<UserPlaces>,
    /// Such changes that other servers have passed on to this one.
    pub(crate) carried: Arc<UserPlaces>,
    /// Appends to striped files.
    pub(crate) appends: Arc<UserPlaces>,
}

impl UserBounds {
    pub(crate) fn new(limits: &Limits, owner: Uid) -> UserBounds {
        let limit = |what, key, most| UserLimit::new(what, key, most, owner);
        let places = |what, key, most| UserPlaces::new(limit(what, key, most));
        let backend = limits.user_backend_places;
        let answers = usize::try_from(limits.user_answers.0).unwrap_or(usize::MAX);
        UserBounds {
            connections: PerUser::new(limit("connections", "user_connections", limits.user_connections)),
            syncs: places("flushes in progress", "user_syncs", limits.user_syncs),
            backend: places("requests at the back end", "user_backend_places", backend),
            buffer: places("requests in progress", "user_backend_places", backend),
            working: Working::new(limit("requests in progress", "user_working", limits.user_working)),
            answers: places("bytes of unread answers", "user_answers", answers),
            transactions: places("changes on several servers", "user_backend_places", backend),
            carried: places("changes on several servers", "user_backend_places", backend),
            appends: places("appends to striped files", "user_backend_places", backend),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const UNPRIVILEGED: UserLimit =
        UserLimit { what: "things", key: "user_things", most: usize::MAX, owner: None };
    const TWO: UserLimit = UserLimit { most: 2, owner: Some(Uid(7)), ..UNPRIVILEGED };

    #[test]
    fn users_are_limited_except_root_and_the_owner() {
        let table = PerUser::new(TWO);
        let held: Vec<UserShare> = (0..2).map(|_| table.take(Uid(5)).unwrap()).collect();
        let refused = table.take(Uid(5)).err().expect("the third");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let text = refused.to_string();
        assert!(text.contains("user 5 has 2 things") && text.contains("limits.user_things"), "{text}");
        let others: Vec<UserShare> =
            [6, 0, 0, 0, 7, 7, 7].iter().map(|&uid| table.take(Uid(uid)).unwrap()).collect();
        assert_eq!([5, 6, 0].map(|uid| table.lock().of(Uid(uid))), [2, 1, 0]);
        drop(held);
        assert!(table.take(Uid(5)).is_ok());
        drop(others);
        assert!(table.lock().counts.is_empty(), "no user is left in the table");
    }

    #[test]
    fn without_an_owner_no_user_is_exempt() {
        let table = PerUser::new(UserLimit { most: 1, owner: None, ..TWO });
        let _held = table.take(Uid(0)).unwrap();
        assert!(table.take(Uid(0)).is_err() && table.take(Uid(7)).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn users_wait_only_for_their_own_permits() {
        let table = UserPlaces::new(TWO);
        let wait = |uid| table.wait(Uid(uid), Duration::from_secs(9));
        let held = (wait(5).await.unwrap(), wait(5).await.unwrap());
        let refused = wait(5).await.err().expect("the third waits, then fails");
        assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains("limits.user_things"));
        assert!(wait(6).await.is_ok() && wait(7).await.is_ok());
        let (third, ()) = tokio::join!(wait(5), async { drop(held) });
        assert!(third.is_ok());
        drop(third);
        assert!(table.lock().is_empty(), "no user is left in the table");
    }
}
