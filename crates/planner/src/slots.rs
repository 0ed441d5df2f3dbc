//! Monte Carlo simulation of the chain: whole time units, an independent draw for every application in each.
//!
//! It must agree with the chain where both apply, and covers cases where one occupancy number is not enough:
//! checkpoints that the next one supersedes, and separate space for prefetched data and stored writes.

use crate::steps::RESTLESS;
use crate::{App, Content, Error, Estimate, Fraction, Observed, Platform, Rng, Route};

/// Extent of the simulation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Throws {
    /// Independent runs.
    pub runs: usize,
    /// Time units that count in each run.
    pub units: usize,
    /// Time units before them, to forget the empty start.
    pub warm_up: usize,
    /// Share of the capacity reserved for prefetching; all space is shared when absent.
    pub reserve: Option<Fraction>,
}

impl Default for Throws {
    fn default() -> Throws {
        Throws { runs: 15, units: 20_000, warm_up: 2_000, reserve: None }
    }
}

/// Results.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Thrown {
    /// Shares of time and mean content, as in the other simulator.
    pub observed: Observed,
    /// Share of stored data that was dropped because newer data superseded it.
    pub dropped: Estimate,
}

/// Runs the simulation, with checkpoints that supersede each other.
pub fn throw(apps: &[App], platform: &Platform, throws: &Throws, rng: &mut Rng) -> Result<Thrown, Error> {
    if apps.is_empty() {
        return Err(Error::NoApplication);
    }
    if platform.bandwidth.0 == 0 {
        return Err(Error::NoBandwidth);
    }
    let (mut shares, mut dropped) = (Vec::new(), Vec::new());
    for _ in 0..throws.runs {
        let mut table = Table::new(apps, platform, throws.reserve);
        for _ in 0..throws.warm_up {
            table.unit(rng);
        }
        table.count = Count::default();
        for _ in 0..throws.units {
            table.unit(rng);
        }
        let n = throws.units as f64;
        shares.push([table.count.idle / n, table.count.quiet / n, table.count.area / n]);
        dropped.push(if table.count.stored > 0.0 { table.count.dropped / table.count.stored } else { 0.0 });
    }
    Ok(Thrown { observed: Observed::of(&shares), dropped: Estimate::of(&dropped) })
}

#[derive(Default)]
struct Count {
    idle: f64,
    quiet: f64,
    area: f64,
    stored: f64,
    dropped: f64,
}

struct Table<'a> {
    apps: &'a [App],
    active: Vec<bool>,
    /// Data of each application that the buffer has to move: writes to drain, stock to prefetch.
    held: Vec<f64>,
    bandwidth: f64,
    capacity: f64,
    threshold: f64,
    reserve: Option<f64>,
    count: Count,
}

impl<'a> Table<'a> {
    fn new(apps: &'a [App], platform: &Platform, reserve: Option<Fraction>) -> Table<'a> {
        let capacity = platform.capacity.0 as f64;
        Table {
            apps,
            active: vec![false; apps.len()],
            held: vec![0.0; apps.len()],
            bandwidth: platform.bandwidth.0 as f64,
            capacity,
            threshold: platform.threshold_units().0 as f64,
            reserve: reserve.map(|share| share.get() * capacity),
            count: Count::default(),
        }
    }

    fn total(&self) -> f64 {
        self.held.iter().sum()
    }

    fn overflows(&self) -> bool {
        const ROUNDING: f64 = 1e-6;
        let reads =
            self.apps.iter().zip(&self.held).filter(|(app, _)| app.content == Content::PrefetchedRead);
        let ahead: f64 = reads.map(|(_, held)| held).sum();
        match self.reserve {
            None => self.total() > self.capacity + ROUNDING,
            Some(room) => ahead > room + ROUNDING || self.total() - ahead > self.capacity - room + ROUNDING,
        }
    }

    /// Removes `amount`, from all applications in proportion.
    fn drain(&mut self, amount: f64) {
        let total = self.total();
        let keep = if amount >= total { 0.0 } else { 1.0 - amount / total };
        self.held.iter_mut().for_each(|held| *held *= keep);
    }

    fn unit(&mut self, rng: &mut Rng) {
        let before = self.total();
        if self.overflows() {
            self.count.idle += 1.0;
            self.count.area += before;
            self.drain(self.bandwidth);
            return;
        }
        for i in 0..self.apps.len() {
            self.active[i] = rng.chance(self.apps[i].p.get());
            if self.active[i] && self.apps[i].content == Content::Checkpoint {
                self.count.dropped += self.held[i];
                self.held[i] = 0.0;
            }
        }
        let load = |route| -> f64 {
            let of =
                self.apps.iter().zip(&self.active).filter(|(app, on)| **on && app.effective_route() == route);
            of.map(|(app, _)| app.b.0 as f64).sum()
        };
        let free = (self.bandwidth - load(Route::Direct)).max(0.0);
        let overflow = load(Route::Overflow);
        let excess = if overflow > free { (overflow - free) / overflow } else { 0.0 };
        // Decided on the occupancy at the start of the unit, as in the chain.
        let draining = before >= self.threshold || rng.chance(RESTLESS);
        for (i, app) in self.apps.iter().enumerate().filter(|(i, _)| self.active[*i]) {
            let share = match app.effective_route() {
                Route::Buffer => 1.0,
                Route::Overflow => excess,
                Route::Direct => 0.0,
            };
            let stored = share * app.b.0 as f64;
            self.held[i] += stored;
            self.count.stored += stored;
        }
        if draining {
            self.drain((free - overflow).max(0.0));
        }
        self.count.area += before;
        if self.total() >= before - 1e-9 {
            self.count.quiet += 1.0;
        }
    }
}
