//! Applications and the platform they run on, in model units: data in units of a chosen size, time in units of
//! a chosen length, bandwidth in data units per time unit.

use crate::Error;

/// Most states a model may have: occupancies and loads together.
pub const MAX_STATES: usize = 2_000_000;

/// An amount of data in model units; as a bandwidth, that amount per time unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Units(pub usize);

/// A probability below one.
#[derive(Clone, Copy, PartialEq, PartialOrd, Default, Debug)]
pub struct Probability(f64);

impl Probability {
    /// Accepts 0 ≤ p < 1: an application that never pauses has no bursts, and its chain may have no unique
    /// solution.
    pub fn new(p: f64) -> Result<Probability, Error> {
        if (0.0..1.0).contains(&p) { Ok(Probability(p)) } else { Err(Error::Probability(p)) }
    }

    /// The value.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

/// A share of the capacity, from 0 to 1.
#[derive(Clone, Copy, PartialEq, PartialOrd, Default, Debug)]
pub struct Fraction(f64);

impl Fraction {
    /// Accepts 0 ≤ f ≤ 1.
    pub fn new(f: f64) -> Result<Fraction, Error> {
        if (0.0..=1.0).contains(&f) { Ok(Fraction(f)) } else { Err(Error::Fraction(f)) }
    }

    /// The value.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }

    /// This share of `whole`, rounded down. Tolerates rounding errors: 0.29 of 100 is 29, although the
    /// product in floating point is slightly below.
    #[must_use]
    pub fn of(self, whole: Units) -> Units {
        Units((self.0 * whole.0 as f64 * (1.0 + 4.0 * f64::EPSILON)) as usize)
    }
}

/// How an application's data reaches the back end.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Route {
    /// To the back end within its bandwidth, the excess to the buffer.
    #[default]
    Overflow,
    /// Always through the buffer.
    Buffer,
    /// Never through the buffer; it uses the back end first.
    Direct,
}

/// The kind of an application's bursts.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Content {
    /// Writes data that must reach the back end.
    #[default]
    Write,
    /// Writes checkpoints: each burst supersedes the rest of the previous one in the buffer.
    Checkpoint,
    /// Reads, with the next bursts prefetched into the buffer.
    PrefetchedRead,
    /// Reads on demand.
    Read,
}

/// One application: in each time unit it moves `b` units with probability `p`.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct App {
    /// Its name, for display.
    pub name: String,
    /// Share of time units with I/O.
    pub p: Probability,
    /// Data moved in such a unit.
    pub b: Units,
    /// Mean time from burst to burst in time units, for the simulator; 1/p when absent.
    pub period: Option<f64>,
    /// Relative half-width of the noise on each burst and pause.
    pub jitter: f64,
    /// How its data reaches the back end.
    pub route: Route,
    /// The kind of data.
    pub content: Content,
}

impl App {
    /// An application that writes `b` with probability `p` and overflows into the buffer.
    pub fn new(name: impl Into<String>, p: f64, b: usize) -> Result<App, Error> {
        Ok(App { name: name.into(), p: Probability::new(p)?, b: Units(b), ..App::default() })
    }

    /// The route of its data in the model. Prefetching mirrors write-behind: consumed stock that is not yet
    /// replaced corresponds to written data that is not yet drained. A read on demand cannot be deferred.
    #[must_use]
    pub fn effective_route(&self) -> Route {
        match self.content {
            Content::Write | Content::Checkpoint => self.route,
            Content::PrefetchedRead => Route::Overflow,
            Content::Read => Route::Direct,
        }
    }

    /// Mean load.
    #[must_use]
    pub fn load(&self) -> f64 {
        self.p.get() * self.b.0 as f64
    }

    /// Mean time from burst to burst in time units.
    #[must_use]
    pub fn cycle(&self) -> f64 {
        self.period.unwrap_or(if self.p.get() > 0.0 { 1.0 / self.p.get() } else { f64::INFINITY })
    }
}

/// The platform: back end and buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Platform {
    /// Bandwidth of the back end.
    pub bandwidth: Units,
    /// Capacity of the buffer.
    pub capacity: Units,
    /// Below this share of the capacity the buffer does not drain; 0 drains it whenever there is bandwidth.
    pub threshold: Fraction,
}

impl Platform {
    /// The threshold in units, rounded down.
    #[must_use]
    pub fn threshold_units(&self) -> Units {
        self.threshold.of(self.capacity)
    }
}

/// The mean load of all applications.
#[must_use]
pub fn expected_load(apps: &[App]) -> f64 {
    apps.iter().map(App::load).sum()
}
