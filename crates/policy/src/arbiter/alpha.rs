//! The best number of writers of a target, α: fixed or learnt.
//!
//! The climber measures one number of writers at a time over a whole window. It tries doubling and halving
//! before one more and one less. It takes more writers only if they gain more than noise would, and fewer
//! writers if they are as fast. Before a change it measures the old number once more, so that a gain from a
//! passing disturbance does not count. A trial that is much worse ends early, so that trials cost little.
//! When no neighbour is better it holds, twice as long each time it reaches the same result: so it neither
//! oscillates nor wastes the target on trials. A large change of bandwidth while it holds means that the
//! target has changed, and it explores again.

use forebay_model::Bytes;
use serde::{Deserialize, Serialize};

/// How α of a target is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alpha {
    /// Always this number.
    Fixed(u32),
    /// Learnt while writing, starting from this number.
    Learnt(u32),
}

/// Gain that a move needs.
const GAIN: f64 = 1.015;
/// A trial that reaches at most this part of the best known rate ends early.
const HOPELESS: f64 = 0.85;
/// Change of rate that counts as a changed target.
const CHANGE: f64 = 1.25;
/// Weight of one window while holding, so that a single disturbed window is no trend.
const FRESH: f64 = 0.25;
/// Number of windows to hold: at first and at most.
const HOLD: u32 = 8;
const LONGEST: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Move {
    Double,
    Halve,
    More,
    Less,
}

const MOVES: [Move; 4] = [Move::Double, Move::Halve, Move::More, Move::Less];

impl Move {
    fn from(self, alpha: u32, most: u32) -> u32 {
        match self {
            Move::Double => alpha.saturating_mul(2),
            Move::Halve => alpha / 2,
            // Doubling or halving already tries these.
            Move::More if alpha == 1 => 1,
            Move::Less if alpha <= 2 => alpha,
            Move::More => alpha + 1,
            Move::Less => alpha - 1,
        }
        .clamp(1, most)
    }

