//! Requests by queues in shared memory: what they do, who may ask so, and what becomes of those who misuse it.

use crate::raw::{ALICE, Raw, World, name, person, refused};
use forebay_dice::{Dice, Seeded, mutate, rounds};
use forebay_model::{Access, ErrorKind, FileId, Identity};
use forebay_shm::{Answered, Asked, Asker, MOST_REQUEST};
use forebay_wire::{
    Answer, Call, Channel, FrameKind, HEADER, Header, IfExists, QueueGrant, Reply, Request, body, frame,
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
    OpenOptions::new().read(true).write(true).open(path).expect("a file of the store")
}

fn grant(raw: &mut Raw) -> QueueGrant {
    match raw.call(Request::Queue) {
        Ok(Reply::Queue(grant)) => *grant,
        other => panic!("no queue: {other:?}"),
    }
}

/// A queue of a connection.
struct Line {
    asker: Arc<Asker>,
    grant: QueueGrant,
}

impl Line {
    fn open(raw: &mut Raw) -> Line {
        let grant = grant(raw);
        let asker = Asker::open(&file(&grant.path), &file(&grant.bell), grant.nonce).expect("a queue");
        Line { asker, grant }
    }

    fn post(&self, who: Option<Identity>, request: Request) -> Asked {
        let mut bytes = Vec::new();
        frame(&mut bytes, FrameKind::Call, 9, &Call { identity: who, request }, 0).expect("it fits");
        self.asker.ask(&bytes).expect("a slot")
    }

    fn call(&self, request: Request) -> Answer {
        self.call_as(None, request)
    }

    fn call_as(&self, who: Option<Identity>, request: Request) -> Answer {
        match heard(&self.post(who, request)) {
            Answered::Bytes(bytes) => {
                let (head, rest) = bytes.split_first_chunk::<HEADER>().expect("a frame");
                let header = Header::decode(head).expect("a header");
                assert_eq!((header.kind, header.id), (FrameKind::Answer, 9));
                body(rest).expect("an answer")
            }
            other => panic!("not answered, but {other:?}"),
        }
    }
}

fn heard(asked: &Asked) -> Answered {
    loop {
        if let Some(answered) = asked.answer() {
            return answered;
        }
        asked.sleep(PATIENCE);
    }
}

fn create(text: &str, if_exists: IfExists) -> Request {
    Request::Create { dir: ROOT, name: name(text), mode: 0o600, access: Access::BOTH, if_exists }
}

fn walk(text: &str) -> Request {
    Request::Walk { dir: ROOT, path: text.into(), follow: true }
}

#[test]
fn what_is_asked_in_a_queue_is_what_it_is_on_its_connection() {
    let world = World::new();
    let mut raw = world.control();
    let line = Line::open(&mut raw);
    let Ok(Reply::Opened { token, created: true, .. }) = line.call(create("f", IfExists::Refuse)) else {
        panic!("not made");
    };
    refused(line.call(create("f", IfExists::Refuse)), ErrorKind::Exists);
    assert_eq!(raw.walk("f").unwrap().id, token.file, "the connection sees it");
    assert!(matches!(line.call(walk("f")), Ok(Reply::Found(attr)) if attr.id == token.file));
    // The session is that of the connection: what was opened here can be used and closed there, name or no name.
    assert_eq!(line.call(Request::Unlink { dir: ROOT, name: name("f") }), Ok(Reply::Done));
    assert!(raw.call(Request::GetAttr { file: token.file }).is_ok());
    assert_eq!(raw.call(Request::Close { token }), Ok(Reply::Done));
    refused(line.call(Request::GetAttr { file: token.file }), ErrorKind::Stale);
    // And so are the rights.
    let dir = raw.make_dir(ROOT, "own", 0o700);
    let make = Request::MakeDir { dir, name: name("d"), mode: 0o700 };
    refused(line.call_as(Some(person(ALICE)), make.clone()), ErrorKind::AccessDenied);
    assert!(line.call(make).is_ok());
    let Answered::Elsewhere = heard(&line.post(None, Request::Ping)) else { panic!("not for queues") };
    let Answered::Elsewhere = heard(&line.post(None, Request::Queue)) else { panic!("not for queues") };
    // An answer that does not fit is to be had by the socket; a long error is shortened.
    let target = vec![b'x'; 3000];
    raw.call(Request::Symlink { dir: ROOT, name: name("long"), target }).unwrap();
    let Answered::Elsewhere = heard(&line.post(None, walk("long"))) else { panic!("it does not fit") };
    let odd = String::from_utf8(vec![1; 200]).unwrap();
    refused(line.call(walk(&odd)), ErrorKind::NotFound);
}

