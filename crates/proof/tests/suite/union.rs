//! A server with a back-end directory: the reference model includes the files that existed before and the changes of
//! other processes.

use forebay_client::blocking::Client;
use forebay_model::{Bytes, ServerId};
use forebay_proof::{By, Drains, Driver, Fleet, Host, Plan, Seeded, Step, rounds};
use forebay_server::{Full, Medium, Mode, Pipeline};
use forebay_testkit::Rng;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn host(medium: Medium, drain: Drains, route: Mode) -> Host {
    let plan = Plan::new(medium, Bytes::mib(128), Bytes::mib(4));
    Host::new(PROGRAM, Plan { has_backend: true, drain, route, ..plan })
}

/// The route of writes when the server starts; with more than one, the route also changes now and then.
type Routes = &'static [Mode];
const BUFFERED: Routes = &[Mode::Buffer];
const ALL_ROUTES: Routes = &[Mode::Traffic, Mode::Direct, Mode::Overflow, Mode::Buffer];
/// A failed sync of direct writes is reported forever, so a server that starts with such a route has no sync faults.
const NO_BUFFER: Routes = &[Mode::Traffic, Mode::Direct, Mode::Overflow];

fn play(medium: Medium, drain: Drains, routes: Routes, part: u64) {
    play_on(|| host(medium, drain, routes[0]), routes, part);
}

/// Bytes that bypassed the buffers, over all runs of the servers.
struct DirectBytes {
    client: Client,
    /// The last count of each server.
    last: BTreeMap<ServerId, u64>,
    bytes: u64,
}

impl DirectBytes {
    fn new(client: Client) -> DirectBytes {
        DirectBytes { client, last: BTreeMap::new(), bytes: 0 }
    }

    /// Adds the counts of the servers that answer. After a kill a server counts from zero.
    fn update(&mut self) {
        for (server, status) in self.client.statuses().unwrap() {
            let Some(route) = status.ok().and_then(|status| status.route) else { continue };
            let before = self.last.insert(server, route.direct).filter(|before| *before <= route.direct);
            self.bytes += route.direct - before.unwrap_or(0);
        }
    }
}

/// Number of worlds, each with few steps, so that all cases occur eventually.
const WORLDS: u64 = 8;
/// Maximum, for cases that did not occur in the first worlds.
const MOST_WORLDS: u64 = 4 * WORLDS;

fn play_on(hosts: impl Fn() -> Host, routes: Routes, part: u64) {
    play_worlds(WORLDS, hosts, routes, part);
}

fn play_worlds(worlds: u64, hosts: impl Fn() -> Host, routes: Routes, part: u64) {
    let mut game = Game::new(routes, part);
    rounds(worlds).for_each(|world| game.play(hosts(), world));
    // With injected faults, the back end may have refused all direct writes.
    let (mut more, expects_direct) = (worlds..MOST_WORLDS, game.expects_direct);
    while expects_direct
        && game.direct == 0
        && !game.has_faults
        && let Some(world) = more.next()
    {
        game.play(hosts(), world);
    }
    assert!(game.seen[&format!("{:?}", Step::Done)] > 10, "{:?}", game.seen);
    assert!(
        game.has_faults || (game.direct > 0) == game.expects_direct,
        "{} bytes bypassed the buffer",
        game.direct
    );
}

/// The results of all worlds with one server each.
struct Game {
    routes: Routes,
    part: u64,
    seeded: Seeded,
    rng: Rng,
    seen: BTreeMap<String, u64>,
    /// Bytes that bypassed the buffer, and whether some should.
    direct: u64,
    expects_direct: bool,
    /// Whether the back end has injected faults.
    has_faults: bool,
}

impl Game {
    fn new(routes: Routes, part: u64) -> Game {
        let seeded = Seeded::new();
        let rng = seeded.rng(part);
        let (seen, expects_direct) = (BTreeMap::new(), routes != BUFFERED);
        Game { routes, part, seeded, rng, seen, direct: 0, expects_direct, has_faults: false }
    }

