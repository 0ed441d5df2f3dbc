//! A server process that is stopped for a while does not take its own pause for the silence of its clients.

use forebay_client::OpenOptions;
use forebay_client::blocking::File;
use forebay_model::Bytes;
use forebay_proof::{By, Host, Plan, Seeded, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::until;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const FILES: u64 = 12;

/// Session time and longest pause: short ones, or in a soak test the default session time and 80 s.
fn times() -> (Duration, Duration) {
    match std::env::var_os("FOREBAY_SOAK_SECONDS") {
        Some(_) => (Duration::from_secs(60), Duration::from_secs(80)),
        None => (Duration::from_secs(2), Duration::from_secs(5)),
    }
}

fn check(files: &[(File, Vec<u8>)], when: &str) {
    for (index, (file, expected)) in files.iter().enumerate() {
        let mut seen = vec![0; expected.len() + 1];
        let len = file.pread(0, &mut seen).unwrap_or_else(|error| panic!("file {index}, {when}: {error}"));
        assert!(seen[..len] == expected[..], "file {index}, {when}: {len} wrong bytes");
    }
}

#[test]
fn random_pauses_of_the_server_lose_no_unlinked_open_file() {
    let (seeded, (session, longest)) = (Seeded::new(), times());
    for round in rounds(1) {
        let plan = Plan { session, ..Plan::new(Medium::Memory, Bytes::mib(32), Bytes::mib(1)) };
        let host = Host::new(PROGRAM, plan);
        let (mut rng, clients) = (seeded.rng(round), [host.client(By::Unix), host.client(By::Tcp)]);
        let files: Vec<(File, Vec<u8>)> = (0..FILES)
            .map(|number| {
                let (client, path) = (&clients[rng.index(2)], format!("/f{number}"));
                let file = client.open(&path, OpenOptions { read: true, ..OpenOptions::CREATE }).unwrap();
                let bytes = pattern(rng.next(), 1 + rng.index(200_000));
                file.pwrite(0, &bytes).unwrap();
                client.unlink(&path).unwrap();
                (file, bytes)
            })
            .collect();
        // The second pause may begin before the first sweep after the first pause.
        host.pause(longest);
        host.pause(session + (longest - session) * rng.below(100) as u32 / 100);
        let resumed = Instant::now();
        check(&files, "after the pauses");
        while resumed.elapsed() < session * 3 / 2 {
            std::thread::sleep(session / 20);
            check(&files, "in the session period after the pauses");
        }
        let status = clients[0].statuses().unwrap().remove(0).1.unwrap();
        assert_eq!(status.usage.files, 1 + FILES, "{status:?}");
        assert!(host.log().contains("fresh session period"), "{}", host.log());
        drop(files);
        let gone = || clients[0].statuses().unwrap().remove(0).1.unwrap().usage.files == 1;
        until("closed files are removed", gone);
    }
}
