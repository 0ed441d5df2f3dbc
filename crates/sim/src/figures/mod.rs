//! Reproduces the figures of the five papers with the daemon's own policies, and compares them with the
//! papers' numbers.
//!
//! The devices come from one documented file that was fitted to the papers' characterisation of their
//! hardware, and to nothing else. Each figure lists its other assumptions in its notes.

mod overhead;
mod sizing;
mod ssdup;
mod tapp;
mod themis;
mod trio;

use forebay_policy::device::Device;
use serde::Serialize;

/// Common settings of all figures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Less data and fewer repetitions.
    pub quick: bool,
    /// Seed of everything random.
    pub seed: u64,
    /// A storage target as in TRIO's Fig. 1.
    pub ost: Device,
    /// A disk with a queue as in SSDUP's Fig. 2.
    pub hdd: Device,
    /// CPU time of this process in seconds, for the one figure that measures it.
    pub clock: fn() -> f64,
}

impl Settings {
    /// Chooses by the `quick` setting.
    fn pick<T>(&self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// One of the five papers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// Sizing burst buffers.
    Sizing,
    /// ThemisIO: sharing.
    Themis,
    /// TRIO: draining.
    Trio,
    /// SSDUP: routing.
    Ssdup,
    /// TAPP-IO: placement.
    Tapp,
}

impl Paper {
    /// All papers.
    pub const ALL: [Paper; 5] = [Paper::Sizing, Paper::Themis, Paper::Trio, Paper::Ssdup, Paper::Tapp];

    /// Its name on the command line.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Paper::Sizing => "sizing",
            Paper::Themis => "themis",
            Paper::Trio => "trio",
            Paper::Ssdup => "ssdup",
            Paper::Tapp => "tapp",
        }
    }

    /// Its name and subject.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Paper::Sizing => "Sizing: how large a burst buffer must be",
            Paper::Themis => "ThemisIO: sharing a burst buffer by policy",
            Paper::Trio => "TRIO: draining in an order that suits the targets",
            Paper::Ssdup => "SSDUP: buffering what would make disks seek",
            Paper::Tapp => "TAPP-IO: placing files on the least loaded paths",
        }
    }
}

/// How a line is drawn.
#[derive(Clone, PartialEq, Debug)]
pub enum Style {
    /// As a line.
    Line,
    /// As a broken line.
    Dashed,
    /// As points.
    Dots,
    /// As bars.
    Bars,
    /// As a line within low and high edges.
    Ribbon(Vec<(f64, f64)>),
}

/// One line of a panel.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// One picture of a figure.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Panel {
    /// What it shows.
    pub title: String,
    /// Label of the x axis.
    pub x: String,
    /// Label of the y axis.
    pub y: String,
    /// Names of the positions 0, 1, … on the x axis, where these are not numbers.
    pub names: Vec<String>,
    /// Whether y values are shares, shown as percentages.
    pub percent: bool,
    /// The same for the x axis.
    pub x_percent: bool,
    /// The lines.
    pub lines: Vec<Line>,
}

impl Panel {
    fn new(title: impl Into<String>, x: &str, y: &str) -> Panel {
        Panel { title: title.into(), x: x.into(), y: y.into(), ..Panel::default() }
    }

    fn named<N: ToString>(mut self, names: impl IntoIterator<Item = N>) -> Panel {
        self.names = names.into_iter().map(|name| name.to_string()).collect();
        self
    }

    fn in_percent(mut self) -> Panel {
        self.percent = true;
        self
    }

    fn with(mut self, name: impl Into<String>, style: Style, points: Vec<(f64, f64)>) -> Panel {
        self.lines.push(Line { name: name.into(), style, points });
        self
    }

    /// Adds a line with a value at each name.
    fn values(self, name: impl Into<String>, style: Style, values: &[f64]) -> Panel {
        let points = values.iter().enumerate().map(|(at, &value)| (at as f64, value)).collect();
        self.with(name, style, points)
    }
}

