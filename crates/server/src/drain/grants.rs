//! This server's write slots at targets, as granted by their arbiters.

use super::arbiter_rpc::{ArbiterService, Statement, Urgency};
use forebay_model::{Bytes, JobId, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::{Choice, Member, Rules, Slots, Until, home, slots};
use forebay_policy::drain::TargetId;
use forebay_wire::{Granted, Wanted};
use std::collections::{BTreeMap, BTreeSet};

/// The job number under which arbiters see all direct writers of a server, and the bytes of one of its grants, which
/// would otherwise never end.
pub(super) const DIRECT: JobId = JobId(u64::MAX);
const DIRECT_BYTES: u64 = 64 << 20;

/// Parameters of granting.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) server: ServerId,
    /// All servers of the service, ordered by number.
    pub(super) servers: Vec<ServerId>,
    /// Writers of each target.
    pub(super) alpha: Vec<u32>,
    pub(super) choice: Choice,
    pub(super) quantum: Option<Bytes>,
    /// A server that sends nothing for this long loses its grants.
    pub(super) lease: Tick,
}

fn count(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

impl Terms {
    /// The writers of a target that may have this many.
    fn slots(&self, alpha: u32) -> Slots {
        slots(alpha, count(self.alpha.len()), count(self.servers.len()))
    }
}

#[cfg(test)]
impl Terms {
    /// Default terms of the first of these servers.
    pub(super) fn usual(servers: Vec<ServerId>, alpha: Vec<u32>) -> Terms {
        let (choice, lease) = (Choice::Sjf, Rules::default().lease);
        Terms { server: servers[0], servers, alpha, choice, quantum: None, lease }
    }
}

/// What this server may write to which target. A server that is alone has its own arbiter and may use all slots.
pub(super) struct Grants {
    terms: Terms,
    /// The arbiter of the targets that belong to this server.
    arbiter_service: ArbiterService,
    held: BTreeMap<(JobId, TargetId), HeldGrant>,
    /// The bytes queued by job and target, as last reported: kept for new arbiters.
    wants: BTreeMap<JobId, (u32, Vec<(TargetId, Bytes)>)>,
    fill: u16,
    /// Servers that do not answer: others are the arbiters of their targets.
    unreachable: BTreeSet<ServerId>,
    /// By arbiter, the latest grant that was received, and the grants returned since.
    received: BTreeMap<ServerId, (u64, BTreeSet<u64>)>,
    /// Servers that have new grants from this arbiter, and have to be notified.
    notices_due: BTreeSet<ServerId>,
    /// Arbiters that have to be sent a statement at once.
    statements_due: BTreeSet<ServerId>,
    /// Whether there are messages to send to other servers.
    pub(super) has_messages: bool,
    /// Whether there are new grants that no worker has used yet.
    pub(super) has_new_grants: bool,
}

/// A grant that this server holds.
#[derive(Clone, Copy, Debug)]
struct HeldGrant {
    /// Bytes that may still be written.
    bytes: u64,
    /// The arbiter, and the serial number of its grant.
    by: ServerId,
    serial: u64,
}

impl Grants {
    pub(super) fn new(terms: Terms) -> Grants {
        let until = terms.quantum.map_or(Until::All, Until::Quantum);
        let (choice, alpha) = (terms.choice, terms.alpha.clone());
        let slots = terms.slots(alpha.iter().copied().max().unwrap_or(1));
        let per_server = slots.per_server;
        let arbiter_service =
            ArbiterService::new(Rules { per_server, until, choice, lease: terms.lease, ..Rules::default() });
        let mut grants = Grants {
            terms,
            arbiter_service,
            held: BTreeMap::new(),
            wants: BTreeMap::new(),
            fill: 0,
            unreachable: BTreeSet::new(),
            received: BTreeMap::new(),
            notices_due: BTreeSet::new(),
            statements_due: BTreeSet::new(),
            has_messages: false,
            has_new_grants: false,
        };
        (0..).map(TargetId).zip(alpha).for_each(|(target, alpha)| grants.set_alpha(Tick(0), target, alpha));
        grants
    }

    /// Sets the number of writers of a target.
    pub(super) fn set_alpha(&mut self, now: Tick, target: TargetId, alpha: u32) {
        let members = self.terms.slots(alpha).members;
        if let Some(known) = self.terms.alpha.get_mut(target.0 as usize) {
            *known = alpha;
            let given = self.arbiter_service.set_alpha(now, target, members);
            self.take(given);
        }
    }

    /// How many servers may write to a target.
    pub(super) fn alpha(&self, target: TargetId) -> u32 {
        self.terms.alpha.get(target.0 as usize).copied().unwrap_or(1)
    }

    /// The arbiter of a target.
    fn arbiter(&self, target: TargetId) -> ServerId {
        let reachable: Vec<ServerId> =
            self.terms.servers.iter().copied().filter(|server| !self.unreachable.contains(server)).collect();
        home(target, &reachable).unwrap_or(self.terms.server)
    }

    /// Whether a target has all its writers, as far as this server is its arbiter.
    pub(super) fn is_full(&self, target: TargetId) -> bool {
        self.arbiter_service.holders(target) >= self.alpha(target) as usize
    }

    /// The targets of an arbiter.
    pub(super) fn given_by(&self, server: ServerId) -> impl Iterator<Item = TargetId> + '_ {
        let targets = (0..).take(self.terms.alpha.len()).map(TargetId);
        targets.filter(move |target| self.arbiter(*target) == server)
    }

    pub(super) fn is_own(&self, target: TargetId) -> bool {
        self.is_alone() || self.arbiter(target) == self.terms.server
    }

    /// Takes this server's new grants from its own arbiter, and marks the other servers that got some.
    fn take(&mut self, given: BTreeSet<ServerId>) {
        let own = self.terms.server;
        if given.contains(&own) {
            let granted: Vec<Granted> = self.arbiter_service.of(own).collect();
            self.hold(own, &granted);
        }
        self.notices_due.extend(given.into_iter().filter(|server| *server != own));
        self.has_messages |= !self.notices_due.is_empty();
    }

    fn hold(&mut self, by: ServerId, granted: &[Granted]) {
        for &Granted { serial, job, target, bytes } in granted {
            let bytes = match (self.terms.quantum, job) {
                (Some(_), _) => bytes,
                (None, DIRECT) => DIRECT_BYTES,
                (None, _) => u64::MAX,
            };
            let known = self.held.get(&(job, TargetId(target)));
            if known.is_none_or(|known| (known.by, known.serial) != (by, serial)) {
                self.held.insert((job, TargetId(target)), HeldGrant { bytes, by, serial });
                self.has_new_grants = true;
            }
        }
    }

    /// Reports the bytes that a job has queued, by target.
    pub(super) fn notify(&mut self, now: Tick, job: JobId, urgency: Urgency, left: &[(TargetId, Bytes)]) {
        self.fill = urgency.fill;
        let (own, theirs): (Vec<_>, Vec<_>) = left.iter().partition(|(target, _)| self.is_own(*target));
        match theirs.is_empty() {
            true => drop(self.wants.remove(&job)),
            false => {
                let known = self.wants.get(&job).map_or(&[][..], |(_, known)| known);
                let is_new = |target: TargetId| !known.iter().any(|(known, _)| *known == target);
                let new = theirs.iter().filter(|(target, _)| is_new(*target));
                let arbiters: BTreeSet<ServerId> = new.map(|(target, _)| self.arbiter(*target)).collect();
                self.has_messages |= !arbiters.is_empty();
                self.statements_due.extend(arbiters);
                self.wants.insert(job, (urgency.priority, theirs));
            }
        }
        let given =
            self.arbiter_service.request(now, Member { server: self.terms.server, job }, urgency, &own);
        self.take(given);
    }

    /// The grants of this server: job and target.
    pub(super) fn granted(&self) -> Vec<(JobId, TargetId)> {
        self.held.keys().copied().collect()
    }

    /// Whether this server has a grant for a target, for any job.
    pub(super) fn may_write(&self, target: TargetId) -> bool {
        self.held.keys().any(|(_, held)| *held == target)
    }

    /// Whether there are no other servers.
    pub(super) fn is_alone(&self) -> bool {
        self.terms.servers.len() < 2
    }

    /// Most writers of this server at a target.
    pub(super) fn streams(&self, target: TargetId) -> u32 {
        let held = self.held.keys().filter(|(_, at)| *at == target).count();
        self.terms.slots(self.alpha(target)).streams(count(held))
    }

    /// Most writers of one job at a target.
    pub(super) fn streams_per_job(&self, target: TargetId) -> u32 {
        self.terms.slots(self.alpha(target)).streams_per_job
    }

    /// `bytes` were written under a grant and `left` remain: the grant continues or is returned.
    pub(super) fn wrote(&mut self, now: Tick, (job, target): (JobId, TargetId), bytes: u64, left: Bytes) {
        let (own, server) = (self.is_own(target), self.terms.server);
        let Some(grant) = self.held.get_mut(&(job, target)) else { return };
        grant.bytes = grant.bytes.saturating_sub(bytes);
        if grant.bytes == 0 || left.0 == 0 {
            self.give_back(now, (job, target), left);
        } else if own {
            self.arbiter_service.progress(now, Member { server, job }, target, left);
        }
    }

    /// Returns a grant, with `left` bytes remaining for its target.
    pub(super) fn give_back(&mut self, now: Tick, (job, target): (JobId, TargetId), left: Bytes) {
        let Some(HeldGrant { by, serial, .. }) = self.held.remove(&(job, target)) else { return };
        if by == self.terms.server {
            let given = self.arbiter_service.give_back(now, by, job, target, left);
            self.take(given);
        } else {
            self.received.entry(by).or_default().1.insert(serial);
            if let Some((_, wanted)) = self.wants.get_mut(&job) {
                wanted.retain(|(other, _)| *other != target);
                wanted.extend((left.0 > 0).then_some((target, left)));
            }
            self.send_statement_soon(by);
        }
    }

    /// Sends a statement to another server at once.
    pub(super) fn send_statement_soon(&mut self, server: ServerId) {
        self.statements_due.insert(server);
        self.has_messages = true;
    }

    /// Whether a message to another server is due.
    pub(super) fn has_message_for(&self, server: ServerId) -> bool {
        self.statements_due.contains(&server) || self.notices_due.contains(&server)
    }

    /// Takes what is due for another server: whether to notify it of a grant, and whether to send it a statement.
    pub(super) fn take_messages_for(&mut self, server: ServerId) -> (bool, bool) {
        (self.notices_due.remove(&server), self.statements_due.remove(&server))
    }

    /// Called periodically: reports progress to the own arbiter, and expires grants of silent servers.
    pub(super) fn tick(&mut self, now: Tick, left: impl Fn(JobId, TargetId) -> Bytes) {
        let server = self.terms.server;
        for (&(job, target), _) in self.held.iter().filter(|(_, grant)| grant.by == server) {
            self.arbiter_service.progress(now, Member { server, job }, target, left(job, target));
        }
        let given = self.arbiter_service.expire(now);
        self.take(given);
    }
}

