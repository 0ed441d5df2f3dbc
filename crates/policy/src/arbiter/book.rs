//! The book of requests and grants.

use super::bits::Bits;
use super::rank::{Choice, Rank, Standing};
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, Error, ErrorKind, JobId, Result, ServerId};
use std::collections::{BTreeSet, HashMap, VecDeque};

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
    /// When it first asked for anything.
    pub(super) since: Tick,
    /// Bytes that are left for each target, by target; those that are granted included.
    pub(super) left: Vec<(u32, u64)>,
    /// The first of these targets.
    first: u32,
    /// How many of them are not nothing.
    pub(super) live: usize,
    pub(super) critical: bool,
    /// The targets it writes to.
    pub(super) held: Vec<u32>,
}

impl Part {
    fn new(server: ServerId, since: Tick) -> Part {
        Part { server, since, left: Vec::new(), first: 0, live: 0, critical: false, held: Vec::new() }
    }

    fn state(&mut self, left: Vec<(u32, u64)>) {
        self.first = left.first().map_or(0, |one| one.0);
        (self.live, self.left) = (left.len(), left);
    }

    /// Where a target is among those with bytes left.
    pub(super) fn place(&self, target: u32) -> Option<usize> {
        // Most have bytes for all targets in a row: looking around in a large list is what a decision costs most.
        let guess = target.wrapping_sub(self.first) as usize;
        if self.left.get(guess).is_some_and(|one| one.0 == target) {
            return Some(guess);
        }
        self.left.binary_search_by_key(&target, |one| one.0).ok()
    }
}

pub(super) struct Job {
    pub(super) standing: Standing,
    pub(super) rank: Rank,
    /// Whether it is among those that could be granted something.
    pub(super) ready: bool,
    /// When it last got anything, and whether that is too long ago.
    pub(super) last_served: Tick,
    pub(super) overdue: bool,
    pub(super) parts: Vec<Option<Part>>,
    /// How many of them are not empty.
    pub(super) members: usize,
    /// Those that are.
    vacant: Vec<usize>,
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
    pub(super) holders: Vec<Holder>,
    /// Jobs that wait for it, and how many.
    pub(super) jobs: Bits,
    pub(super) queue: usize,
}

/// Who has a place at a target, where that is known, and until when.
#[derive(Clone, Copy)]
pub(super) struct Holder {
    pub(super) member: Member,
    pub(super) job: usize,
    pub(super) part: usize,
    pub(super) end: Tick,
}

/// A job that a server has bytes of.
#[derive(Clone, Copy)]
pub(super) struct Seat {
    pub(super) id: JobId,
    pub(super) job: usize,
    pub(super) part: usize,
}

