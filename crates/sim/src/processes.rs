//! Jobs and their processes: phases and requests.

use crate::hops::Hops;
use crate::placement;
use crate::queue::Event;
use crate::scenario::{
    Choose, Fault, JobPlan, LayoutPlan, MOST_ROUNDS, Pattern, Phase, Scenario, Spread, Way,
};
use crate::servers::Request;
use crate::world::World;
use forebay_model::{FileId, JobId, Span};
use forebay_policy::drain::{Layout, TargetId};
use forebay_policy::share::{Rng, Tick};

/// One process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    pub(crate) job: u32,
    pub(crate) rank: u32,
    /// The first hop of its requests.
    pub(crate) entry: u32,
    phase: u16,
    pub(crate) round: u32,
    /// Bytes of this phase that were sent and completed.
    sent: u64,
    done: u64,
    /// Requests in flight.
    out: u32,
    /// When this phase began.
    since: Tick,
    over: bool,
}

/// A running job.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) id: JobId,
    /// Its first process.
    pub(crate) first: u32,
    /// Processes that have finished this phase.
    waiting: u32,
    /// Processes that have not finished the job.
    left: u32,
    stopped: bool,
    pub(crate) started: Option<Tick>,
    pub(crate) ended: Option<Tick>,
    /// When all its bytes were on targets.
    pub(crate) drained: Option<Tick>,
    /// Its bytes in buffers.
    pub(crate) held: u64,
    pub(crate) written: u64,
    pub(crate) read: u64,
    /// Nanoseconds of all processes in phases that read or write.
    pub(crate) moving: u64,
    /// Servers it uses.
    pub(crate) servers: Vec<u16>,
    /// Layouts of its files, if they were placed together.
    pub(crate) placed: Vec<Layout>,
}

/// All processes and jobs.
pub(crate) fn all(plan: &Scenario, hops: &Hops, seed: u64) -> Result<(Vec<Process>, Vec<Task>), Fault> {
    let total: u32 = plan.jobs.iter().map(|job| job.processes).sum();
    let (mut processes, mut jobs) = (Vec::with_capacity(total as usize), Vec::new());
    let count = plan.servers.as_ref().map_or(0, |servers| servers.count);
    for (number, job) in plan.jobs.iter().enumerate() {
        let first = processes.len() as u32;
        processes.extend((0..job.processes).map(|rank| Process {
            job: number as u32,
            rank,
            entry: hops.entry(job.via, first + rank, total),
            phase: 0,
            round: 0,
            sent: 0,
            done: 0,
            out: 0,
            since: Tick(0),
            over: false,
        }));
        let servers = if job.servers.is_empty() { (0..count).collect() } else { job.servers.clone() };
        jobs.push(Task {
            id: job.job.id(),
            first,
            waiting: 0,
            left: job.processes,
            stopped: false,
            started: None,
            ended: None,
            drained: None,
            held: 0,
            written: 0,
            read: 0,
            moving: 0,
            servers: if job.way == Way::Direct { Vec::new() } else { servers },
            placed: placement::layouts(plan, number, seed)?,
        });
    }
    Ok((processes, jobs))
}

/// The job of a file.
pub(crate) fn owner(file: FileId) -> usize {
    (file.0 >> 48) as usize
}

impl World {
    pub(crate) fn job_plan(&self, process: u32) -> &JobPlan {
        &self.plan.jobs[self.processes[process as usize].job as usize]
    }

    /// The file that a process writes in its round.
    pub(crate) fn file(&self, process: u32) -> FileId {
        let Process { job, rank, round, .. } = self.processes[process as usize];
        let own = match self.job_plan(process).pattern {
            Pattern::Own => u64::from(rank) + 1,
            Pattern::Segmented | Pattern::Strided | Pattern::Spaced(_) | Pattern::Random => 0,
        };
        FileId(u64::from(job) << 48 | u64::from(round % MOST_ROUNDS) << 24 | own)
    }

    /// The layout of a file; deterministic.
    pub(crate) fn layout(&self, file: FileId) -> Layout {
        let LayoutPlan { stripes, stripe, choose } = self.plan.jobs[owner(file)].layout;
        if let Some(placed) =
            self.jobs[owner(file)].placed.get(((file.0 & 0xff_ffff) as usize).saturating_sub(1))
        {
            return placed.clone();
        }
        let count = self.target_states.len() as u32;
        let number = (file.0 & 0xff_ffff) + (file.0 >> 24 & 0xff_ffff);
        let first = match choose {
            Choose::First | Choose::Crowded | Choose::Balanced => 0,
            Choose::Round => (number * u64::from(stripes) % u64::from(count)) as u32,
            Choose::Chance => Rng::new(file.0).below(u64::from(count)) as u32,
        };
        if stripes == 1 {
            return Layout::single(TargetId(first % count), stripe.0);
        }
        Layout::new((0..stripes).map(|one| TargetId((first + one) % count)).collect(), stripe.0)
    }

