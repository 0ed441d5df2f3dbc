//! A server before a directory: the reference model knows what was there before and what others change there, and nothing
//! tells the two apart.

use forebay_client::blocking::Client;
use forebay_dice::Dice;
use forebay_model::{Bytes, ErrorKind, ServerId};
use forebay_proof::{By, Drains, Driver, Fleet, Host, Plan, Seeded, Step, rounds};
use forebay_server::{Full, Medium, Mode, Pipeline};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn host(medium: Medium, drain: Drains, route: Mode) -> Host {
    let plan = Plan::new(medium, Bytes::mib(128), Bytes::mib(4));
    Host::new(PROGRAM, Plan { before: true, drain, route, ..plan })
}

/// Which way writes go when a life of the server begins; with more than one it changes now and then, too.
type Routes = &'static [Mode];
const BUFFERED: Routes = &[Mode::Buffer];
const EVERY_WAY: Routes = &[Mode::Traffic, Mode::Direct, Mode::Overflow, Mode::Buffer];
/// What went past the buffer and cannot be synced is told for ever, so a server that starts like this has no such faults.
const PAST: Routes = &[Mode::Traffic, Mode::Direct, Mode::Overflow];

fn play(medium: Medium, drain: Drains, routes: Routes, part: u64) {
    play_on(|| host(medium, drain, routes[0]), routes, part);
}

/// What went past the buffers of servers, in all their lives.
struct Past {
    client: Client,
    /// What each said last.
    last: BTreeMap<ServerId, u64>,
    bytes: u64,
}

impl Past {
    fn new(client: Client) -> Past {
        Past { client, last: BTreeMap::new(), bytes: 0 }
    }

    /// Looks at those that are there. What one says that was killed since is all of its new life.
    fn look(&mut self) {
        for (server, status) in self.client.statuses().unwrap() {
            let Some(route) = status.ok().and_then(|status| status.route) else { continue };
            let before = self.last.insert(server, route.direct).filter(|before| *before <= route.direct);
            self.bytes += route.direct - before.unwrap_or(0);
        }
    }
}

/// How many worlds there are, each with few steps: sooner or later everything has been met.
const WORLDS: u64 = 8;
/// As many at most where what is to be shown was not met in those.
const MOST_WORLDS: u64 = 4 * WORLDS;

fn play_on(hosts: impl Fn() -> Host, routes: Routes, part: u64) {
    play_worlds(WORLDS, hosts, routes, part);
}

fn play_worlds(worlds: u64, hosts: impl Fn() -> Host, routes: Routes, part: u64) {
    let mut game = Game::new(routes, part);
    rounds(worlds).for_each(|world| game.play(hosts(), world));
    // Where the back end fails, everything that went there may have been refused.
    let (mut more, goes_past) = (worlds..MOST_WORLDS, game.goes_past);
    while goes_past
        && game.direct == 0
        && !game.refuses
        && let Some(world) = more.next()
    {
        game.play(hosts(), world);
    }
    assert!(game.seen[&format!("{:?}", Step::Done)] > 10, "{:?}", game.seen);
    assert!(
        game.refuses || (game.direct > 0) == game.goes_past,
        "{} bytes went past the buffer",
        game.direct
    );
}

/// What was played in all worlds of one server each.
struct Game {
    routes: Routes,
    part: u64,
    seeded: Seeded,
    dice: Dice,
    seen: BTreeMap<String, u64>,
    /// Bytes that went past the buffer, and whether some should.
    direct: u64,
    goes_past: bool,
    /// Whether the back end fails.
    refuses: bool,
}

impl Game {
    fn new(routes: Routes, part: u64) -> Game {
        let seeded = Seeded::new();
        let dice = seeded.dice(part);
        let (seen, goes_past) = (BTreeMap::new(), routes != BUFFERED);
        Game { routes, part, seeded, dice, seen, direct: 0, goes_past, refuses: false }
    }