/// A number of a paper, and ours.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Number {
    /// What it is.
    pub what: String,
    /// The paper's, where its text gives one.
    pub paper: Option<f64>,
    /// Ours.
    pub ours: f64,
    /// Unit of both.
    pub unit: &'static str,
}

impl Number {
    /// Relative difference of ours from the paper's.
    #[must_use]
    pub fn difference(&self) -> Option<f64> {
        self.paper.filter(|&paper| paper != 0.0).map(|paper| self.ours / paper - 1.0)
    }
}

/// A claim of a paper about a figure, and whether our figure confirms it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Claim {
    /// The claim.
    pub text: String,
    /// Whether it holds for our figure.
    pub holds: bool,
    /// The numbers, or why it does not hold.
    pub detail: String,
}

/// A reproduced figure.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Drawn {
    /// Its panels.
    pub panels: Vec<Panel>,
    /// Numbers compared with the paper's.
    pub numbers: Vec<Number>,
    /// The claims.
    pub claims: Vec<Claim>,
    /// Assumptions.
    pub notes: Vec<String>,
}

impl Drawn {
    fn number(
        &mut self,
        what: impl Into<String>,
        paper: impl Into<Option<f64>>,
        ours: f64,
        unit: &'static str,
    ) {
        self.numbers.push(Number { what: what.into(), paper: paper.into(), ours, unit });
    }

    fn claim(&mut self, text: impl Into<String>, holds: bool, detail: impl Into<String>) {
        self.claim_or(text, holds, &detail.into(), "the cause is not known yet");
    }

    /// A claim with an explanation in case it does not hold.
    fn claim_or(&mut self, text: impl Into<String>, holds: bool, detail: &str, why: &str) {
        let detail = if holds { detail.to_owned() } else { format!("{detail}: {why}") };
        self.claims.push(Claim { text: text.into(), holds, detail });
    }

    fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }
}

type Result = std::result::Result<Drawn, String>;

/// A figure that can be reproduced.
#[derive(Clone, Copy)]
pub struct Figure {
    /// Its name on the command line: the paper's name and the figure's number.
    pub id: &'static str,
    /// Its paper.
    pub paper: Paper,
    /// What it shows.
    pub title: &'static str,
    make: fn(&Settings) -> Result,
}

impl Figure {
    /// Computes the figure.
    pub fn make(&self, settings: &Settings) -> Result {
        (self.make)(settings)
    }
}

const fn figure(
    id: &'static str,
    paper: Paper,
    title: &'static str,
    make: fn(&Settings) -> Result,
) -> Figure {
    Figure { id, paper, title, make }
}

