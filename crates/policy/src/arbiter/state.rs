//! The table of requests and grants.

use super::bits::Bits;
use super::rank::{Choice, Rank, Standing};
use crate::drain::TargetId;
use crate::share::Tick;
use forebay_model::{Bytes, Error, ErrorKind, JobId, Result, ServerId};
use std::collections::{BTreeSet, HashMap, VecDeque};

/// Target ids are below this.
const MOST_TARGETS: usize = 1 << 16;

/// Rules for grants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Default for the number of servers that write to a target at once.
    pub alpha: u32,
    /// Targets that a server writes to at once: more than one where there are more places than servers.
    pub per_server: u32,
    /// How long a grant lasts.
    pub until: Until,
    /// Order of jobs with the same priority.
    pub choice: Choice,
    /// A server that is fuller than this, in thousandths, makes its job critical.
    pub high_mark: u16,
    /// A job without a grant for this long comes first, once.
    pub patience: Tick,
    /// A holder that sends nothing for this long is dead.
    pub lease: Tick,
    /// Most members of all jobs together.
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
    /// Until all bytes of the member for the target are written, as in the paper.
    All,
    /// For this many bytes.
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

/// A place at a target, until the member is done or its lease expires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The member that may write.
    pub member: Member,
    /// The target.
    pub target: TargetId,
    /// Bytes it may write.
    pub bytes: Bytes,
}

/// One server's part of a job.
pub(super) struct Part {
    pub(super) server: ServerId,
    /// Time of its first request.
    pub(super) since: Tick,
    /// Remaining bytes for each target, by target, including granted ones.
    pub(super) left: Vec<(u32, u64)>,
    /// The first of these targets.
    first: u32,
    /// Number of targets with bytes left.
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

