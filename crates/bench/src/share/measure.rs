//! Evaluates the samples of a run.

use super::run::{Record, Served};
use super::scenario::{Op, ShareScenario};
use forebay_model::ServerId;
use forebay_policy::OPERATION;
use forebay_policy::share::{Discipline, Presence, divide};
use serde::Serialize;

/// Seconds after a join or leave that do not count as steady, in addition to two λ.
const SETTLING: f64 = 0.3;
/// Shares are fair when every job is this close to its due share …
const CLOSE: f64 = 0.1;
/// … over this number of samples.
const RUN: usize = 3;

/// The result of a run.
#[derive(Serialize)]
pub(super) struct Measured {
    pub(super) scheduler: String,
    /// Bytes per second of all jobs together, while at least one ran.
    pub(super) throughput: f64,
    /// Requests per second, the same way.
    pub(super) requests: f64,
    /// Service per second (bytes and the cost of requests) while a job always had requests, relative to the
    /// same run under fifo.
    pub(super) against_fifo: Option<f64>,
    /// The longest time from a join or leave until shares were fair, in seconds.
    pub(super) time_to_fairness: Option<f64>,
    pub(super) jobs: Vec<JobMeasured>,
}

/// The result of one job.
#[derive(Serialize)]
pub(super) struct JobMeasured {
    pub(super) id: String,
    pub(super) op: &'static str,
    /// Bytes served in total, by the servers' count and by that of its processes, which leave out the
    /// preparation.
    pub(super) served: u64,
    pub(super) counted: u64,
    /// Bytes per second while it ran.
    pub(super) throughput: f64,
    pub(super) requests: f64,
    /// Standard deviation of the throughput over samples, while the same jobs ran.
    pub(super) deviation: f64,
    /// Its share of the service, while other jobs ran and the state was steady.
    pub(super) share: Option<f64>,
    /// The share that the policy gives it.
    pub(super) due: Option<f64>,
    /// The difference of the two, relative to the due share.
    pub(super) error: Option<f64>,
    /// Seconds that a request waited for its turn, on average.
    pub(super) mean_wait: f64,
    /// Seconds it took, and how much longer than alone.
    pub(super) took: Option<f64>,
    pub(super) slowdown: Option<f64>,
}

pub(super) fn measure(
    scenario: &ShareScenario,
    records: &[(Discipline, Record)],
    alone: &[Option<f64>],
) -> Vec<Measured> {
    let fifo = records.iter().find(|(discipline, _)| *discipline == Discipline::Fifo);
    let fifo = fifo.and_then(|(_, record)| full(scenario, record));
    let one = |(discipline, record): &(Discipline, Record)| {
        let steps = steps(scenario, record);
        let bytes: f64 = steps.iter().flat_map(|step| &step.done).map(|done| done.bytes).sum();
        let requests: f64 = steps.iter().flat_map(|step| &step.done).map(|done| done.requests).sum();
        let busy =
            steps.iter().filter(|step| !step.here.is_empty()).map(|step| step.length).sum::<f64>().max(1e-9);
        Measured {
            scheduler: discipline.to_string(),
            throughput: bytes / busy,
            requests: requests / busy,
            against_fifo: full(scenario, record).zip(fifo).map(|(rate, fifo)| rate / fifo),
            time_to_fairness: (*discipline != Discipline::Fifo).then(|| fairness(&steps)).flatten(),
            jobs: (0..scenario.jobs.len())
                .map(|job| about(scenario, record, &steps, job, alone[job]))
                .collect(),
        }
    };
    records.iter().map(one).collect()
}

/// Service per second of the servers while they always had requests: from when a job without pauses ran until
/// its end time. That leaves out the start and the end of processes, which do not depend on the scheduler.
fn full(scenario: &ShareScenario, record: &Record) -> Option<f64> {
    let asks = |step: &Step, job: usize| {
        let (plan, Some((begun, _))) = (&scenario.jobs[job], record.spans[job]) else { return false };
        let ends = begun + plan.length;
        plan.pause.is_zero() && step.begin >= begun + SETTLING && step.begin + step.length <= ends
    };
    let steps = steps(scenario, record);
    let busy = || steps.iter().filter(|step| step.here.iter().any(|&job| asks(step, job)));
    let time: f64 = busy().map(|step| step.length).sum();
    let done: f64 = busy().flat_map(|step| &step.done).map(|done| cost(*done)).sum();
    (time > 0.0).then(|| done / time)
}

pub(super) fn cost(served: Served) -> f64 {
    served.bytes + served.requests * OPERATION.0 as f64
}

/// The interval between two samples.
struct Step {
    begin: f64,
    length: f64,
    done: Vec<Served>,
    /// The jobs that ran during the whole interval.
    here: Vec<usize>,
    /// The due share of each of them.
    due: Vec<f64>,
    /// When a job last started or ended before.
    changed: f64,
    steady: bool,
}

