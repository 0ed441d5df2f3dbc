//! One run: servers with modelled disks as back end, and writers with bursts.

use super::scenario::{Burst, Point, Scenario, Way};
use crate::failure::{Failure, Outcome};
use crate::servers::remove_stores;
use forebay_backend::{Creation, Object};
use forebay_client::blocking::{Client, File};
use forebay_client::{Address, ClientConfig, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind, Gid, Job, Name, Striping, Uid};
use forebay_policy::share::Rng;
use forebay_server::{Config, Full, Medium, Mode, Pipeline, Routing, Running, Server};
use forebay_wire::{RouteStatus, Status};
use parking_lot::Mutex;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Regions of a buffer.
const REGIONS: u64 = 8;
const SMALLEST_REGION: u64 = 256 << 10;
/// With a pipeline, the drain starts above this percentage of the buffer.
const THRESHOLD: u8 = 25;
/// The stripe of a file over several servers, in real bytes: the smallest allowed.
const STRIPE: u64 = 64 << 10;

/// The result of a run.
pub(super) struct Ran {
    /// Time in which writers wrote, all bursts together.
    pub(super) seconds: f64,
    pub(super) buffered: u64,
    pub(super) direct: u64,
    /// Share of the buffer that was still used when the last burst began.
    pub(super) left: f64,
    /// Time that writers waited for space, in total.
    pub(super) waited: f64,
    /// Seconds spent on routing decisions, and on sorting buffered data.
    pub(super) decided: f64,
    pub(super) indexed: f64,
    /// Largest number of index bytes per extent at the end.
    pub(super) index: f64,
}

/// Servers and their back end. Dropping it removes both.
pub(super) struct Ground {
    servers: Vec<Running>,
    dir: TempDir,
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.servers.clear();
        remove_stores(self.dir.path());
    }
}

impl Ground {
    pub(super) fn new(scenario: &Scenario, point: Point, way: Way) -> Outcome<Ground> {
        let dir = ground()?;
        let config = config(scenario, point, way, dir.path())?;
        if scenario.servers < 2 {
            return Ok(Ground { servers: vec![Server::start(config)?], dir });
        }
        let ground = Ground { servers: Server::start_cluster(&config, scenario.servers)?, dir };
        let striping = Striping { width: 0, stripe: STRIPE };
        ground.client(&job("bench"))?.set_layout("/", Some(striping))?;
        Ok(ground)
    }

    pub(super) fn client(&self, job: &Job) -> Outcome<Client> {
        let config = ClientConfig::new(Address::Unix(self.servers[0].addresses().unix.clone()));
        Ok(Client::connect(ClientConfig { job: job.clone(), ..config })?)
    }
}

/// The status of all servers.
pub(super) fn statuses(client: &Client) -> Outcome<Vec<Status>> {
    client.statuses()?.into_iter().map(|(_, status)| Ok(status?)).collect()
}

/// A job of one user.
pub(super) fn job(label: &str) -> Job {
    let (user, group) = ("bench".to_owned(), "bench".to_owned());
    Job { label: label.to_owned(), user, group, nodes: 1, priority: 1 }
}

