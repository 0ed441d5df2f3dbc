//! A run: jobs start and end as the scenario says, and their service is sampled every 100 ms.

use super::glimpse::{Glimpse, glimpse};
use super::process::Done;
use super::scenario::{JobPlan, ShareScenario};
use super::stage::Stage;
use crate::failure::{Failure, Outcome};
use forebay_client::blocking::Client;
use forebay_model::JobId;
use forebay_policy::share::Discipline;
use std::collections::HashMap;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BEAT: Duration = Duration::from_millis(100);
/// A job that runs this many seconds longer than it should is stuck.
const PATIENCE: f64 = 60.0;

/// A run of a scenario, or of one job of it.
pub(super) struct Run<'a> {
    pub(super) scenario: &'a ShareScenario,
    pub(super) discipline: Discipline,
    pub(super) only: Option<usize>,
    pub(super) stop: &'a AtomicBool,
}

/// The samples of a run.
pub(super) struct Record {
    /// Seconds, and the service of each job up to then.
    pub(super) notes: Vec<(f64, Vec<Served>)>,
    /// Start and end of each job, in seconds.
    pub(super) spans: Vec<Option<(f64, f64)>>,
    /// What each job did by its own count, and how long it took by its own clock.
    pub(super) own: Vec<Option<Done>>,
}

/// The service that a job has received.
#[derive(Clone, Copy, Default)]
pub(super) struct Served {
    pub(super) bytes: f64,
    pub(super) requests: f64,
    pub(super) waited: f64,
}

/// The processes of one job.
struct Crew {
    processes: Vec<Child>,
    begun: Option<f64>,
    ended: Option<f64>,
}

impl Run<'_> {
    /// Runs the scenario; `watch` gets the current state every 100 ms.
    pub(super) fn perform(&self, watch: &mut dyn FnMut(&[Glimpse])) -> Outcome<Record> {
        let stage = Stage::build(self.scenario, self.discipline)?;
        let observers =
            (0..self.scenario.servers).map(|server| stage.observer(server)).collect::<Outcome<Vec<_>>>()?;
        let jobs = &self.scenario.jobs;
        let mut crews: Vec<Crew> =
            jobs.iter().map(|_| Crew { processes: Vec::new(), begun: None, ended: None }).collect();
        let mut record = Record { notes: Vec::new(), spans: Vec::new(), own: vec![None; jobs.len()] };
        let (begin, mut changed) = (Instant::now(), 0.0);
        loop {
            let now = begin.elapsed().as_secs_f64();
            for (number, (plan, crew)) in jobs.iter().zip(&mut crews).enumerate() {
                let plays = self.only.is_none_or(|only| only == number);
                if plays && crew.begun.is_none() && (now >= plan.start || self.only.is_some()) {
                    crew.begun = Some(now);
                    changed = now;
                    crew.start(plan, &stage)?;
                }
                if crew.is_running() && crew.is_over()? {
                    crew.ended = Some(now);
                    changed = now;
                    record.own[number] = Some(crew.collect(plan)?);
                }
            }
            let requested = begin.elapsed().as_secs_f64();
            let seen = note(&observers, jobs)?;
            // The servers took the sample at some time in between.
            record.notes.push((requested.midpoint(begin.elapsed().as_secs_f64()), seen));
            let here: Vec<usize> = (0..jobs.len()).filter(|&job| crews[job].is_running()).collect();
            watch(&glimpse(self.scenario, &record.notes, &here, changed));
            let all = |(number, crew): (usize, &Crew)| {
                crew.ended.is_some() || self.only.is_some_and(|only| only != number)
            };
            if crews.iter().enumerate().all(all) {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(Failure::Interrupted);
            }
            if now > self.scenario.length() + PATIENCE {
                return Err(Failure::Failed("a job of the scenario does not end".to_owned()));
            }
            let next = BEAT * u32::try_from(record.notes.len()).unwrap_or(u32::MAX);
            std::thread::sleep(next.saturating_sub(begin.elapsed()));
        }
        record.spans = crews.iter().map(|crew| Some((crew.begun?, crew.ended?))).collect();
        Ok(record)
    }
}

fn note(observers: &[Client], jobs: &[JobPlan]) -> Outcome<Vec<Served>> {
    let mut all: HashMap<JobId, Served> = HashMap::new();
    for observer in observers {
        for seen in observer.status()?.jobs {
            let served = all.entry(seen.id).or_default();
            served.bytes += (seen.written + seen.read) as f64;
            served.requests += seen.requests as f64;
            served.waited += seen.waited as f64 / 1e9;
        }
    }
    Ok(jobs.iter().map(|plan| all.get(&plan.job.id()).copied().unwrap_or_default()).collect())
}

impl Crew {
    /// Starts its processes, on its servers in turn.
    fn start(&mut self, plan: &JobPlan, stage: &Stage) -> Outcome {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        for server in &plan.servers {
            for number in 0..plan.processes {
                let mut command = Command::new(&program);
                command.args(["bench-job", "--name", &format!("{}-{number}", plan.job.label)]);
                command.args(["--op", plan.op.word(), "--request", &plan.request.0.to_string()]);
                command.args(["--streams", &plan.streams.to_string(), "--seconds", &plan.length.to_string()]);
                command.args(["--pause-ms", &plan.pause.as_millis().to_string(), "--config", "/dev/null"]);
                if let Some(amount) = plan.amount {
                    let parts = u64::from(plan.processes) * plan.servers.len() as u64;
                    command.args(["--amount", &(amount.0 / parts.max(1)).to_string()]);
                }
                command.arg("--service").arg(format!("unix:{}", stage.socket(*server).display()));
                command.env("FOREBAY_JOB_ID", &plan.job.label).env("FOREBAY_JOB_USER", &plan.job.user);
                command.env("FOREBAY_JOB_GROUP", &plan.job.group);
                command.env("FOREBAY_JOB_NODES", plan.job.nodes.to_string());
                command.env("FOREBAY_JOB_PRIORITY", plan.job.priority.to_string());
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
                let process = command.spawn().map_err(|error| Failure::local("start", &program, error))?;
                self.processes.push(process);
            }
        }
        Ok(())
    }

    /// Whether it has started and not ended.
    fn is_running(&self) -> bool {
        self.begun.is_some() && self.ended.is_none()
    }

    fn is_over(&mut self) -> Outcome<bool> {
        for process in &mut self.processes {
            let over = process.try_wait();
            if over.map_err(|error| Failure::Failed(format!("cannot wait for a job: {error}")))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// What its processes did, and how long the slowest of them took.
    fn collect(&mut self, plan: &JobPlan) -> Outcome<Done> {
        let mut all = Done::default();
        for process in &mut self.processes {
            let text = |pipe: Option<&mut dyn Read>| {
                let mut text = String::new();
                // Output that cannot be read is treated as empty.
                let _ = pipe.map(|pipe| pipe.read_to_string(&mut text));
                text
            };
            let output = text(process.stdout.as_mut().map(|pipe| pipe as &mut dyn Read));
            let complaint = text(process.stderr.as_mut().map(|pipe| pipe as &mut dyn Read));
            let Ok(done) = serde_json::from_str::<Done>(&output) else {
                let why = complaint.trim().trim_start_matches("forebay: ").to_owned();
                return Err(Failure::Failed(format!("job {}: {why}", plan.id)));
            };
            all.bytes += done.bytes;
            all.operations += done.operations;
            all.seconds = all.seconds.max(done.seconds);
        }
        Ok(all)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // The process may have ended already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
