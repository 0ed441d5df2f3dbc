//! A repeatable random generator: SplitMix64.

/// A random generator; the same seed gives the same numbers.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(bound.max(1))) as u32
    }

    /// `count` distinct numbers below `of`.
    pub(super) fn some(&mut self, count: usize, of: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..of).collect();
        for place in 0..count.min(all.len()) {
            let other = place + self.below(of - place as u32) as usize;
            all.swap(place, other);
        }
        all.truncate(count);
        all
    }
}