    pub(crate) fn start_job(&mut self, job: u32) {
        self.jobs[job as usize].started = Some(self.now);
        self.join_servers(job as usize);
        let first = self.jobs[job as usize].first;
        for process in first..first + self.plan.jobs[job as usize].processes {
            self.begin_phase(process);
        }
    }

    pub(crate) fn stop_job(&mut self, job: u32) {
        let task = &mut self.jobs[job as usize];
        task.stopped = true;
        let first = task.first;
        for process in first..first + self.plan.jobs[job as usize].processes {
            if self.processes[process as usize].out == 0 {
                self.process_over(process);
            }
        }
    }

    fn begin_phase(&mut self, process: u32) {
        let state = &mut self.processes[process as usize];
        (state.sent, state.done, state.since) = (0, 0, self.now);
        match self.phase(process) {
            Phase::Compute(time, jitter) => {
                let off = if jitter > 0.0 { jitter * (2.0 * self.rng.unit() - 1.0) } else { 0.0 };
                let time = Tick((time.0 as f64 * (1.0 + off)) as u64);
                self.queue.plan(self.now.after(time), Event::Wake(process));
            }
            Phase::Write(..) | Phase::Read(..) => self.send(process),
        }
    }

    fn phase(&self, process: u32) -> Phase {
        self.job_plan(process).phases[usize::from(self.processes[process as usize].phase)]
    }

    /// Sends as many requests as may be in flight.
    fn send(&mut self, process: u32) {
        let (Phase::Write(bytes, request) | Phase::Read(bytes, request)) = self.phase(process) else {
            return;
        };
        let (job, depth) = (self.processes[process as usize].job as usize, self.job_plan(process).depth);
        while !self.jobs[job].stopped {
            let Process { out, sent, .. } = self.processes[process as usize];
            if out >= depth || sent >= bytes.0 {
                return;
            }
            let len = request.0.min(bytes.0 - sent);
            let start = self.offset(process, sent, bytes.0, request.0);
            let writes = matches!(self.phase(process), Phase::Write(..));
            let size = match self.job_plan(process).spread {
                Spread::Stripes(size) => size.0,
                Spread::Home | Spread::Chance => u64::MAX,
            };
            let whole = Span::new(start, start + len);
            let state = &mut self.processes[process as usize];
            (state.out, state.sent) = (out + pieces(whole, size).count() as u32, sent + len);
            for span in pieces(whole, size) {
                let server = self.server_of(process, span.start);
                self.launch(Request { process, span, writes, server, is_direct: false, parts: 0 });
            }
        }
    }

    /// The offset at which a process continues after the given bytes of a phase.
    fn offset(&self, process: u32, sent: u64, bytes: u64, request: u64) -> u64 {
        let plan = self.job_plan(process);
        let Process { job, rank, .. } = self.processes[process as usize];
        let (rank, all) = (u64::from(rank), u64::from(plan.processes));
        match plan.pattern {
            Pattern::Own => sent,
            Pattern::Segmented => rank * bytes + sent,
            Pattern::Strided => (sent / request * all + rank) * request,
            Pattern::Spaced(gap) => (sent / request * all + rank) * (request + gap.0),
            Pattern::Random => {
                let count = bytes.div_ceil(request);
                rank * count * request
                    + shuffled(sent / request, count, u64::from(job) << 32 | rank) * request
            }
        }
    }

    /// The server for a request of a process at an offset.
    fn server_of(&self, process: u32, start: u64) -> u16 {
        let Process { job, rank, .. } = self.processes[process as usize];
        let (servers, plan) = (&self.jobs[job as usize].servers, self.job_plan(process));
        if servers.is_empty() {
            return 0;
        }
        let home = u64::from(rank) * servers.len() as u64 / u64::from(plan.processes);
        let place = match plan.spread {
            Spread::Home => home,
            Spread::Stripes(size) => Rng::new(self.file(process).0).bits() % (1 << 32) + start / size.0,
            Spread::Chance => Rng::new(u64::from(job) << 32 | u64::from(rank)).bits(),
        };
        servers[(place % servers.len() as u64) as usize]
    }

