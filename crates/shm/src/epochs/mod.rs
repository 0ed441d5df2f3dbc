//! Epochs: shared words by which the server invalidates leased replies in other processes.
//!
//! ```text
//! 0      magic; boot: nonzero while the server that created the file runs (stays nonzero if it crashes)
//! 4096   WORDS words: word 0 belongs to the tree; files share the others by file number
//! ```
//!
//! A word counts changes; its low bits count the changes in progress. The server sends a reply together with the values
//! of the words, a [`Lease`]. The lease is valid while the words are unchanged, which the client checks without a
//! request. The module `protocol` defines the order of reads and writes.
//!
//! **Invariant**: once any process can see a change, no lease on the state before it is valid.

mod protocol;

use crate::map::Map;
use protocol::{OwnChanges, Stamps, TREE, Words};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of words shared by files. Files created in sequence have different words.
const FILES: u64 = 1 << 15;
/// Name of the file, in the directory of the queues.
pub const EPOCHS_NAME: &str = "names.epochs";
/// Size of the file in bytes.
pub const EPOCHS_BYTES: u64 = WORDS_AT as u64 + (FILES + 1) * 8;

const MAGIC: u64 = u64::from_le_bytes(*b"fbepoch1");
const BOOT_AT: usize = 64;
const WORDS_AT: usize = 4096;

thread_local! {
    static OWN: RefCell<OwnChanges> = const { RefCell::new(OwnChanges::new()) };
}

/// A lease on a reply: valid while the words have these values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    tree: u64,
    file: u64,
}

impl Lease {
    /// Whether no directory moved between the two leases.
    #[must_use]
    pub fn is_same_tree(self, other: Lease) -> bool {
        self.tree == other.tree
    }

    /// Whether the file did not change between the two leases.
    #[must_use]
    pub fn is_same_file(self, other: Lease) -> bool {
        self.file == other.file
    }

    /// The words of a lease, for transmission.
    pub(crate) fn words(lease: Option<Lease>) -> [u64; 2] {
        lease.map_or([u64::MAX; 2], |lease| [lease.tree, lease.file])
    }

    /// The lease with these words, if they form one.
    pub(crate) fn of([tree, file]: [u64; 2]) -> Option<Lease> {
        protocol::is_lease([tree, file]).then_some(Lease { tree, file })
    }
}

/// The number of the last server of this process.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// The start time of a lookup, counted in changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment(u64);

struct Mapped(Map);

