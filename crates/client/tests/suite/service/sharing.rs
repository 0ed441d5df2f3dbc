//! Several clients that share a file.

use super::world::{By, World, pattern};
use forebay_client::{Client, OpenOptions};
use forebay_server::{Mode, Routing};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_appends_are_atomic_and_ordered_per_client() {
    const RECORD: usize = 3000;
    const EACH: usize = 40;
    let world = World::new(64);
    let mut tasks = JoinSet::new();
    for number in 0..6_u8 {
        let client = world.client(if number % 2 == 0 { By::Unix } else { By::Tcp }).await;
        tasks.spawn(async move {
            let file = client.open("/log", OpenOptions::APPEND).await.unwrap();
            for index in 0..EACH {
                let mut record = vec![number; RECORD];
                record[1] = index as u8;
                let at = file.append(&record).await.unwrap();
                assert_eq!(at % RECORD as u64, 0, "appends are never torn");
            }
            file.close().await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let client = world.client(By::Unix).await;
    let file = client.open("/log", OpenOptions::READ).await.unwrap();
    let mut all = vec![0; 6 * EACH * RECORD + 1];
    assert_eq!(file.pread(0, &mut all).await.unwrap(), 6 * EACH * RECORD);
    let mut seen = [0_u8; 6];
    for record in all[..6 * EACH * RECORD].chunks(RECORD) {
        let (number, index) = (record[0] as usize, record[1]);
        assert!(record[2..].iter().all(|&byte| byte == record[0]));
        assert_eq!(index, seen[number], "each client's records are in its own order");
        seen[number] += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disjoint_writers_and_readers_share_one_file() {
    const PART: usize = 700_001;
    let world = World::new(64);
    let first = world.client(By::Tcp).await;
    let file = Arc::new(first.open("/shared", OpenOptions::CREATE).await.unwrap());
    let data = Arc::new(pattern(1, 16 * PART));
    let mut tasks = JoinSet::new();
    for part in 0..16 {
        let (file, data) = (file.clone(), data.clone());
        tasks.spawn(async move {
            let start = part * PART;
            file.pwrite(start as u64, &data[start..start + PART]).await.unwrap();
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let second = world.client(By::Unix).await;
    let file = second.open("/shared", OpenOptions::READ).await.unwrap();
    let mut back = vec![0; data.len()];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), data.len());
    assert!(back == *data);
}

/// Number of rings that a server has granted.
fn rings(store: &Path) -> usize {
    let is_ring = |name: String| name.ends_with(".ring");
    let names = std::fs::read_dir(store.join("regions")).unwrap();
    names.filter(|entry| is_ring(entry.as_ref().unwrap().file_name().into_string().unwrap())).count()
}

async fn direct(client: &Client) -> u64 {
    client.status().await.unwrap().route.unwrap().direct
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rings_are_granted_and_voided_with_the_write_route() {
    const PIECE: usize = 256 << 10;
    let world = World::with(64, |dir, config| {
        std::fs::create_dir(dir.join("backend")).unwrap();
        config.backend = Some(format!("dir:{}", dir.join("backend").display()));
        config.route = Routing { mode: Mode::Direct, ..Routing::default() };
    });
    let client = world.client(By::Unix).await;
    let file = client.open("/f", OpenOptions::CREATE).await.unwrap();
    let mut number = 0;
    let mut write = async || {
        file.pwrite(number * PIECE as u64, &pattern(number, PIECE)).await.unwrap();
        number += 1;
    };
    write().await;
    assert_eq!((rings(world.store()), direct(&client).await), (0, PIECE as u64));
    client.set_route("buffer").await.unwrap();
    let begin = Instant::now();
    while rings(world.store()) == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the client never gets a ring");
        write().await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The file's ring and slabs are void from now on.
    client.set_route("direct").await.unwrap();
    let before = direct(&client).await;
    write().await;
    assert_eq!(direct(&client).await - before, PIECE as u64);
    let all: Vec<u8> = (0..number).flat_map(|number| pattern(number, PIECE)).collect();
    let mut back = vec![0; all.len()];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), all.len());
    assert!(back == all);
}
