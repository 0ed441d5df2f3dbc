//! This server's places at targets, as their arbiters give them.

use super::court::Court;
use forebay_model::{Bytes, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Choice, Member, Rules, Until, home};
use forebay_policy::drain::TargetId;
use forebay_wire::{Granted, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// Whoever writes past the buffer, as arbiters see it, and what one of its grants is good for: it never ends by itself.
pub(super) const PAST: JobId = JobId(u64::MAX);
const PAST_BYTES: u64 = 64 << 20;

/// How places are given.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) server: ServerId,
    /// All servers of the service, in the order of their numbers.
    pub(super) servers: Vec<ServerId>,
    /// Writers at each target.
    pub(super) alpha: Vec<u32>,
    pub(super) choice: Choice,
    pub(super) quantum: Option<Bytes>,
    /// A server that says nothing for so long has no places.
    pub(super) lease: Tick,
}

#[cfg(test)]
impl Terms {
    /// Usual ones of the first of these servers.
    pub(super) fn usual(servers: Vec<ServerId>, alpha: Vec<u32>) -> Terms {
        let (choice, lease) = (Choice::Sjf, Rules::default().lease);
        Terms { server: servers[0], servers, alpha, choice, quantum: None, lease }
    }
}

/// What this server may write where. Alone it asks an arbiter of its own, and may fill all places.
pub(super) struct Places {
    terms: Terms,
    /// Gives out the targets that are this server's to give.
    court: Court,
    held: BTreeMap<(JobId, TargetId), Place>,
    /// What there is to write, as it was last said: for those who are asked later.
    wants: BTreeMap<JobId, (u32, Vec<(TargetId, Bytes)>)>,
    fill: u16,
    /// Servers that do not answer: others give out their targets.
    away: BTreeSet<ServerId>,
    /// The latest grant that was heard of, and those that were given back since, server by server.
    heard: BTreeMap<ServerId, (u64, BTreeSet<u64>)>,
    /// Servers that were given something here, and have to hear of it.
    given: BTreeSet<ServerId>,
    /// Servers that are to be asked at once, because there is something new for them.
    asks: BTreeSet<ServerId>,
    /// Whether there is something to say to others.
    pub(super) news: bool,
    /// Whether there are places here that nobody has used yet.
    pub(super) fresh: bool,
}

/// A place that is held.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Bytes that may still be written.
    bytes: u64,
    /// Who gave it, and which of its grants it is.
    by: ServerId,
    serial: u64,
}

impl Places {
    pub(super) fn new(terms: Terms) -> Places {
        let until = terms.quantum.map_or(Until::All, Until::Quantum);
        let (choice, alpha) = (terms.choice, terms.alpha.clone());
        let per_server = u32::try_from(alpha.len()).unwrap_or(u32::MAX).max(1);
        let court = Court::new(Rules { per_server, until, choice, lease: terms.lease, ..Rules::default() });
        let mut places = Places {
            terms,
            court,
            held: BTreeMap::new(),
            wants: BTreeMap::new(),
            fill: 0,
            away: BTreeSet::new(),
            heard: BTreeMap::new(),
            given: BTreeSet::new(),
            asks: BTreeSet::new(),
            news: false,
            fresh: false,
        };
        (0..).map(TargetId).zip(alpha).for_each(|(target, alpha)| places.set_alpha(Tick(0), target, alpha));
        places
    }

