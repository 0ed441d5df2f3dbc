//! One hostile user at every limit beside ordinary ones, one on the machine and one over TCP, who connect anew for every
//! round of work: they are never refused and never wait for long. A soak (`cargo xtask soak --rounds 1 --seconds 900
//! random_attacks` for a minute of each attack) also bounds the slowdown.

use forebay_model::{Access, Bytes, Change, ErrorKind, FileId};
use forebay_proof::{Drains, Host, Plan, Raw, hello, is_root, name, skip};
use forebay_server::{Config, Medium};
use forebay_testkit::become_user;
use forebay_wire::{
    At, Channel, ConnectionKey, DrainCall, IfExists, Key, KeyCall, KeyReply, Reply, Request, Security,
};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const ROOT: FileId = FileId::ROOT;
const MALLORY: u32 = 6001;
const ORDINARY: u32 = 6002;
const REMOTE: u32 = 6003;

fn connect(host: &Host, channel: Channel, client: u128) -> Option<Raw> {
    let mut raw = Raw::open(&host.socket()).ok()?;
    raw.greet(&hello(channel, client), None).ok().map(|_| raw)
}

fn create(text: &str) -> Request {
    create_in(ROOT, text)
}

fn create_in(dir: FileId, text: &str) -> Request {
    let (access, if_exists) = (Access::BOTH, IfExists::Open);
    Request::Create { dir, name: name(text), mode: 0o600, access, if_exists }
}

