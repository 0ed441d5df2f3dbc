//! `forebay reproduce`: makes the figures of the papers with the daemon's own policies.

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::sim::devices;
use forebay_report::draw::svg;
use forebay_report::figures::{Made, page, scene};
use forebay_sim::figures::{FIGURES, Figure, Paper, Settings};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Reproduce the figures of the papers and compare the numbers
#[derive(clap::Args)]
pub(crate) struct Reproduce {
    /// Papers or figures (all if none is named); see --list
    #[arg(value_name = "PAPER|FIGURE")]
    which: Vec<String>,
    /// Only list papers and figures
    #[arg(long)]
    list: bool,
    /// Use less data and fewer repetitions: a third of the time
    #[arg(long)]
    quick: bool,
    /// Directory for charts and index.html
    #[arg(long, value_name = "DIR", default_value = "figures")]
    out: PathBuf,
    /// Seed of the random generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print verdicts and numbers as JSON
    #[arg(long)]
    json: bool,
}

/// The result of a figure for the command line.
#[derive(Serialize)]
struct Verdict<'a> {
    figure: &'a str,
    title: &'a str,
    error: Option<&'a str>,
    numbers: &'a [forebay_sim::figures::Number],
    claims: &'a [forebay_sim::figures::Claim],
}

impl Reproduce {
    /// Makes the figures. A claim that does not hold is a result, not a failure.
    pub(crate) fn run(self) -> Outcome {
        if self.list {
            return list();
        }
        let chosen = chosen(&self.which)?;
        let settings = settings(self.quick, self.seed)?;
        std::fs::create_dir_all(&self.out).map_err(|error| Failure::local("create", &self.out, &error))?;
        let mut all = Vec::new();
        for figure in chosen {
            let start = Instant::now();
            let made = Made { figure, drawn: figure.make(&settings) };
            if let Ok(drawn) = &made.drawn {
                let scene = scene(figure.title, drawn);
                write(&self.out.join(format!("{}.svg", figure.id)), &svg::alone(&scene))?;
            }
            if !self.json {
                report(&made, start.elapsed().as_secs_f64())?;
            }
            all.push(made);
        }
        let index = self.out.join("index.html");
        write(&index, &page(&all, &settings))?;
        if self.json {
            let verdicts: Vec<Verdict<'_>> = all.iter().map(verdict).collect();
            return output::message(&verdicts);
        }
        output::text(format_args!("{}", index.display()))
    }
}

fn list() -> Outcome {
    for paper in Paper::ALL {
        output::text(format_args!("{:<12} {}", paper.word(), paper.title()))?;
        for figure in FIGURES.iter().filter(|figure| figure.paper == paper) {
            output::text(format_args!("  {:<10} {}", figure.id, figure.title))?;
        }
    }
    Ok(())
}

/// The requested figures, in the order of the papers.
fn chosen(which: &[String]) -> Outcome<Vec<&'static Figure>> {
    let fits = |figure: &Figure, word: &str| figure.id == word || figure.paper.word() == word;
    for word in which {
        if !FIGURES.iter().any(|figure| fits(figure, word)) {
            let papers = Paper::ALL.map(Paper::word).join(", ");
            let text =
                format!("{word}: no such paper or figure: papers are {papers}; --list shows all figures");
            return Err(Failure::Usage(text));
        }
    }
    let wanted = |figure: &&Figure| which.is_empty() || which.iter().any(|word| fits(figure, word));
    Ok(FIGURES.iter().filter(wanted).collect())
}

/// The settings of the figures.
pub(crate) fn settings(quick: bool, seed: u64) -> Outcome<Settings> {
    let [(_, ost), (_, hdd)] = devices();
    Ok(Settings { quick, seed, ost: ost?, hdd: hdd?, clock })
}

/// CPU seconds of this process: other processes on the machine do not count.
fn clock() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn report(made: &Made, took: f64) -> Outcome {
    output::text(format_args!("{}: {} ({took:.1} s)", made.figure.id, made.figure.title))?;
    match &made.drawn {
        Err(why) => output::text(format_args!("  cannot be made: {why}")),
        Ok(drawn) => {
            for claim in &drawn.claims {
                let verdict = if claim.holds { "holds" } else { "DOES NOT HOLD" };
                output::text(format_args!("  {verdict}: {} ({})", claim.text, claim.detail))?;
            }
            Ok(())
        }
    }
}

fn verdict(made: &Made) -> Verdict<'_> {
    let drawn = made.drawn.as_ref();
    Verdict {
        figure: made.figure.id,
        title: made.figure.title,
        error: drawn.err().map(String::as_str),
        numbers: drawn.map_or(&[], |drawn| &drawn.numbers),
        claims: drawn.map_or(&[], |drawn| &drawn.claims),
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|error| Failure::local("write", path, &error))
}
