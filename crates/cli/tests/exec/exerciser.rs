//! Random operations through the library against a copy in memory.

use crate::world::{World, succeed};

const SEEDS: [u64; 2] = [1, 20_261_115];
const OPERATIONS: u32 = 50_000;

#[test]
fn random_operations_equal_a_copy_in_memory() {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = given.map_or(SEEDS.to_vec(), |seed: u64| vec![seed]);
    exercise(&World::new(), &seeds, OPERATIONS);
}

#[test]
fn random_operations_over_three_servers_equal_a_copy_in_memory() {
    let given = std::env::var("FOREBAY_SEED").ok().and_then(|seed| seed.parse().ok());
    exercise(&World::of(3), &[given.unwrap_or(1)], OPERATIONS / 5);
}

fn exercise(world: &World, seeds: &[u64], operations: u32) {
    let program = world.compile("exerciser");
    for seed in seeds {
        let mut command = world.command(&program);
        command.args(["/fb/exercise", &seed.to_string(), &operations.to_string()]);
        succeed(command);
    }
}