    fn play(&mut self, mut host: Host, world: u64) {
        let (drain, routes, part, rng) = (host.plan.drain, self.routes, self.part, &mut self.rng);
        let clients = clients(|job, by| host.client_of(job, by));
        let switches = self.seeded.rng(part + 500 + world);
        let _switching = Switching::new(routes, host.client(By::Unix), switches);
        let mut direct_bytes = DirectBytes::new(host.client(By::Unix));
        let mut driver =
            Driver::with_backend(clients, &host.backing_dir(), self.seeded.rng(part + 1 + world));
        if host.plan.flow.1 == Full::Bypass {
            self.expects_direct = true;
            driver = driver.with_little_space();
        }
        if drain == Drains::WithFaults {
            self.has_faults = true;
            driver = driver.with_faults(vec![Plan::fault_pause_file(&host.store())]);
        }
        for number in 0..300 {
            let step = match rng.below(40) {
                0 => {
                    match rng.one_in(2) {
                        true => host.kill(),
                        false => host.stop(),
                    }
                    host.plan.route = routes[(number as usize + world as usize) % routes.len()];
                    host.start();
                    continue;
                }
                1..3 => host.killed_within(Duration::from_micros(rng.below(3000)), || driver.step()),
                _ => driver.step(),
            };
            *self.seen.entry(format!("{step:?}")).or_default() += 1;
            direct_bytes.update();
            if number % 100 == 99 {
                driver.check();
                // When draining lazily, some time before the end, so that later changes are drained too.
                if drain != Drains::Lazily || number == 199 {
                    driver.check_backing(&host.backing_dir());
                    driver.check();
                    driver.change_backing(&host.backing_dir());
                    driver.check();
                }
            }
        }
        driver.check_last(&host.backing_dir());
        self.direct += direct_bytes.bytes;
    }
}

/// Changes the route at random moments until it is dropped.
struct Switching {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Switching {
    fn new(routes: Routes, client: Client, mut rng: Rng) -> Switching {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let switch = move || {
            while !ends.load(Ordering::Relaxed) {
                let (mode, _) = Mode::ALL[rng.below(4) as usize];
                // A server that is down restarts with its own route.
                if let Err(error) = client.set_route(mode) {
                    assert!(error.kind().is_no_answer(), "{error}");
                }
                std::thread::sleep(Duration::from_micros(rng.below(30_000)));
            }
        };
        Switching { over, thread: (routes.len() > 1).then(|| std::thread::spawn(switch)) }
    }
}

impl Drop for Switching {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(
            std::thread::panicking() || matches!(ended, None | Some(Ok(()))),
            "the switching thread failed"
        );
    }
}

/// Clients of three jobs, over different transports.
fn clients(client: impl Fn(usize, By) -> Client) -> Vec<Client> {
    [By::Unix, By::Tcp, By::Unix].into_iter().enumerate().map(|(job, by)| client(job, by)).collect()
}

/// The same with several servers, striped files, and kills of random servers.
fn play_on_several(drain: Drains, routes: Routes, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let (mut seen, mut direct) = (BTreeMap::<String, u64>::new(), 0);
    // The drain retries after a pause, and several servers have to succeed for one file.
    let (worlds, steps) = if drain == Drains::WithFaults { (1, 200) } else { (4, 300) };
    for world in rounds(worlds) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4));
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, drain, route: routes[0], ..plan });
        let clients = clients(|job, by| fleet.hosts[job % 3].client_of(job, by));
        let switching = Switching::new(routes, fleet.client(0, By::Unix), seeded.rng(part + 500 + world));
        let mut direct_bytes = DirectBytes::new(fleet.client(0, By::Unix));
        let mut driver = Driver::with_backend(clients, &fleet.backing_dir(), seeded.rng(part + 1 + world));
        if drain == Drains::WithFaults {
            driver = driver
                .with_faults(fleet.hosts.iter().map(|host| Plan::fault_pause_file(&host.store())).collect());
        }
        for number in 0..steps {
            let step = match rng.below(40) {
                0 => {
                    let gently = rng.one_in(2);
                    let host = fleet.any(&mut rng);
                    host.plan.route = routes[(number as usize + world as usize) % routes.len()];
                    match gently {
                        true => host.stop(),
                        false => host.kill(),
                    }
                    host.start();
                    continue;
                }
                1..3 => {
                    let delay = Duration::from_micros(rng.below(3000));
                    fleet.any(&mut rng).killed_within(delay, || driver.step())
                }
                3 => {
                    driver.restripe();
                    continue;
                }
                _ => driver.step(),
            };
            *seen.entry(format!("{step:?}")).or_default() += 1;
            direct_bytes.update();
            if number % 100 == 99 {
                driver.check();
                if drain != Drains::Lazily || number == 199 {
                    driver.check_backing(&fleet.backing_dir());
                    driver.check();
                    driver.change_backing(&fleet.backing_dir());
                    driver.check();
                }
            }
        }
        driver.check_last(&fleet.backing_dir());
        direct += direct_bytes.bytes;
        drop(switching);
        fleet.check();
    }
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
    assert_eq!(direct > 0, routes != BUFFERED, "{direct} bytes bypassed the buffers");
}

