//! The machine and its jobs. All values are checked before the run.

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::{Rules, Slots, slots};
use forebay_policy::device::Device;
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{self, Full, Mode};
use forebay_policy::share::{Discipline, MAX_JOBS, Policy, Rate, Tick};
use std::fmt;

/// Most processes of all jobs together.
const MOST_PROCESSES: u64 = 1 << 22;
/// Most links, routers and storage servers.
const MOST_HOPS: u64 = 1 << 20;
/// Most targets: the arbiter's limit.
const MOST_TARGETS: u64 = 1 << 16;
/// The round must fit into its field of a file id.
pub(crate) const MOST_ROUNDS: u32 = 1 << 24;

/// Links, routers or storage servers of one kind. Each serves its traffic in order of arrival.
#[derive(Clone, PartialEq, Debug)]
pub struct HopGroup {
    /// How many there are.
    pub count: u32,
    /// Bytes per second of each.
    pub rate: f64,
    /// Latency that it adds.
    pub latency: Tick,
    /// Random extra time, as a share of the transit time: flows that share a network are not served strictly
    /// in turn. 0 for none.
    pub unrest: f64,
    /// The next group; its members get even shares.
    pub to: Option<usize>,
}

/// Targets of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct TargetGroup {
    /// How many there are.
    pub count: u32,
    /// The model of each.
    pub device: Device,
    /// The group of hops before them.
    pub via: Option<usize>,
}

/// How a server drains.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DrainPlan {
    /// The drain order.
    pub order: Order,
    /// Bytes that are gathered before any of them leave: a region of the buffer, sorted as a whole.
    pub region: Option<Bytes>,
    /// The largest write.
    pub largest: Bytes,
    /// Writes in flight at once (of a server, or of a grant where targets are granted), if not as many as a server of
    /// the daemon has.
    pub streams: Option<u32>,
    /// Targets that a job of a server may be granted at once, if not as many as the daemon grants.
    pub per_server: Option<u32>,
    /// When it drains.
    pub trigger: Trigger,
    /// Whether it drains while more data arrives.
    pub pipeline: Pipeline,
    /// Whether writers and the drain share processors: the drain leaves them to a burst, as the daemon does.
    pub shares_processors: bool,
    /// Largest random delay before a server starts to drain, because real machines are not synchronised.
    pub lag: Tick,
    /// Mean random delay before each write.
    pub pause: Tick,
    /// The arbiter's rules, for `trio`; how many targets a server is granted at once is not taken from here.
    pub rules: Rules,
}

impl DrainPlan {
    /// How servers and writers use the targets: as the daemon does, or as the scenario says.
    pub(crate) fn slots(&self, targets: u32, servers: u16) -> Slots {
        let mut slots = slots(self.rules.alpha, targets, u32::from(servers));
        if let Some(streams) = self.streams {
            // α counts servers then, as in the papers.
            slots.members = self.rules.alpha;
            (slots.streams_per_job, slots.writers) = (streams, streams);
        }
        slots.per_server = self.per_server.unwrap_or(slots.per_server);
        slots
    }
}

/// The buffer servers, all alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    /// How many.
    pub count: u16,
    /// Bytes per second of each, in and out.
    pub rate: Rate,
    /// Requests that it serves at once.
    pub turns: u32,
    /// Buffer size.
    pub capacity: Bytes,
    /// Sharing policy.
    pub policy: Policy,
    /// The scheduler that enforces it.
    pub discipline: Discipline,
    /// Interval in which servers exchange their job tables.
    pub lambda: Option<Tick>,
    /// The group of hops before them.
    pub via: Option<usize>,
    /// How it drains; if `None`, data stays in the buffer.
    pub drain: Option<DrainPlan>,
    /// What happens to writes when the buffer is full.
    pub full: Full,
    /// Which writes are buffered.
    pub mode: Mode,
    /// Settings of the stream detector, for modes that use it.
    pub streams: route::Settings,
}

/// A phase that all processes of a job run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// Computes for the given time, plus or minus a share of it.
    Compute(Tick, f64),
    /// Writes the given bytes in requests of the given size.
    Write(Bytes, Bytes),
    /// Reads the given bytes in requests of the given size.
    Read(Bytes, Bytes),
}

