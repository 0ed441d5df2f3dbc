//! Compares the arbiter with a naive one that scans all members, and checks its guarantees.

use forebay_model::{Bytes, ErrorKind, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Arbiter, Choice, Grant, Member, Rules, Until};
use forebay_policy::drain::TargetId;
use forebay_testkit::{Rng, seed};
use std::collections::{BTreeMap, BTreeSet};

fn member(server: u16, job: u64) -> Member {
    Member { server: ServerId(server), job: JobId(job) }
}

#[derive(Clone)]
struct Naive {
    left: BTreeMap<u32, u64>,
    held: BTreeMap<u32, Tick>,
    critical: bool,
    since: Tick,
}

/// A job as the naive arbiter knows it; everything else is recomputed each time.
#[derive(Clone, Copy)]
struct NaiveJob {
    since: Tick,
    last_served: Tick,
    starved: bool,
    priority: u32,
}

/// The naive arbiter: checks every decision by scanning all members.
struct World {
    rules: Rules,
    now: Tick,
    members: BTreeMap<Member, Naive>,
    jobs: BTreeMap<JobId, NaiveJob>,
    alphas: BTreeMap<u32, u32>,
    context: String,
}

impl World {
    fn alpha(&self, target: u32) -> usize {
        *self.alphas.get(&target).unwrap_or(&self.rules.alpha) as usize
    }

    fn holders(&self, target: u32) -> usize {
        self.members.values().filter(|member| member.held.contains_key(&target)).count()
    }

    fn held_by(&self, server: ServerId) -> usize {
        let mine = self.members.iter().filter(|(member, _)| member.server == server);
        mine.map(|(_, state)| state.held.len()).sum()
    }

    fn can_take(&self, server: ServerId) -> bool {
        self.held_by(server) < self.rules.per_server as usize
    }

    /// Members that could be granted a target now.
    fn candidates(&self, target: u32) -> Vec<Member> {
        let could = |(member, state): &(&Member, &Naive)| {
            state.left.contains_key(&target)
                && !state.held.contains_key(&target)
                && self.can_take(member.server)
        };
        self.members.iter().filter(could).map(|(member, _)| *member).collect()
    }

    fn size(&self, job: JobId) -> u64 {
        let mine = self.members.iter().filter(|(member, _)| member.job == job);
        mine.flat_map(|(_, state)| state.left.values()).sum()
    }

    /// The order of members, less is earlier, directly from the definition.
    fn rank(&self, member: Member) -> (bool, u32, bool, u64, Tick, JobId) {
        let (id, job) = (member.job, self.jobs[&member.job]);
        let critical = self.members.iter().any(|(member, state)| member.job == id && state.critical);
        let (size, since) = match self.rules.choice {
            Choice::Sjf => (self.size(id), job.since),
            Choice::Fcfs => (0, self.members[&member].since),
        };
        (!job.starved, u32::MAX - job.priority, !critical, size, since, id)
    }

    /// Whether the job waits for a target with an idle server.
    fn ready(&self, id: JobId) -> bool {
        self.members.iter().any(|(member, state)| {
            member.job == id && self.can_take(member.server) && state.left.len() > state.held.len()
        })
    }

    fn feed_hungry(&mut self) {
        let now = self.now;
        for id in self.jobs.keys().copied().collect::<Vec<_>>() {
            if self.ready(id) && now.since(self.jobs[&id].last_served) > self.rules.patience {
                self.jobs.get_mut(&id).unwrap().starved = true;
            }
        }
    }

