//! The words of a queue and the order in which they are read and written, independent of where they are stored: the
//! same code runs on mapped memory and in the loom model.
//!
//! ```text
//! client                                       server
//! request of the slot ← bytes                  p ← posted, posted ← 0 (acquire)
//! state ← Posted (release)                     state = Posted or Asleep (acquire): request → private memory
//! posted ← posted + slot (release)             reply of the slot ← bytes
//! fence; sleepers > 0: wake the server         s ← state, state ← Answered (release)
//!                                              s = Asleep: wake the client
//! state = Answered (acquire): it is done
//! else state: Posted → Asleep, unless it is    sleepers ← 1; fence; posted = 0: sleep
//! Answered; sleep while it is Asleep
//! ```
//!
//! **Invariant**: a request is read only after it was written completely, and so is a reply. If a client falls asleep
//! while the server replies, or the server falls asleep while a client posts, at least one of them sees the other.

use std::sync::atomic::Ordering;

/// The state of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    /// No request was posted yet.
    Idle = 0,
    /// A request is posted.
    Posted = 1,
    /// A request is posted, and the client sleeps until the reply.
    Asleep = 2,
    /// The reply is available.
    Answered = 3,
}

impl State {
    /// The state that a word encodes, if any.
    pub(crate) fn of(word: u32) -> Option<State> {
        [State::Idle, State::Posted, State::Asleep, State::Answered]
            .into_iter()
            .find(|state| *state as u32 == word)
    }
}

/// Storage of the words.
pub(crate) trait Words {
    fn state(&self, slot: u32, order: Ordering) -> u32;
    fn set_state(&self, slot: u32, state: State, order: Ordering);
    fn swap_state(&self, slot: u32, state: State) -> u32;
    /// Changes a state if it is `from`; returns whether it was.
    fn change_state(&self, slot: u32, from: State, to: State) -> bool;
    fn post(&self, slots: u64);
    fn take_posted(&self) -> u64;
    fn is_posted(&self) -> bool;
    /// Whether the server sleeps or is about to.
    fn server_sleeps(&self) -> bool;
    /// A sequentially consistent fence.
    fn fence(&self);
}

/// Posts the request in a slot; true if the server has to be woken.
pub(crate) fn post_request(words: &impl Words, slot: u32) -> bool {
    words.set_state(slot, State::Posted, Ordering::Release);
    words.post(1 << slot);
    words.fence();
    words.server_sleeps()
}

/// Whether a slot has a reply, which may then be read.
pub(crate) fn is_answered(words: &impl Words, slot: u32) -> bool {
    words.state(slot, Ordering::Acquire) == State::Answered as u32
}

/// Whether the client may sleep while the state of its slot is `Asleep`. If not, the reply is available.
pub(crate) fn may_sleep(words: &impl Words, slot: u32) -> bool {
    words.change_state(slot, State::Posted, State::Asleep)
        || words.state(slot, Ordering::Acquire) == State::Asleep as u32
}

/// Whether a slot holds a request, which may be read until the reply.
pub(crate) fn is_asked(words: &impl Words, slot: u32) -> bool {
    matches!(State::of(words.state(slot, Ordering::Acquire)), Some(State::Posted | State::Asleep))
}

