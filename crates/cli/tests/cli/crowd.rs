//! Ten thousand jobs at once, and one that lies: a real server, real connections, and who gets how much.

use crate::support::{World, skip};
use crate::users::{as_nobody_command, home};
use forebay_client::{Address, Client, ClientConfig};
use forebay_model::{ErrorKind, Job, JobId};
use forebay_wire::{JobState, Status};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;

/// Jobs of one user; another user has one more.
const CROWD: u64 = 9_999;
/// Connections that are made at the same time.
const DOOR: usize = 64;
/// Requests that the lone job keeps under way on each of its connections.
const DEPTH: usize = 64;

/// Whether this process may have so many files open; where it can, it sees to it.
fn may_open(count: u64) -> bool {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= count) {
        return true;
    }
    limit.current = Some(count);
    limit.maximum = limit.maximum.map(|maximum| maximum.max(count));
    setrlimit(Resource::Nofile, limit).is_ok()
}

async fn connect(service: Address, label: String, user: &str) -> forebay_model::Result<Client> {
    let job = Job { label, user: user.to_owned(), group: "g".to_owned(), nodes: 1, priority: 1 };
    Client::connect(ClientConfig { job, outstanding: DEPTH, ..ClientConfig::new(service) }).await
}

async fn crowd(service: &Address) -> Vec<Client> {
    let mut clients = Vec::new();
    let mut coming = JoinSet::new();
    for number in 0..CROWD {
        if coming.len() >= DOOR {
            clients.extend(coming.join_next().await.map(Result::unwrap));
        }
        let service = service.clone();
        coming.spawn(async move { connect(service, number.to_string(), "crowd").await.unwrap() });
    }
    clients.extend(coming.join_all().await);
    clients
}

/// A request that costs a turn, and comes to nothing.
async fn ask(client: &Client) {
    assert_eq!(client.stat("/nothing").await.unwrap_err().kind(), ErrorKind::NotFound);
}

