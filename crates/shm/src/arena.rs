//! A mapped file whose bytes are granted once per generation.

use crate::map::Map;
use forebay_model::lock;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Numbers the arenas, so that a ticket opens only its own arena.
static ARENAS: AtomicU64 = AtomicU64::new(0);

/// A mapped file, filled from the front.
pub struct Arena {
    number: u64,
    map: Map,
    /// The first byte not yet granted in this generation. Its lock also orders grants against resets.
    next: Mutex<u32>,
    /// Generation in the upper half, number of grants and views in the lower.
    hold: AtomicU64,
}

const ONE_HOLDER: u64 = 1;
const ONE_GENERATION: u64 = 1 << 32;

fn generation_of(hold: u64) -> u32 {
    (hold >> 32) as u32
}

fn holders_of(hold: u64) -> u32 {
    hold as u32
}

impl Arena {
    /// Maps the first `len` bytes of a file. The caller allocates them before it fills a grant.
    pub fn new(file: &File, len: u32, generation: u32) -> io::Result<Arc<Arena>> {
        Ok(Arc::new(Arena {
            number: ARENAS.fetch_add(1, Ordering::Relaxed),
            map: Map::new(file, len as usize)?,
            next: Mutex::new(0),
            hold: AtomicU64::new(u64::from(generation) << 32),
        }))
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.map.len() as u32
    }

    /// Never true: a mapping has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Faults in the pages of a range, so that the first write does not wait for them. Only for files in memory: on a
    /// disk this would read and dirty the file.
    pub fn populate(&self, range: Range<u32>) -> io::Result<()> {
        self.map.populate_range(range.start as usize, (range.end - range.start) as usize)
    }

    /// The current generation.
    #[must_use]
    pub fn generation(&self) -> u32 {
        generation_of(self.hold.load(Ordering::Acquire))
    }

    /// Whether any grant or view is alive.
    #[must_use]
    pub fn is_held(&self) -> bool {
        holders_of(self.hold.load(Ordering::Acquire)) != 0
    }

    /// Number of bytes not yet granted in this generation.
    #[must_use]
    pub fn room(&self) -> u32 {
        self.len() - *self.cursor()
    }

    /// Grants the next `len` bytes to one writer, or the remaining bytes if fewer are left. `None` when full.
    #[must_use]
    pub fn grant(self: &Arc<Self>, len: u32) -> Option<Grant> {
        let mut next = self.cursor();
        let len = len.min(self.len() - *next);
        if len == 0 {
            return None;
        }
        let start = *next;
        *next += len;
        let hold = self.hold.fetch_add(ONE_HOLDER, Ordering::AcqRel);
        Some(Grant { arena: Arc::clone(self), start, len, generation: generation_of(hold) })
    }

    /// Makes a ticket for bytes that an earlier process completed; later grants start after them. `None` if they exceed
    /// the arena or if grants exist already.
    #[must_use]
    pub fn adopt(&self, start: u32, len: u32) -> Option<Ticket> {
        let end = start.checked_add(len).filter(|&end| end <= self.len())?;
        let mut next = self.cursor();
        if self.is_held() {
            return None;
        }
        *next = (*next).max(end);
        Some(Ticket { start, len, generation: self.generation(), arena: self.number })
    }

    /// Grants bytes again that an earlier process had granted to a writer that is still alive; later grants start after
    /// them. `None` if they exceed the arena. Call it after all adoptions.
    #[must_use]
    pub fn regrant(self: &Arc<Self>, start: u32, len: u32) -> Option<Grant> {
        let end = start.checked_add(len).filter(|&end| end <= self.len() && len > 0)?;
        let mut next = self.cursor();
        *next = (*next).max(end);
        let hold = self.hold.fetch_add(ONE_HOLDER, Ordering::AcqRel);
        Some(Grant { arena: Arc::clone(self), start, len, generation: generation_of(hold) })
    }

    /// Opens the bytes of a ticket. `None` if its generation is over or it belongs to another arena.
    #[must_use]
    pub fn view(self: &Arc<Self>, ticket: Ticket) -> Option<View> {
        let mut hold = self.hold.load(Ordering::Acquire);
        loop {
            if generation_of(hold) != ticket.generation || self.number != ticket.arena {
                return None;
            }
            match self.hold.compare_exchange_weak(
                hold,
                hold + ONE_HOLDER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(View { arena: Arc::clone(self), ticket }),
                Err(seen) => hold = seen,
            }
        }
    }

    /// Begins a new generation: every ticket becomes invalid and all bytes can be granted again. Refused while any
    /// grant or view is alive.
    #[must_use]
    pub fn reset(&self) -> bool {
        let mut next = self.cursor();
        let hold = self.hold.load(Ordering::Acquire);
        if holders_of(hold) != 0 {
            return false;
        }
        let fresh = hold.wrapping_add(ONE_GENERATION);
        let done = self.hold.compare_exchange(hold, fresh, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if done {
            *next = 0;
        }
        done
    }

    fn cursor(&self) -> MutexGuard<'_, u32> {
        lock(&self.next)
    }

