//! Invalid input over real sockets: a clear error or a closed connection, and other clients are not affected.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{Access, Bytes, Change, ErrorKind, FileId, Gid, Identity, MAX_NAME, MAX_PATH, Uid};
use forebay_proof::{By, Host, Meter, Plan, Raw, Rng, Seeded, hello, name, pattern, refused, rounds};
use forebay_server::Medium;
use forebay_testkit::until;
use forebay_wire::{
    At, Call, Channel, FrameKind, HEADER, Header, Hello, IfExists, Key, MAX_BODY, MAX_HANDSHAKE, MAX_PAYLOAD,
    Proof, RenameMode, Reply, Request, Token, VERSION, XattrMode, body, frame,
};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const ROOT: FileId = FileId::ROOT;
/// The attacker acts as this user, so that a request that happens to be valid affects no other user's files.
const MALLORY: u32 = 6666;

fn host() -> Host {
    let mut plan = Plan::new(Medium::Memory, Bytes::mib(64), Bytes::mib(1));
    plan.reservation = Duration::from_secs(5);
    plan.handshake = Duration::from_secs(5);
    Host::new(PROGRAM, plan)
}

fn mallory() -> Identity {
    Identity { uid: Uid(MALLORY), gid: Gid(MALLORY), groups: vec![Gid(1), Gid(2)] }
}

/// Every kind of request, about a file of the attacker.
fn requests(token: Token) -> Vec<Request> {
    let (file, dir, n) = (token.file, ROOT, || name("m"));
    let change = Change { mode: Some(0o640), ..Change::default() };
    vec![
        Request::Ping,
        Request::Walk { dir, path: b"a/b/../m".to_vec(), follow: true },
        Request::GetAttr { file },
        Request::SetAttr { file, change },
        Request::Open { file, access: Access::READ, truncate: false },
        Request::Create { dir, name: n(), mode: 0o600, access: Access::BOTH, if_exists: IfExists::Open },
        Request::Reopen { token },
        Request::Truncate { token, size: 100 },
        Request::TruncateFile { file, size: 100 },
        Request::Punch { token, offset: 5, len: 10 },
        Request::Sync { token },
        Request::MakeDir { dir, name: n(), mode: 0o755 },
        Request::RemoveDir { dir, name: n() },
        Request::Unlink { dir, name: name("nothing") },
        Request::Rename { dir, name: n(), to_dir: dir, to_name: n(), mode: RenameMode::Exchange },
        Request::Link { file, dir, name: n() },
        Request::Symlink { dir, name: n(), target: b"somewhere".to_vec() },
        Request::ReadLink { file },
        Request::ReadDir { dir, cookie: 0, limit: 10, plus: true },
        Request::GetXattr { file, name: name("user.x") },
        Request::SetXattr { file, name: name("user.x"), value: vec![7; 100], mode: XattrMode::Any },
        Request::ListXattr { file },
        Request::RemoveXattr { file, name: name("user.x") },
        Request::StatFs,
        Request::Status,
        Request::Write { token, at: At::Offset(10) },
        Request::Write { token, at: At::End },
        Request::Read { token, offset: 0, len: 4096 },
    ]
}

fn framed(request: Request, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let call = Call { identity: Some(mallory()), request };
    frame(&mut bytes, FrameKind::Call, 5, &call, payload as u32).unwrap();
    bytes.extend(pattern(5, payload));
    bytes
}

/// Flips, truncates, extends and swaps bytes.
fn damage(bytes: &mut Vec<u8>, rng: &mut Rng) {
    for _ in 0..=rng.below(4) {
        let at = rng.below(bytes.len() as u64) as usize;
        match rng.below(7) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes.truncate(at.max(1)),
            2 => bytes.extend(pattern(rng.next(), 1 + rng.below(300) as usize)),
            3 => bytes[at] = *rng.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            4 => drop(bytes.splice(at..at, pattern(rng.next(), 1 + rng.below(9) as usize))),
            5 => {
                let end = (at + 1 + rng.below(8) as usize).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            _ => {
                let end = (at + 10).min(bytes.len());
                bytes[at..end].fill(0xff);
            }
        }
        if bytes.is_empty() {
            bytes.push(0);
        }
    }
}

