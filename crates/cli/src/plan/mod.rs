//! `forebay plan`: how large the buffer must be, and when it should drain.
//!
//! The planner crate computes, the report crate reads plans and renders answers; this module opens the files.

mod sources;

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::reproduce;
use forebay_model::{Error, ErrorKind};
use forebay_planner::{Fraction, Recipe, Rng, Sample, Steps, Units};
use forebay_report::draw::{chart, svg};
use forebay_report::figures;
use forebay_report::plan::{self, Key, Options, Plan, Point, Sweep, answer, points};
use forebay_report::quantity;
use forebay_sim::figures::{FIGURES, Paper};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Compute how large the buffer must be, and when it should drain
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    other: Option<Other>,
    /// The plan: bandwidth, capacity, threshold and applications, in TOML
    file: Option<PathBuf>,
    /// Capacity of the buffer, in units or as a size ("4 TB")
    #[arg(long, value_name = "S")]
    capacity: Option<String>,
    /// Share of the capacity below which the buffer does not drain ("20%")
    #[arg(long, value_name = "T", value_parser = quantity::share)]
    threshold: Option<f64>,
    /// Bandwidth of the back end, in units or as a rate ("40 GB/s"), instead of the file's
    #[arg(long, value_name = "B")]
    bandwidth: Option<String>,
    /// Idle time that is still acceptable, for the recommendation [default: 1%]
    #[arg(long, value_name = "SHARE", value_parser = quantity::share)]
    target_idle: Option<f64>,
    /// Vary one parameter: capacity=0..500:50, threshold=0..1:0.1 or bandwidth=50..150:10
    #[arg(long, value_name = "KEY=FIRST..LAST:STEP")]
    sweep: Option<Sweep>,
    /// Compare with a discrete-event simulation
    #[arg(long)]
    simulate: bool,
    /// Show the influence of each application
    #[arg(long)]
    sensitivity: bool,
    /// Fit applications to lines of time,job,bytes
    #[arg(long, value_name = "FILE", num_args = 1..)]
    from_csv: Vec<PathBuf>,
    /// Fit applications to Darshan logs, or to the output of darshan-parser
    #[arg(long, value_name = "LOG", num_args = 1..)]
    from_darshan: Vec<PathBuf>,
    /// Fit applications to what the service has seen its jobs write
    #[arg(long)]
    from_service: bool,
    #[command(flatten)]
    service: Service,
    /// Generate random applications
    #[arg(long)]
    generate: bool,
    /// Number of generated applications
    #[arg(long, value_name = "N", default_value_t = 20, requires = "generate")]
    apps: usize,
    /// Largest share of time a generated application spends on I/O
    #[arg(long, value_name = "P", default_value_t = 0.5, requires = "generate")]
    p_max: f64,
    /// Mean load of the generated applications, as a share of the bandwidth
    #[arg(long, value_name = "A", default_value_t = 0.8, requires = "generate")]
    alpha: f64,
    /// Shortest generated period times p-max, in time units
    #[arg(long, value_name = "D", default_value_t = 2.0, requires = "generate")]
    d_min: f64,
    /// Seed of the random generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write a report with charts
    #[arg(long, value_name = "REPORT.html")]
    out: Option<PathBuf>,
    /// Write only the charts, into a directory
    #[arg(long, value_name = "DIR")]
    plots: Option<PathBuf>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

/// Subcommands.
#[derive(clap::Subcommand, Debug)]
enum Other {
    /// Draw the figures of the sizing model and check the claims about them
    Figures {
        /// Directory for the charts
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        /// Seed of the random applications
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Print the verdicts as JSON
        #[arg(long)]
        json: bool,
    },
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Invalid, text)
}

