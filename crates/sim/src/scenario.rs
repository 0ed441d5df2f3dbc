//! What the machine is, and what runs on it. All numbers are checked before anything runs.

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::Device;
use forebay_policy::drain::Order;
use forebay_policy::route::{self, Mode};
use forebay_policy::share::{Discipline, MAX_JOBS, Policy, Rate, Tick};
use std::fmt;

/// Most processes of all jobs together.
const MOST_PROCESSES: u64 = 1 << 22;
/// Most links, routers and storage servers.
const MOST_HOPS: u64 = 1 << 20;
/// Most targets: what an arbiter can tell apart.
const MOST_TARGETS: u64 = 1 << 16;
/// Rounds of a job fit into the number of a file.
pub(crate) const MOST_ROUNDS: u32 = 1 << 24;

/// Links, routers or storage servers of one kind. Each serves what passes in turn.
#[derive(Clone, PartialEq, Debug)]
pub struct HopGroup {
    /// How many there are.
    pub count: u32,
    /// Bytes a second that each passes on.
    pub rate: f64,
    /// What it adds to the time of everything that passes.
    pub latency: Tick,
    /// How much longer something takes by chance, as a share of what it took to get through: flows that share a network
    /// are not served strictly in turn. 0 if they are.
    pub unrest: f64,
    /// The group behind it; its members are dealt to evenly.
    pub to: Option<usize>,
}

/// Targets of one kind.
#[derive(Clone, PartialEq, Debug)]
pub struct TargetGroup {
    /// How many there are.
    pub count: u32,
    /// What each is like.
    pub device: Device,
    /// The group of hops before them.
    pub via: Option<usize>,
}

/// When a server empties its buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum When {
    /// While more than this share of it is used.
    Above(f64),
    /// When none of its processes is in the middle of writing.
    Between,
}

/// How data leaves a server.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DrainPlan {
    /// In which order.
    pub order: Order,
    /// Bytes that are gathered before any of them leave: a region of the buffer, put in order as a whole.
    pub region: Option<Bytes>,
    /// The largest write.
    pub largest: Bytes,
    /// Writes under way at once: of a server, or of a grant where targets are granted.
    pub streams: u32,
    /// When.
    pub when: When,
    /// A server begins so much later at most, by chance: no two machines do anything at the same moment.
    pub lag: Tick,
    /// What a server needs before each write, on average, by chance.
    pub pause: Tick,
    /// The arbiter's rules, for `trio`.
    pub rules: Rules,
}

/// What becomes of writes when the buffer is full.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Full {
    /// They wait.
    #[default]
    Wait,
    /// They go straight to the targets.
    Direct,
}

/// The buffer servers, all alike.
#[derive(Clone, PartialEq, Debug)]
pub struct Servers {
    /// How many.
    pub count: u16,
    /// What each takes in and gives out, in bytes a second.
    pub rate: Rate,
    /// Requests that it works on at once.
    pub turns: u32,
    /// How much it can hold.
    pub capacity: Bytes,
    /// How it is shared.
    pub policy: Policy,
    /// What enforces that.
    pub discipline: Discipline,
    /// How often servers tell each other their jobs.
    pub lambda: Option<Tick>,
    /// The group of hops before them.
    pub via: Option<usize>,
    /// How data leaves; if not at all, the buffer is the end of the way.
    pub drain: Option<DrainPlan>,
    /// What becomes of writes when there is no room.
    pub full: Full,
    /// Which writes are buffered.
    pub mode: Mode,
    /// How streams of writes are looked at, where that decides.
    pub streams: route::Settings,
}

/// One thing that all processes of a job do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Phase {
    /// Computes: for so long, give or take a share of that.
    Compute(Tick, f64),
    /// Writes so much in requests of a size.
    Write(Bytes, Bytes),
    /// Reads so much in requests of a size.
    Read(Bytes, Bytes),
}

/// Where processes write.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Pattern {
    /// Each to a file of its own, from the start on.
    #[default]
    Own,
    /// All to one file, each to a segment from its start on.
    Segmented,
    /// All to one file, in turn.
    Strided,
    /// All to one file, in turn, with a gap of so many bytes after each request.
    Spaced(Bytes),
    /// All to one file, each to a segment, at random.
    Random,
}

/// Which targets a file gets.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Choose {
    /// All files the same: the first ones.
    First,
    /// One file after the other, round and round.
    #[default]
    Round,
    /// By chance.
    Chance,
    /// One file after the other, while others make as many files, at any moment: what a file system does by itself.
    Crowded,
    /// As the placement policy likes.
    Balanced,
}

/// How a job's files lie on targets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutPlan {
    /// Targets of each file.
    pub stripes: u32,
    /// Bytes in a stripe.
    pub stripe: Bytes,
    /// Which targets.
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
    /// One, near it: processes are dealt to the job's servers in blocks.
    #[default]
    Home,
    /// All of the job's, one for each piece of this size.
    Stripes(Bytes),
    /// One, by chance.
    Chance,
}

/// Whether a job uses the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Way {
    /// It does.
    #[default]
    Buffer,
    /// It writes straight to the targets.
    Direct,
}

