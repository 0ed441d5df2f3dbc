//! Peers that stall, send wrong lengths, or send garbage: they get nothing, and other clients are served.

use crate::raw::{Raw, World, name, pattern, refused};
use forebay_model::{Access, ErrorKind, FileId, MAX_NAME, MAX_PATH};
use forebay_testkit::{Rng, seed, until};
use forebay_wire::{
    At, Call, Channel, FrameKind, HEADER, Header, IfExists, MAX_BODY, MAX_PAYLOAD, Reply, Request, frame,
};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;

fn connections(raw: &mut Raw) -> u32 {
    match raw.call(Request::Status) {
        Ok(Reply::Status(status)) => status.connections,
        other => panic!("no status: {other:?}"),
    }
}

fn waiting(raw: &mut Raw) -> u64 {
    match raw.call(Request::Status) {
        Ok(Reply::Status(status)) => status.waiting,
        other => panic!("no status: {other:?}"),
    }
}

fn bytes_of(id: u64, request: Request, payload: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, FrameKind::Call, id, &Call { identity: None, request }, payload).unwrap();
    bytes
}

#[test]
fn client_stalled_in_mid_payload_is_disconnected() {
    let world = World::with(|config| {
        config.limits.turns = 2;
        config.times.reservation = Duration::from_secs(5);
    });
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o600);
    let request = Request::Write { token, at: At::Offset(0) };
    let mut stalled: Vec<Raw> = (0..20).map(|_| world.data()).collect();
    for (number, raw) in stalled.iter_mut().enumerate() {
        raw.socket.write_all(&bytes_of(1, request.clone(), 64 << 10)).unwrap();
        // Some send nothing, some a little, some nearly the whole payload.
        raw.socket.write_all(&pattern(1, number * 3400)).unwrap();
    }
    let bytes = pattern(2, 1 << 20);
    for _ in 0..20 {
        data.write(token, At::Offset(1 << 20), &bytes).unwrap();
        assert_eq!(data.read(token, 1 << 20, 1 << 20).unwrap(), bytes);
    }
    assert!(stalled.iter_mut().all(Raw::is_closed), "stalled connections time out");
    assert_eq!(
        data.read(token, 0, 1 << 20).unwrap(),
        vec![0; 1 << 20],
        "incomplete payloads are not applied"
    );
    // Other writers can use the space that the stalled ones had reserved.
    let token = control.create(ROOT, "g", 0o600);
    for _ in 0..13 {
        data.write(token, At::End, &bytes).unwrap();
    }
}

#[test]
fn full_request_queue_refuses_but_answers_heartbeats() {
    let world = World::with(|config| {
        (config.limits.turns, config.limits.waiting) = (1, 1);
        config.times.stall = Duration::from_secs(3600);
    });
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o600);
    let request = Request::Write { token, at: At::Offset(0) };
    let mut holder = world.data();
    holder.socket.write_all(&bytes_of(1, request.clone(), 2)).unwrap();
    holder.socket.write_all(b"x").unwrap();
    // Eventually `holder` has the only turn, and `waiter` waits forever.
    let mut waiter = world.data();
    waiter.socket.patience(Duration::from_millis(20));
    let mut answered = true;
    while waiting(&mut control) == 0 {
        if answered {
            waiter.send(request.clone(), b"yy");
        }
        answered = waiter.receive().is_ok();
    }
    refused(control.call(Request::StatFs), ErrorKind::Busy);
    let mut late = world.data();
    refused(late.write(token, At::Offset(0), &pattern(1, 100_000)), ErrorKind::Busy);
    refused(late.read(token, 0, 1), ErrorKind::Busy);
    assert!(control.call(Request::Ping).is_ok());
    drop(holder);
    waiter.socket.patience(Duration::from_secs(60));
    assert!(waiter.receive().unwrap().1.is_ok());
    assert_eq!(late.read(token, 0, 9).unwrap(), b"yy");
}

