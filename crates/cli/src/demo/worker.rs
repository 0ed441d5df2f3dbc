//! A job: a process that writes, or reads back and compares, and reports line by line.

use super::pattern;
use super::plan::{Shape, WRITERS};
use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::output;
use clap::Args;
use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::ErrorKind;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const REPORT: Duration = Duration::from_millis(5);

#[derive(Args)]
pub(crate) struct DemoJob {
    #[arg(long)]
    label: String,
    #[arg(long)]
    shape: Shape,
    #[arg(long)]
    block: u64,
    #[arg(long)]
    share: u64,
    /// Read back and compare
    #[arg(long)]
    verify: bool,
    #[command(flatten)]
    service: Service,
}

/// A message of a job.
#[derive(Serialize, Deserialize)]
pub(super) enum Word {
    /// Bytes acknowledged or compared.
    Progress(u64),
    /// The job is done.
    Done(Done),
    /// The job failed.
    Trouble(String),
}

/// The result of a job.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Done {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// The longest request in seconds.
    pub(super) longest_wait: f64,
    /// Bytes that differ from those written.
    pub(super) wrong: u64,
    pub(super) first_wrong: Option<String>,
}

impl DemoJob {
    pub(crate) fn run(&self) -> Outcome {
        // The job has no purpose without the demo process.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
        match self.work() {
            Ok(done) => output::message(&Word::Done(done)),
            Err(failure) => output::message(&Word::Trouble(failure.text().unwrap_or("it ended").to_owned())),
        }
    }

    fn work(&self) -> Outcome<Done> {
        let client = self.service.connect()?;
        let begin = Instant::now();
        if !self.verify {
            match client.mkdir(format!("/{}", self.label), 0o755) {
                Err(error) if error.kind() != ErrorKind::Exists => return Err(error.into()),
                _ => {}
            }
        }
        let bytes = AtomicU64::new(0);
        let done = std::thread::scope(|scope| {
            let (ended, ends) = channel();
            for writer in 0..WRITERS {
                let (client, bytes, ended) = (&client, &bytes, ended.clone());
                scope.spawn(move || ended.send(self.writer(client, writer, bytes)));
            }
            drop(ended);
            let mut total = Done::default();
            loop {
                match ends.recv_timeout(REPORT) {
                    Ok(part) => total.add(part?),
                    Err(RecvTimeoutError::Timeout) => output::message(&Word::Progress(bytes.load(Relaxed)))?,
                    Err(RecvTimeoutError::Disconnected) => return Ok::<Done, Failure>(total),
                }
            }
        })?;
        Ok(Done { bytes: bytes.into_inner(), seconds: begin.elapsed().as_secs_f64(), ..done })
    }

    /// One writer thread.
    fn writer(&self, client: &Client, writer: u64, bytes: &AtomicU64) -> Outcome<Done> {
        let path = match self.shape {
            Shape::Shared => format!("/{}/checkpoint", self.label),
            Shape::Own => format!("/{}/rank.{writer}", self.label),
        };
        let seed = pattern::seed(&path);
        let options = match self.verify {
            true => OpenOptions::READ,
            false => OpenOptions { create: true, ..OpenOptions::WRITE },
        };
        let file = client.open(&path, options)?;
        let (mut buffer, mut done) = (vec![0; self.block as usize], Done::default());
        for index in 0..self.share / self.block {
            let offset = match self.shape {
                Shape::Shared => (index * WRITERS + writer) * self.block,
                Shape::Own => index * self.block,
            };
            match self.verify {
                true => compare(&file, &path, &mut buffer, seed, offset, &mut done)?,
                false => write(&file, &mut buffer, seed, offset, &mut done)?,
            }
            bytes.fetch_add(self.block, Relaxed);
        }
        file.close()?;
        Ok(done)
    }
}

fn write(file: &File, buffer: &mut [u8], seed: u64, offset: u64, done: &mut Done) -> Outcome {
    pattern::fill(buffer, seed, offset);
    let begin = Instant::now();
    file.pwrite(offset, buffer)?;
    done.longest_wait = done.longest_wait.max(begin.elapsed().as_secs_f64());
    Ok(())
}

fn compare(file: &File, path: &str, buffer: &mut [u8], seed: u64, offset: u64, done: &mut Done) -> Outcome {
    let begin = Instant::now();
    let count = file.pread(offset, buffer)?;
    done.longest_wait = done.longest_wait.max(begin.elapsed().as_secs_f64());
    let (differing, first) = pattern::differences(&buffer[..count], seed, offset);
    let missing = (buffer.len() - count) as u64;
    let first = first.or((missing > 0).then_some(offset + count as u64));
    done.wrong += differing + missing;
    if let (None, Some(first)) = (&done.first_wrong, first) {
        done.first_wrong = Some(format!("{path} at {first}"));
    }
    Ok(())
}

impl Done {
    fn add(&mut self, part: Done) {
        self.longest_wait = self.longest_wait.max(part.longest_wait);
        self.wrong += part.wrong;
        self.first_wrong = self.first_wrong.take().or(part.first_wrong);
    }
}
