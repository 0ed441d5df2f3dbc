//! Profiles from records: CSV files, Darshan logs, and other samples of time, job and bytes.

use forebay_model::{Error, ErrorKind};
use forebay_planner::{App, Probability, Profile, Sample, Units, fit, median};
use forebay_report::plan::Plan;
use forebay_report::quantity;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Reads lines of `time,job,bytes`: seconds, a name, a number or a size with a unit. The first line may be a
/// header; `#` starts a comment.
pub(super) fn csv(name: &str, text: &str) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        if line.trim().is_empty()
            || line.starts_with('#')
            || (i == 0 && fields[0].eq_ignore_ascii_case("time"))
        {
            continue;
        }
        let wrong = |key: &str, text: String| invalid(format!("{name}:{}: {key}: {text}", i + 1));
        let [time, job, bytes] = fields[..] else {
            return Err(wrong("line", format!("\"{line}\" does not have the three fields time,job,bytes")));
        };
        let number = |key: &str, text: &str| match text.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(n),
            _ => Err(wrong(key, format!("\"{text}\" is not a number"))),
        };
        let amount = match bytes.chars().last() {
            Some(c) if c.is_ascii_alphabetic() => quantity::size(bytes).map_err(|e| wrong("bytes", e))?,
            _ => number("bytes", bytes)?,
        };
        if amount < 0.0 {
            return Err(wrong("bytes", format!("\"{bytes}\" is negative")));
        }
        if job.is_empty() {
            return Err(wrong("job", "the name is empty".into()));
        }
        samples.push(Sample { time: number("time", time)?, job: job.to_owned(), bytes: amount });
    }
    if samples.is_empty() {
        return Err(invalid(format!(
            "{name}:1: line: there is no record in it: write lines of time,job,bytes"
        )));
    }
    Ok(samples)
}

/// The Python script that reads binary logs with the package `darshan`. It prints a line `start,end,bytes` per
/// file record that moved data, times in seconds from the start of the job; the first line has 0 bytes and the
/// job's run time.
const READER: &str = r#"
import sys
try:
    import darshan
except ImportError:
    sys.exit(77)
darshan.enable_experimental() if hasattr(darshan, "enable_experimental") else None
report = darshan.DarshanReport(sys.argv[1], read_all=False)
print(0, report.metadata["job"].get("run_time", 0), 0, sep=",")
for module in ("POSIX", "STDIO"):
    if module not in report.modules:
        continue
    report.mod_read_all_records(module)
    frames = report.records[module].to_df()
    counters, times = frames["counters"], frames["fcounters"]
    for i in range(len(counters)):
        for way in ("WRITE", "READ"):
            size = counters[module + "_BYTES_" + ("WRITTEN" if way == "WRITE" else "READ")][i]
            if size > 0:
                start = times[module + "_F_" + way + "_START_TIMESTAMP"][i]
                end = times[module + "_F_" + way + "_END_TIMESTAMP"][i]
                print(start, end, size, sep=",")
"#;

/// Reads Darshan logs: the output of `darshan-parser`, or a binary log through `darshan-parser` or the Python
/// package `darshan`.
pub(super) fn darshan(path: &Path) -> Result<Vec<Sample>, Error> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|e| invalid(format!("{name}: cannot read it: {e}")))?;
    let job = path.file_stem().map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned());
    if bytes.starts_with(b"# darshan log version") {
        return parser_text(&name, &job, &String::from_utf8_lossy(&bytes));
    }
    // The first bytes of a binary log are its version and a magic number.
    if !bytes.starts_with(b"3.") {
        return Err(invalid(format!(
            "{name}:1: log: this is not a Darshan log: give a log as Darshan wrote it, or the text that darshan-parser prints"
        )));
    }
    match Command::new("darshan-parser").arg(path).output() {
        Ok(out) if out.status.success() => {
            return parser_text(&name, &job, &String::from_utf8_lossy(&out.stdout));
        }
        Ok(out) => {
            let why = String::from_utf8_lossy(&out.stderr);
            return Err(invalid(format!("{name}:1: log: darshan-parser refused it: {}", why.trim())));
        }
        Err(_) => {}
    }
    let python = std::env::var_os("FOREBAY_PYTHON").unwrap_or_else(|| "python3".into());
    let missing = || {
        invalid(format!(
            "{name}: a binary Darshan log needs a reader: install the Python package darshan (pip install darshan) or \
             Darshan's utilities (darshan-parser), or give the text that darshan-parser prints"
        ))
    };
    let out = Command::new(python).args(["-c", READER]).arg(path).output().map_err(|_| missing())?;
    match out.status.code() {
        Some(0) => {}
        Some(77) => return Err(missing()),
        _ => {
            let why = String::from_utf8_lossy(&out.stderr);
            let last = why.trim().lines().last().unwrap_or("no reason given").to_owned();
            return Err(invalid(format!("{name}:1: log: the Python package darshan refused it: {last}")));
        }
    }
    let lines = String::from_utf8_lossy(&out.stdout);
    let spans = lines.lines().filter_map(|line| {
        let fields: Vec<f64> = line.split(',').filter_map(|field| field.parse().ok()).collect();
        (fields.len() == 3).then(|| (fields[0], fields[1], fields[2]))
    });
    some(&name, spread(&job, spans))
}

