//! Requests through shared-memory queues: their effect, their permissions, and how the server handles misuse.

use crate::bounds::stalling;
use crate::raw::{ALICE, Raw, World, name, person, refused};
use forebay_model::{Access, ErrorKind, FileId, Identity};
use forebay_shm::{Answered, Asked, MOST_REQUEST, QueueClient};
use forebay_testkit::{Rng, Seeded, mutate, rounds};
use forebay_wire::{
    Answer, Call, Channel, FrameKind, HEADER, Header, IfExists, QueueGrant, Reply, Request, Token, body,
    frame,
};
use std::fs::{File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;
const PATIENCE: Duration = Duration::from_millis(5);

fn file(path: &[u8]) -> File {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    OpenOptions::new().read(true).write(true).open(path).expect("file of the store")
}

fn grant(raw: &mut Raw) -> QueueGrant {
    match raw.call(Request::Queue) {
        Ok(Reply::Queue(grant)) => *grant,
        other => panic!("no queue: {other:?}"),
    }
}

struct Queue {
    client: Arc<QueueClient>,
    grant: QueueGrant,
}

impl Queue {
    fn open(raw: &mut Raw) -> Queue {
        let grant = grant(raw);
        let client =
            QueueClient::open(&file(&grant.path), &file(&grant.doorbell), grant.nonce).expect("a queue");
        Queue { client, grant }
    }

    fn post(&self, who: Option<Identity>, request: Request) -> Asked {
        let mut bytes = Vec::new();
        frame(&mut bytes, FrameKind::Call, 9, &Call { identity: who, request }, 0).expect("frame fits");
        self.client.ask(&bytes).expect("a slot")
    }

    /// Sends several calls in one slot; returns the answers.
    fn call_together(&self, requests: &[Request]) -> Option<Vec<Answer>> {
        let asked = self.client.ask(&calls(requests)).expect("a slot");
        match wait_for_answer(&asked) {
            Answered::Bytes(bytes) => Some(answers(&bytes)),
            Answered::Unknown => None,
            other => panic!("unexpected answer: {other:?}"),
        }
    }

    fn call(&self, request: Request) -> Answer {
        self.call_as(None, request)
    }

    fn call_as(&self, who: Option<Identity>, request: Request) -> Answer {
        match wait_for_answer(&self.post(who, request)) {
            Answered::Bytes(bytes) => {
                let (head, rest) = bytes.split_first_chunk::<HEADER>().expect("a frame");
                let header = Header::decode(head).expect("a header");
                assert_eq!((header.kind, header.id), (FrameKind::Answer, 9));
                body(rest).expect("an answer")
            }
            other => panic!("unexpected answer: {other:?}"),
        }
    }
}

fn wait_for_answer(call: &Asked) -> Answered {
    loop {
        if let Some(answered) = call.answer() {
            return answered;
        }
        call.sleep(PATIENCE);
    }
}

fn calls(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        let call = Call { identity: None, request: request.clone() };
        frame(&mut bytes, FrameKind::Call, 9, &call, 0).expect("frame fits");
    }
    bytes
}

fn answers(mut bytes: &[u8]) -> Vec<Answer> {
    let mut answers = Vec::new();
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() {
        let (answer, rest) = rest.split_at(Header::decode(head).expect("a header").body as usize);
        answers.push(body(answer).expect("an answer"));
        bytes = rest;
    }
    answers
}

fn create(text: &str, if_exists: IfExists) -> Request {
    Request::Create { dir: ROOT, name: name(text), mode: 0o600, access: Access::BOTH, if_exists }
}

fn walk(text: &str) -> Request {
    Request::Walk { dir: ROOT, path: text.into(), follow: true }
}

