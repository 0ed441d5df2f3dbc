//! Exchange of job tables between servers. Every λ each server sends its active jobs to the others and computes from
//! their tables which share of itself each job gets, so that shares hold over all servers together.
//!
//! A server knows the others by their addresses, and their numbers from the handshake. It refuses tables of other
//! senders, and tables that are old or implausible ([`Peers`]). A server that no longer responds ages out, and the
//! others continue without it. A policy change travels with the tables, and the latest one wins: a server that was away
//! learns of it when it returns.

use crate::cluster::{PeerClient, PeerClients};
use crate::config::Config;
use crate::lifecycle::stopped;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, Job, Result, ServerId, Stamp};
use forebay_policy::Tick;
use forebay_policy::share::{MAX_TABLE, Peers, Policy, Table, divide};
use forebay_wire::{Exchange, PeerStatus, Request};
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{interval, timeout};

/// Jobs per message.
const PART: usize = 1024;
/// Minimum time for which a table is valid.
const LEAST_AGE: Duration = Duration::from_millis(500);
/// Minimum time for which a job counts as active on a server.
const LEAST_WINDOW: Duration = Duration::from_millis(100);
/// Timeout of a call to another server.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a server knows of the others.
pub(crate) struct Gossip {
    known: Mutex<Known>,
    /// Notified when a table has arrived.
    table_arrived: Notify,
    /// Changes when all servers must be notified at once.
    hurry: watch::Sender<Stamp>,
    lambda: Duration,
}

struct Known {
    peers: Peers,
    /// Tables that have arrived in part.
    arriving: HashMap<ServerId, Arriving>,
    /// When the current policy was set.
    policy_set: Stamp,
    /// The policy of each server, as it reported.
    policies: HashMap<ServerId, String>,
    peer_clients: Vec<Seen>,
}

struct Arriving {
    version: u64,
    parts: u16,
    jobs: Vec<Job>,
}

/// State of one address.
#[derive(Default)]
struct Seen {
    trouble: Option<String>,
    /// The latest policy that was sent to it.
    policy_sent: Option<Stamp>,
}

impl Gossip {
    pub(crate) fn new(config: &Config, peer_clients: &PeerClients, policy_set: Stamp) -> Gossip {
        let lambda = config.lambda;
        let age = (lambda * 4).max(LEAST_AGE);
        let known = Known {
            peers: Peers::new([config.server], tick(age)),
            arriving: HashMap::new(),
            policy_set,
            policies: HashMap::new(),
            peer_clients: peer_clients.all().iter().map(|_| Seen::default()).collect(),
        };
        Gossip {
            known: Mutex::new(known),
            table_arrived: Notify::new(),
            hurry: watch::Sender::new(Stamp(0)),
            lambda,
        }
    }

    /// When the current policy was set.
    pub(crate) fn policy_set(&self) -> Stamp {
        self.lock().policy_set
    }

    /// The status of the other servers.
    pub(crate) fn peers(&self, peer_clients: &PeerClients, policy: &str) -> Vec<PeerStatus> {
        let known = self.lock();
        let status = |(peer_client, seen): (&Arc<PeerClient>, &Seen)| {
            let server = peer_client.server();
            let follows = server.and_then(|server| known.policies.get(&server));
            let notified = known.policy_set > Stamp(0) && seen.policy_sent == Some(known.policy_set);
            PeerStatus {
                address: peer_client.address().to_owned(),
                server,
                trouble: seen.trouble.clone(),
                agrees: seen.trouble.is_none()
                    && (notified || follows.is_some_and(|theirs| theirs == policy)),
            }
        };
        peer_clients.all().iter().zip(&known.peer_clients).map(status).collect()
    }

    /// Admits the server at the other end of a connection.
    pub(crate) fn admit(&self, server: ServerId) {
        self.lock().peers.admit(server);
    }

    /// Whether every server has received the current policy.
    fn all_notified(&self) -> bool {
        let known = self.lock();
        known.peer_clients.iter().all(|seen| seen.policy_sent == Some(known.policy_set))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock()
    }
}

