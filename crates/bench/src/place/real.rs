//! The same with real data, on targets in memory that are slowed down by a model.

use super::play::{USUAL, Variant};
use super::scenario::{Pattern, Real};
use crate::failure::{Failure, Outcome};
use crate::rng::Rng;
use forebay_backend::{Backend, Creation, Layout};
use forebay_model::{Gid, Name, Uid};
use forebay_policy::place::{Job, Ledger, Limits, Pattern as Files, Shape, Topology, Weights, Writer, place};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Size of one write.
const PIECE: usize = 256 << 10;

/// Bytes per second of each repetition of one run, by variant.
pub(super) fn play(real: &Real, pattern: Pattern, seed: u64) -> Outcome<Vec<(Variant, Vec<Vec<f64>>)>> {
    let mut found = Vec::new();
    for &variant in Variant::all(pattern) {
        let runs = (0..real.repetitions).map(|repetition| {
            let salt = Rng::new(seed.wrapping_add(repetition.into())).bits();
            once(real, pattern, variant, salt)
        });
        found.push((variant, vec![runs.collect::<Outcome<Vec<f64>>>()?]));
    }
    Ok(found)
}

/// A file, and the writer and offset of each of its blocks.
struct Planned {
    layout: Layout,
    blocks: Vec<u64>,
}

fn once(real: &Real, pattern: Pattern, variant: Variant, salt: u64) -> Outcome<f64> {
    let memory = PathBuf::from("/dev/shm");
    let above = if memory.is_dir() { memory } else { std::env::temp_dir() };
    let dirs = (0..real.targets).map(|_| tempfile::tempdir_in(&above)).collect::<std::io::Result<Vec<_>>>();
    let dirs = dirs.map_err(|error| Failure::local("make a directory in", &above, error))?;
    let paths: Vec<String> = dirs.iter().map(|dir| dir.path().display().to_string()).collect();
    let backend = forebay_backend::open(&format!("model:{}:stripes:{}", real.device, paths.join(",")))?;
    let owner = (Uid(rustix::process::getuid().as_raw()), Gid(rustix::process::getgid().as_raw()));
    let creation = Creation { owner, mode: 0o600, stripes: None };
    let topology = Arc::new(Topology::flat(real.targets));
    let mut chooser = Chooser {
        real,
        pattern,
        variant,
        rng: Rng::new(salt),
        ledger: Ledger::new(topology, Weights::default(), salt),
    };
    let mut spent = Duration::ZERO;
    for phase in 0..real.phases {
        let mut jobs = Vec::new();
        for (number, file) in chooser.files()?.into_iter().enumerate() {
            let path = vec![Name::new(format!("f{phase}.{number}").as_bytes())?];
            drop(backend.create_on(&path, &creation, &file.layout)?);
            jobs.extend(file.blocks.into_iter().map(|offset| (path.clone(), offset)));
        }
        let start = Instant::now();
        written(&backend, jobs, real.size.0)?;
        spent += start.elapsed();
    }
    Ok(real.bytes() / spent.as_secs_f64())
}

/// Writes all blocks concurrently.
fn written(backend: &Arc<dyn Backend>, blocks: Vec<(Vec<Name>, u64)>, size: u64) -> Outcome {
    std::thread::scope(|scope| {
        let write = |(path, offset): (Vec<Name>, u64)| {
            let backend = backend.clone();
            scope.spawn(move || block(&*backend, &path, offset, size))
        };
        let threads: Vec<_> = blocks.into_iter().map(write).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(Failure::Failed("a writer thread panicked".to_owned())))
        })
    })
}

/// Writes one block, piece by piece.
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

/// Chooses targets, phase after phase.
struct Chooser<'a> {
    real: &'a Real,
    pattern: Pattern,
    variant: Variant,
    rng: Rng,
    ledger: Ledger,
}

impl Chooser<'_> {
    /// The files of the next phase.
    fn files(&mut self) -> Outcome<Vec<Planned>> {
        let Real { targets, writers, size, .. } = *self.real;
        let blocks: Vec<u64> = (0..u64::from(writers)).map(|writer| writer * size.0).collect();
        let mut rng = |count: u32| self.rng.some(count as usize, targets);
        let layouts = match (self.pattern, self.variant) {
            (_, Variant::Balanced) => self.balanced()?,
            (Pattern::PerProcess, _) => (0..writers)
                .map(|_| Layout { targets: vec![self.rng.below(targets)], stripe: 1 << 20 })
                .collect(),
            (Pattern::Shared, Variant::Default) => {
                vec![Layout { targets: rng(USUAL as u32), stripe: 1 << 20 }]
            }
            (Pattern::Shared, Variant::Optimised) => {
                let together = writers.div_ceil(writers.min(targets));
                let stripe = size.0 * u64::from(together);
                vec![Layout { targets: rng(writers.div_ceil(together)), stripe }]
            }
        };
        let blocks = match self.pattern {
            Pattern::PerProcess => vec![0],
            Pattern::Shared => blocks,
        };
        Ok(layouts.into_iter().map(|layout| Planned { layout, blocks: blocks.clone() }).collect())
    }

    fn balanced(&mut self) -> Outcome<Vec<Layout>> {
        let writers =
            vec![Writer { client: None, bytes: Some(self.real.size.0) }; self.real.writers as usize];
        let job = Job {
            writers: &writers,
            pattern: match self.pattern {
                Pattern::PerProcess => Files::PerProcess,
                Pattern::Shared => Files::Shared,
            },
            file_size: None,
            stripe_count: None,
            stripe_size: None,
            limits: &Limits::STRIPES,
        };
        let plan = place(&mut self.ledger, &job).map_err(|trouble| Failure::Failed(trouble.to_string()))?;
        let layout = |shape: Shape| match shape {
            Shape::Striped(stripes) => Ok(Layout { targets: stripes.targets, stripe: stripes.size }),
            _ => Err(Failure::Failed("a file of known size is not placed on targets".to_owned())),
        };
        plan.files.into_iter().map(|file| layout(file.shape)).collect()
    }
}
