//! The circle of servers: every λ each tells the others which jobs are active on it, and reckons from what it was
//! told which share of it each job gets, so that shares hold over all of them together.
//!
//! A server knows the others by their addresses, and their numbers from the handshake; tables of anybody else are
//! refused, as are such as are old or cannot be true ([`Peers`]). One that is not heard of any more ages out, and the
//! others go on without it. A policy that was set travels with the tables, and the latest counts: a server that was
//! away learns of it when it comes back.

use crate::config::Config;
use crate::service::{Service, stopped};
use crate::several::{Line, Lines};
use forebay_model::{Error, ErrorKind, Job, JobId, Result, ServerId, Stamp};
use forebay_policy::Tick;
use forebay_policy::share::{MAX_TABLE, Peers, Policy, Table, divide};
use forebay_wire::{Exchange, PeerStatus, Request};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{interval, timeout};

/// Jobs in one message.
const PART: usize = 1024;
/// A table counts for at least so long.
const LEAST_AGE: Duration = Duration::from_millis(500);
/// A job counts as active on a server for at least so long.
const LEAST_WINDOW: Duration = Duration::from_millis(100);
/// For another server to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a server knows of the others.
pub(crate) struct Circle {
    known: Mutex<Known>,
    /// Told when a table has come.
    heard: Notify,
    /// Changes when all are to be told at once.
    hurry: watch::Sender<Stamp>,
    lambda: Duration,
}

struct Known {
    peers: Peers,
    /// Tables that have come in part.
    arriving: HashMap<ServerId, Arriving>,
    /// When the policy was set that is followed here.
    policy_set: Stamp,
    /// What each follows, as it said.
    policies: HashMap<ServerId, String>,
    /// What the jobs get of this server, once servers have agreed.
    shares: Option<HashMap<JobId, f64>>,
    lines: Vec<Seen>,
}

struct Arriving {
    version: u64,
    parts: u16,
    jobs: Vec<Job>,
}

/// What is known of one address.
#[derive(Default)]
struct Seen {
    trouble: Option<String>,
    /// The policy it has heard of.
    told: Option<Stamp>,
}

impl Circle {
    pub(crate) fn new(config: &Config, lines: &Lines, policy_set: Stamp) -> Circle {
        let lambda = config.lambda;
        let age = (lambda * 4).max(LEAST_AGE);
        let known = Known {
            peers: Peers::new([config.server], tick(age)),
            arriving: HashMap::new(),
            policy_set,
            policies: HashMap::new(),
            shares: None,
            lines: lines.all().iter().map(|_| Seen::default()).collect(),
        };
        Circle { known: Mutex::new(known), heard: Notify::new(), hurry: watch::Sender::new(Stamp(0)), lambda }
    }

    /// What the jobs get of this server, if servers have agreed on it.
    pub(crate) fn shares(&self) -> Option<HashMap<JobId, f64>> {
        self.lock().shares.clone()
    }

    /// When the policy was set that is followed here.
    pub(crate) fn policy_set(&self) -> Stamp {
        self.lock().policy_set
    }

    /// The others, as things are.
    pub(crate) fn peers(&self, lines: &Lines, policy: &str) -> Vec<PeerStatus> {
        let known = self.lock();
        let status = |(line, seen): (&Arc<Line>, &Seen)| {
            let server = line.server();
            let follows = server.and_then(|server| known.policies.get(&server));
            let told = known.policy_set > Stamp(0) && seen.told == Some(known.policy_set);
            PeerStatus {
                address: line.address().to_owned(),
                server,
                trouble: seen.trouble.clone(),
                agrees: seen.trouble.is_none() && (told || follows.is_some_and(|theirs| theirs == policy)),
            }
        };
        lines.all().iter().zip(&known.lines).map(status).collect()
    }

    /// A server is at the other end of a line.
    pub(crate) fn admit(&self, server: ServerId) {
        self.lock().peers.admit(server);
    }