    /// So many may write to a target from now on. Alone, one job at a time has all writers, so that they come in order.
    pub(super) fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) {
        let members = if self.is_alone() { 1 } else { alpha };
        if let Some(known) = self.terms.alpha.get_mut(target.0 as usize) {
            *known = alpha;
            let given = self.court.set_alpha(now, target, members);
            self.take(given);
        }
    }

    /// How many servers may write to a target.
    pub(super) fn alpha(&self, target: TargetId) -> u32 {
        self.terms.alpha.get(target.0 as usize).copied().unwrap_or(1)
    }

    /// The server that gives out a target.
    fn arbiter(&self, target: TargetId) -> ServerId {
        let there: Vec<ServerId> =
            self.terms.servers.iter().copied().filter(|server| !self.away.contains(server)).collect();
        home(target, &there).unwrap_or(self.terms.server)
    }

    /// Whether a target has as many writers as it may, as far as this server gives it out.
    pub(super) fn is_full(&self, target: TargetId) -> bool {
        self.court.holders(target) >= self.alpha(target) as usize
    }

    /// The targets that a server gives out.
    pub(super) fn given_by(&self, server: ServerId) -> impl Iterator<Item = TargetId> + '_ {
        let targets = (0..).take(self.terms.alpha.len()).map(TargetId);
        targets.filter(move |target| self.arbiter(*target) == server)
    }

    pub(super) fn is_own(&self, target: TargetId) -> bool {
        self.is_alone() || self.arbiter(target) == self.terms.server
    }

    /// Takes what was granted here.
    fn take(&mut self, given: BTreeSet<ServerId>) {
        let own = self.terms.server;
        if given.contains(&own) {
            let granted: Vec<Granted> = self.court.of(own).collect();
            self.hold(own, &granted);
        }
        self.given.extend(given.into_iter().filter(|server| *server != own));
        self.news |= !self.given.is_empty();
    }

    fn hold(&mut self, by: ServerId, granted: &[Granted]) {
        for &Granted { serial, job, target, bytes } in granted {
            let bytes = match (self.terms.quantum, job) {
                (Some(_), _) => bytes,
                (None, PAST) => PAST_BYTES,
                (None, _) => u64::MAX,
            };
            let known = self.held.get(&(job, TargetId(target)));
            if known.is_none_or(|known| (known.by, known.serial) != (by, serial)) {
                self.held.insert((job, TargetId(target)), Place { bytes, by, serial });
                self.fresh = true;
            }
        }
    }

    /// Says what there is to write for a job.
    pub(super) fn tell(
        &mut self,
        now: Tick,
        job: JobId,
        (priority, fill): (u32, u16),
        left: &[(TargetId, Bytes)],
    ) {
        self.fill = fill;
        let (own, theirs): (Vec<_>, Vec<_>) = left.iter().partition(|(target, _)| self.is_own(*target));
        match theirs.is_empty() {
            true => drop(self.wants.remove(&job)),
            false => {
                let known = self.wants.get(&job).map_or(&[][..], |(_, known)| known);
                let is_new = |target: TargetId| !known.iter().any(|(known, _)| *known == target);
                let new = theirs.iter().filter(|(target, _)| is_new(*target));
                let arbiters: BTreeSet<ServerId> = new.map(|(target, _)| self.arbiter(*target)).collect();
                self.news |= !arbiters.is_empty();
                self.asks.extend(arbiters);
                self.wants.insert(job, (priority, theirs));
            }
        }
        let given = self.court.request(now, self.terms.server, (job, priority, fill), &own);
        self.take(given);
    }

    /// Where this server may write now, and for which job.
    pub(super) fn granted(&self) -> Vec<(JobId, TargetId)> {
        self.held.keys().copied().collect()
    }

    /// Whether this server may write to a target now, for whatever job.
    pub(super) fn may_write(&self, target: TargetId) -> bool {
        self.held.keys().any(|(_, held)| *held == target)
    }

    /// Whether there are no other servers.
    pub(super) fn is_alone(&self) -> bool {
        self.terms.servers.len() < 2
    }

    /// Most writers of this server at a target: alone it has all places, otherwise one for each that it was given.
    pub(super) fn streams(&self, target: TargetId) -> u32 {
        if self.is_alone() {
            return self.alpha(target);
        }
        let held = self.held.keys().filter(|(_, at)| *at == target).count();
        u32::try_from(held).unwrap_or(u32::MAX).max(1)
    }

    /// Most writers of one job at a target: a place is one writer, but for a server that has them all.
    pub(super) fn of_each(&self, target: TargetId) -> u32 {
        if self.is_alone() { self.alpha(target) } else { 1 }
    }

    /// Bytes were written under a grant, and so many are left: it goes on, or is given back.
    pub(super) fn wrote(&mut self, now: Tick, (job, target): (JobId, TargetId), bytes: u64, left: Bytes) {
        let (own, server) = (self.is_own(target), self.terms.server);
        let Some(place) = self.held.get_mut(&(job, target)) else { return };
        place.bytes = place.bytes.saturating_sub(bytes);
        if place.bytes == 0 || left.0 == 0 {
            self.give_back(now, (job, target), left);
        } else if own {
            self.court.progress(now, Member { server, job }, target, left);
        }
    }

    /// A grant is given back, with so much left for its target.
    pub(super) fn give_back(&mut self, now: Tick, (job, target): (JobId, TargetId), left: Bytes) {
        let Some(Place { by, serial, .. }) = self.held.remove(&(job, target)) else { return };
        if by == self.terms.server {
            let given = self.court.give_back(now, by, job, target, left);
            self.take(given);
        } else {
            self.heard.entry(by).or_default().1.insert(serial);
            if let Some((_, wanted)) = self.wants.get_mut(&job) {
                wanted.retain(|(other, _)| *other != target);
                wanted.extend((left.0 > 0).then_some((target, left)));
            }
            self.ask(by);
        }
    }

    /// Another server is to be asked at once.
    pub(super) fn ask(&mut self, server: ServerId) {
        self.asks.insert(server);
        self.news = true;
    }

    /// Whether another server is to be asked or told something at once.
    pub(super) fn has_word_for(&self, server: ServerId) -> bool {
        self.asks.contains(&server) || self.given.contains(&server)
    }

    /// Whether another server is to be told that it was given something, and whether it is to be asked.
    pub(super) fn words_for(&mut self, server: ServerId) -> (bool, bool) {
        (self.given.remove(&server), self.asks.remove(&server))
    }

    /// Time has passed: whoever is at work says so.
    pub(super) fn beat(&mut self, now: Tick, left: impl Fn(JobId, TargetId) -> Bytes) {
        let server = self.terms.server;
        for (&(job, target), _) in self.held.iter().filter(|(_, place)| place.by == server) {
            self.court.progress(now, Member { server, job }, target, left(job, target));
        }
        let given = self.court.expire(now);
        self.take(given);
    }
}

