//! Concurrent operations, in many interleavings and by many threads: always serializable, never a loop.

use crate::cluster::{Cluster, Runner, Users};
use crate::common::{ROOT, name};
use crate::model::{Answer, How, Model, Op};
use forebay_model::{Change, ErrorKind, FileId, Identity, Stamp};
use forebay_store::{Op as Deed, RenameMode};
use forebay_testkit::{Rng, rounds, seed};
use std::sync::Mutex;
use std::thread::scope;

const NOW: Stamp = Stamp(5_000_000_000);

/// The initial tree; every name gets a number suffix, so that the home servers differ.
const TREE: [&str; 7] = ["d a", "d b", "d e", "d a/s", "f f", "f g", "f b/k"];

/// Pairs of conflicting operations.
const PAIRS: [(&str, &str); 16] = [
    ("mv a b/x", "mv b a/y"),
    ("mv a b/x", "mv b a/s/y"),
    ("swap a b/k", "mv b a/y"),
    ("rmdir e", "create e/n"),
    ("rmdir e", "mkdir e/n"),
    ("mv f e/n", "rmdir e"),
    ("mv a e/n", "rmdir e"),
    ("rm f", "mv f h"),
    ("ln f h", "rm f"),
    ("ln f e/h", "rmdir e"),
    ("mv f g", "mv g f"),
    ("mv f g", "rm g"),
    ("swap e f", "mv f h"),
    ("mv a q", "mv a r"),
    ("mv e b/e", "create e/n"),
    ("mv a/s e", "mv e b/z"),
];

fn build(number: u64) -> (Cluster, Model) {
    let mut cluster = Cluster::new(3 + (number % 2) as u16 * 2);
    let mut model = Model::new(0o777, Stamp(1));
    for line in TREE {
        let (what, path) = line.split_once(' ').expect("two words");
        let (dir, last) = split(&model, path, number);
        let op = match what {
            "d" => Op::MakeDir { dir, name: last, mode: 0o777 },
            _ => Op::Create { dir, name: last, mode: 0o666 },
        };
        let got = cluster.perform(&Identity::root(), &op, Stamp(2)).expect(line);
        let Answer::Made(id) = got else { panic!("{line}: {got:?}") };
        model.apply(&Identity::root(), &op, Stamp(2), id).expect(line);
    }
    cluster.users = Users::Turns;
    (cluster, model)
}

fn split(model: &Model, path: &str, number: u64) -> (FileId, forebay_model::Name) {
    let mut parts: Vec<_> = path.split('/').map(|part| name(&format!("{part}{number}"))).collect();
    let last = parts.pop().expect("at least one");
    (parts.iter().fold(ROOT, |dir, part| model.child(dir, part).expect("it was built")), last)
}

fn parse(model: &Model, text: &str, number: u64) -> Op {
    let words: Vec<_> = text.split(' ').collect();
    let (dir, last) = split(model, words[1], number);
    let to = words.get(2).map(|path| split(model, path, number));
    match (words[0], to) {
        ("rmdir", _) => Op::RemoveDir { dir, name: last },
        ("rm", _) => Op::Unlink { dir, name: last },
        ("create", _) => Op::Create { dir, name: last, mode: 0o600 },
        ("mkdir", _) => Op::MakeDir { dir, name: last, mode: 0o700 },
        ("ln", Some((to_dir, to_name))) => {
            let file = model.child(dir, &last).expect("it was built");
            Op::Link { file, dir: to_dir, name: to_name }
        }
        ("mv" | "swap", Some((to_dir, to_name))) => {
            let how = if words[0] == "mv" { How::Replace } else { How::Exchange };
            Op::Rename { dir, name: last, to_dir, to_name, how }
        }
        _ => panic!("unknown command: {text}"),
    }
}

/// An actor performs one operation, step by step if it involves several servers.
enum Actor {
    Plain(Op),
    Task(Box<Runner>),
    Done,
}

impl Actor {
    fn new(cluster: &Cluster, op: &Op) -> Actor {
        let deed = match op.clone() {
            Op::RemoveDir { dir, name } => Deed::RemoveDir { dir, name },
            Op::Unlink { dir, name } => Deed::Unlink { dir, name },
            Op::Link { file, dir, name } => Deed::Link { file, dir, name },
            Op::Rename { dir, name, to_dir, to_name, how } => {
                let mode = if how == How::Exchange { RenameMode::Exchange } else { RenameMode::Replace };
                Deed::Rename { dir, name, to_dir, to_name, mode }
            }
            plain => return Actor::Plain(plain),
        };
        // Any server can coordinate; the first one also for directories that change their parent.
        let runner = cluster.runner(cluster.members.first(), &Identity::root(), &deed, NOW);
        Actor::Task(Box::new(runner.expect("it runs")))
    }

    fn step(&mut self, cluster: &Cluster) -> Option<Result<Option<FileId>, ErrorKind>> {
        match self {
            Actor::Plain(op) => {
                let got = cluster.perform(&Identity::root(), op, NOW).map_err(|error| error.kind());
                if got == Err(ErrorKind::Busy) {
                    return None;
                }
                *self = Actor::Done;
                Some(got.map(|answer| match answer {
                    Answer::Made(id) => Some(id),
                    _ => None,
                }))
            }
            Actor::Task(runner) => Some(runner.step(cluster)?.map(|_| None).map_err(|error| error.kind())),
            Actor::Done => None,
        }
    }
}

type Outcome = Result<Option<FileId>, ErrorKind>;