    /// Whether every server has been told of the policy that is followed here.
    fn all_told(&self) -> bool {
        let known = self.lock();
        known.lines.iter().all(|seen| seen.told == Some(known.policy_set))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// Puts a table together; `None` while parts are missing.
    fn assemble(&mut self, told: Exchange) -> Result<Option<Table>> {
        let wrong = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let Exchange { server, version, capacity, part, parts, mut jobs, .. } = told;
        if part >= parts || usize::from(parts) > MAX_TABLE.div_ceil(PART) || jobs.len() > PART {
            return wrong(format!("part {part} of {parts} with {} jobs is no part of a table", jobs.len()));
        }
        if part > 0 {
            let fits = |begun: &Arriving| {
                begun.version == version
                    && begun.parts == parts
                    && begun.jobs.len() == usize::from(part) * PART
            };
            let Some(begun) = self.arriving.remove(&server).filter(fits) else {
                return wrong(format!("part {part} of table {version} came without those before it"));
            };
            jobs = [begun.jobs, jobs].concat();
        }
        if part + 1 < parts {
            self.arriving.insert(server, Arriving { version, parts, jobs });
            return Ok(None);
        }
        Ok(Some(Table { server, version, capacity: capacity as f64, jobs }))
    }
}

fn tick(time: Duration) -> Tick {
    Tick(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

impl Service {
    /// Hears what another server says.
    pub(crate) fn hear_table(&self, told: Exchange) -> Result<()> {
        let (server, policy, set) = (told.server, told.policy.clone(), told.policy_set);
        let refuse = |why: &dyn std::fmt::Display| {
            tracing::warn!(%server, %why, "a server's table was not taken");
            Error::new(ErrorKind::Invalid, format!("the table of server {server} was not taken: {why}"))
        };
        let theirs: Policy = policy.parse().map_err(|error| refuse(&error))?;
        let mut known = self.circle.lock();
        if server == self.config.server || !known.peers.is_member(server) {
            return Err(refuse(&format_args!("server {server} is not a peer of this one")));
        }
        // A clock that is ahead must not hold a policy for ever.
        let newest = Stamp(self.store.data().now().0.saturating_add(60_000_000_000));
        if set > newest {
            return Err(refuse(&"its policy was set in the future: compare the clocks"));
        }
        if let Some(table) = known.assemble(told).map_err(|error| refuse(&error))? {
            known.peers.offer(table, self.turns.now()).map_err(|why| refuse(&why))?;
        }
        known.policies.insert(server, theirs.to_string());
        if set > known.policy_set {
            known.policy_set = set;
            self.turns.set_policy(&theirs);
            tracing::info!(%server, policy = %theirs, "the policy was changed there");
            if let Err(error) = self.standing.keep(&theirs, set) {
                tracing::warn!(%error, "the new policy is followed, but will be forgotten when this server ends");
            }
        }
        drop(known);
        self.circle.heard.notify_one();
        Ok(())
    }

    /// Follows another policy, and tells the others; waits until they know, or for as long as is sensible.
    pub(crate) async fn change_policy(&self, policy: &Policy) -> Result<()> {
        {
            let mut known = self.circle.lock();
            let set = self.store.data().now().max(Stamp(known.policy_set.0 + 1));
            // What cannot be kept is not followed either.
            self.standing.keep(policy, set)?;
            known.policy_set = set;
            self.turns.set_policy(policy);
            self.circle.hurry.send_replace(set);
        }
        self.circle.heard.notify_one();
        let all = async {
            while !self.circle.all_told() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(PATIENCE, all).await.is_err() {
            tracing::warn!("not every server could be told of the new policy; it will be when it is back");
        }
        Ok(())
    }

    /// The jobs that are active here.
    fn table(&self) -> Table {
        let now = self.store.data().now();
        let mut jobs = self.jobs.active(now, self.circle.lambda.max(LEAST_WINDOW));
        jobs.truncate(MAX_TABLE);
        let capacity = self.turns.rules().rate() as f64;
        Table { server: self.config.server, version: now.0, capacity, jobs }
    }

    /// Reckons what every job gets of this server.
    fn reckon(&self) {
        let (table, now) = (self.table(), self.turns.now());
        let policy = self.turns.policy();
        let mut known = self.circle.lock();
        if let Err(why) = known.peers.offer(table, now) {
            tracing::debug!(%why, "the own table is not new");
        }
        let (capacities, jobs) = (known.peers.capacities(now), known.peers.jobs(now));
        drop(known);
        let shares = match capacities.len() {
            0 | 1 => None,
            _ if policy.is_fifo() => None,
            _ => Some(
                divide(&policy, &capacities, &jobs).servers.remove(&self.config.server).unwrap_or_default(),
            ),
        };
        self.turns.assign(shares.as_deref().unwrap_or_default());
        self.circle.lock().shares = shares.map(|shares| shares.into_iter().collect());
    }

    /// The messages that tell another server of the jobs here.
    fn tell(&self) -> (Vec<Exchange>, Stamp) {
        let table = self.table();
        let (policy, policy_set) = (self.turns.policy().to_string(), self.circle.policy_set());
        let mut chunks: Vec<Vec<Job>> = table.jobs.chunks(PART).map(<[Job]>::to_vec).collect();
        if chunks.is_empty() {
            chunks.push(Vec::new());
        }
        let parts = u16::try_from(chunks.len()).expect("a table is bounded");
        let message = |(part, jobs)| Exchange {
            server: table.server,
            version: table.version,
            capacity: self.turns.rules().rate(),
            policy: policy.clone(),
            policy_set,
            part,
            parts,
            jobs,
        };
        ((0..parts).zip(chunks).map(message).collect(), policy_set)
    }

    fn saw(&self, index: usize, what: impl FnOnce(&mut Seen)) {
        what(&mut self.circle.lock().lines[index]);
    }
}

/// Reckons every λ, and whenever a table has come.
pub(crate) async fn reckon(service: Arc<Service>) {
    let mut beat = interval(service.circle.lambda);
    let mut stopping = service.stopping();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            _ = beat.tick() => {}
            () = service.circle.heard.notified() => {}
        }
        tokio::task::block_in_place(|| service.reckon());
    }
}

/// Tells one other server, every λ, for as long as this one serves.
pub(crate) async fn converse(service: Arc<Service>, index: usize) {
    let line = service.lines.all()[index].clone();
    let mut beat = interval(service.circle.lambda);
    let mut hurry = service.circle.hurry.subscribe();
    let mut stopping = service.stopping();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            _ = beat.tick() => {}
            _ = hurry.changed() => {}
        }
        let told = say(&service, &line).await;
        service.saw(index, |seen| match told {
            Ok(policy_set) => {
                seen.trouble = None;
                seen.told = Some(policy_set);
            }
            Err(error) => {
                let text = error.to_string();
                if seen.trouble.as_ref() != Some(&text) {
                    tracing::warn!(address = %line.address(), %error, "another server could not be told of the jobs here");
                }
                seen.trouble = Some(text);
            }
        });
    }
}

async fn say(service: &Service, line: &Line) -> Result<Stamp> {
    let (messages, policy_set) = service.tell();
    for message in messages {
        line.ask(Request::Exchange(message), PATIENCE).await?;
    }
    Ok(policy_set)
}