    /// Applies grants one by one; each must give a free place to the first job that could have it.
    fn take(&mut self, grants: &[Grant], freed: Option<u32>) {
        for grant in grants {
            let (target, member) = (grant.target.0, grant.member);
            self.feed_hungry();
            assert!(
                self.holders(target) < self.alpha(target),
                "{}: more than α holders: {grant:?}",
                self.context
            );
            let candidates = self.candidates(target);
            assert!(candidates.contains(&member), "{}: not a candidate: {grant:?}", self.context);
            if freed == Some(target) {
                let first = candidates.iter().map(|&one| self.rank(one)).min().unwrap();
                assert_eq!(self.rank(member), first, "{}: not the first job: {grant:?}", self.context);
            }
            let most = match self.rules.until {
                Until::All => u64::MAX,
                Until::Quantum(most) => most.0,
            };
            let state = self.members.get_mut(&member).unwrap();
            assert_eq!(grant.bytes.0, state.left[&target].min(most), "{}", self.context);
            state.held.insert(target, self.now.after(self.rules.lease));
            let job = self.jobs.get_mut(&member.job).unwrap();
            (job.last_served, job.starved) = (self.now, false);
        }
        self.check();
    }

    /// No place is free while a member could have it.
    fn check(&self) {
        let targets: BTreeSet<u32> =
            self.members.values().flat_map(|state| state.left.keys().copied()).collect();
        for target in targets {
            if self.holders(target) < self.alpha(target) {
                let idle = self.candidates(target);
                assert!(idle.is_empty(), "{}: target {target} is free, and {idle:?} wait", self.context);
            }
        }
    }

    fn forget_done(&mut self) {
        self.members.retain(|_, state| !state.left.is_empty() || !state.held.is_empty() || state.critical);
        let live: BTreeSet<JobId> = self.members.keys().map(|member| member.job).collect();
        self.jobs.retain(|job, _| live.contains(job));
    }
}

const TARGETS: u64 = 6;

/// Applies one random event to both arbiters.
fn step(world: &mut World, arbiter: &mut Arbiter, random: &mut Rng) {
    let now = world.now;
    match random.below(10) {
        0..4 => request(world, arbiter, random),
        4..8 => end(world, arbiter, random),
        8 => {
            let target = random.below(TARGETS) as u32;
            let alpha = 1 + random.below(3) as u32;
            world.alphas.insert(target, alpha);
            let grants = arbiter.set_alpha(now, TargetId(target), alpha).unwrap();
            world.take(&grants, Some(target));
        }
        _ if random.below(2) == 0 => {
            let server = ServerId(random.below(8) as u16);
            world.members.retain(|member, _| member.server != server);
            let grants = arbiter.leave(now, server);
            world.take(&grants, None);
        }
        _ => {
            world.members.retain(|_, state| state.held.values().all(|&end| end > now));
            let grants = arbiter.expire(now);
            world.take(&grants, None);
        }
    }
}

/// A member sends a request.
fn request(world: &mut World, arbiter: &mut Arbiter, random: &mut Rng) {
    let (now, who) = (world.now, member(random.below(8) as u16, random.below(5)));
    let (priority, fill) = (random.below(2) as u32, random.below(1000) as u16);
    let count = random.below(4);
    let bytes: Vec<(u32, u64)> =
        (0..count).map(|_| (random.below(TARGETS) as u32, 1 + random.below(100))).collect();
    let held = world.members.get(&who).map(|state| state.held.clone()).unwrap_or_default();
    // A holder of a target still has bytes for it.
    let left: BTreeMap<u32, u64> = held.keys().map(|&target| (target, 7)).chain(bytes).collect();
    let request: Vec<(TargetId, Bytes)> =
        left.iter().map(|(&target, &bytes)| (TargetId(target), Bytes(bytes))).collect();
    let job = NaiveJob { since: now, last_served: now, starved: false, priority };
    world.jobs.entry(who.job).or_insert(job).priority = priority;
    let critical = fill > world.rules.high_mark;
    let since = world.members.get(&who).map_or(now, |state| state.since);
    world.members.insert(who, Naive { left, held, critical, since });
    let grants = arbiter.request(now, who, priority, fill, &request).unwrap();
    assert!(grants.iter().all(|grant| grant.member.server == who.server));
    world.take(&grants, None);
}

