//! A server before a directory: the reference model knows what was there before, and nothing tells the two apart.

use forebay_model::Bytes;
use forebay_proof::{By, Drains, Driver, Fleet, Host, Plan, Seeded, Step, rounds};
use forebay_server::{Medium, Mode};
use std::collections::BTreeMap;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn host(medium: Medium, drain: Drains) -> Host {
    let plan = Plan::new(medium, Bytes::mib(128), Bytes::mib(4));
    Host::new(PROGRAM, Plan { before: true, drain, ..plan })
}

/// Which way writes go in a life of the server.
type Routes = &'static [Mode];
const BUFFERED: Routes = &[Mode::Buffer];
const EVERY_WAY: Routes = &[Mode::Traffic, Mode::Direct, Mode::Overflow, Mode::Buffer];

fn play(medium: Medium, drain: Drains, routes: Routes, part: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let mut seen = BTreeMap::<String, u64>::new();
    // Few steps in each of several worlds: sooner or later everything has been met.
    for world in rounds(8) {
        let mut host = host(medium, drain);
        host.plan.route = routes[0];
        let clients = vec![host.client(By::Unix), host.client(By::Tcp)];
        let mut driver = Driver::before(clients, &host.behind(), seeded.dice(part + 1 + world));
        for number in 0..300 {
            let step = match dice.below(40) {
                0 => {
                    match dice.one_in(2) {
                        true => host.kill(),
                        false => host.stop(),
                    }
                    // Not with the steps' dice: what is done does not depend on the way it goes.
                    host.plan.route = routes[(number as usize + world as usize) % routes.len()];
                    host.start();
                    continue;
                }
                1..3 => host.killed_within(Duration::from_micros(dice.below(3000)), || driver.step()),
                _ => driver.step(),
            };
            *seen.entry(format!("{step:?}")).or_default() += 1;
            if number % 100 == 99 {
                driver.check();
                // Lazily, and some time before the end: what comes after that is to be behind too.
                if drain != Drains::Lazily || number == 199 {
                    driver.check_behind(&host.behind());
                    driver.check();
                }
            }
        }
    }
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
}

/// The same with several servers, files over all of them, and any of them killed.
fn play_on_several(drain: Drains, part: u64) {
    let seeded = Seeded::new();
    let mut dice = seeded.dice(part);
    let mut seen = BTreeMap::<String, u64>::new();
    // What fails is tried again after a pause, and several servers have to succeed for one file.
    let (worlds, steps) = if drain == Drains::WithFaults { (1, 200) } else { (4, 300) };
    for world in rounds(worlds) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(96), Bytes::mib(4));
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { before: true, drain, ..plan });
        let clients = vec![fleet.client(0, By::Unix), fleet.client(1, By::Tcp), fleet.client(2, By::Unix)];
        let mut driver = Driver::before(clients, &fleet.behind(), seeded.dice(part + 1 + world));
        for number in 0..steps {
            let step = match dice.below(40) {
                0 => {
                    let gently = dice.one_in(2);
                    let host = fleet.any(&mut dice);
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
            if number % 100 == 99 {
                driver.check();
                if drain != Drains::Lazily || number == 199 {
                    driver.check_behind(&fleet.behind());
                    driver.check();
                }
            }
        }
        drop(driver);
        fleet.check();
    }
    assert!(seen[&format!("{:?}", Step::Done)] > 10, "{seen:?}");
}

#[test]
fn random_operations_of_three_servers_before_a_directory_match_the_model() {
    play_on_several(Drains::Lazily, 6000);
}

#[test]
fn random_operations_of_three_servers_while_everything_drains_match_the_model_here_and_behind() {
    play_on_several(Drains::Eagerly, 9000);
}

#[test]
fn random_operations_of_three_servers_before_a_directory_that_fails_match_the_model() {
    play_on_several(Drains::WithFaults, 10_000);
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

#[test]
fn random_operations_on_every_way_to_a_directory_that_fails_match_the_model_here_and_behind() {
    play(Medium::Memory, Drains::WithFaults, EVERY_WAY, 11_000);
}
