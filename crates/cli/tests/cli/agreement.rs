//! The simulator and the daemon in the same small world: they run the same policies, so they must say the same.

use crate::support::World;
use serde_json::Value;

/// Jobs by user, nodes and size of requests; the same in both worlds.
const JOBS: [(&str, u32, &str); 3] = [("ada", 4, "256KiB"), ("ada", 1, "1MiB"), ("bob", 2, "64KiB")];

fn live(policy: &str) -> String {
    let jobs = JOBS.iter().enumerate().map(|(id, (user, nodes, request))| {
        format!(
            "[[job]]\nid = {}\nuser = '{user}'\nnodes = {nodes}\nprocesses = 1\nstreams = 8\nop = 'write'\nrequest = '{request}'\nlength = 4\n",
            id + 1
        )
    });
    format!("policy = '{policy}'\ncompare = []\ndevice_rate = '64MiB/s'\n{}", jobs.collect::<String>())
}

fn simulated(policy: &str) -> String {
    let jobs = JOBS.iter().enumerate().map(|(id, (user, nodes, request))| {
        format!(
            "[[job]]\nid = {}\nuser = '{user}'\nnodes = {nodes}\nprocesses = 1\ndepth = 8\nstop = '40 s'\n[[job.phase]]\nwrite = '1GiB'\nrequest = '{request}'\n",
            id + 1
        )
    });
    let servers = "[servers]\nrate = '67.108864 MB/s'\ncapacity = '1 TiB'\n";
    format!("{servers}policy = '{policy}'\n{}", jobs.collect::<String>())
}

/// Each job's part of the bytes.
fn parts(jobs: &Value, key: &str) -> Vec<f64> {
    let bytes: Vec<f64> = jobs.as_array().unwrap().iter().map(|job| job[key].as_f64().unwrap()).collect();
    let total: f64 = bytes.iter().sum();
    bytes.into_iter().map(|bytes| bytes / total).collect()
}

/// How far the two worlds are apart: the largest difference of a job's part, against what the simulator says.
fn apart(world: &World) -> (f64, String) {
    let lived = world.json(&["bench", "share", "live.toml", "--json"]);
    let lived = parts(&lived["runs"][0]["jobs"], "served");
    let told = parts(&world.json(&["sim", "sim.toml", "--json"])["jobs"], "written");
    let off = lived.iter().zip(&told).map(|(lived, told)| (lived / told - 1.0).abs()).fold(0.0, f64::max);
    (off, format!("{lived:.4?} live, {told:.4?} in the simulator"))
}

#[test]
fn jobs_get_the_same_parts_from_the_daemon_and_in_the_simulator() {
    let world = World::empty();
    for policy in ["user-then-size-fair", "size-fair"] {
        world.write("live.toml", live(policy));
        world.write("sim.toml", simulated(policy));
        // Whatever else runs on this machine can only drive them apart: the closest of a few runs counts.
        let runs: Vec<(f64, String)> = (0..4)
            .scan(false, |met, _| {
                let run = (!*met).then(|| apart(&world))?;
                *met = run.0 < 0.05;
                Some(run)
            })
            .collect();
        let best = runs.iter().map(|run| run.0).fold(f64::MAX, f64::min);
        assert!(best < 0.05, "{policy}: {runs:?}");
    }
}
