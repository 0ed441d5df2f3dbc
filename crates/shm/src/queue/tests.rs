use super::*;
use crate::BELL_BYTES;
use forebay_dice::{Dice, Seeded, rounds};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

fn file(len: u64) -> File {
    let file = File::from(memfd_create("queue", MemfdFlags::CLOEXEC).unwrap());
    ftruncate(&file, len).unwrap();
    file
}

struct Both {
    file: File,
    asker: Arc<Asker>,
    clerk: Clerk,
    bell: Arc<Bell>,
}

fn both() -> Both {
    let (file, rings) = (file(QUEUE_BYTES), file(BELL_BYTES));
    let bell = Arc::new(Bell::new(&rings).unwrap());
    let clerk = Clerk::create(&file, bell.clone(), 7).unwrap();
    assert!(Asker::open(&file, &rings, 8).is_err(), "another queue");
    let asker = Asker::open(&file, &rings, 7).unwrap();
    Both { file, asker, clerk, bell }
}

/// Answers everything with what it was, backwards.
fn serve(clerk: &Clerk) -> u64 {
    clerk.take(&mut Vec::new(), |taken, request| {
        let reply: Vec<u8> = request.iter().rev().copied().collect();
        clerk.answer(taken, &reply, None);
    })
}

#[test]
fn every_slot_is_used_and_used_again() {
    let Both { asker, clerk, .. } = both();
    for lap in 0..3_u8 {
        let asked: Vec<Asked> = (0..QUEUE_SLOTS as u8).map(|n| asker.ask(&[lap, n]).unwrap()).collect();
        assert!(asker.ask(&[1]).is_none(), "no slot is left");
        assert!(clerk.is_asked() && asked.iter().all(|asked| asked.answer().is_none()));
        assert_eq!(serve(&clerk), 0);
        for (n, asked) in (0..).zip(&asked) {
            assert_eq!(asked.answer(), Some(Answered::Bytes(vec![n, lap])));
        }
        assert!(!clerk.is_asked());
    }
    assert!(asker.ask(&[0; MOST_REQUEST + 1]).is_none() && asker.ask(&[0; MOST_REQUEST]).is_some());
}

#[test]
fn what_nobody_waits_for_is_done_and_its_slot_comes_back_when_it_is_answered() {
    let Both { asker, clerk, .. } = both();
    for n in 0..QUEUE_SLOTS as u8 {
        drop(asker.ask(&[n]).unwrap());
    }
    assert!(asker.ask(&[99]).is_none(), "none is answered");
    let mut seen = Vec::new();
    clerk.take(&mut Vec::new(), |taken, request| {
        seen.push(request.to_vec());
        clerk.answer(taken, &[], None);
    });
    assert_eq!(seen, (0..QUEUE_SLOTS as u8).map(|n| vec![n]).collect::<Vec<_>>());
    assert!(asker.ask(&[99]).is_some());
}

#[test]
fn answers_that_are_none_are_told_apart() {
    let Both { asker, clerk, .. } = both();
    for (answer, expected) in [
        ((|clerk, taken| clerk.refer(taken)) as fn(&Clerk, Taken), Answered::Elsewhere),
        (|clerk, taken| clerk.give_up(taken), Answered::Unknown),
        (|clerk, taken| clerk.answer(taken, &[5; MOST_REPLY + 1], None), Answered::Elsewhere),
        (|clerk, taken| clerk.answer(taken, &[5; MOST_REPLY], None), Answered::Bytes(vec![5; MOST_REPLY])),
    ] {
        let asked = asker.ask(b"x").unwrap();
        clerk.take(&mut Vec::new(), |taken, _| answer(&clerk, taken));
        assert_eq!(asked.answer(), Some(expected));
    }
}

#[test]
fn a_lease_comes_with_its_own_answer_only() {
    let Both { asker, clerk, .. } = both();
    let lease = Lease::of([3 << 16, 5 << 16]);
    for (with, answer) in [(true, lease), (false, None)] {
        let asked = asker.ask(b"x").unwrap();
        assert_eq!(asked.lease(), None, "not answered");
        clerk.take(&mut Vec::new(), |taken, _| clerk.answer(taken, b"y", lease.filter(|_| with)));
        assert_eq!(asked.lease(), answer);
    }
    let asked = asker.ask(b"x").unwrap();
    clerk.take(&mut Vec::new(), |taken, _| clerk.refer(taken));
    assert_eq!(asked.lease(), None);
}

#[test]
fn sleepers_of_both_sides_are_woken() {
    let Both { asker, clerk, bell, .. } = both();
    let long = Duration::from_secs(600);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut left = 300;
            while left > 0 {
                bell.sleep(long, || clerk.is_asked());
                clerk.take(&mut Vec::new(), |taken, request| {
                    clerk.answer(taken, request, None);
                    left -= 1;
                });
            }
        });
        for thread in 0..3_u8 {
            let asker = &asker;
            scope.spawn(move || {
                for n in 0..100 {
                    let asked = asker.ask(&[thread, n]).unwrap();
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
fn random_words_in_the_file_take_nothing_twice_and_nothing_too_long() {
    let seeded = Seeded::new();
    for round in rounds(20) {
        misuse(&mut seeded.dice(round));
    }
}

fn misuse(dice: &mut Dice) {
    let Both { file, asker, clerk, bell } = both();
    let hostile = Mapped { map: Map::new(&file, QUEUE_BYTES as usize).unwrap(), bell };
    let mut open: Vec<Taken> = Vec::new();
    for _ in 0..1000 {
        let slot = dice.below(u64::from(QUEUE_SLOTS)) as u32;
        match dice.below(6) {
            0 => hostile.post(dice.next()),
            1 => hostile.word(slot, STATE_AT).store(dice.below(6) as u32, Ordering::Relaxed),
            2 => {
                let any = dice.next() as u32;
                let len = *dice.pick(&[0, 1, MOST_REQUEST as u32, MOST_REQUEST as u32 + 1, any]);
                hostile.word(slot, REQUEST_LEN_AT).store(len, Ordering::Relaxed);
            }
            3 => hostile.word(slot, REPLY_LEN_AT).store(dice.next() as u32, Ordering::Relaxed),
            4 => {
                clerk.take(&mut Vec::new(), |taken, request| {
                    assert!(request.len() <= MOST_REQUEST && taken.0 < QUEUE_SLOTS);
                    assert!(!open.contains(&taken), "taken twice");
                    open.push(taken);
                });
            }
            _ => {
                if let Some(taken) = open.pop() {
                    clerk.answer(taken, &[1, 2, 3], None);
                }
                // Who asks honestly in such a file gets any answer or none, and comes to no harm.
                if let Some(asked) = asker.ask(b"honest") {
                    assert!(
                        !matches!(asked.answer(), Some(Answered::Bytes(bytes)) if bytes.len() > MOST_REPLY)
                    );
                }
            }
        }
    }
}
