//! Limits the number of concurrent requests of one user.
//!
//! A request that waits for the back end needs no core, so there may be many of them
//! ([`UserPlaces`](crate::per_user::UserPlaces)). But as soon as the back end answers, they all need one, and one
//! user's threads could take the cores from other users. So a request begins only while few others of its user are
//! running.
//!
//! **Invariant**: a request that has begun never waits in this module again, not even when it returns from the back
//! end: it may hold a lock that the counted requests need. A user then exceeds the limit for a moment, and no other
//! request of that user begins.

use crate::per_user::UserLimit;
use forebay_model::{Result, Uid};
use parking_lot::{Mutex, MutexGuard};
use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Running requests, by user.
pub(crate) struct Working {
    limit: UserLimit,
    users: Mutex<HashMap<Uid, User>>,
}

/// State of one user; exists while one of the user's requests runs.
#[derive(Default)]
struct User {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Work>>,
}

/// A running request, until it is dropped.
pub(crate) struct Work {
    table: Arc<Working>,
    uid: Uid,
    /// False for exempt users, and while the request waits for the back end.
    counts: bool,
}

thread_local! {
    /// The request that this thread runs, if it may call the back end.
    static PRESENT: RefCell<Option<Work>> = const { RefCell::new(None) };
}

impl Working {
    pub(crate) fn new(limit: UserLimit) -> Arc<Working> {
        Arc::new(Working { limit, users: Mutex::default() })
    }

    /// Begins a request of this user, if it does not have to wait.
    pub(crate) fn try_begin(self: &Arc<Working>, uid: Uid) -> Option<Work> {
        self.begin_or(uid, |_| ()).ok()
    }

    /// Waits until a request of this user may begin; fails after `patience`.
    pub(crate) async fn begin(self: &Arc<Working>, uid: Uid, patience: Duration) -> Result<Work> {
        let waiting = self.begin_or(uid, |user| {
            let (notify, soon) = oneshot::channel();
            user.waiting.push_back(notify);
            soon
        });
        match waiting {
            Ok(work) => Ok(work),
            Err(soon) => match timeout(patience, soon).await {
                Ok(Ok(work)) => Ok(work),
                _ => Err(self.limit.refusal(uid)),
            },
        }
    }

    fn begin_or<T>(self: &Arc<Working>, uid: Uid, wait: impl FnOnce(&mut User) -> T) -> Result<Work, T> {
        let counts = !self.limit.exempts(uid);
        if counts {
            let mut users = self.lock();
            let user = users.entry(uid).or_default();
            if user.running >= self.limit.most {
                return Err(wait(user));
            }
            user.running += 1;
        }
        Ok(Work { table: self.clone(), uid, counts })
    }

    /// One of the user's requests has ended: begins the next one if allowed.
    fn end(self: &Arc<Working>, uid: Uid) {
        self.lock().get_mut(&uid).expect("a request that ends has begun").running -= 1;
        loop {
            let next = {
                let mut users = self.lock();
                let user = users.entry(uid).or_default();
                let next = (user.running < self.limit.most).then(|| user.waiting.pop_front()).flatten();
                user.running += usize::from(next.is_some());
                if user.running == 0 {
                    users.remove(&uid);
                }
                next
            };
            let Some(next) = next else { return };
            let Err(mut unwanted) = next.send(Work { table: self.clone(), uid, counts: true }) else {
                return;
            };
            // The waiter is gone: this loop begins the next one instead.
            unwanted.counts = false;
            self.lock().get_mut(&uid).expect("it is counted").running -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uid, User>> {
        self.users.lock()
    }
}

impl Work {
    /// Runs a request on this thread; the request may call the back end.
    pub(crate) fn run<T>(self, work: impl FnOnce() -> T) -> T {
        /// Ends the request even if it panics.
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                drop(PRESENT.take());
            }
        }
        PRESENT.set(Some(self));
        let _end = End;
        work()
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.counts {
            self.table.end(self.uid);
        }
    }
}

/// Waits for something that needs no core of this machine; the request of this thread is not counted meanwhile.
pub(crate) fn away<T>(wait: impl FnOnce() -> T) -> T {
    /// Counts the request again even if the wait panics.
    struct Back(Arc<Working>, Uid);
    impl Drop for Back {
        fn drop(&mut self) {
            self.0.lock().entry(self.1).or_default().running += 1;
            PRESENT.with_borrow_mut(|work| work.iter_mut().for_each(|work| work.counts = true));
        }
    }
    let left = PRESENT.with_borrow_mut(|work| {
        let work = work.as_mut().filter(|work| work.counts)?;
        work.counts = false;
        Some((work.table.clone(), work.uid))
    });
    let _back = left.map(|(table, uid)| {
        table.end(uid);
        Back(table, uid)
    });
    wait()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::per_user::tests::UNPRIVILEGED;
    use forebay_model::ErrorKind;

    const PATIENCE: Duration = Duration::from_secs(9);

    fn two() -> Arc<Working> {
        Working::new(UserLimit { most: 2, owner: Some(Uid(7)), ..UNPRIVILEGED })
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_per_user_are_limited() {
        let table = two();
        let mut held: Vec<Work> = (0..2).map(|_| table.try_begin(Uid(5)).unwrap()).collect();
        assert!(table.try_begin(Uid(5)).is_none());
        let refused = table.begin(Uid(5), PATIENCE).await.err().expect("the third waits, then fails");
        assert!(refused.kind() == ErrorKind::Busy && refused.to_string().contains("limits.user_things"));
        assert!([6, 7, 7, 7, 0].iter().all(|&uid| table.try_begin(Uid(uid)).is_some()));
        let mut third = Box::pin(table.begin(Uid(5), PATIENCE));
        let waits = timeout(Duration::from_secs(1), &mut third).await;
        assert!(waits.is_err());
        held.pop();
        let third = third.await.unwrap();
        drop((held, third));
        assert!(table.lock().is_empty(), "no user is left in the table");
    }

    #[tokio::test]
    async fn requests_waiting_for_the_back_end_let_others_begin() {
        let table = two();
        let begin = || table.try_begin(Uid(5));
        let first = begin().unwrap();
        first.run(|| {
            let others = away(|| {
                let others = (begin(), begin());
                assert!(others.0.is_some() && others.1.is_some() && begin().is_none());
                others
            });
            assert_eq!(table.lock()[&Uid(5)].running, 3, "it continues, and no other begins");
            drop(others.0);
            assert!(begin().is_none());
            drop(others.1);
            assert!(begin().is_some());
        });
        assert!(table.lock().is_empty());
        away(|| assert!(begin().is_some()));
    }

    #[test]
    fn request_that_panics_is_no_longer_counted() {
        let table = two();
        let panics = std::panic::AssertUnwindSafe(|| {
            table.try_begin(Uid(5)).unwrap().run(|| away(|| panic!("the back end fails")));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(table.lock().is_empty());
    }
}