    fn release(&self) {
        self.hold.fetch_sub(ONE_HOLDER, Ordering::AcqRel);
    }
}

/// Bytes that belong to one writer until it publishes or drops them.
pub struct Grant {
    arena: Arc<Arena>,
    start: u32,
    len: u32,
    generation: u32,
}

impl Grant {
    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Never true: a grant has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Position in the arena.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.start
    }

    /// The position after the last of its bytes.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.len
    }

    /// The bytes to fill. Their previous content is unspecified.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let start = self.arena.map.at(self.start as usize, self.len as usize);
        // SAFETY: `at` checked the range. The arena gave these bytes to this grant alone in this generation, the
        // generation cannot end while the grant lives, views need a ticket that only `publish` makes, and the
        // returned borrow is tied to `&mut self`. Mapped bytes are always initialised.
        unsafe { std::slice::from_raw_parts_mut(start, self.len as usize) }
    }

    /// Faults in the pages of these bytes. Fails if the device of the file fails; otherwise the kernel would kill a
    /// process that fills them.
    pub fn populate(&self) -> io::Result<()> {
        match self.arena.map.populate_range(self.start as usize, self.len as usize) {
            // Older kernels do not support this; the pages are then faulted in on first access.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            done => done,
        }
    }

    /// Declares the first `len` bytes complete. The remaining bytes stay unused until the next generation.
    #[must_use]
    pub fn publish(self, len: u32) -> Ticket {
        assert!(len <= self.len, "published {len} of {} bytes", self.len);
        Ticket { start: self.start, len, generation: self.generation, arena: self.arena.number }
    }
}

/// Bytes granted to a writer in another process, which publishes them piece by piece. Holds their generation.
pub struct Slab(Grant);

impl Slab {
    /// Hands granted bytes to another process. This process can no longer fill them.
    #[must_use]
    pub fn new(grant: Grant) -> Slab {
        Slab(grant)
    }

    /// Position in the arena.
    #[must_use]
    pub fn range(&self) -> Range<u32> {
        self.0.start..self.0.start + self.0.len
    }

    /// A ticket for bytes that the other process declares complete. `None` if they are outside the slab.
    #[must_use]
    pub fn publish(&self, position: u32, len: u32) -> Option<Ticket> {
        let Range { start, end } = self.range();
        let inside = position >= start && position.checked_add(len).is_some_and(|last| last <= end);
        let Grant { arena, generation, .. } = &self.0;
        inside.then(|| Ticket { start: position, len, generation: *generation, arena: arena.number })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        self.arena.release();
    }
}

/// Published bytes, which do not change in their generation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    arena: u64,
    start: u32,
    len: u32,
    generation: u32,
}

impl Ticket {
    /// Position in the arena.
    #[must_use]
    pub fn start(self) -> u32 {
        self.start
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(self) -> u32 {
        self.len
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Whether these bytes begin with the bytes of `first`.
    #[must_use]
    pub fn begins_with(self, first: Ticket) -> bool {
        first.len <= self.len && self.part(0..first.len) == first
    }

    /// Whether the bytes of `next` begin where these end.
    #[must_use]
    pub fn is_followed_by(self, next: Ticket) -> bool {
        let same = (self.arena, self.generation) == (next.arena, next.generation);
        same && self.start + self.len == next.start
    }

    /// These bytes joined with the bytes that follow.
    #[must_use]
    pub fn extended(self, next: Ticket) -> Ticket {
        assert!(self.is_followed_by(next), "{next:?} does not follow {self:?}");
        Ticket { len: self.len + next.len, ..self }
    }

    /// A subrange of these bytes, relative to their start.
    #[must_use]
    pub fn part(self, range: Range<u32>) -> Ticket {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} is outside a ticket of {}",
            self.len
        );
        Ticket { start: self.start + range.start, len: range.end - range.start, ..self }
    }
}

/// Published bytes, open for reading. Keeps their generation alive.
pub struct View {
    arena: Arc<Arena>,
    ticket: Ticket,
}

impl View {
    /// Fails if the device of the file cannot read these bytes. Accessing them would then kill the process (`SIGBUS`).
    pub fn probe(&self) -> io::Result<()> {
        self.arena.map.probe(self.ticket.start as usize, self.ticket.len as usize)
    }
}

