//! Mappings of private copies of files, for processes with which the service cannot share memory. Only one process maps
//! such a file.
//!
//! A copy is a memory file that is filled when the file is mapped. The library has its own view of it, independent of
//! the application's mapping. Writes of this process update the copy. Changes made in the copy are written to the file
//! by `msync`, `munmap`, `fsync`, reads, `close` and the end of the process. Forked children share the copy.

use super::{MapArgs, PAGE, show};
use crate::backing;
use crate::data::{self, At};
use crate::engine;
use crate::errno::Outcome;
use crate::kernel::try_system_call;
use crate::table::Held;
use rustix::fs::{MemfdFlags, SealFlags};
use std::ops::Range;
use std::sync::Arc;

/// Bytes per read when a copy is filled.
const FILL: usize = 64 << 20;
/// Maximum bytes per write-back.
const BACK: usize = 1 << 20;

/// The library's own mapping of a memory file.
struct View {
    start: usize,
    len: usize,
}

impl View {
    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped until this is dropped. The application may write at the same time; a read then returns a mix
        // of old and new bytes, as from any page cache.
        unsafe { std::slice::from_raw_parts(self.start as *const u8, self.len) }
    }

    /// Modifies the bytes, concurrently with the application, as in a page cache.
    fn with<R>(&self, work: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: as above.
        work(unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { try_system_call(libc::SYS_munmap, [self.start, self.len, 0, 0, 0, 0]) };
    }
}

/// The part of a copy that a mapping shows.
pub(super) struct Copy {
    view: Arc<View>,
    /// Its start in the view.
    at: usize,
    len: usize,
    /// The file's content when this process last read or wrote it; `None` for a mapping that cannot change.
    known: Option<Vec<u8>>,
}

impl Copy {
    fn bytes(&self) -> &[u8] {
        &self.view.bytes()[self.at..self.at + self.len]
    }

    pub(super) fn can_change(&self) -> bool {
        self.known.is_some()
    }

    /// A part of the copy.
    pub(super) fn part(&self, range: Range<usize>) -> Copy {
        Copy {
            view: self.view.clone(),
            at: self.at + range.start,
            len: range.len(),
            known: self.known.as_ref().map(|known| known[range].to_vec()),
        }
    }

    /// Updates the copy after a call of this process has changed a range of the file.
    pub(super) fn change(&mut self, range: Range<usize>, offset: u64, new: impl Fn(u64, &mut [u8])) {
        let within = self.at + range.start..self.at + range.end;
        self.view.with(|bytes| new(offset, &mut bytes[within]));
        if let Some(known) = &mut self.known {
            new(offset, &mut known[range]);
        }
    }

    /// Writes the pages that differ from `known`. The copy starts at `offset` of the file.
    pub(super) fn write_back(&mut self, open: &Held, offset: u64) -> Outcome<()> {
        if self.known.is_none() {
            return Ok(());
        }
        let size = open.attr()?.size.saturating_sub(offset).min(self.len as u64) as usize;
        let file = open.for_writing()?;
        let mut at = 0;
        while at < size {
            let end = (at + PAGE).min(size);
            let known = self.known.as_deref().unwrap_or_default();
            if self.bytes()[at..end] == known[at..end] {
                at = end;
                continue;
            }
            let mut last = end;
            while last < size && last - at < BACK {
                let next = (last + PAGE).min(size);
                if self.bytes()[last..next] == known[last..next] {
                    break;
                }
                last = next;
            }
            let copy = self.bytes()[at..last].to_vec();
            engine::run(|_| file.pwrite(offset + at as u64, &copy))?;
            if let Some(known) = &mut self.known {
                known[at..last].copy_from_slice(&copy);
            }
            at = last;
        }
        Ok(())
    }
}

fn fill(open: &Held, offset: u64, into: &mut [u8]) -> Outcome<()> {
    for (number, piece) in into.chunks_mut(FILL).enumerate() {
        let wanted = piece.len();
        if data::read_into(open, At::Offset(offset + (number * FILL) as u64), piece)? < wanted {
            break;
        }
    }
    Ok(())
}

/// Maps a copy of a file; returns its address, and the copy for a shared mapping.
pub(super) fn establish(open: &Held, map_args: &MapArgs, len: usize, writes: bool) -> Outcome<(usize, Copy)> {
    let memory = backing::memory_file(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, len as u64)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let own =
        MapArgs { address: std::ptr::null_mut(), len, protection: both, flags: libc::MAP_SHARED, offset: 0 };
    let view = View { start: show(&own, &memory, 0)?, len };
    view.with(|bytes| fill(open, map_args.offset, bytes))?;
    if map_args.is_shared() && !writes {
        // The kernel then also refuses a later `mprotect` for writing.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE)?;
    }
    let start = show(map_args, &memory, 0)?;
    let known = writes.then(|| view.bytes().to_vec());
    Ok((start, Copy { view: Arc::new(view), at: 0, len, known }))
}
