//! The words of epochs and the order in which they are read and written, apart from where they live: the same code runs on
//! mapped memory and in the model.
//!
//! ```text
//! changes                                  tells                           was told
//! moments ← + 1                            m ← moments                     life, tree, word are
//! word ← + one change, + 1 under way       what is to be told              those of the lease:
//! make the change                          lease ← tree, word              it counts
//! moments ← + 1                            moments = m, none under way:
//! word ← − 1 under way                     tell it with the lease
//! answer whoever wanted it
//! ```
//!
//! **Invariant**: once a change can be seen by anybody, no lease on what was before it counts.

/// A change, above those under way.
const CHANGE: u64 = 1 << 16;
/// How many are under way.
const UNDER_WAY: u64 = CHANGE - 1;
/// The word of the tree.
pub(super) const TREE: usize = 0;

/// Where the words live that others are shown.
pub(super) trait Words {
    /// Not 0 while whoever tells is there.
    fn life(&self) -> u64;
    fn load(&self, word: usize) -> u64;
    fn add(&self, word: usize, by: u64);
    fn subtract(&self, word: usize, by: u64);
}

/// Where whoever tells counts beginnings and ends of changes.
pub(super) trait Moments {
    /// One more.
    fn pass(&self);
    /// How many there were, but for those that the calling thread has made itself.
    fn of_others(&self) -> u64;
}

/// A change is about to be made.
pub(super) fn begin(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.add(word, CHANGE + 1);
}

/// It is made.
pub(super) fn done(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.subtract(word, 1);
}

/// A change is being made under a lock that whoever looks has to take.
pub(super) fn changed(side: &(impl Words + Moments), word: usize) {
    side.pass();
    side.add(word, CHANGE);
}

/// The words, if nobody has begun or ended a change since a moment, and none is under way.
pub(super) fn lease(side: &(impl Words + Moments), since: u64, word: usize) -> Option<[u64; 2]> {
    let words = [side.load(TREE), side.load(word)];
    (is_lease(words) && side.of_others() == since).then_some(words)
}

/// Whether words can be those of a lease.
pub(super) fn is_lease([tree, file]: [u64; 2]) -> bool {
    (tree | file) & UNDER_WAY == 0
}

/// Whether what was told with these words in this life counts.
pub(super) fn stands(side: &impl Words, life: u64, [tree, file]: [u64; 2], word: usize) -> bool {
    stands_for_tree(side, life, tree) && side.load(word) == file
}