    fn play(&mut self, mut host: Host, world: u64) {
        let (drain, routes, part, dice) = (host.plan.drain, self.routes, self.part, &mut self.dice);
        let clients = clients(|job, by| host.client_of(job, by));
        let switches = self.seeded.dice(part + 500 + world);
        let _switching = Switching::new(routes, host.client(By::Unix), switches);
        let mut past = Past::new(host.client(By::Unix));
        let mut driver = Driver::before(clients, &host.behind(), self.seeded.dice(part + 1 + world));
        if host.plan.flow.1 == Full::Bypass {
            self.goes_past = true;
            driver = driver.in_little_room();
        }
        if drain == Drains::WithFaults {
            self.refuses = true;
            driver = driver.amid_faults(vec![Plan::calm(&host.store())]);
        }
        for number in 0..300 {
            let step = match dice.below(40) {
                0 => {
                    match dice.one_in(2) {
                        true => host.kill(),
                        false => host.stop(),
                    }
                    host.plan.route = routes[(number as usize + world as usize) % routes.len()];
                    host.start();
                    continue;
                }
                1..3 => host.killed_within(Duration::from_micros(dice.below(3000)), || driver.step()),
                _ => driver.step(),
            };
            *self.seen.entry(format!("{step:?}")).or_default() += 1;
            past.look();
            if number % 100 == 99 {
                driver.check();
                // Lazily, and some time before the end: what comes after that is to be behind too.
                if drain != Drains::Lazily || number == 199 {
                    driver.check_behind(&host.behind());
                    driver.check();
                    driver.meddle(&host.behind());
                    driver.check();
                }
            }
        }
        driver.check_last(&host.behind());
        self.direct += past.bytes;
    }
}

/// Sends writes another way now and then, whatever is going on, as long as it lives.
struct Switching {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Switching {
    fn new(routes: Routes, client: Client, mut dice: Dice) -> Switching {
        let over = Arc::new(AtomicBool::new(false));
        let ends = over.clone();
        let switch = move || {
            while !ends.load(Ordering::Relaxed) {
                let (mode, _) = Mode::ALL[dice.below(4) as usize];
                // A server that is down comes back with a way of its own.
                if let Err(error) = client.set_route(mode) {
                    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
                }
                std::thread::sleep(Duration::from_micros(dice.below(30_000)));
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
            "the modes were not switched"
        );
    }
}

/// Clients of three jobs, each by its own way.
fn clients(client: impl Fn(usize, By) -> Client) -> Vec<Client> {
    [By::Unix, By::Tcp, By::Unix].into_iter().enumerate().map(|(job, by)| client(job, by)).collect()
}

/// The same with several servers, files over all of them, and any of them killed.
fn play_on_several(drain: Drains, routes: Routes, part: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let (mut seen, mut direct) = (BTreeMap::<String, u64>::new(), 0);
    // What fails is tried again after a pause, and several servers have to succeed for one file.
    let (worlds, steps) = if drain == Drains::WithFaults { (1, 200) } else { (4, 300) };
    for world in rounds(worlds) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4));
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { before: true, drain, route: routes[0], ..plan });
        let clients = clients(|job, by| fleet.hosts[job % 3].client_of(job, by));
        let switching = Switching::new(routes, fleet.client(0, By::Unix), seeded.dice(part + 500 + world));
        let mut past = Past::new(fleet.client(0, By::Unix));
        let mut driver = Driver::before(clients, &fleet.behind(), seeded.dice(part + 1 + world));
        if drain == Drains::WithFaults {
            driver = driver.amid_faults(fleet.hosts.iter().map(|host| Plan::calm(&host.store())).collect());
        }
        for number in 0..steps {
            let step = match dice.below(40) {
                0 => {
                    let gently = dice.one_in(2);
                    let host = fleet.any(&mut dice);
                    host.plan.route = routes[(number as usize + world as usize) % routes.len()];
                    match gently {
                        true => host.stop(),
                        false => host.kill(),
                    }
                    host.start();
                    continue;
                }
                1..3 => {
                    let patience = Duration::from_micros(dice.below(3000));
                    fleet.any(&mut dice).killed_within(patience, || driver.step())
                }
                3 => {
                    driver.restripe();
                    continue;
                }
                _ => driver.step(),
            };
            *seen.entry(format!("{step:?}")).or_default() += 1;
            past.look();
            if number % 100 == 99 {
                driver.check();
                if drain != Drains::Lazily || number == 199 {
                    driver.check_behind(&fleet.behind());
                    driver.check();
                    driver.meddle(&fleet.behind());
                    driver.check();
                }
            }
        }
        driver.check_last(&fleet.behind());
        direct += past.bytes;
        drop(switching);
        fleet.check();
    }
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
    assert_eq!(direct > 0, routes != BUFFERED, "{direct} bytes went past the buffers");
}