fn steps(scenario: &ShareScenario, record: &Record) -> Vec<Step> {
    let settling = SETTLING + 2.0 * if scenario.servers > 1 { scenario.lambda.as_secs_f64() } else { 0.0 };
    let events: Vec<f64> = record.spans.iter().flatten().flat_map(|&(begin, end)| [begin, end]).collect();
    let pairs = record.notes.windows(2);
    pairs
        .map(|pair| {
            let ((begin, before), (end, after)) = (&pair[0], &pair[1]);
            let there =
                |&job: &usize| record.spans[job].is_some_and(|(from, to)| from <= *begin && to >= *end);
            let here: Vec<usize> = (0..scenario.jobs.len()).filter(there).collect();
            let changed = events.iter().copied().filter(|event| event < end).fold(0.0, f64::max);
            let quiet = !events.iter().any(|event| (*begin..*end).contains(event));
            let minus = |(after, before): (&Served, &Served)| Served {
                bytes: after.bytes - before.bytes,
                requests: after.requests - before.requests,
                waited: after.waited - before.waited,
            };
            Step {
                begin: *begin,
                length: end - begin,
                done: after.iter().zip(before).map(minus).collect(),
                due: due(scenario, &here),
                steady: quiet && begin - changed >= settling,
                here,
                changed,
            }
        })
        .collect()
}

/// The shares that the policy gives these jobs, of all servers together.
pub(super) fn due(scenario: &ShareScenario, here: &[usize]) -> Vec<f64> {
    let presences: Vec<Presence> = here
        .iter()
        .map(|&job| Presence {
            job: scenario.jobs[job].job.clone(),
            servers: scenario.jobs[job].servers.iter().map(|&server| ServerId(server)).collect(),
        })
        .collect();
    let capacities: Vec<(ServerId, f64)> =
        (0..scenario.servers).map(|server| (ServerId(server), 1.0)).collect();
    let parts = divide(&scenario.policy, &capacities, &presences).jobs;
    let total: f64 = parts.iter().map(|(_, part)| part).sum();
    parts.iter().map(|(_, part)| part / total.max(1e-12)).collect()
}

fn about(
    scenario: &ShareScenario,
    record: &Record,
    steps: &[Step],
    job: usize,
    alone: Option<f64>,
) -> JobMeasured {
    let mine = || steps.iter().filter(|step| step.here.contains(&job));
    let time = mine().map(|step| step.length).sum::<f64>().max(1e-9);
    let sum = |field: fn(&Served) -> f64| mine().map(|step| field(&step.done[job])).sum::<f64>();
    // A job that computes in between does not use its share all the time.
    let asks =
        |step: &&Step| step.here.len() > 1 && step.here.iter().all(|&job| scenario.jobs[job].pause.is_zero());
    let contended = || mine().filter(|step| step.steady).filter(asks);
    let whole: f64 = contended().flat_map(|step| step.here.iter().map(|&job| cost(step.done[job]))).sum();
    let got: f64 = contended().map(|step| cost(step.done[job])).sum();
    let promised: f64 = contended()
        .map(|step| {
            let place = step.here.iter().position(|&other| other == job).expect("the job ran in this step");
            step.due[place] * step.here.iter().map(|&job| cost(step.done[job])).sum::<f64>()
        })
        .sum();
    let (share, due) = match whole > 0.0 {
        true => (Some(got / whole), Some(promised / whole)),
        false => (None, None),
    };
    let own = record.own[job].unwrap_or_default();
    let took = record.own[job].map(|own| own.seconds);
    let ends = record.notes.last().map_or(0.0, |(_, served)| served[job].bytes);
    JobMeasured {
        id: scenario.jobs[job].id.to_string(),
        op: scenario.jobs[job].op.word(),
        served: ends as u64,
        counted: own.bytes,
        throughput: sum(|done| done.bytes) / time,
        requests: sum(|done| done.requests) / time,
        deviation: deviation(steps, job, scenario.jobs[job].op),
        share,
        due,
        error: share.zip(due).map(|(share, due)| (share - due).abs() / due.max(1e-12)),
        mean_wait: sum(|done| done.waited) / sum(|done| done.requests).max(1.0),
        took: alone.and(took),
        slowdown: took.zip(alone).map(|(took, alone)| took / alone - 1.0),
    }
}

/// Standard deviation of a job's throughput while the same jobs ran: of bytes, or of requests if it moves no
/// bytes.
fn deviation(steps: &[Step], job: usize, op: Op) -> f64 {
    let counts = matches!(op, Op::Stat | Op::Create);
    let mut phases: Vec<(Vec<usize>, Vec<f64>)> = Vec::new();
    for step in steps.iter().filter(|step| step.steady && step.here.contains(&job)) {
        let done = step.done[job];
        let rate = if counts { done.requests } else { done.bytes } / step.length;
        match phases.iter_mut().find(|(here, _)| *here == step.here) {
            Some((_, rates)) => rates.push(rate),
            None => phases.push((step.here.clone(), vec![rate])),
        }
    }
    let mut squares = 0.0;
    let mut count = 0;
    for (_, rates) in &phases {
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        squares += rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>();
        count += rates.len();
    }
    if count > 1 { (squares / (count - 1) as f64).sqrt() } else { 0.0 }
}

