//! Limits connections that have not authenticated yet.
//!
//! **Invariant**: one origin has at most a quarter of the handshakes in progress, and at most its limit of the places.
//! Further connections of an origin wait for its earlier ones only.
//!
//! The origin of a peer is its user if the kernel reports it, otherwise its TCP address, since the user is unknown
//! before the handshake. A peer has a handshake permit only while the server works on a message that has arrived in full,
//! never while the server waits for the peer. When an address has filled its places, the oldest peer that has not
//! authenticated is closed to make space for the next one. So unfinished handshakes from an address do not even block
//! others from the same address. When all places are taken, the origin with most of them loses its oldest peer, so that
//! unfinished handshakes from many addresses block no other address either.

use parking_lot::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// The source of a peer, as far as it is known before the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Origin {
    /// A user of this machine.
    User(u32),
    /// An address; for IPv6 its /64 network, because a host usually controls all of it.
    Address(IpAddr),
}

impl Origin {
    pub(crate) fn address(address: IpAddr) -> Origin {
        Origin::Address(match address.to_canonical() {
            IpAddr::V6(address) => {
                let [a, b, c, d, ..] = address.segments();
                IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
            }
            address => address,
        })
    }
}

/// One for each listener, so that remote peers cannot block users of this machine.
pub(crate) struct AcceptLimiter {
    /// Places for all unauthenticated connections.
    places: Arc<Semaphore>,
    /// Handshakes in progress, in total and per origin.
    handshakes: Arc<Semaphore>,
    each: usize,
    /// Maximum number of places per user.
    max_per_user: usize,
    /// Maximum number of places per address.
    max_per_address: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    origins: HashMap<Origin, OriginState>,
    /// Number of places given so far.
    given: u64,
}

/// An origin with at least one place.
struct OriginState {
    count: usize,
    handshakes: Arc<Semaphore>,
    /// Peers in the order of their arrival, each with the notification that closes it.
    peers: BTreeMap<u64, Arc<Notify>>,
}

/// A place for one peer.
pub(crate) struct Place {
    accept_limiter: Arc<AcceptLimiter>,
    origin: Origin,
    number: u64,
    leave: Arc<Notify>,
    _place: OwnedSemaphorePermit,
}

/// A handshake permit: one of the origin, and one of all.
pub(crate) struct HandshakePermit {
    _own: OwnedSemaphorePermit,
    _shared: OwnedSemaphorePermit,
}

impl AcceptLimiter {
    /// For `handshakes` concurrent handshakes. At most `max_per_user` peers of one user, `max_per_address` of one address,
    /// and twice `max_per_user` in total may have a place.
    pub(crate) fn new(handshakes: usize, max_per_user: usize, max_per_address: usize) -> Arc<AcceptLimiter> {
        Arc::new(AcceptLimiter {
            places: Arc::new(Semaphore::new(max_per_user.saturating_mul(2).min(Semaphore::MAX_PERMITS))),
            handshakes: Arc::new(Semaphore::new(handshakes)),
            each: handshakes.div_ceil(4),
            max_per_user,
            max_per_address: max_per_address.min(max_per_user),
            table: Mutex::default(),
        })
    }

    /// A place for another peer. If all are taken, the oldest peer of the origin with most places is closed, and this waits
    /// until it has left.
    pub(crate) async fn permit(&self) -> OwnedSemaphorePermit {
        if let Some(permit) = self.try_permit() {
            return permit;
        }
        self.close_one();
        self.places.clone().acquire_owned().await.expect("the semaphore is never closed")
    }

    /// Closes the oldest peer of the origin with most places; of several such origins, the one whose oldest peer has been here
    /// for longest.
    fn close_one(&self) {
        let mut table = self.table();
        let present = table.origins.values_mut().filter(|state| !state.peers.is_empty());
        let fullest = present.max_by_key(|state| {
            (state.peers.len(), state.peers.first_key_value().map(|(&number, _)| Reverse(number)))
        });
        if let Some((_, oldest)) = fullest.and_then(|state| state.peers.pop_first()) {
            oldest.notify_one();
        }
    }