    /// The index of a target in `left`.
    pub(super) fn place(&self, target: u32) -> Option<usize> {
        // Most parts have bytes for consecutive targets, so this guess usually avoids a search, which
        // dominates the cost of a decision.
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
    /// Whether it is in `Arbiter::ready`.
    pub(super) ready: bool,
    /// Time of its last grant, and whether that is too long ago.
    pub(super) last_served: Tick,
    pub(super) overdue: bool,
    pub(super) parts: Vec<Option<Part>>,
    /// Number of parts in use.
    pub(super) members: usize,
    /// Free indices of `parts`.
    vacant: Vec<usize>,
    pub(super) criticals: u32,
    /// Parts whose servers could take another grant.
    pub(super) idle: Bits,
    /// Parts that wait for a target, by target.
    pub(super) waiting: Vec<Bits>,
    /// Part at which the next turn within the job begins.
    pub(super) cursor: usize,
}

pub(super) struct Target {
    pub(super) alpha: u32,
    pub(super) holders: Vec<Holder>,
    /// Jobs that wait for it, and the number of waiting members.
    pub(super) jobs: Bits,
    pub(super) queue: usize,
}

/// The holder of a place at a target, and the end of its lease.
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

/// Grants places at targets.
pub struct Arbiter {
    pub(super) rules: Rules,
    pub(super) jobs: Vec<Option<Job>>,
    pub(super) names: HashMap<JobId, usize>,
    pub(super) free: Vec<usize>,
    pub(super) targets: Vec<Target>,
    pub(super) servers: Vec<Server>,
    /// Jobs with idle parts that wait for a target, by rank.
    pub(super) ready: BTreeSet<(Rank, usize)>,
    /// Times of grants to jobs, in order. Stale entries stay until they are compacted.
    pub(super) served: VecDeque<(Tick, usize)>,
    /// Targets with a free place that a member may want.
    pub(super) open: Bits,
    /// Ends of leases, in order, since all leases last equally long. Entries of renewed or released places
    /// stay until they are compacted.
    pub(super) ends: VecDeque<(Tick, u32, Member)>,
    /// Number of held places.
    pub(super) held: usize,
    pub(super) members: usize,
}

impl Arbiter {
    /// An arbiter without requests.
    #[must_use]
    pub fn new(rules: Rules) -> Arbiter {
        assert!(rules.alpha > 0 && rules.per_server > 0, "alpha and per_server must be positive");
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

    /// Replaces a member's request: its bytes per target. `fill` is the fill level of its server, in
    /// thousandths. Returns its immediate grants.
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
            let text = format!("the request names target {} twice", twice[0].0);
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        if left.last().is_some_and(|&(target, _)| target as usize >= MOST_TARGETS) {
            let text = format!("target ids must be below {MOST_TARGETS}");
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

    /// Renews a member's lease on a target and updates the remaining bytes.
    pub fn progress(&mut self, now: Tick, member: Member, target: TargetId, left: Bytes) {
        if let Some(Holder { job, part, .. }) = self.renew(now, target.0, member) {
            self.set_left(job, part, target.0, left.0);
            self.consider(job);
        }
    }

    /// A member releases a target with the given bytes left for it. Returns the new grants.
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

    /// Revokes the grants of members whose lease expired, and removes these members; live ones will request
    /// again. Returns the new grants.
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

    /// Removes a server with all its members. Returns the new grants.
    pub fn leave(&mut self, now: Tick, server: ServerId) -> Vec<Grant> {
        let seats =
            self.servers.get(usize::from(server.0)).map(|server| server.seats.clone()).unwrap_or_default();
        for seat in seats {
            self.drop_member(Member { server, job: seat.id });
        }
        self.serve_all(now, BTreeSet::new())
    }

    /// Sets α of a target. Returns the new grants; existing grants are never revoked.
    pub fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) -> Result<Vec<Grant>> {
        if target.0 as usize >= MOST_TARGETS || alpha == 0 {
            let text = format!(
                "invalid α {alpha} of target {target}: α must be positive and target ids below {MOST_TARGETS}"
            );
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        self.know_target(target.0);
        self.targets[target.0 as usize].alpha = alpha;
        self.note_open(target.0);
        Ok(self.serve_target(now, target.0))
    }

    /// The members that write to a target.
    pub fn holders(&self, target: TargetId) -> impl Iterator<Item = Member> + '_ {
        let target = self.targets.get(target.0 as usize);
        target.into_iter().flat_map(|target| target.holders.iter().map(|holder| holder.member))
    }

    /// Remaining bytes of a job on all servers.
    #[must_use]
    pub fn left(&self, job: JobId) -> Bytes {
        Bytes(self.names.get(&job).map_or(0, |&job| self.job(job).standing.size))
    }

    /// Number of members of all jobs together.
    #[must_use]
    pub fn members(&self) -> usize {
        self.members
    }

    pub(super) fn job(&self, job: usize) -> &Job {
        self.jobs[job].as_ref().expect("job is live")
    }

    pub(super) fn job_mut(&mut self, job: usize) -> &mut Job {
        self.jobs[job].as_mut().expect("job is live")
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

    /// The part of a member, created if missing.
    fn part_of(&mut self, now: Tick, member: Member, priority: u32) -> Result<(usize, usize)> {
        if let Some((job, part)) = self.find(member) {
            self.job_mut(job).standing.priority = priority;
            return Ok((job, part));
        }
        if self.members >= self.rules.most_members {
            let text = format!("{} members wait already: try again later", self.members);
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

    /// Replaces a member's request.
    fn restate(&mut self, job: usize, part: usize, left: Vec<(u32, u64)>, fill: u16) {
        let high = fill > self.rules.high_mark;
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("part is live");
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
        let mine = self.job_mut(job).parts[part].as_mut().expect("part is live");
        mine.state(left);
        let held = mine.held.clone();
        for target in targets {
            self.wait(job, part, target, !held.contains(&target));
        }
        self.note_idle(job, part);
    }

    fn set_left(&mut self, job: usize, part: usize, target: u32, left: u64) {
        let state = self.job_mut(job);
        let mine = state.parts[part].as_mut().expect("part is live");
        let Some(place) = mine.place(target) else { return };
        let before = std::mem::replace(&mut mine.left[place].1, left);
        mine.live = mine.live + usize::from(left > 0) - usize::from(before > 0);
        state.standing.size = state.standing.size - before + left;
    }

    /// Sets whether a part waits for a target.
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
        let state = self.jobs[job].as_mut().expect("job is live");
        let Some(mine) = &state.parts[part] else { return };
        let can = self.servers[usize::from(mine.server.0)].held < self.rules.per_server;
        let has = |target: &&u32| mine.place(**target).is_some_and(|place| mine.left[place].1 > 0);
        // Only parts with held targets need the count.
        let wants = mine.live > mine.held.iter().filter(has).count();
        state.idle.set(part, can && wants);
    }

    /// Updates a job's position in `ready`.
    pub(super) fn consider(&mut self, job: usize) {
        let choice = self.rules.choice;
        let state = self.jobs[job].as_mut().expect("job is live");
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

    /// Updates all jobs of a server after its number of grants changed.
    pub(super) fn consider_server(&mut self, server: ServerId) {
        for place in 0..self.servers[usize::from(server.0)].seats.len() {
            let Seat { job, part, .. } = self.servers[usize::from(server.0)].seats[place];
            self.note_idle(job, part);
            self.consider(job);
        }
    }

    /// Removes a member with its requests and grants.
    fn drop_member(&mut self, member: Member) {
        let Some((job, part)) = self.find(member) else { return };
        let held = self.job(job).parts[part].as_ref().expect("part is live").held.clone();
        for target in held {
            self.release(target, member);
        }
        self.restate(job, part, Vec::new(), 0);
        self.consider(job);
        self.forget_if_done(member, job, part);
        self.consider_server(member.server);
    }

    /// Removes a member that has nothing left, and its job if it was the last.
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