/// A holder renews its lease, or releases the target with or without bytes left.
fn end(world: &mut World, arbiter: &mut Arbiter, random: &mut Rng) {
    let (now, lease) = (world.now, world.rules.lease);
    let holders = world.members.iter();
    let all: Vec<(Member, u32)> =
        holders.flat_map(|(&member, state)| state.held.keys().map(move |&target| (member, target))).collect();
    if all.is_empty() {
        return;
    }
    let (who, target) = all[random.below(all.len() as u64) as usize];
    let state = world.members.get_mut(&who).unwrap();
    let left = if random.below(3) == 0 { random.below(state.left[&target] + 1) } else { 0 };
    if random.below(4) == 0 {
        let left = left.max(1);
        state.left.insert(target, left);
        state.held.insert(target, now.after(lease));
        return arbiter.progress(now, who, TargetId(target), Bytes(left));
    }
    state.held.remove(&target);
    state.left.insert(target, left);
    state.left.retain(|_, left| *left > 0);
    // A member without bytes makes no job critical.
    state.critical &= !state.left.is_empty() || !state.held.is_empty();
    let grants = arbiter.done(now, who, TargetId(target), Bytes(left));
    world.take(&grants, Some(target));
}

fn play(rules: Rules, seed: u64) {
    let mut random = Rng::new(seed);
    let mut arbiter = Arbiter::new(rules);
    let mut world = World {
        rules,
        now: Tick(0),
        members: BTreeMap::new(),
        jobs: BTreeMap::new(),
        alphas: BTreeMap::new(),
        context: String::new(),
    };
    for number in 0..600 {
        world.context = format!("{rules:?}, seed {seed}, step {number}");
        world.now = world.now.after(Tick(random.below(50)));
        step(&mut world, &mut arbiter, &mut random);
        world.forget_done();
        assert_eq!(arbiter.members(), world.members.len(), "{}", world.context);
        for target in 0..TARGETS as u32 {
            assert_eq!(arbiter.holders(TargetId(target)).count(), world.holders(target), "{}", world.context);
        }
        for &job in world.jobs.keys() {
            assert_eq!(arbiter.left(job).0, world.size(job), "{}", world.context);
        }
    }
}

#[test]
fn random_requests_are_served_as_the_naive_arbiter_would() {
    let seed = seed();
    let short = Rules { lease: Tick(400), patience: Tick(300), ..Rules::default() };
    for rules in [
        short,
        Rules { choice: Choice::Fcfs, ..short },
        Rules { per_server: 3, alpha: 1, ..short },
        Rules { until: Until::Quantum(Bytes(20)), ..short },
        Rules { lease: Tick(40), ..short },
    ] {
        (0..40).for_each(|round| play(rules, seed.wrapping_mul(1000).wrapping_add(round)));
    }
}

/// One target, one place, all servers wait from the start: the order in which jobs end.
fn ends(choice: Choice, sizes: &[(u64, u64)]) -> Vec<u64> {
    let rules = Rules { alpha: 1, choice, patience: Tick(u64::MAX), ..Rules::default() };
    let mut arbiter = Arbiter::new(rules);
    let target = TargetId(0);
    // One member holds the place while all others send their requests.
    let first = member(9999, u64::MAX);
    arbiter.request(Tick(0), first, 9, 0, &[(target, Bytes(1))]).unwrap();
    let mut server = 0;
    for (number, &(job, servers)) in sizes.iter().enumerate() {
        for _ in 0..servers {
            let now = Tick(1 + number as u64);
            let granted = arbiter.request(now, member(server, job), 1, 0, &[(target, Bytes(100))]).unwrap();
            assert!(granted.is_empty());
            server += 1;
        }
    }
    let mut order = Vec::new();
    let mut grants = arbiter.done(Tick(1000), first, target, Bytes(0));
    while let [grant] = grants[..] {
        if arbiter.left(grant.member.job) == Bytes(100) {
            order.push(grant.member.job.0);
        }
        grants = arbiter.done(Tick(1000), grant.member, target, Bytes(0));
    }
    assert!(grants.is_empty() && arbiter.members() == 0);
    order
}

