//! Discrete-event simulation: applications that alternate pauses and bursts of nearly constant length, in
//! continuous time.
//!
//! Unlike the Markov chain it has memory: a burst that has begun continues. Comparing both shows how far the
//! chain can be trusted.

use crate::steps::RESTLESS;
use crate::{App, Error, Estimate, Platform, Rng, Route};

/// Extent of the simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Effort {
    /// Independent runs with random starts.
    pub runs: usize,
    /// Length of each, in time units.
    pub length: f64,
}

impl Default for Effort {
    fn default() -> Effort {
        Effort { runs: 15, length: 1000.0 }
    }
}

/// Results of the runs, as shares of the elapsed time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Observed {
    /// Time in which all applications stalled.
    pub idle: Estimate,
    /// Time in which the buffer did not drain.
    pub quiet: Estimate,
    /// Mean content of the buffer.
    pub occupancy: Estimate,
}

impl Observed {
    pub(crate) fn of(runs: &[[f64; 3]]) -> Observed {
        let column = |i: usize| Estimate::of(&runs.iter().map(|run| run[i]).collect::<Vec<_>>());
        Observed { idle: column(0), quiet: column(1), occupancy: column(2) }
    }
}

/// Runs the applications several times from random starts.
pub fn simulate(
    apps: &[App],
    platform: &Platform,
    effort: &Effort,
    rng: &mut Rng,
) -> Result<Observed, Error> {
    if apps.is_empty() {
        return Err(Error::NoApplication);
    }
    if platform.bandwidth.0 == 0 {
        return Err(Error::NoBandwidth);
    }
    let runs: Vec<[f64; 3]> =
        (0..effort.runs).map(|_| World::new(apps, platform, rng).run(effort.length, rng)).collect();
    Ok(Observed::of(&runs))
}

struct Source<'a> {
    app: &'a App,
    bursting: bool,
    /// When the current burst or pause ends.
    until: f64,
}

impl Source<'_> {
    fn turn(&mut self, rng: &mut Rng) {
        self.bursting = !self.bursting;
        let share = if self.bursting { self.app.p.get() } else { 1.0 - self.app.p.get() };
        let noise = rng.between(1.0 - self.app.jitter, 1.0 + self.app.jitter);
        self.until += share * self.app.cycle() * noise;
    }
}

struct World<'a> {
    sources: Vec<Source<'a>>,
    bandwidth: f64,
    capacity: f64,
    threshold: f64,
    now: f64,
    /// When to decide next whether the buffer drains.
    tick: f64,
    draining: bool,
    held: f64,
    idle: f64,
    quiet: f64,
    area: f64,
}

impl<'a> World<'a> {
    fn new(apps: &'a [App], platform: &Platform, rng: &mut Rng) -> World<'a> {
        let sources = apps.iter().filter(|app| app.p.get() > 0.0).map(|app| {
            // A uniform point of the cycle: first the burst, then the pause.
            let (point, burst) = (rng.unit() * app.cycle(), app.p.get() * app.cycle());
            let bursting = point < burst;
            Source { app, bursting, until: if bursting { burst - point } else { app.cycle() - point } }
        });
        let sources = sources.collect();
        let threshold = platform.threshold_units().0 as f64;
        World {
            sources,
            bandwidth: platform.bandwidth.0 as f64,
            capacity: platform.capacity.0 as f64,
            threshold,
            now: 0.0,
            tick: if threshold > 0.0 { 0.0 } else { f64::INFINITY },
            draining: true,
            held: 0.0,
            idle: 0.0,
            quiet: 0.0,
            area: 0.0,
        }
    }

    fn run(mut self, length: f64, rng: &mut Rng) -> [f64; 3] {
        while self.now < length {
            let (who, end) = self.next_end();
            let next = end.min(self.tick).min(length);
            self.flow(next - self.now);
            self.now = next;
            if self.now >= self.tick {
                self.draining = self.held >= self.threshold || rng.chance(RESTLESS);
                self.tick += 1.0;
            }
            if self.now >= end {
                self.sources[who].turn(rng);
            }
            while self.held > self.capacity * (1.0 + 1e-12) + 1e-9 {
                self.stop();
            }
        }
        [self.idle / self.now, self.quiet / self.now, self.area / self.now]
    }

    fn next_end(&self) -> (usize, f64) {
        let ends = self.sources.iter().enumerate().map(|(i, source)| (i, source.until));
        ends.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY))
    }

    /// Advances by `time` with constant rates.
    fn flow(&mut self, time: f64) {
        let rate = |route| -> f64 {
            let of = self.sources.iter().filter(|s| s.bursting && s.app.effective_route() == route);
            of.map(|s| s.app.b.0 as f64).sum()
        };
        let free = (self.bandwidth - rate(Route::Direct)).max(0.0);
        let overflow = rate(Route::Overflow);
        let arrives = rate(Route::Buffer) + (overflow - free).max(0.0);
        let leaves = if self.draining { (free - overflow).max(0.0) } else { 0.0 };
        let net = arrives - leaves;
        // The time until the buffer is empty, if it becomes empty.
        let busy = if net < 0.0 { (self.held / -net).min(time) } else { time };
        let after = if net < 0.0 && busy < time { 0.0 } else { (self.held + net * time).max(0.0) };
        self.area += (self.held + after) / 2.0 * busy;
        self.quiet += if net < 0.0 { time - busy } else { time };
        self.held = after;
    }

    /// All applications stall for one time unit while the buffer drains.
    fn stop(&mut self) {
        self.area += self.capacity;
        self.idle += 1.0;
        self.now += 1.0;
        self.tick += 1.0;
        self.held = (self.held - self.bandwidth).max(0.0);
        self.sources.iter_mut().for_each(|source| source.until += 1.0);
    }
}