#[test]
fn queue_requests_behave_as_on_their_connection() {
    let world = World::new();
    let mut raw = world.control();
    let queue = Queue::open(&mut raw);
    let Ok(Reply::Opened { token, created: true, .. }) = queue.call(create("f", IfExists::Refuse)) else {
        panic!("not created");
    };
    refused(queue.call(create("f", IfExists::Refuse)), ErrorKind::Exists);
    assert_eq!(raw.walk("f").unwrap().id, token.file, "visible through the connection");
    assert!(matches!(queue.call(walk("f")), Ok(Reply::Found(attr)) if attr.id == token.file));
    // Queue and connection share one session: a file opened through the one can be used and closed through the other,
    // with or without a name.
    assert_eq!(queue.call(Request::Unlink { dir: ROOT, name: name("f") }), Ok(Reply::Done));
    assert!(raw.call(Request::GetAttr { file: token.file }).is_ok());
    assert_eq!(raw.call(Request::Close { token }), Ok(Reply::Done));
    refused(queue.call(Request::GetAttr { file: token.file }), ErrorKind::Stale);
    // They share permissions.
    let dir = raw.make_dir(ROOT, "own", 0o700);
    let make = Request::MakeDir { dir, name: name("d"), mode: 0o700 };
    refused(queue.call_as(Some(person(ALICE)), make.clone()), ErrorKind::AccessDenied);
    assert!(queue.call(make).is_ok());
    let Answered::Elsewhere = wait_for_answer(&queue.post(None, Request::Ping)) else {
        panic!("not for queues")
    };
    let Answered::Elsewhere = wait_for_answer(&queue.post(None, Request::Queue)) else {
        panic!("not for queues")
    };
    // A long answer goes over the socket; a long error is shortened.
    let target = vec![b'x'; 3000];
    raw.call(Request::Symlink { dir: ROOT, name: name("long"), target }).unwrap();
    let Answered::Elsewhere = wait_for_answer(&queue.post(None, walk("long"))) else {
        panic!("answer does not fit")
    };
    let odd = String::from_utf8(vec![1; 200]).unwrap();
    refused(queue.call(walk(&odd)), ErrorKind::NotFound);
}

#[test]
fn stalled_back_end_call_of_one_queue_delays_no_other_queue() {
    let (world, stall) = stalling("find", |_| {});
    let mut raws: Vec<Raw> = (0..3).map(|_| world.control()).collect();
    let queues: Vec<Queue> = raws.iter_mut().map(Queue::open).collect();
    let dir = raws[0].make_dir(ROOT, "d", 0o755);
    let in_dir = |text: &str| Request::MakeDir { dir, name: name(text), mode: 0o755 };
    for round in 0..3 {
        let named = |text: &str| format!("{text}{round}");
        stall.close(2);
        // Both look the name up in the back end: the first on a queue thread.
        let first = queues[0].post(None, create(&named("a"), IfExists::Refuse));
        stall.wait_for(2 * round + 1);
        let second = queues[1].post(None, create(&named("b"), IfExists::Refuse));
        stall.wait_for(2 * round + 2);
        for number in 0..20 {
            let made = queues[2].call(in_dir(&named(&format!("c{number}."))));
            assert!(made.is_ok(), "{made:?}");
        }
        assert!(queues[1].call(in_dir(&named("e"))).is_ok());
        assert!(first.answer().is_none() && second.answer().is_none());
        stall.open();
        for asked in [first, second] {
            assert!(matches!(wait_for_answer(&asked), Answered::Bytes(_)));
        }
        // The queue of the stalled request goes on.
        assert!(queues[0].call(in_dir(&named("f"))).is_ok());
        assert!(raws[0].walk(&named("a")).is_ok() && raws[0].walk(&named("b")).is_ok());
    }
}

