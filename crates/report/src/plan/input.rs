//! The input file of a plan, in model units or with units such as GB/s.

use crate::keys::{Amount, File, Table, Value};
use crate::quantity;
use forebay_model::Error;
use forebay_planner::{App, Content, Fraction, Platform, Probability, Route, Units, Weights, median};
use std::ops::Range;

/// The length of a time unit and the size of a data unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Scale {
    /// Seconds of a time unit.
    pub seconds: f64,
    /// Bytes of a data unit.
    pub bytes: f64,
    /// Whether the user gave a scale, or works in bare units.
    pub real: bool,
}

/// The whole plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    /// What the plan is called.
    pub title: String,
    /// The applications that share the buffer.
    pub apps: Vec<App>,
    /// Bandwidth, capacity and threshold.
    pub platform: Platform,
    /// What a unit is.
    pub scale: Scale,
    /// What the buffer takes per time unit, if that is bounded.
    pub buffer_bandwidth: Option<Units>,
    /// Share of time in which applications may be blocked.
    pub target_idle: f64,
    /// How idle and quiet time count for the recommended threshold.
    pub weights: Weights,
    /// Price of a terabyte of the buffer.
    pub price_per_tb: Option<f64>,
    /// How often the whole capacity can be written before the devices wear out.
    pub endurance: Option<f64>,
    /// Number of separate buffers to compare with one.
    pub buffers: usize,
    /// Values that were rounded to whole units.
    pub notes: Vec<String>,
}

/// Bandwidth in units if only values with units are given: fine enough that rounding costs at most half a
/// percent.
const UNITS_PER_BANDWIDTH: f64 = 100.0;
const TARGET_IDLE: f64 = 0.01;
/// Larger values are rejected: no model could be built.
const MOST_UNITS: f64 = 1e9;

/// An application before the size of a unit is known.
struct Draft {
    app: App,
    span: Range<usize>,
    key: String,
    /// Rate, burst and period in bytes and seconds.
    human: Option<(f64, f64, f64)>,
    /// The rate before it was rounded to whole units.
    exact: f64,
}

/// Converts amounts to whole units, and records the rounding.
struct Ruler {
    scale: Scale,
    /// Whether bytes can be converted to units.
    known: bool,
    notes: Vec<String>,
}

impl Ruler {
    /// Takes the units of the user, or the usual burst and a hundredth of what the bandwidth moves in it.
    fn of(unit: (Option<f64>, Option<f64>), bandwidth: &Amount, drafts: &[Draft]) -> Ruler {
        let bursts: Vec<f64> = drafts.iter().filter_map(|d| d.human.map(|h| h.1)).collect();
        let seconds = unit.0.unwrap_or(if bursts.is_empty() { 1.0 } else { median(&bursts) });
        let derived = match bandwidth {
            Amount::Human(rate) => Some(rate * seconds / UNITS_PER_BANDWIDTH).filter(|bytes| *bytes > 0.0),
            Amount::Units(_) => None,
        };
        let bytes = unit.1.or(derived);
        let real = unit.0.is_some() || bytes.is_some();
        Ruler {
            scale: Scale { seconds, bytes: bytes.unwrap_or(1e6), real },
            known: bytes.is_some(),
            notes: Vec::new(),
        }
    }

    /// `amount` in whole units; `per` is 1 for a size and the time unit for a rate.
    fn whole(&mut self, value: &Value<'_>, amount: &Amount, per: f64) -> Result<Units, Error> {
        let units = match amount {
            Amount::Units(n) => *n,
            Amount::Human(_) if !self.known => {
                return Err(value.wrong("a value in bytes needs a scale: give unit.mb"));
            }
            Amount::Human(n) => n * per / self.scale.bytes,
        };
        if units > MOST_UNITS {
            return Err(value.wrong(format!("{units:.0} units are too many: choose a larger unit.mb")));
        }
        Ok(self.round(&value.key, units))
    }

    fn round(&mut self, name: &str, units: f64) -> Units {
        if (units - units.round()).abs() > 1e-9 * units.max(1.0) {
            self.notes.push(format!("{name}: {units:.3} units, rounded to {}", units.round()));
        }
        Units(units.round() as usize)
    }

