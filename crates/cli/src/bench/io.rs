//! `bench io`: compares Forebay with other ways of I/O on this machine.

use crate::failure::{Failure, Outcome};
use crate::output;
use clap::{Args, Subcommand};
use forebay_bench::{Crowd, Plan, Report, Section, Step};
use serde::{Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Io {
    /// Sections to measure: data, names, writers, programs, servers, beyond, deployments, calls; all if none is named
    #[arg(value_name = "SECTION")]
    sections: Vec<Section>,
    /// Use fewer rounds and fewer bytes
    #[arg(long)]
    quick: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Directory for latest.json and index.html, on the disk to compare with
    #[arg(long, value_name = "DIR", default_value = "bench")]
    out: PathBuf,
}

/// A report and the previous one.
struct Shown<'a> {
    report: &'a Report,
    before: Option<&'a Report>,
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.report.text(self.before).trim_end())
    }
}

impl Serialize for Shown<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.report.serialize(serializer)
    }
}

impl Io {
    pub(super) fn run(&self) -> Outcome {
        std::fs::create_dir_all(&self.out).map_err(|error| Failure::local("make", &self.out, &error))?;
        let disk = self.out.canonicalize().map_err(|error| Failure::local("find", &self.out, &error))?;
        let kept = self.out.join("latest.json");
        // A report that cannot be read is ignored, and replaced in any case.
        let before = std::fs::read(&kept).ok().and_then(|text| serde_json::from_slice::<Report>(&text).ok());
        let progress =
            if self.json { |_: &str| {} } else { |text: &str| output::note(format_args!("{text}")) };
        let plan = Plan::new(self.quick, self.sections.clone(), disk, progress);
        let report = forebay_bench::measure(&plan).map_err(failed)?;
        let json =
            serde_json::to_string_pretty(&report).map_err(|error| Failure::Failed(error.to_string()))?;
        write(&kept, &json)?;
        let page = self.out.join("index.html");
        write(&page, &forebay_bench::page(&report, before.as_ref()))?;
        output::show(&Shown { report: &report, before: before.as_ref() }, self.json)?;
        if !self.json {
            output::note(format_args!("results are in {}, charts in {}", kept.display(), page.display()));
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    std::fs::write(path, text).map_err(|error| Failure::local("write", path, &error))
}

#[expect(clippy::needless_pass_by_value, reason = "it is what map_err hands over")]
fn failed(error: Box<dyn std::error::Error + Send + Sync>) -> Failure {
    Failure::Failed(format!("the benchmark failed: {error}"))
}

/// Servers for the benchmark, until standard input ends.
#[derive(Args)]
pub(crate) struct Far {
    disk: PathBuf,
    what: forebay_bench::Far,
}

impl Far {
    pub(crate) fn run(&self) -> Outcome {
        forebay_bench::serve_far(&self.disk, self.what).map_err(failed)
    }
}

/// Mounts for the benchmark, until standard input ends.
#[derive(Args)]
pub(crate) struct Places {
    disk: PathBuf,
    service: String,
}

impl Places {
    pub(crate) fn run(&self) -> Outcome {
        forebay_bench::serve_places(&self.disk, &self.service).map_err(failed)
    }
}

/// A small program whose run time the benchmark measures.
#[derive(Subcommand)]
pub(crate) enum Steps {
    Copy { chunk: usize, count: usize },
    Names { dir: PathBuf, count: usize },
    Small { dir: PathBuf, count: usize, bytes: usize },
    RawCalls { count: usize },
    Crowd(CrowdArgs),
    Member(CrowdArgs),
}

/// The work of a crowd of processes.
#[derive(Args)]
pub(crate) struct CrowdArgs {
    dir: PathBuf,
    processes: usize,
    large: usize,
    small: usize,
    names: usize,
    passes: usize,
}

impl CrowdArgs {
    fn crowd(&self) -> Crowd {
        let CrowdArgs { dir, processes, large, small, names, passes } = self;
        let (processes, large, small) = (*processes, *large, *small);
        Crowd { dir: dir.clone(), processes, large, small, names: *names, passes: *passes }
    }
}

impl Steps {
    pub(crate) fn run(&self) -> Outcome {
        let step = match self {
            Steps::Copy { chunk, count } => Step::Copy { chunk: *chunk, count: *count },
            Steps::Names { dir, count } => Step::Names { dir: dir.clone(), count: *count },
            Steps::Small { dir, count, bytes } => {
                Step::Small { dir: dir.clone(), count: *count, bytes: *bytes }
            }
            Steps::RawCalls { count } => Step::RawCalls { count: *count },
            Steps::Crowd(crowd) => Step::Crowd(crowd.crowd()),
            Steps::Member(crowd) => Step::Member(crowd.crowd()),
        };
        forebay_bench::serve_step(&step).map_err(failed)
    }
}
