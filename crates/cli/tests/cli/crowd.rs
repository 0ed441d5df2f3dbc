//! Ten thousand jobs at once, and one with false claims: a real server, real connections, and the share of each
//! job.

use crate::support::{World, skip};
use crate::users::{as_other_user_command, home};
use forebay_client::{Address, Client, ClientConfig};
use forebay_model::{Error, ErrorKind, FileId, Job, JobId};
use forebay_testkit::until;
use forebay_wire::{Answer, Call, Channel, FrameKind, Greeting, HEADER, Header, Hello, JobState, Request};
use forebay_wire::{VERSION, body, frame};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Jobs of one user; another user has one more.
const CROWD: u64 = 9_999;
/// Requests that the single job keeps in flight on each of its connections.
const DEPTH: usize = 64;

/// Whether this process may open this number of files; raises the limit if possible.
fn may_open(count: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    limit.current = Some(count);
    limit.maximum = limit.maximum.map(|maximum| maximum.max(count));
    setrlimit(Resource::Nofile, limit).is_ok()
}

/// A minimal client of the wire protocol that needs only one descriptor.
struct Guest(UnixStream);

impl Guest {
    fn enter(socket: &Path, number: u64) -> Result<Guest, Error> {
        let (label, user, group) = (number.to_string(), "crowd".to_owned(), "g".to_owned());
        let job = Job { label, user, group, nodes: 1, priority: 1 };
        let client = u128::from(number) + 1;
        let hello = Hello { version: VERSION, channel: Channel::Control, client, job, roster: None };
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut guest = Guest(stream);
        guest.send(FrameKind::Hello, &hello);
        match guest.receive() {
            Greeting::Welcome(_) => Ok(guest),
            Greeting::Refusal(error) => Err(error),
            Greeting::Challenge { .. } => panic!("the kernel vouches on a Unix socket"),
        }
    }

    fn send<T: serde::Serialize>(&mut self, kind: FrameKind, body: &T) {
        let mut bytes = Vec::new();
        frame(&mut bytes, kind, 1, body, 0).unwrap();
        self.0.write_all(&bytes).unwrap();
    }

    fn receive<T: serde::de::DeserializeOwned>(&mut self) -> T {
        let mut header = [0; HEADER];
        self.0.read_exact(&mut header).unwrap();
        let mut bytes = vec![0; Header::decode(&header).unwrap().body as usize];
        self.0.read_exact(&mut bytes).unwrap();
        body(&bytes).unwrap()
    }

    /// Sends a request that costs a turn and has no effect.
    fn request(&mut self) {
        let request = Request::Walk { dir: FileId::ROOT, path: b"nothing".to_vec(), follow: true };
        self.send(FrameKind::Call, &Call { identity: None, request });
    }

    fn is_answered(&mut self) {
        let answer: Answer = self.receive();
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::NotFound);
    }
}

/// The job of another user, which always has requests waiting; counts the replies.
async fn single_job(service: Address, served: &Arc<AtomicU64>) -> Vec<Client> {
    let (label, user, group) = ("lone".to_owned(), "single_job".to_owned(), "g".to_owned());
    let job = Job { label, user, group, nodes: 1, priority: 1 };
    let config = ClientConfig { job, outstanding: DEPTH, ..ClientConfig::new(service) };
    let mut clients = Vec::new();
    for _ in 0..2 {
        let client = Client::connect(config.clone()).await.unwrap();
        clients.push(client.clone());
        for _ in 0..DEPTH {
            let (client, served) = (client.clone(), served.clone());
            tokio::spawn(async move {
                while client.stat("/nothing").await.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                    served.fetch_add(1, Relaxed);
                }
            });
        }
    }
    clients
}

#[test]
fn single_job_of_a_user_gets_half_beside_ten_thousand_jobs() {
    if !may_open(CROWD + 300) {
        return skip("10,000 jobs at once: this process may not open as many files");
    }
    let mut world = World::empty();
    let limits = "connections = 10100\nsessions = 10100\nwaiting = 20000\njobs = 10000\n";
    world.write("forebay.toml", format!("[server.limits]\n{limits}[server.times]\nsession = 600\n"));
    let device = ["--policy", "user-then-job-fair", "--device-rate", "12MiB/s"];
    world.start(&[&device[..], &["--config", "forebay.toml"]].concat());
    let socket = world.path("sock");
    let mut crowd: Vec<Guest> = (0..CROWD).map(|number| Guest::enter(&socket, number).unwrap()).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let served = Arc::new(AtomicU64::new(0));
    let lone = runtime.block_on(single_job(Address::Unix(socket.clone()), &served));
    let refused = Guest::enter(&socket, CROWD).err().expect("refused");
    assert!(refused.kind() == ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains("10000 jobs are connected already"), "{refused}");

    crowd.iter_mut().for_each(Guest::request);
    // The status request overtakes all waiting requests.
    let look = || runtime.block_on(lone[0].status()).unwrap();
    let mut status = look();
    // Until the server has read all requests, more arrive than are served.
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let later = look();
        if later.waiting <= status.waiting {
            break;
        }
        status = later;
    }
    let before = served.load(Relaxed);
    let left = status.waiting.saturating_sub(2 * DEPTH as u64);
    assert!(left > CROWD / 4, "the server answers while thousands wait: {left}");
    assert!(status.jobs.len() <= 512, "an answer has its bounds: {}", status.jobs.len());
    let single_job = status.jobs.iter().find(|job| job.id == JobId::from_label("lone")).expect("the busiest");
    assert_eq!((single_job.state, single_job.share), (JobState::Active, 500_000));
    crowd.iter_mut().for_each(Guest::is_answered);
    // While every other job of the crowd had a turn, the single job had as many.
    let got = served.load(Relaxed) - before;
    let part = got as f64 / (got + left) as f64;
    assert!((0.44..=0.54).contains(&part), "one job of 10,000, but one user of two: {part:.3}");
}