#[test]
fn queue_ends_while_its_request_waits_for_the_back_end() {
    let (world, stall) = stalling("find", |_| {});
    let (mut raw, mut other) = (world.control(), world.control());
    let (queue, others) = (Queue::open(&mut raw), Queue::open(&mut other));
    let dir = other.make_dir(ROOT, "d", 0o755);
    stall.close(1);
    drop(queue.post(None, create("late", IfExists::Refuse)));
    stall.wait_for(1);
    // The queue's thread is in the stalled request and has not seen this one.
    drop(queue.post(None, Request::MakeDir { dir, name: name("later"), mode: 0o755 }));
    drop(raw);
    for number in 0..20 {
        let made = others.call(Request::MakeDir { dir, name: name(&format!("c{number}")), mode: 0o755 });
        assert!(made.is_ok(), "{made:?}");
    }
    stall.open();
    while other.walk("late").is_err() || other.walk("d/later").is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn queues_are_local_and_end_with_their_connection() {
    let world = World::new();
    let (mut far, _) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).unwrap();
    refused(far.call(Request::Queue), ErrorKind::Unsupported);
    let mut raw = world.control();
    let queue = Queue::open(&mut raw);
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&queue.grant.path).to_owned());
    assert!(path.exists());
    let again = Queue::open(&mut raw);
    assert!(!path.exists() && again.call(walk("")).is_ok(), "a connection has one queue");
    // Requests sent before the connection ends are still executed.
    let Ok(Reply::Opened { token, .. }) = again.call(create("f", IfExists::Open)) else {
        panic!("not created")
    };
    drop(again.post(None, Request::Close { token }));
    drop(again.post(None, Request::Unlink { dir: ROOT, name: name("f") }));
    drop(raw);
    let mut other = world.control();
    while other.walk("f").is_ok() {
        std::thread::yield_now();
    }
    let off = World::with(|config| config.shared_memory = false);
    refused(off.control().call(Request::Queue), ErrorKind::Unsupported);
}

#[test]
fn ring_and_extents_come_with_an_open() {
    let world = World::new();
    let mut raw = world.control();
    let queue = Queue::open(&mut raw);
    let Ok(Reply::Opened { token, .. }) = queue.call(create("first", IfExists::Open)) else {
        panic!("not created")
    };
    let Ok(Reply::Ring(idle)) = queue.call(Request::Ring { token, own: None, write: true }) else {
        panic!("no ring")
    };
    let bind = |ring, write| Request::Ring { token: Token::OPENED, own: Some(ring), write };
    let map = |ring| Request::Map { token: Token::OPENED, ring, from: 0 };
    let ring = idle.ring;
    let made = queue.call_together(&[create("second", IfExists::Refuse), bind(ring, true)]).unwrap();
    let [Ok(Reply::Opened { token, created: true, .. }), Ok(Reply::Ring(bound))] = &made[..] else {
        panic!("unexpected answers: {made:?}")
    };
    assert!(bound.ring == ring && bound.binding != idle.binding);
    let open = Request::Open { file: token.file, access: Access::READ, truncate: false };
    let opened = queue.call_together(&[open.clone(), bind(ring, false), map(ring)]).unwrap();
    assert!(
        matches!(&opened[..], [Ok(Reply::Opened { .. }), Ok(Reply::Ring(_)), Ok(Reply::Map(map))] if map.size == 0),
        "{opened:?}"
    );
    // What fails is left out: no such ring, no right to write, a directory, an error of the open itself.
    let only_opened = |requests: &[Request]| {
        let answers = queue.call_together(requests).unwrap();
        assert!(matches!(&answers[..], [Ok(Reply::Opened { .. })]), "{answers:?}");
    };
    only_opened(&[create("third", IfExists::Refuse), bind(ring + 1000, true)]);
    only_opened(&[open.clone(), bind(ring, true)]);
    only_opened(&[
        Request::Open { file: ROOT, access: Access::READ, truncate: false },
        bind(ring, false),
        map(ring),
    ]);
    let exists = queue.call_together(&[create("third", IfExists::Refuse), bind(ring, true)]).unwrap();
    assert!(matches!(&exists[..], [Err(error)] if error.kind() == ErrorKind::Exists));
    // Calls that do not belong together are not executed, not even the first.
    let own = Request::Ring { token: *token, own: Some(ring), write: true };
    let unlink = Request::Unlink { dir: ROOT, name: name("first") };
    for others in [
        vec![unlink.clone()],
        vec![own],
        vec![map(ring)],
        vec![bind(ring, false)],
        vec![bind(ring, false), map(ring + 1)],
        vec![bind(ring, false), map(ring), unlink],
    ] {
        let requests = [vec![create("fourth", IfExists::Refuse)], others].concat();
        assert_eq!(queue.call_together(&requests), None);
    }

    refused(raw.walk("fourth"), ErrorKind::NotFound);
    assert!(raw.walk("first").is_ok());
}