fn config(scenario: &Scenario, point: Point, way: Way, dir: &Path) -> Outcome<Config> {
    let mut config = Config::for_store(dir.join("store"));
    (config.medium, config.shared_memory) = (Medium::Memory, false);
    (config.tcp, config.listen) = (scenario.servers > 1, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    config.device_rate = Some(scenario.through());
    // The network limits bytes, not requests.
    config.operation_cost = Bytes(0);
    let capacity = scenario.bytes() * u64::from(point.capacity) / 100 / u64::from(scenario.servers);
    let region = (capacity / REGIONS).max(SMALLEST_REGION);
    (config.region, config.capacity) = (Some(Bytes(region)), Bytes(capacity.max(2 * region)));
    let disks = disks(scenario, dir)?;
    config.backend = Some(modelled(scenario, point, &disks));
    let (mode, pipeline) = match way {
        // Without capacity nothing can be buffered.
        _ if point.capacity == 0 => (Mode::Direct, Pipeline::On),
        Way::Plain | Way::Direct => (Mode::Direct, Pipeline::On),
        Way::Buffer => (Mode::Buffer, Pipeline::Off),
        Way::BufferPipeline => (Mode::Buffer, Pipeline::On),
        Way::TrafficNoPipeline => (Mode::Traffic, Pipeline::Off),
        Way::Traffic => (Mode::Traffic, Pipeline::On),
        Way::Overflow => (Mode::Overflow, Pipeline::On),
    };
    let full = (point.capacity == 0).then_some(Full::Bypass);
    config.route = Routing { mode, pipeline, full, stream: point.queue, ..Routing::default() };
    config.drain.threshold = THRESHOLD;
    config.drain.write = Bytes(scenario.real_bytes(config.drain.write).max(4096));
    Ok(config)
}

/// The address of the modelled disks.
fn modelled(scenario: &Scenario, point: Point, disks: &[String]) -> String {
    let kind = if disks.len() == 1 { "dir" } else { "stripes" };
    format!("{}:{kind}:{}", scenario.model(point.queue), disks.join(","))
}

/// Creates a directory for each disk.
fn disks(scenario: &Scenario, dir: &Path) -> Outcome<Vec<String>> {
    let make = |number| {
        let disk = dir.join(format!("disk{number}"));
        std::fs::create_dir(&disk).map_err(|error| Failure::local("make", &disk, error))?;
        Ok(disk.display().to_string())
    };
    (0..scenario.disks).map(make).collect()
}

/// The temporary directory of a run.
fn ground() -> Outcome<TempDir> {
    let memory = PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let dir = tempfile::Builder::new().prefix("forebay-bench-").tempdir_in(&above);
    dir.map_err(|error| Failure::local("make a directory in", &above, error))
}

pub(super) fn run(scenario: &Scenario, point: Point, way: Way, stop: &AtomicBool) -> Outcome<Ran> {
    if way == Way::Plain {
        return plain(scenario, point, stop);
    }
    let ground = Ground::new(scenario, point, way)?;
    let clients =
        (0..point.writers).map(|_| ground.client(&job("bench"))).collect::<Outcome<Vec<Client>>>()?;
    let (mut seconds, mut left) = (0.0, 0.0);
    for (number, burst) in scenario.bursts.iter().enumerate() {
        if number > 0 {
            std::thread::sleep(scenario.compute(point));
        }
        left = taken(&statuses(&clients[0])?);
        seconds += write(scenario, burst, &clients, number, stop)?.as_secs_f64();
    }
    let routes: Vec<_> = statuses(&clients[0])?.into_iter().filter_map(|status| status.route).collect();
    let sum = |of: fn(&RouteStatus) -> u64| routes.iter().map(of).sum::<u64>();
    let secs = |nanos: u64| nanos as f64 / 1e9;
    Ok(Ran {
        seconds,
        buffered: sum(|route| route.buffered),
        direct: sum(|route| route.direct),
        left,
        waited: secs(sum(|route| route.waited)),
        decided: secs(sum(|route| route.decided)),
        indexed: secs(sum(|route| route.indexed)),
        index: sum(|route| route.index) as f64 / sum(|route| route.extents).max(1) as f64,
    })
}

/// The used share of the buffer.
fn taken(statuses: &[Status]) -> f64 {
    let sum = |of: fn(&Status) -> u64| statuses.iter().map(of).sum::<u64>();
    sum(|status| status.usage.live) as f64 / sum(|status| status.usage.capacity).max(1) as f64
}

/// Writers that write to the disks without Forebay: the network has the same limit as with a server, and only
/// the disks sort requests.
fn plain(scenario: &Scenario, point: Point, stop: &AtomicBool) -> Outcome<Ran> {
    let dir = ground()?;
    let backend = forebay_backend::open(&modelled(scenario, point, &disks(scenario, dir.path())?))?;
    let rate = scenario.through().0 as f64 * f64::from(scenario.servers);
    let link = Link { rate, free: Mutex::new(Instant::now()) };
    let (mut seconds, mut direct) = (0.0, 0);
    for (number, burst) in scenario.bursts.iter().enumerate() {
        if number > 0 {
            std::thread::sleep(scenario.compute(point));
        }
        let path = [Name::new(format!("burst{number}"))?];
        let creation = Creation { owner: (Uid(0), Gid(0)), mode: 0o644, stripes: None };
        backend.create(&path, &creation)?;
        let objects = (0..point.writers).map(|_| Ok(Mutex::new(backend.open_to_write(&path)?)));
        let objects = objects.collect::<Outcome<Vec<Mutex<Box<dyn Object>>>>>()?;
        let put = |object: &Mutex<Box<dyn Object>>, offset: u64, bytes: &[u8]| {
            link.pass(bytes.len());
            object.lock().write_at(offset, &[bytes])
        };
        seconds += all(scenario, burst, &objects, number, stop, put)?.as_secs_f64();
        direct += scenario.real_bytes(burst.bytes);
    }
    Ok(Ran { seconds, buffered: 0, direct, left: 0.0, waited: 0.0, decided: 0.0, indexed: 0.0, index: 0.0 })
}

/// The network limit in a run without a server.
struct Link {
    /// Bytes per second.
    rate: f64,
    free: Mutex<Instant>,
}

impl Link {
    /// Waits until the given number of bytes has passed.
    fn pass(&self, bytes: usize) {
        let through = {
            let mut free = self.free.lock();
            *free = (*free).max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / self.rate);
            *free
        };
        std::thread::sleep(through.saturating_duration_since(Instant::now()));
    }
}

/// All writers write a burst; returns the time it took.
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
    let put = |file: &File, offset: u64, bytes: &[u8]| file.pwrite(offset, bytes).map(drop);
    all(scenario, burst, &files, number, stop, put)
}

/// Runs all writers of a burst, each with its own output; returns the time it took.
fn all<T: Send + Sync>(
    scenario: &Scenario,
    burst: &Burst,
    files: &[T],
    number: usize,
    stop: &AtomicBool,
    put: impl Fn(&T, u64, &[u8]) -> Result<(), Error> + Sync,
) -> Outcome<Duration> {
    let (start, writers) = (Barrier::new(files.len() + 1), files.len() as u64);
    let sizes = (
        scenario.real_bytes(burst.bytes),
        scenario.real_bytes(scenario.request),
        scenario.real_bytes(burst.spacing),
    );
    std::thread::scope(|scope| {
        let tasks: Vec<_> = files
            .iter()
            .zip(0..)
            .map(|(file, writer)| {
                let (start, put) = (&start, &put);
                scope.spawn(move || {
                    let seed = scenario.seed ^ (number as u64) << 48 ^ writer << 24;
                    let mut rng = Rng::new(seed);
                    let mut below = |bound: u64| rng.below(bound);
                    let requests = burst.requests(sizes, (writer, writers), &mut below);
                    start.wait();
                    one(scenario, &requests, &mut below, stop, |offset, bytes| put(file, offset, bytes))
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
    requests: &[u64],
    below: &mut impl FnMut(u64) -> u64,
    stop: &AtomicBool,
    put: impl Fn(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let bytes = vec![7; scenario.real_bytes(scenario.request) as usize];
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
        put(offset, &bytes)?;
    }
    Ok(())
}
