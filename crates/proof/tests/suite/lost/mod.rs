//! Servers that are down, and lost stores and writers: losses are reported, and everything else works.

mod names;

use forebay_client::blocking::{Client, File};
use forebay_client::{ClientConfig, Listing, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind, FileId, ServerId, Striping};
use forebay_proof::{By, Fleet, Plan, Rng, Seeded, drain, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::{until, until_equal};
use forebay_wire::{Lost, RenameMode};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITER: &str = env!("CARGO_BIN_EXE_forebay-proof-writer");
const STRIPE: u64 = 64 << 10;
const PIECE: u64 = 10_007;

fn plan() -> Plan {
    Plan::new(Medium::Disk, Bytes::mib(64), Bytes::mib(4))
}

fn impatient(fleet: &Fleet, server: u64, by: By) -> Client {
    let config = fleet.hosts[server as usize].client_config(by);
    let (request_timeout, connect_timeout) = (Duration::from_secs(4), Duration::from_secs(20));
    Client::connect(ClientConfig { request_timeout, connect_timeout, ..config }).expect("client connected")
}

/// Files in `/plain`, each on one server, and in `/striped`, over all servers; with their seeds.
fn populate(client: &Client) -> Vec<(String, u64)> {
    let striping = [
        ("/plain", Striping { width: 1, stripe: STRIPE }),
        ("/striped", Striping { width: 0, stripe: STRIPE }),
    ];
    let mut files = Vec::new();
    for (dir, striping) in striping {
        client.mkdir(dir, 0o755).unwrap();
        client.set_layout(dir, Some(striping)).unwrap();
        for number in 0..12 {
            let path = format!("{dir}/f{number}");
            let file = client.open(&path, OpenOptions::CREATE_NEW).unwrap();
            file.pwrite(0, &pattern(number, 5 * STRIPE as usize)).unwrap();
            file.close().unwrap();
            files.push((path, number));
        }
    }
    files
}

/// The contents of a file.
fn content(client: &Client, path: &str) -> Vec<u8> {
    let file = client.open(path, OpenOptions::READ).unwrap();
    let mut bytes = vec![0; file.stat().unwrap().size as usize];
    assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len(), "{path}");
    bytes
}

