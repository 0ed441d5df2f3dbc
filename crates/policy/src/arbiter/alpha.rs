//! How many writers a target likes best: told, or found out.
//!
//! The climber measures one number of writers at a time over a whole window, tries doubling and halving before it tries
//! one more and one less, and takes more writers only if they bring more than noise would, fewer if they bring as much.
//! When nothing around is better it holds, for twice as long each time it comes to the same conclusion: so it neither
//! oscillates nor wastes the target on trials. A bandwidth that changes much while it holds says that the target has
//! changed, and it looks around again.

use forebay_model::Bytes;
use serde::{Deserialize, Serialize};

/// What α of a target is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Alpha {
    /// Always this.
    Fixed(u32),
    /// Found out while writing, from this on.
    Learnt(u32),
}

/// What a move has to gain.
const GAIN: f64 = 1.015;
/// What counts as another target.
const CHANGE: f64 = 1.25;
/// Windows of holding: at first and at most.
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
            // Not a second time what doubling or halving tries.
            Move::More if alpha == 1 => 1,
            Move::Less if alpha <= 2 => alpha,
            Move::More => alpha + 1,
            Move::Less => alpha - 1,
        }
        .clamp(1, most)
    }

    /// Whether a move is one for the better: more writers have to bring more, fewer only not much less.
    fn pays(self, rate: f64, base: f64) -> bool {
        match self {
            Move::Double | Move::More => rate > base * GAIN,
            Move::Halve | Move::Less => rate * GAIN > base,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum State {
    /// The window after a change is not measured: writes of before are still in it.
    Settling(Trial),
    Measuring(Trial),
    /// Nothing around is better.
    Holding {
        windows: u32,
    },
}

/// What is being found out.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Trial {
    /// How fast the target is with the best α known.
    Base,
    /// Whether a move is better; so many have failed in a row.
    Of { index: usize, failed: usize },
}

/// Learns a target's α by hill climbing.
#[derive(Clone, Debug)]
pub struct Climber {
    /// The best α so far, and bytes in a window with it.
    alpha: u32,
    base: f64,
    most: u32,
    state: State,
    hold: u32,
}

impl Climber {
    /// Begins with a number of writers; never tries more than `most`.
    #[must_use]
    pub fn new(start: u32, most: u32) -> Climber {
        let most = most.max(1);
        Climber {
            alpha: start.clamp(1, most),
            base: 0.0,
            most,
            state: State::Settling(Trial::Base),
            hold: HOLD,
        }
    }

    /// How many should write now.
    #[must_use]
    pub fn alpha(&self) -> u32 {
        match self.state {
            State::Settling(Trial::Of { index, .. }) | State::Measuring(Trial::Of { index, .. }) => {
                MOVES[index].from(self.alpha, self.most)
            }
            _ => self.alpha,
        }
    }

    /// A window has ended in which the target was never short of writers; so much was written in it. Windows are of one
    /// length. Returns how many should write in the next.
    pub fn window(&mut self, written: Bytes) -> u32 {
        let rate = written.0 as f64;
        self.state = match self.state {
            State::Settling(trial) => State::Measuring(trial),
            State::Measuring(Trial::Base) => {
                self.base = rate;
                self.trial(0, 0)
            }
            State::Measuring(Trial::Of { index, .. }) if MOVES[index].pays(rate, self.base) => {
                (self.alpha, self.hold) = (MOVES[index].from(self.alpha, self.most), HOLD);
                self.base = self.base.max(rate);
                self.trial(index, 0)
            }
            State::Measuring(Trial::Of { index, failed }) => {
                self.trial((index + 1) % MOVES.len(), failed + 1)
            }
            State::Holding { .. } if rate > self.base * CHANGE || rate * CHANGE < self.base => {
                self.hold = HOLD;
                State::Measuring(Trial::Base)
            }
            State::Holding { windows: 0 } => State::Measuring(Trial::Base),
            State::Holding { windows } => State::Holding { windows: windows - 1 },
        };
        self.alpha()
    }

    /// The next move that leads anywhere, or a rest when all have failed.
    fn trial(&mut self, mut index: usize, mut failed: usize) -> State {
        while failed < MOVES.len() {
            if MOVES[index].from(self.alpha, self.most) != self.alpha {
                return State::Settling(Trial::Of { index, failed });
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

    /// Plays windows on a curve whose measurements are off by up to `noise`; says what part of the best bandwidth was
    /// had over all windows after the first hundred.
    fn climb(curve: &Curve, start: u32, noise: f64, windows: u32) -> f64 {
        let mut climber = Climber::new(start, 64);
        let (mut alpha, mut sum, mut dice) = (climber.alpha(), 0.0, 1_u64);
        for window in 0..windows {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let error = 1.0 + noise * ((dice >> 40) as f64 / f64::from(1 << 23) - 1.0);
            let rate = curve.rate(alpha);
            if window >= 100 {
                sum += rate;
            }
            alpha = climber.window(Bytes((rate * error) as u64));
        }
        sum / f64::from(windows - 100) / curve.best().1
    }

    #[test]
    fn what_is_learnt_is_within_five_percent_of_the_best() {
        let peak = |at: u32| Curve::new(&[(1, Bytes(100)), (at, Bytes(1000)), (64, Bytes(300))]).unwrap();
        for curve in [Curve::trio(), peak(5), peak(12), peak(40), Curve::new(&[(1, Bytes(500))]).unwrap()] {
            for start in [1, 2, 16, 64] {
                for noise in [0.0, 0.005] {
                    let part = climb(&curve, start, noise, 1000);
                    assert!(part > 0.95, "from {start} with noise {noise}: {part} of the best, {curve:?}");
                }
            }
        }
    }

    #[test]
    fn it_rests_when_nothing_is_better_and_wakes_when_the_target_changes() {
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
