//! The words of epochs and the order in which they are read and written, independent of where they are stored: the same
//! code runs on mapped memory and in the loom model.
//!
//! ```text
//! change (server)                          reply (server)                  check (client)
//! moments ← + 1                            m ← moments                     boot, tree, word equal
//! word ← + one change, + 1 in progress     look up the reply               those of the lease:
//! make the change                          lease ← tree, word              the lease is valid
//! moments ← + 1                            moments = m, none in progress:
//! word ← − 1 in progress                   send it with the lease
//! reply to the request
//! ```
//!
//! **Invariant**: once any process can see a change, no lease on the state before it is valid.

/// One change, in the bits above those of the changes in progress.
const CHANGE: u64 = 1 << 16;
/// Mask of the number of changes in progress.
const IN_PROGRESS: u64 = CHANGE - 1;
/// Index of the word of the tree.
pub(super) const TREE: usize = 0;

/// Storage of the shared words.
pub(super) trait Words {
    /// Nonzero while the server runs.
    fn boot(&self) -> u64;
    fn load(&self, word: usize) -> u64;
    fn add(&self, word: usize, by: u64);
    fn subtract(&self, word: usize, by: u64);
}

/// The server's counter of starts and ends of changes.
pub(super) trait Moments {
    /// Increments the counter.
    fn pass(&self);
    /// The count without the increments of the calling thread.
    fn of_others(&self) -> u64;
}

/// Marks the start of a change.
pub(super) fn begin(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.add(word, CHANGE + 1);
}

/// Marks the end of a change.
pub(super) fn done(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.subtract(word, 1);
}

/// Marks a change made under a lock that every lookup takes.
pub(super) fn changed(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.add(word, CHANGE);
}

/// The words, if no other thread began or ended a change since a moment and none is in progress.
pub(super) fn lease(side: &(impl Words + Moments), since: u64, word: usize) -> Option<[u64; 2]> {
    let words = [side.load(TREE), side.load(word)];
    (is_lease(words) && side.of_others() == since).then_some(words)
}

/// Whether words can form a lease, that is, no change is in progress.
pub(super) fn is_lease([tree, file]: [u64; 2]) -> bool {
    (tree | file) & IN_PROGRESS == 0
}

/// Whether a lease of this boot is still valid.
pub(super) fn stands(side: &impl Words, boot: u64, [tree, file]: [u64; 2], word: usize) -> bool {
    stands_for_tree(side, boot, tree) && side.load(word) == file
}

