//! 100,000 files of one directory over four servers, counted in the servers' stores.

use forebay_client::OpenOptions;
use forebay_model::{Bytes, FileId, Result, ServerId};
use forebay_proof::{By, Fleet, Plan};
use forebay_server::Medium;
use forebay_store::{FjallKv, Names};
use std::ops::ControlFlow;
use std::sync::Arc;
use tokio::task::JoinSet;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const SERVERS: u16 = 4;
const FILES: u64 = 100_000;
/// Files that are created concurrently.
const TASKS: u64 = 128;

#[test]
fn hundred_thousand_files_are_spread_evenly_over_the_stores() {
    let mut fleet = Fleet::new(PROGRAM, SERVERS, Plan::new(Medium::Memory, Bytes::mib(16), Bytes::mib(1)));
    let client = fleet.client(0, By::Unix);
    let dir = client.mkdir("/many", 0o755).unwrap().id;
    let making = async {
        let mut tasks: JoinSet<Result<()>> = JoinSet::new();
        for task in 0..TASKS {
            let client = client.inner().clone();
            tasks.spawn(async move {
                for number in (task..FILES).step_by(TASKS as usize) {
                    client
                        .open(format!("/many/rank.{number:06}"), OpenOptions::CREATE_NEW)
                        .await?
                        .close()
                        .await?;
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.expect("no panic")?;
        }
        Ok(())
    };
    client.wait(making).unwrap();
    drop(client);
    fleet.stop_all();
    let (mut entries, mut inodes) = (Vec::new(), Vec::new());
    for (host, number) in fleet.hosts.iter().zip(1..) {
        let kv = FjallKv::open(&host.store().join("meta"), Bytes::mib(16)).unwrap();
        let names = Names::open(Arc::new(kv), ServerId(number)).unwrap();
        let mut count = 0;
        names
            .each_entry(&mut |at: FileId, _, _| {
                count += u64::from(at == dir);
                ControlFlow::Continue(())
            })
            .unwrap();
        entries.push(count);
        inodes.push(names.count());
    }
    assert_eq!(entries.iter().sum::<u64>(), FILES, "{entries:?}");
    // The root and the directory count too.
    assert_eq!(inodes.iter().sum::<u64>(), FILES + 2, "{inodes:?}");
    let even = FILES / u64::from(SERVERS);
    for count in entries.iter().chain(&inodes) {
        assert!(
            count.abs_diff(even) * 20 <= even,
            "{entries:?} names and {inodes:?} files, expected {even} each"
        );
    }
}