    /// A place for another peer, if one is free.
    pub(crate) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.places.clone().try_acquire_owned().ok()
    }

    /// Gives a peer its place; `None` if its origin is at its limit.
    pub(crate) fn enter(
        self: &Arc<AcceptLimiter>,
        permit: OwnedSemaphorePermit,
        origin: Origin,
    ) -> Option<Place> {
        let mut table = self.table();
        let number = table.given;
        table.given += 1;
        let new = || OriginState {
            count: 0,
            handshakes: Arc::new(Semaphore::new(self.each)),
            peers: BTreeMap::new(),
        };
        let state = table.origins.entry(origin).or_insert_with(new);
        let full = match origin {
            Origin::User(_) => state.count >= self.max_per_user,
            // The oldest peer is notified and gives its place back a little later.
            Origin::Address(_) if state.count >= self.max_per_address => match state.peers.pop_first() {
                Some((_, oldest)) => {
                    oldest.notify_one();
                    false
                }
                None => true,
            },
            Origin::Address(_) => false,
        };
        if full {
            return None;
        }
        state.count += 1;
        let leave = Arc::new(Notify::new());
        state.peers.insert(number, leave.clone());
        Some(Place { accept_limiter: self.clone(), origin, number, leave, _place: permit })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Place {
    /// Waits for a handshake permit for this peer, whose message has arrived.
    pub(crate) async fn handshake_permit(&self) -> HandshakePermit {
        let own = {
            let table = self.accept_limiter.table();
            let state = table.origins.get(&self.origin).expect("an origin with a place is in the table");
            state.handshakes.clone()
        };
        let own = own.acquire_owned().await.expect("the semaphore is never closed");
        let shared = self
            .accept_limiter
            .handshakes
            .clone()
            .acquire_owned()
            .await
            .expect("the semaphore is never closed");
        HandshakePermit { _own: own, _shared: shared }
    }

    /// Waits until this peer must be closed, because another peer of its origin needs the place.
    pub(crate) async fn must_leave(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.accept_limiter.table();
        if let Some(state) = table.origins.get_mut(&self.origin) {
            state.peers.remove(&self.number);
            state.count -= 1;
            if state.count == 0 {
                table.origins.remove(&self.origin);
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

    fn enter(accept_limiter: &Arc<AcceptLimiter>, user: u32) -> Option<Place> {
        accept_limiter.enter(now(accept_limiter.permit())?, Origin::User(user))
    }

    fn connect(accept_limiter: &Arc<AcceptLimiter>, address: &str) -> Option<Place> {
        accept_limiter.enter(now(accept_limiter.permit())?, Origin::address(address.parse().unwrap()))
    }

    #[test]
    fn one_user_never_takes_all_handshakes_or_all_places() {
        let accept_limiter = AcceptLimiter::new(8, 5, 5);
        let alice: Vec<Place> = (0..5).map(|_| enter(&accept_limiter, 1).unwrap()).collect();
        let handshakes: Vec<HandshakePermit> =
            alice.iter().map_while(|place| now(place.handshake_permit())).collect();
        assert_eq!(handshakes.len(), 2, "a quarter of eight");
        assert!(enter(&accept_limiter, 1).is_none(), "half of the places are taken by this user");
        let bob = enter(&accept_limiter, 2).unwrap();
        assert!(now(bob.handshake_permit()).is_some());
        drop(handshakes);
        assert!(now(alice[4].handshake_permit()).is_some(), "its others follow its first ones");
        drop(alice);
        assert!(enter(&accept_limiter, 1).is_some());
        drop(bob);
        assert!(accept_limiter.table().origins.is_empty(), "no origin is left in the table");
    }

    #[test]
    fn total_number_of_places_is_bounded() {
        let accept_limiter = AcceptLimiter::new(3, 2, 2);
        let places: Vec<Place> = (0..4).map(|user| enter(&accept_limiter, user).unwrap()).collect();
        assert!(enter(&accept_limiter, 9).is_none(), "the next one waits until a place is free");
        let handshakes: Vec<HandshakePermit> =
            places.iter().map_while(|place| now(place.handshake_permit())).collect();
        assert_eq!(handshakes.len(), 3);
    }

    #[test]
    fn oldest_peer_of_the_fullest_address_is_closed_when_all_places_are_taken() {
        let accept_limiter = AcceptLimiter::new(8, 4, 4);
        let connect_from = |host: u8, count: usize| -> Vec<Place> {
            (0..count).map(|_| connect(&accept_limiter, &format!("10.0.0.{host}")).unwrap()).collect()
        };
        let (one, mut three, four) = (connect_from(1, 1), connect_from(2, 3), connect_from(3, 4));
        let closed = |places: &[Place]| -> Vec<bool> {
            places.iter().map(|place| now(place.must_leave()).is_some()).collect()
        };
        let mut permit = pin!(accept_limiter.permit());
        let mut poll = || permit.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending(), "the closed peer has not left yet");
        assert_eq!(closed(&four), [true, false, false, false], "it is of the address with most places");
        assert!(poll().is_pending());
        assert_eq!(
            (closed(&one), closed(&three), closed(&four)),
            (vec![false], vec![false; 3], vec![false; 4])
        );
        let mut four = four.into_iter();
        drop(four.next());
        let Poll::Ready(permit) = poll() else { panic!("a place is free") };
        let origin = Origin::address("10.0.0.4".parse().unwrap());
        let _other = accept_limiter.enter(permit, origin).unwrap();
        // Two addresses have three each: the peer that came first goes.
        let mut permit = pin!(accept_limiter.permit());
        assert!(permit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(closed(&three), [true, false, false]);
        drop(three.remove(0));
        assert!(permit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }

    #[test]
    fn oldest_peer_of_an_address_is_closed_for_a_new_one() {
        let accept_limiter = AcceptLimiter::new(8, 9, 3);
        let old: Vec<Place> = (0..3).map(|_| connect(&accept_limiter, "10.0.0.1").unwrap()).collect();
        let permits: Vec<HandshakePermit> =
            old.iter().map_while(|place| now(place.handshake_permit())).collect();
        assert_eq!(permits.len(), 2, "a quarter of eight");
        assert!(now(old[0].must_leave()).is_none(), "a place is free");
        let new: Vec<Place> = (0..2).map(|_| connect(&accept_limiter, "::ffff:10.0.0.1").unwrap()).collect();
        let evicted: Vec<bool> =
            old.iter().chain(&new).map(|place| now(place.must_leave()).is_some()).collect();
        assert_eq!(evicted, [true, true, false, false, false], "also those that are in their handshake");
        let elsewhere = connect(&accept_limiter, "10.0.0.2").unwrap();
        assert!(now(elsewhere.handshake_permit()).is_some());
        drop((permits, old, new, elsewhere));
        assert!(accept_limiter.table().origins.is_empty(), "no origin is left in the table");
        let network: Vec<Place> =
            (1..=3).map(|host| connect(&accept_limiter, &format!("fd00::{host}")).unwrap()).collect();
        assert!(connect(&accept_limiter, "fd00:1::1").is_some() && now(network[0].must_leave()).is_none());
        assert!(connect(&accept_limiter, "fd00::9").is_some(), "the first leaves");
        assert!(now(network[0].must_leave()).is_some(), "a network is one origin");
    }
}