/// Computes and prints the answer.
pub(crate) fn run(args: &PlanArgs) -> Outcome {
    if let Some(Other::Figures { out, seed, json }) = &args.other {
        return draw_figures(out, *seed, *json);
    }
    let plan = load(args)?;
    let options = Options {
        simulate: args.simulate,
        sensitivity: args.sensitivity || args.out.is_some(),
        sweep: args.sweep.clone(),
        seed: args.seed,
    };
    let failed = |e: forebay_planner::Error| invalid(format!("{}: {e}", plan.title));
    let found = answer(&plan, &options).map_err(failed)?;
    if args.out.is_some() || args.plots.is_some() {
        let charts = plan::charts(&plan, &found, args.seed).map_err(failed)?;
        if let Some(path) = &args.out {
            write(path, plan::page(&plan, &found, &charts).as_bytes())?;
        }
        if let Some(dir) = &args.plots {
            for (name, chart) in &charts {
                picture(dir, name, &chart.scene())?;
            }
        }
    }
    let text = if args.json {
        plan::json(&plan, &found).to_string()
    } else {
        let curve = match std::io::stdout().is_terminal() {
            true => Some(sketch(&plan).map_err(failed)?),
            false => None,
        };
        format!("{}\n{}", plan.title, plan::text(&plan, &found, curve.as_deref()))
    };
    output::text(text.trim_end())
}

/// Draws the figures; fails if a claim does not hold.
fn draw_figures(out: &Path, seed: u64, json: bool) -> Outcome {
    let settings = reproduce::settings(false, seed)?;
    let mut claims = Vec::new();
    for figure in FIGURES.iter().filter(|figure| figure.paper == Paper::Sizing) {
        let drawn = figure.make(&settings).map_err(|e| invalid(format!("figures: {e}")))?;
        let number: u8 = figure.id.trim_start_matches("sizing-").parse().unwrap_or(0);
        picture(out, &format!("fig{number}"), &figures::scene(figure.title, &drawn))?;
        claims.extend(drawn.claims.into_iter().map(|claim| (number, claim)));
    }
    if json {
        let list: Vec<_> = claims
            .iter()
            .map(|(figure, c)| serde_json::json!({ "figure": figure, "claim": c.text, "holds": c.holds, "detail": c.detail }))
            .collect();
        output::text(serde_json::Value::from(list))?;
    } else {
        for (figure, c) in &claims {
            let verdict = if c.holds { "holds" } else { "FAILS" };
            output::text(format_args!("figure {figure}  {verdict}  {} ({})", c.text, c.detail))?;
        }
    }
    if claims.iter().all(|(_, c)| c.holds) { Ok(()) } else { Err(Failure::Reported) }
}

/// Idle time over sixty capacities, up to twice what is planned.
fn sketch(plan: &Plan) -> Result<Vec<Point>, forebay_planner::Error> {
    let steps = Steps::of(&plan.apps, plan.platform.bandwidth)?;
    let top = (2 * plan.platform.capacity.0).max(4 * plan.platform.bandwidth.0);
    points(plan, &steps, &Sweep::even(Key::Capacity, top as f64, (top as f64 / 60.0).ceil()))
}

/// Builds the plan from its file, its records, its generator and the command line.
fn load(args: &PlanArgs) -> Outcome<Plan> {
    let records = !args.from_csv.is_empty() || !args.from_darshan.is_empty() || args.from_service;
    let mut plan = start(args, records)?;
    if let Some(text) = &args.capacity {
        plan.platform.capacity = capacity(&plan, text)?;
    }
    if let Some(share) = args.threshold {
        plan.platform.threshold = Fraction::new(share).map_err(|e| invalid(format!("--threshold: {e}")))?;
    }
    plan.target_idle = args.target_idle.unwrap_or(plan.target_idle);
    let samples = samples(args)?;
    if records {
        let fixed = args.file.is_some();
        let profiles = sources::add_profiles(&mut plan, &samples, fixed)?;
        plan.notes.push(format!("{} applications fitted from {} records", profiles.len(), samples.len()));
    }
    if args.generate {
        let load = args.alpha * plan.platform.bandwidth.0 as f64;
        let recipe = Recipe { count: args.apps, p_max: args.p_max, load, burst: args.d_min, jitter: 1.0 };
        plan.apps.extend(
            recipe.generate(&mut Rng::new(args.seed)).map_err(|e| invalid(format!("--generate: {e}")))?,
        );
    }
    if plan.apps.is_empty() {
        let name = args.file.as_ref().map_or_else(String::new, |path| path.display().to_string());
        return Err(invalid(format!(
            "{name}:1: app: there is no application to plan for: add a table headed [[app]]"
        ))
        .into());
    }
    if args.file.is_none() {
        plan.title = if args.generate { "generated".into() } else { "from records".into() };
    }
    Ok(plan)
}

