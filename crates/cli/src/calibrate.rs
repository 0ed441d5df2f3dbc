//! `calibrate`: measures the best number of writers for each storage target by writing to it.

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::table;
use clap::Args;
use forebay_backend::{Backend, Creation, Layout, Object};
use forebay_model::{Bytes, Error, ErrorKind, Gid, Name, Result, Uid, list};
use serde::Serialize;
use std::fmt;
use std::sync::Barrier;
use std::time::Instant;

/// Size of one write.
const WRITE: usize = 1 << 20;
/// Maximum number of writers at one target.
const MOST: u32 = 256;
/// Fewer writers are preferred if they reach this share of the best rate.
const NEARLY: f64 = 0.985;

#[derive(Args)]
pub(crate) struct Calibrate {
    /// The back end, as dir:PATH, stripes:PATH,PATH,…, s3:BUCKET or model:DEVICE:BACKEND
    #[arg(value_name = "BACKEND")]
    backend: String,
    /// Try up to N concurrent writers
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST)))]
    writers: u32,
    /// Bytes to write in each measurement, by all writers together
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: Bytes,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Rate {
    writers: u32,
    bytes_per_second: u64,
}

#[derive(Serialize)]
struct Target {
    name: String,
    /// The recommended value of `alpha`.
    alpha: u32,
    rates: Vec<Rate>,
}

#[derive(Serialize)]
struct Calibrated {
    backend: String,
    targets: Vec<Target>,
}

impl Calibrate {
    pub(crate) fn run(&self) -> Outcome {
        if self.size.0 < u64::from(self.writers) {
            return Err(Failure::Usage(format!("--size {} is less than a byte for each writer", self.size)));
        }
        let backend = forebay_backend::open(&self.backend).map_err(|error| match error.kind() {
            ErrorKind::Invalid => Failure::misread(error),
            _ => error.into(),
        })?;
        let dir = [Name::new(format!(".forebay-calibrate-{}", std::process::id()))?];
        backend.make_dir(&dir, me(), 0o700)?;
        let measured = backend
            .targets()
            .into_iter()
            .zip(0..)
            .map(|(name, number)| self.measure(&*backend, &dir[0], name, number))
            .collect::<Result<Vec<Target>>>();
        let removed = backend.remove_dir(&dir);
        let targets = measured?;
        removed?;
        output::show(&Calibrated { backend: backend.name(), targets }, self.json)
    }

    fn measure(&self, backend: &dyn Backend, dir: &Name, name: String, target: u32) -> Result<Target> {
        let counts = std::iter::successors(Some(1), |count| Some(count * 2))
            .take_while(|&count| count <= self.writers);
        let mut rates = Vec::new();
        for writers in counts {
            let mut files = Files { backend, dir, made: Vec::new() };
            let objects = (0..writers).map(|_| files.on(target)).collect::<Result<Vec<_>>>();
            let rate = objects.and_then(|objects| together(objects, self.size.0 / u64::from(writers)));
            files.remove()?;
            rates.push(Rate { writers, bytes_per_second: rate? as u64 });
        }
        let best = rates.iter().map(|rate| rate.bytes_per_second).max().unwrap_or(0) as f64;
        let enough = rates.iter().find(|rate| rate.bytes_per_second as f64 >= NEARLY * best);
        Ok(Target { name, alpha: enough.map_or(1, |rate| rate.writers), rates })
    }
}

/// Temporary files of a measurement.
struct Files<'a> {
    backend: &'a dyn Backend,
    dir: &'a Name,
    made: Vec<Name>,
}

impl Files<'_> {
    /// Creates a file that lies on one target only.
    fn on(&mut self, target: u32) -> Result<Box<dyn Object>> {
        let creation = Creation { owner: me(), mode: 0o600, stripes: Some((1, WRITE as u64)) };
        let name = Name::new(self.made.len().to_string())?;
        let path = [self.dir.clone(), name.clone()];
        let there = Layout { targets: vec![target], stripe: WRITE as u64 };
        let object = self.backend.create_on(&path, &creation, &there)?;
        self.made.push(name);
        let lies = self.backend.layout(&path)?.targets;
        if lies == [target] {
            return Ok(object);
        }
        let text = format!("{} placed a file for target {target} on {}", self.backend.name(), list(&lies));
        Err(Error::new(ErrorKind::Io, text))
    }

    fn remove(&self) -> Result<()> {
        self.made.iter().try_for_each(|name| self.backend.unlink(&[self.dir.clone(), name.clone()]).map(drop))
    }
}

/// Bytes per second of writers that start together, each with its own file, until the last one has synced.
fn together(objects: Vec<Box<dyn Object>>, each: u64) -> Result<f64> {
    let bytes = vec![0x5a; WRITE];
    let (bytes, all) = (&bytes, objects.len() as u64 * each);
    let start = Barrier::new(objects.len() + 1);
    let start = &start;
    std::thread::scope(|scope| {
        let write = |object: Box<dyn Object>| {
            scope.spawn(move || {
                start.wait();
                let mut at = 0;
                while at < each {
                    let count = (each - at).min(WRITE as u64);
                    object.write_at(at, &[&bytes[..count as usize]])?;
                    at += count;
                }
                object.sync()
            })
        };
        let writers: Vec<_> = objects.into_iter().map(write).collect();
        start.wait();
        let begin = Instant::now();
        let ended: Result<Vec<()>> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap_or_else(|_| Err(Error::from(ErrorKind::Io))))
            .collect();
        ended.map(|_| all as f64 / begin.elapsed().as_secs_f64().max(1e-9))
    })
}

fn me() -> (Uid, Gid) {
    (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()))
}

impl fmt::Display for Calibrated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["target", "writers", "a second", ""].map(str::to_owned);
        let rows = self.targets.iter().flat_map(|target| {
            target.rates.iter().map(|rate| {
                let mark = if rate.writers == target.alpha { "α" } else { "" };
                let rows = [&target.name, &rate.writers.to_string()].map(Clone::clone);
                let [name, writers] = rows;
                [name, writers, Bytes(rate.bytes_per_second).to_string(), mark.to_owned()]
            })
        });
        let rows: Vec<[String; 4]> = std::iter::once(heading).chain(rows).collect();
        table(f, "lrrl", 0, &rows)
    }
}
