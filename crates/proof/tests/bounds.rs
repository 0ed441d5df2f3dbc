//! One hostile user at every limit beside an ordinary one: the ordinary user is never refused, and the slowdown is
//! reported.

use forebay_model::{Access, Bytes, Change, ErrorKind, FileId};
use forebay_proof::{Host, Plan, Raw, hello, is_root, name, skip};
use forebay_server::Medium;
use forebay_testkit::become_user;
use forebay_wire::{At, Channel, IfExists, Reply, Request};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const ROOT: FileId = FileId::ROOT;
const MALLORY: u32 = 6001;
const ORDINARY: u32 = 6002;

fn connect(host: &Host, channel: Channel, client: u128) -> Option<Raw> {
    let mut raw = Raw::open(&host.socket()).ok()?;
    raw.greet(&hello(channel, client), None).ok().map(|_| raw)
}

fn create(text: &str) -> Request {
    let (access, if_exists) = (Access::BOTH, IfExists::Open);
    Request::Create { dir: ROOT, name: name(text), mode: 0o600, access, if_exists }
}

/// Runs until `stop` is set, and ignores refusals.
type Attack = fn(&Host, &AtomicBool);

/// Sessions that stay open without a connection.
fn sessions(host: &Host, stop: &AtomicBool) {
    for client in (1_u128 << 64).. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut raw) = connect(host, Channel::Control, client) {
            let _ = raw.call(create("mallory"));
        }
    }
}