/// Damages the body but keeps the header consistent, so that the decoder of bodies sees the damage.
fn damage_body(sound: &[u8], rng: &mut Rng) -> Vec<u8> {
    let header = Header::decode(sound[..HEADER].try_into().unwrap()).unwrap();
    let (body, payload) = sound[HEADER..].split_at(header.body as usize);
    let (mut body, mut payload) = (body.to_vec(), payload.to_vec());
    if !body.is_empty() {
        damage(&mut body, rng);
    }
    if rng.one_in(4) && !payload.is_empty() {
        payload.truncate(rng.below(payload.len() as u64) as usize);
    }
    let (len, rest) = match rng.below(8) {
        0 => (rng.next() as u32, payload.len() as u32),
        1 => (body.len() as u32, rng.next() as u32 % (2 * MAX_PAYLOAD)),
        _ => (body.len() as u32, payload.len() as u32),
    };
    let header = Header { kind: *rng.pick(&FrameKind::ALL), id: rng.next(), body: len, payload: rest };
    [&header.encode()[..], &body, &payload].concat()
}

/// Whether the damaged bytes happen to be a valid call that the attacker must not send as the test's own user.
fn is_valid_call(bytes: &[u8]) -> bool {
    let Some(header) = bytes.first_chunk::<HEADER>().and_then(|bytes| Header::decode(bytes).ok()) else {
        return false;
    };
    let Some(bytes) = bytes.get(HEADER..HEADER + header.body as usize) else { return false };
    body::<Call>(bytes)
        .is_ok_and(|call| call.identity != Some(mallory()) || call.request == Request::Shutdown)
}

/// One attack; returns when the server has closed the connection.
fn attack(host: &Host, key: &Key, token: Token, rng: &mut Rng) {
    let by_tcp = rng.one_in(3);
    let mut raw =
        if by_tcp { Raw::open_tcp(host.tcp()).unwrap() } else { Raw::open(&host.socket()).unwrap() };
    let channel = *rng.pick(&[Channel::Control, Channel::Data]);
    let greeting = hello(channel, u128::from(rng.next() % 8));
    if rng.one_in(3) {
        let mut bytes = Vec::new();
        frame(&mut bytes, FrameKind::Hello, 0, &greeting, 0).unwrap();
        match rng.one_in(2) {
            true => damage(&mut bytes, rng),
            false => bytes = damage_body(&bytes, rng),
        }
        // The server may close the connection before it has read everything.
        let _ = raw.socket.write_all(&bytes);
    } else {
        raw.greet(&greeting, by_tcp.then_some(key)).unwrap();
        let all = requests(token);
        for _ in 0..=rng.below(3) {
            let request = rng.pick(&all).clone();
            let len = if matches!(request, Request::Write { .. }) { rng.below(9000) as usize } else { 0 };
            let mut more = framed(request, len);
            match rng.below(4) {
                0 => damage(&mut more, rng),
                1..3 => more = damage_body(&more, rng),
                _ => {}
            }
            if !is_valid_call(&more) {
                let _ = raw.send_bytes(&more);
            }
        }
    }
    if rng.one_in(8) {
        // Some attackers do not close their end for a while.
        std::thread::sleep(Duration::from_millis(rng.below(5)));
    }
    raw.socket.end_writing();
    assert!(raw.is_closed());
}

/// The transfer of another user: every byte is compared while the attack runs.
fn transfer(client: &Client, go_on: &AtomicBool) -> u64 {
    let options = OpenOptions { mode: 0o600, ..OpenOptions::CREATE };
    client.mkdir("/victim", 0o700).unwrap();
    let file = client.open("/victim/f", options).unwrap();
    let mut rounds = 0;
    while go_on.load(Ordering::Relaxed) {
        let data = pattern(rounds, 1 << 20);
        file.pwrite((rounds % 8) << 20, &data).unwrap();
        let mut back = vec![0; data.len()];
        assert_eq!(file.pread((rounds % 8) << 20, &mut back).unwrap(), back.len());
        assert!(back == data, "round {rounds}");
        client.stat("/victim/f").unwrap();
        rounds += 1;
    }
    rounds
}

fn key(host: &Host) -> Key {
    Key::from_text(&std::fs::read_to_string(host.key()).unwrap()).unwrap()
}

