//! One process of a job: repeats an operation until its time is over.

use super::scenario::Op;
use crate::rng::Rng;
use forebay_client::{Client, File, OpenOptions, blocking};
use forebay_model::{ErrorKind, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// Bytes of the paper's write/read cycle.
const CYCLE: usize = 10_000_000;
/// Requests in the file that is read repeatedly.
const BLOCKS: u64 = 8;

/// What one process of a job does.
pub struct Process {
    /// Prefix of its file names.
    pub name: String,
    /// The operation that it repeats.
    pub op: Op,
    /// Bytes of a request.
    pub request: usize,
    /// Requests at the same time.
    pub streams: u32,
    /// How long it runs.
    pub length: Duration,
    /// It ends after this number of bytes.
    pub amount: Option<u64>,
    /// Computation time after each request.
    pub pause: Duration,
}

/// The result of the process.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub struct Done {
    /// Bytes that it moved.
    pub bytes: u64,
    /// Operations that it completed.
    pub operations: u64,
    /// How long it took.
    pub seconds: f64,
}

/// State that all streams of the process share.
struct Common {
    op: Op,
    request: usize,
    pause: Duration,
    end: Instant,
    /// Bytes that may still be started.
    left: AtomicU64,
    bytes: AtomicU64,
    operations: AtomicU64,
}

impl Process {
    /// Repeats the operation until the time or the work is over.
    ///
    /// # Errors
    ///
    /// If a request fails.
    pub fn run(&self, client: &blocking::Client) -> Result<Done> {
        let begin = Instant::now();
        let common = Arc::new(Common {
            op: self.op,
            request: self.request,
            pause: self.pause,
            end: begin + self.length,
            left: AtomicU64::new(self.amount.unwrap_or(u64::MAX)),
            bytes: AtomicU64::new(0),
            operations: AtomicU64::new(0),
        });
        client.wait(async {
            let mut tasks = JoinSet::new();
            for stream in 0..self.streams {
                let (client, name) = (client.inner().clone(), format!("/{}-{stream}", self.name));
                tasks.spawn(common.clone().stream(client, name));
            }
            while let Some(ended) = tasks.join_next().await {
                ended.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))?;
            }
            Ok(())
        })?;
        let (bytes, operations) = (common.bytes.load(Relaxed), common.operations.load(Relaxed));
        Ok(Done { bytes, operations, seconds: begin.elapsed().as_secs_f64() })
    }
}

impl Common {
    /// Whether there is time and work left for the given number of bytes.
    fn begin(&self, bytes: u64) -> bool {
        Instant::now() < self.end
            && self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    async fn done(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Relaxed);
        self.operations.fetch_add(1, Relaxed);
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
    }

    async fn stream(self: Arc<Common>, client: Client, name: String) -> Result<()> {
        match self.op {
            Op::Stat => self.stat(&client, &name).await,
            Op::Create => self.create(&client, &name).await,
            Op::Write | Op::Read | Op::Cycle | Op::WriteRead | Op::Prefetch => {
                let file = client.open(&name, OpenOptions::CREATE).await?;
                self.bytes(&file).await
            }
        }
    }

    async fn bytes(&self, file: &File) -> Result<()> {
        let len = if self.op == Op::Cycle { CYCLE } else { self.request };
        let (out, mut back) = (vec![0x5a; len], vec![0; len]);
        let reads = matches!(self.op, Op::Read | Op::Prefetch);
        if reads {
            for block in 0..BLOCKS {
                file.pwrite(block * len as u64, &out).await?;
            }
        }
        let mut round = 0;
        while self.begin(len as u64) {
            if reads {
                file.pread(round % BLOCKS * len as u64, &mut back).await?;
            } else {
                file.pwrite(0, &out).await?;
            }
            self.done(len as u64).await;
            if matches!(self.op, Op::Cycle | Op::WriteRead) && self.begin(len as u64) {
                file.pread(0, &mut back).await?;
                self.done(len as u64).await;
            }
            round += 1;
        }
        Ok(())
    }

    async fn stat(&self, client: &Client, name: &str) -> Result<()> {
        let mut names = Rng::new(1);
        while self.begin(1) {
            let number = names.bits();
            match client.stat(format!("{name}-{number:x}")).await {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => self.done(0).await,
            }
        }
        Ok(())
    }

    async fn create(&self, client: &Client, name: &str) -> Result<()> {
        let mut number = 0_u64;
        while self.begin(1) {
            number += 1;
            let path = format!("{name}-{number}");
            client.open(&path, OpenOptions::CREATE_NEW).await?.close().await?;
            client.unlink(&path).await?;
            self.done(0).await;
        }
        Ok(())
    }
}
