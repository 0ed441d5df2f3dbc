//! The plan's input: a TOML file read key by key, so that every complaint names file, line and key.

use super::quantity;
use forebay_model::{Error, ErrorKind};
use forebay_planner::{App, Content, Fraction, Platform, Probability, Route, Units, Weights, median};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The length of a time unit and the size of a data unit.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Scale {
    pub(super) seconds: f64,
    pub(super) bytes: f64,
    /// Whether the user said so, or works in bare units.
    pub(super) real: bool,
}

/// Everything a plan needs.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Plan {
    pub(super) title: String,
    pub(super) apps: Vec<App>,
    pub(super) platform: Platform,
    pub(super) scale: Scale,
    pub(super) buffer_bandwidth: Option<Units>,
    pub(super) target_idle: f64,
    pub(super) weights: Weights,
    pub(super) price_per_tb: Option<f64>,
    pub(super) endurance: Option<f64>,
    pub(super) buffers: usize,
    /// What was rounded on the way into whole units.
    pub(super) notes: Vec<String>,
}

/// Bandwidth in units when only human units are given: fine enough that rounding costs at most half a percent.
const UNITS_PER_BANDWIDTH: f64 = 100.0;
pub(super) const TARGET_IDLE: f64 = 0.01;

/// A place in the input, for messages.
struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl File<'_> {
    fn wrong(&self, span: &Range<usize>, key: &str, text: impl std::fmt::Display) -> Error {
        let line = 1 + self.text[..span.start.min(self.text.len())].matches('\n').count();
        Error::new(ErrorKind::Invalid, format!("{}:{line}: {key}: {text}", self.name))
    }
}

/// A table whose keys are taken out one by one; what is left at the end was a mistake.
struct Table<'a> {
    file: &'a File<'a>,
    path: String,
    span: Range<usize>,
    left: DeTable<'a>,
}

/// A value with what is needed to complain about it.
struct Value<'a> {
    file: &'a File<'a>,
    key: String,
    value: Spanned<DeValue<'a>>,
}

impl<'a> Table<'a> {
    fn take(&mut self, key: &str) -> Option<Value<'a>> {
        let value = self.left.remove(key)?;
        Some(Value { file: self.file, key: format!("{}{key}", self.path), value })
    }

    fn missing(&self, key: &str, help: &str) -> Error {
        self.file.wrong(&self.span, &format!("{}{key}", self.path), format!("missing: {help}"))
    }

    fn finish(self, known: &str) -> Result<(), Error> {
        match self.left.into_iter().next() {
            None => Ok(()),
            Some((key, _)) => {
                let name = format!("{}{}", self.path, key.get_ref());
                Err(self.file.wrong(&key.span(), &name, format!("not a known key: known here are {known}")))
            }
        }
    }
}

/// A number in model units or a text in human units.
enum Amount {
    Units(f64),
    Human(f64),
}

impl<'a> Value<'a> {
    fn wrong(&self, text: impl std::fmt::Display) -> Error {
        self.file.wrong(&self.value.span(), &self.key, text)
    }

    fn number(&self) -> Result<f64, Error> {
        let digits = match self.value.get_ref() {
            DeValue::Integer(n) => n.to_string().replace('_', ""),
            DeValue::Float(n) => n.as_str().replace('_', ""),
            other => return Err(self.wrong(format!("a number is needed, not {}", kind(other)))),
        };
        match digits.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(n),
            _ => Err(self.wrong(format!("{digits} is not a finite number"))),
        }
    }

    /// A number that is not negative.
    fn amount(&self) -> Result<f64, Error> {
        let n = self.number()?;
        if n < 0.0 { Err(self.wrong(format!("{n} is negative"))) } else { Ok(n) }
    }

    fn text(&self) -> Result<&str, Error> {
        match self.value.get_ref() {
            DeValue::String(text) => Ok(text),
            other => Err(self.wrong(format!("a text is needed, not {}", kind(other)))),
        }
    }

    fn truth(&self) -> Result<bool, Error> {
        match self.value.get_ref() {
            DeValue::Boolean(b) => Ok(*b),
            other => Err(self.wrong(format!("true or false is needed, not {}", kind(other)))),
        }
    }

    fn share(&self) -> Result<f64, Error> {
        if let DeValue::String(text) = self.value.get_ref() {
            return quantity::share(text).map_err(|e| self.wrong(e));
        }
        let n = self.number()?;
        if (0.0..=1.0).contains(&n) { Ok(n) } else { Err(self.wrong(format!("{n} is not between 0 and 1"))) }
    }

    fn human(&self, read: fn(&str) -> Result<f64, String>) -> Result<f64, Error> {
        read(self.text()?).map_err(|e| self.wrong(e))
    }

    fn units_or(&self, read: fn(&str) -> Result<f64, String>) -> Result<Amount, Error> {
        match self.value.get_ref() {
            DeValue::String(_) => Ok(Amount::Human(self.human(read)?)),
            _ => Ok(Amount::Units(self.amount()?)),
        }
    }

    fn table(self, path: &str) -> Result<Table<'a>, Error> {
        let span = self.value.span();
        match self.value.into_inner() {
            DeValue::Table(left) => Ok(Table { file: self.file, path: path.to_owned(), span, left }),
            other => {
                Err(self.file.wrong(&span, &self.key, format!("a table is needed, not {}", kind(&other))))
            }
        }
    }

    fn tables(self) -> Result<Vec<Table<'a>>, Error> {
        let (file, key, span) = (self.file, self.key, self.value.span());
        let DeValue::Array(items) = self.value.into_inner() else {
            return Err(file.wrong(&span, &key, "write each application as a table headed [[app]]"));
        };
        items
            .into_iter()
            .enumerate()
            .map(|(i, value)| {
                Value { file, key: format!("app {}", i + 1), value }.table(&format!("app {}: ", i + 1))
            })
            .collect()
    }
}

fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// An application before it is known how large a unit is.
struct Draft {
    app: App,
    span: Range<usize>,
    key: String,
    /// Rate, burst and period in bytes and seconds.
    human: Option<(f64, f64, f64)>,
    /// The rate before it was rounded to whole units.
    exact: f64,
}

/// Reads a plan from the text of `name`.
pub(super) fn read(name: &str, text: &str) -> Result<Plan, Error> {
    let file = File { name, text };
    let parsed = DeTable::parse(text)
        .map_err(|e| file.wrong(&e.span().unwrap_or(0..0), "the file is not TOML", e.message()))?;
    let mut top = Table { file: &file, path: String::new(), span: 0..0, left: parsed.into_inner() };
    let title = top.take("title").map(|v| v.text().map(str::to_owned)).transpose()?;
    let bandwidth = top.take("bandwidth").ok_or_else(|| {
        top.missing("bandwidth", "how much the back end takes per time unit, such as 100 or \"40 GB/s\"")
    })?;
    let capacity = top.take("capacity");
    let threshold = top.take("threshold").map(|v| v.share()).transpose()?.unwrap_or(0.0);
    let target_idle = top.take("target_idle").map(|v| v.share()).transpose()?.unwrap_or(TARGET_IDLE);
    let buffer_bandwidth = top.take("buffer_bandwidth");
    let buffers = match top.take("buffers") {
        None => 1,
        Some(v) => match v.amount()? {
            n if n >= 1.0 && n.fract() == 0.0 && n <= 1024.0 => n as usize,
            n => return Err(v.wrong(format!("{n} is not a number of buffers from 1 to 1024"))),
        },
    };
    let (mut unit_seconds, mut unit_bytes) = (None, None);
    if let Some(unit) = top.take("unit") {
        let mut unit = unit.table("unit.")?;
        unit_seconds = unit.take("seconds").map(|v| above_zero(&v)).transpose()?;
        unit_bytes = unit.take("mb").map(|v| above_zero(&v)).transpose()?.map(|mb| mb * 1e6);
        unit.finish("seconds, mb")?;
    }
    let mut weights = Weights::default();
    if let Some(table) = top.take("weights") {
        let mut table = table.table("weights.")?;
        weights.idle = table.take("idle").map(|v| v.amount()).transpose()?.unwrap_or(weights.idle);
        weights.quiet = table.take("quiet").map(|v| v.amount()).transpose()?.unwrap_or(weights.quiet);
        table.finish("idle, quiet")?;
    }
    let (mut price_per_tb, mut endurance) = (None, None);
    if let Some(table) = top.take("cost") {
        let mut table = table.table("cost.")?;
        price_per_tb = table.take("price_per_tb").map(|v| v.amount()).transpose()?;
        endurance = table.take("endurance").map(|v| v.amount()).transpose()?;
        table.finish("price_per_tb, endurance")?;
    }
    let drafts = match top.take("app") {
        Some(apps) => apps.tables()?.into_iter().map(draft).collect::<Result<Vec<_>, _>>()?,
        None => Vec::new(),
    };
    top.finish("title, bandwidth, capacity, threshold, target_idle, buffer_bandwidth, buffers, unit, weights, cost, app")?;

    let real = unit_seconds.is_some() || unit_bytes.is_some() || drafts.iter().any(|d| d.human.is_some());
    let bursts: Vec<f64> = drafts.iter().filter_map(|d| d.human.map(|h| h.1)).collect();
    let seconds = unit_seconds.unwrap_or(if bursts.is_empty() { 1.0 } else { median(&bursts) });
    let amount = bandwidth.units_or(quantity::rate)?;
    let derived = match amount {
        Amount::Human(rate) => Some(rate * seconds / UNITS_PER_BANDWIDTH).filter(|bytes| *bytes > 0.0),
        Amount::Units(_) => None,
    };
    let scale =
        Scale { seconds, bytes: unit_bytes.or(derived).unwrap_or(1e6), real: real || derived.is_some() };
    let known = unit_bytes.is_some() || derived.is_some();
    if let Some(draft) = drafts.iter().find(|d| d.human.is_some() && !known) {
        let help = "a rate in bytes needs a scale: give bandwidth in bytes as well (bandwidth = \"40 GB/s\"), or unit.mb";
        return Err(file.wrong(&draft.span, &draft.key, help));
    }
    let mut notes = Vec::new();
    let mut whole = |value: &Value<'_>, amount: Amount, per: f64| -> Result<Units, Error> {
        let units = match amount {
            Amount::Units(n) => n,
            Amount::Human(_) if !known => {
                return Err(value.wrong("a value in bytes needs a scale: give unit.mb"));
            }
            Amount::Human(n) => n * per / scale.bytes,
        };
        if units > 1e9 {
            return Err(value.wrong(format!("{units:.0} units are too many: choose a larger unit.mb")));
        }
        if (units - units.round()).abs() > 1e-9 * units.max(1.0) {
            notes.push(format!("{} = {units:.3} units, rounded to {}", value.key, units.round()));
        }
        Ok(Units(units.round() as usize))
    };
    let drain = whole(&bandwidth, amount, seconds)?;
    if drain == Units(0) {
        return Err(bandwidth.wrong("the back end takes less than half a unit per time unit, so nothing would ever drain: give at least 1 unit"));
    }
    let capacity = match capacity {
        Some(v) => whole(&v, v.units_or(quantity::size)?, 1.0)?,
        None => Units(0),
    };
    let buffer_bandwidth = match buffer_bandwidth {
        Some(v) => Some(whole(&v, v.units_or(quantity::rate)?, seconds)?),
        None => None,
    };
    let apps =
        drafts.into_iter().map(|draft| settle(&file, draft, &scale, &mut notes)).collect::<Result<_, _>>()?;
    let threshold = Fraction::new(threshold).map_err(|e| file.wrong(&(0..0), "threshold", e))?;
    Ok(Plan {
        title: title.unwrap_or_else(|| name.to_owned()),
        apps,
        platform: Platform { bandwidth: drain, capacity, threshold },
        scale,
        buffer_bandwidth,
        target_idle,
        weights,
        price_per_tb,
        endurance,
        buffers,
        notes,
    })
}