/// Publishes the reply in a slot; true if the client has to be woken.
pub(crate) fn answer(words: &impl Words, slot: u32) -> bool {
    words.swap_state(slot, State::Answered) == State::Asleep as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

    /// A queue in the model's memory, which detects concurrent reads and writes of a byte.
    struct Model {
        states: [AtomicU32; 2],
        posted: AtomicU64,
        sleepers: AtomicU32,
        requests: [UnsafeCell<u8>; 2],
        replies: [UnsafeCell<u8>; 2],
    }

    // SAFETY: the model verifies that the accesses are ordered.
    unsafe impl Sync for Model {}
    // SAFETY: as above.
    unsafe impl Send for Model {}

    impl Model {
        fn new() -> Arc<Model> {
            Arc::new(Model {
                states: [AtomicU32::new(0), AtomicU32::new(0)],
                posted: AtomicU64::new(0),
                sleepers: AtomicU32::new(0),
                requests: [UnsafeCell::new(0), UnsafeCell::new(0)],
                replies: [UnsafeCell::new(0), UnsafeCell::new(0)],
            })
        }

        fn read(cell: &UnsafeCell<u8>) -> u8 {
            // SAFETY: as above.
            cell.with(|byte| unsafe { *byte })
        }

        fn write(cell: &UnsafeCell<u8>, value: u8) {
            // SAFETY: as above.
            cell.with_mut(|byte| unsafe { *byte = value });
        }

        /// Replies to every posted request with its successor. Returns the number of requests and whether a client had
        /// to be woken.
        fn serve(&self) -> (u32, bool) {
            let (mut mask, mut count, mut wakes) = (self.take_posted(), 0, false);
            while mask != 0 {
                let slot = mask.trailing_zeros();
                mask &= mask - 1;
                assert!(is_asked(self, slot), "a posted slot holds a request");
                let request = Model::read(&self.requests[slot as usize]);
                Model::write(&self.replies[slot as usize], request + 1);
                wakes |= answer(self, slot);
                count += 1;
            }
            (count, wakes)
        }
    }

    impl Words for Model {
        fn state(&self, slot: u32, order: Ordering) -> u32 {
            self.states[slot as usize].load(order)
        }

        fn set_state(&self, slot: u32, state: State, order: Ordering) {
            self.states[slot as usize].store(state as u32, order);
        }

        fn swap_state(&self, slot: u32, state: State) -> u32 {
            self.states[slot as usize].swap(state as u32, Ordering::AcqRel)
        }

        fn change_state(&self, slot: u32, from: State, to: State) -> bool {
            let state = &self.states[slot as usize];
            state.compare_exchange(from as u32, to as u32, Ordering::AcqRel, Ordering::Acquire).is_ok()
        }

        fn post(&self, slots: u64) {
            self.posted.fetch_or(slots, Ordering::AcqRel);
        }

        fn take_posted(&self) -> u64 {
            self.posted.swap(0, Ordering::AcqRel)
        }

        fn is_posted(&self) -> bool {
            self.posted.load(Ordering::Acquire) != 0
        }

        fn server_sleeps(&self) -> bool {
            self.sleepers.load(Ordering::Relaxed) != 0
        }

        fn fence(&self) {
            fence(Ordering::SeqCst);
        }
    }

    #[test]
    fn reused_slot_answers_each_request_once_and_completely() {
        loom::model(|| {
            let words = Model::new();
            let client = words.clone();
            let asking = loom::thread::spawn(move || {
                for round in [10, 20] {
                    Model::write(&client.requests[0], round);
                    post_request(&*client, 0);
                    while !is_answered(&*client, 0) {
                        loom::thread::yield_now();
                    }
                    assert_eq!(Model::read(&client.replies[0]), round + 1);
                }
            });
            let mut served = 0;
            while served < 2 {
                match words.serve() {
                    (0, _) => loom::thread::yield_now(),
                    (count, _) => served += count,
                }
            }
            asking.join().unwrap();
            assert_eq!(words.serve().0, 0, "no request is posted twice");
        });
    }

    #[test]
    fn client_asleep_during_reply_is_woken_or_sees_it() {
        loom::model(|| {
            let words = Model::new();
            Model::write(&words.requests[1], 5);
            post_request(&*words, 1);
            let server = words.clone();
            let serving = loom::thread::spawn(move || server.serve());
            let sleeps = may_sleep(&*words, 1);
            let (count, wakes) = serving.join().unwrap();
            assert_eq!((count, wakes), (1, sleeps));
            assert!(is_answered(&*words, 1));
            assert_eq!(Model::read(&words.replies[1]), 6);
        });
    }

    #[test]
    fn server_falling_asleep_is_woken_or_sees_the_request() {
        loom::model(|| {
            let words = Model::new();
            let client = words.clone();
            let asking = loom::thread::spawn(move || post_request(&*client, 0));
            words.sleepers.store(1, Ordering::Relaxed);
            words.fence();
            let sees = words.is_posted();
            let wakes = asking.join().unwrap();
            assert!(sees || wakes, "it would sleep for ever");
        });
    }
}
