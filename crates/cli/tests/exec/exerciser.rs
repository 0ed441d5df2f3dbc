//! Random operations through the library against a copy in memory.

use crate::world::{World, succeed};
use std::time::{Duration, Instant};

/// As many as through the mount: 102,000 in all.
const SEEDS: u64 = 3;
const OPERATIONS: u32 = 34_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_operations_equal_a_copy_in_memory() {
    let soak = Duration::from_secs(number("FOREBAY_SOAK_SECONDS").unwrap_or(0));
    exercise(&World::new(), SEEDS, OPERATIONS, soak);
}

#[test]
fn random_operations_over_three_servers_equal_a_copy_in_memory() {
    exercise(&World::of(3), 1, OPERATIONS / 5, Duration::ZERO);
}

fn exercise(world: &World, seeds: u64, operations: u32, soak: Duration) {
    let first = number("FOREBAY_SEED").unwrap_or(20_261_115);
    let program = world.compile("exerciser");
    let start = Instant::now();
    for seed in first.. {
        if seed >= first + seeds && start.elapsed() >= soak {
            break;
        }
        let mut command = world.command(&program);
        // A failure says its seed.
        command.args(["/fb/exercise", &seed.to_string(), &operations.to_string()]);
        succeed(command);
    }
}
