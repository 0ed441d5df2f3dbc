//! The library's own mapping of a ring, the memory that the kernel shares with the application.

use super::entry::{Entry, SIZE};
use crate::errno::{Errno, Outcome, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::process_state;
use libc::c_int;
use rustix::fd::BorrowedFd;
use rustix::mm::{MapFlags, ProtFlags};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) const SETUP_SQPOLL: u32 = 1 << 1;
pub(super) const SETUP_SQ_AFF: u32 = 1 << 2;
const SETUP_SQE128: u32 = 1 << 10;
pub(super) const SETUP_NO_MMAP: u32 = 1 << 14;
pub(super) const SETUP_REGISTERED_ONLY: u32 = 1 << 15;
const SETUP_NO_SQARRAY: u32 = 1 << 16;
/// Setup flags whose meaning for the submission ring this library knows; rings with entries of several sizes are not
/// supported.
pub(super) const SETUP_KNOWN: u32 = (1 << 19) - 1;

const SUBMISSION_RING: u64 = 0;
const ENTRIES: u64 = 0x1000_0000;

/// Offsets in the submission ring.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SubmissionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    flags: u32,
    dropped: u32,
    array: u32,
    reserved: u32,
    address: u64,
}

/// Offsets in the completion ring.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CompletionOffsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    overflow: u32,
    events: u32,
    flags: u32,
    reserved: u32,
    address: u64,
}

/// The parameters of `io_uring_setup`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct Params {
    submission_entries: u32,
    completion_entries: u32,
    pub(super) flags: u32,
    thread: [u32; 2],
    features: u32,
    queue: u32,
    reserved: [u32; 3],
    submission: SubmissionOffsets,
    completion: CompletionOffsets,
}

const _: () = assert!(size_of::<Params>() == 120);

/// Memory of a ring, mapped until this is dropped.
struct Memory {
    start: *mut u8,
    len: usize,
}

impl Memory {
    fn map(fd: c_int, offset: u64, len: usize) -> Outcome<Memory> {
        // SAFETY: a descriptor that stays open for this call, and a new mapping at an address of the kernel's choice.
        let start = unsafe {
            let fd = BorrowedFd::borrow_raw(fd);
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, fd, offset)
        };
        Ok(Memory { start: start?.cast(), len })
    }

    /// The address of a value at an offset, if all of it is inside the mapping.
    fn at<T>(&self, offset: usize) -> Option<*mut T> {
        let end = offset.checked_add(size_of::<T>())?;
        (end <= self.len).then(|| self.start.wrapping_add(offset).cast())
    }

    fn word(&self, offset: u32) -> Outcome<&AtomicU32> {
        let place = self.at::<AtomicU32>(offset as usize).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: inside the mapping, aligned by the kernel, and changed by atomic stores alone.
        Ok(unsafe { &*place })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.len) };
    }
}

/// A ring of the application.
pub(super) struct Ring {
    fd: c_int,
    ring: Memory,
    entries: Memory,
    offsets: SubmissionOffsets,
    mask: u32,
    /// Bytes from one entry to the next.
    stride: usize,
    has_array: bool,
    /// Generation and thread that is submitting; 0: none.
    turn: AtomicU64,
    /// Results of entries that were executed and that the kernel has not taken.
    done: Lock<Vec<(u32, i32)>>,
}

// SAFETY: the memory is shared by design; accesses are atomic or made by the thread that holds the turn.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

/// The right to submit entries.
pub(super) struct Turn<'a>(&'a Ring);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.store(0, Ordering::Release);
    }
}