/// Closed, drained files lose nothing with the store of a server that holds only bytes.
#[test]
fn random_operations_of_three_servers_continue_after_losing_one_store() {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(16_000);
    for world in rounds(2) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4));
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, drain: Drains::Eagerly, ..plan });
        let clients = clients(|job, by| fleet.hosts[job % 3].client_of(job, by));
        let mut driver = Driver::with_backend(clients, &fleet.backing_dir(), seeded.rng(16_001 + world));
        for _ in 0..3 {
            for _ in 0..60 {
                match rng.below(30) {
                    // Also the server with the names, which does not know what is open when it restarts.
                    0 => {
                        let host = fleet.any(&mut rng);
                        host.kill();
                        host.start();
                    }
                    1..4 => driver.restripe(),
                    _ => drop(driver.step()),
                }
            }
            driver.close_all();
            driver.check_backing(&fleet.backing_dir());
            driver.change_backing(&fleet.backing_dir());
            driver.check();
            driver.check_backing(&fleet.backing_dir());
            let lost = ServerId(2 + rng.below(2) as u16);
            fleet.lose_store(lost);
            fleet.replace(lost);
            driver.check();
        }
        driver.check_backing(&fleet.backing_dir());
        drop(driver);
        fleet.check();
    }
}

#[test]
fn random_operations_of_three_servers_with_a_back_end_match_the_model() {
    play_on_several(Drains::Lazily, BUFFERED, 6000);
}

#[test]
fn random_operations_of_three_draining_servers_match_the_model() {
    play_on_several(Drains::Eagerly, BUFFERED, 9000);
}

#[test]
fn random_operations_of_three_servers_with_faults_match_the_model() {
    play_on_several(Drains::WithFaults, BUFFERED, 10_000);
}

#[test]
fn random_operations_of_three_servers_on_all_routes_match_the_model() {
    play_on_several(Drains::Lazily, ALL_ROUTES, 12_000);
}

#[test]
fn random_operations_of_three_draining_servers_on_all_routes_match() {
    play_on_several(Drains::Eagerly, ALL_ROUTES, 13_000);
}

#[test]
fn random_operations_with_a_back_end_match_the_model_in_memory() {
    play(Medium::Memory, Drains::Lazily, BUFFERED, 4000);
}

#[test]
fn random_operations_with_a_back_end_match_the_model_on_disk() {
    play(Medium::Disk, Drains::Lazily, BUFFERED, 5000);
}

#[test]
fn random_operations_while_draining_match_the_model_in_memory() {
    play(Medium::Memory, Drains::Eagerly, BUFFERED, 6000);
}

#[test]
fn random_operations_while_draining_match_the_model_on_disk() {
    play(Medium::Disk, Drains::Eagerly, BUFFERED, 7000);
}

#[test]
fn random_operations_with_a_faulty_back_end_match_the_model() {
    play(Medium::Memory, Drains::WithFaults, BUFFERED, 8000);
}

#[test]
fn random_operations_on_all_routes_match_the_model_in_memory() {
    play(Medium::Memory, Drains::Lazily, ALL_ROUTES, 9000);
}

#[test]
fn random_operations_on_all_routes_while_draining_match_on_disk() {
    play(Medium::Disk, Drains::Eagerly, ALL_ROUTES, 10_000);
}

/// Writes that find no space bypass the buffer.
fn bypassed(drain: Drains, pipeline: Pipeline, (capacity, region): (Bytes, Bytes)) -> Host {
    let plan = Plan::new(Medium::Memory, capacity, region);
    Host::new(PROGRAM, Plan { has_backend: true, drain, flow: (pipeline, Full::Bypass), ..plan })
}

/// The buffer holds less than some writes bring, and only those bypass it.
#[test]
fn random_operations_bypassing_a_full_buffer_match_the_model() {
    let size = (Bytes::kib(512), Bytes::kib(64));
    // A write that finds no space at all fails after a while.
    play_worlds(3, || bypassed(Drains::Lazily, Pipeline::On, size), BUFFERED, 14_000);
}

#[test]
fn random_operations_without_a_pipeline_match_the_model() {
    let size = (Bytes::mib(24), Bytes::mib(4));
    play_on(|| bypassed(Drains::Eagerly, Pipeline::Off, size), ALL_ROUTES, 15_000);
}

#[test]
fn random_operations_on_all_routes_with_faults_match_the_model() {
    play(Medium::Memory, Drains::WithFaults, NO_BUFFER, 11_000);
}
