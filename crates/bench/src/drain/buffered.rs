//! Buffered: everything is written to servers, and then the servers drain it.

use super::Ran;
use super::ground::{FILLING, Ground, Process};
use super::nodes;
use super::scenario::{Point, Scenario};
use super::variant::{Alpha, Way, order_word};
use crate::failure::{Failure, Outcome};
use crate::rng::Rng;
use crate::servers::{is_serving, remove_stores};
use forebay_client::blocking::{Client, File};
use forebay_client::{Address, ClientConfig, OpenOptions};
use forebay_model::Job;
use forebay_policy::arbiter::Choice;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Poll interval for the drain.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Capacity of all stores beyond twice the written data, and the minimum of one.
const SPARE: u64 = 128 << 20;
const LEAST: u64 = 32 << 20;
/// The largest write of the drain, in the modelled world.
const WRITE: u64 = 8 << 20;

pub(super) fn run(
    scenario: &Scenario,
    point: Point,
    way: &Way,
    turn: u32,
    stop: &AtomicBool,
) -> Outcome<Ran> {
    let mut ground = Ground::new(scenario, point)?;
    let servers = Servers::start(scenario, point, way, &ground)?;
    let clients =
        (0..scenario.jobs.len()).map(|job| servers.client(job)).collect::<Outcome<Vec<Client>>>()?;
    nodes::lay_out(scenario, point, &mut ground, &clients)?;
    fill(scenario, &ground, &clients)?;
    // The same job orders for every variant.
    let mut rng = Rng::new(scenario.seed.wrapping_add(u64::from(turn) << 32));
    let order = rng.some(clients.len(), clients.len() as u32);
    let begin = Instant::now();
    let mut tickets = Vec::new();
    for &job in &order {
        let requested = begin.elapsed();
        let report =
            clients[job as usize].drain(Some(PathBuf::from(format!("/job{job}")).as_path()), None)?;
        let ticket = report.ticket.ok_or_else(|| Failure::Failed("the drain was not begun".to_owned()))?;
        tickets.push((job as usize, ticket.id, requested));
    }
    let mut jobs = vec![0.0; clients.len()];
    while !tickets.is_empty() {
        if stop.load(Ordering::Relaxed) {
            return Err(Failure::Interrupted);
        }
        std::thread::sleep(POLL_INTERVAL);
        let mut left = Vec::new();
        for (job, id, requested) in tickets {
            let report = clients[job].drain_ticket(id)?;
            match report.ticket {
                Some(ticket) if ticket.failed + ticket.skipped > 0 => {
                    let why = report.status.failing.first().map_or("", |failing| failing.why.as_str());
                    return Err(Failure::Failed(format!("job {job} could not be drained: {why}")));
                }
                Some(ticket) if ticket.done => jobs[job] = (begin.elapsed() - requested).as_secs_f64(),
                _ => left.push((job, id, requested)),
            }
        }
        tickets = left;
    }
    ground.check()?;
    Ok(Ran { jobs, bytes: scenario.bytes(point) })
}

/// Writes the data of all processes, request by request, each of a random process that has one left: concurrent
/// processes drift apart and do not run in lockstep.
fn fill(scenario: &Scenario, ground: &Ground, clients: &[Client]) -> Outcome {
    let request = scenario.real_bytes(scenario.request);
    let bytes = vec![FILLING; request as usize];
    let open = |process: &Process| {
        let path = ground.files[process.file].shown();
        Ok(clients[process.job].open(path, OpenOptions::WRITE)?)
    };
    let files = ground.processes.iter().map(open).collect::<Outcome<Vec<File>>>()?;
    let (mut rng, mut at) = (Rng::new(scenario.seed), vec![0; files.len()]);
    let mut left: Vec<usize> = (0..files.len()).filter(|&one| ground.processes[one].len > 0).collect();
    while !left.is_empty() {
        let place = rng.below(left.len() as u32) as usize;
        let (process, done) = (&ground.processes[left[place]], &mut at[left[place]]);
        let count = request.min(process.len - *done);
        files[left[place]].pwrite(process.start + *done, &bytes[..count as usize])?;
        *done += count;
        if *done == process.len {
            left.swap_remove(place);
        }
    }
    files.into_iter().try_for_each(|file| Ok(file.close()?))
}

/// The servers, in a separate process. Dropping it kills them and removes their data.
struct Servers {
    dir: PathBuf,
    process: Child,
}

impl Servers {
    fn start(scenario: &Scenario, point: Point, way: &Way, ground: &Ground) -> Outcome<Servers> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let dir = ground.dir().to_owned();
        let (settings, log) = (dir.join("forebay.toml"), dir.join("log"));
        fs::write(&settings, settings_of(scenario, way))
            .map_err(|error| Failure::local("write", &settings, error))?;
        let file = fs::File::create(&log).map_err(|error| Failure::local("make", &log, error))?;
        let servers = u64::from(point.servers);
        let capacity = (2 * scenario.bytes(point) + SPARE).max(LEAST * servers);
        let mut command = Command::new(&program);
        command.args(["up", "--background", "--with-parent", "--memory", "--config"]).arg(&settings);
        command.arg("--store").arg(dir.join("store")).arg("--socket").arg(dir.join("sock"));
        command.arg("--key").arg(dir.join("key")).args(["--capacity", &capacity.to_string()]);
        command.args(["--backend", &ground.modelled(scenario, point)]);
        if point.servers > 1 {
            command.args(["--shards", &point.servers.to_string()]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
        let process = command.spawn().map_err(|error| Failure::local("start", &program, error))?;
        let mut servers = Servers { dir, process };
        if is_serving(&mut servers.process) {
            return Ok(servers);
        }
        let log = fs::read_to_string(&log).unwrap_or_default();
        let why = log.lines().rev().find_map(|line| line.strip_prefix("forebay: ")).unwrap_or("it ended");
        Err(Failure::Failed(format!("a server of the scenario did not start: {why}")))
    }

    /// A client that stands for all processes of a job.
    fn client(&self, job: usize) -> Outcome<Client> {
        let (user, group) = ("bench".to_owned(), "bench".to_owned());
        let job = Job { label: format!("job{job}"), user, group, nodes: 1, priority: 1 };
        let config = ClientConfig::new(Address::Unix(self.dir.join("sock")));
        Ok(Client::connect(ClientConfig { job, ..config })?)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // None of the data is kept.
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove_stores(&self.dir);
    }
}

/// The settings of the servers: nothing is drained before it is requested.
fn settings_of(scenario: &Scenario, way: &Way) -> String {
    let alpha = match way.alpha {
        Alpha::Fixed(count) => count.to_string(),
        Alpha::Learnt => "\"learnt\"".to_owned(),
    };
    let choice = if way.choice == Choice::Sjf { "sjf" } else { "fcfs" };
    let grain = u64::from(scenario.grain);
    let quantum =
        way.quantum.map_or(String::new(), |quantum| format!("quantum = {}\n", (quantum.0 / grain).max(1)));
    format!(
        "[server.drain]\nthreshold = 99\nage = \"24h\"\norder = \"{}\"\nwrite = {}\nalpha = {alpha}\nchoice = \"{choice}\"\n{quantum}",
        order_word(way.order),
        (WRITE / grain).max(4096),
    )
}
