//! Weighted random choice between the awake children of one node; each child is a segment as long as its
//! weight.
//!
//! The segments are the leaves of a binary tree of sums, so a draw, a wake and a sleep cost one path of it.
//! Sums are always recomputed from the two below, never adjusted, so rounding errors do not accumulate.

use super::rng::Rng;
use super::tree::Pick;

/// The children of one node as segments of a line.
#[derive(Debug, Default)]
pub(super) struct Sums {
    /// `sums[1]` is the whole; node `i` is the sum of `2i` and `2i + 1`; the second half are the segments.
    sums: Vec<f64>,
    weights: Vec<f64>,
    awake: usize,
}

impl Sums {
    fn width(&self) -> usize {
        self.sums.len() / 2
    }

    fn grow(&mut self, children: usize) {
        let width = children.next_power_of_two();
        if width <= self.width() {
            return;
        }
        let old: Vec<f64> = self.sums[self.width()..].to_vec();
        self.sums = vec![0.0; 2 * width];
        self.sums[width..width + old.len()].copy_from_slice(&old);
        for i in (1..width).rev() {
            self.sums[i] = self.sums[2 * i] + self.sums[2 * i + 1];
        }
    }

    fn set(&mut self, place: usize, length: f64) {
        let mut at = self.width() + place;
        self.sums[at] = length;
        while at > 1 {
            at /= 2;
            self.sums[at] = self.sums[2 * at] + self.sums[2 * at + 1];
        }
    }

    /// A child's part among the awake children.
    pub(super) fn part(&self, place: usize) -> f64 {
        self.weights[place] / self.sums[1].max(self.weights[place])
    }

    fn is_awake(&self, place: usize) -> bool {
        self.sums[self.width() + place] > 0.0
    }
}

impl Pick for Sums {
    fn weigh(&mut self, place: usize, weight: f64) {
        if place >= self.weights.len() {
            self.weights.resize(place + 1, 1.0);
            self.grow(place + 1);
        }
        self.weights[place] = weight;
        if self.is_awake(place) {
            self.set(place, weight);
        }
    }

    fn reset(&mut self, place: usize, weight: f64) {
        self.weigh(place, weight);
    }

    fn wake(&mut self, place: usize) {
        assert!(!self.is_awake(place), "a child wakes once");
        self.set(place, self.weights[place]);
        self.awake += 1;
    }

    fn sleep(&mut self, place: usize) {
        assert!(self.is_awake(place), "a child that goes to sleep was awake");
        self.set(place, 0.0);
        self.awake -= 1;
    }

    fn pick(&mut self, rng: &mut Rng) -> usize {
        let mut point = rng.unit() * self.sums[1];
        let mut at = 1;
        while at < self.width() {
            at *= 2;
            // Rounding may leave a point past the last segment: an empty half is never entered.
            if point >= self.sums[at] && self.sums[at + 1] > 0.0 {
                point -= self.sums[at];
                at += 1;
            }
        }
        at - self.width()
    }

    fn charge(&mut self, _place: usize, _cost: f64) {}

    fn awake(&self) -> usize {
        self.awake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draw_follows_weights_and_skips_sleeping_children() {
        let mut sums = Sums::default();
        let weights = [5.0, 1.0, 2.0, 0.5, 1.5, 4.0, 3.0];
        for (place, &weight) in weights.iter().enumerate() {
            sums.reset(place, weight);
            sums.wake(place);
        }
        sums.sleep(0);
        sums.sleep(6);
        let mut rng = Rng::new(4);
        let mut hits = [0_u32; 7];
        for _ in 0..90_000 {
            hits[sums.pick(&mut rng)] += 1;
        }
        assert_eq!((hits[0], hits[6]), (0, 0));
        for place in 1..6 {
            let wanted = 10_000.0 * weights[place];
            assert!((f64::from(hits[place]) - wanted).abs() < 5.0 * wanted.sqrt(), "{hits:?}");
        }
    }
}