/// Every figure.
pub const FIGURES: &[Figure] = &[
    figure("sizing-2", Paper::Sizing, "The exact distribution of the load against its bounds", sizing::two),
    figure("sizing-3", Paper::Sizing, "Idle time against the size of the buffer", sizing::three),
    figure("sizing-4", Paper::Sizing, "The Markov chain against discrete events", sizing::four),
    figure("sizing-5", Paper::Sizing, "Idle time against the threshold", sizing::five),
    figure("sizing-6", Paper::Sizing, "Quiet time against the threshold", sizing::six),
    figure(
        "themis-1",
        Paper::Themis,
        "Applications beside a background job, first come first served",
        themis::one,
    ),
    figure("themis-7", Paper::Themis, "Throughput of 1 to 128 servers", themis::seven),
    figure("themis-8", Paper::Themis, "Two and three jobs: size-fair, job-fair, user-fair", themis::eight),
    figure("themis-9", Paper::Themis, "Four jobs of two users: user-then-size-fair", themis::nine),
    figure("themis-10", Paper::Themis, "Eight jobs of four users in two groups", themis::ten),
    figure("themis-11", Paper::Themis, "The same as a tree of shares", themis::eleven),
    figure("themis-12", Paper::Themis, "A second job comes and goes: against GIFT and TBF", themis::twelve),
    figure("themis-13", Paper::Themis, "Applications beside a background job, size-fair", themis::thirteen),
    figure("themis-14", Paper::Themis, "Fairness over two servers by the interval λ", themis::fourteen),
    figure("trio-1", Paper::Trio, "One target with 1 to 32 writers", trio::one),
    figure("trio-t1", Paper::Trio, "Table I: three jobs together and one after the other", trio::table),
    figure("trio-3", Paper::Trio, "Processes that write to 1, 2 or 4 targets each", trio::three),
    figure("trio-6", Paper::Trio, "TRIO against direct writes, 16 processes a node", trio::six),
    figure("trio-7", Paper::Trio, "What each part of TRIO brings", trio::seven),
    figure("trio-8", Paper::Trio, "TRIO against direct writes, one process a node", trio::eight),
    figure("trio-9", Paper::Trio, "Files over 2 to 128 targets", trio::nine),
    figure("trio-10", Paper::Trio, "Average time of eight jobs of unequal size", trio::ten),
    figure("trio-11", Paper::Trio, "When each of the eight jobs is through", trio::eleven),
    figure("trio-12", Paper::Trio, "When all of the eight jobs are through", trio::twelve),
    figure("ssdup-2", Paper::Ssdup, "Two disks behind Gigabit Ethernet, by pattern", ssdup::two),
    figure("ssdup-3", Paper::Ssdup, "Offsets of 128 requests as they come", ssdup::three),
    figure("ssdup-5", Paper::Ssdup, "The same sorted, and the random factor", ssdup::five),
    figure("ssdup-8", Paper::Ssdup, "SSDUP against OrangeFS by processes", ssdup::eight),
    figure("ssdup-t1", Paper::Ssdup, "Table 1: data that is buffered", ssdup::table_one),
    figure("ssdup-9", Paper::Ssdup, "SSDUP by the disk's queue", ssdup::nine),
    figure("ssdup-10", Paper::Ssdup, "SSDUP by the size of the SSD", ssdup::ten),
    figure("ssdup-11", Paper::Ssdup, "SSDUP by the time between bursts", ssdup::eleven),
    figure("ssdup-12", Paper::Ssdup, "HPIO with and without gaps", ssdup::twelve),
    figure("ssdup-t2", Paper::Ssdup, "Table 2: what it costs", overhead::table_two),
    figure("tapp-4", Paper::Tapp, "Gain run by run, file per process", tapp::four),
    figure("tapp-5", Paper::Tapp, "Bandwidth by nodes and file size", tapp::five),
    figure("tapp-6", Paper::Tapp, "Average gain by nodes", tapp::six),
    figure("tapp-7", Paper::Tapp, "Time of an application", tapp::seven),
    figure("tapp-8", Paper::Tapp, "One shared file", tapp::eight),
    figure("tapp-9", Paper::Tapp, "S3D's checkpoints", tapp::nine),
];

/// Values separated by commas.
fn row(values: &[f64], digits: usize) -> String {
    values.iter().map(|value| format!("{value:.digits$}")).collect::<Vec<_>>().join(", ")
}

/// Shares as percentages, separated by commas.
fn percents(shares: &[f64]) -> String {
    // Adding 0.0 removes the sign of a negative zero.
    let percent = |share: &f64| format!("{:.0} %", (share * 100.0).round() + 0.0);
    shares.iter().map(percent).collect::<Vec<_>>().join(", ")
}

/// Rows of values with their names.
fn rows<'a>(
    names: impl IntoIterator<Item = &'a str>,
    lines: impl IntoIterator<Item = &'a Vec<f64>>,
    digits: usize,
) -> String {
    let rows = names.into_iter().zip(lines).map(|(name, line)| format!("{name} {}", row(line, digits)));
    rows.collect::<Vec<_>>().join("; ")
}

/// Values, each with its name.
fn each<'a>(names: impl IntoIterator<Item = &'a str>, values: &[f64], digits: usize) -> String {
    let each = names.into_iter().zip(values).map(|(name, value)| format!("{name} {value:.digits$}"));
    each.collect::<Vec<_>>().join(", ")
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// The standard deviation of values.
fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    mean(&values.iter().map(|value| (value - middle).powi(2)).collect::<Vec<_>>()).sqrt()
}