#[test]
fn random_job_sets_end_smallest_first() {
    let mut random = Rng::new(seed());
    for _ in 0..200 {
        let count = 1 + random.below(8);
        let sizes: Vec<(u64, u64)> = (0..count).map(|job| (job, 1 + random.below(6))).collect();
        let mut expected = sizes.clone();
        expected.sort_by_key(|&(job, servers)| (servers, job));
        let expected: Vec<u64> = expected.into_iter().map(|(job, _)| job).collect();
        assert_eq!(ends(Choice::Sjf, &sizes), expected, "{sizes:?}");
        let arrival: Vec<u64> = sizes.iter().map(|&(job, _)| job).collect();
        assert_eq!(ends(Choice::Fcfs, &sizes), arrival, "{sizes:?}");
    }
}

/// Small jobs of high priority arrive all the time; the large job of low priority still gets its turns.
#[test]
fn large_low_priority_job_is_not_starved() {
    let rules = Rules { alpha: 1, patience: Tick(100), lease: Tick(u64::MAX), ..Rules::default() };
    let mut arbiter = Arbiter::new(rules);
    let target = TargetId(0);
    let have = |bytes| [(target, Bytes(bytes))];
    let mut grants = arbiter.request(Tick(0), member(0, 1), 5, 0, &have(10)).unwrap();
    for server in 1000..1010 {
        arbiter.request(Tick(0), member(server, 999), 0, 0, &have(1 << 40)).unwrap();
    }
    let (mut large, mut next) = (Vec::new(), 2);
    for now in (10..3000).step_by(10) {
        arbiter.request(Tick(now), member((next % 500) as u16, next), 5, 0, &have(10)).unwrap();
        next += 1;
        let [grant] = grants[..] else { panic!("one place, one grant: {grants:?}") };
        if grant.member.job == JobId(999) {
            large.push(now);
        }
        grants = arbiter.done(Tick(now), grant.member, target, Bytes(0));
    }
    assert_eq!(large.len(), 10, "every server of the large job had its turn: {large:?}");
    assert!(large.windows(2).all(|pair| pair[1] - pair[0] >= 100), "only its turns: {large:?}");
}

#[test]
fn full_server_makes_its_job_critical() {
    let rules = Rules { alpha: 1, ..Rules::default() };
    let mut arbiter = Arbiter::new(rules);
    let target = TargetId(0);
    let have = |bytes| [(target, Bytes(bytes))];
    arbiter.request(Tick(0), member(0, 1), 1, 0, &have(10)).unwrap();
    arbiter.request(Tick(1), member(1, 2), 1, 0, &have(10)).unwrap();
    arbiter.request(Tick(2), member(2, 3), 1, 0, &have(1000)).unwrap();
    arbiter.request(Tick(3), member(3, 3), 1, 900, &[]).unwrap();
    let grants = arbiter.done(Tick(4), member(0, 1), target, Bytes(0));
    assert_eq!(grants[0].member, member(2, 3), "another server of its job is nearly full");
}

#[test]
fn invalid_and_excess_requests_are_refused() {
    let mut arbiter = Arbiter::new(Rules { most_members: 2, ..Rules::default() });
    let ask = |arbiter: &mut Arbiter, server, bytes: &[(TargetId, Bytes)]| {
        arbiter.request(Tick(0), member(server, 1), 1, 0, bytes).map_err(|error| error.kind())
    };
    let one = [(TargetId(1), Bytes(5))];
    assert_eq!(ask(&mut arbiter, 0, &[one[0], one[0]]), Err(ErrorKind::Invalid));
    assert_eq!(ask(&mut arbiter, 0, &[(TargetId(u32::MAX), Bytes(5))]), Err(ErrorKind::Invalid));
    assert!(arbiter.set_alpha(Tick(0), TargetId(1), 0).is_err());
    assert_eq!(ask(&mut arbiter, 0, &one).unwrap().len(), 1);
    assert_eq!(ask(&mut arbiter, 1, &one).unwrap().len(), 1);
    assert_eq!(ask(&mut arbiter, 2, &one), Err(ErrorKind::Busy));
    assert_eq!(arbiter.done(Tick(1), member(7, 7), TargetId(1), Bytes(0)), []);
    assert_eq!(arbiter.done(Tick(1), member(0, 1), TargetId(2), Bytes(0)), []);
}