/// Access pattern of a job.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Pattern {
    /// Each process writes its own file, from the start on.
    #[default]
    Own,
    /// All write one file, each a contiguous segment.
    Segmented,
    /// All write one file, interleaved by request.
    Strided,
    /// All write one file, interleaved by request, with a gap of this many bytes after each.
    Spaced(Bytes),
    /// All write one file, each a segment in random order.
    Random,
}

/// How the targets of a file are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Choose {
    /// The same first targets for all files.
    First,
    /// Round-robin over files.
    #[default]
    Round,
    /// At random.
    Chance,
    /// Round-robin, while other jobs create as many files at random moments: the default of a file system.
    Crowded,
    /// By the placement policy.
    Balanced,
}

/// Layout of a job's files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutPlan {
    /// Stripe count of each file.
    pub stripes: u32,
    /// Stripe size in bytes.
    pub stripe: Bytes,
    /// How the targets are chosen.
    pub choose: Choose,
}

impl Default for LayoutPlan {
    fn default() -> LayoutPlan {
        LayoutPlan { stripes: 1, stripe: Bytes::mib(1), choose: Choose::Round }
    }
}

/// Which servers a process uses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Spread {
    /// One: blocks of consecutive processes share a server.
    #[default]
    Home,
    /// All of the job's servers, round-robin by pieces of this size.
    Stripes(Bytes),
    /// One, at random.
    Chance,
}

/// Whether a job uses the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Way {
    /// It uses the buffer.
    #[default]
    Buffer,
    /// It writes directly to the targets.
    Direct,
}

/// A job: processes that run the same phases repeatedly, together.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPlan {
    /// Its identity.
    pub job: Job,
    /// Number of processes.
    pub processes: u32,
    /// The job whose end it waits for.
    pub after: Option<usize>,
    /// When it starts; relative to the end of the other job if it waits for one.
    pub start: Tick,
    /// When it is stopped.
    pub stop: Option<Tick>,
    /// How often it runs its phases.
    pub rounds: u32,
    /// Its phases.
    pub phases: Vec<Phase>,
    /// Whether processes wait for each other after each phase.
    pub together: bool,
    /// Requests of a process in flight at once.
    pub depth: u32,
    /// Mean random delay of a process before each request.
    pub pause: Tick,
    /// Its access pattern.
    pub pattern: Pattern,
    /// Layout of its files.
    pub layout: LayoutPlan,
    /// Whether it uses the buffer.
    pub way: Way,
    /// The servers it uses; all if empty.
    pub servers: Vec<u16>,
    /// How its processes use them.
    pub spread: Spread,
    /// The group of hops that its requests start at.
    pub via: Option<usize>,
}

impl JobPlan {
    /// A job with default settings.
    #[must_use]
    pub fn new(job: Job, processes: u32, phases: Vec<Phase>) -> JobPlan {
        JobPlan {
            job,
            processes,
            after: None,
            start: Tick(0),
            stop: None,
            rounds: 1,
            phases,
            together: true,
            depth: 1,
            pause: Tick(0),
            pattern: Pattern::default(),
            layout: LayoutPlan::default(),
            way: Way::default(),
            servers: Vec::new(),
            spread: Spread::default(),
            via: None,
        }
    }
}

/// A part that can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A server, by number.
    Server(u16),
    /// A target, by number.
    Target(u32),
}

/// A temporary failure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The part.
    pub part: Part,
    /// When it fails.
    pub at: Tick,
    /// How long it is down.
    pub lasts: Tick,
}

/// A machine and its jobs.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// Links, routers, storage servers.
    pub hops: Vec<HopGroup>,
    /// Buffer servers, if any.
    pub servers: Option<Servers>,
    /// Targets, numbered through all groups.
    pub targets: Vec<TargetGroup>,
    /// Jobs.
    pub jobs: Vec<JobPlan>,
    /// Failures.
    pub failures: Vec<Failure>,
    /// Length of a window for the time series; doubles when there are too many windows.
    pub window: Tick,
    /// Latest end of the run.
    pub until: Option<Tick>,
}

impl Default for Scenario {
    fn default() -> Scenario {
        Scenario {
            hops: Vec::new(),
            servers: None,
            targets: Vec::new(),
            jobs: Vec::new(),
            failures: Vec::new(),
            window: Tick::ms(1000),
            until: None,
        }
    }
}

