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
use protocol::{Moments, TREE, Words};
use std::cell::Cell;
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
    /// Number of moments that this thread has created.
    static OWN: Cell<u64> = const { Cell::new(0) };
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
    moments: AtomicU64,
}

impl Epochs {
    /// Initializes a file of zeros. `boot` is nonzero and unique to this run of the server.
    pub fn create(file: &File, boot: u64) -> io::Result<Epochs> {
        let words = Mapped(Map::new(file, EPOCHS_BYTES as usize)?);
        words.at(BOOT_AT).store(boot, Ordering::Relaxed);
        words.at(0).store(MAGIC, Ordering::Release);
        Ok(Epochs { words, moments: AtomicU64::new(0) })
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
        Moment(self.of_others())
    }

    /// A lease on the result of a lookup of a file since a moment. `None` if another thread began or ended a change
    /// since.
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

impl Moments for Epochs {
    fn pass(&self) {
        OWN.set(OWN.get().wrapping_add(1));
        self.moments.fetch_add(1, Ordering::SeqCst);
    }

    fn of_others(&self) -> u64 {
        // Changes that this thread makes itself are part of its lookup.
        self.moments.load(Ordering::SeqCst).wrapping_sub(OWN.get())
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

    fn file() -> File {
        let file = File::from(memfd_create("epochs", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, EPOCHS_BYTES).unwrap();
        file
    }

    #[test]
    fn lease_is_valid_until_its_file_or_the_tree_changes() {
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
            let reader = EpochReader::open(&file).unwrap();
            before(&epochs);
            let lease = epochs.lease(epochs.moment(), 7);
            after(&epochs);
            assert_eq!(lease.map(|lease| reader.stands(lease, 7)), expected, "{case}");
        }
    }

    #[test]
    fn concurrent_changes_prevent_a_lease_but_own_changes_do_not() {
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
    fn end_of_a_boot_invalidates_its_leases() {
        let file = file();
        assert!(EpochReader::open(&file).is_err(), "nobody has begun");
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