/// The lone job goes on for as long as the crowd is served; says how much it had by then.
async fn alone(clients: &[Client], everybody: &[Client], seen: &mut impl AsyncFnMut(Status)) -> u64 {
    let served = Arc::new(AtomicU64::new(0));
    let mut lone = JoinSet::new();
    for client in clients {
        for _ in 0..DEPTH {
            let (client, served) = (client.clone(), served.clone());
            lone.spawn(async move {
                loop {
                    ask(&client).await;
                    served.fetch_add(1, Relaxed);
                }
            });
        }
    }
    let mut waiting = JoinSet::new();
    for client in everybody {
        let client = client.clone();
        waiting.spawn(async move { ask(&client).await });
    }
    while !waiting.is_empty() {
        tokio::select! {
            Some(done) = waiting.join_next() => done.unwrap(),
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
        if waiting.len() % 2_500 == 2_499 {
            // It overtakes all that wait: else it would be answered after them.
            seen(clients[0].status().await.unwrap()).await;
        }
    }
    served.load(Relaxed)
}

#[test]
fn ten_thousand_jobs_are_served_and_one_user_has_half_with_one_job() {
    if !may_open(CROWD + 300) {
        return skip("10,000 jobs at once: this process may not open as many files");
    }
    let mut world = World::empty();
    let limits = "connections = 10100\nsessions = 10100\nwaiting = 20000\njobs = 10000\n";
    world.write("forebay.toml", format!("[server.limits]\n{limits}"));
    let device = ["--policy", "user-then-job-fair", "--device-rate", "48MiB/s"];
    world.start(&[&device[..], &["--config", "forebay.toml"]].concat());
    let service = Address::Unix(world.path("sock"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let everybody = crowd(&service).await;
        let mut lone = Vec::new();
        for _ in 0..2 {
            lone.push(connect(service.clone(), "lone".to_owned(), "hermit").await.unwrap());
        }
        let refused = connect(service.clone(), "too-many".to_owned(), "crowd").await.err().expect("refused");
        assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
        assert!(refused.to_string().contains("10000 jobs are connected already"), "{refused}");
        let mut most = 0;
        let got = alone(&lone, &everybody, &mut async |status: Status| {
            most = most.max(status.waiting);
            assert!(status.jobs.len() <= 512, "an answer has its bounds");
            let hermit = status.jobs.iter().find(|job| job.id == JobId::from_label("lone"));
            if let Some(hermit) = hermit {
                assert_eq!((hermit.state, hermit.share), (JobState::Active, 500_000));
            }
        })
        .await;
        assert!(most > 2_000, "the server answers while thousands wait, not after: {most}");
        // While all of the crowd waited for one turn each, the lone job had as many.
        let part = got as f64 / (got + CROWD) as f64;
        assert!((0.45..=0.53).contains(&part), "one job of 10,000, but of two users: {part:.3}");
    });
}

/// A job at work; it ends with the test.
struct Job4711(Child);

impl Drop for Job4711 {
    fn drop(&mut self) {
        // Most likely it works still.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn work(mut command: Command, name: &str, claims: &[(&str, &str)]) -> Job4711 {
    command.args(["--name", name, "--op", "write", "--request", "65536", "--streams", "12"]);
    command.args(["--seconds", "60", "--pause-ms", "0"]);
    command.envs(claims.iter().copied()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Job4711(command.spawn().unwrap())
}

/// A user who is not root says that his job is another's, of root, in root's group, on a million nodes, and most
/// important of all. He gains what the site allows anybody to say, and nothing of other users' where users count.
#[test]
fn a_job_that_lies_gains_nothing_but_what_the_site_believes_anybody() {
    let mut world = World::empty();
    let Some(home) = home(&world) else { return };
    world.write("forebay.toml", "[server.trust]\nnodes = 2\npriority = 1\n");
    let device = ["--policy", "user-then-size-fair", "--device-rate", "24MiB/s"];
    world.start(&[&device[..], &["--config", "forebay.toml"]].concat());
    // A place where anybody may write.
    let owner = ClientConfig::new(Address::Unix(world.path("sock")));
    let owner = forebay_client::blocking::Client::connect(owner).unwrap();
    owner.mkdir("/any", 0o777).unwrap();
    let job = |id: &'static str, user: &'static str, nodes: &'static str| {
        [("FOREBAY_JOB_ID", id), ("FOREBAY_JOB_USER", user), ("FOREBAY_JOB_NODES", nodes)]
    };
    let _honest = work(world.command(&["bench-job"]), "any/honest", &job("4711", "ada", "4"));
    until_there(&world, 1);
    let service = world.service();
    let liar = as_nobody_command(&world, &home, &["bench-job", "--service", &service]);
    let lies = [("FOREBAY_JOB_GROUP", "root"), ("FOREBAY_JOB_PRIORITY", "1000000")];
    let claims = [&job("4711", "root", "1000000")[..], &lies].concat();
    let _liar = work(liar, "any/liar", &claims);
    until_there(&world, 2);
    let nobody = find(&table(&world), "4711@nobody").clone();
    assert_eq!((&nobody["user"], &nobody["nodes"]), (&"nobody".into(), &2.into()), "{nobody}");
    for (policy, due) in [
        ("user-then-size-fair", 0.5),
        ("group-user-size-fair", 0.5),
        ("size-fair", 2.0 / 6.0),
        ("priority-fair", 0.5),
    ] {
        world.well(&["policy", "set", policy]);
        std::thread::sleep(Duration::from_millis(300));
        let before = table(&world);
        std::thread::sleep(Duration::from_millis(1_500));
        let after = table(&world);
        let done = |label: &str| {
            let bytes = |table: &Value| find(table, label)["written"].as_u64().unwrap();
            (bytes(&after) - bytes(&before)) as f64
        };
        let part = done("4711@nobody") / (done("4711@nobody") + done("4711"));
        assert!((part - due).abs() < 0.03, "{policy}: who lies has {part:.3} instead of {due:.3}");
    }
}

fn table(world: &World) -> Value {
    world.json(&["jobs", "--json"])
}

fn find<'a>(table: &'a Value, label: &str) -> &'a Value {
    let found = table["jobs"].as_array().unwrap().iter().find(|job| job["label"] == label);
    found.unwrap_or_else(|| panic!("no job {label} in {table}"))
}

/// Waits until so many jobs write.
fn until_there(world: &World, count: usize) {
    let writes = |job: &&Value| job["written"].as_u64().is_some_and(|written| written > 0);
    for _ in 0..600 {
        if table(world)["jobs"].as_array().unwrap().iter().filter(writes).count() >= count {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("job {count} never came: {}", table(world));
}
