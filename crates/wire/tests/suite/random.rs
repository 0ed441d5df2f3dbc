//! Random, mutated and truncated frames: an answer or an error, never a panic. A length that lies would end the process,
//! whose memory is bounded, if anything were allocated for it; so lies are made on purpose.

use forebay_dice::{Corpus, Dice, alone};
use forebay_wire::{HEADER, fuzz};
use std::path::Path;

const CASES: u64 = 60_000;
/// Bytes of address space: what the harness needs, and little more than decoding may take.
const MEMORY: u64 = 256 << 20;

fn repair(frame: &mut [u8]) {
    if frame.len() >= HEADER {
        let body = (frame.len() - HEADER) as u32;
        frame[4..8].copy_from_slice(&body.to_le_bytes());
        let crc = crc32c::crc32c(&frame[..20]);
        frame[20..24].copy_from_slice(&crc.to_le_bytes());
    }
}

/// A varint that claims an absurd length.
fn lie(dice: &mut Dice) -> Vec<u8> {
    let mut bytes = vec![0xff; 1 + dice.index(9)];
    bytes.push(0x01);
    bytes
}

/// A frame, bent so that it gets past the first look.
fn bend(bytes: &[u8], dice: &mut Dice) -> Vec<u8> {
    let mut frame = bytes.to_vec();
    if dice.one_in(8) {
        frame = (0..dice.below(4096)).map(|_| dice.next() as u8).collect();
    }
    if dice.one_in(4) {
        let (at, lie) = (dice.index(frame.len()), lie(dice));
        frame.splice(at..at, lie);
    }
    // Without a good header nothing would ever reach the bodies.
    if !dice.one_in(4) {
        if frame.len() >= 4 && dice.one_in(2) {
            frame[..3].copy_from_slice(b"FBY");
            frame[3] = 1 + dice.below(5) as u8;
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
        let (taken, refused) = Corpus::new(frames, &kept).run(CASES, |bytes, dice| fuzz(&bend(bytes, dice)));
        assert!(taken > refused / 100 && refused > taken / 10, "{taken} taken, {refused} refused");
    });
}
