//! Random, mutated and truncated frames: decoding returns a value or an error, never panics. The address space is
//! limited, so that an allocation for a false length would abort the process; the mutations include false lengths.

use forebay_testkit::{Corpus, Rng, alone};
use forebay_wire::{HEADER, fuzz};
use std::path::Path;

const CASES: u64 = 60_000;
/// Limit of the address space in bytes: the needs of the harness plus slightly more than decoding may use.
const MEMORY: u64 = 256 << 20;

fn repair(frame: &mut [u8]) {
    if frame.len() >= HEADER {
        let body = (frame.len() - HEADER) as u32;
        frame[4..8].copy_from_slice(&body.to_le_bytes());
        let crc = crc32c::crc32c(&frame[..20]);
        frame[20..24].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A varint that encodes an absurd length.
fn false_length(rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0xff; 1 + rng.index(9)];
    bytes.push(0x01);
    bytes
}

/// A mutated frame that passes the header check.
fn mutate(bytes: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if rng.one_in(8) {
        frame = (0..rng.below(4096)).map(|_| rng.next() as u8).collect();
    }
    if rng.one_in(4) {
        let (at, false_length) = (rng.index(frame.len()), false_length(rng));
        frame.splice(at..at, false_length);
    }
    // Most frames need a valid header to reach the body decoder.
    if !rng.one_in(4) {
        if frame.len() >= 4 && rng.one_in(2) {
            frame[..3].copy_from_slice(b"FBY");
            frame[3] = 1 + rng.below(5) as u8;
        }
        repair(&mut frame);
    }
    frame
}

#[test]
fn random_and_mutated_frames_never_panic() {
    alone("random::random_and_mutated_frames_never_panic", MEMORY, || {
        let frames = crate::samples::frames();
        assert!(frames.iter().all(|frame| fuzz(frame)), "every sample is a frame");
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
        let (taken, refused) = Corpus::new(frames, &kept).run(CASES, |bytes, rng| fuzz(&mutate(bytes, rng)));
        assert!(taken > refused / 100 && refused > taken / 10, "{taken} taken, {refused} refused");
    });
}
