//! Mappings of copies of files: private mappings, and shared ones for reading of files whose memory the service cannot
//! share with this process. A copy is a memory file, filled when the file is mapped; it shows no later change.

use super::{MapArgs, show};
use crate::backing;
use crate::data::{self, At};
use crate::errno::Outcome;
use crate::kernel::try_system_call;
use crate::table::Held;
use rustix::fs::{MemfdFlags, SealFlags};

/// Bytes per read when a copy is filled.
const FILL: usize = 64 << 20;

/// The library's own mapping of a memory file, while it is filled.
struct View {
    start: usize,
    len: usize,
}

impl View {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: mapped until this is dropped, and no other code has the memory file yet.
        unsafe { std::slice::from_raw_parts_mut(self.start as *mut u8, self.len) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the mapping.
        let _ = unsafe { try_system_call(libc::SYS_munmap, [self.start, self.len, 0, 0, 0, 0]) };
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

/// Maps a copy of a file; returns its address.
pub(super) fn establish(open: &Held, map_args: &MapArgs, len: usize) -> Outcome<usize> {
    let memory = backing::memory_file(MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&memory, len as u64)?;
    let both = libc::PROT_READ | libc::PROT_WRITE;
    let own =
        MapArgs { address: std::ptr::null_mut(), len, protection: both, flags: libc::MAP_SHARED, offset: 0 };
    let mut view = View { start: show(&own, &memory, 0)?, len };
    fill(open, map_args.offset, view.bytes())?;
    drop(view);
    if map_args.is_shared() {
        // The kernel then also refuses a later `mprotect` for writing.
        rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE)?;
    }
    show(map_args, &memory, 0)
}