    /// Converts an application to units.
    fn convert(&mut self, file: &File<'_>, draft: Draft) -> Result<App, Error> {
        let Draft { mut app, span, key, human, mut exact } = draft;
        if let Some((rate, _, period)) = human {
            if !self.known {
                let help = "a rate in bytes needs a scale: give bandwidth in bytes as well (bandwidth = \"40 GB/s\"), or unit.mb";
                return Err(file.wrong(&span, &key, help));
            }
            exact = rate * self.scale.seconds / self.scale.bytes;
            app.period = Some(period / self.scale.seconds);
        }
        if exact > MOST_UNITS {
            let text = format!("a rate of {exact:.0} units is too high: choose a larger unit.mb");
            return Err(file.wrong(&span, &key, text));
        }
        app.b = self.round(&app.name, exact);
        Ok(app)
    }
}

/// Parses a plan; `name` is the file name for messages.
pub fn read(name: &str, text: &str) -> Result<Plan, Error> {
    let file = File { name, text };
    let mut top = Table::top(&file)?;
    let title = top.take("title").map(|v| v.text().map(str::to_owned)).transpose()?;
    let bandwidth = top.take("bandwidth").ok_or_else(|| {
        top.missing("bandwidth", "how much the back end takes per time unit, such as 100 or \"40 GB/s\"")
    })?;
    let capacity = top.take("capacity");
    let threshold = top.take("threshold").map(|v| v.share()).transpose()?.unwrap_or(0.0);
    let target_idle = top.take("target_idle").map(|v| v.share()).transpose()?.unwrap_or(TARGET_IDLE);
    let buffer_bandwidth = top.take("buffer_bandwidth");
    let (buffers, unit, weights) = (buffers(&mut top)?, unit(&mut top)?, weights(&mut top)?);
    let (price_per_tb, endurance) = cost(&mut top)?;
    let drafts = match top.take("app") {
        Some(apps) => apps.tables("application")?.into_iter().map(draft).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    top.finish("title, bandwidth, capacity, threshold, target_idle, buffer_bandwidth, buffers, unit, weights, cost, app")?;

    let amount = bandwidth.units_or(quantity::rate)?;
    let mut ruler = Ruler::of(unit, &amount, &drafts);
    let seconds = ruler.scale.seconds;
    let drain = ruler.whole(&bandwidth, &amount, seconds)?;
    if drain == Units(0) {
        let help = "less than half a unit per time unit, so nothing would ever drain: give at least 1 unit";
        return Err(bandwidth.wrong(help));
    }
    let capacity = match capacity {
        Some(v) => ruler.whole(&v, &v.units_or(quantity::size)?, 1.0)?,
        None => Units(0),
    };
    let buffer_bandwidth = match buffer_bandwidth {
        Some(v) => Some(ruler.whole(&v, &v.units_or(quantity::rate)?, seconds)?),
        None => None,
    };
    let apps = drafts.into_iter().map(|draft| ruler.convert(&file, draft)).collect::<Result<_, _>>()?;
    let threshold = Fraction::new(threshold).map_err(|e| file.wrong(&(0..0), "threshold", e))?;
    Ok(Plan {
        title: title.unwrap_or_else(|| name.to_owned()),
        apps,
        platform: Platform { bandwidth: drain, capacity, threshold },
        scale: ruler.scale,
        buffer_bandwidth,
        target_idle,
        weights,
        price_per_tb,
        endurance,
        buffers,
        notes: ruler.notes,
    })
}

fn buffers(top: &mut Table<'_>) -> Result<usize, Error> {
    let Some(value) = top.take("buffers") else { return Ok(1) };
    match value.amount()? {
        n if n >= 1.0 && n.fract() == 0.0 && n <= 1024.0 => Ok(n as usize),
        n => Err(value.wrong(format!("{n} is not a number of buffers from 1 to 1024"))),
    }
}

/// Seconds and bytes of a unit.
fn unit(top: &mut Table<'_>) -> Result<(Option<f64>, Option<f64>), Error> {
    let Some(value) = top.take("unit") else { return Ok((None, None)) };
    let mut table = value.table("unit.")?;
    let seconds = table.take("seconds").map(|v| v.above_zero()).transpose()?;
    let bytes = table.take("mb").map(|v| v.above_zero()).transpose()?.map(|mb| mb * 1e6);
    table.finish("seconds, mb")?;
    Ok((seconds, bytes))
}

fn weights(top: &mut Table<'_>) -> Result<Weights, Error> {
    let mut weights = Weights::default();
    if let Some(value) = top.take("weights") {
        let mut table = value.table("weights.")?;
        weights.idle = table.take("idle").map(|v| v.amount()).transpose()?.unwrap_or(weights.idle);
        weights.quiet = table.take("quiet").map(|v| v.amount()).transpose()?.unwrap_or(weights.quiet);
        table.finish("idle, quiet")?;
    }
    Ok(weights)
}

/// Price and endurance.
fn cost(top: &mut Table<'_>) -> Result<(Option<f64>, Option<f64>), Error> {
    let Some(value) = top.take("cost") else { return Ok((None, None)) };
    let mut table = value.table("cost.")?;
    let price = table.take("price_per_tb").map(|v| v.amount()).transpose()?;
    let endurance = table.take("endurance").map(|v| v.amount()).transpose()?;
    table.finish("price_per_tb, endurance")?;
    Ok((price, endurance))
}

fn draft(mut table: Table<'_>) -> Result<Draft, Error> {
    let mut app = App::default();
    let key = table.path.trim_end_matches(": ").to_owned();
    app.name = match table.take("name") {
        Some(v) => v.text()?.to_owned(),
        None => key.clone(),
    };
    way(&mut table, &mut app)?;
    if let Some(v) = table.take("jitter") {
        app.jitter = v.share()?;
    }
    let mut exact = 0.0;
    let human = match table.take("rate") {
        None => {
            let p = table.take("p").ok_or_else(|| {
                table.missing("p", "the share of time units with I/O (or rate, burst and every)")
            })?;
            app.p = Probability::new(p.number()?).map_err(|e| p.wrong(e))?;
            let b = table
                .take("b")
                .ok_or_else(|| table.missing("b", "the units moved in a time unit with I/O"))?;
            exact = b.amount()?;
            app.period = table.take("period").map(|v| v.above_zero()).transpose()?;
            None
        }
        Some(rate) => {
            let rate = rate.human(quantity::rate)?;
            let burst = table
                .take("burst")
                .ok_or_else(|| table.missing("burst", "how long a burst lasts, such as \"30 s\""))?;
            let every = table
                .take("every")
                .ok_or_else(|| table.missing("every", "the time from burst to burst, such as \"10 min\""))?;
            let (length, period) = (burst.human(quantity::seconds)?, every.human(quantity::seconds)?);
            if length >= period {
                return Err(burst.wrong(format!(
                    "a burst of {length} s does not end before the next one begins, after {period} s"
                )));
            }
            app.p = Probability::new(length / period).map_err(|e| burst.wrong(e))?;
            Some((rate, length, period))
        }
    };
    let span = table.span.clone();
    table.finish("name, p, b, period, jitter, rate, burst, every, route, content, prefetch")?;
    Ok(Draft { app, span, key, human, exact })
}

/// Route and content.
fn way(table: &mut Table<'_>, app: &mut App) -> Result<(), Error> {
    if let Some(v) = table.take("route") {
        app.route = match v.text()? {
            "overflow" => Route::Overflow,
            "buffer" => Route::Buffer,
            "direct" => Route::Direct,
            other => return Err(v.wrong(format!("\"{other}\" is not a route: overflow, buffer or direct"))),
        };
    }
    if let Some(v) = table.take("content") {
        app.content = match v.text()? {
            "write" => Content::Write,
            "checkpoint" => Content::Checkpoint,
            "read" => Content::Read,
            other => return Err(v.wrong(format!("\"{other}\" is not a content: write, checkpoint or read"))),
        };
    }
    if let Some(v) = table.take("prefetch") {
        match (v.truth()?, app.content) {
            (true, Content::Read) => app.content = Content::PrefetchedRead,
            (true, _) => return Err(v.wrong("only reads can be fetched ahead: add content = \"read\"")),
            (false, _) => {}
        }
    }
    Ok(())
}