/// The plan of the file, or an empty one for records and generated applications.
fn start(args: &PlanArgs, records: bool) -> Outcome<Plan> {
    if let Some(path) = &args.file {
        let text = overridden(&read(path)?, args.bandwidth.as_deref());
        return Ok(plan::read(&path.display().to_string(), &text)?);
    }
    if !records && !args.generate {
        let ways = "--from-csv, --from-darshan, --from-service or --generate";
        return Err(invalid(format!("FILE: missing: give a plan file, {ways}")).into());
    }
    let bandwidth = match &args.bandwidth {
        Some(text) => text.clone(),
        None if args.generate => "100".into(),
        None => {
            return Err(invalid(
                "--bandwidth: missing: records need the back end's bandwidth, such as --bandwidth \"40 GB/s\", or a plan file",
            )
            .into());
        }
    };
    Ok(plan::read("--bandwidth", &format!("bandwidth = {}", toml_value(&bandwidth)))?)
}

/// The records that the command line names.
fn samples(args: &PlanArgs) -> Outcome<Vec<Sample>> {
    let mut samples = Vec::new();
    for path in &args.from_csv {
        samples.extend(sources::csv(&path.display().to_string(), &read(path)?)?);
    }
    for path in &args.from_darshan {
        samples.extend(sources::darshan(path)?);
    }
    if args.from_service {
        samples.extend(history(&args.service)?);
    }
    Ok(samples)
}

/// The write history of the service's jobs.
fn history(service: &Service) -> Outcome<Vec<Sample>> {
    let seen = service.connect()?.history()?;
    let samples: Vec<Sample> = seen
        .into_iter()
        .filter(|sample| sample.written > 0)
        .map(|sample| Sample { time: sample.second as f64, job: sample.label, bytes: sample.written as f64 })
        .collect();
    match samples.is_empty() {
        true => Err(Failure::Failed(
            "the service has recorded no writes yet: plan again when jobs have written".into(),
        )),
        false => Ok(samples),
    }
}

/// A number, or a string in quotes.
fn toml_value(text: &str) -> String {
    match text.parse::<f64>() {
        Ok(_) => text.to_owned(),
        Err(_) => serde_json::Value::from(text).to_string(),
    }
}

/// The file's text with its bandwidth replaced, on the same line, so that messages keep their line numbers.
fn overridden(text: &str, bandwidth: Option<&str>) -> String {
    let Some(bandwidth) = bandwidth else { return text.to_owned() };
    let value = toml_value(bandwidth);
    let lines = text.lines().map(|line| match line.trim_start().strip_prefix("bandwidth") {
        Some(rest) if rest.trim_start().starts_with('=') => format!("bandwidth = {value}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|e| invalid(format!("{}: cannot read it: {e}", path.display())))
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(|e| invalid(format!("{}: cannot write it: {e}", path.display())))
}

fn picture(dir: &Path, name: &str, scene: &chart::Scene) -> Result<(), Error> {
    std::fs::create_dir_all(dir).map_err(|e| invalid(format!("{}: cannot create it: {e}", dir.display())))?;
    write(&dir.join(format!("{name}.svg")), svg::alone(scene).as_bytes())
}

fn capacity(plan: &Plan, text: &str) -> Result<Units, Error> {
    if let Ok(units) = text.trim().parse::<usize>() {
        return Ok(Units(units));
    }
    let bytes = quantity::size(text).map_err(|e| invalid(format!("--capacity: {e}")))?;
    if !plan.scale.real {
        return Err(invalid(
            "--capacity: a size in bytes needs a scale: give unit.mb in the plan, or a number of units",
        ));
    }
    Ok(Units((bytes / plan.scale.bytes).round() as usize))
}