impl AsRef<[u8]> for View {
    fn as_ref(&self) -> &[u8] {
        let start = self.arena.map.at(self.ticket.start as usize, self.ticket.len as usize);
        // SAFETY: `at` checked the range. A ticket exists only for published or adopted bytes; no code in this process
        // writes them before the next generation, and that cannot begin while this view lives.
        unsafe { std::slice::from_raw_parts(start, self.ticket.len as usize) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.arena.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::sync::atomic::{AtomicBool, AtomicU32};

    fn arena(len: u32) -> Arc<Arena> {
        let file = File::from(memfd_create("arena", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, u64::from(len)).unwrap();
        Arena::new(&file, len, 7).unwrap()
    }

    #[test]
    fn every_byte_is_granted_once_per_generation() {
        let arena = arena(100);
        let (first, second) = (arena.grant(60).unwrap(), arena.grant(60).unwrap());
        assert_eq!((first.start(), first.len(), second.start(), second.len()), (0, 60, 60, 40));
        assert!(arena.grant(1).is_none());
        assert!(!arena.reset(), "grants hold the generation");
        drop((first, second));
        assert!(arena.reset());
        assert_eq!((arena.generation(), arena.room()), (8, 100));
    }

    #[test]
    fn a_view_shows_what_was_published_and_holds_the_generation() {
        let arena = arena(100);
        let mut grant = arena.grant(10).unwrap();
        grant.as_mut_slice().copy_from_slice(b"0123456789");
        let ticket = grant.publish(6);
        let view = arena.view(ticket.part(2..6)).unwrap();
        assert_eq!(view.as_ref(), b"2345");
        assert!(!arena.reset());
        drop(view);
        assert!(arena.reset());
        assert!(arena.view(ticket).is_none(), "a ticket of an old generation opens nothing");
    }

    #[test]
    fn unreadable_bytes_are_reported_without_a_fault() {
        let file = File::from(memfd_create("arena", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 16 << 10).unwrap();
        let arena = Arena::new(&file, 16 << 10, 7).unwrap();
        let ticket = arena.grant(16 << 10).unwrap().publish(16 << 10);
        // Simulates a bad sector: the bytes beyond are mapped but cannot be read.
        ftruncate(&file, 8 << 10).unwrap();
        for (range, there) in
            [(0..8192, true), (8191..8192, true), (8191..8193, false), (12_000..12_001, false)]
        {
            let probed = arena.view(ticket.part(range.clone())).unwrap().probe();
            assert_eq!(probed.is_ok(), there, "{range:?}: {probed:?}");
        }
        assert!(arena.view(ticket.part(9000..9000)).unwrap().probe().is_ok(), "nothing is to be read");
        assert!(arena.regrant(12 << 10, 4 << 10).unwrap().populate().is_err());
    }

    #[test]
    fn a_ticket_opens_its_own_arena_only() {
        let (ours, other) = (arena(100), arena(100));
        let ticket = ours.grant(10).unwrap().publish(10);
        assert!(ours.view(ticket).is_some());
        assert!(other.view(ticket).is_none(), "another arena of the same generation");
    }

    #[test]
    fn adopted_bytes_are_not_granted_again() {
        let arena = arena(100);
        assert!(arena.adopt(90, 11).is_none());
        assert!(arena.adopt(u32::MAX, 2).is_none());
        assert_eq!(arena.adopt(20, 30).unwrap().len(), 30);
        assert_eq!(arena.grant(5).unwrap().start(), 50);
    }

    #[test]
    fn a_slab_is_published_piece_by_piece_and_holds_the_generation() {
        let arena = arena(100);
        let slab = Slab::new(arena.grant(40).unwrap());
        assert_eq!(slab.publish(8, 32).map(|ticket| (ticket.start(), ticket.len())), Some((8, 32)));
        for (position, len) in [(8, 33), (41, 1), (u32::MAX, 2)] {
            assert!(slab.publish(position, len).is_none(), "{position}+{len}");
        }
        assert!(!arena.reset());
        drop(slab);
        assert!(arena.reset());
        let again = arena.regrant(30, 20).unwrap();
        assert!(arena.regrant(90, 11).is_none() && arena.regrant(0, 0).is_none());
        assert_eq!((again.start(), arena.grant(1).unwrap().start()), (30, 50));
    }

    #[test]
    fn concurrent_views_and_resets_never_mix_generations() {
        let arena = arena(64);
        let (seen, stop) = (AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        let (generation, number) = (arena.generation(), arena.number);
                        let ticket = Ticket { start: 0, len: 4, generation, arena: number };
                        if let Some(view) = arena.view(ticket) {
                            let generation = arena.generation();
                            let bytes = u32::from_le_bytes(view.as_ref().try_into().unwrap());
                            assert!(bytes <= generation, "bytes of a later generation");
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
            let mut resets = 0;
            while resets < 1000 || seen.load(Ordering::Relaxed) < 1000 {
                resets += u32::from(arena.reset());
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!arena.is_held());
    }
}