/// Whether what was told about the way counts.
pub(super) fn stands_for_tree(side: &impl Words, life: u64, tree: u64) -> bool {
    side.life() == life && side.load(TREE) == tree
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::sync::atomic::{AtomicU64, Ordering};
    use loom::sync::{Arc, Mutex};
    use std::cell::Cell;

    const LIFE: u64 = 5;
    const FILE: usize = 1;

    /// The words in the model's memory, and what they are about.
    struct Memory {
        life: AtomicU64,
        words: [AtomicU64; 2],
        moments: AtomicU64,
        /// Counts changes that anybody can look up.
        value: AtomicU64,
        /// The same, looked up and changed under a lock.
        locked: Mutex<u64>,
        /// What the last answer, to whomever, said or made.
        answered: AtomicU64,
    }

    /// One thread's view of them.
    struct View {
        memory: Arc<Memory>,
        own: Cell<u64>,
    }

    impl View {
        fn new() -> View {
            let memory = Memory {
                life: AtomicU64::new(LIFE),
                words: [AtomicU64::new(0), AtomicU64::new(0)],
                moments: AtomicU64::new(0),
                value: AtomicU64::new(0),
                locked: Mutex::new(0),
                answered: AtomicU64::new(0),
            };
            View { memory: Arc::new(memory), own: Cell::new(0) }
        }

        /// Another thread's.
        fn another(&self) -> View {
            View { memory: self.memory.clone(), own: Cell::new(0) }
        }

        /// Makes a change, and answers whoever wanted it.
        fn change(&self, word: usize) {
            begin(self, word);
            let value = self.memory.value.fetch_add(1, Ordering::AcqRel) + 1;
            done(self, word);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
        }

        /// The same, under a lock.
        fn change_locked(&self) {
            let mut locked = self.memory.locked.lock().unwrap();
            changed(self, FILE);
            *locked += 1;
            let value = *locked;
            drop(locked);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
        }

        /// Looks something up, and tells it with a lease if there is one.
        fn tell(&self, look: impl FnOnce(&View) -> u64) -> Option<(u64, [u64; 2])> {
            let since = self.of_others();
            let value = look(self);
            self.memory.answered.fetch_max(value, Ordering::AcqRel);
            lease(self, since, FILE).map(|words| (value, words))
        }

        /// Believes what was told if it counts, and then it must be no older than any answer before.
        fn believe(&self, told: Option<(u64, [u64; 2])>) {
            let answered = self.memory.answered.load(Ordering::Acquire);
            if let Some((value, words)) = told
                && stands(self, LIFE, words, FILE)
            {
                assert!(value >= answered, "{value} is believed after an answer that said {answered}");
            }
        }
    }

    impl Words for View {
        fn life(&self) -> u64 {
            self.memory.life.load(Ordering::Acquire)
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

    /// Somebody changes something while somebody else is told about it, and believes it as long as it counts.
    fn believed_beside(change: fn(&View), look: fn(&View) -> u64) {
        loom::model(move || {
            let view = View::new();
            let changing = view.another();
            let changing = loom::thread::spawn(move || change(&changing));
            let told = view.tell(look);
            view.believe(told);
            view.believe(told);
            changing.join().unwrap();
            view.believe(told);
            let told = view.tell(look);
            assert!(told.is_some(), "nobody changes anything any more");
            view.believe(told);
        });
    }

    #[test]
    fn whoever_was_told_never_believes_what_was_before_an_answer() {
        for change in [|view: &View| view.change(FILE), |view: &View| view.change(TREE)] {
            believed_beside(change, look);
        }
    }

    #[test]
    fn nor_where_a_lock_says_what_was_first() {
        believed_beside(View::change_locked, |view| *view.memory.locked.lock().unwrap());
    }

    #[test]
    fn who_tells_may_have_changed_it_himself_and_another_at_the_same_time() {
        loom::model(|| {
            let view = View::new();
            let changing = view.another();
            let changing = loom::thread::spawn(move || changing.change(FILE));
            let told = view.tell(|view| {
                view.change(FILE);
                look(view)
            });
            view.believe(told);
            changing.join().unwrap();
            view.believe(told);
        });
    }

    #[test]
    fn what_another_reader_saw_counts_too() {
        loom::model(|| {
            let view = View::new();
            let (changing, asking) = (view.another(), view.another());
            let told = view.tell(look);
            assert!(told.is_some());
            let changing = loom::thread::spawn(move || {
                begin(&changing, FILE);
                changing.memory.value.store(1, Ordering::Release);
                // Not done yet, and nobody was answered who wanted it.
            });
            // Somebody asks meanwhile, and is answered what he finds.
            let asking = loom::thread::spawn(move || {
                asking.memory.answered.fetch_max(look(&asking), Ordering::AcqRel);
            });
            view.believe(told);
            asking.join().unwrap();
            view.believe(told);
            changing.join().unwrap();
        });
    }

    #[test]
    fn the_end_of_a_life_comes_before_whatever_the_next_one_answers() {
        loom::model(|| {
            let view = View::new();
            let told = view.tell(look);
            assert!(told.is_some());
            let next = view.another();
            let living = loom::thread::spawn(move || {
                next.memory.life.store(0, Ordering::Release);
                // The next life has words of its own: those of the last stay as they are.
                let value = next.memory.value.fetch_add(1, Ordering::AcqRel) + 1;
                next.memory.answered.fetch_max(value, Ordering::AcqRel);
            });
            view.believe(told);
            living.join().unwrap();
            assert!(!stands(&view, LIFE, told.unwrap().1, FILE));
        });
    }
}