/// Of closed files of which all is behind, nothing is lost with the store of a server that has bytes alone.
#[test]
fn random_operations_of_three_servers_go_on_after_the_store_of_one_is_lost() {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(16_000);
    for world in rounds(2) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4));
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { before: true, drain: Drains::Eagerly, ..plan });
        let clients = clients(|job, by| fleet.hosts[job % 3].client_of(job, by));
        let mut driver = Driver::before(clients, &fleet.behind(), seeded.dice(16_001 + world));
        for _ in 0..3 {
            for _ in 0..60 {
                match dice.below(30) {
                    // Also who has the names, and does not know yet what is open when it begins to serve again.
                    0 => {
                        let host = fleet.any(&mut dice);
                        host.kill();
                        host.start();
                    }
                    1..4 => driver.restripe(),
                    _ => drop(driver.step()),
                }
            }
            driver.close_all();
            driver.check_behind(&fleet.behind());
            driver.meddle(&fleet.behind());
            driver.check();
            driver.check_behind(&fleet.behind());
            let lost = ServerId(2 + dice.below(2) as u16);
            fleet.lose_store(lost);
            fleet.replace(lost);
            driver.check();
        }
        driver.check_behind(&fleet.behind());
        drop(driver);
        fleet.check();
    }
}

#[test]
fn random_operations_of_three_servers_before_a_directory_match_the_model() {
    play_on_several(Drains::Lazily, BUFFERED, 6000);
}

#[test]
fn random_operations_of_three_servers_while_everything_drains_match_the_model_here_and_behind() {
    play_on_several(Drains::Eagerly, BUFFERED, 9000);
}

#[test]
fn random_operations_of_three_servers_before_a_directory_that_fails_match_the_model() {
    play_on_several(Drains::WithFaults, BUFFERED, 10_000);
}

#[test]
fn random_operations_of_three_servers_on_every_way_match_the_model() {
    play_on_several(Drains::Lazily, EVERY_WAY, 12_000);
}

#[test]
fn random_operations_of_three_servers_on_every_way_while_everything_drains_match_the_model_here_and_behind() {
    play_on_several(Drains::Eagerly, EVERY_WAY, 13_000);
}

#[test]
fn random_operations_before_a_directory_match_the_model_in_memory() {
    play(Medium::Memory, Drains::Lazily, BUFFERED, 4000);
}

#[test]
fn random_operations_before_a_directory_match_the_model_on_disk() {
    play(Medium::Disk, Drains::Lazily, BUFFERED, 5000);
}

#[test]
fn random_operations_while_everything_drains_match_the_model_here_and_behind() {
    play(Medium::Memory, Drains::Eagerly, BUFFERED, 6000);
}

#[test]
fn random_operations_while_everything_drains_match_the_model_on_disk() {
    play(Medium::Disk, Drains::Eagerly, BUFFERED, 7000);
}

#[test]
fn random_operations_before_a_directory_that_fails_match_the_model_here_and_behind() {
    play(Medium::Memory, Drains::WithFaults, BUFFERED, 8000);
}

#[test]
fn random_operations_on_every_way_match_the_model_in_memory() {
    play(Medium::Memory, Drains::Lazily, EVERY_WAY, 9000);
}

#[test]
fn random_operations_on_every_way_while_everything_drains_match_the_model_on_disk() {
    play(Medium::Disk, Drains::Eagerly, EVERY_WAY, 10_000);
}

/// What finds no room goes past the buffer.
fn bypassed(drain: Drains, pipeline: Pipeline, (capacity, region): (Bytes, Bytes)) -> Host {
    let plan = Plan::new(Medium::Memory, capacity, region);
    Host::new(PROGRAM, Plan { before: true, drain, flow: (pipeline, Full::Bypass), ..plan })
}

/// The buffer holds less than some writes bring, and nothing but that sends any past it.
#[test]
fn random_operations_past_a_full_buffer_match_the_model_here_and_behind() {
    let size = (Bytes::kib(512), Bytes::kib(64));
    // What finds no room at all is told so after a while.
    play_worlds(3, || bypassed(Drains::Lazily, Pipeline::On, size), BUFFERED, 14_000);
}

#[test]
fn random_operations_without_a_pipeline_match_the_model_here_and_behind() {
    let size = (Bytes::mib(24), Bytes::mib(4));
    play_on(|| bypassed(Drains::Eagerly, Pipeline::Off, size), EVERY_WAY, 15_000);
}

#[test]
fn random_operations_on_every_way_to_a_directory_that_fails_match_the_model_here_and_behind() {
    play(Medium::Memory, Drains::WithFaults, PAST, 11_000);
}