/// Location of an error in a scenario.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// A group of hops.
    Hop(usize),
    /// A group of targets.
    Target(usize),
    /// The servers.
    Servers,
    /// A job.
    Job(usize),
    /// A failure.
    Failure(usize),
    /// The whole scenario.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Hop(number) => write!(f, "group {} of hops", number + 1),
            Place::Target(number) => write!(f, "group {} of targets", number + 1),
            Place::Servers => f.write_str("the servers"),
            Place::Job(number) => write!(f, "job {}", number + 1),
            Place::Failure(number) => write!(f, "failure {}", number + 1),
            Place::Whole => f.write_str("the scenario"),
        }
    }
}

/// An error in a scenario.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The location.
    pub place: Place,
    /// The key with the wrong value.
    pub key: &'static str,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.key, self.text)
    }
}

type Checked = Result<(), Fault>;

fn fault(place: Place, key: &'static str, text: impl Into<String>) -> Checked {
    Err(Fault { place, key, text: text.into() })
}

impl Scenario {
    /// Number of targets.
    #[must_use]
    pub fn target_count(&self) -> u32 {
        self.targets.iter().map(|group| group.count).fold(0, u32::saturating_add)
    }

    /// Checks the whole scenario.
    pub fn check(&self) -> Checked {
        self.check_hops()?;
        for (i, group) in self.targets.iter().enumerate() {
            if group.count == 0 {
                return fault(Place::Target(i), "count", "must be at least 1");
            }
            self.check_via(Place::Target(i), group.via)?;
        }
        let targets = self.targets.iter().map(|group| u64::from(group.count)).sum::<u64>();
        if targets > MOST_TARGETS {
            return fault(
                Place::Target(0),
                "count",
                format!("{targets} targets are more than {MOST_TARGETS}"),
            );
        }
        if let Some(servers) = &self.servers {
            self.check_servers(servers)?;
        }
        if self.jobs.is_empty() {
            return fault(Place::Whole, "job", "the scenario has no job");
        }
        if self.jobs.len() > MAX_JOBS {
            return fault(Place::Whole, "job", format!("more than {MAX_JOBS} jobs"));
        }
        let processes: u64 = self.jobs.iter().map(|job| u64::from(job.processes)).sum();
        if processes > MOST_PROCESSES {
            let text = format!("{processes} processes are more than {MOST_PROCESSES}");
            return fault(Place::Whole, "processes", text);
        }
        for (i, plan) in self.jobs.iter().enumerate() {
            self.check_job(Place::Job(i), plan)?;
        }
        for (i, failure) in self.failures.iter().enumerate() {
            self.check_failure(Place::Failure(i), failure)?;
        }
        if self.window.0 == 0 {
            return fault(Place::Whole, "window", "must be longer than 0");
        }
        Ok(())
    }

    fn check_via(&self, place: Place, via: Option<usize>) -> Checked {
        match via {
            Some(group) if group >= self.hops.len() => fault(place, "via", "no such group of hops"),
            _ => Ok(()),
        }
    }

    fn check_hops(&self) -> Checked {
        for (i, group) in self.hops.iter().enumerate() {
            let place = Place::Hop(i);
            if group.count == 0 {
                return fault(place, "count", "must be at least 1");
            }
            if !(group.rate > 0.0 && group.rate.is_finite()) {
                return fault(
                    place,
                    "rate",
                    format!("{} bytes per second is not a positive rate", group.rate),
                );
            }
            if !(0.0..=10.0).contains(&group.unrest) {
                return fault(place, "unrest", format!("{} is not from 0 to 10", group.unrest));
            }
            self.check_via(place, group.to)?;
        }
        let hops: u64 = self.hops.iter().map(|group| u64::from(group.count)).sum();
        if hops > MOST_HOPS {
            return fault(Place::Hop(0), "count", format!("{hops} hops are more than {MOST_HOPS}"));
        }
        for start in 0..self.hops.len() {
            let mut way = std::iter::successors(Some(start), |&at| self.hops[at].to);
            if way.nth(self.hops.len()).is_some() {
                let text = "the path from this group is a loop and never reaches a target";
                return fault(Place::Hop(start), "to", text);
            }
        }
        Ok(())
    }