/// Whether executing the operations in this order explains the results.
fn explains(cluster: &Cluster, model: &Model, order: [(&Op, &Outcome); 2]) -> Result<(), String> {
    let mut model = model.clone();
    for (op, real) in order {
        let made = match real {
            Ok(Some(id)) => *id,
            _ => FileId(u64::MAX),
        };
        // A busy operation changed nothing.
        if *real == Err(ErrorKind::Busy) {
            continue;
        }
        let expected = model.apply(&Identity::root(), op, NOW, made).map(drop);
        if expected != real.as_ref().map(drop).map_err(|kind| *kind) {
            return Err(format!("{op:?} gave {real:?} instead of {expected:?}"));
        }
    }
    cluster.compare(&model, NOW)
}

fn interleave(pair: (&str, &str), number: u64, random: &mut Rng) -> Result<bool, String> {
    let (cluster, model) = build(number);
    let ops = [parse(&model, pair.0, number), parse(&model, pair.1, number)];
    let mut actors = [Actor::new(&cluster, &ops[0]), Actor::new(&cluster, &ops[1])];
    let mut got: [Option<Outcome>; 2] = [None, None];
    for _ in 0..4000 {
        let turn = random.index(2);
        let answer = actors[turn].step(&cluster);
        if got[turn].is_none() {
            got[turn] = answer;
        }
        if got.iter().all(Option::is_some) && random.one_in(4) {
            break;
        }
    }
    cluster.resolve_all(NOW);
    let [Some(first), Some(second)] = got else { return Err(format!("no end: {got:?}")) };
    let findings = cluster.check();
    if !findings.is_empty() {
        return Err(format!("{findings:?} after {first:?}, {second:?}"));
    }
    let (one, other) = ((&ops[0], &first), (&ops[1], &second));
    let forwards = explains(&cluster, &model, [one, other]);
    let backwards = explains(&cluster, &model, [other, one]);
    match (forwards, backwards) {
        (Err(problem), Err(other)) => Err(format!("{first:?}, {second:?}: {problem}; {other}")),
        _ => Ok(first != Err(ErrorKind::Busy) && second != Err(ErrorKind::Busy)),
    }
}

#[test]
fn random_interleavings_of_two_operations_are_serializable() {
    let base = seed();
    let mut random = Rng::new(base);
    let (mut all, mut quiet) = (0, 0);
    for (number, pair) in rounds(60).flat_map(|number| PAIRS.map(|pair| (number, pair))) {
        let done = interleave(pair, number, &mut random);
        let done = done.unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}, {pair:?} {number}: {problem}"));
        all += 1;
        quiet += u32::from(done);
    }
    assert!(quiet * 10 > all * 9, "FOREBAY_SEED={base}: {quiet} of {all} completed without giving up");
}

/// A random operation, possible or not, on directories that are created and removed.
fn anything(random: &mut Rng, dirs: &[FileId]) -> Op {
    let letters = ["a", "b", "c", "d"];
    let (dir, to_dir) = (*random.pick(dirs), *random.pick(dirs));
    let letter = |random: &mut Rng| name(letters[random.index(4)]);
    let (from, to) = (letter(random), letter(random));
    match random.below(12) {
        0..=2 => Op::MakeDir { dir, name: from, mode: 0o777 },
        3 => Op::Create { dir, name: from, mode: 0o666 },
        4 => Op::RemoveDir { dir, name: from },
        5 => Op::Unlink { dir, name: from },
        6 => {
            let change =
                Change { mode: Some(if random.one_in(2) { 0o777 } else { 0o755 }), ..Change::default() };
            Op::SetAttr { file: dir, change }
        }
        7 => Op::Rename { dir, name: from, to_dir, to_name: to, how: How::Exchange },
        _ => Op::Rename { dir, name: from, to_dir, to_name: to, how: How::Replace },
    }
}

#[test]
fn random_threads_create_no_loop_and_lose_nothing() {
    use ErrorKind::{Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound};
    let base = seed();
    for round in rounds(3) {
        let mut cluster = Cluster::new(3);
        cluster.users = Users::Threads;
        let dirs = Mutex::new(vec![ROOT]);
        let (cluster, dirs) = (&cluster, &dirs);
        let worker = move |number: u64| {
            let mut random = Rng::new(base ^ (round * 64 + number).wrapping_mul(0x9e37_79b9));
            let mut done = 0;
            for _ in 0..120 {
                let known = dirs.lock().expect("no panic").clone();
                let op = anything(&mut random, &known[known.len().saturating_sub(12)..]);
                match cluster.perform(&Identity::root(), &op, NOW) {
                    Ok(Answer::Made(id)) if matches!(op, Op::MakeDir { .. }) => {
                        dirs.lock().expect("no panic").push(id);
                        done += 1;
                    }
                    Ok(_) => done += 1,
                    Err(error) => {
                        let fair = [Exists, Invalid, IsDirectory, NotDirectory, NotEmpty, NotFound];
                        assert!(fair.contains(&error.kind()), "FOREBAY_SEED={base}: {op:?}: {error}");
                    }
                }
            }
            done
        };
        let done: u32 = scope(|scope| {
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || worker(number))).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        cluster.resolve_all(NOW);
        assert_eq!(cluster.check(), Vec::<String>::new(), "FOREBAY_SEED={base}, round {round}");
        assert!(done > 100, "FOREBAY_SEED={base}: only {done} operations succeeded");
    }
}
