//! The words of epochs and the order in which they are read and written, independent of where they are stored: the same
//! code runs on mapped memory and in the loom model.
//!
//! ```text
//! change (server)                          reply (server)                  check (client)
//! stamp of the word ← tick of the clock    m ← clock                       boot, tree, word equal
//! word ← + one change, + 1 in progress     look up the reply               those of the lease:
//! make the change                          lease ← tree, word              the lease is valid
//! stamp of the word ← tick of the clock    none in progress, stamps ≤ m:
//! word ← − 1 in progress                   send it with the lease
//! reply to the request
//! ```
//!
//! The clock counts ticks in the server's memory; so do the stamps, one for each word. A stamp above *m* refuses the
//! lease, unless the thread that looks up the reply made all changes of that word since *m* itself ([`OwnChanges`]).
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

/// The server's clock, and the stamps of the last start or end of a change of each word.
pub(super) trait Stamps {
    /// The ticks so far.
    fn clock(&self) -> u64;
    /// Advances the clock; returns the new time.
    fn tick(&self) -> u64;
    fn stamp(&self, word: usize) -> u64;
    /// Raises the stamp of a word to `stamp` unless it is later; returns the stamp before.
    fn raise(&self, word: usize, stamp: u64) -> u64;
    /// The number of this server among those of the process, from 1.
    fn number(&self) -> u64;
    /// Works with the changes that the calling thread made itself.
    fn own<T>(&self, work: impl FnOnce(&mut OwnChanges) -> T) -> T;
}

/// The server's side: words and stamps.
pub(super) trait Side: Words + Stamps {}

impl<S: Words + Stamps> Side for S {}

/// The last stamps that a thread has set itself, of a few words of any number of servers.
///
/// **Invariant**: from `before` to `last`, no other thread stamped the word.
pub(super) struct OwnChanges {
    words: [OwnWord; OWN_WORDS],
    /// The next place to be reused.
    next: usize,
}

/// The words that a thread stamps in one request: the files of a rename, two directories, and the tree.
const OWN_WORDS: usize = 8;

#[derive(Clone, Copy)]
struct OwnWord {
    server: u64,
    word: usize,
    before: u64,
    last: u64,
}

impl OwnChanges {
    pub(super) const fn new() -> OwnChanges {
        // No server has the number 0.
        let nothing = OwnWord { server: 0, word: 0, before: 0, last: 0 };
        OwnChanges { words: [nothing; OWN_WORDS], next: 0 }
    }

    /// Notes that the thread replaced the stamp `before` of a server's word by `last`.
    pub(super) fn note(&mut self, server: u64, word: usize, before: u64, last: u64) {
        let mut known = self.words.iter_mut().filter(|own| (own.server, own.word) == (server, word));
        match known.next() {
            Some(own) if own.last == before => own.last = last,
            // Another thread was in between.
            Some(own) => *own = OwnWord { server, word, before, last },
            None => {
                self.words[self.next] = OwnWord { server, word, before, last };
                self.next = (self.next + 1) % OWN_WORDS;
            }
        }
    }

    /// Whether the thread set all stamps of a server's word since a time, up to `stamp`.
    pub(super) fn made_all_since(&self, since: u64, server: u64, word: usize, stamp: u64) -> bool {
        let mut known = self.words.iter().filter(|own| (own.server, own.word) == (server, word));
        known.any(|own| own.last == stamp && own.before <= since)
    }
}

/// Stamps a word. The stamps of a word rise with each start and end of a change, so that none of them is lost behind a
/// later one that was set first.
fn stamp(side: &impl Side, word: usize) {
    loop {
        let now = side.tick();
        let before = side.raise(word, now);
        if before < now {
            return side.own(|own| own.note(side.number(), word, before, now));
        }
    }
}

/// Marks the start of a change.
pub(super) fn begin(side: &impl Side, word: usize) {
    stamp(side, word);
    side.add(word, CHANGE + 1);
}

/// Marks the end of a change.
pub(super) fn done(side: &impl Side, word: usize) {
    stamp(side, word);
    side.subtract(word, 1);
}

