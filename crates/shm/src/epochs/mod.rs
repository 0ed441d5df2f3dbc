//! Epochs: words by which one process lets others know that what it told them counts no more.
//!
//! ```text
//! 0      magic; life: not 0 while whoever made the file is there, or died and nobody else is
//! 4096   WORDS words: the first is that of the tree, the others are shared by files, each by its number
//! ```
//!
//! A word counts changes; its lowest bits say how many are under way. What was told is told with the words as they were, a
//! [`Lease`]. It counts for as long as they are the same, which whoever was told sees without asking. In which order words
//! are read and written is in `protocol`.
//!
//! **Invariant**: once a change can be seen by anybody, no lease on what was before it counts.

mod protocol;

use crate::map::Map;
use protocol::{Moments, TREE, Words};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Words that files share. Files that were made one after the other have different ones.
const FILES: u64 = 1 << 15;
/// What the file is called, beside the queues whose answers it is about.
pub const EPOCHS_NAME: &str = "names.epochs";
/// Bytes of the file.
pub const EPOCHS_BYTES: u64 = WORDS_AT as u64 + (FILES + 1) * 8;

const MAGIC: u64 = u64::from_le_bytes(*b"fbepoch1");
const LIFE_AT: usize = 64;
const WORDS_AT: usize = 4096;

thread_local! {
    /// Moments that this thread has made.
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// What was told counts for as long as these words stand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    tree: u64,
    file: u64,
}

impl Lease {
    /// Whether all directories were at the same places in both.
    #[must_use]
    pub fn is_same_tree(self, other: Lease) -> bool {
        self.tree == other.tree
    }

    /// Whether nothing of the file has changed between this one and another, wherever it is.
    #[must_use]
    pub fn is_same_file(self, other: Lease) -> bool {
        self.file == other.file
    }

    /// The words of a lease, for whoever passes it on.
    pub(crate) fn words(lease: Option<Lease>) -> [u64; 2] {
        lease.map_or([u64::MAX; 2], |lease| [lease.tree, lease.file])
    }

    /// The lease that words mean, if they mean one.
    pub(crate) fn of([tree, file]: [u64; 2]) -> Option<Lease> {
        protocol::is_lease([tree, file]).then_some(Lease { tree, file })
    }
}

/// When something began to be looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment(u64);

struct Mapped(Map);

impl Mapped {
    fn at(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page, lives
        // as long as the borrow, and is never used but as an atomic.
        unsafe { AtomicU64::from_ptr(self.0.at(at, 8).cast()) }
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        self.at(WORDS_AT + number * 8)
    }
}

/// The word of a file.
fn word_of(file: u64) -> usize {
    1 + (file % FILES) as usize
}

impl Words for Mapped {
    fn life(&self) -> u64 {
        self.at(LIFE_AT).load(Ordering::Acquire)
    }

    fn load(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::SeqCst)
    }

    fn add(&self, word: usize, by: u64) {
        self.word(word).fetch_add(by, Ordering::SeqCst);
    }

    fn subtract(&self, word: usize, by: u64) {
        self.word(word).fetch_sub(by, Ordering::SeqCst);
    }
}

/// The side that makes changes.
pub struct Epochs {
    words: Mapped,
    /// Counts beginnings and ends of changes.
    moments: AtomicU64,
}

impl Epochs {
    /// Begins in a file of zeros; `life` is not 0, and another for every one.
    pub fn create(file: &File, life: u64) -> io::Result<Epochs> {
        let words = Mapped(Map::new(file, EPOCHS_BYTES as usize)?);
        words.at(LIFE_AT).store(life, Ordering::Relaxed);
        words.at(0).store(MAGIC, Ordering::Release);
        Ok(Epochs { words, moments: AtomicU64::new(0) })
    }

    /// Whoever made this file is gone: what it told counts no more.
    pub fn end(file: &File) -> io::Result<()> {
        if file.metadata()?.len() < EPOCHS_BYTES {
            return Ok(());
        }
        Mapped(Map::new(file, EPOCHS_BYTES as usize)?).at(LIFE_AT).store(0, Ordering::SeqCst);
        Ok(())
    }

    /// What was told counts no more, nor does what will be.
    pub fn retire(&self) {
        self.words.at(LIFE_AT).store(0, Ordering::SeqCst);
    }

    /// Something of a file is about to be changed.
    pub fn begin_file(&self, file: u64) {
        protocol::begin(self, word_of(file));
    }

    /// It is changed.
    pub fn done_file(&self, file: u64) {
        protocol::done(self, word_of(file));
    }

    /// Where directories are, or who may pass through them, is about to be changed.
    pub fn begin_tree(&self) {
        protocol::begin(self, TREE);
    }

    /// It is changed.
    pub fn done_tree(&self) {
        protocol::done(self, TREE);
    }

    /// Something of a file is being changed, and who wants to see it before and after that has to wait until it is done.
    pub fn changed(&self, file: u64) {
        protocol::changed(self, word_of(file));
    }

    /// The present: to be asked for before anything is looked up that is to be leased.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.of_others())
    }

    /// A lease on what was looked up about a file since a moment; none if somebody else has begun or ended a change since.
    #[must_use]
    pub fn lease(&self, since: Moment, file: u64) -> Option<Lease> {
        protocol::lease(self, since.0, word_of(file)).and_then(Lease::of)
    }
}

impl Words for Epochs {
    fn life(&self) -> u64 {
        self.words.life()
    }

    fn load(&self, word: usize) -> u64 {
        self.words.load(word)
    }

    fn add(&self, word: usize, by: u64) {
        self.words.add(word, by);
    }

