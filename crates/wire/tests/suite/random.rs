//! Random, mutated and truncated frames: an answer or an error, never a panic. A length that lies would end
//! the process if anything were allocated for it, so lies are made on purpose.

use forebay_wire::{HEADER, fuzz};

const SEED: u64 = 0xf0_4eba;
const CASES: usize = 60_000;

/// SplitMix64: enough for tests, and replayable for ever.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

fn seed() -> u64 {
    std::env::var("FOREBAY_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(SEED)
}

/// Says which seed failed, however the test ends.
struct Tell(u64, usize);

impl Drop for Tell {
    #[expect(clippy::print_stderr, reason = "a failing test prints its seed")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay with FOREBAY_SEED={} (case {})", self.0, self.1);
        }
    }
}

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
    let mut bytes = vec![0xff; 1 + dice.below(9)];
    bytes.push(0x01);
    bytes
}

fn mutate(frame: &mut Vec<u8>, dice: &mut Dice) {
    for _ in 0..=dice.below(4) {
        let at = if frame.is_empty() { 0 } else { dice.below(frame.len()) };
        match dice.below(6) {
            0 => frame.truncate(at),
            1 => frame.insert(at, dice.next() as u8),
            2 if at < frame.len() => frame[at] ^= 1 << dice.below(8),
            3 if at < frame.len() => frame[at] = dice.next() as u8,
            4 => {
                let lie = lie(dice);
                frame.splice(at..at, lie);
            }
            _ => frame.extend((0..dice.below(64)).map(|_| dice.next() as u8)),
        }
    }
}

#[test]
fn random_and_mutated_frames_never_panic() {
    let frames = crate::samples::frames();
    assert!(frames.iter().all(|frame| fuzz(frame)), "every sample is a frame");
    let mut tell = Tell(seed(), 0);
    let mut dice = Dice(tell.0);
    let (mut taken, mut refused) = (0, 0);
    for case in 0..CASES {
        tell.1 = case;
        let mut bytes = match dice.below(4) {
            0 => (0..dice.below(4096)).map(|_| dice.next() as u8).collect(),
            _ => frames[dice.below(frames.len())].clone(),
        };
        mutate(&mut bytes, &mut dice);
        // Without a good header nothing would ever reach the bodies.
        if dice.below(4) != 0 {
            if bytes.len() >= 4 && dice.below(2) == 0 {
                bytes[..3].copy_from_slice(b"FBY");
                bytes[3] = 1 + dice.below(5) as u8;
            }
            repair(&mut bytes);
        }
        match fuzz(&bytes) {
            true => taken += 1,
            false => refused += 1,
        }
    }
    assert!(taken > CASES / 100 && refused > CASES / 10, "{taken} taken, {refused} refused");
}