/// What passes between servers.
impl Places {
    /// Another server says what it has; returns what it may write where.
    pub(super) fn judge(
        &mut self,
        now: Tick,
        from: ServerId,
        said: (u64, u16),
        wanted: &[Wanted],
    ) -> Vec<Granted> {
        let (granted, others) = self.court.hear(now, from, said, wanted);
        self.take(others);
        granted
    }

    /// What another server is told; nothing if it gives out none of our targets and has never been asked.
    pub(super) fn statement(&self, to: ServerId) -> Option<(u64, u16, Vec<Wanted>)> {
        let mut wanted: BTreeMap<JobId, Wanted> = BTreeMap::new();
        let of = |job: JobId, priority: u32| Wanted { job, priority, left: Vec::new(), holds: Vec::new() };
        for (&job, (priority, left)) in &self.wants {
            let theirs = left.iter().filter(|(target, _)| self.arbiter(*target) == to);
            for &(target, bytes) in theirs {
                let one = wanted.entry(job).or_insert_with(|| of(job, *priority));
                one.left.push((target.0, bytes.0));
            }
        }
        for (&(job, target), _) in self.held.iter().filter(|(_, place)| place.by == to) {
            wanted.entry(job).or_insert_with(|| of(job, 0)).holds.push(target.0);
        }
        let heard = self.heard.get(&to);
        // One that did not answer is asked whether it does again.
        if wanted.is_empty() && heard.is_none() && !self.away.contains(&to) {
            return None;
        }
        Some((heard.map_or(0, |(last, _)| *last), self.fill, wanted.into_values().collect()))
    }