#[test]
fn server_that_is_down_is_named_and_the_rest_works() {
    let mut fleet = Fleet::new(PROGRAM, 3, plan());
    let patient = fleet.client(0, By::Unix);
    let files = populate(&patient);
    let client = impatient(&fleet, 0, By::Unix);
    let open: Vec<_> = files.iter().map(|(path, _)| client.open(path, OpenOptions::WRITE).unwrap()).collect();
    fleet.host(3).kill();
    let (mut worked, mut failed) = (0, 0);
    for ((path, number), file) in files.iter().zip(&open) {
        let mut bytes = vec![0; STRIPE as usize];
        for stripe in 0..5 {
            match file.pread(stripe * STRIPE, &mut bytes) {
                Ok(len) => {
                    let from = (stripe * STRIPE) as usize;
                    assert!(
                        bytes[..len] == pattern(*number, 5 * STRIPE as usize)[from..from + len],
                        "{path}"
                    );
                    worked += 1;
                }
                Err(error) => {
                    assert!(error.kind().is_no_answer(), "{error}");
                    assert!(error.to_string().contains("server 3"), "{error}");
                    failed += 1;
                }
            }
            if failed > 2 {
                break;
            }
        }
    }
    assert!(worked > 10 && failed > 0, "{worked} {failed}");
    let listed = client.read_dir("/plain", Listing::Names).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    assert!(listed.unwrap_err().to_string().contains("server 3"));
    assert!(client.statfs().unwrap().capacity > 0, "the other servers report their usage");
    let statuses = client.statuses().unwrap();
    let away: Vec<u16> =
        statuses.iter().filter(|(_, status)| status.is_err()).map(|(server, _)| server.0).collect();
    assert_eq!(away, [3]);
    fleet.host(3).start();
    for ((path, number), file) in files.iter().zip(&open) {
        let mut bytes = vec![0; 5 * STRIPE as usize];
        let len = file.pread(0, &mut bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(
            bytes[..len] == pattern(*number, bytes.len()),
            "{path}: the open file works after the restart"
        );
    }
    drop((open, client, patient));
    fleet.check();
}

#[test]
fn bytes_of_a_killed_writer_are_all_visible() {
    killed_writers(plan());
}

#[test]
fn bytes_of_a_killed_writer_are_all_drained() {
    killed_writers(Plan { has_backend: true, ..plan() });
}

fn killed_writers(plan: Plan) {
    let before = plan.has_backend;
    let plan = Plan { session: Duration::from_millis(700), ..plan };
    let mut fleet = Fleet::new(PROGRAM, 3, plan);
    let client = fleet.client(0, By::Unix);
    client.mkdir("/d", 0o755).unwrap();
    client.set_layout("/d", Some(Striping { width: 0, stripe: 64 << 10 })).unwrap();
    // Each writer with a server that is killed meanwhile, or none.
    for (number, by, killed) in
        [(0, By::Unix, None), (1, By::Tcp, None), (2, By::Unix, Some(1)), (3, By::Tcp, Some(3))]
    {
        let path = format!("/d/w{number}");
        let config = fleet.hosts[1].client_config(by);
        let key = fleet.hosts[1].key();
        let mut writer = Command::new(WRITER)
            .args([&config.addresses.to_string(), &key.display().to_string(), &path])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reported = BufReader::new(writer.stdout.take().unwrap()).lines();
        if let Some(server) = killed {
            reported.nth(20).unwrap().unwrap();
            fleet.host(server).kill();
            fleet.host(server).start();
        }
        let end: u64 = reported.take(60).last().unwrap().unwrap().trim_start().parse().unwrap();
        writer.kill().unwrap();
        writer.wait().unwrap();
        let verify = || {
            let size = client.stat(&path).unwrap().size;
            assert!(size >= end, "{path} has {size} bytes, and {end} were acknowledged");
            let file = client.open(&path, OpenOptions::READ).unwrap();
            let mut bytes = vec![0; end as usize];
            assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len());
            for offset in (0..end).step_by(PIECE as usize) {
                let piece = &bytes[offset as usize..(offset + PIECE) as usize];
                assert!(piece == pattern(offset, PIECE as usize), "{path} at {offset}");
            }
            size
        };
        verify();
        // Writes that it sent before it died may still be applied. Its session ends, and its file's size is persisted;
        // then every server loses what it had in memory.
        until("the writer's session ends", || {
            client.statuses().unwrap().into_iter().all(|(_, status)| status.is_ok_and(|seen| seen.opens == 0))
        });
        let size = verify();
        fleet.stop_all();
        fleet.start_all();
        assert_eq!(verify(), size);
        if before {
            drain(&client);
            let backing_dir = std::fs::read(fleet.backing_dir().join(&path[1..])).unwrap();
            assert_eq!(backing_dir.len() as u64, size, "{path} in the back end");
            for (number, piece) in backing_dir[..end as usize].chunks(PIECE as usize).enumerate() {
                assert!(
                    piece == pattern(number as u64 * PIECE, piece.len()),
                    "{path} in the back end, piece {number}"
                );
            }
            assert_eq!(client.stat(&path).unwrap().buffered, 0);
            assert_eq!(verify(), size, "read from the back end");
        }
    }
    drop(client);
    fleet.check();
}

#[test]
fn failed_size_change_takes_effect_on_no_server() {
    let mut fleet = Fleet::new(PROGRAM, 3, plan());
    let patient = fleet.client(0, By::Unix);
    populate(&patient);
    let whole = pattern(0, 5 * STRIPE as usize);
    // A file of server 1, so that all servers but one of its holders are up.
    let ours = |path: &String| patient.stat(path).unwrap().id.maker() == ServerId(1);
    let path = (0..12).map(|number| format!("/striped/f{number}")).find(ours).expect("a file of server 1");
    let file = patient.open(&path, OpenOptions::WRITE).unwrap();
    file.pwrite(0, &whole).unwrap();
    let client = impatient(&fleet, 0, By::Unix);
    let open = client.open(&path, OpenOptions::WRITE).unwrap();
    fleet.host(3).kill();
    for failed in [open.truncate(10), open.punch(100, 4 * STRIPE), client.truncate(&path, 10)] {
        assert!(failed.unwrap_err().kind().is_no_answer());
    }
    fleet.host(3).start();
    assert!(content(&patient, &path) == whole, "no part of a failed change is visible");
    file.truncate(3 * STRIPE + 5).unwrap();
    assert!(content(&patient, &path) == whole[..3 * STRIPE as usize + 5]);
    file.truncate(0).unwrap();
    file.append(&whole).unwrap();
    assert!(content(&patient, &path) == whole);
    drop((file, open, client, patient));
    fleet.check();
}