/// Messages between servers.
impl Grants {
    /// Handles the statement of another server; returns its grants.
    pub(super) fn handle_statement(
        &mut self,
        now: Tick,
        from: ServerId,
        statement: Statement<'_>,
    ) -> Vec<Granted> {
        let (granted, others) = self.arbiter_service.handle_statement(now, from, statement);
        self.take(others);
        granted
    }

    /// The statement for another server; `None` if it is not the arbiter of anything this server needs and never was.
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
        for (&(job, target), _) in self.held.iter().filter(|(_, grant)| grant.by == to) {
            wanted.entry(job).or_insert_with(|| of(job, 0)).holds.push(target.0);
        }
        let received = self.received.get(&to);
        // A server that did not answer is polled.
        if wanted.is_empty() && received.is_none() && !self.unreachable.contains(&to) {
            return None;
        }
        Some((received.map_or(0, |(last, _)| *last), self.fill, wanted.into_values().collect()))
    }

    /// Handles the reply of another arbiter.
    pub(super) fn handle_reply(&mut self, from: ServerId, granted: &[Granted]) {
        self.unreachable.remove(&from);
        let (last, returned) = self.received.entry(from).or_default();
        *last = granted.iter().map(|granted| granted.serial).fold(*last, u64::max);
        // A grant that the reply does not list was revoked.
        returned.retain(|serial| granted.iter().any(|granted| granted.serial == *serial));
        let returned = returned.clone();
        let names = |grant: &HeldGrant| granted.iter().any(|granted| granted.serial == grant.serial);
        self.held.retain(|_, grant| grant.by != from || names(grant));
        let new: Vec<Granted> =
            granted.iter().copied().filter(|granted| !returned.contains(&granted.serial)).collect();
        self.hold(from, &new);
        let idle = self.held.values().all(|grant| grant.by != from) && returned.is_empty();
        if idle && self.wants.is_empty() {
            self.received.remove(&from);
        }
    }

    /// Another server does not answer: its grants are void, and other arbiters take its targets.
    pub(super) fn mark_unreachable(&mut self, server: ServerId) {
        if !self.unreachable.insert(server) {
            return;
        }
        self.received.remove(&server);
        self.held.retain(|_, grant| grant.by != server);
        let wanted = self.wants.values().flat_map(|(_, left)| left);
        let arbiters: BTreeSet<ServerId> = wanted.map(|(target, _)| self.arbiter(*target)).collect();
        self.statements_due.extend(arbiters.into_iter().filter(|arbiter| *arbiter != self.terms.server));
        self.has_messages = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grants(servers: &[u16], alpha: u32, quantum: Option<u64>) -> Grants {
        let servers = servers.iter().copied().map(ServerId).collect();
        Grants::new(Terms { quantum: quantum.map(Bytes), ..Terms::usual(servers, vec![alpha; 2]) })
    }

    #[test]
    fn smallest_job_keeps_its_grant_until_its_bytes_are_written() {
        let mut grants = grants(&[0], 1, None);
        let (large, small) = (JobId(1), JobId(2));
        let left = |bytes| [(TargetId(0), Bytes(bytes))];
        grants.notify(Tick(0), large, Urgency { priority: 1, fill: 0 }, &left(100));
        assert_eq!(grants.granted(), [(large, TargetId(0))]);
        grants.notify(Tick(1), small, Urgency { priority: 1, fill: 0 }, &left(10));
        assert_eq!(grants.granted(), [(large, TargetId(0))], "a grant is not taken back");
        grants.wrote(Tick(2), (large, TargetId(0)), 60, Bytes(40));
        assert_eq!(grants.granted(), [(large, TargetId(0))]);
        grants.wrote(Tick(3), (large, TargetId(0)), 40, Bytes(0));
        assert_eq!(grants.granted(), [(small, TargetId(0))]);
    }

    #[test]
    fn quantum_ends_a_grant_and_the_smaller_job_is_next() {
        let mut grants = grants(&[0], 1, Some(50));
        let (large, small) = (JobId(1), JobId(2));
        grants.notify(Tick(0), large, Urgency { priority: 1, fill: 0 }, &[(TargetId(0), Bytes(100))]);
        grants.notify(Tick(1), small, Urgency { priority: 1, fill: 0 }, &[(TargetId(0), Bytes(10))]);
        grants.wrote(Tick(2), (large, TargetId(0)), 50, Bytes(50));
        assert_eq!(grants.granted(), [(small, TargetId(0))]);
        grants.give_back(Tick(3), (small, TargetId(0)), Bytes(0));
        assert_eq!(grants.granted(), [(large, TargetId(0))]);
    }

    /// Lets two servers exchange statements until nothing changes.
    fn exchange(now: Tick, one: &mut Grants, two: &mut Grants) {
        for _ in 0..4 {
            exchange_once(now, one, two);
            exchange_once(now, two, one);
        }
    }

    fn exchange_once(now: Tick, asks: &mut Grants, gives: &mut Grants) {
        let (to, from) = (gives.terms.server, asks.terms.server);
        if let Some((last_received, fill, wanted)) = asks.statement(to) {
            let statement = Statement { last_received, fill, wanted: &wanted };
            let granted = gives.handle_statement(now, from, statement);
            asks.handle_reply(to, &granted);
        }
    }

    #[test]
    fn two_servers_never_exceed_the_alpha_of_a_target() {
        let (mut one, mut two) = (grants(&[1, 2], 1, None), grants(&[2, 1], 1, None));
        let all = [(TargetId(0), Bytes(100)), (TargetId(1), Bytes(100))];
        one.notify(Tick(0), JobId(1), Urgency::default(), &all);
        two.notify(Tick(0), JobId(2), Urgency::default(), &all);
        let mut out = [0, 0];
        for step in 1..40 {
            exchange(Tick(step), &mut one, &mut two);
            for target in [TargetId(0), TargetId(1)] {
                let holders = [&one, &two].map(|grants| grants.granted().iter().any(|(_, at)| *at == target));
                assert!(!(holders[0] && holders[1]), "both write to {target} at {step}");
            }
            for (number, grants) in [&mut one, &mut two].into_iter().enumerate() {
                for (job, target) in grants.granted() {
                    out[number] += 1;
                    grants.wrote(Tick(step), (job, target), 100, Bytes(0));
                    let left = all.map(|(at, bytes)| (at, if at == target { Bytes(0) } else { bytes }));
                    let left: Vec<_> =
                        left.into_iter().filter(|(_, bytes)| out[number] < 2 && bytes.0 > 0).collect();
                    grants.notify(Tick(step), job, Urgency::default(), &left);
                }
            }
        }
        assert_eq!(out, [2, 2], "everything was written");
    }

    #[test]
    fn waiting_server_is_notified_at_once_when_a_target_is_free() {
        let target = TargetId(0);
        let (first, second) = match grants(&[1, 2], 1, None).arbiter(target) {
            ServerId(1) => (1, 2),
            _ => (2, 1),
        };
        let (mut gives, mut waits) = (grants(&[first, second], 1, None), grants(&[second, first], 1, None));
        let (first, second) = (ServerId(first), ServerId(second));
        let left = [(target, Bytes(100))];
        gives.notify(Tick(0), JobId(1), Urgency::default(), &left);
        waits.notify(Tick(0), JobId(2), Urgency::default(), &left);
        assert!(waits.take_messages_for(first).1, "it sends a statement at once");
        exchange_once(Tick(1), &mut waits, &mut gives);
        assert_eq!((waits.granted(), gives.has_message_for(second)), (vec![], false));
        gives.wrote(Tick(2), (JobId(1), target), 100, Bytes(0));
        assert!(gives.has_messages && gives.take_messages_for(second).0, "it is notified of the grant");
        // The notification makes it send a statement, without waiting for the next beat.
        waits.send_statement_soon(first);
        assert!(waits.has_messages && waits.take_messages_for(first).1);
        exchange_once(Tick(3), &mut waits, &mut gives);
        assert_eq!(waits.granted(), [(JobId(2), target)]);
    }

    #[test]
    fn known_job_reports_a_new_target_at_once() {
        // Of the first eight targets some belong to the other arbiter.
        let mut grants = Grants::new(Terms { alpha: vec![1; 8], ..grants(&[1, 2], 1, None).terms });
        let theirs: Vec<TargetId> = grants.given_by(ServerId(2)).collect();
        let (first, second) = (theirs[0], theirs[1]);
        let mut reported = |left: &[(TargetId, Bytes)]| {
            grants.notify(Tick(0), JobId(1), Urgency::default(), left);
            grants.take_messages_for(ServerId(2)).1
        };
        assert!(reported(&[(first, Bytes(9))]));
        assert!(!reported(&[(first, Bytes(7))]), "the remaining bytes are reported with the next beat");
        assert!(reported(&[(first, Bytes(7)), (second, Bytes(3))]));
        assert!(!reported(&[(second, Bytes(3))]));
        assert!(reported(&[(first, Bytes(1)), (second, Bytes(3))]), "it had nothing left for this target");
    }

    #[test]
    fn targets_of_an_unreachable_arbiter_move_to_another() {
        let (mut one, mut two) = (grants(&[1, 2], 1, None), grants(&[2, 1], 1, None));
        let all = [
            (TargetId(0), Bytes(9)),
            (TargetId(1), Bytes(9)),
            (TargetId(2), Bytes(9)),
            (TargetId(3), Bytes(9)),
        ];
        one.notify(Tick(0), JobId(1), Urgency::default(), &all);
        exchange(Tick(1), &mut one, &mut two);
        assert!(
            one.held.values().any(|grant| grant.by == ServerId(2)),
            "the other server is the arbiter of some"
        );
        one.mark_unreachable(ServerId(2));
        one.notify(Tick(2), JobId(1), Urgency::default(), &all);
        assert!(one.held.values().all(|grant| grant.by == ServerId(1)));
        assert!(!one.held.is_empty());
    }
}