#[test]
fn requests_of_an_abandoned_connection_change_nothing() {
    let world = World::new();
    let mut first = Raw::bare(std::os::unix::net::UnixStream::connect(world.socket()).unwrap());
    let welcome = first.greet(&crate::raw::hello(Channel::Control, 1), None).unwrap();
    let queue = Queue::open(&mut first);
    let Ok(Reply::Opened { token, .. }) = queue.call(create("f", IfExists::Open)) else {
        panic!("not created")
    };
    let bind = |own| queue.call(Request::Ring { token, own, write: true });
    let Ok(Reply::Ring(ring)) = bind(None) else { panic!("no ring") };
    assert!(bind(Some(ring.ring)).is_ok());
    let mut second = world.control();
    assert_eq!(second.call(Request::Abandon { connection: welcome.connection }), Ok(Reply::Done));
    refused(queue.call(create("late", IfExists::Open)), ErrorKind::Unreachable);
    // The client may already write to the ring, bound again over another connection.
    refused(bind(Some(ring.ring)), ErrorKind::Unreachable);
    refused(second.walk("late"), ErrorKind::NotFound);
}

/// A random misuse of the queue.
fn misuse(queue: &Queue, raw: &File, samples: &[Vec<u8>], rng: &mut Rng) {
    match rng.below(4) {
        // A frame with random mutations.
        0 | 1 => {
            let mut bytes = rng.pick(samples).clone();
            let other = rng.pick(samples);
            mutate(&mut bytes, other, rng);
            bytes.truncate(MOST_REQUEST);
            if let Some(call) = queue.client.ask(&bytes)
                && rng.one_in(2)
            {
                call.sleep(PATIENCE);
            }
        }
        // A random word anywhere in the file: states, bits, lengths, requests in progress, answers.
        2 => {
            let at = rng.below(forebay_shm::QUEUE_BYTES - 8);
            let value = *rng.pick(&[0, 1, 2, 3, 0x3c0, 0x3c1, u64::MAX, rng.clone().next()]);
            raw.write_all_at(&value.to_le_bytes(), at & !3).unwrap();
        }
        // All slots seem to hold requests.
        _ => raw.write_all_at(&u64::MAX.to_le_bytes(), 4096).unwrap(),
    }
}

#[test]
fn random_frames_in_a_queue_do_not_affect_other_clients() {
    let seeded = Seeded::new();
    let world = World::new();
    let mut honest = world.control();
    let good = Queue::open(&mut honest);
    let Ok(Reply::Opened { token, .. }) = good.call(create("kept", IfExists::Open)) else {
        panic!("not created")
    };
    let requests = [
        walk("kept"),
        create("other", IfExists::Open),
        Request::GetAttr { file: token.file },
        Request::Reopen { token },
        Request::Rename {
            dir: ROOT,
            name: name("other"),
            to_dir: ROOT,
            to_name: name("third"),
            mode: forebay_wire::RenameMode::Replace,
        },
    ];
    let with_ring = [
        create("other", IfExists::Open),
        Request::Ring { token: Token::OPENED, own: Some(0), write: false },
        Request::Map { token: Token::OPENED, ring: 0, from: 0 },
    ];
    let alone = requests.iter().map(|request| calls(std::slice::from_ref(request)));
    let samples: Vec<Vec<u8>> = alone.chain([calls(&with_ring)]).collect();
    for round in rounds(12) {
        let mut rng = seeded.rng(round);
        let mut raw = Raw::unix(&world.socket(), Channel::Control, 7).unwrap();
        let queue = Queue::open(&mut raw);
        let words = file(&queue.grant.path);
        for _ in 0..60 {
            misuse(&queue, &words, &samples, &mut rng);
        }
        assert!(raw.call(Request::Ping).is_ok(), "the connection stays open");
        // A mutated frame may rename the file; the open file stays.
        assert!(
            matches!(good.call(Request::GetAttr { file: token.file }), Ok(Reply::Attr(attr)) if attr.id == token.file)
        );
    }
}