/// Waits until only the given number of connections is left.
#[test]
fn random_and_mutated_frames_do_not_affect_others_or_leak() {
    let seeded = Seeded::new();
    let host = host();
    let key = key(&host);
    let token =
        Raw::unix(&host.socket(), Channel::Control, 1).unwrap().acting(MALLORY).create(ROOT, "m", 0o666);
    let (observer, victim) = (host.client(By::Unix), host.client(By::Tcp));
    let mut rng = seeded.rng(40);
    // Allocations that happen once are made before the measurement.
    (0..200).for_each(|_| attack(&host, &key, token, &mut rng));
    until("connections end", || observer.status().unwrap().connections <= 2);
    let before = host.meter();
    let go_on = AtomicBool::new(true);
    let transferred = std::thread::scope(|scope| {
        let work = scope.spawn(|| transfer(&victim, &go_on));
        for _ in rounds(2000) {
            attack(&host, &key, token, &mut rng);
        }
        go_on.store(false, Ordering::Relaxed);
        work.join().unwrap()
    });
    assert!(transferred > 0);
    until("connections end", || observer.status().unwrap().connections <= 2 + 4);
    drop(victim);
    until("connections end", || observer.status().unwrap().connections <= 1);
    leaves_nothing(before, host.meter());
    observer.ping().unwrap();
}

fn leaves_nothing(before: Meter, after: Meter) {
    assert!(after.descriptors <= before.descriptors + 4, "{before:?} {after:?}");
    assert!(after.private <= before.private + (48 << 10), "{before:?} {after:?}");
}

#[test]
fn invalid_lengths_and_silence_end_the_connection() {
    let host = host();
    let limits = [(MAX_BODY + 1, 0), (u32::MAX, 0), (0, MAX_PAYLOAD + 1), (u32::MAX, u32::MAX)];
    for (body, payload) in limits {
        for channel in [Channel::Control, Channel::Data] {
            let mut raw = Raw::unix(&host.socket(), channel, 1).unwrap();
            let header = Header { kind: FrameKind::Call, id: 1, body, payload };
            raw.socket.write_all(&header.encode()).unwrap();
            assert!(raw.is_closed(), "{header:?}");
        }
    }
    for (kind, body, payload) in [
        (FrameKind::Hello, MAX_HANDSHAKE + 1, 0),
        (FrameKind::Hello, 10, 1),
        (FrameKind::Call, 10, 0),
        (FrameKind::Proof, 32, 0),
        (FrameKind::Answer, 1, 0),
        (FrameKind::Greeting, 1, 0),
    ] {
        let mut raw = Raw::open(&host.socket()).unwrap();
        raw.socket.write_all(&Header { kind, id: 0, body, payload }.encode()).unwrap();
        assert!(raw.is_closed(), "{kind:?} before the handshake");
    }
    // Silent connections, which have sent nothing, a part, or nearly a whole hello.
    let mut whole = Vec::new();
    frame(&mut whole, FrameKind::Hello, 0, &hello(Channel::Control, 1), 0).unwrap();
    let mut silent: Vec<Raw> = [0, 1, HEADER, whole.len() - 1]
        .into_iter()
        .map(|len| {
            let mut raw = Raw::open(&host.socket()).unwrap();
            raw.socket.write_all(&whole[..len]).unwrap();
            raw
        })
        .collect();
    assert!(silent.iter_mut().all(Raw::is_closed), "the handshake times out");
    host.client(By::Tcp).ping().unwrap();
}