    /// Whether a move pays off: more writers must gain, fewer must not lose much.
    fn pays(self, rate: f64, base: f64) -> bool {
        match self {
            Move::Double | Move::More => rate > base * GAIN,
            Move::Halve | Move::Less => rate * GAIN > base,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// Measures the rate with the best known α.
    Base,
    /// Measures a move, after `failed` failed ones in a row.
    Trial { index: usize, failed: usize },
    /// The move was better: measures the old α once more.
    Again { index: usize, failed: usize, rate: f64 },
    /// No neighbour is better.
    Holding { windows: u32 },
}

/// Learns a target's α by hill climbing.
#[derive(Clone, Debug)]
pub struct Climber {
    /// The best α so far, and its bytes per window.
    alpha: u32,
    base: f64,
    most: u32,
    state: State,
    hold: u32,
}

impl Climber {
    /// Starts with the given number of writers; never tries more than `most`.
    #[must_use]
    pub fn new(start: u32, most: u32) -> Climber {
        let most = most.max(1);
        Climber { alpha: start.clamp(1, most), base: 0.0, most, state: State::Base, hold: HOLD }
    }

    /// The current number of writers.
    #[must_use]
    pub fn alpha(&self) -> u32 {
        match self.state {
            State::Trial { index, .. } => MOVES[index].from(self.alpha, self.most),
            _ => self.alpha,
        }
    }

    /// Whether the current trial is so much worse that it can end early, given the extrapolated bytes of a
    /// whole window.
    #[must_use]
    pub fn is_hopeless(&self, written: Bytes) -> bool {
        matches!(self.state, State::Trial { .. }) && (written.0 as f64) < self.base * HOPELESS
    }

    /// Ends a window in which exactly `alpha` members wrote all the time; `written` is the number of bytes.
    /// All windows have the same length. Returns the number of writers for the next window.
    pub fn window(&mut self, written: Bytes) -> u32 {
        let rate = written.0 as f64;
        self.state = match self.state {
            State::Base => {
                self.base = rate;
                self.trial(0, 0)
            }
            State::Trial { index, failed } if MOVES[index].pays(rate, self.base) => {
                State::Again { index, failed, rate }
            }
            State::Trial { index, failed } => self.trial((index + 1) % MOVES.len(), failed + 1),
            State::Again { index, rate: tried, .. } if MOVES[index].pays(tried, rate) => {
                (self.alpha, self.hold) = (MOVES[index].from(self.alpha, self.most), HOLD);
                self.base = rate.max(tried);
                self.trial(index, 0)
            }
            State::Again { index, failed, .. } => {
                self.base = rate;
                self.trial((index + 1) % MOVES.len(), failed + 1)
            }
            State::Holding { .. } if rate > self.base * CHANGE || rate * CHANGE < self.base => {
                self.hold = HOLD;
                State::Base
            }
            State::Holding { windows: 0 } => State::Base,
            State::Holding { windows } => {
                self.base += FRESH * (rate - self.base);
                State::Holding { windows: windows - 1 }
            }
        };
        self.alpha()
    }

    /// The next move with a different α, or a hold when all have failed.
    fn trial(&mut self, mut index: usize, mut failed: usize) -> State {
        while failed < MOVES.len() {
            if MOVES[index].from(self.alpha, self.most) != self.alpha {
                return State::Trial { index, failed };
            }
            (index, failed) = ((index + 1) % MOVES.len(), failed + 1);
        }
        let windows = self.hold;
        self.hold = (self.hold * 2).min(LONGEST);
        State::Holding { windows }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Curve;
    use crate::share::Rng;

    /// Simulates windows on a curve with measurement noise up to `noise`, ending hopeless ones after a
    /// quarter. Returns the achieved part of the best bandwidth over all windows after the first `first`.
    fn climb(curve: &Curve, start: u32, noise: f64, windows: u32, first: u32) -> f64 {
        let mut climber = Climber::new(start, 64);
        let (mut alpha, mut sum, mut time, mut rng) = (climber.alpha(), 0.0, 0.0, Rng::new(1));
        for window in 0..windows {
            let error = 1.0 + noise * (2.0 * rng.unit() - 1.0);
            let rate = curve.rate(alpha);
            let measured = Bytes((rate * error) as u64);
            let part = if climber.is_hopeless(measured) { 0.25 } else { 1.0 };
            if window >= first {
                (sum, time) = (sum + part * rate, time + part);
            }
            alpha = climber.window(measured);
        }
        sum / time / curve.best().1
    }

    fn peak(at: u32) -> Curve {
        Curve::new(&[(1, Bytes(100_000)), (at, Bytes(1_000_000)), (64, Bytes(300_000))]).unwrap()
    }

    #[test]
    fn learnt_alpha_is_within_five_percent_of_the_best() {
        let flat = Curve::new(&[(1, Bytes(500_000))]).unwrap();
        for curve in [Curve::trio(), peak(5), peak(12), peak(40), flat] {
            for start in [1, 2, 16, 64] {
                for noise in [0.0, 0.005, 0.02] {
                    let part = climb(&curve, start, noise, 1000, 100);
                    assert!(part > 0.95, "from {start} with noise {noise}: {part} of the best, {curve:?}");
                }
            }
        }
    }

    /// A drain of a minute is not much longer than a hundred windows.
    #[test]
    fn learning_from_a_good_start_costs_little() {
        for noise in [0.0, 0.01, 0.03] {
            let part = climb(&Curve::trio(), 2, noise, 100, 0);
            assert!(part > 0.97, "with noise {noise}: {part} of the best");
        }
    }

    #[test]
    fn climber_holds_at_the_best_and_restarts_when_the_target_changes() {
        let mut climber = Climber::new(2, 64);
        let (trio, mut moves, mut alpha) = (Curve::trio(), 0, climber.alpha());
        for _ in 0..1000 {
            let next = climber.window(Bytes(trio.rate(alpha) as u64));
            moves += u32::from(next != alpha);
            alpha = next;
        }
        assert!(moves < 60, "{moves} changes in 1000 windows");
        let later =
            Curve::new(&[(1, Bytes(100_000_000)), (16, Bytes(2_000_000_000)), (64, Bytes(1_000_000_000))])
                .unwrap();
        for _ in 0..300 {
            alpha = climber.window(Bytes(later.rate(alpha) as u64));
        }
        assert!((12..=24).contains(&climber.alpha()), "{}", climber.alpha());
    }
}