fn above_zero(value: &Value<'_>) -> Result<f64, Error> {
    let n = value.amount()?;
    if n > 0.0 { Ok(n) } else { Err(value.wrong("0 is not the size of a unit")) }
}

fn draft(mut table: Table<'_>) -> Result<Draft, Error> {
    let mut app = App::default();
    let key = table.path.trim_end_matches(": ").to_owned();
    app.name = match table.take("name") {
        Some(v) => v.text()?.to_owned(),
        None => key.clone(),
    };
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
            app.period = table.take("period").map(|v| above_zero(&v)).transpose()?;
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

/// Puts an application into units.
fn settle(file: &File<'_>, draft: Draft, scale: &Scale, notes: &mut Vec<String>) -> Result<App, Error> {
    let Draft { mut app, span, key, human, mut exact } = draft;
    if let Some((rate, _, period)) = human {
        exact = rate * scale.seconds / scale.bytes;
        app.period = Some(period / scale.seconds);
    }
    if exact > 1e9 {
        let text = format!("a rate of {exact:.0} units is too high: choose a larger unit.mb");
        return Err(file.wrong(&span, &key, text));
    }
    if (exact - exact.round()).abs() > 1e-9 * exact.max(1.0) {
        notes.push(format!("{}: a rate of {exact:.3} units, rounded to {}", app.name, exact.round()));
    }
    app.b = Units(exact.round() as usize);
    Ok(app)
}