/// A change of a whole striped file, and the possible states after an interruption.
fn change(rng: &mut Rng, file: &File, before: &[u8]) -> (Result<(), Error>, Vec<Vec<u8>>) {
    let offset = rng.below(before.len() as u64 + STRIPE);
    let mut after = before.to_vec();
    match rng.below(3) {
        0 => {
            after.resize(offset as usize, 0);
            (file.truncate(offset), vec![after])
        }
        1 => {
            let end = after.len();
            after[end.min(offset as usize)..].fill(0);
            (file.punch(offset, 9 * STRIPE), vec![after])
        }
        _ => {
            let more = pattern(rng.next(), rng.below(3 * STRIPE) as usize + 1);
            after.extend(&more);
            // A prefix that ends at a stripe boundary.
            let stripes = (before.len()..after.len()).filter(|end| end.is_multiple_of(STRIPE as usize));
            let prefixes = stripes.map(|end| after[..end].to_vec()).collect::<Vec<_>>();
            (file.append(&more).map(drop), [vec![after], prefixes].concat())
        }
    }
}

#[test]
fn random_changes_of_a_striped_file_are_atomic_through_kills() {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(5600);
    let mut fleet = Fleet::new(PROGRAM, 3, plan());
    let reader = fleet.client(0, By::Unix);
    populate(&reader);
    let mut reported = 0;
    for round in rounds(12) {
        let path = format!("/striped/f{}", round % 12);
        let read = || {
            let file = reader.open(&path, OpenOptions::READ).unwrap();
            let mut bytes = vec![0; file.stat().unwrap().size as usize];
            assert_eq!(file.pread(0, &mut bytes).unwrap(), bytes.len(), "{path}");
            bytes
        };
        let before = read();
        // A client that gives up and does not retry.
        let client = impatient(&fleet, round % 3, By::turn(round));
        let file = client.open(&path, OpenOptions::WRITE).unwrap();
        let delay = Duration::from_micros(rng.below(4000));
        let mut author = seeded.rng(5700 + round);
        let (done, after) = fleet.any(&mut rng).killed_within(delay, || change(&mut author, &file, &before));
        drop((file, client));
        // The abandoned change may still be in progress; the state advances from the old to the new one, never back.
        let (full, prefixes) = after.split_first().expect("a state");
        let states: Vec<&Vec<u8>> = [&before].into_iter().chain(prefixes).chain([full]).collect();
        let at = |seen: &Vec<u8>| states.iter().rposition(|state| *state == seen);
        let seen = read();
        let first = at(&seen);
        match done {
            Ok(()) => {
                reported += 1;
                assert!(seen == *full, "{path}: the change was acknowledged");
            }
            Err(error) => assert!(first.is_some(), "{path}: an impossible state after {error}"),
        }
        assert!(at(&read()) >= first, "{path}: the state went back");
    }
    assert!(reported > 0, "no change was acknowledged");
    drop(reader);
    fleet.check();
}

#[test]
fn wiped_store_is_never_mistaken_for_empty_files() {
    let mut fleet = Fleet::new(PROGRAM, 3, plan());
    let client = fleet.client(0, By::Unix);
    let files = populate(&client);
    // Ids and layouts of the files.
    let facts: Vec<(String, u64, FileId, Vec<ServerId>)> = files
        .into_iter()
        .map(|(path, number)| {
            let attr = client.stat(&path).unwrap();
            let (_, layout) = client.layout(&path).unwrap();
            (path, number, attr.id, layout.unwrap().servers)
        })
        .collect();
    let lost = ServerId(2);
    assert!(facts.iter().any(|(_, _, file, _)| file.maker() == lost));
    fleet.lose_store(lost);
    let before = impatient(&fleet, 0, By::Unix);
    fleet.host(2).begin();
    let ready = fleet.host(2).await_ready();
    for (path, ..) in facts.iter().filter(|(_, _, file, _)| file.maker() == lost).take(2) {
        let error = before.stat(path).unwrap_err();
        assert!(
            error.kind() == ErrorKind::Io || error.kind().is_no_answer(),
            "{path}: an empty store does not join silently: {error} ({ready:?})"
        );
    }
    let client = fleet.replace(lost);
    check_damage(&client, &facts, lost);
    for number in 0..30 {
        let path = format!("/new{number}");
        client.open(&path, OpenOptions::CREATE_NEW).unwrap().pwrite(0, &pattern(number, 1000)).unwrap();
        assert_eq!(client.stat(&path).unwrap().size, 1000);
    }
}