    /// What another server answered.
    pub(super) fn hear(&mut self, from: ServerId, granted: &[Granted]) {
        self.away.remove(&from);
        let (last, returned) = self.heard.entry(from).or_default();
        *last = granted.iter().map(|granted| granted.serial).fold(*last, u64::max);
        // What it does not name any more it has taken back.
        returned.retain(|serial| granted.iter().any(|granted| granted.serial == *serial));
        let returned = returned.clone();
        let names = |place: &Place| granted.iter().any(|granted| granted.serial == place.serial);
        self.held.retain(|_, place| place.by != from || names(place));
        let new: Vec<Granted> =
            granted.iter().copied().filter(|granted| !returned.contains(&granted.serial)).collect();
        self.hold(from, &new);
        let idle = self.held.values().all(|place| place.by != from) && returned.is_empty();
        if idle && self.wants.is_empty() {
            self.heard.remove(&from);
        }
    }

    /// Another server does not answer: what it gave counts no more, and others give out its targets.
    pub(super) fn miss(&mut self, server: ServerId) {
        if !self.away.insert(server) {
            return;
        }
        self.heard.remove(&server);
        self.held.retain(|_, place| place.by != server);
        let wanted = self.wants.values().flat_map(|(_, left)| left);
        let arbiters: BTreeSet<ServerId> = wanted.map(|(target, _)| self.arbiter(*target)).collect();
        self.asks.extend(arbiters.into_iter().filter(|arbiter| *arbiter != self.terms.server));
        self.news = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(servers: &[u16], alpha: u32, quantum: Option<u64>) -> Places {
        let servers = servers.iter().copied().map(ServerId).collect();
        Places::new(Terms { quantum: quantum.map(Bytes), ..Terms::usual(servers, vec![alpha; 2]) })
    }

    #[test]
    fn the_smallest_job_has_the_place_until_its_bytes_are_out() {
        let mut places = places(&[0], 1, None);
        let (large, small) = (JobId(1), JobId(2));
        let left = |bytes| [(TargetId(0), Bytes(bytes))];
        places.tell(Tick(0), large, (1, 0), &left(100));
        assert_eq!(places.granted(), [(large, TargetId(0))]);
        places.tell(Tick(1), small, (1, 0), &left(10));
        assert_eq!(places.granted(), [(large, TargetId(0))], "a grant is not taken back");
        places.wrote(Tick(2), (large, TargetId(0)), 60, Bytes(40));
        assert_eq!(places.granted(), [(large, TargetId(0))]);
        places.wrote(Tick(3), (large, TargetId(0)), 40, Bytes(0));
        assert_eq!(places.granted(), [(small, TargetId(0))]);
    }

    #[test]
    fn a_quantum_ends_a_grant_and_the_smaller_job_is_next() {
        let mut places = places(&[0], 1, Some(50));
        let (large, small) = (JobId(1), JobId(2));
        places.tell(Tick(0), large, (1, 0), &[(TargetId(0), Bytes(100))]);
        places.tell(Tick(1), small, (1, 0), &[(TargetId(0), Bytes(10))]);
        places.wrote(Tick(2), (large, TargetId(0)), 50, Bytes(50));
        assert_eq!(places.granted(), [(small, TargetId(0))]);
        places.give_back(Tick(3), (small, TargetId(0)), Bytes(0));
        assert_eq!(places.granted(), [(large, TargetId(0))]);
    }

    /// Lets two servers say what they have to say, as often as it takes.
    fn converse(now: Tick, one: &mut Places, two: &mut Places) {
        for _ in 0..4 {
            speak(now, one, two);
            speak(now, two, one);
        }
    }

    fn speak(now: Tick, asks: &mut Places, gives: &mut Places) {
        let (to, from) = (gives.terms.server, asks.terms.server);
        if let Some((heard, fill, wanted)) = asks.statement(to) {
            let granted = gives.judge(now, from, (heard, fill), &wanted);
            asks.hear(to, &granted);
        }
    }

    #[test]
    fn two_servers_never_have_more_than_a_target_may() {
        let (mut one, mut two) = (places(&[1, 2], 1, None), places(&[2, 1], 1, None));
        let all = [(TargetId(0), Bytes(100)), (TargetId(1), Bytes(100))];
        one.tell(Tick(0), JobId(1), (0, 0), &all);
        two.tell(Tick(0), JobId(2), (0, 0), &all);
        let mut out = [0, 0];
        for step in 1..40 {
            converse(Tick(step), &mut one, &mut two);
            for target in [TargetId(0), TargetId(1)] {
                let holders = [&one, &two].map(|places| places.granted().iter().any(|(_, at)| *at == target));
                assert!(!(holders[0] && holders[1]), "both write to {target} at {step}");
            }
            for (number, places) in [&mut one, &mut two].into_iter().enumerate() {
                for (job, target) in places.granted() {
                    out[number] += 1;
                    places.wrote(Tick(step), (job, target), 100, Bytes(0));
                    let left = all.map(|(at, bytes)| (at, if at == target { Bytes(0) } else { bytes }));
                    let left: Vec<_> =
                        left.into_iter().filter(|(_, bytes)| out[number] < 2 && bytes.0 > 0).collect();
                    places.tell(Tick(step), job, (0, 0), &left);
                }
            }
        }
        assert_eq!(out, [2, 2], "everything was written");
    }

    #[test]
    fn whoever_waits_for_a_target_is_told_at_once_when_it_is_free() {
        let target = TargetId(0);
        let (first, second) = match places(&[1, 2], 1, None).arbiter(target) {
            ServerId(1) => (1, 2),
            _ => (2, 1),
        };
        let (mut gives, mut waits) = (places(&[first, second], 1, None), places(&[second, first], 1, None));
        let (first, second) = (ServerId(first), ServerId(second));
        let left = [(target, Bytes(100))];
        gives.tell(Tick(0), JobId(1), (0, 0), &left);
        waits.tell(Tick(0), JobId(2), (0, 0), &left);
        assert!(waits.words_for(first).1, "it asks at once");
        speak(Tick(1), &mut waits, &mut gives);
        assert_eq!((waits.granted(), gives.has_word_for(second)), (vec![], false));
        gives.wrote(Tick(2), (JobId(1), target), 100, Bytes(0));
        assert!(gives.news && gives.words_for(second).0, "it is told that there is a place");
        // Which it is told makes it ask, without waiting for the next beat.
        waits.ask(first);
        assert!(waits.news && waits.words_for(first).1);
        speak(Tick(3), &mut waits, &mut gives);
        assert_eq!(waits.granted(), [(JobId(2), target)]);
    }

    #[test]
    fn what_is_new_for_a_target_is_said_at_once_also_by_a_job_that_is_known() {
        // Of the first eight targets some are the other's to give.
        let mut places = Places::new(Terms { alpha: vec![1; 8], ..places(&[1, 2], 1, None).terms });
        let theirs: Vec<TargetId> = places.given_by(ServerId(2)).collect();
        let (first, second) = (theirs[0], theirs[1]);
        let mut told = |left: &[(TargetId, Bytes)]| {
            places.tell(Tick(0), JobId(1), (0, 0), left);
            places.words_for(ServerId(2)).1
        };
        assert!(told(&[(first, Bytes(9))]));
        assert!(!told(&[(first, Bytes(7))]), "how much is left is said with the next beat");
        assert!(told(&[(first, Bytes(7)), (second, Bytes(3))]));
        assert!(!told(&[(second, Bytes(3))]));
        assert!(told(&[(first, Bytes(1)), (second, Bytes(3))]), "it had nothing for it any more");
    }

    #[test]
    fn what_a_server_gave_that_does_not_answer_is_given_by_another() {
        let (mut one, mut two) = (places(&[1, 2], 1, None), places(&[2, 1], 1, None));
        let all = [
            (TargetId(0), Bytes(9)),
            (TargetId(1), Bytes(9)),
            (TargetId(2), Bytes(9)),
            (TargetId(3), Bytes(9)),
        ];
        one.tell(Tick(0), JobId(1), (0, 0), &all);
        converse(Tick(1), &mut one, &mut two);
        assert!(one.held.values().any(|place| place.by == ServerId(2)), "some are the other's to give");
        one.miss(ServerId(2));
        one.tell(Tick(2), JobId(1), (0, 0), &all);
        assert!(one.held.values().all(|place| place.by == ServerId(1)));
        assert!(!one.held.is_empty());
    }
}