    /// A request is complete.
    pub(crate) fn completed(&mut self, request: Request) {
        let len = request.span.len();
        let state = &mut self.processes[request.process as usize];
        state.out -= 1;
        state.done += len;
        let (job, done, out) = (state.job as usize, state.done, state.out);
        let task = &mut self.jobs[job];
        match request.writes {
            true => task.written += len,
            false => task.read += len,
        }
        self.series.count(job, self.now, len);
        let (Phase::Write(bytes, _) | Phase::Read(bytes, _)) = self.phase(request.process) else { return };
        if self.jobs[job].stopped {
            if out == 0 {
                self.process_over(request.process);
            }
        } else if done >= bytes.0 {
            self.phase_over(request.process);
        } else {
            self.send(request.process);
        }
    }

    /// A process has finished its phase.
    pub(crate) fn phase_over(&mut self, process: u32) {
        if self.processes[process as usize].over {
            return;
        }
        let job = self.processes[process as usize].job as usize;
        match self.phase(process) {
            Phase::Compute(..) => {}
            Phase::Write(..) | Phase::Read(..) => self.tally(process),
        }
        let JobPlan { together, processes, .. } = self.plan.jobs[job];
        if !together {
            return self.go_on(process);
        }
        self.jobs[job].waiting += 1;
        if self.jobs[job].waiting == processes {
            self.jobs[job].waiting = 0;
            let first = self.jobs[job].first;
            (first..first + processes).for_each(|process| self.go_on(process));
        }
    }

    fn tally(&mut self, process: u32) {
        let Process { job, since, .. } = self.processes[process as usize];
        self.jobs[job as usize].moving += self.now.since(since).0;
    }

    /// Continues with the next phase or round, or ends.
    fn go_on(&mut self, process: u32) {
        let (phases, rounds) = (self.job_plan(process).phases.len(), self.job_plan(process).rounds);
        let state = &mut self.processes[process as usize];
        if state.over {
            return;
        }
        state.phase += 1;
        if usize::from(state.phase) == phases {
            (state.phase, state.round) = (0, state.round + 1);
        }
        if state.round == rounds {
            self.process_over(process);
        } else {
            self.begin_phase(process);
        }
    }

    fn process_over(&mut self, process: u32) {
        if self.processes[process as usize].over {
            return;
        }
        self.processes[process as usize].over = true;
        let job = self.processes[process as usize].job as usize;
        self.jobs[job].left -= 1;
        if self.jobs[job].left == 0 {
            self.jobs[job].ended = Some(self.now);
            self.running -= 1;
            self.leave_servers(job);
            self.note_drained(job);
            for (number, plan) in
                self.plan.jobs.iter().enumerate().filter(|(_, plan)| plan.after == Some(job))
            {
                self.queue.plan(self.now.after(plan.start), Event::Start(number as u32));
            }
            if self.running == 0 {
                (0..self.servers.len()).for_each(|server| self.drain_to_the_end(server));
            }
        }
    }

    /// Records when all bytes of a job are on targets.
    pub(crate) fn note_drained(&mut self, job: usize) {
        let task = &mut self.jobs[job];
        if task.held == 0 && task.ended.is_some() {
            task.drained = task.drained.or(Some(self.now));
        }
    }
}

/// Splits a request at server boundaries.
fn pieces(span: Span, size: u64) -> impl Iterator<Item = Span> {
    let cut = move |start: u64| (start / size + 1).saturating_mul(size).min(span.end);
    let starts =
        std::iter::successors(Some(span.start), move |&start| Some(cut(start)).filter(|&end| end < span.end));
    starts.map(move |start| Span::new(start, cut(start)))
}

/// The `k`-th of `count` in a pseudo-random order that depends on the seed.
fn shuffled(k: u64, count: u64, seed: u64) -> u64 {
    let mut rng = Rng::new(seed ^ 0x5eed);
    let start = rng.below(count.max(1));
    let step = loop {
        let step = 1 + rng.below(count.max(1));
        if gcd(step, count) == 1 {
            break step;
        }
    };
    ((u128::from(start) + u128::from(k) * u128::from(step)) % u128::from(count.max(1))) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_order_is_a_permutation_with_few_neighbours() {
        for count in [1, 2, 7, 64, 1000] {
            let mut seen: Vec<u64> = (0..count).map(|k| shuffled(k, count, count)).collect();
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..count), "{count}");
        }
        let near = |seed| {
            (1..1000).filter(|&k| shuffled(k, 1000, seed).abs_diff(shuffled(k - 1, 1000, seed)) == 1).count()
        };
        assert!((0..20).filter(|&seed| near(seed) > 0).count() <= 1);
    }
}