#[test]
fn drained_data_survives_the_loss_of_a_store() {
    let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, ..plan() });
    let client = fleet.client(0, By::Unix);
    let files = populate(&client);
    drain(&client);
    // A drained file with new data.
    let (fresh, number) = &files[20];
    let file = client.open(fresh, OpenOptions::WRITE).unwrap();
    file.pwrite(0, &pattern(99, 5 * STRIPE as usize)).unwrap();
    file.close().unwrap();
    let servers = client.layout(fresh).unwrap().1.unwrap().servers;
    let gone = ServerId(3);
    fleet.lose_store(gone);
    fleet.host(3).begin();
    fleet.host(3).await_ready().ok();
    let client = fleet.replace(gone);
    let bytes = Lost::Bytes { count: share(&servers, gone), open: false };
    await_lost(&client, &BTreeMap::from([(fresh.clone(), (gone, bytes))]));
    for (path, number) in files.iter().filter(|(path, _)| path != fresh) {
        assert!(content(&client, path) == pattern(*number, 5 * STRIPE as usize), "{path}");
    }
    let file = client.open(fresh, OpenOptions::READ).unwrap();
    let mut piece = vec![0; STRIPE as usize];
    for stripe in 0..5_u64 {
        match (file.pread(stripe * STRIPE, &mut piece), servers[stripe as usize % servers.len()] == gone) {
            (Err(error), true) => assert_eq!(error.kind(), ErrorKind::Io, "{error}"),
            (Ok(_), false) => {
                let from = (stripe * STRIPE) as usize;
                assert!(piece == pattern(99, 5 * STRIPE as usize)[from..from + piece.len()]);
            }
            (read, lost) => panic!("stripe {stripe} of file {number}: {read:?}, and it is lost: {lost}"),
        }
    }
    // The others still behave as one file: written, truncated and drained again.
    let (path, number) =
        files.iter().find(|(path, _)| path.starts_with("/striped") && path != fresh).unwrap();
    let file = client.open(path, OpenOptions::WRITE).unwrap();
    file.pwrite(1000, b"something new").unwrap();
    file.truncate(4 * STRIPE).unwrap();
    file.close().unwrap();
    let mut whole = pattern(*number, 4 * STRIPE as usize);
    whole[1000..1013].copy_from_slice(b"something new");
    assert!(content(&client, path) == whole);
    client.unlink(fresh).unwrap();
    drain(&client);
    assert!(std::fs::read(fleet.backing_dir().join(&path[1..])).unwrap() == whole);
}

/// The server with the names does not know what is open when it starts: drained data is not lost for that.
#[test]
fn drained_files_open_at_a_restart_survive_the_loss_of_a_store() {
    let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, ..plan() });
    let client = fleet.client(0, By::Unix);
    let files = populate(&client);
    let fresh = |number: u64| pattern(number, 5 * STRIPE as usize);
    let write = |file: &File, number| file.pwrite(0, &fresh(number)).unwrap();
    let mut open: Vec<File> =
        files.iter().map(|(path, _)| client.open(path, OpenOptions::WRITE).unwrap()).collect();
    open.iter().zip(&files).for_each(|(file, (_, number))| write(file, number + 50));
    fleet.host(1).kill();
    fleet.host(1).start();
    let kept = open.split_off(open.len() - 3);
    open.into_iter().for_each(|file| file.close().unwrap());
    drain(&client);
    // Clients with open files continue, and others see their writes.
    let other = fleet.client(1, By::Tcp);
    for (file, (path, number)) in kept.into_iter().zip(&files[files.len() - 3..]) {
        write(&file, number + 80);
        file.truncate(4 * STRIPE).unwrap();
        file.pwrite(4 * STRIPE, &fresh(number + 80)[4 * STRIPE as usize..]).unwrap();
        let seen = other.open(path, OpenOptions::READ).unwrap();
        let mut bytes = vec![0; 6 * STRIPE as usize];
        let count = seen.pread(0, &mut bytes).unwrap();
        assert!(bytes[..count] == fresh(number + 80), "{path}: {count} bytes");
        seen.close().unwrap();
        file.close().unwrap();
    }
    drain(&client);
    fleet.lose_store(ServerId(3));
    let client = fleet.replace(ServerId(3));
    for (index, (path, number)) in files.iter().enumerate() {
        let shift = if index < files.len() - 3 { 50 } else { 80 };
        assert!(content(&client, path) == fresh(number + shift), "{path}");
    }
    assert_eq!(lost(&client), BTreeMap::new());
}

