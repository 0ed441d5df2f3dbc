//! Unbuffered: every process writes to the targets directly, all concurrently.

use super::Ran;
use super::ground::{FILLING, Ground};
use super::scenario::{Point, Scenario};
use crate::failure::{Failure, Outcome};
use forebay_backend::Backend;
use forebay_model::Name;
use std::sync::Barrier;
use std::time::Instant;

pub(super) fn run(scenario: &Scenario, point: Point) -> Outcome<Ran> {
    let mut ground = Ground::new(scenario, point)?;
    ground.plan(scenario, point, |_, number, _| Ok(Name::new(format!("data{number}"))?))?;
    let backend = forebay_backend::open(&ground.modelled(scenario, point))?;
    let request = vec![FILLING; scenario.real_bytes(scenario.request) as usize];
    let gate = Barrier::new(ground.processes.len() + 1);
    let ends = std::thread::scope(|scope| {
        let write = |number: usize| {
            let (backend, ground, request, gate) = (&*backend, &ground, &request, &gate);
            scope.spawn(move || process(backend, ground, number, request, gate))
        };
        let threads: Vec<_> = (0..ground.processes.len()).map(write).collect();
        gate.wait();
        let begin = Instant::now();
        let ends = threads.into_iter().map(|thread| {
            let end =
                thread.join().unwrap_or_else(|_| Err(Failure::Failed("a writer thread panicked".to_owned())));
            end.map(|end| end.duration_since(begin).as_secs_f64())
        });
        ends.collect::<Outcome<Vec<f64>>>()
    })?;
    ground.check()?;
    let of = |job: usize| {
        let mine = ground.processes.iter().zip(&ends).filter(move |(process, _)| process.job == job);
        mine.map(|(_, end)| *end).fold(0.0, f64::max)
    };
    Ok(Ran { jobs: (0..scenario.jobs.len()).map(of).collect(), bytes: scenario.bytes(point) })
}

/// One process, from the common start; returns when it was done.
fn process(
    backend: &dyn Backend,
    ground: &Ground,
    number: usize,
    request: &[u8],
    gate: &Barrier,
) -> Outcome<Instant> {
    let process = &ground.processes[number];
    let object = backend.open_to_write(&ground.files[process.file].path);
    gate.wait();
    let object = object?;
    let mut done = 0;
    while done < process.len {
        let count = (request.len() as u64).min(process.len - done);
        object.write_at(process.start + done, &[&request[..count as usize]])?;
        done += count;
    }
    object.sync()?;
    Ok(Instant::now())
}