    fn subtract(&self, word: usize, by: u64) {
        self.words.subtract(word, by);
    }
}

impl Moments for Epochs {
    fn pass(&self) {
        OWN.set(OWN.get().wrapping_add(1));
        self.moments.fetch_add(1, Ordering::SeqCst);
    }

    fn of_others(&self) -> u64 {
        // What this thread does itself meanwhile is part of what it looks up.
        self.moments.load(Ordering::SeqCst).wrapping_sub(OWN.get())
    }
}

/// The side that was told something.
pub struct Told {
    words: Mapped,
    life: u64,
}

impl Told {
    /// Opens the epochs of a life that has not ended.
    pub fn open(file: &File) -> io::Result<Told> {
        let nonsense = || io::Error::new(io::ErrorKind::InvalidData, "no epochs of somebody who is there");
        if file.metadata()?.len() < EPOCHS_BYTES {
            return Err(nonsense());
        }
        let words = Mapped(Map::readable(file, EPOCHS_BYTES as usize)?);
        let life = words.at(LIFE_AT).load(Ordering::Acquire);
        if words.at(0).load(Ordering::Acquire) != MAGIC || life == 0 {
            return Err(nonsense());
        }
        Ok(Told { words, life })
    }

    /// Whether what was told about a file counts.
    #[must_use]
    pub fn stands(&self, lease: Lease, file: u64) -> bool {
        protocol::stands(&self.words, self.life, [lease.tree, lease.file], word_of(file))
    }

    /// Whether what was told about the way to it counts.
    #[must_use]
    pub fn stands_for_tree(&self, lease: Lease) -> bool {
        protocol::stands_for_tree(&self.words, self.life, lease.tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::AtomicBool;

    fn file() -> File {
        let file = File::from(memfd_create("epochs", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, EPOCHS_BYTES).unwrap();
        file
    }

    #[test]
    fn a_lease_stands_until_something_that_it_is_about_changes() {
        type Event = fn(&Epochs);
        let nothing: Event = |_| {};
        let cases: [(&str, Event, Event, Option<bool>); 9] = [
            ("nothing happens", nothing, nothing, Some(true)),
            ("the file changes later", nothing, |epochs| epochs.changed(7), Some(false)),
            ("another one does", nothing, |epochs| epochs.changed(8), Some(true)),
            ("a change of it begins later", nothing, |epochs| epochs.begin_file(7), Some(false)),
            ("one of the tree does", nothing, Epochs::begin_tree, Some(false)),
            ("one that shares its word", nothing, |epochs| epochs.changed(7 + FILES), Some(false)),
            ("it is being changed", |epochs| epochs.begin_file(7), nothing, None),
            ("the tree is", Epochs::begin_tree, nothing, None),
            (
                "it was changed before",
                |epochs| {
                    epochs.begin_file(7);
                    epochs.done_file(7);
                },
                nothing,
                Some(true),
            ),
        ];
        for (case, before, after, expected) in cases {
            let file = file();
            let epochs = Epochs::create(&file, 5).unwrap();
            let told = Told::open(&file).unwrap();
            before(&epochs);
            let lease = epochs.lease(epochs.moment(), 7);
            after(&epochs);
            assert_eq!(lease.map(|lease| told.stands(lease, 7)), expected, "{case}");
        }
    }

    #[test]
    fn what_others_do_meanwhile_is_not_leased_and_what_one_does_oneself_is() {
        let file = file();
        let epochs = Epochs::create(&file, 5).unwrap();
        let since = epochs.moment();
        epochs.begin_file(7);
        epochs.done_file(7);
        assert!(epochs.lease(since, 7).is_some());
        let others: [fn(&Epochs); 3] =
            [|epochs| epochs.changed(8), |epochs| epochs.begin_file(8), |epochs| epochs.done_file(8)];
        for other in others {
            let since = epochs.moment();
            std::thread::scope(|scope| scope.spawn(|| other(&epochs)).join().unwrap());
            assert_eq!(epochs.lease(since, 7), None);
        }
    }

    #[test]
    fn the_end_of_a_life_ends_its_leases() {
        let file = file();
        assert!(Told::open(&file).is_err(), "nobody has begun");
        let epochs = Epochs::create(&file, 5).unwrap();
        let told = Told::open(&file).unwrap();
        let lease = epochs.lease(epochs.moment(), 7).unwrap();
        assert!(told.stands(lease, 7) && told.stands_for_tree(lease));
        Epochs::end(&file).unwrap();
        epochs.retire();
        assert!(!told.stands(lease, 7) && !told.stands_for_tree(lease));
        assert!(Told::open(&file).is_err());
        assert_eq!(Lease::of(Lease::words(Some(lease))), Some(lease));
        assert_eq!(Lease::of(Lease::words(None)), None);
    }

    #[test]
    fn readers_beside_changes_never_believe_what_was_before_something_that_they_have_seen() {
        let file = file();
        let (epochs, told) = (Epochs::create(&file, 5).unwrap(), Told::open(&file).unwrap());
        let (value, end) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=20_000 {
                    epochs.begin_file(7);
                    value.store(number, Ordering::SeqCst);
                    epochs.done_file(7);
                }
                end.store(true, Ordering::SeqCst);
            });
            let mut kept = None;
            while !end.load(Ordering::SeqCst) {
                let seen = value.load(Ordering::SeqCst);
                if let Some((before, lease)) = kept
                    && told.stands(lease, 7)
                {
                    assert!(before >= seen, "{before} {seen}");
                    continue;
                }
                let since = epochs.moment();
                let now = value.load(Ordering::SeqCst);
                kept = epochs.lease(since, 7).map(|lease| (now, lease));
            }
        });
    }
}
