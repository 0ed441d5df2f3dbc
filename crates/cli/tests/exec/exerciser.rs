//! Random operations through the library, compared with a copy in memory.

use crate::beyond::can_mount;
use crate::world::{World, succeed};
use std::process::Command;
use std::time::{Duration, Instant};

/// As many as through the mount: 102,000 in total.
const SEEDS: u64 = 3;
const OPERATIONS: u32 = 34_000;
/// Operations of each of several processes.
const TOGETHER: u32 = 2000;
/// With each seed of a soak.
const SOAKED: u32 = 100_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_operations_equal_a_copy_in_memory() {
    exercise(&World::new(), "library", "exerciser", SEEDS, OPERATIONS);
}

#[test]
fn random_operations_with_every_call_intercepted_equal_a_copy_in_memory() {
    exercise(&World::new(), "dispatch", "exerciser", SEEDS, OPERATIONS);
}

#[test]
fn random_operations_on_a_private_mount_equal_a_copy_in_memory() {
    if can_mount() {
        exercise(&World::new(), "mount", "exerciser", SEEDS, OPERATIONS / 2);
    }
}

#[test]
fn random_operations_over_three_servers_equal_a_copy_in_memory() {
    exercise(&World::of(3), "library", "exerciser", 1, OPERATIONS / 2);
}

#[test]
fn random_operations_of_several_processes_that_map_one_file() {
    exercise(&World::new(), "library", "together", SEEDS, TOGETHER);
}

#[test]
fn random_operations_of_several_processes_with_every_call_intercepted() {
    exercise(&World::new(), "dispatch", "together", SEEDS, TOGETHER);
}

#[test]
fn random_operations_of_several_processes_that_map_one_file_of_a_private_mount() {
    if can_mount() {
        exercise(&World::new(), "mount", "together", SEEDS, TOGETHER);
    }
}

#[test]
fn random_operations_of_several_processes_that_map_one_file_of_a_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    let program = world.compile("together");
    each_seed(SEEDS, TOGETHER, |seed, operations| {
        let mut command = Command::new(&program);
        command.arg(mount.path().join("exercise")).args([seed, operations]);
        succeed(command);
    });
}

fn exercise(world: &World, how: &str, program: &str, seeds: u64, operations: u32) {
    let program = world.compile(program);
    each_seed(seeds, operations, |seed, operations| {
        let mut command = world.command(&program);
        command.args(["/fb/exercise".to_owned(), seed, operations]).env("FOREBAY_INTERCEPT", how);
        if world.is_striped() {
            command.env("COPIES", "1");
        }
        succeed(command);
    });
}

/// Does so many operations with so many seeds, or more of them for so long as a soak lasts. A failure says its seed, which is
/// in the command.
fn each_seed(seeds: u64, operations: u32, act: impl Fn(String, String)) {
    let soak = number("FOREBAY_SOAK_SECONDS").map(Duration::from_secs);
    let operations = if soak.is_some() { SOAKED } else { operations };
    let first = number("FOREBAY_SEED").unwrap_or(20_261_115);
    let start = Instant::now();
    for seed in first.. {
        let enough = soak.map_or(seed >= first + seeds, |soak| seed > first && start.elapsed() >= soak);
        if enough {
            break;
        }
        act(seed.to_string(), operations.to_string());
    }
}