/// A running job, which is killed at the end of the test.
struct Job4711(Child);

impl Drop for Job4711 {
    fn drop(&mut self) {
        // The job is most likely still running.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn work(mut command: Command, name: &str, claims: &[(&str, &str)]) -> Job4711 {
    command.args(["--name", name, "--op", "write", "--request", "65536", "--streams", "12"]);
    command.args(["--seconds", "600", "--pause-ms", "0"]);
    command.envs(claims.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Job4711(command.spawn().unwrap())
}

/// A user other than root claims the job id of root's job, root's group, a million nodes and the highest
/// priority. That user gains only what the site believes of any user, and nothing of other users' share where
/// users count.
#[test]
fn false_job_claims_gain_only_what_the_site_trusts() {
    let mut world = World::empty();
    let Some(home) = home(&world) else { return };
    world.write("forebay.toml", "[server.trust]\nnodes = 2\npriority = 1\n");
    let device = ["--policy", "user-then-size-fair", "--device-rate", "24MiB/s"];
    world.start(&[&device[..], &["--config", "forebay.toml"]].concat());
    // A directory that all users may write to.
    let owner = ClientConfig::new(Address::Unix(world.path("sock")));
    let owner = forebay_client::blocking::Client::connect(owner).unwrap();
    owner.mkdir("/any", 0o777).unwrap();
    let job = |id: &'static str, user: &'static str, nodes: &'static str| {
        [("FOREBAY_JOB_ID", id), ("FOREBAY_JOB_USER", user), ("FOREBAY_JOB_NODES", nodes)]
    };
    let _honest = work(world.command(&["bench-job"]), "any/honest", &job("4711", "ada", "4"));
    until_active(&world, 1);
    let service = world.service();
    let liar = as_other_user_command(&world, &home, &["bench-job", "--service", &service]);
    let lies = [("FOREBAY_JOB_GROUP", "root"), ("FOREBAY_JOB_PRIORITY", "1000000")];
    let claims = [&job("4711", "root", "1000000")[..], &lies].concat();
    let _liar = work(liar, "any/liar", &claims);
    until_active(&world, 2);
    let other_user = find(&table(&world), "4711@nobody").clone();
    assert_eq!((&other_user["user"], &other_user["nodes"]), (&"nobody".into(), &2.into()), "{other_user}");
    for (policy, due) in [
        ("user-then-size-fair", 0.5),
        ("group-user-size-fair", 0.5),
        ("size-fair", 2.0 / 6.0),
        ("priority-fair", 0.5),
    ] {
        world.well(&["policy", "set", policy]);
        // Other load on this machine only distorts shares: one good sample of a few counts.
        let mut parts = Vec::new();
        while parts.last().is_none_or(|part: &f64| (part - due).abs() >= 0.03) {
            assert!(parts.len() < 8, "{policy}: the false job has {parts:.3?} instead of {due:.3}");
            std::thread::sleep(Duration::from_millis(300));
            parts.push(share_of_the_false_job(&world));
        }
    }
}

/// The share of the job with false claims in what both write.
fn share_of_the_false_job(world: &World) -> f64 {
    let before = table(world);
    std::thread::sleep(Duration::from_millis(1_500));
    let after = table(world);
    let done = |label: &str| {
        let bytes = |table: &Value| find(table, label)["written"].as_u64().unwrap();
        (bytes(&after) - bytes(&before)) as f64
    };
    done("4711@nobody") / (done("4711@nobody") + done("4711")).max(1.0)
}

fn table(world: &World) -> Value {
    world.json(&["jobs", "--json"])
}

fn find<'a>(table: &'a Value, label: &str) -> &'a Value {
    let found = table["jobs"].as_array().unwrap().iter().find(|job| job["label"] == label);
    found.unwrap_or_else(|| panic!("no job {label} in {table}"))
}

/// Waits until `count` jobs write.
fn until_active(world: &World, count: usize) {
    let writes = |job: &&Value| job["written"].as_u64().is_some_and(|written| written > 0);
    until("the jobs write", || {
        table(world)["jobs"].as_array().unwrap().iter().filter(writes).count() >= count
    });
}