impl Known {
    /// Assembles a table from its parts; `None` while parts are missing.
    fn assemble(&mut self, exchange: Exchange) -> Result<Option<Table>> {
        let wrong = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        let Exchange { server, version, capacity, part, parts, mut jobs, .. } = exchange;
        if part >= parts || usize::from(parts) > MAX_TABLE.div_ceil(PART) || jobs.len() > PART {
            return wrong(format!(
                "part {part} of {parts} with {} jobs is not a part of a table",
                jobs.len()
            ));
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
    /// Merges the table of another server.
    pub(crate) fn merge_table(&self, exchange: Exchange) -> Result<()> {
        let (server, policy, set) = (exchange.server, exchange.policy.clone(), exchange.policy_set);
        let refuse = |why: &dyn std::fmt::Display| {
            tracing::warn!(%server, %why, "refused a server's table");
            Error::new(ErrorKind::Invalid, format!("refused the table of server {server}: {why}"))
        };
        let theirs: Policy = policy.parse().map_err(|error| refuse(&error))?;
        let mut known = self.gossip.lock();
        if server == self.config.server || !known.peers.is_member(server) {
            return Err(refuse(&format_args!("server {server} is not a peer of this one")));
        }
        // A clock that is ahead must not pin a policy for ever.
        let newest = Stamp(self.store.data().now().0.saturating_add(60_000_000_000));
        if set > newest {
            return Err(refuse(&"its policy was set in the future: compare the clocks"));
        }
        if let Some(table) = known.assemble(exchange).map_err(|error| refuse(&error))? {
            known.peers.offer(table, self.turns.now()).map_err(|why| refuse(&why))?;
        }
        known.policies.insert(server, theirs.to_string());
        if set > known.policy_set {
            known.policy_set = set;
            self.turns.set_policy(&theirs);
            tracing::info!(%server, policy = %theirs, "another server changed the policy");
            if let Err(error) = self.policy_store.keep(&theirs, set) {
                tracing::warn!(%error, "applied the new policy but could not store it: it is lost when this server stops");
            }
        }
        drop(known);
        self.gossip.table_arrived.notify_one();
        Ok(())
    }

    /// Changes the policy and notifies the other servers; waits until all know, at most for [`PATIENCE`].
    pub(crate) async fn change_policy(&self, policy: &Policy) -> Result<()> {
        {
            let mut known = self.gossip.lock();
            let set = self.store.data().now().max(Stamp(known.policy_set.0 + 1));
            // A policy that cannot be stored is not applied either.
            self.policy_store.keep(policy, set)?;
            known.policy_set = set;
            self.turns.set_policy(policy);
            self.gossip.hurry.send_replace(set);
        }
        self.gossip.table_arrived.notify_one();
        let all = async {
            while !self.gossip.all_notified() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if timeout(PATIENCE, all).await.is_err() {
            tracing::warn!(
                "could not send the new policy to every server; an unreachable one gets it when it returns"
            );
        }
        Ok(())
    }

    /// The jobs that are active on this server.
    fn table(&self) -> Table {
        let now = self.store.data().now();
        let mut jobs = self.jobs.active(now, self.gossip.lambda.max(LEAST_WINDOW));
        jobs.truncate(MAX_TABLE);
        let capacity = self.turns.rules().rate() as f64;
        Table { server: self.config.server, version: now.0, capacity, jobs }
    }

    /// Computes the share of this server for every job.
    fn reckon(&self) {
        let (table, now) = (self.table(), self.turns.now());
        let policy = self.turns.policy();
        let mut known = self.gossip.lock();
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
        self.jobs.agree(shares.map(|shares| shares.into_iter().collect()));
    }

    /// The messages that send this server's jobs to another server.
    fn notify(&self) -> (Vec<Exchange>, Stamp) {
        let table = self.table();
        let (policy, policy_set) = (self.turns.policy().to_string(), self.gossip.policy_set());
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
        what(&mut self.gossip.lock().peer_clients[index]);
    }
}

/// Computes the shares every λ, and whenever a table arrives.
pub(crate) async fn reckon(service: Arc<Service>) {
    let mut beat = interval(service.gossip.lambda);
    let mut stopping = service.life.stopping();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            _ = beat.tick() => {}
            () = service.gossip.table_arrived.notified() => {}
        }
        tokio::task::block_in_place(|| service.reckon());
    }
}

/// Sends the job table to another server every λ, until this server stops.
pub(crate) async fn converse(service: Arc<Service>, index: usize) {
    let peer_client = service.peers.clients.all()[index].clone();
    let mut beat = interval(service.gossip.lambda);
    let mut hurry = service.gossip.hurry.subscribe();
    let mut stopping = service.life.stopping();
    loop {
        tokio::select! {
            biased;
            () = stopped(&mut stopping) => return,
            _ = beat.tick() => {}
            _ = hurry.changed() => {}
        }
        let sent = send_table(&service, &peer_client).await;
        service.saw(index, |seen| match sent {
            Ok(policy_set) => {
                seen.trouble = None;
                seen.policy_sent = Some(policy_set);
            }
            Err(error) => {
                let text = error.to_string();
                if seen.trouble.as_ref() != Some(&text) {
                    tracing::warn!(address = %peer_client.address(), %error, "could not send the job table to another server");
                }
                seen.trouble = Some(text);
            }
        });
    }
}

async fn send_table(service: &Service, peer_client: &PeerClient) -> Result<Stamp> {
    let (messages, policy_set) = service.notify();
    for message in messages {
        peer_client.ask(Request::Exchange(message), PATIENCE).await?;
    }
    Ok(policy_set)
}
