//! Restarts of a server that clients are using.

use super::world::{By, World, pattern};
use forebay_client::{ClientConfig, OpenOptions};
use forebay_testkit::Seeded;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_files_survive_server_restarts() {
    for by in [By::Unix, By::Tcp] {
        let mut world = World::new(32);
        let client = world.client(by).await;
        let file = client.open("/f", OpenOptions::CREATE).await.unwrap();
        let nameless = client.open("/gone", OpenOptions::CREATE).await.unwrap();
        file.pwrite(0, &pattern(1, 5000)).await.unwrap();
        nameless.pwrite(0, &pattern(2, 5000)).await.unwrap();
        client.unlink("/gone").await.unwrap();
        for round in 1..4_u64 {
            world.restart().await;
            file.pwrite(round * 5000, &pattern(1, 5000)).await.unwrap();
            let mut back = vec![0; 5000];
            assert_eq!(
                nameless.pread(0, &mut back).await.unwrap(),
                5000,
                "a file without a name is kept while open"
            );
            assert!(back == pattern(2, 5000));
            assert_eq!(file.append(b"x").await.unwrap(), (round + 1) * 5000);
            file.truncate((round + 1) * 5000).await.unwrap();
        }
        assert_eq!(client.stat("/f").await.unwrap().size, 20_000);
        file.close().await.unwrap();
        nameless.close().await.unwrap();
        let opens = client.status().await.unwrap().opens;
        assert!(
            opens <= 1,
            "the server itself may hold the file without a name for a while, and no other: {opens}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_survive_server_restarts_without_errors() {
    let mut world = World::new(64);
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..4_u64 {
        let client = world.client(if number % 2 == 0 { By::Unix } else { By::Tcp }).await;
        let stop = stop.clone();
        tasks.spawn(async move {
            let path = format!("/w{number}");
            let file = client.open(&path, OpenOptions::CREATE).await.unwrap();
            let mut rounds = 0_u64;
            while !stop.load(Ordering::Relaxed) || rounds < 20 {
                let data = pattern(number * 1000 + rounds, 300_000);
                file.pwrite((rounds % 8) * 300_000, &data).await.unwrap();
                let mut back = vec![0; data.len()];
                assert_eq!(file.pread((rounds % 8) * 300_000, &mut back).await.unwrap(), data.len());
                assert!(back == data, "{path}, round {rounds}");
                client.stat(&path).await.unwrap();
                rounds += 1;
            }
            file.close().await.unwrap();
        });
    }
    let mut rng = Seeded::new().rng(0);
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_millis(30 + rng.below(60))).await;
        world.restart().await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_fail_when_the_server_stays_down() {
    let mut world = World::new(32);
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..world.client_config(By::Unix) };
    let client = forebay_client::Client::connect(config).await.unwrap();
    let file = client.open("/f", OpenOptions::CREATE).await.unwrap();
    tokio::task::block_in_place(|| world.stop());
    for error in [client.stat("/f").await.map(drop).unwrap_err(), file.pwrite(0, b"x").await.unwrap_err()] {
        assert!(error.kind().is_no_answer(), "{error}");
    }
}
