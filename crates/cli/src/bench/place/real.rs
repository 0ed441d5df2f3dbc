//! The same with real bytes, on targets in memory that are as slow as a model says.

use super::play::{USUAL, Variant};
use super::scenario::{Pattern, Real};
use crate::bench::lot::Lot;
use crate::failure::{Failure, Outcome};
use forebay_backend::{Backend, Creation, Layout};
use forebay_model::{Gid, Name, Uid};
use forebay_policy::place::{Job, Ledger, Limits, Pattern as Files, Shape, Topology, Weights, Writer, place};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Bytes of one write.
const PIECE: usize = 256 << 10;

/// Bytes a second of each repetition of one run, by variant.
pub(super) fn play(real: &Real, pattern: Pattern, seed: u64) -> Outcome<Vec<(Variant, Vec<Vec<f64>>)>> {
    let mut found = Vec::new();
    for &variant in Variant::all(pattern) {
        let runs = (0..real.repetitions).map(|repetition| {
            let salt = seed ^ u64::from(repetition).wrapping_mul(0x2545_f491_4f6c_dd1d);
            once(real, pattern, variant, salt)
        });
        found.push((variant, vec![runs.collect::<Outcome<Vec<f64>>>()?]));
    }
    Ok(found)
}

/// One file, and who writes which of its bytes: writer and offset.
struct Planned {
    layout: Layout,
    blocks: Vec<u64>,
}

fn once(real: &Real, pattern: Pattern, variant: Variant, salt: u64) -> Outcome<f64> {
    let memory = PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let dirs = (0..real.targets).map(|_| tempfile::tempdir_in(&above)).collect::<std::io::Result<Vec<_>>>();
    let dirs = dirs.map_err(|error| Failure::local("make a directory in", &above, &error))?;
    let paths: Vec<String> = dirs.iter().map(|dir| dir.path().display().to_string()).collect();
    let backend = forebay_backend::open(&format!("model:{}:stripes:{}", real.device, paths.join(",")))?;
    let owner = (Uid(rustix::process::getuid().as_raw()), Gid(rustix::process::getgid().as_raw()));
    let creation = Creation { owner, mode: 0o600, stripes: None };
    let mut jobs = Vec::new();
    for (number, file) in planned(real, pattern, variant, salt)?.into_iter().enumerate() {
        let path = vec![Name::new(format!("f{number}").as_bytes())?];
        drop(backend.create_on(&path, &creation, &file.layout)?);
        jobs.extend(file.blocks.into_iter().map(|offset| (path.clone(), offset)));
    }
    let bytes = real.size.0 * jobs.len() as u64;
    let start = Instant::now();
    std::thread::scope(|scope| {
        let write = |(path, offset): (Vec<Name>, u64)| {
            let backend = backend.clone();
            scope.spawn(move || block(&*backend, &path, offset, real.size.0))
        };
        let threads: Vec<_> = jobs.into_iter().map(write).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::Failed("a writer broke".to_owned())))
        })
    })?;
    Ok(bytes as f64 / start.elapsed().as_secs_f64())
}

/// A writer's block, piece by piece.
fn block(backend: &dyn Backend, path: &[Name], offset: u64, size: u64) -> Outcome {
    let object = backend.open_to_write(path)?;
    let piece = vec![0x5a_u8; PIECE];
    let mut done = 0;
    while done < size {
        let count = (size - done).min(PIECE as u64);
        object.write_at(offset + done, &[&piece[..count as usize]])?;
        done += count;
    }
    Ok(())
}

fn planned(real: &Real, pattern: Pattern, variant: Variant, salt: u64) -> Outcome<Vec<Planned>> {
    let mut lot = Lot(salt);
    let size = real.size.0;
    let blocks: Vec<u64> = (0..u64::from(real.writers)).map(|writer| writer * size).collect();
    let whole =
        |targets, stripe| vec![Planned { layout: Layout { targets, stripe }, blocks: blocks.clone() }];
    let own = |target| Planned { layout: Layout { targets: vec![target], stripe: 1 << 20 }, blocks: vec![0] };
    match (pattern, variant) {
        (_, Variant::Balanced) => balanced(real, pattern, salt).map(|files| {
            files
                .into_iter()
                .map(|layout| match pattern {
                    Pattern::PerProcess => Planned { layout, blocks: vec![0] },
                    Pattern::Shared => Planned { layout, blocks: blocks.clone() },
                })
                .collect()
        }),
        (Pattern::PerProcess, _) => Ok((0..real.writers).map(|_| own(lot.below(real.targets))).collect()),
        (Pattern::Shared, Variant::Default) => Ok(whole(lot.some(USUAL, real.targets), 1 << 20)),
        (Pattern::Shared, Variant::Optimised) => {
            let together = real.writers.div_ceil(real.writers.min(real.targets));
            let targets = lot.some(real.writers.div_ceil(together) as usize, real.targets);
            Ok(whole(targets, size * u64::from(together)))
        }
    }
}

fn balanced(real: &Real, pattern: Pattern, salt: u64) -> Outcome<Vec<Layout>> {
    let mut ledger = Ledger::new(Arc::new(Topology::flat(real.targets)), Weights::default(), salt);
    let writers = vec![Writer { client: None, bytes: Some(real.size.0) }; real.writers as usize];
    let job = Job {
        writers: &writers,
        pattern: match pattern {
            Pattern::PerProcess => Files::PerProcess,
            Pattern::Shared => Files::Shared,
        },
        file_size: None,
        stripe_count: None,
        stripe_size: None,
        limits: &Limits::STRIPES,
    };
    let plan = place(&mut ledger, &job).map_err(|trouble| Failure::Failed(trouble.to_string()))?;
    let layout = |shape: Shape| match shape {
        Shape::Striped(stripes) => Ok(Layout { targets: stripes.targets, stripe: stripes.size }),
        other => Err(Failure::Failed(format!("a file of known size lies as {other:?}"))),
    };
    plan.files.into_iter().map(|file| layout(file.shape)).collect()
}
