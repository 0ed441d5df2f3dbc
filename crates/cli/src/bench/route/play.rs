//! One run: a server before modelled disks, and writers that go through their bursts.

use super::scenario::{Burst, Point, Scenario, Way};
use crate::failure::{Failure, Outcome};
use forebay_client::blocking::{Client, File};
use forebay_client::{Address, ClientConfig, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind, Job};
use forebay_policy::share::Dice;
use forebay_server::{Config, Full, Medium, Mode, Pipeline, Routing, Running, Server};
use forebay_wire::Status;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Regions of a buffer.
const REGIONS: u64 = 8;
const SMALLEST_REGION: u64 = 256 << 10;
/// With a pipeline data leaves above this many per cent of the buffer.
const THRESHOLD: u8 = 25;

/// What a run came to.
pub(super) struct Ran {
    /// While writers wrote, all bursts together.
    pub(super) seconds: f64,
    pub(super) buffered: u64,
    pub(super) direct: u64,
    /// What writers waited for room, all together.
    pub(super) waited: f64,
}

/// A server and what is behind it. Dropping it removes both.
pub(super) struct Ground {
    server: Running,
    _dir: TempDir,
}

impl Ground {
    pub(super) fn new(scenario: &Scenario, point: Point, way: Way) -> Outcome<Ground> {
        let memory = PathBuf::from("/dev/shm");
        let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("forebay-bench-").tempdir_in(&above);
        let dir = dir.map_err(|error| Failure::local("make a directory in", &above, &error))?;
        let server = Server::start(config(scenario, point, way, dir.path())?)?;
        Ok(Ground { server, _dir: dir })
    }

    pub(super) fn client(&self, job: &Job) -> Outcome<Client> {
        let config = ClientConfig::new(Address::Unix(self.server.addresses().unix.clone()));
        Ok(Client::connect(ClientConfig { job: job.clone(), ..config })?)
    }

    pub(super) fn status(&self, client: &Client) -> Outcome<Status> {
        let status = client.statuses()?.into_iter().next();
        let (_, status) = status.ok_or_else(|| Failure::Failed("the server does not answer".to_owned()))?;
        Ok(status?)
    }
}

fn config(scenario: &Scenario, point: Point, way: Way, dir: &Path) -> Outcome<Config> {
    let mut config = Config::for_store(dir.join("store"));
    (config.medium, config.tcp, config.shared_memory) = (Medium::Memory, false, false);
    config.device_rate = Some(scenario.through());
    let capacity = scenario.bytes() * u64::from(point.capacity) / 100;
    let region = (capacity / REGIONS).max(SMALLEST_REGION);
    (config.region, config.capacity) = (Some(Bytes(region)), Bytes(capacity.max(2 * region)));
    let mut disks = Vec::new();
    for number in 0..scenario.disks {
        let disk = dir.join(format!("disk{number}"));
        std::fs::create_dir(&disk).map_err(|error| Failure::local("make", &disk, &error))?;
        disks.push(disk.display().to_string());
    }
    let kind = if disks.len() == 1 { "dir" } else { "stripes" };
    config.backend = Some(format!("{}:{kind}:{}", scenario.model(point.queue), disks.join(",")));
    let (mode, pipeline) = match way {
        // Nothing at all can be buffered.
        _ if point.capacity == 0 => (Mode::Direct, Pipeline::On),
        Way::Direct => (Mode::Direct, Pipeline::On),
        Way::Buffer => (Mode::Buffer, Pipeline::Off),
        Way::BufferPipeline => (Mode::Buffer, Pipeline::On),
        Way::TrafficNoPipeline => (Mode::Traffic, Pipeline::Off),
        Way::Traffic => (Mode::Traffic, Pipeline::On),
        Way::Overflow => (Mode::Overflow, Pipeline::On),
    };
    let full = (point.capacity == 0).then_some(Full::Bypass);
    config.route = Routing { mode, pipeline, full, stream: point.queue, ..Routing::default() };
    config.drain.threshold = THRESHOLD;
    Ok(config)
}

pub(super) fn run(scenario: &Scenario, point: Point, way: Way, stop: &AtomicBool) -> Outcome<Ran> {
    let ground = Ground::new(scenario, point, way)?;
    let (label, user, group) = ("bench".to_owned(), "bench".to_owned(), "bench".to_owned());
    let job = Job { label, user, group, nodes: 1, priority: 1 };
    let clients = (0..point.writers).map(|_| ground.client(&job)).collect::<Outcome<Vec<Client>>>()?;
    let mut seconds = 0.0;
    for (number, burst) in scenario.bursts.iter().enumerate() {
        if number > 0 {
            std::thread::sleep(scenario.compute(point));
        }
        seconds += write(scenario, burst, &clients, number, stop)?.as_secs_f64();
    }
    let route = ground
        .status(&clients[0])?
        .route
        .ok_or_else(|| Failure::Failed("the server has no back end".to_owned()))?;
    let waited = route.waited as f64 / 1e9;
    Ok(Ran { seconds, buffered: route.buffered, direct: route.direct, waited })
}

/// All writers write a burst; how long that took.
pub(super) fn write(
    scenario: &Scenario,
    burst: &Burst,
    clients: &[Client],
    number: usize,
    stop: &AtomicBool,
) -> Outcome<Duration> {
    let path = format!("/burst{number}");
    let create = OpenOptions { create: true, ..OpenOptions::WRITE };
    let files =
        clients.iter().map(|client| Ok(client.open(&path, create)?)).collect::<Outcome<Vec<File>>>()?;
    let (start, writers) = (Barrier::new(clients.len() + 1), clients.len() as u64);
    std::thread::scope(|scope| {
        let tasks: Vec<_> = files
            .iter()
            .zip(0..)
            .map(|(file, writer)| {
                let start = &start;
                scope.spawn(move || {
                    let seed = scenario.seed ^ (number as u64) << 48 ^ writer << 24;
                    let mut dice = Dice::new(seed);
                    let mut below = |bound: u64| dice.below(bound);
                    let requests = burst.requests(scenario.request.0, (writer, writers), &mut below);
                    start.wait();
                    one(scenario, file, &requests, &mut below, stop)
                })
            })
            .collect();
        start.wait();
        let begin = Instant::now();
        let done = tasks.into_iter().map(|task| task.join().unwrap_or_else(|_| Err(ErrorKind::Io.into())));
        done.collect::<Result<(), Error>>()?;
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        Ok(begin.elapsed())
    })
}

/// One writer.
fn one(
    scenario: &Scenario,
    file: &File,
    requests: &[u64],
    below: &mut impl FnMut(u64) -> u64,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let bytes = vec![7; scenario.request.0 as usize];
    let most = Duration::from_millis(2 * scenario.pause_ms).mul_f64(scenario.slower);
    for &offset in requests {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !most.is_zero() {
            std::thread::sleep(Duration::from_nanos(below(
                u64::try_from(most.as_nanos()).unwrap_or(u64::MAX),
            )));
        }
        file.pwrite(offset, &bytes)?;
    }
    Ok(())
}