/// All losses that the servers report, with the server that lost them; by path, or by file id and what is known of its
/// location.
fn lost(client: &Client) -> BTreeMap<String, (ServerId, Lost)> {
    let mut all = BTreeMap::new();
    for (reporter, status) in client.statuses().unwrap() {
        let losses = client.losses(reporter).unwrap();
        assert_eq!(losses.more, 0);
        assert!(status.unwrap().damage.iter().all(|sentence| sentence.contains("earlier store")));
        for loss in losses.list {
            let above = loss.above.map(|above| String::from_utf8(above).unwrap());
            let label = match (above, loss.name) {
                (Some(above), Some(name)) => format!("{above}/{}", String::from_utf8_lossy(name.as_bytes())),
                (Some(above), None) => format!("{above}/#{}", loss.file),
                (None, _) => format!("#{} on {reporter}", loss.file),
            };
            let twice = all.insert(label.clone(), (loss.server.expect("server of the loss"), loss.what));
            assert_eq!(twice, None, "{label}");
        }
    }
    all
}

/// Bytes of a striped file of five stripes on a server.
fn share(servers: &[ServerId], server: ServerId) -> u64 {
    (0..5).filter(|stripe| servers[stripe % servers.len()] == server).count() as u64 * STRIPE
}

fn check_damage(client: &Client, facts: &[(String, u64, FileId, Vec<ServerId>)], lost: ServerId) {
    let mut expected = BTreeMap::new();
    for (path, file, servers) in facts.iter().map(|(path, _, file, servers)| (path, *file, servers)) {
        if file.maker() != lost && servers.contains(&lost) {
            let count = share(servers, lost);
            expected.insert(path.clone(), (lost, Lost::Bytes { count, open: false }));
        }
        if file.maker() == lost {
            let rest = servers.iter().filter(|&&server| server != lost);
            expected.extend(rest.map(|&server| {
                (format!("#{file} on {server}"), (lost, Lost::Rest { bytes: share(servers, server) }))
            }));
        }
    }
    // Every server reports its losses after it has contacted the new store.
    await_lost(client, &expected);
    for (path, number, file, servers) in facts {
        if file.maker() == lost {
            let error = client.stat(path).map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{path}: {error}");
            continue;
        }
        let file = client.open(path, OpenOptions::READ).unwrap_or_else(|error| panic!("{path}: {error}"));
        let expected = pattern(*number, 5 * STRIPE as usize);
        for stripe in 0..5 {
            let from = stripe * STRIPE as usize;
            let mut bytes = vec![0; STRIPE as usize];
            let read = file.pread(from as u64, &mut bytes);
            match servers[stripe % servers.len()] == lost {
                true => assert_eq!(read.unwrap_err().kind(), ErrorKind::Io, "{path}, stripe {stripe}"),
                false => {
                    assert_eq!(
                        read.unwrap_or_else(|error| panic!("{path}, stripe {stripe}: {error}")),
                        bytes.len()
                    );
                    assert!(bytes == expected[from..from + bytes.len()], "{path}, stripe {stripe}");
                }
            }
        }
    }
    heal(client, expected);
}

fn await_lost(client: &Client, expected: &BTreeMap<String, (ServerId, Lost)>) {
    until_equal("what is lost", expected, || lost(client));
}

/// A rewritten, truncated or removed file is no longer lost.
fn heal(client: &Client, mut lost: BTreeMap<String, (ServerId, Lost)>) {
    let harmed = lost.iter().filter(|(_, (_, what))| matches!(what, Lost::Bytes { .. }));
    let mut paths: Vec<String> = harmed.map(|(path, _)| path.clone()).collect();
    assert!(paths.len() >= 4);
    let mut next = || paths.pop().expect("enough paths");
    let (rewritten, truncated, removed) = (next(), next(), next());
    let file = client.open(&rewritten, OpenOptions::WRITE).unwrap();
    file.pwrite(0, &pattern(77, 5 * STRIPE as usize)).unwrap();
    file.close().unwrap();
    client.truncate(&truncated, 0).unwrap();
    client.unlink(&removed).unwrap();
    for path in [rewritten, truncated, removed] {
        lost.remove(&path);
    }
    await_lost(client, &lost);
    client.rename(&paths[0], "/moved", RenameMode::Replace).unwrap();
    let moved = lost.remove(&paths[0]).expect("listed loss");
    lost.insert("/moved".to_owned(), moved);
    await_lost(client, &lost);
}