#[test]
fn queues_are_for_the_service_s_own_user_on_its_machine_and_end_with_their_connection() {
    let world = World::new();
    let (mut far, _) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).unwrap();
    refused(far.call(Request::Queue), ErrorKind::Unsupported);
    let mut raw = world.control();
    let line = Line::open(&mut raw);
    let path = std::path::PathBuf::from(std::ffi::OsStr::from_bytes(&line.grant.path).to_owned());
    assert!(path.exists());
    let again = Line::open(&mut raw);
    assert!(!path.exists() && again.call(walk("")).is_ok(), "one of a connection");
    // What was asked before the connection ends is still done.
    let Ok(Reply::Opened { token, .. }) = again.call(create("f", IfExists::Open)) else { panic!("not made") };
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
fn what_was_given_up_with_its_connection_changes_nothing() {
    let world = World::new();
    let mut first = Raw::bare(std::os::unix::net::UnixStream::connect(world.socket()).unwrap());
    let welcome = first.greet(&crate::raw::hello(Channel::Control, 1), None).unwrap();
    let line = Line::open(&mut first);
    let Ok(Reply::Opened { token, .. }) = line.call(create("f", IfExists::Open)) else { panic!("not made") };
    let bind = |own| line.call(Request::Ring { token, own, write: true });
    let Ok(Reply::Ring(ring)) = bind(None) else { panic!("no ring") };
    assert!(bind(Some(ring.ring)).is_ok());
    let mut second = world.control();
    assert_eq!(second.call(Request::Abandon { connection: welcome.connection }), Ok(Reply::Done));
    refused(line.call(create("late", IfExists::Open)), ErrorKind::Unreachable);
    // Its client may write by it already, as it was bound elsewhere since.
    refused(bind(Some(ring.ring)), ErrorKind::Unreachable);
    refused(second.walk("late"), ErrorKind::NotFound);
}

/// Something that a client should not do to its queue.
fn misuse(line: &Line, raw: &File, samples: &[Vec<u8>], dice: &mut Dice) {
    match dice.below(4) {
        // Any frame, changed a little.
        0 | 1 => {
            let mut bytes = dice.pick(samples).clone();
            let other = dice.pick(samples);
            mutate(&mut bytes, other, dice);
            bytes.truncate(MOST_REQUEST);
            if let Some(asked) = line.asker.ask(&bytes)
                && dice.one_in(2)
            {
                asked.sleep(PATIENCE);
            }
        }
        // Any word or byte anywhere in the file: states, bits, lengths, requests under way, answers.
        2 => {
            let at = dice.below(forebay_shm::QUEUE_BYTES - 8);
            let value = *dice.pick(&[0, 1, 2, 3, 0x3c0, 0x3c1, u64::MAX, dice.clone().next()]);
            raw.write_all_at(&value.to_le_bytes(), at & !3).unwrap();
        }
        // Everything seems to be asked.
        _ => raw.write_all_at(&u64::MAX.to_le_bytes(), 4096).unwrap(),
    }
}

#[test]
fn random_frames_in_a_queue_harm_nobody() {
    let seeded = Seeded::new();
    let world = World::new();
    let mut honest = world.control();
    let good = Line::open(&mut honest);
    let Ok(Reply::Opened { token, .. }) = good.call(create("kept", IfExists::Open)) else {
        panic!("not made")
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
    let samples: Vec<Vec<u8>> = requests
        .into_iter()
        .map(|request| {
            let mut bytes = Vec::new();
            frame(&mut bytes, FrameKind::Call, 3, &Call { identity: None, request }, 0).unwrap();
            bytes
        })
        .collect();
    for round in rounds(12) {
        let mut dice = seeded.dice(round);
        let mut raw = Raw::unix(&world.socket(), Channel::Control, 7).unwrap();
        let line = Line::open(&mut raw);
        let words = file(&line.grant.path);
        for _ in 0..60 {
            misuse(&line, &words, &samples, &mut dice);
        }
        assert!(raw.call(Request::Ping).is_ok(), "its connection stands");
        // A frame may have become one that moves the name; the open file stays.
        assert!(
            matches!(good.call(Request::GetAttr { file: token.file }), Ok(Reply::Attr(attr)) if attr.id == token.file)
        );
    }
}
