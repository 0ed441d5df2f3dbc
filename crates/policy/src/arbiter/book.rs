//! The book of requests and grants.

use super::bits::Bits;
use super::rank::{Choice, Rank, Standing};
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, Error, ErrorKind, JobId, Result, ServerId};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Targets have numbers below this.
const MOST_TARGETS: usize = 1 << 16;

/// How places are given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Servers that write to a target at once, unless a target is given another number.
    pub alpha: u32,
    /// Targets that a server writes to at once: more than one where there are more places than servers.
    pub per_server: u32,
    /// How long a grant lasts.
    pub until: Until,
    /// How jobs of one priority are put in order.
    pub choice: Choice,
    /// A server that is fuller than this, in thousandths, makes its job critical.
    pub high_mark: u16,
    /// A job that gets nothing for so long comes first, once.
    pub patience: Tick,
    /// A holder that says nothing for so long is dead.
    pub lease: Tick,
    /// Most servers with bytes of a job, of all jobs together.
    pub most_members: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            alpha: 2,
            per_server: 1,
            until: Until::All,
            choice: Choice::Sjf,
            high_mark: 800,
            patience: Tick::ms(60_000),
            lease: Tick::ms(10_000),
            most_members: 1 << 20,
        }
    }
}

/// How long a grant lasts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// Until all bytes of the member for the target are out, as in the paper.
    All,
    /// For so many bytes.
    Quantum(Bytes),
}

/// One server with the bytes of one job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member {
    /// The server.
    pub server: ServerId,
    /// The job.
    pub job: JobId,
}

/// A place at a target, from now until the member is done or silent for too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Who may write.
    pub member: Member,
    /// Where.
    pub target: TargetId,
    /// How much.
    pub bytes: Bytes,
}

/// One server's part of a job.
pub(super) struct Part {
    pub(super) server: ServerId,
    /// Bytes that are left for each target, by target; those that are granted included.
    pub(super) left: Vec<(u32, u64)>,
    /// How many of them are not nothing.
    pub(super) live: usize,
    pub(super) critical: bool,
    /// The targets it writes to.
    pub(super) held: Vec<u32>,
}

pub(super) struct Job {
    pub(super) standing: Standing,
    pub(super) rank: Rank,
    /// Whether it is among those that could be granted something.
    pub(super) ready: bool,
    /// Whether it waits to be noticed.
    pub(super) hungry: bool,
    pub(super) last_served: Tick,
    pub(super) parts: Vec<Option<Part>>,
    pub(super) places: HashMap<ServerId, usize>,
    pub(super) criticals: u32,
    /// Parts whose servers could take another grant.
    pub(super) idle: Bits,
    /// Parts that wait for a target, by target.
    pub(super) waiting: Vec<Bits>,
    /// Where the next turn within the job begins.
    pub(super) cursor: usize,
}

pub(super) struct Target {
    pub(super) alpha: u32,
    pub(super) holders: Vec<Member>,
    /// Jobs that wait for it.
    pub(super) jobs: BTreeSet<usize>,
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) jobs: Vec<usize>,
    pub(super) held: u32,
}

/// Gives out places at targets.
pub struct Arbiter {
    pub(super) rules: Rules,
    pub(super) jobs: Vec<Option<Job>>,
    pub(super) names: HashMap<JobId, usize>,
    pub(super) free: Vec<usize>,
    pub(super) targets: Vec<Target>,
    pub(super) servers: Vec<Server>,
    /// Jobs with idle parts that wait for something, in their order.
    pub(super) ready: BTreeSet<(Rank, usize)>,
    /// Those of them that have not starved yet, by when they last got anything.
    pub(super) hungry: BTreeSet<(Tick, usize)>,
    /// Targets with a free place that somebody could come to want.
    pub(super) open: Bits,
    pub(super) leases: BTreeMap<(u32, Member), Tick>,
    pub(super) ends: BTreeSet<(Tick, u32, Member)>,
    pub(super) members: usize,
}

