//! Writers by shared memory before a drain that is slower than they are.

use crate::site::{Site, job, parts};
use forebay_client::{Client, OpenOptions};
use forebay_model::{Bytes, JobId};
use forebay_server::Medium;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::JoinSet;

const PIECE: usize = 64 << 10;
/// Files of each job, each with a ring of its own.
const FILES: usize = 3;
/// A writer begins a new file after so many pieces: what is behind is not looked at any more.
const PIECES: usize = 1024;
const WINDOW: Duration = Duration::from_millis(1500);
/// How far a part may be from what is due: room comes a region at a time.
const SLACK: f64 = 0.08;

fn site() -> Site {
    Site::new(|config| {
        let behind = config.store.with_file_name("behind");
        std::fs::create_dir(&behind).unwrap();
        (config.capacity, config.region) = (Bytes::mib(32), Some(Bytes::mib(1)));
        (config.medium, config.device_rate) = (Medium::Memory, None);
        config.backend = Some(format!("dir:{}", behind.display()));
        config.drain.rate = Some(Bytes::mib(24));
        config.policy = "size-fair".parse().unwrap();
    })
}

/// Has a job write new bytes for as long as it may.
fn write(client: &Client, label: &str, go_on: &Arc<AtomicBool>, tasks: &mut JoinSet<()>) {
    for number in 0..FILES {
        let (client, go_on, label) = (client.clone(), go_on.clone(), label.to_owned());
        tasks.spawn(async move {
            let bytes = vec![7; PIECE];
            for lap in 0.. {
                let name = format!("/{label}-{number}-{lap}");
                let file = client.open(name, OpenOptions::CREATE).await.unwrap();
                for piece in 0..PIECES {
                    if !go_on.load(Ordering::Relaxed) {
                        return;
                    }
                    file.pwrite((piece * PIECE) as u64, &bytes).await.unwrap();
                }
                file.close().await.unwrap();
            }
        });
    }
}

fn rings(site: &Site) -> usize {
    let list = std::fs::read_dir(site.store().join("regions")).unwrap();
    list.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("ring".as_ref())).count()
}

/// What the drain lets out is shared by the policy, though nobody asks before he writes. Whatever else runs on the machine
/// drives shares apart: one good window of several counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_that_write_by_shared_memory_share_the_room_that_the_drain_makes() {
    let site = site();
    let observer = site.observer().await;
    let (go_on, mut tasks) = (Arc::new(AtomicBool::new(true)), JoinSet::new());
    let (large, small) = (job("1 ada astro 3"), job("2 bob bio 1"));
    for job in [&large, &small] {
        write(&site.client(job).await, &job.label, &go_on, &mut tasks);
    }
    let mut seen: Vec<[f64; 2]> = Vec::new();
    let is_good = |got: &[f64; 2]| (got[0] - 0.75).abs() <= SLACK && (got[1] - 0.25).abs() <= SLACK;
    while seen.len() < 10 && !seen.last().is_some_and(is_good) {
        let got = parts(&[&observer], WINDOW).await.0;
        let part = |id: JobId| got.get(&id).copied().unwrap_or(0.0);
        seen.push([part(large.id()), part(small.id())]);
    }
    assert!(rings(&site) >= 2 * FILES, "they write by rings");
    let status = observer.status().await.unwrap();
    go_on.store(false, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert!(status.damage.is_empty(), "{:?}", status.damage);
    assert!(seen.last().is_some_and(is_good), "due 0.75 and 0.25, got {seen:?}");
}
