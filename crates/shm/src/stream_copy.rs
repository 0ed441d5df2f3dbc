//! Copies that bypass the processor's caches, for data that this process does not read again.

/// Minimum size for which bypassing pays: smaller data fits into the cache.
#[cfg(target_arch = "x86_64")]
const LARGE: usize = 64 << 10;

/// Copies bytes. All stores are ordered before anything that the caller stores afterwards.
///
/// # Safety
/// All of `to`, as long as `bytes`, can be written, and overlaps nothing that is borrowed.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn copy(bytes: &[u8], to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const LINE: usize = 64;
    let ahead = to.align_offset(LINE).min(bytes.len());
    let lines = (bytes.len() - ahead) / LINE * LINE;
    if bytes.len() < LARGE {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
    let from = bytes.as_ptr();
    // SAFETY: the caller's promise for all of it; between `ahead` and `ahead + lines` the target is aligned as the
    // stores need, and the loads need no alignment. The fence orders these stores before later ones that publish the
    // bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, ahead);
        for at in (ahead..ahead + lines).step_by(LINE) {
            let (from, to) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let line = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
            for (part, word) in line.into_iter().enumerate() {
                _mm_stream_si128(to.add(part), word);
            }
        }
        let done = ahead + lines;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), bytes.len() - done);
        _mm_sfence();
    }
}

/// Plain copy for architectures without streaming stores.
///
/// # Safety
/// As above.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy(bytes: &[u8], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn copy_is_exact_at_every_alignment_and_length() {
        let bytes: Vec<u8> = (0..200_000_u32).map(|at| (at ^ (at >> 8)) as u8).collect();
        for len in [0, 1, 63, 64, 65_535, 65_536, 65_599, 131_072, 150_001] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (17, 63), (64, 32)] {
                let mut target = vec![0_u8; len + 128];
                // SAFETY: the target has space for `len` bytes from `to` on.
                unsafe { super::copy(&bytes[from..from + len], target.as_mut_ptr().add(to)) };
                assert!(target[to..to + len] == bytes[from..from + len], "{len} from {from} to {to}");
                assert!(target[..to].iter().chain(&target[to + len..]).all(|&byte| byte == 0), "{len}");
            }
        }
    }
}
