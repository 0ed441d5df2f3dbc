//! 200 connections at once, and clients that stall in mid-payload.

use forebay_client::{Client, OpenOptions};
use forebay_model::{Access, Bytes, FileId};
use forebay_proof::{By, Host, Plan, Raw, Rng, Seeded, name, pattern};
use forebay_server::Medium;
use forebay_wire::{At, Call, Channel, FrameKind, IfExists, Reply, Request, frame};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const CAPACITY: u64 = 256;

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Mixed work of one client; every answer is checked and counted.
async fn work(client: Client, number: u64, mut rng: Rng, go_on: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let dir = format!("/l{number}");
    client.mkdir(&dir, 0o755).await.unwrap();
    let file = client.open(format!("{dir}/f"), OpenOptions::CREATE).await.unwrap();
    let mut model = vec![0_u8; 1 << 20];
    let mut size = 0;
    while go_on.load(Ordering::Relaxed) {
        let offset = rng.below(1 << 19) as usize;
        match rng.below(8) {
            0..3 => {
                let data = pattern(rng.next(), 1 + rng.size(1 << 19) as usize);
                file.pwrite(offset as u64, &data).await.unwrap();
                model[offset..offset + data.len()].copy_from_slice(&data);
                size = size.max(offset + data.len());
            }
            3..6 => {
                let mut back = vec![0xaa; 1 + rng.size(1 << 19) as usize];
                let count = file.pread(offset as u64, &mut back).await.unwrap();
                let start = offset.min(size);
                assert!(back[..count] == model[start..size.min(start + back.len())], "client {number}");
            }
            6 => assert_eq!(client.stat(format!("{dir}/f")).await.unwrap().size, size as u64),
            _ => {
                let path = format!("{dir}/g");
                client.open(&path, OpenOptions::CREATE_NEW).await.unwrap().close().await.unwrap();
                client.unlink(&path).await.unwrap();
            }
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    file.close().await.unwrap();
}

#[test]
#[expect(clippy::print_stderr, reason = "the measurements are a report")]
fn two_hundred_connections_are_served_for_twenty_seconds() {
    let seeded = Seeded::new();
    let host = Host::new(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(CAPACITY), Bytes::mib(4)));
    let (go_on, done) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let (mut most, before) = (0, host.meter());
    runtime().block_on(async {
        let mut tasks = JoinSet::new();
        for number in 0..100 {
            // One control connection and one data connection.
            let mut config = host.client_config(By::turn(number));
            config.data_connections = 1;
            let client = Client::connect(config).await.unwrap();
            tasks.spawn(work(client, number, seeded.rng(700 + number), go_on.clone(), done.clone()));
        }
        let observer = Client::connect(host.client_config(By::Unix)).await.unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(500)).await;
            most = most.max(observer.status().await.unwrap().connections);
        }
        go_on.store(false, Ordering::Relaxed);
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        assert_eq!(observer.status().await.unwrap().waiting, 0);
    });
    let (done, after) = (done.load(Ordering::Relaxed), host.meter());
    eprintln!("{done} rounds on {most} connections; before {before:?}, after {after:?}");
    assert!(most >= 200, "{most} connections");
    // The regions (with the cleaner's and the journals), the metadata cache and memtables, and connection buffers.
    let bound = ((CAPACITY + 4) * 33 / 32 + 64 + 128) << 10;
    assert!(after.peak < bound, "{} KiB of {bound}", after.peak);
}

const STALLED: usize = 50;

/// Raw data connections that begin a write and stall.
fn stall(host: &Host) -> Vec<Raw> {
    let mut control = Raw::unix(&host.socket(), Channel::Control, 77).unwrap();
    let create = Request::Create {
        dir: FileId::ROOT,
        name: name("stalled"),
        mode: 0o600,
        access: Access::BOTH,
        if_exists: IfExists::Open,
    };
    let Ok(Reply::Opened { token, .. }) = control.call(create) else { panic!("not opened") };
    let connections = (0..STALLED).map(|number| {
        let mut raw = Raw::unix(&host.socket(), Channel::Data, 77).unwrap();
        let call = Call { identity: None, request: Request::Write { token, at: At::Offset(0) } };
        let mut bytes = Vec::new();
        frame(&mut bytes, FrameKind::Call, 1, &call, 1 << 20).unwrap();
        // From nothing of the payload to nearly all of it.
        bytes.extend(pattern(1, number * 4000));
        raw.socket.write_all(&bytes).unwrap();
        raw
    });
    connections.collect()
}

#[test]
fn fifty_clients_stalled_in_mid_payload_do_not_affect_others() {
    let mut plan = Plan::new(Medium::Memory, Bytes::mib(96), Bytes::mib(1));
    plan.reservation = Duration::from_secs(3);
    let host = Host::new(PROGRAM, plan);
    let client = host.client(By::Tcp);
    let file = client.open("/steady", OpenOptions::CREATE).unwrap();
    let mut stalled = stall(&host);
    // Many large writes complete before the first stalled connection is closed.
    let connections = || client.status().unwrap().connections as usize;
    let mut rounds = 0;
    while connections() >= STALLED {
        let data = pattern(rounds, 1 << 20);
        file.pwrite(0, &data).unwrap();
        let mut back = vec![0; data.len()];
        file.pread(0, &mut back).unwrap();
        assert!(back == data);
        rounds += 1;
    }
    assert!(rounds > 2, "only {rounds} rounds beside the stalled clients");
    assert!(stalled.iter_mut().all(Raw::is_closed), "stalled connections time out");
    let read = client.open("/stalled", OpenOptions::READ).unwrap();
    assert_eq!(read.stat().unwrap().size, 0, "incomplete payloads are not applied");
    // The space they had reserved is free again: nearly the whole buffer can be filled.
    let whole = client.open("/whole", OpenOptions::CREATE).unwrap();
    for piece in 0..90 {
        whole.pwrite(piece << 20, &pattern(piece, 1 << 20)).unwrap();
    }
}