impl Ring {
    pub(super) fn map(fd: c_int, made: &Params) -> Outcome<Ring> {
        let offsets = made.submission;
        let has_array = made.flags & SETUP_NO_SQARRAY == 0;
        let words = [offsets.head, offsets.tail, offsets.mask, offsets.entries];
        let mut len = words.iter().max().map_or(0, |last| *last as usize) + size_of::<u32>();
        if has_array {
            len = len.max(offsets.array as usize + made.submission_entries as usize * size_of::<u32>());
        }
        let stride = if made.flags & SETUP_SQE128 == 0 { SIZE } else { 2 * SIZE };
        let ring = Memory::map(fd, SUBMISSION_RING, len)?;
        let entries = Memory::map(fd, ENTRIES, made.submission_entries as usize * stride)?;
        let mask = ring.word(offsets.mask)?.load(Ordering::Relaxed);
        for offset in [offsets.head, offsets.tail] {
            ring.word(offset)?;
        }
        let (turn, done) = (AtomicU64::new(0), Lock::new(Vec::new()));
        Ok(Ring { fd, ring, entries, offsets, mask, stride, has_array, turn, done })
    }

    pub(super) fn fd(&self) -> c_int {
        self.fd
    }

    /// Waits until no other thread submits.
    pub(super) fn turn(&self) -> Outcome<Turn<'_>> {
        // SAFETY: returns the id of the calling thread, and accesses no memory.
        let thread = unsafe { try_system_call(libc::SYS_gettid, [0; 6]) }? as u64;
        let life = process_state::generation();
        let mine = life << 32 | thread;
        loop {
            match self.turn.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(Turn(self)),
                // A signal handler has interrupted the holder on this thread.
                Err(holder) if holder == mine => return fail(libc::EBUSY),
                // Held by a thread of the parent process.
                Err(holder) if holder >> 32 != life => {
                    let _ = self.turn.compare_exchange(holder, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
                Err(_) => rustix::thread::sched_yield(),
            }
        }
    }

    /// The positions of the first entry that the kernel has not taken, and of the end of the ring.
    pub(super) fn range(&self) -> (u32, u32) {
        let load = |offset| self.ring.word(offset).map_or(0, |word| word.load(Ordering::Acquire));
        (load(self.offsets.head), load(self.offsets.tail))
    }

    /// The address of the entry at a position.
    pub(super) fn entry(&self, position: u32) -> Option<*mut Entry> {
        let slot = position & self.mask;
        let index = match self.has_array {
            true => self.ring.word(self.offsets.array + slot * 4).ok()?.load(Ordering::Relaxed),
            false => slot,
        };
        if index > self.mask {
            return None;
        }
        self.entries.at(index as usize * self.stride)
    }

    pub(super) fn note_done(&self, position: u32, result: i32) {
        self.done.with(|done| done.push((position, result)));
    }

    /// Takes the result of an entry that was executed before.
    pub(super) fn take_done(&self, position: u32) -> Option<i32> {
        self.done.with(|done| {
            let at = done.iter().position(|(other, _)| *other == position)?;
            Some(done.swap_remove(at).1)
        })
    }
}

/// Tries a no-operation with a result, on a ring created for this.
pub(super) fn try_to_inject() -> bool {
    const RESULT: i32 = -libc::EXFULL;
    let mut made = Params::default();
    // SAFETY: the kernel fills the parameters.
    let fd = unsafe { try_system_call(libc::SYS_io_uring_setup, [1, &raw mut made as usize, 0, 0, 0, 0]) };
    let Ok(fd) = fd else { return false };
    let tried = (|| -> Outcome<bool> {
        let ring = Ring::map(fd as c_int, &made)?;
        let completions = Memory::map(
            fd as c_int,
            SUBMISSION_RING,
            made.completion.events as usize + made.completion_entries as usize * 16,
        )?;
        let place = ring.entry(0).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: the only entry of a ring that no other code knows.
        unsafe { place.write(Entry::default().no_operation(RESULT)) };
        ring.ring.word(ring.offsets.tail)?.store(1, Ordering::Release);
        // SAFETY: submits that entry, and waits for it.
        unsafe { try_system_call(libc::SYS_io_uring_enter, [fd as usize, 1, 1, 1, 0, 0]) }?;
        let result = completions.word(made.completion.events + 8)?.load(Ordering::Acquire);
        Ok(result as i32 == RESULT)
    })();
    // SAFETY: a descriptor that no other code knows.
    let _ = unsafe { try_system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
    tried.unwrap_or(false)
}
