//! How many writers a target likes best: told, or found out.
//!
//! The climber measures one number of writers at a time over a whole window, tries doubling and halving before it tries
//! one more and one less, and takes more writers only if they bring more than noise would, fewer if they bring as much.
//! Before it takes another number it measures the old one once more: what was better only because somebody else had been
//! in the way before is not taken. A trial that is much worse is ended early, so that trials cost little. When nothing around
//! is better it holds, for twice as long each time it comes to the same conclusion: so it neither oscillates nor wastes the
//! target on trials. A bandwidth that changes much while it holds says that the target has changed, and it looks around
//! again.

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
/// A trial that reaches no more than this part of what was known before is ended early.
const HOPELESS: f64 = 0.85;
/// What counts as another target.
const CHANGE: f64 = 1.25;
/// What one window counts while it holds: one that somebody else disturbs is no trend.
const FRESH: f64 = 0.25;
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
    /// How fast is the target with the best α known?
    Base,
    /// Is a move better? So many have failed in a row.
    Trial { index: usize, failed: usize },
    /// It was: is it still, beside what was best before?
    Again { index: usize, failed: usize, rate: f64 },
    /// Nothing around is better.
    Holding { windows: u32 },
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
        Climber { alpha: start.clamp(1, most), base: 0.0, most, state: State::Base, hold: HOLD }
    }

    /// How many should write now.
    #[must_use]
    pub fn alpha(&self) -> u32 {
        match self.state {
            State::Trial { index, .. } => MOVES[index].from(self.alpha, self.most),
            _ => self.alpha,
        }
    }

    /// Whether what is being tried is so much worse that it need not be measured to the end, if so much is written in what
    /// would be a whole window.
    #[must_use]
    pub fn is_hopeless(&self, written: Bytes) -> bool {
        matches!(self.state, State::Trial { .. }) && (written.0 as f64) < self.base * HOPELESS
    }

    /// A window has ended in which as many wrote as should, and the target was never short of writers; so much was written in
    /// it. Windows are of one length. Returns how many should write in the next.
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

    /// The next move that leads anywhere, or a rest when all have failed.
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

    /// Plays windows on a curve whose measurements are off by up to `noise`, ending hopeless ones after a quarter; says what
    /// part of the best bandwidth was had over all windows after the first so many.
    fn climb(curve: &Curve, start: u32, noise: f64, windows: u32, first: u32) -> f64 {
        let mut climber = Climber::new(start, 64);
        let (mut alpha, mut sum, mut time, mut dice) = (climber.alpha(), 0.0, 0.0, 1_u64);
        for window in 0..windows {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let error = 1.0 + noise * ((dice >> 40) as f64 / f64::from(1 << 23) - 1.0);
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
    fn what_is_learnt_is_within_five_percent_of_the_best() {
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

    /// A drain that lasts a minute is not much longer than a hundred windows.
    #[test]
    fn learning_costs_little_from_the_start_where_it_starts_well() {
        for noise in [0.0, 0.01, 0.03] {
            let part = climb(&Curve::trio(), 2, noise, 100, 0);
            assert!(part > 0.97, "with noise {noise}: {part} of the best");
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