fn connections(host: &Host, stop: &AtomicBool) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match connect(host, Channel::Control, 1) {
            Some(raw) => held.push(raw),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

fn opens(host: &Host, stop: &AtomicBool) {
    let Some(mut raw) = connect(host, Channel::Control, 2) else { return };
    while !stop.load(Ordering::Relaxed) {
        let _ = raw.call(create("mallory"));
    }
}

/// Listings that are never read, on many connections.
fn unread(host: &Host, stop: &AtomicBool) {
    let Some(mut raw) = connect(host, Channel::Control, 3) else { return };
    let Ok(Reply::Found(dir)) = raw.call(Request::Walk { dir: ROOT, path: b"large".to_vec(), follow: true })
    else {
        return;
    };
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        if held.len() == 64 {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let Some(mut raw) = connect(host, Channel::Control, 3) else { continue };
        for _ in 0..64 {
            let list = Request::ReadDir { dir: dir.id, cookie: 1, limit: 1024, plus: true };
            if raw.send(list, &[]).is_err() {
                break;
            }
        }
        held.push(raw);
    }
}

/// Many equal requests on some connections, with the answers read.
fn flood(host: &Host, stop: &AtomicBool, request: impl Fn(FileId, u64) -> Request + Sync) {
    std::thread::scope(|scope| {
        for worker in 0..4_u64 {
            let request = &request;
            scope.spawn(move || {
                let Some(mut raw) = connect(host, Channel::Control, 4) else { return };
                let Ok(Reply::Opened { token, .. }) = raw.call(create("flooded")) else { return };
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let sent =
                        (0..32).take_while(|_| raw.send(request(token.file, round + worker), &[]).is_ok());
                    for _ in 0..sent.count() {
                        if raw.receive().is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
}

fn syncs(host: &Host, stop: &AtomicBool) {
    flood(host, stop, |_, _| Request::SyncAll);
}

fn changes(host: &Host, stop: &AtomicBool) {
    flood(host, stop, |_, round| Request::MakeDir {
        dir: ROOT,
        name: name(&format!("m{round}")),
        mode: 0o700,
    });
}

fn silent(host: &Host, stop: &AtomicBool) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match TcpStream::connect(host.tcp()) {
            Ok(stream) if held.len() < 4000 => held.push(stream),
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The work of the ordinary user, each step of which has to succeed; returns the time of each round.
fn work(host: &Host, time: Duration) -> Vec<Duration> {
    let mut control = connect(host, Channel::Control, 9).expect("the ordinary user connects");
    let mut data = connect(host, Channel::Data, 9).expect("the ordinary user connects");
    let (mut rounds, begin) = (Vec::new(), Instant::now());
    while rounds.is_empty() || begin.elapsed() < time {
        let start = Instant::now();
        let Ok(Reply::Opened { token, .. }) = control.call(create("quiet")) else {
            panic!("the ordinary user cannot create a file")
        };
        data.write(token, At::Offset(0), &[7; 4096]).expect("written");
        for request in [
            Request::GetAttr { file: token.file },
            Request::Sync { token },
            Request::Close { token },
            Request::Unlink { dir: ROOT, name: name("quiet") },
        ] {
            let shown = format!("{request:?}");
            let answer = control.call(request);
            assert!(answer.is_ok(), "the ordinary user is refused {shown}: {answer:?}");
        }
        rounds.push(start.elapsed());
    }
    rounds
}

/// The 99th percentile.
fn p99(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[(rounds.len() * 99).div_ceil(100) - 1]
}

/// A server with a large directory that both users may read.
fn host() -> Host {
    let mut plan = Plan::new(Medium::Memory, Bytes::mib(64), Bytes::mib(1));
    // With a back end every request is deferred, and its answer waits in memory.
    plan.has_backend = true;
    let host = Host::new(PROGRAM, plan);
    std::fs::set_permissions(host.dir(), PermissionsExt::from_mode(0o755)).expect("permissions set");
    let mut root = Raw::unix(&host.socket(), Channel::Control, 1).expect("connected");
    let change = Change { mode: Some(0o1777), ..Change::default() };
    root.call(Request::SetAttr { file: ROOT, change }).expect("mode changed");
    let large = root.make_dir(ROOT, "large", 0o755);
    for number in 0..1024 {
        root.make_dir(large, &format!("{number:0>200}"), 0o755);
    }
    host
}

/// Runs an attack as the hostile user beside the ordinary one for the given time.
fn beside(host: &Host, attack: Attack, time: Duration) -> Vec<Duration> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            become_user(MALLORY);
            attack(host, stop);
        });
        let worker = scope.spawn(move || {
            become_user(ORDINARY);
            work(host, time)
        });
        let done = worker.join();
        stop.store(true, Ordering::Relaxed);
        done.expect("the ordinary user is served")
    })
}

#[test]
#[expect(clippy::print_stdout, reason = "the measurements are a report")]
fn random_attacks_of_one_user_at_every_limit_refuse_no_other() {
    let test = "random_attacks_of_one_user_at_every_limit_refuse_no_other";
    if !is_root() {
        return skip(test, "only root can act as two other users");
    }
    let seconds = std::env::var("FOREBAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let each = seconds.map_or(Duration::from_millis(500), |seconds: u64| Duration::from_secs(seconds) / 8);
    let attacks: [(&str, Attack); 7] = [
        ("sessions", sessions),
        ("connections", connections),
        ("opens", opens),
        ("unread answers", unread),
        ("syncs", syncs),
        ("changes", changes),
        ("silent TCP", silent),
    ];
    for (what, attack) in attacks {
        let host = host();
        let quiet = p99(beside(&host, |_, _| {}, each));
        let before = host.meter();
        let busy = p99(beside(&host, attack, each));
        let grown = host.meter().private.saturating_sub(before.private) >> 10;
        let ratio = busy.as_secs_f64() / quiet.as_secs_f64();
        println!("{what}: p99 {busy:?}, quiet {quiet:?}: {ratio:.1} ×; the server grew by {grown} MiB");
        assert!(grown < 512, "{what}: the server grew by {grown} MiB");
    }
}

#[test]
fn unread_listings_respect_the_memory_limit_of_a_user() {
    if !is_root() {
        return skip(
            "unread_listings_respect_the_memory_limit_of_a_user",
            "only root can act as another user",
        );
    }
    let host = host();
    let before = host.meter();
    // 64 connections with 64 listings of 300 KiB each would hold more than 1 GiB.
    let held: Vec<Raw> = forebay_testkit::as_user(MALLORY, || {
        let mut raw = connect(&host, Channel::Control, 3).expect("connected");
        let walk = Request::Walk { dir: ROOT, path: b"large".to_vec(), follow: true };
        let Ok(Reply::Found(dir)) = raw.call(walk) else { panic!("the directory is missing") };
        let list = Request::ReadDir { dir: dir.id, cookie: 1, limit: 1024, plus: true };
        let mut held: Vec<Raw> =
            (0..64).map(|_| connect(&host, Channel::Control, 3).expect("connected")).collect();
        for raw in &mut held {
            for _ in 0..64 {
                raw.send(list.clone(), &[]).expect("sent");
            }
        }
        held
    });
    // Another user is served meanwhile; by then the server has received all requests sent before.
    let rounds = forebay_testkit::as_user(ORDINARY, || work(&host, Duration::from_secs(2)));
    assert!(!rounds.is_empty());
    let grown = host.meter().private.saturating_sub(before.private) >> 10;
    assert!(grown < 400, "unread answers hold {grown} MiB");
    // The answers arrive when they are read; a request that waited too long for reply space fails with `Busy`.
    let mut held = held;
    let answer = held[0].receive().expect("an answer").1;
    let is_busy = |kind| kind == ErrorKind::Busy;
    assert!(matches!(answer, Ok(Reply::Entries { .. })) || answer.is_err_and(|error| is_busy(error.kind())));
}