/// A job: processes that do the same phases over and over, together.
#[derive(Clone, PartialEq, Debug)]
pub struct JobPlan {
    /// Who it is.
    pub job: Job,
    /// How many processes.
    pub processes: u32,
    /// The job whose end it waits for.
    pub after: Option<usize>,
    /// When it begins; from the end of the other job on if it waits for one.
    pub start: Tick,
    /// When it is told to stop.
    pub stop: Option<Tick>,
    /// How often it does its phases.
    pub rounds: u32,
    /// What it does.
    pub phases: Vec<Phase>,
    /// Whether processes wait for each other after each phase.
    pub together: bool,
    /// Requests that a process has under way at once.
    pub depth: u32,
    /// What a process needs before each request, on average, by chance.
    pub pause: Tick,
    /// Where it writes.
    pub pattern: Pattern,
    /// How its files lie on targets.
    pub layout: LayoutPlan,
    /// Whether it uses the buffer.
    pub way: Way,
    /// The servers it uses; all if none is named.
    pub servers: Vec<u16>,
    /// How it spreads over them.
    pub spread: Spread,
    /// The group of hops that its processes begin at.
    pub via: Option<usize>,
}

impl JobPlan {
    /// A job that does nothing yet.
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

/// What can fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// A server, by number.
    Server(u16),
    /// A target, by number.
    Target(u32),
}

/// Something that does not work for a while.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Failure {
    /// What.
    pub part: Part,
    /// From when on.
    pub at: Tick,
    /// For how long.
    pub lasts: Tick,
}

/// A machine and its work.
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
    /// What fails.
    pub failures: Vec<Failure>,
    /// Length of a window in which work is counted; doubles when there would be too many.
    pub window: Tick,
    /// The end, if it does not end before.
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

/// Where in a scenario a fault is.
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
    /// The whole.
    Whole,
}

/// What cannot be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// The key that is to be changed.
    pub key: &'static str,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}: {}", self.place, self.key, self.text)
    }
}

type Checked = Result<(), Fault>;

fn fault(place: Place, key: &'static str, text: impl Into<String>) -> Checked {
    Err(Fault { place, key, text: text.into() })
}

impl Scenario {
    /// How many targets there are.
    #[must_use]
    pub fn target_count(&self) -> u32 {
        self.targets.iter().map(|group| group.count).fold(0, u32::saturating_add)
    }

    /// Whether all of it can be.
    pub fn check(&self) -> Checked {
        self.check_hops()?;
        for (i, group) in self.targets.iter().enumerate() {
            if group.count == 0 {
                return fault(Place::Target(i), "count", "there is none");
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
            return fault(Place::Whole, "job", "nothing runs");
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
            return fault(Place::Whole, "window", "a window has a length");
        }
        Ok(())
    }

    fn check_via(&self, place: Place, via: Option<usize>) -> Checked {
        match via {
            Some(group) if group >= self.hops.len() => fault(place, "via", "there is no such group"),
            _ => Ok(()),
        }
    }

    fn check_hops(&self) -> Checked {
        for (i, group) in self.hops.iter().enumerate() {
            let place = Place::Hop(i);
            if group.count == 0 {
                return fault(place, "count", "there is none");
            }
            if !(group.rate > 0.0 && group.rate.is_finite()) {
                return fault(place, "rate", format!("nothing passes at {} bytes a second", group.rate));
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
                let text = "the way from here goes round in a circle and never arrives";
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
            return fault(place, "drain", "there is no target to drain to");
        }
        let rules = drain.rules;
        if drain.largest.0 == 0 || drain.streams == 0 || rules.alpha == 0 || rules.per_server == 0 {
            return fault(place, "drain", "with nothing at a time it never ends");
        }
        match drain.when {
            When::Above(share) if !(0.0..1.0).contains(&share) => {
                fault(place, "above", format!("{share} is no share of the buffer below 1"))
            }
            _ => Ok(()),
        }
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
                        return fault(place, "bytes", "a phase moves bytes, a request at a time");
                    }
                }
                Phase::Compute(_, jitter) if !(0.0..=1.0).contains(jitter) => {
                    return fault(place, "jitter", format!("{jitter} is no share"));
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
                Some(job) if job >= self.jobs.len() => return fault(place, "after", "there is no such job"),
                Some(job) => before = self.jobs[job].after,
            }
        }
        fault(place, "after", "the jobs wait for each other in a circle: none of them ever starts")
    }

    /// Whether what a job uses is there.
    fn check_use(&self, place: Place, plan: &JobPlan) -> Checked {
        let targets = self.target_count();
        let needs = match (&self.servers, plan.way) {
            (None, Way::Buffer) => return fault(place, "way", "there are no servers"),
            (Some(servers), Way::Buffer) => {
                if let Some(bad) = plan.servers.iter().find(|&&one| one >= servers.count) {
                    return fault(place, "servers", format!("there is no server {bad}"));
                }
                servers.drain.is_some() || servers.full == Full::Direct || servers.mode != Mode::Buffer
            }
            (_, Way::Direct) if plan.phases.iter().any(|phase| matches!(phase, Phase::Read(..))) => {
                return fault(place, "way", "targets are modelled for writing: only the buffer is read from");
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
            _ if failure.lasts.0 == 0 => fault(place, "lasts", "a failure takes time"),
            _ => Ok(()),
        }
    }
}