#[test]
fn invalid_versions_proofs_and_tokens_are_refused() {
    let host = host();
    for version in [0, VERSION + 1, u32::MAX] {
        let mut raw = Raw::open(&host.socket()).unwrap();
        let error = raw.greet(&Hello { version, ..hello(Channel::Control, 1) }, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(&VERSION.to_string()), "{error}");
    }
    let mut nameless = hello(Channel::Control, 1);
    nameless.job.label = String::new();
    refused(
        "a job without a label",
        Raw::open(&host.socket()).unwrap().greet(&nameless, None),
        &[ErrorKind::Protocol],
    );
    for key in [Key::new([0; 32]), Key::new([0xff; 32])] {
        let mut raw = Raw::open_tcp(host.tcp()).unwrap();
        let greeted = raw.greet(&hello(Channel::Control, 1), Some(&key));
        refused("without the key", greeted, &[ErrorKind::Unauthenticated]);
        assert!(raw.is_closed());
    }
    // A proof without a challenge.
    let mut raw = Raw::open_tcp(host.tcp()).unwrap();
    raw.send_frame(FrameKind::Proof, 0, &Proof {}, &[]);
    assert!(raw.is_closed());

    let mut control = Raw::unix(&host.socket(), Channel::Control, 1).unwrap();
    let mut data = Raw::unix(&host.socket(), Channel::Data, 1).unwrap();
    let token = control.create(ROOT, "f", 0o600);
    let changed = [
        Token { file: FileId(token.file.0 + 1), ..token },
        Token { access: Access { execute: true, ..token.access }, ..token },
        Token { serial: token.serial + 1, ..token },
        Token { seal: [0; 16], ..token },
    ];
    for forged in changed {
        refused("read", data.read(forged, 0, 1), &[ErrorKind::Stale]);
        refused("write", data.write(forged, At::End, b"x"), &[ErrorKind::Stale]);
        for request in [
            Request::Reopen { token: forged },
            Request::Close { token: forged },
            Request::Truncate { token: forged, size: 0 },
            Request::Punch { token: forged, offset: 0, len: 1 },
            Request::Sync { token: forged },
        ] {
            refused(&format!("{request:?}"), control.call(request), &[ErrorKind::Stale]);
        }
    }
    // A token that was valid once: its file is closed and removed.
    control.call(Request::Unlink { dir: ROOT, name: name("f") }).unwrap();
    control.call(Request::Close { token }).unwrap();
    refused("an old token", data.read(token, 0, 1), &[ErrorKind::Stale]);
    refused("an old token", control.call(Request::Reopen { token }), &[ErrorKind::Stale]);
    for file in [0, 2, u64::MAX, 7 << 48] {
        refused("an unknown id", control.call(Request::GetAttr { file: FileId(file) }), &[ErrorKind::Stale]);
    }
}

#[test]
fn limits_of_names_paths_and_payloads_are_enforced() {
    let host = host();
    let client = host.client(By::Unix);
    let longest = "n".repeat(MAX_NAME);
    client.open(format!("/{longest}"), OpenOptions::CREATE).unwrap();
    client.mkdir("/d", 0o755).unwrap();
    let too_long = client.open(format!("/d/{longest}n"), OpenOptions::CREATE).map(drop);
    refused("a name of 256 bytes", too_long, &[ErrorKind::NameTooLong]);
    refused(
        "a directory of 256 bytes",
        client.mkdir(format!("/{longest}n"), 0o755),
        &[ErrorKind::NameTooLong],
    );
    let path = format!("/{}{longest}", "./".repeat((MAX_PATH - 1 - MAX_NAME) / 2));
    assert_eq!(path.len(), MAX_PATH);
    client.stat(&path).unwrap();
    refused("a path of 4,097 bytes", client.stat(format!("/{path}")), &[ErrorKind::NameTooLong]);
    let mut control = Raw::unix(&host.socket(), Channel::Control, 1).unwrap();
    let mut walk = |len: usize| {
        control.call(Request::Walk {
            dir: ROOT,
            path: "./".repeat(len).into_bytes()[..len].to_vec(),
            follow: true,
        })
    };
    assert!(walk(MAX_PATH).is_ok());
    refused("a raw path of 4,097 bytes", walk(MAX_PATH + 1), &[ErrorKind::NameTooLong]);
    refused("a raw path of 400,000 bytes", walk(400_000), &[ErrorKind::NameTooLong]);

    let token = control.create(ROOT, "p", 0o600);
    refused(
        "a read on control",
        control.call(Request::Read { token, offset: 0, len: 1 }),
        &[ErrorKind::Protocol],
    );
    let mut data = Raw::unix(&host.socket(), Channel::Data, 1).unwrap();
    refused("a ping on data", data.call(Request::Ping), &[ErrorKind::Protocol]);
    let read = Request::Read { token, offset: 0, len: 1 };
    refused("a read with a payload", data.request(read, b"payload"), &[ErrorKind::Protocol]);
    assert_eq!(data.write(token, At::End, b"in step").unwrap(), 0);
    // The server may close the connection before all bytes are sent.
    let _ = control.try_send(Request::Write { token, at: At::End }, &pattern(1, 1 << 20));
    assert!(control.is_closed(), "a payload on a control connection");
    assert!(matches!(data.call(Request::Read { token, offset: 0, len: 9 }), Ok(Reply::Data)));
}