impl Mapped {
    fn at(&self, at: usize) -> &AtomicU64 {
        // SAFETY: `at` checks the range; every word lies at a multiple of eight of a mapping that begins at a page,
        // lives as long as the borrow, and is accessed only through atomics.
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
    fn boot(&self) -> u64 {
        self.at(BOOT_AT).load(Ordering::Acquire)
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

/// The server side, which makes changes.
pub struct Epochs {
    words: Mapped,
    /// Counts the starts and ends of changes.
    clock: AtomicU64,
    /// When the last change of each word began or ended.
    stamps: Box<[AtomicU64]>,
    /// Among the servers of this process.
    number: u64,
}

impl Epochs {
    /// Initializes a file of zeros. `boot` is nonzero and unique to this run of the server.
    pub fn create(file: &File, boot: u64) -> io::Result<Epochs> {
        let words = Mapped(Map::new(file, EPOCHS_BYTES as usize)?);
        words.at(BOOT_AT).store(boot, Ordering::Relaxed);
        words.at(0).store(MAGIC, Ordering::Release);
        let stamps = (0..=FILES).map(|_| AtomicU64::new(0)).collect();
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        Ok(Epochs { words, clock: AtomicU64::new(0), stamps, number })
    }

    /// Invalidates all leases of a server that no longer runs.
    pub fn end(file: &File) -> io::Result<()> {
        if file.metadata()?.len() < EPOCHS_BYTES {
            return Ok(());
        }
        Mapped(Map::read_in(file, EPOCHS_BYTES as usize)?).at(BOOT_AT).store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Invalidates all leases, including future ones.
    pub fn retire(&self) {
        self.words.at(BOOT_AT).store(0, Ordering::SeqCst);
    }

    /// Marks the start of a change to a file.
    pub fn begin_file(&self, file: u64) {
        protocol::begin(self, word_of(file));
    }

    /// Marks the end of a change to a file.
    pub fn done_file(&self, file: u64) {
        protocol::done(self, word_of(file));
    }

    /// Marks the start of a change to directory locations or search permissions.
    pub fn begin_tree(&self) {
        protocol::begin(self, TREE);
    }

    /// Marks the end of a change to the tree.
    pub fn done_tree(&self) {
        protocol::done(self, TREE);
    }

    /// Marks a change to a file that is made under a lock which every lookup takes.
    pub fn changed(&self, file: u64) {
        protocol::changed(self, word_of(file));
    }

    /// The current moment. Take it before a lookup whose result is to be leased.
    #[must_use]
    pub fn moment(&self) -> Moment {
        Moment(self.clock())
    }

    /// A lease on the result of a lookup of a file since a moment. `None` if another thread began or ended a change of
    /// the file or of the tree since.
    #[must_use]
    pub fn lease(&self, since: Moment, file: u64) -> Option<Lease> {
        protocol::lease(self, since.0, word_of(file)).and_then(Lease::of)
    }
}

impl Words for Epochs {
    fn boot(&self) -> u64 {
        self.words.boot()
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

impl Stamps for Epochs {
    fn clock(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn stamp(&self, word: usize) -> u64 {
        self.stamps[word].load(Ordering::SeqCst)
    }

    fn raise(&self, word: usize, stamp: u64) -> u64 {
        self.stamps[word].fetch_max(stamp, Ordering::SeqCst)
    }

    fn number(&self) -> u64 {
        self.number
    }

    fn own<T>(&self, work: impl FnOnce(&mut OwnChanges) -> T) -> T {
        OWN.with_borrow_mut(work)
    }
}

/// The client side, which checks leases.
pub struct EpochReader {
    words: Mapped,
    boot: u64,
}

impl EpochReader {
    /// Opens the epochs of a running server.
    pub fn open(file: &File) -> io::Result<EpochReader> {
        let nonsense =
            || io::Error::new(io::ErrorKind::InvalidData, "the epochs file belongs to no running server");
        if file.metadata()?.len() < EPOCHS_BYTES {
            return Err(nonsense());
        }
        let words = Mapped(Map::readable(file, EPOCHS_BYTES as usize)?);
        let boot = words.at(BOOT_AT).load(Ordering::Acquire);
        if words.at(0).load(Ordering::Acquire) != MAGIC || boot == 0 {
            return Err(nonsense());
        }
        Ok(EpochReader { words, boot })
    }

    /// Whether a lease on a file is still valid.
    #[must_use]
    pub fn stands(&self, lease: Lease, file: u64) -> bool {
        protocol::stands(&self.words, self.boot, [lease.tree, lease.file], word_of(file))
    }

    /// Whether a lease on the path to a file is still valid.
    #[must_use]
    pub fn stands_for_tree(&self, lease: Lease) -> bool {
        protocol::stands_for_tree(&self.words, self.boot, lease.tree)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::AtomicBool;

    type Event = fn(&Epochs);

    fn file() -> File {
        let file = File::from(memfd_create("epochs", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, EPOCHS_BYTES).unwrap();
        file
    }

    #[test]
    fn lease_is_valid_until_its_file_or_the_tree_changes() {
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
            let reader = EpochReader::open(&file).unwrap();
            before(&epochs);
            let lease = epochs.lease(epochs.moment(), 7);
            after(&epochs);
            assert_eq!(lease.map(|lease| reader.stands(lease, 7)), expected, "{case}");
        }
    }

    /// Another thread does something between the start of a lookup and its lease.
    fn leased_beside(own: Event, other: Event) -> bool {
        let epochs = Epochs::create(&file(), 5).unwrap();
        let since = epochs.moment();
        own(&epochs);
        std::thread::scope(|scope| scope.spawn(|| other(&epochs)).join().unwrap());
        own(&epochs);
        epochs.lease(since, 7).is_some()
    }

    fn change(epochs: &Epochs) {
        epochs.begin_file(7);
        epochs.done_file(7);
    }

    #[test]
    fn changes_of_the_same_file_by_others_prevent_a_lease() {
        let others: [(&str, Event, bool); 8] = [
            ("nothing", |_| {}, true),
            ("another file", |epochs| epochs.changed(8), true),
            ("a change of another file begins", |epochs| epochs.begin_file(8), true),
            ("a change of another file ends", |epochs| epochs.done_file(8), true),
            ("the file", |epochs| epochs.changed(7), false),
            (
                "the file, and another one later",
                |epochs| [7, 8].into_iter().for_each(|file| epochs.changed(file)),
                false,
            ),
            ("a change of the file begins and ends", change, false),
            (
                "the tree",
                |epochs| {
                    epochs.begin_tree();
                    epochs.done_tree();
                },
                false,
            ),
        ];
        let own: [Event; 3] = [|_| {}, change, |epochs| epochs.changed(7)];
        for (case, other, expected) in others {
            for (number, own) in own.into_iter().enumerate() {
                assert_eq!(leased_beside(own, other), expected, "{case}, own change {number}");
            }
        }
    }

    #[test]
    fn change_of_another_server_by_this_thread_hides_none_of_this_server() {
        let (epochs, other) = (Epochs::create(&file(), 5).unwrap(), Epochs::create(&file(), 5).unwrap());
        let since = epochs.moment();
        // As often as another thread changes this server.
        change(&other);
        std::thread::scope(|scope| scope.spawn(|| change(&epochs)).join().unwrap());
        assert_eq!(epochs.lease(since, 7), None);
    }

    #[test]
    fn thread_with_many_changes_leases_no_less_correctly() {
        let epochs = Epochs::create(&file(), 5).unwrap();
        let since = epochs.moment();
        for number in 0..100 {
            epochs.changed(7);
            (0..number).for_each(|other| epochs.changed(100 + other));
        }
        assert_eq!(epochs.lease(since, 7), None, "the thread no longer knows that the changes were its own");
        let since = epochs.moment();
        change(&epochs);
        assert!(epochs.lease(since, 7).is_some());
    }

    #[test]
    fn end_of_a_boot_invalidates_its_leases() {
        let file = file();
        assert!(EpochReader::open(&file).is_err(), "no server has begun");
        let epochs = Epochs::create(&file, 5).unwrap();
        let reader = EpochReader::open(&file).unwrap();
        let lease = epochs.lease(epochs.moment(), 7).unwrap();
        assert!(reader.stands(lease, 7) && reader.stands_for_tree(lease));
        Epochs::end(&file).unwrap();
        epochs.retire();
        assert!(!reader.stands(lease, 7) && !reader.stands_for_tree(lease));
        assert!(EpochReader::open(&file).is_err());
        assert_eq!(Lease::of(Lease::words(Some(lease))), Some(lease));
        assert_eq!(Lease::of(Lease::words(None)), None);
    }

    #[test]
    fn readers_never_accept_a_lease_older_than_a_change_they_saw() {
        let file = file();
        let (epochs, reader) = (Epochs::create(&file, 5).unwrap(), EpochReader::open(&file).unwrap());
        let (value, end) = (AtomicU64::new(0), AtomicBool::new(false));
        let accepted = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while number < 20_000 || accepted.load(Ordering::SeqCst) < 100 {
                    number += 1;
                    epochs.begin_file(7);
                    value.store(number, Ordering::SeqCst);
                    epochs.done_file(7);
                    if number.is_multiple_of(64) {
                        std::thread::yield_now();
                    }
                }
                end.store(true, Ordering::SeqCst);
            });
            let mut kept = None;
            while !end.load(Ordering::SeqCst) {
                let seen = value.load(Ordering::SeqCst);
                if let Some((before, lease)) = kept
                    && reader.stands(lease, 7)
                {
                    assert!(before >= seen, "{before} {seen}");
                    accepted.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let since = epochs.moment();
                let now = value.load(Ordering::SeqCst);
                kept = epochs.lease(since, 7).map(|lease| (now, lease));
            }
        });
    }
}
