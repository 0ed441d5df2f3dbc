//! The simulator and the daemon with the same small workload: both run the same policies and must give the same
//! result.

use crate::support::{World, pattern};
use forebay_policy::OPERATION;
use serde_json::Value;
use std::time::Instant;

/// Jobs by user, nodes and request size in KiB; the same for daemon and simulator.
const JOBS: [(&str, u32, u32); 3] = [("ada", 4, 512), ("ada", 1, 1024), ("bob", 2, 256)];

fn live(policy: &str) -> String {
    let jobs = JOBS.iter().enumerate().map(|(id, (user, nodes, request))| {
        format!(
            "[[job]]\nid = {}\nuser = '{user}'\nnodes = {nodes}\nprocesses = 1\nstreams = 16\nop = 'write'\nrequest = '{request}KiB'\nlength = 3\n",
            id + 1
        )
    });
    format!("policy = '{policy}'\ncompare = []\ndevice_rate = '32MiB/s'\n{}", jobs.collect::<String>())
}

fn simulated(policy: &str) -> String {
    let jobs = JOBS.iter().enumerate().map(|(id, (user, nodes, request))| {
        format!(
            "[[job]]\nid = {}\nuser = '{user}'\nnodes = {nodes}\nprocesses = 1\ndepth = 16\nstop = '600 s'\n[[job.phase]]\nwrite = '1GiB'\nrequest = '{request}KiB'\n",
            id + 1
        )
    });
    let servers = "[servers]\nrate = '32 MiB/s'\ncapacity = '1 TiB'\n";
    format!("{servers}policy = '{policy}'\n{}", jobs.collect::<String>())
}

/// Each job's share of the service: bytes, and the cost of its requests.
fn simulated_parts(world: &World) -> Vec<f64> {
    let report = world.json(&["sim", "sim.toml", "--json"]);
    let cost = |(job, (_, _, kib)): (&Value, &(&str, u32, u32))| {
        let bytes = job["written"].as_f64().unwrap();
        bytes + bytes / f64::from(kib << 10) * OPERATION.0 as f64
    };
    let costs: Vec<f64> = report["jobs"].as_array().unwrap().iter().zip(&JOBS).map(cost).collect();
    costs.iter().map(|one| one / costs.iter().sum::<f64>()).collect()
}

/// The same for a real service in its steady state.
fn live_parts(world: &World) -> Vec<f64> {
    let report = world.json(&["bench", "share", "live.toml", "--json"]);
    let jobs = report["runs"][0]["jobs"].as_array().unwrap().clone();
    jobs.iter().map(|job| job["share"].as_f64().unwrap()).collect()
}

/// The largest difference of a job's share, relative to that of the simulator.
fn difference(world: &World) -> (f64, String) {
    let (measured, simulated) = (live_parts(world), simulated_parts(world));
    let off = measured
        .iter()
        .zip(&simulated)
        .map(|(measured, simulated)| (measured / simulated - 1.0).abs())
        .fold(0.0, f64::max);
    (off, format!("{measured:.4?} live, {simulated:.4?} in the simulator"))
}

#[test]
fn daemon_and_simulator_give_jobs_the_same_shares() {
    let world = World::empty();
    for policy in ["user-then-size-fair", "size-fair"] {
        world.write("live.toml", live(policy));
        world.write("sim.toml", simulated(policy));
        // Other load on this machine can only increase the difference: the best of a few runs counts.
        let runs: Vec<(f64, String)> = (0..12)
            .scan(false, |met, _| {
                let run = (!*met).then(|| difference(&world))?;
                *met = run.0 < 0.05;
                Some(run)
            })
            .collect();
        let best = runs.iter().map(|run| run.0).fold(f64::MAX, f64::min);
        assert!(best < 0.05, "{policy}: {runs:?}");
    }
}

/// Slowdown of the daemon's target relative to the simulator's, so that other times do not matter.
const SLOWER: f64 = 100.0;
/// Files of one write each, which go to one target two at a time.
const FILE: usize = 2 << 20;
const LOTS: [usize; 2] = [2, 6];

/// Seconds that the simulator's target takes from the last write until everything is drained.
fn simulated_drain(world: &World, files: usize) -> f64 {
    let drain = "[servers.drain]\norder = 'trio'\nalpha = 2\n";
    let target = "[[target]]\nid = 't'\ndevice = 'ost'\n";
    let job = format!(
        "[[job]]\nid = 1\nprocesses = {files}\n[[job.phase]]\nwrite = '{FILE} B'\nrequest = '{FILE} B'\n"
    );
    let servers = "[servers]\nrate = '1000 GB/s'\ncapacity = '1 TiB'\npolicy = 'fifo'\n";
    world.write("drain.toml", format!("{servers}{drain}{target}{job}"));
    let report = world.json(&["sim", "drain.toml", "--json"]);
    let at = |key: &str| report["jobs"][0][key].as_f64().unwrap();
    at("settled") - at("ended")
}

/// The same with the daemon, in real time, including the time of the request.
fn live_drain(world: &World, run: usize, files: usize) -> f64 {
    for number in 0..files {
        world.well(&["put", "file", &format!("/f{run}-{files}-{number}")]);
    }
    let began = Instant::now();
    let drained = world.json(&["drain", "--wait", "--json"]);
    let took = began.elapsed().as_secs_f64();
    assert_eq!((&drained["done"], &drained["bytes"]), (&true.into(), &(files * FILE).into()), "{drained}");
    took
}

#[test]
fn daemon_drains_as_fast_as_the_simulator() {
    let mut world = World::empty();
    std::fs::create_dir(world.path("backing")).unwrap();
    world.write("file", pattern(FILE, 7));
    world.write("forebay.toml", "[server.drain]\norder = 'trio'\nalpha = 2\n");
    let backend = format!("model:ost,slower={SLOWER}:dir:{}", world.path("backing").display());
    world.start(&["--config", "forebay.toml", "--backend", &backend]);
    let [few, many] = LOTS.map(|files| simulated_drain(&world, files));
    let more = ((LOTS[1] - LOTS[0]) * FILE) as f64;
    let simulated = more / ((many - few) * SLOWER);
    // Other load on this machine only makes a drain take longer: the shortest of a few counts. The time to
    // begin and to end is the same for few files and for many.
    let (mut shortest, mut seen) = ([f64::MAX; 2], Vec::new());
    for run in 0..15 {
        for (shortest, files) in shortest.iter_mut().zip(LOTS) {
            *shortest = shortest.min(live_drain(&world, run, files));
        }
        let measured = more / (shortest[1] - shortest[0]);
        seen.push(format!("{:.3} MB/s", measured / 1e6));
        if (measured / simulated - 1.0).abs() < 0.05 {
            return;
        }
    }
    panic!("{seen:?} live, {:.3} MB/s in the simulator", simulated / 1e6);
}