#[test]
fn client_that_reads_no_answers_is_disconnected() {
    let world = World::with(|config| config.times.answer = Duration::from_millis(100));
    let mut control = world.control();
    let token = control.create(ROOT, "f", 0o600);
    world.data().write(token, At::Offset(0), &pattern(1, 1 << 20)).unwrap();
    let mut greedy = world.data();
    for _ in 0..64 {
        // The server may drop the connection before all requests are sent.
        let _ = greedy.socket.write_all(&bytes_of(1, Request::Read { token, offset: 0, len: 1 << 20 }, 0));
    }
    let mut lazy = world.control();
    let list = Request::Walk { dir: ROOT, path: b"f".to_vec(), follow: true };
    let many: Vec<u8> = (0..100_000).flat_map(|id| bytes_of(id, list.clone(), 0)).collect();
    // The server stops reading long before that, and then drops the connection.
    assert!(lazy.socket.write_all(&many).is_err());
    until("one connection is left", || connections(&mut control) <= 1);
}

#[test]
fn requests_on_the_wrong_channel_are_refused() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, "f", 0o600);
    refused(control.call(Request::Read { token, offset: 0, len: 1 }), ErrorKind::Protocol);
    refused(data.call(Request::Ping), ErrorKind::Protocol);
    let id = data.send(Request::Read { token, offset: 0, len: 1 }, b"unexpected payload");
    let (answered, answer, _) = data.receive().unwrap();
    assert_eq!(answered, id);
    refused(answer, ErrorKind::Protocol);
    assert_eq!(data.write(token, At::End, b"in step").unwrap(), 0);
    let mut bad = world.control();
    bad.send(Request::Write { token, at: At::End }, b"payload");
    assert!(bad.is_closed(), "a payload on a control connection");
    let mut bad = world.control();
    bad.send_frame(FrameKind::Answer, 1, &Ok::<Reply, forebay_model::Error>(Reply::Done), &[]);
    assert!(bad.is_closed(), "an answer without a request");
}

#[test]
fn out_of_range_values_are_ordinary_errors() {
    let world = World::new();
    let (mut control, mut data) = (world.control(), world.data());
    let token = control.create(ROOT, &"n".repeat(MAX_NAME), 0o7777);
    assert!(control.walk(&"n".repeat(MAX_NAME)).is_ok());
    refused(control.walk(&"n".repeat(MAX_NAME + 1)), ErrorKind::NameTooLong);
    assert!(control.walk(&"./".repeat(MAX_PATH / 2)).is_ok());
    refused(control.walk(&"x".repeat(MAX_PATH + 1)), ErrorKind::NameTooLong);
    refused(data.write(token, At::Offset(u64::MAX), b"far"), ErrorKind::TooLarge);
    assert_eq!(data.read(token, u64::MAX, u32::MAX).unwrap(), b"");
    refused(control.call(Request::Truncate { token, size: u64::MAX }), ErrorKind::TooLarge);
    control.call(Request::Truncate { token, size: 1 << 40 }).unwrap();
    let zeros = data.read(token, 1 << 39, u32::MAX).unwrap();
    assert!(zeros.len() == MAX_PAYLOAD as usize && zeros.iter().all(|&byte| byte == 0));
    let missing = FileId(u64::MAX);
    refused(control.call(Request::GetAttr { file: missing }), ErrorKind::Stale);
    refused(control.call(Request::GetAttr { file: FileId(0) }), ErrorKind::Stale);
    let (dir, access, if_exists) = (token.file, Access::BOTH, IfExists::Open);
    let create = Request::Create { dir, name: name("x"), mode: u16::MAX, access, if_exists };
    refused(control.call(create), ErrorKind::NotDirectory);
    let list = |cookie, limit| Request::ReadDir { dir: ROOT, cookie, limit, plus: true };
    for request in [list(0, 0), list(0, u32::MAX), list(u64::MAX, 1)] {
        assert!(matches!(control.call(request), Ok(Reply::Entries { .. })));
    }
}

