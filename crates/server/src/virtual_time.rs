//! Turns on a modelled device in virtual time: the production code, on a clock that stands still while any task can
//! run. Lost time and waits in these tests come from the code, not from the machine.

use crate::pace::Pace;
use crate::turns::Turns;
use crate::turns::tests::{job, rules};
use crate::turns::{Entry, Rules};
use forebay_model::{Bytes, JobId};
use forebay_policy::Cost;
use forebay_policy::share::Discipline;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

const RATE: u64 = 64 << 20;
const STALL: Duration = Duration::from_millis(20);

/// The jobs' requests, and the bytes they were served.
struct World {
    turns: Arc<Turns>,
    served: [AtomicU64; 3],
    begin: Instant,
    /// Time to move a slice to or from a client.
    moving: Duration,
}

impl World {
    fn new(discipline: Discipline, nodes: [u32; 2], moving: u64) -> Arc<World> {
        let rules = Rules { device: Some(Bytes(RATE)), discipline, ..rules("size-fair", 16, 256) };
        let moving = Duration::from_millis(moving);
        let world =
            World { turns: Turns::new(rules), served: Default::default(), begin: Instant::now(), moving };
        for (id, nodes) in (1..).zip(nodes) {
            world.turns.join(&job(id, nodes)).unwrap();
        }
        Arc::new(world)
    }

    /// One request, as a data connection serves it.
    async fn request(&self, id: u64, bytes: u32) {
        let (mut left, mut next): (u32, Option<Entry>) = (bytes, None);
        while left > 0 {
            let slice = left.min(self.turns.slice());
            let cost = if left == bytes { self.turns.price(slice) } else { Cost(u64::from(slice)) };
            let entry = match next.take() {
                Some(entry) => entry,
                None => self.turns.enter((JobId(id), forebay_model::Uid(5)), cost).unwrap(),
            };
            let mut turn = entry.turn().await.unwrap();
            left -= slice;
            let after = left.min(self.turns.slice());
            let ahead = (after > 0).then(|| self.turns.ahead(&mut turn, Cost(u64::from(after)))).flatten();
            let mut pace = Pace::new(turn, ahead, slice, STALL, Instant::now() + 100 * STALL);
            pace.step(sleep(self.moving)).await.unwrap();
            pace.moved(slice);
            next = pace.next();
            self.served[id as usize].fetch_add(cost.0, Relaxed);
        }
    }

    /// A job that sends requests over `streams` streams within a time span.
    fn busy(self: &Arc<World>, crew: &mut JoinSet<()>, id: u64, streams: u32, bytes: u32, span: [u64; 2]) {
        let [from, to] = span.map(|ms| self.begin + Duration::from_millis(ms));
        for _ in 0..streams {
            let world = self.clone();
            crew.spawn(async move {
                sleep_until(from).await;
                while Instant::now() < to {
                    world.request(id, bytes).await;
                }
            });
        }
    }
}

/// The scenario of the paper's Fig. 8: the bytes served to all jobs while a second one joins and leaves.
#[tokio::test(start_paused = true)]
async fn no_scheduler_loses_device_time_between_turns() {
    for (discipline, least) in [
        (Discipline::Fifo, 0.999),
        (Discipline::Stride, 0.999),
        (Discipline::Tokens, 0.999),
        (Discipline::Draws, 0.999),
        (Discipline::Tbf, 0.99),
        // The interval before a leave plans time for the job that left; that time is lost.
        (Discipline::Gift, 0.96),
    ] {
        let world = World::new(discipline, [4, 1], 1);
        let mut crew = JoinSet::new();
        world.busy(&mut crew, 1, 16, 10_000_000, [0, 8_000]);
        world.busy(&mut crew, 2, 8, 10_000_000, [2_000, 6_000]);
        sleep_until(world.begin + Duration::from_secs(8)).await;
        let served: u64 = world.served.iter().map(|served| served.load(Relaxed)).sum();
        let part = served as f64 / (8 * RATE) as f64;
        assert!((least..1.01).contains(&part), "{discipline}: {:.2} % of the device", part * 100.0);
    }
}

/// A program: a number of requests on each stream, each followed by a pause in milliseconds.
struct Burst {
    streams: u32,
    requests: u32,
    bytes: u32,
    pause: u64,
}

/// The program of the paper's Fig. 13, beside a job on one node that always has 32 requests waiting: its delay compared
/// to running alone, and its run time alone, in seconds.
async fn later(burst: Burst, moving: u64) -> (f64, f64) {
    let Burst { streams, requests, bytes, pause } = burst;
    let mut took = [0.0; 2];
    for (beside, took) in took.iter_mut().enumerate() {
        let world = World::new(Discipline::Stride, [16, 1], moving);
        let mut others = JoinSet::new();
        if beside == 1 {
            world.busy(&mut others, 2, 32, 1_000_000, [0, 60_000]);
            sleep(Duration::from_millis(300)).await;
        }
        let begin = Instant::now();
        let mut program = JoinSet::new();
        for _ in 0..streams {
            let world = world.clone();
            program.spawn(async move {
                for _ in 0..requests {
                    world.request(1, bytes).await;
                    sleep(Duration::from_millis(pause)).await;
                }
            });
        }
        program.join_all().await;
        *took = begin.elapsed().as_secs_f64();
    }
    (took[1] - took[0], took[0])
}

/// It may lose the other job's share and, for every burst, a slice that has begun; also if its clients take longer to
/// move a slice than the device does.
#[tokio::test(start_paused = true)]
async fn bursty_program_loses_the_other_share_and_a_slice_per_burst() {
    for (moving, streams, requests, bytes, pause) in [
        (1, 1, 24, 4 << 20, 50),
        (8, 1, 24, 4 << 20, 50),
        (1, 1, 12, 16 << 20, 100),
        (8, 1, 12, 16 << 20, 100),
        (1, 4, 12, 4 << 20, 0),
        (8, 4, 12, 4 << 20, 0),
        (1, 1, 100, 64 << 10, 10),
    ] {
        let (lost, alone) = later(Burst { streams, requests, bytes, pause }, moving).await;
        let slice = f64::from(World::new(Discipline::Fifo, [1, 1], 1).turns.slice()) / RATE as f64;
        let moved = f64::from(bytes) * f64::from(streams * requests) / RATE as f64;
        let bursts = if pause == 0 { 1 } else { requests };
        // Timers have a resolution of milliseconds; and the last slice moves when its turn begins, not when the device
        // has finished it.
        let bound = moved / 16.0 + f64::from(bursts) * (slice + 0.001) + moving as f64 / 1e3;
        let story = format!("{streams} streams of {bytes}, {moving} ms a slice, {alone:.3} s alone");
        assert!(lost <= bound, "{story}: {lost:.3} s lost, {bound:.3} s allowed");
    }
}