    fn check_servers(&self, servers: &Servers) -> Checked {
        let place = Place::Servers;
        self.check_via(place, servers.via)?;
        for (key, zero) in [
            ("count", servers.count == 0),
            ("rate", servers.rate.0 == 0),
            ("turns", servers.turns == 0),
            ("capacity", servers.capacity.0 == 0),
            ("lambda", servers.lambda == Some(Tick(0))),
        ] {
            if zero {
                return fault(place, key, "cannot be nothing");
            }
        }
        let Some(drain) = &servers.drain else { return Ok(()) };
        if self.targets.is_empty() {
            return fault(place, "drain", "the scenario has no targets to drain to");
        }
        let is_zero = |count: Option<u32>| count == Some(0);
        let none = is_zero(drain.streams) || is_zero(drain.per_server) || drain.rules.alpha == 0;
        if drain.largest.0 == 0 || none {
            return fault(place, "drain", "the largest write and the number of streams must be positive");
        }
        let above = drain.trigger.threshold;
        if !(0.0..1.0).contains(&above) {
            return fault(place, "above", format!("{above} is not a share of the buffer from 0 to below 1"));
        }
        Ok(())
    }

    fn check_job(&self, place: Place, plan: &JobPlan) -> Checked {
        if let Some(text) = plan.job.fault() {
            return fault(place, "id", text);
        }
        self.check_via(place, plan.via)?;
        for (key, zero) in [
            ("processes", plan.processes == 0),
            ("depth", plan.depth == 0),
            ("rounds", plan.rounds == 0),
            ("phases", plan.phases.is_empty()),
            ("stripes", plan.layout.stripes == 0),
            ("stripe", plan.layout.stripe.0 == 0),
            ("spread", plan.spread == Spread::Stripes(Bytes(0))),
        ] {
            if zero {
                return fault(place, key, "cannot be nothing");
            }
        }
        if plan.rounds > MOST_ROUNDS {
            return fault(place, "rounds", format!("more than {MOST_ROUNDS}"));
        }
        for phase in &plan.phases {
            match phase {
                Phase::Write(bytes, request) | Phase::Read(bytes, request) => {
                    if bytes.0 == 0 || request.0 == 0 {
                        return fault(
                            place,
                            "bytes",
                            "the bytes of a phase and of a request must be positive",
                        );
                    }
                }
                Phase::Compute(_, jitter) if !(0.0..=1.0).contains(jitter) => {
                    return fault(place, "jitter", format!("{jitter} is not a share from 0 to 1"));
                }
                Phase::Compute(..) => {}
            }
        }
        if plan.stop.is_some_and(|stop| stop < plan.start) {
            return fault(place, "stop", "before it starts");
        }
        let mut before = plan.after;
        for _ in 0..=self.jobs.len() {
            match before {
                None => return self.check_use(place, plan),
                Some(job) if job >= self.jobs.len() => return fault(place, "after", "no such job"),
                Some(job) => before = self.jobs[job].after,
            }
        }
        fault(place, "after", "the jobs wait for each other in a loop: none of them ever starts")
    }

    /// Checks that the servers and targets of a job exist.
    fn check_use(&self, place: Place, plan: &JobPlan) -> Checked {
        let targets = self.target_count();
        let needs = match (&self.servers, plan.way) {
            (None, Way::Buffer) => return fault(place, "way", "the scenario has no servers"),
            (Some(servers), Way::Buffer) => {
                if let Some(bad) = plan.servers.iter().find(|&&one| one >= servers.count) {
                    return fault(place, "servers", format!("there is no server {bad}"));
                }
                servers.drain.is_some() || servers.full == Full::Bypass || servers.mode != Mode::Buffer
            }
            (_, Way::Direct) if plan.phases.iter().any(|phase| matches!(phase, Phase::Read(..))) => {
                return fault(
                    place,
                    "way",
                    "reads bypassing the buffer are not modelled: read through the buffer",
                );
            }
            (_, Way::Direct) => true,
        };
        if (needs || targets > 0) && plan.layout.stripes > targets {
            let text =
                format!("{} targets for a file are more than the {targets} there are", plan.layout.stripes);
            return fault(place, "stripes", text);
        }
        Ok(())
    }

    fn check_failure(&self, place: Place, failure: &Failure) -> Checked {
        let servers = self.servers.as_ref().map_or(0, |servers| servers.count);
        match failure.part {
            Part::Server(one) if one >= servers => {
                fault(place, "server", format!("there is no server {one}"))
            }
            Part::Target(one) if one >= self.target_count() => {
                fault(place, "target", format!("there is no target {one}"))
            }
            _ if failure.lasts.0 == 0 => fault(place, "lasts", "must be longer than 0"),
            _ => Ok(()),
        }
    }
}
