//! Checks of a scenario: ratios of values measured in one run.

use super::report::Row;
use super::scenario::{Pattern, Point};
use super::variant::{Alpha, Variant};
use forebay_policy::arbiter::Choice;
use forebay_policy::drain::Order;
use serde::Serialize;
use std::fmt;

/// The share of the targets' best bandwidth that the drain should reach.
const BEST: f64 = 0.95;
/// The share that must remain when α is learnt.
const LEARNT: f64 = 0.95;
/// Upper limit for the average job time of smallest first, relative to first come, first served.
const SJF: f64 = 0.57;
/// A ratio up to this counts as equal.
const SAME: f64 = 1.05;
/// Jobs that are drained within this share of the total time count as early.
const EARLY: f64 = 0.8;

/// A check and its result.
#[derive(Serialize)]
pub(super) struct Bar {
    what: String,
    value: f64,
    /// The limit; absent if the value is only reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    bar: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holds: Option<bool>,
}

impl Bar {
    fn least(what: String, value: f64, least: f64) -> Bar {
        Bar { what, value, bar: Some(format!("≥ {least}")), holds: Some(value >= least) }
    }

    fn most(what: String, value: f64, most: f64) -> Bar {
        Bar { what, value, bar: Some(format!("≤ {most}")), holds: Some(value <= most) }
    }

    fn reported(what: String, value: f64) -> Bar {
        Bar { what, value, bar: None, holds: None }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.holds {
            Some(true) => "holds",
            Some(false) => "does not hold",
            None => "is",
        };
        let bar = self.bar.as_ref().map_or(String::new(), |bar| format!(" ({bar})"));
        write!(f, "{mark}: {} {:.3}{bar}", self.what, self.value)
    }
}

/// The rows of one pattern.
struct Rows<'a> {
    rows: &'a [Row],
    pattern: Pattern,
}

impl Rows<'_> {
    fn of(&self, way: impl Fn(&Variant) -> bool) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.point.pattern == self.pattern && way(&row.variant)).collect()
    }

    /// The mean ratio of two variants over all points.
    fn ratio(&self, way: &Variant, to: &Variant, value: fn(&Row) -> f64) -> Option<f64> {
        let at = |way: &Variant, point: Point| {
            self.of(|known| known == way).into_iter().find(|row| row.point == point)
        };
        let ratios: Vec<f64> = self
            .of(|known| known == way)
            .into_iter()
            .filter_map(|row| Some(value(row) / value(at(to, row.point)?)))
            .collect();
        (!ratios.is_empty()).then(|| ratios.iter().sum::<f64>() / ratios.len() as f64)
    }

    fn plain(&self, order: Order) -> Option<Variant> {
        self.of(|way| way.is_plain(order)).first().map(|row| row.variant.clone())
    }
}

pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let mut bars = Vec::new();
    for pattern in [Pattern::Shared, Pattern::PerProcess] {
        let rows = Rows { rows, pattern };
        bandwidth(&rows, &mut bars);
        orders(&rows, &mut bars);
        learnt(&rows, &mut bars);
        jobs(&rows, &mut bars);
    }
    bars
}

fn bandwidth(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let word = rows.pattern.word();
    let Some(trio) = rows.plain(Order::Trio) else { return };
    let least = rows.of(|way| *way == trio).iter().map(|row| row.of_best).fold(f64::INFINITY, f64::min);
    bars.push(Bar::least(format!("{word}: trio's share of the targets' best"), least, BEST));
    if let Some(gain) = rows.ratio(&trio, &Variant::Direct, |row| row.bandwidth) {
        bars.push(Bar::reported(format!("{word}: trio's bandwidth to that of direct writes"), gain));
    }
}

/// The order of the variants in Fig. 7.
fn orders(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let word = rows.pattern.word();
    let mut compare = |way: Option<Variant>, to: Option<Variant>, least: Option<f64>| {
        let (Some(way), Some(to)) = (way, to) else { return };
        let Some(ratio) = rows.ratio(&way, &to, |row| row.bandwidth) else { return };
        let what = format!("{word}: bandwidth of {way} to {to}");
        bars.push(match least {
            Some(least) => Bar::least(what, ratio, least),
            None => Bar::most(what, ratio, SAME),
        });
    };
    let plain = |order| rows.plain(order);
    if plain(Order::Target).is_none() {
        return;
    }
    compare(plain(Order::Arrival), Some(Variant::Direct), None);
    compare(plain(Order::Offset), Some(Variant::Direct), Some(SAME));
    compare(plain(Order::Target), plain(Order::Offset), None);
    for other in [Order::Arrival, Order::Offset, Order::Target] {
        compare(plain(Order::Trio), plain(other), Some(1.0));
    }
}

/// The cost of learning α, relative to the best fixed α.
fn learnt(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    for row in rows.of(|way| matches!(way, Variant::Drain(way) if way.alpha == Alpha::Learnt)) {
        let Variant::Drain(way) = &row.variant else { continue };
        let same = |other: &Variant| match other {
            Variant::Drain(other) => {
                other.alpha != Alpha::Learnt && other.but_for_alpha() == way.but_for_alpha()
            }
            Variant::Direct => false,
        };
        let others = rows.of(same).into_iter().filter(|other| other.point == row.point);
        let Some(best) = others.map(|other| other.bandwidth).reduce(f64::max) else { continue };
        let what = format!("{}: bandwidth of {} to the best fixed α", rows.pattern.word(), row.variant);
        bars.push(Bar::least(what, row.bandwidth / best, LEARNT));
    }
}

/// The gain of jobs when the smallest goes first, as in Figs. 10 to 12.
fn jobs(rows: &Rows<'_>, bars: &mut Vec<Bar>) {
    let word = rows.pattern.word();
    let fcfs = rows.of(|way| matches!(way, Variant::Drain(way) if way.choice == Choice::Fcfs));
    let mut ways: Vec<&Variant> = Vec::new();
    for row in &fcfs {
        if !ways.contains(&&row.variant) {
            ways.push(&row.variant);
        }
    }
    for to in ways {
        let Variant::Drain(way) = to else { continue };
        let sjf = Variant::Drain(way.but_for_choice());
        let what = |what: &str| format!("{word}: {what} of {sjf} to {to}");
        if let Some(ratio) = rows.ratio(&sjf, to, |row| row.mean_job_seconds) {
            bars.push(Bar::most(what("average job time"), ratio, SJF));
        }
        if let Some(ratio) = rows.ratio(&sjf, to, |row| row.total_seconds) {
            bars.push(Bar::most(what("time until all is drained"), ratio, SAME));
        }
        if let Some(ratio) = rows.ratio(&sjf, &Variant::Direct, |row| row.mean_job_seconds) {
            bars.push(Bar::reported(
                format!("{word}: average job time of {sjf} to that of direct writes"),
                ratio,
            ));
        }
        let Some(row) = rows.of(|way| *way == sjf).into_iter().next_back() else { continue };
        let early = row.response_seconds.iter().map(|jobs| {
            let end = jobs.iter().copied().fold(0.0, f64::max);
            (jobs.iter().filter(|&&job| job < EARLY * end).count() as f64, jobs.len() as f64 - 1.0)
        });
        let (early, all) = early.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let what = format!(
            "{word}: jobs of {sjf}, but for the last of each run, drained before {EARLY} of its time"
        );
        bars.push(Bar::least(what, early / f64::max(all, 1.0), 1.0));
    }
}
