//! Memory of the library's own.
//!
//! A signal handler may interrupt the C library's `malloc` and call `write`, which it is allowed to: so nothing on the
//! way of a call may need `malloc`. Freed pieces wait in lists by size, each behind a lock that no handler and no
//! forked child can find taken; what is large comes from the kernel and goes back to it.

use crate::lock::Lock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{GlobalAlloc, Layout};

/// Pieces of 16 bytes, 32, and so on.
const SMALLEST: u32 = 4;
/// From this size on (128 KiB) the kernel is asked every time.
const LARGE: u32 = 17;
const CLASSES: usize = (LARGE - SMALLEST) as usize;
/// What is taken from the kernel at once for small pieces.
const SLAB: usize = 256 << 10;
const PAGE: usize = 4096;

/// Pieces of one size: a list of free ones, and a slab that is not yet divided.
struct Pieces {
    free: *mut Free,
    fresh: usize,
    end: usize,
}

/// A free piece points to the next.
struct Free {
    next: *mut Free,
}

// SAFETY: free pieces belong to nobody, so whoever holds the lock may have them.
unsafe impl Send for Pieces {}

impl Pieces {
    const NONE: Pieces = Pieces { free: std::ptr::null_mut(), fresh: 0, end: 0 };

    fn take(&mut self, size: usize) -> *mut u8 {
        if !self.free.is_null() {
            let piece = self.free;
            // SAFETY: what is on the list was put there by `give`, and is not used by anybody.
            self.free = unsafe { (*piece).next };
            return piece.cast();
        }
        if self.end - self.fresh < size {
            let slab = from_kernel(SLAB);
            if slab.is_null() {
                return slab;
            }
            (self.fresh, self.end) = (slab as usize, slab as usize + SLAB);
        }
        let piece = self.fresh;
        self.fresh += size;
        piece as *mut u8
    }

    fn give(&mut self, piece: *mut u8) {
        let piece = piece.cast::<Free>();
        // SAFETY: the piece is given back, and large enough for a pointer.
        unsafe { (*piece).next = self.free };
        self.free = piece;
    }
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces::NONE
    }
}

fn from_kernel(size: usize) -> *mut u8 {
    // SAFETY: new memory at a place of the kernel's choice.
    let mapped = unsafe {
        mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    mapped.map_or(std::ptr::null_mut(), <*mut _>::cast)
}

/// The power of two that holds this; alignment is that of the size, up to a page.
fn class(layout: Layout) -> u32 {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST);
    size.next_power_of_two().trailing_zeros()
}

struct Heap {
    pieces: [Lock<Pieces>; CLASSES],
}

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap { pieces: [const { Lock::new(Pieces::NONE) }; CLASSES] };

// SAFETY: pieces are disjoint, as large as their class, and aligned to their size: slabs are aligned to pages and
// divided into equal powers of two (those larger than a page lie at multiples of themselves within the slab, and
// nobody asks for more than a page's alignment). Nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let class = class(layout);
        if layout.align() > PAGE {
            return std::ptr::null_mut();
        }
        if class >= LARGE {
            return from_kernel(layout.size());
        }
        self.pieces[(class - SMALLEST) as usize].with(|pieces| pieces.take(1 << class))
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        let piece = unsafe { self.alloc(layout) };
        // The kernel's memory is zero already.
        if class(layout) < LARGE && !piece.is_null() {
            // SAFETY: as large as this.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let class = class(layout);
        if class >= LARGE {
            // SAFETY: a mapping of this size, made above.
            let _ = unsafe { munmap(piece.cast(), layout.size()) };
            return;
        }
        self.pieces[(class - SMALLEST) as usize].with(|pieces| pieces.give(piece));
    }
}

// A thread that first uses something with a destructor of its own would register that with the C library, which takes
// memory for it. The few such things in here that an application's thread touches hold nothing, so nobody is told. The
// name is hidden: the application's destructors are none of our business.
#[cfg(not(test))]
std::arch::global_asm!(
    ".globl __cxa_thread_atexit_impl",
    ".hidden __cxa_thread_atexit_impl",
    "__cxa_thread_atexit_impl:",
    #[cfg(target_arch = "x86_64")]
    "jmp {nothing}",
    #[cfg(target_arch = "aarch64")]
    "b {nothing}",
    nothing = sym register_nothing,
);

#[cfg(not(test))]
extern "C" fn register_nothing() -> libc::c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_large_enough_aligned_and_used_again() {
        let mut seen = std::collections::BTreeMap::new();
        for (size, align) in
            [(1, 1), (16, 8), (17, 1), (100, 64), (4096, 4096), (60_000, 16), (200_000, 8), (1, 512)]
        {
            let layout = Layout::from_size_align(size, align).expect("a layout");
            for _ in 0..5 {
                // SAFETY: a valid layout; the memory is used within it.
                let piece = unsafe {
                    let piece = HEAP.alloc(layout);
                    piece.write_bytes(0xfb, size);
                    piece
                };
                assert_eq!(piece as usize % align, 0, "{size} {align}");
                let before = seen.insert(piece as usize, size);
                assert_eq!(before, None, "nobody else has it");
            }
        }
        let layout = Layout::from_size_align(40, 8).expect("a layout");
        // SAFETY: as above.
        let (one, two) = unsafe {
            let one = HEAP.alloc(layout);
            HEAP.dealloc(one, layout);
            (one, HEAP.alloc(layout))
        };
        assert_eq!(one, two);
    }
}
