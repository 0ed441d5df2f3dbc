//! The library's own allocator.
//!
//! A signal handler may interrupt the C library's `malloc` and call `write`, which is async-signal-safe. So no call may
//! need `malloc`. Freed blocks are kept in lists by size, each behind a lock that no handler and no forked child can
//! find taken. Large blocks are mapped from the kernel and unmapped.

use crate::lock::Lock;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{GlobalAlloc, Layout};

/// Blocks are 16 bytes, 32, and so on.
const SMALLEST: u32 = 4;
/// Blocks of this size (128 KiB) and larger are mapped from the kernel one by one.
const LARGE: u32 = 17;
const CLASSES: usize = (LARGE - SMALLEST) as usize;
/// Bytes mapped at once for small blocks.
const SLAB: usize = 256 << 10;
const PAGE: usize = 4096;

/// Blocks of one size: a free list, and a slab that is not yet divided.
struct Pieces {
    free: *mut Free,
    fresh: usize,
    end: usize,
}

/// A free block points to the next one.
struct Free {
    next: *mut Free,
}

// SAFETY: free blocks are not in use, so the holder of the lock may take them on any thread.
unsafe impl Send for Pieces {}

impl Pieces {
    const NONE: Pieces = Pieces { free: std::ptr::null_mut(), fresh: 0, end: 0 };

    fn take(&mut self, size: usize) -> *mut u8 {
        if !self.free.is_null() {
            let piece = self.free;
            // SAFETY: a block on the list was put there by `give`, and is not in use.
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
        // SAFETY: the block was given back, and is large enough for a pointer.
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
    // SAFETY: new memory at an address of the kernel's choice.
    let mapped = unsafe {
        mmap_anonymous(std::ptr::null_mut(), size, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    };
    mapped.map_or(std::ptr::null_mut(), <*mut _>::cast)
}

/// The size class: the power of two that holds the layout. Blocks are aligned to their size, up to a page.
fn class(layout: Layout) -> u32 {
    let size = layout.size().max(layout.align()).max(1 << SMALLEST);
    size.next_power_of_two().trailing_zeros()
}

struct Heap {
    pieces: [Lock<Pieces>; CLASSES],
}

#[cfg_attr(not(test), global_allocator)]
static HEAP: Heap = Heap { pieces: [const { Lock::new(Pieces::NONE) }; CLASSES] };

// SAFETY: blocks are disjoint, as large as their class, and aligned to their size: slabs are aligned to pages and
// divided into equal powers of two (blocks larger than a page lie at multiples of their size within the slab, and no
// layout in this library requires more than a page's alignment). Nothing in these functions unwinds.
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
        // SAFETY: the caller's promise.
        let piece = unsafe { self.alloc(layout) };
        // Memory from the kernel is already zero.
        if class(layout) < LARGE && !piece.is_null() {
            // SAFETY: the block is at least this large.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let class = class(layout);
        if class >= LARGE {
            // SAFETY: a mapping of this size, made by `alloc`.
            let _ = unsafe { munmap(piece.cast(), layout.size()) };
            return;
        }
        self.pieces[(class - SMALLEST) as usize].with(|pieces| pieces.give(piece));
    }
}

// A thread that first uses a thread-local with a destructor would register the destructor with the C library, which
// allocates memory for it. The few such thread-locals that an application's thread touches hold nothing, so this
// library registers no destructors. The symbol is hidden: destructors of the application are registered as usual.
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
    fn blocks_are_aligned_disjoint_and_reused() {
        let mut seen = std::collections::BTreeMap::new();
        for (size, align) in
            [(1, 1), (16, 8), (17, 1), (100, 64), (4096, 4096), (60_000, 16), (200_000, 8), (1, 512)]
        {
            let layout = Layout::from_size_align(size, align).expect("valid layout");
            for _ in 0..5 {
                // SAFETY: a valid layout; the memory is used within it.
                let piece = unsafe {
                    let piece = HEAP.alloc(layout);
                    piece.write_bytes(0xfb, size);
                    piece
                };
                assert_eq!(piece as usize % align, 0, "{size} {align}");
                let before = seen.insert(piece as usize, size);
                assert_eq!(before, None, "block in use handed out twice");
            }
        }
        let layout = Layout::from_size_align(40, 8).expect("valid layout");
        // SAFETY: as above.
        let (one, two) = unsafe {
            let one = HEAP.alloc(layout);
            HEAP.dealloc(one, layout);
            (one, HEAP.alloc(layout))
        };
        assert_eq!(one, two);
    }
}