/// The longest time from a join or leave until shares were fair, and stayed so for a few samples.
fn fairness(steps: &[Step]) -> Option<f64> {
    let mut worst: Option<f64> = None;
    let mut at = 0;
    while at < steps.len() {
        let phase = steps[at..]
            .iter()
            .take_while(|step| step.here == steps[at].here && step.changed == steps[at].changed);
        let phase = &steps[at..at + phase.count()];
        at += phase.len();
        if phase[0].here.len() < 2 || phase.len() < RUN {
            continue;
        }
        let fair = phase.windows(RUN).find(|run| {
            let done = |job: usize| run.iter().map(|step| cost(step.done[job])).sum::<f64>();
            let whole: f64 = run[0].here.iter().map(|&job| done(job)).sum();
            let close = |(job, due): (&usize, &f64)| (done(*job) / whole.max(1.0) - due).abs() <= CLOSE * due;
            run[0].here.iter().zip(&run[0].due).all(close)
        });
        // Shares became fair at the first of the fair samples.
        let time = fair.map_or(f64::INFINITY, |run| (run[0].begin - phase[0].changed).max(0.0));
        worst = Some(worst.unwrap_or(0.0).max(time));
    }
    worst.filter(|worst| worst.is_finite())
}

#[cfg(test)]
mod tests {
    use super::super::process::Done;
    use super::*;

    const MIB: f64 = (1 << 20) as f64;

    /// A record of two jobs: the first alone until 2 s, then both until 6 s, then the first until 8 s. The
    /// servers do `total` MiB per second, of which the second job has `part` while it runs, and a third for the
    /// first `unfair` seconds.
    fn record(total: f64, part: f64, unfair: f64) -> Record {
        let mut served = [Served::default(); 2];
        let mut notes = vec![(0.0, served.to_vec())];
        for beat in 1..=82 {
            let time = f64::from(beat) / 10.0;
            let second = match time {
                _ if time <= 2.0 + 1e-9 || time > 6.0 + 1e-9 => 0.0,
                _ if time <= 2.0 + unfair + 1e-9 => 1.0 / 3.0,
                _ => part,
            };
            // After the end the processes only exit.
            let moved = if time <= 8.0 + 1e-9 { total * MIB / 10.0 } else { 0.0 };
            served[0].bytes += moved * (1.0 - second);
            served[1].bytes += moved * second;
            notes.push((time, served.to_vec()));
        }
        let own =
            |job: usize, seconds| Some(Done { bytes: served[job].bytes as u64, operations: 1, seconds });
        Record { notes, spans: vec![Some((0.0, 8.2)), Some((2.0, 6.0))], own: vec![own(0, 8.0), own(1, 4.0)] }
    }

    #[test]
    fn shares_and_times_are_computed_from_samples() {
        let scenario = ShareScenario::of(
            "policy = 'size-fair'\ndevice_rate = '64MiB/s'\n[[job]]\nid = 1\nnodes = 4\nlength = 8\n\
             [[job]]\nid = 2\nstart = 2\nlength = 4\n",
        );
        let records = [
            (Discipline::Stride, record(63.0, 0.2, 0.3)),
            (Discipline::Tokens, record(64.0, 0.21, 0.0)),
            (Discipline::Fifo, record(64.0, 0.5, 0.0)),
        ];
        let [stride, tokens, fifo] = &measure(&scenario, &records, &[None, None])[..] else {
            panic!("three")
        };
        let near = |got: f64, wanted: f64| assert!((got - wanted).abs() < 1e-6, "{got} instead of {wanted}");
        near(stride.against_fifo.unwrap(), 63.0 / 64.0);
        near(tokens.against_fifo.unwrap(), 1.0);
        near(stride.time_to_fairness.unwrap(), 0.3);
        near(tokens.time_to_fairness.unwrap(), 0.0);
        assert!(fifo.time_to_fairness.is_none());
        let second = |run: &Measured| (run.jobs[1].share.unwrap(), run.jobs[1].error.unwrap());
        // Only steady samples count, and the unfair ones were not steady.
        near(second(stride).0, 0.2);
        near(second(stride).1, 0.0);
        near(second(tokens).0, 0.21);
        near(second(tokens).1, 0.05);
        near(second(fifo).1, 1.5);
        for run in [stride, tokens, fifo] {
            near(run.jobs[1].due.unwrap(), 0.2);
            near(run.jobs[0].due.unwrap(), 0.8);
            assert_eq!(run.jobs[0].served, run.jobs[0].counted);
        }
        near(tokens.jobs[1].throughput / MIB, 64.0 * 0.21);
        near(tokens.jobs[1].deviation / MIB, 0.0);
    }
}