#[test]
fn limits_on_open_files_are_enforced() {
    let world = World::with(|config| (config.limits.session_opens, config.limits.opens) = (3, 5));
    let mut one = world.control();
    let token = one.create(ROOT, "f", 0o600);
    let open = Request::Open { file: token.file, access: Access::READ, truncate: false };
    for _ in 0..2 {
        one.call(open.clone()).unwrap();
    }
    refused(one.call(open.clone()), ErrorKind::Busy);
    let mut other = Raw::unix(&world.socket(), Channel::Control, 9).unwrap();
    for _ in 0..2 {
        other.call(open.clone()).unwrap();
    }
    refused(other.call(open.clone()), ErrorKind::Busy);
    one.call(Request::Close { token }).unwrap();
    assert!(other.call(open).is_ok());
}

#[test]
fn lengths_beyond_the_limits_end_the_connection() {
    let world = World::new();
    for (body, payload) in [(MAX_BODY + 1, 0), (u32::MAX, 0), (0, MAX_PAYLOAD + 1), (u32::MAX, u32::MAX)] {
        for mut raw in [world.control(), world.data()] {
            let header = Header { kind: FrameKind::Call, id: 1, body, payload };
            raw.socket.write_all(&header.encode()).unwrap();
            assert!(raw.is_closed());
        }
    }
    assert!(world.control().call(Request::Ping).is_ok());
}

#[test]
fn random_frame_damage_does_not_affect_other_clients() {
    let seed = seed();
    let mut rng = Rng::new(seed);
    let world = World::with(|config| config.times.reservation = Duration::from_secs(5));
    let mut friend = world.control();
    let token = friend.create(ROOT, "f", 0o600);
    let samples = [
        bytes_of(1, Request::Walk { dir: ROOT, path: b"f".to_vec(), follow: true }, 0),
        bytes_of(2, Request::Status, 0),
        bytes_of(3, Request::ReadDir { dir: ROOT, cookie: 0, limit: 9, plus: true }, 0),
        bytes_of(4, Request::Read { token, offset: 0, len: 4096 }, 0),
        [bytes_of(5, Request::Write { token, at: At::End }, 5000), pattern(5, 5000)].concat(),
        bytes_of(6, Request::Truncate { token, size: 100 }, 0),
    ];
    for round in 0..400 {
        let mut bytes: Vec<u8> =
            (0..=rng.below(3)).flat_map(|_| samples[rng.index(samples.len())].clone()).collect();
        for _ in 0..rng.below(4) {
            let (at, last) = (rng.index(bytes.len()), bytes.len() - 1);
            match rng.below(3) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes.truncate(at.max(1)),
                // The header stays sound, so that the damage reaches the body.
                _ => bytes[at.max(HEADER).min(last)] = rng.below(256) as u8,
            }
        }
        let mut raw = if rng.below(2) == 0 { world.control() } else { world.data() };
        // The server may close the connection before it has read everything.
        let _ = raw.socket.write_all(&bytes);
        raw.socket.end_writing();
        assert!(raw.is_closed(), "seed {seed}, round {round}");
        assert!(friend.call(Request::Ping).is_ok(), "seed {seed}, round {round}");
    }
    until("one connection is left", || connections(&mut friend) <= 1);
}

#[test]
fn two_hundred_connections_are_served_and_released() {
    let world = World::new();
    let mut control = world.control();
    let tokens: Vec<_> = (0..8).map(|number| control.create(ROOT, &format!("f{number}"), 0o600)).collect();
    std::thread::scope(|scope| {
        for number in 0..200u64 {
            let (world, token) = (&world, tokens[number as usize % tokens.len()]);
            scope.spawn(move || {
                let mut data = if number % 2 == 0 {
                    world.data()
                } else {
                    Raw::tcp(world.tcp(), Channel::Data, &world.key()).unwrap().0
                };
                let offset = number * 4096;
                for round in 0..20 {
                    let bytes = pattern(number * 100 + round, 4096);
                    assert_eq!(data.write(token, At::Offset(offset), &bytes).unwrap(), offset);
                    assert_eq!(data.read(token, offset, 4096).unwrap(), bytes);
                }
            });
        }
    });
    until("one connection is left", || connections(&mut control) <= 1);
    let Ok(Reply::Status(status)) = control.call(Request::Status) else { panic!("no status") };
    assert_eq!((status.waiting, status.jobs[0].written), (0, 200 * 20 * 4096));
}