/// Reads the counters in the output of `darshan-parser`: module, rank, record, counter, value, ….
fn parser_text(name: &str, job: &str, text: &str) -> Result<Vec<Sample>, Error> {
    let mut records: BTreeMap<(String, String, String), BTreeMap<String, f64>> = BTreeMap::new();
    for (i, line) in
        text.lines().enumerate().filter(|(_, line)| !line.starts_with('#') && !line.trim().is_empty())
    {
        let fields: Vec<&str> = line.split('\t').collect();
        let [module @ ("POSIX" | "STDIO"), rank, record, counter, value, ..] = fields[..] else { continue };
        let wrong = || invalid(format!("{name}:{}: {counter}: \"{value}\" is not a number", i + 1));
        let value: f64 = value.trim().parse().map_err(|_| wrong())?;
        let key = (module.to_owned(), rank.to_owned(), record.to_owned());
        let counter = counter.strip_prefix(module).unwrap_or(counter);
        records.entry(key).or_default().insert(counter.to_owned(), value);
    }
    let ran = text.lines().find_map(|line| line.strip_prefix("# run time:")?.trim().parse::<f64>().ok());
    let mut spans = vec![(0.0, ran.unwrap_or(0.0), 0.0)];
    for counters in records.values() {
        for (amount, way) in [("_BYTES_WRITTEN", "WRITE"), ("_BYTES_READ", "READ")] {
            let get = |key: &str| counters.get(key).copied();
            let start = get(&format!("_F_{way}_START_TIMESTAMP"));
            let end = get(&format!("_F_{way}_END_TIMESTAMP"));
            if let (Some(bytes), Some(start), Some(end)) = (get(amount).filter(|b| *b > 0.0), start, end) {
                spans.push((start, end, bytes));
            }
        }
    }
    some(name, spread(job, spans.into_iter()))
}

fn some(name: &str, samples: Vec<Sample>) -> Result<Vec<Sample>, Error> {
    if samples.iter().all(|sample| sample.bytes == 0.0) {
        return Err(invalid(format!("{name}: the log holds no POSIX or STDIO record that moved data")));
    }
    Ok(samples)
}

/// Spreads each file's bytes evenly over the seconds between its first and last access. A span of 0 bytes only
/// extends the job's run time.
fn spread(job: &str, spans: impl Iterator<Item = (f64, f64, f64)>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for (start, end, bytes) in spans {
        if bytes == 0.0 {
            samples.extend([start, end].map(|time| Sample { time, job: job.to_owned(), bytes }));
            continue;
        }
        let seconds = ((end - start).ceil() as usize).clamp(1, 100_000);
        let step = (end - start).max(0.0) / seconds as f64;
        for i in 0..seconds {
            samples.push(Sample {
                time: start + i as f64 * step,
                job: job.to_owned(),
                bytes: bytes / seconds as f64,
            });
        }
    }
    samples
}

/// Adds the applications found in `samples` to the plan. If the plan has no scale of its own, the usual burst
/// becomes its time unit.
pub(super) fn add_profiles(
    plan: &mut Plan,
    samples: &[Sample],
    keep_seconds: bool,
) -> Result<Vec<Profile>, Error> {
    let profiles = fit(samples, 1.0);
    if profiles.is_empty() {
        return Err(invalid("the records hold no job that moved data"));
    }
    if !keep_seconds {
        let factor = median(&profiles.iter().map(|p| p.burst).collect::<Vec<_>>()) / plan.scale.seconds;
        plan.scale.seconds *= factor;
        // The bandwidth stays the same number of units per time unit, so a data unit grows with the time unit.
        plan.scale.bytes *= factor;
        plan.platform.capacity = Units((plan.platform.capacity.0 as f64 / factor).round() as usize);
    }
    for profile in &profiles {
        let p = Probability::new(profile.share()).map_err(|e| invalid(format!("{}: {e}", profile.job)))?;
        let units = (profile.rate * plan.scale.seconds / plan.scale.bytes).round();
        if units > 1e9 {
            return Err(invalid(format!(
                "{}: a rate of {units:.0} units is too high: choose a larger unit.mb",
                profile.job
            )));
        }
        plan.apps.push(App {
            name: profile.job.clone(),
            p,
            b: Units(units as usize),
            period: Some(profile.period / plan.scale.seconds),
            jitter: profile.jitter,
            ..App::default()
        });
    }
    Ok(profiles)
}