/// Whether the tree part of a lease is still valid.
pub(super) fn stands_for_tree(side: &impl Words, boot: u64, tree: u64) -> bool {
    side.boot() == boot && side.load(TREE) == tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Arc, Mutex};
    use std::cell::Cell;

    const BOOT: u64 = 5;
    const FILE: usize = 1;

    /// The words in the model's memory, and the state they protect.
    struct Memory {
        boot: AtomicU64,
        words: [AtomicU64; 2],
        moments: AtomicU64,
        /// Counts changes; read without a lock.
        value: AtomicU64,
        /// Counts changes; read and changed under a lock.
        locked: Mutex<u64>,
        /// The newest value that any reply reported or created.
        answered: AtomicU64,
    }

    /// One thread's view of the memory.
    struct View {
        memory: Arc<Memory>,
        own: Cell<u64>,
    }

    impl View {
        fn new() -> View {
            let memory = Memory {
                boot: AtomicU64::new(BOOT),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
                moments: AtomicU64::new(0),
                value: AtomicU64::new(0),
                locked: Mutex::new(0),
                answered: AtomicU64::new(0),
            };
            View { memory: Arc::new(memory), own: Cell::new(0) }
        }

        /// A view for another thread.
        fn another(&self) -> View {
            View { memory: self.memory.clone(), own: Cell::new(0) }
        }

        /// Makes a change and replies to its request.
        fn change(&self, word: usize) {
            begin(self, word);
            let value = self.memory.value.fetch_add(1, Ordering::AcqRel) + 1;
            done(self, word);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
        }

        /// Makes a change under the lock.
        fn change_locked(&self) {
            let mut locked = self.memory.locked.lock().unwrap();
            changed(self, FILE);
            *locked += 1;
            let value = *locked;
            drop(locked);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
        }

        /// Looks up a value and returns it with a lease, if one is available.
        fn notify(&self, look: impl FnOnce(&View) -> u64) -> Option<(u64, [u64; 2])> {
            let since = self.of_others();
            let value = look(self);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
            lease(self, since, FILE).map(|words| (value, words))
        }

        /// Accepts a leased value if the lease is valid; it must then be no older than any earlier reply.
        fn accept(&self, leased: Option<(u64, [u64; 2])>) {
            let answered = self.memory.answered.load(Ordering::Acquire);
            if let Some((value, words)) = leased
                && stands(self, BOOT, words, FILE)
            {
                assert!(value >= answered, "{value} was accepted after a reply that reported {answered}");
            }
        }
    }

    impl Words for View {
        fn boot(&self) -> u64 {
            self.memory.boot.load(Ordering::Acquire)
        }

        fn load(&self, word: usize) -> u64 {
            self.memory.words[word].load(Ordering::Acquire)
        }

        fn add(&self, word: usize, by: u64) {
            self.memory.words[word].fetch_add(by, Ordering::AcqRel);
        }

        fn subtract(&self, word: usize, by: u64) {
            self.memory.words[word].fetch_sub(by, Ordering::AcqRel);
        }
    }

    impl Moments for View {
        fn pass(&self) {
            self.own.set(self.own.get() + 1);
            self.memory.moments.fetch_add(1, Ordering::AcqRel);
        }

        fn of_others(&self) -> u64 {
            self.memory.moments.load(Ordering::Acquire) - self.own.get()
        }
    }

    fn look(view: &View) -> u64 {
        view.memory.value.load(Ordering::Acquire)
    }

    /// One thread makes a change while another obtains a lease and uses the value while the lease is valid.
    fn check_concurrent(change: fn(&View), look: fn(&View) -> u64) {
        loom::model(move || {
            let view = View::new();
            let changing = view.another();
            let changing = loom::thread::spawn(move || change(&changing));
            let leased = view.notify(look);
            view.accept(leased);
            view.accept(leased);
            changing.join().unwrap();
            view.accept(leased);
            let leased = view.notify(look);
            assert!(leased.is_some(), "no change is in progress");
            view.accept(leased);
        });
    }

    #[test]
    fn leased_value_is_never_older_than_a_reply() {
        for change in [|view: &View| view.change(FILE), |view: &View| view.change(TREE)] {
            check_concurrent(change, look);
        }
    }

    #[test]
    fn locked_change_never_leaves_an_older_value_leased() {
        check_concurrent(View::change_locked, |view| *view.memory.locked.lock().unwrap());
    }

    #[test]
    fn lease_is_correct_with_an_own_and_a_concurrent_change() {
        loom::model(|| {
            let view = View::new();
            let changing = view.another();
            let changing = loom::thread::spawn(move || changing.change(FILE));
            let leased = view.notify(|view| {
                view.change(FILE);
                look(view)
            });
            view.accept(leased);
            changing.join().unwrap();
            view.accept(leased);
        });
    }

    #[test]
    fn value_seen_by_another_reader_invalidates_older_leases() {
        loom::model(|| {
            let view = View::new();
            let (changing, asking) = (view.another(), view.another());
            let leased = view.notify(look);
            assert!(leased.is_some());
            let changing = loom::thread::spawn(move || {
                begin(&changing, FILE);
                changing.memory.value.store(1, Ordering::Release);
                // The change is not done, and its request has no reply yet.
            });
            // A concurrent request receives the value that the lookup finds.
            let asking = loom::thread::spawn(move || {
                asking.memory.answered.fetch_max(look(&asking), Ordering::AcqRel);
            });
            view.accept(leased);
            asking.join().unwrap();
            view.accept(leased);
            changing.join().unwrap();
        });
    }

    #[test]
    fn end_of_a_boot_precedes_replies_of_the_next() {
        loom::model(|| {
            let view = View::new();
            let leased = view.notify(look);
            assert!(leased.is_some());
            let next = view.another();
            let living = loom::thread::spawn(move || {
                next.memory.boot.store(0, Ordering::Release);
                // The next boot has its own words; those of the previous boot stay as they are.
                let value = next.memory.value.fetch_add(1, Ordering::AcqRel) + 1;
                next.memory.answered.fetch_max(value, Ordering::AcqRel);
            });
            view.accept(leased);
            living.join().unwrap();
            assert!(!stands(&view, BOOT, leased.unwrap().1, FILE));
        });
    }
}