#[derive(Default)]
pub(super) struct Server {
    pub(super) seats: Vec<Seat>,
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
    /// When jobs last got anything, in that order; what is older than a job's last time is still there.
    pub(super) served: VecDeque<(Tick, usize)>,
    /// Targets with a free place that somebody could come to want.
    pub(super) open: Bits,
    /// When places end, in that order, since all last as long; those that were renewed or given back are still there.
    pub(super) ends: VecDeque<(Tick, u32, Member)>,
    /// Places that are held.
    pub(super) held: usize,
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
            served: VecDeque::new(),
            open: Bits::default(),
            ends: VecDeque::new(),
            held: 0,
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
            self.forget_if_done(member, job, part);
        }
        Ok(self.serve_server(now, member.server))
    }

    /// A member says that it is still writing, and how much is left.
    pub fn progress(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) {
        if let Some(Holder { job, part, .. }) = self.renew(now, target.0, member) {
            self.set_left(job, part, target.0, left.0);
            self.consider(job);
        }
    }

    /// A member has let go of a target, with so much left for it. Returns who is granted what now.
    pub fn done(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) -> Vec<Grant> {
        let Some(Holder { job, part, .. }) = self.release(target.0, member) else { return Vec::new() };
        self.set_left(job, part, target.0, left.0);
        self.wait(job, part, target.0, left.0 > 0);
        self.consider_server(member.server);
        self.forget_if_done(member, job, part);
        let mut grants = self.serve_target(now, target.0);
        grants.extend(self.serve_server(now, member.server));
        grants
    }

    /// Takes back what silent holders have, and forgets them: they will ask again if they live. Returns who is granted
    /// what instead.
    pub fn expire(&mut self, now: Tick) -> Vec<Grant> {
        let mut silent = BTreeSet::new();
        while let Some(&(end, target, member)) = self.ends.front()
            && end <= now
        {
            self.ends.pop_front();
            if self.holds(target, member, end) {
                silent.insert(member.server);
                self.drop_member(member);
            }
        }
        if silent.is_empty() { Vec::new() } else { self.serve_all(now, silent) }
    }

    /// A server is gone, with everything it had. Returns who is granted what instead.
    pub fn leave(&mut self, now: Tick, server: ServerId) -> Vec<Grant> {
        let seats =
            self.servers.get(usize::from(server.0)).map(|server| server.seats.clone()).unwrap_or_default();
        for seat in seats {
            self.drop_member(Member { server, job: seat.id });
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
    pub fn holders(&self, target: TargetId) -> impl Iterator<Item = Member> + '_ {
        let target = self.targets.get(target.0 as usize);
        target.into_iter().flat_map(|target| target.holders.iter().map(|holder| holder.member))
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
        let seats = &self.servers.get(usize::from(member.server.0))?.seats;
        seats.iter().find(|seat| seat.id == member.job).map(|seat| (seat.job, seat.part))
    }

    fn know_target(&mut self, target: u32) {
        while self.targets.len() <= target as usize {
            self.open.set(self.targets.len(), true);
            let alpha = self.rules.alpha;
            self.targets.push(Target { alpha, holders: Vec::new(), jobs: Bits::default(), queue: 0 });
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
        let state = self.job_mut(job);
        state.standing.priority = priority;
        state.members += 1;
        let part = state.vacant.pop().unwrap_or(state.parts.len());
        let fresh = Some(Part::new(member.server, now));
        match state.parts.get_mut(part) {
            Some(place) => *place = fresh,
            None => state.parts.push(fresh),
        }
        let server = usize::from(member.server.0);
        if self.servers.len() <= server {
            self.servers.resize_with(server + 1, Server::default);
        }
        self.servers[server].seats.push(Seat { id: member.job, job, part });
        self.members += 1;
        Ok((job, part))
    }

    fn add_job(&mut self, now: Tick, id: JobId, priority: u32) -> usize {
        let standing = Standing { job: id, starved: false, priority, critical: false, size: 0, since: now };
        let job = Job {
            standing,
            rank: standing.rank(self.rules.choice),
            ready: false,
            last_served: now,
            overdue: false,
            parts: Vec::new(),
            members: 0,
            vacant: Vec::new(),
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
        self.note_served(now, place);
        place
    }

    /// Puts what a member says in place of what it said before.
    fn restate(&mut self, job: usize, part: usize, left: Vec<(u32, u64)>, fill: u16) {
        let high = fill > self.rules.high_mark;
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("a live part");
        let before = std::mem::take(&mut mine.left);
        let was_critical = std::mem::replace(&mut mine.critical, high);
        state.criticals = state.criticals + u32::from(high) - u32::from(was_critical);
        state.standing.critical = state.criticals > 0;
        let sum = |left: &[(u32, u64)]| left.iter().map(|one| one.1).sum::<u64>();
        state.standing.size = state.standing.size - sum(&before) + sum(&left);
        for (target, _) in before {
            self.wait(job, part, target, false);
        }
        let targets: Vec<u32> = left.iter().map(|one| one.0).collect();
        let mine = self.job_mut(job).parts[part].as_mut().expect("a live part");
        mine.state(left);
        let held = mine.held.clone();
        for target in targets {
            self.wait(job, part, target, !held.contains(&target));
        }
        self.note_idle(job, part);
    }

    fn set_left(&mut self, job: usize, part: usize, target: u32, left: u64) {
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("a live part");
        let Some(place) = mine.place(target) else { return };
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
            let target = &mut self.targets[target as usize];
            target.jobs.set(job, waits);
            target.queue = target.queue + usize::from(waits) - usize::from(!waits);
        }
    }

    fn note_idle(&mut self, job: usize, part: usize) {
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        let Some(mine) = &state.parts[part] else { return };
        let can = self.servers[usize::from(mine.server.0)].held < self.rules.per_server;
        let has = |target: &&u32| mine.place(**target).is_some_and(|place| mine.left[place].1 > 0);
        // Only who holds something has to be asked for more than a number.
        let wants = mine.live > mine.held.iter().filter(has).count();
        state.idle.set(part, can && wants);
    }

    /// Puts a job in its place among those that could be granted something.
    pub(super) fn consider(&mut self, job: usize) {
        let choice = self.rules.choice;
        let state = self.jobs[job].as_mut().expect("only live jobs are named");
        let ready = !state.idle.is_empty();
        state.standing.starved |= ready && state.overdue;
        let rank = state.standing.rank(choice);
        if (rank, ready) == (state.rank, state.ready) {
            return;
        }
        if state.ready {
            self.ready.remove(&(state.rank, job));
        }
        if ready {
            self.ready.insert((rank, job));
        }
        (state.rank, state.ready) = (rank, ready);
    }

    /// A server holds more or less than before: all its jobs have to know.
    pub(super) fn consider_server(&mut self, server: ServerId) {
        for place in 0..self.servers[usize::from(server.0)].seats.len() {
            let Seat { job, part, .. } = self.servers[usize::from(server.0)].seats[place];
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
        self.forget_if_done(member, job, part);
        self.consider_server(member.server);
    }

    /// Lets go of a member that has nothing left, and of its job if it was the last.
    fn forget_if_done(&mut self, member: Member, job: usize, part: usize) {
        let state = self.job_mut(job);
        if state.parts[part].as_ref().is_some_and(|mine| mine.live > 0 || !mine.held.is_empty()) {
            return;
        }
        if state.parts[part].take().is_some_and(|mine| mine.critical) {
            state.criticals -= 1;
            state.standing.critical = state.criticals > 0;
        }
        state.members -= 1;
        state.vacant.push(part);
        state.idle.set(part, false);
        let last = state.members == 0;
        self.servers[usize::from(member.server.0)].seats.retain(|seat| seat.job != job);
        self.members -= 1;
        self.consider(job);
        if last {
            self.names.remove(&member.job);
            self.jobs[job] = None;
            self.free.push(job);
        }
    }
}
