//! Servers with a modelled device, jobs that keep them busy, and the share that each job gets.

use forebay_client::{Address, Client, ClientConfig, Credential, OpenOptions};
use forebay_model::{Bytes, Job, JobId};
use forebay_server::{Config, Medium, Running, Server};
use forebay_wire::JobStatus;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::task::JoinSet;

/// Bytes written by one request; with the cost of an operation it costs the device 32 KiB.
const REQUEST: usize = 24 << 10;
const OPERATION: u64 = 8 << 10;
/// Throughput of the device: 512 requests per second.
pub(crate) const RATE: Bytes = Bytes::mib(16);
/// Number of concurrent requests of a job: enough that one always waits, even on a busy machine.
const DEPTH: usize = 12;

/// A server with a directory of its own.
pub(crate) struct Site {
    dir: TempDir,
    config: Config,
    running: Running,
}

impl Site {
    pub(crate) fn new(change: impl FnOnce(&mut Config)) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config {
            capacity: Bytes::mib(64),
            region: Some(Bytes::mib(4)),
            medium: Medium::Disk,
            listen: "127.0.0.1:0".parse().unwrap(),
            device_rate: Some(RATE),
            operation_cost: Bytes(OPERATION),
            ..Config::for_store(dir.path().join("store"))
        };
        change(&mut config);
        let running = Server::start(config.clone()).unwrap();
        Site { dir, config, running }
    }

    /// Two servers that know each other, with one key.
    pub(crate) fn pair(policy: &str, lambda: Duration) -> (Site, Site, TempDir) {
        let keys = tempfile::tempdir().unwrap();
        let key = keys.path().join("key");
        let places = [forebay_testkit::address(), forebay_testkit::address()];
        let start = |own: usize| {
            Site::new(|config| {
                config.server.0 = u16::try_from(own).unwrap() + 1;
                config.listen = places[own];
                config.peers = vec![format!("tcp:{}", places[1 - own])];
                config.key = Some(key.clone());
                config.policy = policy.parse().unwrap();
                config.lambda = lambda;
            })
        };
        let (one, two) = (start(0), start(1));
        (one, two, keys)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.running.addresses().unix.clone()
    }

    pub(crate) async fn client(&self, job: &Job) -> Client {
        let config = ClientConfig {
            job: job.clone(),
            credential: Credential::File(self.config.key_path()),
            data_connections: DEPTH,
            ..ClientConfig::new(Address::Unix(self.socket()))
        };
        Client::connect(config).await.unwrap()
    }

    pub(crate) async fn observer(&self) -> Client {
        self.client(&job("observer u g 1")).await
    }

    /// A job that writes as fast as it can.
    pub(crate) async fn writer(&self, described: &str) -> Work {
        let job = job(described);
        let client = self.client(&job).await;
        let mut work = Work::new(&job);
        for number in 0..DEPTH {
            let (client, go_on, name) =
                (client.clone(), work.go_on.clone(), format!("/{}-{number}", job.label));
            work.tasks.spawn(async move {
                let file = client.open(name, OpenOptions::CREATE).await.unwrap();
                let bytes = vec![7; REQUEST];
                while go_on.load(Ordering::Relaxed) {
                    file.pwrite(0, &bytes).await.unwrap();
                }
            });
        }
        work
    }

    /// A job that looks up names that do not exist.
    pub(crate) async fn storm(&self, described: &str) -> Work {
        let job = job(described);
        let client = self.client(&job).await;
        let mut work = Work::new(&job);
        for number in 0..4 * DEPTH {
            let (client, go_on) = (client.clone(), work.go_on.clone());
            work.tasks.spawn(async move {
                let mut round = 0;
                while go_on.load(Ordering::Relaxed) {
                    round += 1;
                    client.stat(format!("/none-{number}-{round}")).await.unwrap_err();
                }
            });
        }
        work
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }
}

/// A running job. Dropping it aborts it.
pub(crate) struct Work {
    pub(crate) id: JobId,
    go_on: Arc<AtomicBool>,
    tasks: JoinSet<()>,
}

impl Work {
    fn new(job: &Job) -> Work {
        Work { id: job.id(), go_on: Arc::new(AtomicBool::new(true)), tasks: JoinSet::new() }
    }

    /// Stops the job after its current requests.
    pub(crate) async fn end(mut self) {
        self.go_on.store(false, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
    }
}

/// `label user group nodes`.
pub(crate) fn job(words: &str) -> Job {
    let words: Vec<&str> = words.split_whitespace().collect();
    let word = |i: usize| words[i].to_owned();
    Job { label: word(0), user: word(1), group: word(2), nodes: words[3].parse().unwrap(), priority: 1 }
}

/// Cost of the work served to each job so far, on all these servers.
pub(crate) async fn served(observers: &[&Client]) -> HashMap<JobId, f64> {
    let mut all = HashMap::new();
    for observer in observers {
        for JobStatus { id, written, read, operations, .. } in observer.status().await.unwrap().jobs {
            *all.entry(id).or_default() += (written + read + operations * OPERATION) as f64;
        }
    }
    all
}

/// Each job's fraction of the work served in a window, and the total.
pub(crate) async fn parts(observers: &[&Client], window: Duration) -> (HashMap<JobId, f64>, f64) {
    let before = served(observers).await;
    let begin = tokio::time::Instant::now();
    tokio::time::sleep(window).await;
    let after = served(observers).await;
    let seconds = begin.elapsed().as_secs_f64();
    let done = |id: &JobId| after[id] - before.get(id).copied().unwrap_or(0.0);
    let total: f64 = after.keys().map(done).sum();
    (after.keys().map(|id| (*id, done(id) / total)).collect(), total / seconds)
}

/// Whether a job got its share, within 2 % and the two requests at the ends of the window.
fn is_due(got: f64, due: f64, window: Duration) -> bool {
    let request = (REQUEST as u64 + OPERATION) as f64 / (RATE.0 as f64 * window.as_secs_f64());
    (got - due).abs() <= due * 0.02 + 2.0 * request
}

/// Waits for a window in which the jobs get their shares and together at least `at_least` per second; returns the
/// total. Other load on the machine only distorts shares and lowers rates, so one good window of several is enough.
pub(crate) async fn fair(
    what: &str,
    observers: &[&Client],
    due: &[(JobId, f64)],
    at_least: f64,
    window: Duration,
) -> f64 {
    let mut seen = Vec::new();
    for _ in 0..8 {
        let (got, rate) = parts(observers, window).await;
        let part = |id: &JobId| got.get(id).copied().unwrap_or(0.0);
        if rate >= at_least && due.iter().all(|(id, due)| is_due(part(id), *due, window)) {
            return rate;
        }
        seen.push((got, rate));
    }
    panic!("{what}: due {due:?} of {at_least} a second, got {seen:?}");
}