/// Longest round of an ordinary user in any attack: far above a slow machine's, far below any timeout of the server.
const LONGEST: Duration = Duration::from_secs(15);
/// Longest line about a peer in the log, in bytes.
const LONGEST_LINE: usize = 300;
/// In a soak, how much slower the rounds of ordinary users may get, by their 99th percentile.
const SLOWDOWN: f64 = 2.0;
/// Number of rounds from which a 99th percentile means something: a soak measures at least as many.
const SAMPLES: usize = 1000;
/// After this time a measurement ends, whatever the number of its rounds.
const PATIENCE: Duration = Duration::from_secs(120);

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
            if raw.try_send(list, &[]).is_err() {
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
                    let sent = (0..32)
                        .take_while(|_| raw.try_send(request(token.file, round + worker), &[]).is_ok());
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

fn drains(host: &Host, stop: &AtomicBool) {
    flood(host, stop, |file, _| {
        Request::Drain(DrainCall::Begin { file: Some(file), order: None, last: false })
    });
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

/// Handshakes over TCP that stop after a byte.
fn unfinished(host: &Host, stop: &AtomicBool) {
    let mut held = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        match TcpStream::connect(host.tcp()) {
            Ok(mut stream) if held.len() < 4000 => {
                // The server may have closed it already, to make space.
                let _ = stream.write_all(b"f");
                held.push(stream);
            }
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// More requests that wait for a turn than one user may have.
fn turns(host: &Host, stop: &AtomicBool) {
    let mut held: Vec<Raw> = (0..48).filter_map(|_| connect(host, Channel::Control, 5)).collect();
    while !stop.load(Ordering::Relaxed) {
        for raw in &mut held {
            let stat = Request::Walk { dir: ROOT, path: b"large".to_vec(), follow: true };
            let sent = (0..48).take_while(|_| raw.try_send(stat.clone(), &[]).is_ok()).count();
            if (0..sent).any(|_| raw.receive().is_err()) {
                return;
            }
        }
    }
}

/// Long listings on many connections, with the answers read.
fn listings(host: &Host, stop: &AtomicBool) {
    let Some(mut raw) = connect(host, Channel::Control, 4) else { return };
    let walk = Request::Walk { dir: ROOT, path: b"large".to_vec(), follow: true };
    let Ok(Reply::Found(large)) = raw.call(walk) else { return };
    flood(host, stop, |_, _| Request::ReadDir { dir: large.id, cookie: 0, limit: 1024, plus: true });
}

/// Files that are mapped whole until the user's part of the memory for mappings is full.
fn mapped(host: &Host, stop: &AtomicBool) {
    let (Some(mut raw), Some(mut data)) =
        (connect(host, Channel::Control, 7), connect(host, Channel::Data, 7))
    else {
        return;
    };
    let bytes = vec![7; 1 << 20];
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(Reply::Opened { token, .. }) = raw.call(create(&format!("mapped{}", number % 64))) else {
            continue;
        };
        let _ = data.write(token, At::Offset(0), &bytes);
        let _ = raw.call(Request::MapFile { token, offset: 0, len: 1 << 20, write: true });
        let _ = raw.call(Request::Close { token });
    }
}

/// Bytes until the user's part of the buffer is full.
fn space(host: &Host, stop: &AtomicBool) {
    let (Some(mut raw), Some(mut data)) =
        (connect(host, Channel::Control, 6), connect(host, Channel::Data, 6))
    else {
        return;
    };
    let Ok(Reply::Opened { token, .. }) = raw.call(create("hoard")) else { return };
    let bytes = vec![7; 1 << 20];
    for block in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if data.write(token, At::Offset(block << 20), &bytes).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Mappings that are never fetched.
fn mappings(host: &Host, stop: &AtomicBool) {
    let Some(mut raw) = connect(host, Channel::Control, 7) else { return };
    let Ok(Reply::Opened { token, .. }) = raw.call(create("mapped")) else { return };
    while !stop.load(Ordering::Relaxed) {
        let _ = raw.call(Request::MapFile { token, offset: 0, len: 4096, write: true });
    }
}

/// Connections about each of which the server has something to log.
fn log_lines(host: &Host, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        if let Ok(mut raw) = Raw::open(&host.socket()) {
            let _ = raw.send_bytes(&[7; 64]);
            let _ = raw.is_closed();
        }
    }
}

/// Changes that wait for a back end that does not answer, and connections that abandon them.
fn stalled(host: &Host, stop: &AtomicBool) {
    let mut held = Vec::new();
    for number in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if held.len() == 1200 {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        let Ok(mut raw) = Raw::open(&host.socket()) else { continue };
        let Ok(welcome) = raw.greet(&hello(Channel::Control, 8), None) else { continue };
        let make = Request::MakeDir { dir: ROOT, name: name(&format!("s{number}")), mode: 0o700 };
        let first = held.first().map_or(welcome.connection, |(_, connection)| *connection);
        let _ = raw.try_send(make, &[]);
        let _ = raw.try_send(Request::Abandon { connection: first }, &[]);
        held.push((raw, welcome.connection));
    }
}

/// An ordinary user, and how it connects.
struct Ordinary {
    uid: u32,
    /// Its directory.
    dir: FileId,
    /// Its key, if it comes over TCP.
    key: Option<ConnectionKey>,
}

impl Ordinary {
    fn connect(&self, host: &Host, channel: Channel) -> Raw {
        let raw = match &self.key {
            None => connect(host, channel, 9),
            Some(key) => Raw::open_tcp(host.tcp())
                .ok()
                .and_then(|mut raw| raw.prove(&hello(channel, 9), key, Security::None).ok().map(|_| raw)),
        };
        raw.unwrap_or_else(|| panic!("user {} is not let in", self.uid))
    }

    /// Connects and works once; every step has to succeed.
    fn round(&self, host: &Host) {
        let (mut control, mut data) =
            (self.connect(host, Channel::Control), self.connect(host, Channel::Data));
        let text = format!("quiet{}", self.uid);
        let token = match control.call(create_in(self.dir, &text)) {
            Ok(Reply::Opened { token, .. }) => token,
            other => panic!("user {} cannot create a file: {other:?}", self.uid),
        };
        data.write(token, At::Offset(0), &[7; 4096]).expect("written");
        for request in [
            Request::GetAttr { file: token.file },
            Request::Sync { token },
            Request::Close { token },
            Request::Unlink { dir: self.dir, name: name(&text) },
        ] {
            let shown = format!("{request:?}");
            let answer = control.call(request);
            assert!(answer.is_ok(), "user {} is refused {shown}: {answer:?}", self.uid);
        }
    }

    /// Works for at least this time and number of rounds; returns the time of each.
    fn work(&self, host: &Host, time: Duration, least: usize) -> Vec<Duration> {
        let (mut rounds, begin) = (Vec::new(), Instant::now());
        while begin.elapsed() < PATIENCE && (rounds.len() < least || begin.elapsed() < time) {
            let start = Instant::now();
            self.round(host);
            rounds.push(start.elapsed());
        }
        rounds
    }
}

/// The 99th percentile.
fn p99(mut rounds: Vec<Duration>) -> Duration {
    rounds.sort_unstable();
    rounds[(rounds.len() * 99).div_ceil(100) - 1]
}

/// A server with a large directory that both users may read.
fn host(drain: Drains) -> Host {
    let plan = Plan::new(Medium::Memory, Bytes::mib(64), Bytes::mib(1));
    // With a back end every request is deferred, and its answer waits in memory.
    let plan = Plan { has_backend: true, drain, ..plan };
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

/// Runs an attack as the hostile user beside the ordinary ones for the given time and number of rounds; returns the
/// times of each ordinary user's rounds.
fn beside(
    host: &Host,
    people: &[Ordinary; 2],
    attack: Attack,
    time: Duration,
    least: usize,
) -> [Vec<Duration>; 2] {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        scope.spawn(move || {
            become_user(MALLORY);
            attack(host, stop);
        });
        let workers = people.each_ref().map(|person| {
            scope.spawn(move || {
                become_user(person.uid);
                person.work(host, time, least)
            })
        });
        let done = workers.map(std::thread::ScopedJoinHandle::join);
        stop.store(true, Ordering::Relaxed);
        done.map(|done| done.expect("the ordinary user is served"))
    })
}

/// A limit, and the attack on it.
struct Limited {
    key: &'static str,
    drain: Drains,
    attack: Attack,
}

const fn limited(key: &'static str, attack: Attack) -> Limited {
    Limited { key, drain: Drains::Lazily, attack }
}

const ATTACKS: [Limited; 16] = [
    limited("user_connections", connections),
    limited("user_sessions", sessions),
    limited("user_opens", opens),
    limited("user_answers", unread),
    Limited { key: "user_backend_places", drain: Drains::Stalling, attack: stalled },
    limited("user_syncs", syncs),
    limited("user_working", listings),
    limited("user_mappings", mappings),
    limited("user_mapped", mapped),
    limited("user_drains", drains),
    limited("user_waiting", turns),
    limited("user_space", space),
    // Limits beside those of a user.
    limited("policy", changes),
    limited("log_lines", log_lines),
    limited("address_handshakes", silent),
    limited("times.handshake", unfinished),
];

#[test]
fn every_limit_of_a_user_is_attacked() {
    let limits = format!("{:?}", Config::default().limits);
    let words = limits.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let keys: BTreeSet<&str> = words.filter(|word| word.starts_with("user_")).collect();
    let attacked = ATTACKS.iter().map(|limited| limited.key).filter(|key| key.starts_with("user_"));
    assert_eq!(attacked.collect::<BTreeSet<&str>>(), keys);
}

/// Two ordinary users, one on the machine and one over TCP. They work in the root, whose names need an answer of the back
/// end, or in directories that a back end that does not answer does not have.
fn people(host: &Host, drain: Drains) -> [Ordinary; 2] {
    let mut root = Raw::unix(&host.socket(), Channel::Control, 1).expect("connected");
    let grant = Request::Keys(KeyCall::Grant { user: REMOTE.to_string(), expires: None });
    let key = match root.call(grant) {
        Ok(Reply::Keys(reply)) => match *reply {
            KeyReply::Granted { key, secret, .. } => ConnectionKey { id: key.id, secret: Key::new(secret) },
            other => panic!("no key: {other:?}"),
        },
        other => panic!("no key: {other:?}"),
    };
    [(ORDINARY, None), (REMOTE, Some(key))].map(|(uid, key)| {
        let make = || {
            let mut raw = connect(host, Channel::Control, 9).expect("connected");
            raw.make_dir(ROOT, &format!("own{uid}"), 0o700)
        };
        let dir = if drain == Drains::Stalling { forebay_testkit::as_user(uid, make) } else { ROOT };
        Ordinary { uid, dir, key }
    })
}

/// Measures the ordinary users alone for a fifth of the time, and beside an attack for the rest.
#[expect(clippy::print_stdout, reason = "the measurements are a report")]
fn measure(limited: &Limited, time: Duration, is_soak: bool) {
    let what = limited.key;
    let host = host(limited.drain);
    let people = people(&host, limited.drain);
    let least = if is_soak { SAMPLES } else { 1 };
    let quiet = beside(&host, &people, |_, _| {}, time / 5, least);
    let (before, logged, begin) = (host.meter(), host.log().len(), Instant::now());
    if limited.drain == Drains::Stalling {
        host.stall_backend(true);
    }
    let busy = beside(&host, &people, limited.attack, time * 4 / 5, least);
    if what == "log_lines" {
        // In each second that began: the lines about peers, and the one that counts the rest.
        let seconds = begin.elapsed().as_secs() as usize + 2;
        let (lines, most) = (Config::default().limits.log_lines + 1, LONGEST_LINE);
        let grown = host.log().len() - logged;
        assert!(grown <= seconds * lines * most, "{grown} bytes of log in {seconds} s");
    }
    let grown = host.meter().private.saturating_sub(before.private) >> 10;
    if limited.drain == Drains::Stalling {
        host.stall_backend(false);
    }
    assert!(grown < 512, "{what}: the server grew by {grown} MiB");
    for ((person, busy), quiet) in people.iter().zip(busy).zip(quiet) {
        let (rounds, samples) = (busy.len(), quiet.len().min(busy.len()));
        let slowest = busy.iter().max().copied().unwrap_or_default();
        let (busy, quiet) = (p99(busy), p99(quiet));
        let ratio = busy.as_secs_f64() / quiet.as_secs_f64();
        let way = if person.key.is_some() { "TCP" } else { "socket" };
        println!(
            "{what}, {way}: {rounds} rounds, p99 {busy:?}, quiet {quiet:?}: {ratio:.1} ×, slowest {slowest:?}; the server \
             grew by {grown} MiB"
        );
        assert!(slowest < LONGEST, "{what}, {way}: a round of the ordinary user took {slowest:?}");
        if is_soak {
            assert!(samples >= SAMPLES, "{what}, {way}: {samples} rounds in {PATIENCE:?} send nothing");
            assert!(ratio <= SLOWDOWN, "{what}, {way}: the ordinary user is {ratio:.1} times slower");
        }
    }
}

#[test]
fn random_attacks_of_one_user_at_every_limit_refuse_no_other() {
    let test = "random_attacks_of_one_user_at_every_limit_refuse_no_other";
    if !is_root() {
        return skip(test, "only root can act as three other users");
    }
    let soak = std::env::var("FOREBAY_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let each = soak
        .map_or(Duration::from_millis(600), |seconds| Duration::from_secs(seconds) / ATTACKS.len() as u32);
    for limited in &ATTACKS {
        measure(limited, each, soak.is_some());
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
    let host = host(Drains::Lazily);
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
                raw.send(list.clone(), &[]);
            }
        }
        held
    });
    // Another user is served meanwhile; by then the server has received all requests sent before.
    let ordinary = Ordinary { uid: ORDINARY, dir: ROOT, key: None };
    let rounds = forebay_testkit::as_user(ORDINARY, || ordinary.work(&host, Duration::from_secs(2), 1));
    assert!(!rounds.is_empty());
    let grown = host.meter().private.saturating_sub(before.private) >> 10;
    assert!(grown < 400, "unread answers hold {grown} MiB");
    // The answers arrive when they are read; a request that waited too long for reply space fails with `Busy`.
    let mut held = held;
    let answer = held[0].receive().expect("an answer").1;
    let is_busy = |kind| kind == ErrorKind::Busy;
    assert!(matches!(answer, Ok(Reply::Entries { .. })) || answer.is_err_and(|error| is_busy(error.kind())));
}
