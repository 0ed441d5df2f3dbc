//! `demo`: jobs write, the server is killed and restarted in the middle, every byte is verified; then two jobs
//! share a
//! device, three drain to modelled targets, and two write to a buffer with a modelled disk as back end.
//!
//! Everything is real: a server process, one client process for each job, Unix sockets, SIGKILL. All data is in
//! a
//! temporary directory and in memory, and is removed at the end, also when the demo is interrupted.

mod crew;
mod duel;
mod live;
mod pattern;
mod plan;
mod route;
mod stage;
mod worker;

use crate::failure::{Failure, Outcome};
use crate::view::{Crash, DemoReport, JobReport};
use crate::{human, output, signals};
use clap::Args;
use crew::{Crew, Task};
use duel::Duel;
use forebay_model::Bytes;
use live::Live;
use plan::Plan;
use stage::Stage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
pub(crate) use worker::DemoJob;

#[derive(Args)]
pub(crate) struct Demo {
    /// Bytes to write in total
    #[arg(long, hide = true)]
    size: Option<Bytes>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

impl Demo {
    pub(crate) fn run(&self) -> Outcome {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        signals::on_stop(move || stopped.store(true, Ordering::Relaxed))?;
        let plan = Plan::new(self.size.unwrap_or_else(plan::fitting));
        let mut stage = Stage::build(&plan)?;
        let report = Play { plan: &plan, stage: &mut stage, stop: &stop, quiet: self.json }.run();
        let removed = stage.remove();
        let report = report?;
        removed?;
        output::show(&report, self.json)?;
        report.verdict().map_err(Failure::Failed)
    }
}

/// One run of the demo.
struct Play<'a> {
    plan: &'a Plan,
    stage: &'a mut Stage,
    stop: &'a AtomicBool,
    quiet: bool,
}

/// The times of the crash.
struct CrashTimes {
    acknowledged: u64,
    /// Bytes that the killed server had acknowledged, by the messages received before the next one served.
    before: u64,
    killed: Instant,
    served: Instant,
    /// When the restarted server acknowledged its first byte.
    acknowledged_again: Option<Instant>,
    recovery: forebay_wire::RecoverySummary,
}

impl Play<'_> {
    fn run(mut self) -> Outcome<DemoReport> {
        let live = Live::new(self.plan, self.quiet);
        live.event(format_args!(
            "{} jobs, a process with {} writers each, write {} into a buffer of {} in memory",
            self.plan.jobs.len(),
            plan::WRITERS,
            human::size(self.plan.total()),
            human::size(self.plan.capacity.0)
        ))?;
        self.stage.start_server()?;
        let (written, fall) = self.write(&live)?;
        let (verified, reading) = self.verify(&live)?;
        live.finish();
        live.event(format_args!(
            "a new job uses a device of 64 MiB/s; a smaller one will join it; the policy is size-fair"
        ))?;
        let mut duel = Duel::new(&live);
        let sharing = forebay_bench::duel(self.stop, &mut |jobs| duel.show(jobs));
        duel.finish();
        let sharing = sharing?;
        live.event(format_args!(
            "three jobs have data for four modelled disks: drained in order of arrival, and as TRIO does, smallest job first"
        ))?;
        let draining = forebay_bench::drained(self.stop)?;
        let routing = route::play(&live, self.stop)?;
        let jobs =
            self.plan.jobs.iter().zip(written.done.iter().zip(&verified)).map(|(job, (wrote, read))| {
                JobReport {
                    label: job.label,
                    written: wrote.bytes,
                    seconds: wrote.seconds,
                    longest_wait: wrote.longest_wait,
                    verified: read.bytes,
                    wrong: read.wrong,
                    first_wrong: read.first_wrong.clone(),
                }
            });
        let crash = fall.map(|fall| Crash {
            acknowledged: fall.acknowledged,
            restart: (fall.served - fall.killed).as_secs_f64(),
            outage: fall
                .acknowledged_again
                .map(|acknowledged_again| (acknowledged_again - fall.killed).as_secs_f64()),
            recovery: fall.recovery,
        });
        Ok(DemoReport {
            jobs: jobs.collect(),
            expected: self.plan.total(),
            writing: written.time.as_secs_f64(),
            reading: reading.as_secs_f64(),
            crash,
            sharing,
            draining,
            routing,
        })
    }

    /// Lets all jobs write, and kills the server when they have written part of their data.
    fn write(&mut self, live: &Live) -> Outcome<(Written, Option<CrashTimes>)> {
        let (begin, total) = (Instant::now(), self.plan.total());
        let mut crew = Crew::start(self.plan, self.stage.service(), Task::Write)?;
        let mut fall: Option<CrashTimes> = None;
        while !crew.is_done() {
            crew.poll()?;
            self.check()?;
            live.progress(&crew, "writes");
            let now = crew.acknowledged();
            match &mut fall {
                None if now * 5 >= total * 2 && !crew.is_done() => {
                    let mut fallen = self.crash(live, now)?;
                    // Messages about bytes acknowledged before the kill may arrive only now.
                    crew.catch_up()?;
                    fallen.before = crew.acknowledged();
                    fall = Some(fallen);
                }
                Some(fall) if fall.acknowledged_again.is_none() && now > fall.before => {
                    fall.acknowledged_again = Some(Instant::now());
                }
                _ => {}
            }
        }
        Ok((Written { done: crew.results(), time: begin.elapsed() }, fall))
    }

    /// Kills the server, and at once starts another one on the same store.
    fn crash(&mut self, live: &Live, acknowledged: u64) -> Outcome<CrashTimes> {
        let killed = Instant::now();
        self.stage.kill_server()?;
        live.event(format_args!("server killed (SIGKILL) with {} acknowledged", human::size(acknowledged)))?;
        let recovery = self.stage.start_server()?;
        let served = Instant::now();
        live.event(format_args!(
            "server back after {}: {} replayed, {} torn; the jobs carry on by themselves",
            human::duration(served - killed),
            human::counted(recovery.records, "record"),
            recovery.torn
        ))?;
        Ok(CrashTimes {
            acknowledged,
            before: acknowledged,
            killed,
            served,
            acknowledged_again: None,
            recovery,
        })
    }

    fn verify(&mut self, live: &Live) -> Outcome<(Vec<worker::Done>, Duration)> {
        live.event(format_args!("all written; new processes read every byte back and compare"))?;
        live.again();
        let begin = Instant::now();
        let mut crew = Crew::start(self.plan, self.stage.service(), Task::Verify)?;
        while !crew.is_done() {
            crew.poll()?;
            self.check()?;
            live.progress(&crew, "reads");
        }
        Ok((crew.results(), begin.elapsed()))
    }

    fn check(&self) -> Outcome {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }
}

/// The result of the write phase.
struct Written {
    done: Vec<worker::Done>,
    time: Duration,
}
