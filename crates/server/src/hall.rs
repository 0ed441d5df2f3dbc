//! The hall before a door: peers that have knocked and are not known yet.
//!
//! **Invariant**: of the handshakes under way one user has at most a quarter, and of the places in the hall at most half.
//! What more he brings waits for what he brought before, and for nobody else's.
//!
//! On TCP nobody knows whose a connection is before its handshake, so nobody is told apart there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One for each way in: strangers on the network do not keep this machine's users out.
pub(crate) struct Hall {
    /// Places for all who wait or talk.
    places: Arc<Semaphore>,
    /// Handshakes under way, of all and of each.
    talking: Arc<Semaphore>,
    each: usize,
    /// Most places that one user may take.
    crowd: usize,
    people: Mutex<HashMap<u32, Person>>,
}

/// A user of whom somebody is here.
struct Person {
    here: usize,
    talking: Arc<Semaphore>,
}

/// A place in the hall, for one peer.
pub(crate) struct Place {
    hall: Arc<Hall>,
    user: Option<u32>,
    _place: OwnedSemaphorePermit,
}

/// Leave to talk: from the user's own share, then from everybody's.
pub(crate) struct Word {
    _own: Option<OwnedSemaphorePermit>,
    _shared: OwnedSemaphorePermit,
}

impl Hall {
    /// For so many handshakes at a time; `crowd` peers of one user, and twice as many in all, may be waiting.
    pub(crate) fn new(handshakes: usize, crowd: usize) -> Arc<Hall> {
        Arc::new(Hall {
            places: Arc::new(Semaphore::new(crowd.saturating_mul(2).min(Semaphore::MAX_PERMITS))),
            talking: Arc::new(Semaphore::new(handshakes)),
            each: handshakes.div_ceil(4),
            crowd,
            people: Mutex::default(),
        })
    }

    /// Waits until there is room for another peer; the others wait in the kernel's queue.
    pub(crate) async fn room(&self) -> OwnedSemaphorePermit {
        self.places.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Takes a peer in; `None` if its user has filled his part of the hall.
    pub(crate) fn enter(self: &Arc<Hall>, room: OwnedSemaphorePermit, user: Option<u32>) -> Option<Place> {
        if let Some(user) = user {
            let mut people = self.people();
            let person = people
                .entry(user)
                .or_insert_with(|| Person { here: 0, talking: Arc::new(Semaphore::new(self.each)) });
            if person.here >= self.crowd {
                return None;
            }
            person.here += 1;
        }
        Some(Place { hall: self.clone(), user, _place: room })
    }

    fn people(&self) -> MutexGuard<'_, HashMap<u32, Person>> {
        self.people.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// Waits until this peer may talk.
    pub(crate) async fn word(&self) -> Word {
        let own = self.user.map(|user| self.hall.people()[&user].talking.clone());
        let own = match own {
            Some(own) => Some(own.acquire_owned().await.expect("the semaphore is never closed")),
            None => None,
        };
        let shared = self.hall.talking.clone().acquire_owned().await.expect("the semaphore is never closed");
        Word { _own: own, _shared: shared }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(user) = self.user else { return };
        let mut people = self.hall.people();
        if let Some(person) = people.get_mut(&user) {
            person.here -= 1;
            if person.here == 0 {
                people.remove(&user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    fn enter(hall: &Arc<Hall>, user: Option<u32>) -> Option<Place> {
        hall.enter(now(hall.room())?, user)
    }

    #[test]
    fn one_user_never_has_all_the_handshakes_or_all_the_room() {
        let hall = Hall::new(8, 5);
        let alice: Vec<Place> = (0..5).map(|_| enter(&hall, Some(1)).unwrap()).collect();
        let talking: Vec<Word> = alice.iter().map_while(|place| now(place.word())).collect();
        assert_eq!(talking.len(), 2, "a quarter of eight");
        assert!(enter(&hall, Some(1)).is_none(), "half of the hall is hers");
        let bob = enter(&hall, Some(2)).unwrap();
        assert!(now(bob.word()).is_some());
        drop(talking);
        assert!(now(alice[4].word()).is_some(), "her others come after her first");
        drop(alice);
        assert!(enter(&hall, Some(1)).is_some());
        drop(bob);
        assert!(hall.people().is_empty(), "nobody is remembered");
    }

    #[test]
    fn all_together_are_bounded_too() {
        let hall = Hall::new(3, 2);
        let places: Vec<Place> = (0..4).map(|user| enter(&hall, Some(user)).unwrap()).collect();
        assert!(enter(&hall, Some(9)).is_none(), "the rest waits outside");
        let talking: Vec<Word> = places.iter().map_while(|place| now(place.word())).collect();
        assert_eq!(talking.len(), 3);
        drop(places);
        let strangers: Vec<Place> = (0..4).map_while(|_| enter(&hall, None)).collect();
        assert_eq!(strangers.len(), 4, "nobody knows whose they are");
    }
}