/// Marks a change made under a lock that every lookup takes.
pub(super) fn changed(side: &impl Side, word: usize) {
    stamp(side, word);
    side.add(word, CHANGE);
}

/// The words, if no other thread began or ended a change of them since a time, and none is in progress.
pub(super) fn lease(side: &impl Side, since: u64, word: usize) -> Option<[u64; 2]> {
    let words = [side.load(TREE), side.load(word)];
    let is_unchanged = |word| {
        let stamp = side.stamp(word);
        stamp <= since || side.own(|own| own.made_all_since(since, side.number(), word, stamp))
    };
    (is_lease(words) && is_unchanged(TREE) && is_unchanged(word)).then_some(words)
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
    use std::cell::RefCell;

    const BOOT: u64 = 5;
    const FILE: usize = 1;

    /// The words in the model's memory, and the state they protect.
    struct Memory {
        boot: AtomicU64,
        words: [AtomicU64; 2],
        clock: AtomicU64,
        stamps: [AtomicU64; 2],
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
        own: RefCell<OwnChanges>,
    }

    impl View {
        fn new() -> View {
            let memory = Memory {
                boot: AtomicU64::new(BOOT),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
                clock: AtomicU64::new(0),
                stamps: [AtomicU64::new(0), AtomicU64::new(0)],
                value: AtomicU64::new(0),
                locked: Mutex::new(0),
                answered: AtomicU64::new(0),
            };
            View { memory: Arc::new(memory), own: RefCell::new(OwnChanges::new()) }
        }

        /// A view for another thread.
        fn another(&self) -> View {
            View { memory: self.memory.clone(), own: RefCell::new(OwnChanges::new()) }
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
            let since = self.clock();
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

    impl Stamps for View {
        fn clock(&self) -> u64 {
            self.memory.clock.load(Ordering::Acquire)
        }

        fn tick(&self) -> u64 {
            self.memory.clock.fetch_add(1, Ordering::AcqRel) + 1
        }

        fn stamp(&self, word: usize) -> u64 {
            self.memory.stamps[word].load(Ordering::Acquire)
        }

        fn raise(&self, word: usize, stamp: u64) -> u64 {
            self.memory.stamps[word].fetch_max(stamp, Ordering::AcqRel)
        }

        fn number(&self) -> u64 {
            1
        }

        fn own<T>(&self, work: impl FnOnce(&mut OwnChanges) -> T) -> T {
            work(&mut self.own.borrow_mut())
        }
    }

    /// Explores all orders with so many preemptions. Every operation on a word is a place for one.
    fn check(preemptions: usize, work: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(preemptions);
        model.check(work);
    }

    fn look(view: &View) -> u64 {
        view.memory.value.load(Ordering::Acquire)
    }

    /// One thread makes a change while another obtains a lease and uses the value while the lease is valid.
    fn check_concurrent(change: fn(&View), look: fn(&View) -> u64) {
        check(3, move || {
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
        check(3, || {
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
        check(3, || {
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
    fn own_change_after_the_lookup_hides_no_change_by_others() {
        for change in [|view: &View| view.change(FILE), |view: &View| view.change(TREE)] {
            check(3, move || {
                let view = View::new();
                let changing = view.another();
                let changing = loom::thread::spawn(move || change(&changing));
                let leased = view.notify(|view| {
                    let value = look(view);
                    // Something else that shares the words.
                    [TREE, FILE].into_iter().for_each(|word| changed(view, word));
                    value
                });
                view.accept(leased);
                changing.join().unwrap();
                view.accept(leased);
            });
        }
    }

    #[test]
    fn locked_change_beside_an_own_one_is_never_hidden() {
        check(3, || {
            let view = View::new();
            let changing = view.another();
            let changing = loom::thread::spawn(move || changing.change_locked());
            let leased = view.notify(|view| {
                view.change_locked();
                *view.memory.locked.lock().unwrap()
            });
            view.accept(leased);
            changing.join().unwrap();
            view.accept(leased);
        });
    }

    #[test]
    fn end_of_a_boot_precedes_replies_of_the_next() {
        check(3, || {
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