impl Arbiter {
    /// An arbiter of targets that nobody uses.
    #[must_use]
    pub fn new(rules: Rules) -> Arbiter {
        assert!(rules.alpha > 0 && rules.per_server > 0, "nobody could ever write");
        Arbiter {
            rules,
            jobs: Vec::new(),
            names: HashMap::new(),
            free: Vec::new(),
            targets: Vec::new(),
            servers: Vec::new(),
            ready: BTreeSet::new(),
            hungry: BTreeSet::new(),
            open: Bits::default(),
            leases: BTreeMap::new(),
            ends: BTreeSet::new(),
            members: 0,
        }
    }

    /// A member says what it has, target by target, in place of whatever it said before; `fill` is how full its server
    /// is, in thousandths. Returns what it is granted at once.
    pub fn request(
        &mut self,
        now: Tick,
        member: Member,
        priority: u32,
        fill: u16,
        bytes: &[(TargetId, Bytes)],
    ) -> Result<Vec<Grant>> {
        let mut left: Vec<(u32, u64)> =
            bytes.iter().filter(|one| one.1.0 > 0).map(|one| (one.0.0, one.1.0)).collect();
        left.sort_unstable();
        if let Some(twice) = left.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let text = format!("a request names target {} twice", twice[0].0);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if left.last().is_some_and(|&(target, _)| target as usize >= MOST_TARGETS) {
            let text = format!("targets have numbers below {MOST_TARGETS}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let (job, part) = self.part_of(now, member, priority)?;
        if let Some(&(last, _)) = left.last() {
            self.know_target(last);
        }
        self.restate(job, part, left, fill);
        self.consider(job);
        if fill <= self.rules.high_mark {
            self.forget_if_done(member);
        }
        Ok(self.serve_server(now, member.server))
    }

    /// A member says that it is still writing, and how much is left.
    pub fn progress(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) {
        if self.renew(now, target.0, member)
            && let Some((job, part)) = self.find(member)
        {
            self.set_left(job, part, target.0, left.0);
            self.consider(job);
        }
    }

    /// A member has let go of a target, with so much left for it. Returns who is granted what now.
    pub fn done(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) -> Vec<Grant> {
        if !self.release(target.0, member) {
            return Vec::new();
        }
        if let Some((job, part)) = self.find(member) {
            self.set_left(job, part, target.0, left.0);
            self.wait(job, part, target.0, left.0 > 0);
            self.consider_server(member.server);
            self.forget_if_done(member);
        }
        let mut grants = self.serve_target(now, target.0);
        grants.extend(self.serve_server(now, member.server));
        grants
    }

    /// Takes back what silent holders have, and forgets them: they will ask again if they live. Returns who is granted
    /// what instead.
    pub fn expire(&mut self, now: Tick) -> Vec<Grant> {
        let mut silent = BTreeSet::new();
        while let Some(&(end, _, member)) = self.ends.first()
            && end <= now
        {
            silent.insert(member.server);
            self.drop_member(member);
        }
        if silent.is_empty() { Vec::new() } else { self.serve_all(now, silent) }
    }

    /// A server is gone, with everything it had. Returns who is granted what instead.
    pub fn leave(&mut self, now: Tick, server: ServerId) -> Vec<Grant> {
        let jobs =
            self.servers.get(usize::from(server.0)).map(|server| server.jobs.clone()).unwrap_or_default();
        for job in jobs {
            let id = self.job(job).standing.job;
            self.drop_member(Member { server, job: id });
        }
        self.serve_all(now, BTreeSet::new())
    }

    /// How many may write to a target at once from now on. Returns who is granted what; grants are never taken back.
    pub fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) -> Result<Vec<Grant>> {
        if target.0 as usize >= MOST_TARGETS || alpha == 0 {
            let text =
                format!("α of target {target} cannot be {alpha}: targets have numbers below {MOST_TARGETS}");
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.know_target(target.0);
        self.targets[target.0 as usize].alpha = alpha;
        self.note_open(target.0);
        Ok(self.serve_target(now, target.0))
    }

    /// Who writes to a target.
    #[must_use]
    pub fn holders(&self, target: TargetId) -> &[Member] {
        self.targets.get(target.0 as usize).map_or(&[], |target| target.holders.as_slice())
    }

    /// Bytes that a job has left on all servers.
    #[must_use]
    pub fn left(&self, job: JobId) -> Bytes {
        Bytes(self.names.get(&job).map_or(0, |&job| self.job(job).standing.size))
    }

    /// Servers with bytes of a job, of all jobs together.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    pub(super) fn job(&self, job: usize) -> &Job {
        self.jobs[job].as_ref().expect("only live jobs are named")
    }

    pub(super) fn job_mut(&mut self, job: usize) -> &mut Job {
        self.jobs[job].as_mut().expect("only live jobs are named")
    }

    pub(super) fn find(&self, member: Member) -> Option<(usize, usize)> {
        let &job = self.names.get(&member.job)?;
        Some((job, *self.job(job).places.get(&member.server)?))
    }

    fn know_target(&mut self, target: u32) {
        while self.targets.len() <= target as usize {
            self.open.set(self.targets.len(), true);
            self.targets.push(Target { alpha: self.rules.alpha, holders: Vec::new(), jobs: BTreeSet::new() });
        }
    }

    pub(super) fn note_open(&mut self, target: u32) {
        let state = &self.targets[target as usize];
        self.open.set(target as usize, state.holders.len() < state.alpha as usize);
    }

    /// The part of a member, made if need be.
    fn part_of(&mut self, now: Tick, member: Member, priority: u32) -> Result<(usize, usize)> {
        if let Some((job, part)) = self.find(member) {
            self.job_mut(job).standing.priority = priority;
            return Ok((job, part));
        }
        if self.members >= self.rules.most_members {
            let text = format!("{} servers with jobs wait already: ask again later", self.members);
            return Err(Error::new(ErrorKind::Busy, text));
        }
        let job = match self.names.get(&member.job) {
            Some(&job) => job,
            None => self.add_job(now, member.job, priority),
        };
        let server = usize::from(member.server.0);
        if self.servers.len() <= server {
            self.servers.resize_with(server + 1, Server::default);
        }
        self.servers[server].jobs.push(job);
        self.members += 1;
        let state = self.job_mut(job);
        state.standing.priority = priority;
        let part = state.parts.iter().position(Option::is_none).unwrap_or(state.parts.len());
        let fresh =
            Part { server: member.server, left: Vec::new(), live: 0, critical: false, held: Vec::new() };
        match state.parts.get_mut(part) {
            Some(place) => *place = Some(fresh),
            None => state.parts.push(Some(fresh)),
        }
        state.places.insert(member.server, part);
        Ok((job, part))
    }

    fn add_job(&mut self, now: Tick, id: JobId, priority: u32) -> usize {
        let standing = Standing { job: id, starved: false, priority, critical: false, size: 0, since: now };
        let job = Job {
            standing,
            rank: standing.rank(self.rules.choice),
            ready: false,
            hungry: false,
            last_served: now,
            parts: Vec::new(),
            places: HashMap::new(),
            criticals: 0,
            idle: Bits::default(),
            waiting: Vec::new(),
            cursor: 0,
        };
        let place = self.free.pop().unwrap_or(self.jobs.len());
        match self.jobs.get_mut(place) {
            Some(free) => *free = Some(job),
            None => self.jobs.push(Some(job)),
        }
        self.names.insert(id, place);
        place
    }

    /// Puts what a member says in place of what it said before.
    fn restate(&mut self, job: usize, part: usize, left: Vec<(u32, u64)>, fill: u16) {
        let high = fill > self.rules.high_mark;
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("a live part");
        let (before, server) = (std::mem::take(&mut mine.left), mine.server);
        let was_critical = std::mem::replace(&mut mine.critical, high);
        state.criticals = state.criticals + u32::from(high) - u32::from(was_critical);
        state.standing.critical = state.criticals > 0;
        let sum = |left: &[(u32, u64)]| left.iter().map(|one| one.1).sum::<u64>();
        state.standing.size = state.standing.size - sum(&before) + sum(&left);
        let id = state.standing.job;
        for (target, _) in before {
            self.wait(job, part, target, false);
        }
        let targets: Vec<u32> = left.iter().map(|one| one.0).collect();
        let mine = self.job_mut(job).parts[part].as_mut().expect("a live part");
        (mine.live, mine.left) = (left.len(), left);
        for target in targets {
            let held = self.leases.contains_key(&(target, Member { server, job: id }));
            self.wait(job, part, target, !held);
        }
        self.note_idle(job, part);
    }

    fn set_left(&mut self, job: usize, part: usize, target: u32, left: u64) {
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("a live part");
        let Ok(place) = mine.left.binary_search_by_key(&target, |one| one.0) else { return };
        let before = std::mem::replace(&mut mine.left[place].1, left);
        mine.live = mine.live + usize::from(left > 0) - usize::from(before > 0);
        state.standing.size = state.standing.size - before + left;
    }

    /// A part waits for a target, or does not any more.
    pub(super) fn wait(&mut self, job: usize, part: usize, target: u32, waits: bool) {
        let state = self.job_mut(job);
        if state.waiting.len() <= target as usize {
            if !waits {
                return;
            }
            state.waiting.resize_with(target as usize + 1, Bits::default);
        }
        let bits = &mut state.waiting[target as usize];
        let first = waits && bits.is_empty();
        if bits.set(part, waits) && (first || bits.is_empty()) {
            let jobs = &mut self.targets[target as usize].jobs;
            if waits {
                jobs.insert(job);
            } else {
                jobs.remove(&job);
            }
        }
    }

    fn note_idle(&mut self, job: usize, part: usize) {
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        let Some(mine) = &state.parts[part] else { return };
        let can = self.servers[usize::from(mine.server.0)].held < self.rules.per_server;
        let has = |target: &&u32| {
            let place = mine.left.binary_search_by_key(*target, |one| one.0);
            place.is_ok_and(|place| mine.left[place].1 > 0)
        };
        // Only who holds something has to be asked for more than a number.
        let wants = mine.live > mine.held.iter().filter(has).count();
        state.idle.set(part, can && wants);
    }

    /// Puts a job in its place among those that could be granted something.
    pub(super) fn consider(&mut self, job: usize) {
        let choice = self.rules.choice;
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        let (rank, ready) = (state.standing.rank(choice), !state.idle.is_empty());
        if (rank, ready) == (state.rank, state.ready) {
            return;
        }
        if state.ready {
            self.ready.remove(&(state.rank, job));
        }
        if ready {
            self.ready.insert((rank, job));
        }
        let hungry = ready && !state.standing.starved;
        if hungry != state.hungry {
            match hungry {
                true => self.hungry.insert((state.last_served, job)),
                false => self.hungry.remove(&(state.last_served, job)),
            };
        }
        (state.rank, state.ready, state.hungry) = (rank, ready, hungry);
    }

    /// A server holds more or less than before: all its jobs have to know.
    pub(super) fn consider_server(&mut self, server: ServerId) {
        for place in 0..self.servers[usize::from(server.0)].jobs.len() {
            let job = self.servers[usize::from(server.0)].jobs[place];
            let part = self.job(job).places[&server];
            self.note_idle(job, part);
            self.consider(job);
        }
    }

    /// Forgets a member with everything it had.
    fn drop_member(&mut self, member: Member) {
        let Some((job, part)) = self.find(member) else { return };
        let held = self.job(job).parts[part].as_ref().expect("a live part").held.clone();
        for target in held {
            self.release(target, member);
        }
        self.restate(job, part, Vec::new(), 0);
        self.consider(job);
        self.forget_if_done(member);
        self.consider_server(member.server);
    }

    /// Lets go of a member that has nothing left, and of its job if it was the last.
    fn forget_if_done(&mut self, member: Member) {
        let Some((job, part)) = self.find(member) else { return };
        let state = self.job_mut(job);
        if state.parts[part].as_ref().is_some_and(|mine| mine.live > 0 || !mine.held.is_empty()) {
            return;
        }
        if state.parts[part].take().is_some_and(|mine| mine.critical) {
            state.criticals -= 1;
            state.standing.critical = state.criticals > 0;
        }
        state.places.remove(&member.server);
        state.idle.set(part, false);
        let last = state.places.is_empty();
        self.servers[usize::from(member.server.0)].jobs.retain(|&other| other != job);
        self.members -= 1;
        self.consider(job);
        if last {
            self.names.remove(&member.job);
            self.jobs[job] = None;
            self.free.push(job);
        }
    }
}
