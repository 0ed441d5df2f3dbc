use super::*;
use crate::DOORBELL_BYTES;
use forebay_testkit::{Rng, Seeded, rounds};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

fn file(len: u64) -> File {
    let file = File::from(memfd_create("queue", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, len).unwrap();
    file
}

struct Both {
    file: File,
    client: Arc<QueueClient>,
    server: QueueServer,
    doorbell: Arc<Doorbell>,
}

fn both() -> Both {
    let (file, rings) = (file(QUEUE_BYTES), file(DOORBELL_BYTES));
    let doorbell = Arc::new(Doorbell::new(&rings).unwrap());
    let server = QueueServer::create(&file, doorbell.clone(), 7).unwrap();
    assert!(QueueClient::open(&file, &rings, 8).is_err(), "another queue");
    let client = QueueClient::open(&file, &rings, 7).unwrap();
    Both { file, client, server, doorbell }
}

/// Replies to every request with its bytes reversed.
fn serve(server: &QueueServer) -> u64 {
    server.take(&mut Vec::new(), |taken, request| {
        let reply: Vec<u8> = request.iter().rev().copied().collect();
        server.answer(taken, &reply, None);
    })
}

#[test]
fn every_slot_is_used_and_reused() {
    let Both { client, server, .. } = both();
    for lap in 0..3_u8 {
        let asked: Vec<Asked> = (0..QUEUE_SLOTS as u8).map(|n| client.ask(&[lap, n]).unwrap()).collect();
        assert!(client.ask(&[1]).is_none(), "no slot is left");
        assert!(server.is_asked() && asked.iter().all(|asked| asked.answer().is_none()));
        assert_eq!(serve(&server), 0);
        for (n, asked) in (0..).zip(&asked) {
            assert_eq!(asked.answer(), Some(Answered::Bytes(vec![n, lap])));
        }
        assert!(!server.is_asked());
    }
    assert!(client.ask(&[0; MOST_REQUEST + 1]).is_none() && client.ask(&[0; MOST_REQUEST]).is_some());
}

#[test]
fn abandoned_request_is_served_and_its_slot_freed_after_the_reply() {
    let Both { client, server, .. } = both();
    for n in 0..QUEUE_SLOTS as u8 {
        drop(client.ask(&[n]).unwrap());
    }
    assert!(client.ask(&[99]).is_none(), "no reply yet");
    let mut seen = Vec::new();
    server.take(&mut Vec::new(), |taken, request| {
        seen.push(request.to_vec());
        server.answer(taken, &[], None);
    });
    assert_eq!(seen, (0..QUEUE_SLOTS as u8).map(|n| vec![n]).collect::<Vec<_>>());
    assert!(client.ask(&[99]).is_some());
}

#[test]
fn special_replies_are_distinguished() {
    let Both { client, server, .. } = both();
    for (answer, expected) in [
        ((|server, taken| server.refer(taken)) as fn(&QueueServer, Taken), Answered::Elsewhere),
        (|server, taken| server.give_up(taken), Answered::Unknown),
        (|server, taken| server.answer(taken, &[5; MOST_REPLY + 1], None), Answered::Elsewhere),
        (|server, taken| server.answer(taken, &[5; MOST_REPLY], None), Answered::Bytes(vec![5; MOST_REPLY])),
    ] {
        let asked = client.ask(b"x").unwrap();
        server.take(&mut Vec::new(), |taken, _| answer(&server, taken));
        assert_eq!(asked.answer(), Some(expected));
    }
}

#[test]
fn lease_belongs_to_its_own_reply_only() {
    let Both { client, server, .. } = both();
    let lease = Lease::of([3 << 16, 5 << 16]);
    for (with, answer) in [(true, lease), (false, None)] {
        let asked = client.ask(b"x").unwrap();
        assert_eq!(asked.lease(), None, "not answered");
        server.take(&mut Vec::new(), |taken, _| server.answer(taken, b"y", lease.filter(|_| with)));
        assert_eq!(asked.lease(), answer);
    }
    let asked = client.ask(b"x").unwrap();
    server.take(&mut Vec::new(), |taken, _| server.refer(taken));
    assert_eq!(asked.lease(), None);
}

#[test]
fn sleepers_of_both_sides_are_woken() {
    let Both { client, server, doorbell, .. } = both();
    let long = Duration::from_secs(600);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = 300;
            while left > 0 {
                doorbell.sleep(long, || server.is_asked());
                server.take(&mut Vec::new(), |taken, request| {
                    server.answer(taken, request, None);
                    left -= 1;
                });
            }
        });
        for thread in 0..3_u8 {
            let client = &client;
            scope.spawn(move || {
                for n in 0..100 {
                    let asked = client.ask(&[thread, n]).unwrap();
                    while !asked.is_answered() {
                        asked.sleep(long);
                    }
                    assert_eq!(asked.answer(), Some(Answered::Bytes(vec![thread, n])));
                }
            });
        }
    });
}

#[test]
fn random_words_in_the_file_cause_no_double_take_or_overlong_request() {
    let seeded = Seeded::new();
    for round in rounds(20) {
        misuse(&mut seeded.rng(round));
    }
}

fn misuse(rng: &mut Rng) {
    let Both { file, client, server, doorbell } = both();
    let hostile = Mapped { map: Map::new(&file, QUEUE_BYTES as usize).unwrap(), doorbell };
    let mut open: Vec<Taken> = Vec::new();
    for _ in 0..1000 {
        let slot = rng.below(u64::from(QUEUE_SLOTS)) as u32;
        match rng.below(6) {
            0 => hostile.post(rng.next()),
            1 => hostile.word(slot, STATE_AT).store(rng.below(6) as u32, Ordering::Relaxed),
            2 => {
                let any = rng.next() as u32;
                let len = *rng.pick(&[0, 1, MOST_REQUEST as u32, MOST_REQUEST as u32 + 1, any]);
                hostile.word(slot, REQUEST_LEN_AT).store(len, Ordering::Relaxed);
            }
            3 => hostile.word(slot, REPLY_LEN_AT).store(rng.next() as u32, Ordering::Relaxed),
            4 => {
                server.take(&mut Vec::new(), |taken, request| {
                    assert!(request.len() <= MOST_REQUEST && taken.0 < QUEUE_SLOTS);
                    assert!(!open.contains(&taken), "taken twice");
                    open.push(taken);
                });
            }
            _ => {
                if let Some(taken) = open.pop() {
                    server.answer(taken, &[1, 2, 3], None);
                }
                // A client in such a file receives any reply or none, but no invalid one.
                if let Some(asked) = client.ask(b"honest") {
                    assert!(
                        !matches!(asked.answer(), Some(Answered::Bytes(bytes)) if bytes.len() > MOST_REPLY)
                    );
                }
            }
        }
    }
}
