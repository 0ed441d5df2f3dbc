//! The namespace of several servers against the model, with lost messages and crashes at every step.

use crate::cluster::{Cluster, Fault, any_fault};
use crate::common::{open_root, outcome};
use crate::model::{Answer, Model, Op, Outcome};
use crate::random::Author;
use forebay_model::{ErrorKind, FileId, Identity, Member, Members, ServerId, Stamp};
use forebay_store::{Batch, Kv, MemoryKv, Names};
use forebay_testkit::{rounds, seed};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn moment(number: u64) -> Stamp {
    Stamp(number * 1_000_000_007)
}

/// Performs one operation on the cluster and the model; returns its result, or the difference.
fn step(cluster: &Cluster, model: &mut Model, author: &mut Author, now: Stamp) -> Result<Outcome, String> {
    let (who, op) = (author.who(), author.op(model));
    let real = cluster.perform(&who, &op, now);
    let got = real.as_ref().err().map(ToString::to_string);
    let real = real.map_err(|error| error.kind());
    let made = match real {
        Ok(Answer::Made(id)) => {
            author.known.push(id);
            id
        }
        _ => FileId(u64::MAX),
    };
    let expected = model.apply(&who, &op, now, made);
    match real == expected {
        true => Ok(real),
        false => Err(format!("user {} {op:?}: got {real:?} ({got:?}), expected {expected:?}", who.uid)),
    }
}

#[test]
fn random_operations_of_several_servers_match_the_model() {
    let base = seed();
    for (servers, usual) in [(1, 2), (3, 8), (5, 8)] {
        let (mut succeeded, mut steps) = (0, 0);
        for round in rounds(usual) {
            let (cluster, mut model) = (Cluster::new(servers), Model::new(0o777, Stamp(1)));
            let mut author = Author::new(base.wrapping_add(round));
            let complain = |number: u64, problem: String| -> ! {
                panic!("FOREBAY_SEED={base}, {servers} servers, round {round}, step {number}: {problem}")
            };
            for number in 1..=500 {
                let now = moment(number);
                let got = step(&cluster, &mut model, &mut author, now);
                steps += 1;
                succeeded += u64::from(got.unwrap_or_else(|problem| complain(number, problem)).is_ok());
                if number % 5 == 0 {
                    let same = cluster.compare(&model, now);
                    same.unwrap_or_else(|problem| complain(number, problem));
                }
            }
            let findings = cluster.check();
            assert_eq!(findings, Vec::<String>::new(), "FOREBAY_SEED={base}, {servers}, {round}");
        }
        assert!(
            succeeded * 5 > steps,
            "FOREBAY_SEED={base}: only {succeeded} of {steps} operations succeeded"
        );
    }
}

/// A namespace after some random operations, and its model.
fn used(servers: u16, seed: u64, steps: u64) -> (Cluster, Model, Author) {
    let (cluster, mut model) = (Cluster::new(servers), Model::new(0o777, Stamp(1)));
    let mut author = Author::new(seed);
    for number in 1..=steps {
        let got = step(&cluster, &mut model, &mut author, moment(number));
        got.map(drop).unwrap_or_else(|problem| panic!("seed {seed}, step {number}: {problem}"));
    }
    (cluster, model, author)
}

/// An operation that renames existing files and succeeds.
fn move_something(author: &mut Author, model: &Model, now: Stamp) -> (Identity, Op) {
    for _ in 0..10_000 {
        let (who, op) = (author.who(), author.op(model));
        let wanted =
            matches!(op, Op::Rename { .. } | Op::Link { .. } | Op::Unlink { .. } | Op::RemoveDir { .. });
        if wanted
            && let Ok(got) = model.clone().apply(&who, &op, now, FileId(u64::MAX))
            && (!matches!(op, Op::Rename { .. }) || got != Answer::Lost(None) || author.random.one_in(4))
        {
            return (who, op);
        }
    }
    panic!("nothing can be moved");
}

/// Performs one operation with a fault, recovers all servers and checks the result.
fn survive(
    fresh: &Cluster,
    model: &Model,
    who: &Identity,
    op: &Op,
    at: u64,
    fault: Fault,
) -> Result<(), String> {
    let now = moment(1_000_000);
    let cluster = fresh.fork();
    let mut new = model.clone();
    new.apply(who, op, now, FileId(u64::MAX)).expect("it was tried before");
    cluster.plan(at, fault);
    let got = cluster.perform(who, op, now);
    cluster.restart();
    // A reader that finds an open intent queries its outcome; no intermediate state is visible.
    let (is_old, is_new) = (cluster.view(model, now), cluster.view(&new, now));
    match (&got, &is_old, &is_new) {
        (Ok(_), _, Ok(())) | (Err(_), Ok(()), _) | (Err(_), _, Ok(())) => {}
        _ => return Err(format!("{got:?}: not old: {is_old:?}, not new: {is_new:?}")),
    }
    cluster.resolve_all(now);
    let findings = cluster.check();
    if !findings.is_empty() {
        return Err(format!("{findings:?}, after {got:?}"));
    }
    cluster.compare(if is_new.is_ok() { &new } else { model }, now)?;
    // Nothing is locked: the operation can be repeated now, or was already done.
    let again = moment(1_000_001);
    let mut after = if is_new.is_ok() { new } else { model.clone() };
    let expected = after.apply(who, op, again, FileId(u64::MAX));
    let real = cluster.perform(who, op, again).map_err(|error| error.kind());
    if real != expected {
        return Err(format!("again: {real:?} instead of {expected:?}"));
    }
    cluster.compare(&after, again)
}

const MISHAPS: [Fault; 5] = [
    Fault::Cut,
    Fault::Sender { machine: false },
    Fault::Sender { machine: true },
    Fault::Receiver { machine: false },
    Fault::Receiver { machine: true },
];

#[test]
fn random_intents_survive_every_fault_at_every_step() {
    let base = seed();
    let mut tried = 0;
    for round in rounds(12) {
        let servers = if round % 3 == 0 { 5 } else { 3 };
        let (cluster, model, mut author) = used(servers, base.wrapping_add(round), 80);
        for _ in 0..3 {
            let now = moment(1_000_000);
            let (who, op) = move_something(&mut author, &model, now);
            let quiet = cluster.fork();
            quiet
                .perform(&who, &op, now)
                .unwrap_or_else(|error| panic!("FOREBAY_SEED={base}: {op:?}: {error}"));
            for at in 0..quiet.events.load(Ordering::SeqCst) {
                for fault in MISHAPS {
                    tried += 1;
                    survive(&cluster, &model, &who, &op, at, fault).unwrap_or_else(|problem| {
                        panic!("FOREBAY_SEED={base}, round {round}, {op:?}, event {at}, {fault:?}: {problem}")
                    });
                }
            }
        }
    }
    assert!(tried > 500, "FOREBAY_SEED={base}: only {tried} faults");
}

/// Seeds that once found a bug: a file without names could still be used by its id.
const KEPT: [u64; 2] = [602_196_956, 602_196_957];

#[test]
fn random_operations_with_faults_leave_the_old_or_the_new_state() {
    let base = seed();
    let mut faults = 0;
    let seeds = rounds(10).map(|round| base.wrapping_add(100 + round));
    for (round, seed) in KEPT.into_iter().chain(seeds).enumerate() {
        let servers = if round % 2 == 0 { 3 } else { 5 };
        let (cluster, mut model, mut author) = used(servers, seed, 40);
        cluster.sync();
        for number in 1000..1150 {
            let now = moment(number);
            let complain = |problem: String| -> ! {
                panic!("FOREBAY_SEED={base}, round {round}, step {number}: {problem}")
            };
            let (who, op) = (author.who(), author.op(&model));
            let at = cluster.events.load(Ordering::SeqCst) + author.random.next() % 7;
            cluster.plan(at, any_fault(&mut author.random));
            let real = cluster.perform(&who, &op, now);
            cluster.restart();
            let got = format!("user {} {op:?}: {real:?}", who.uid);
            let made = match real {
                Ok(Answer::Made(id)) => id,
                _ => FileId(u64::MAX),
            };
            let mut new = model.clone();
            let expected = new.apply(&who, &op, now, made);
            match real.map_err(|error| error.kind()) {
                Err(ErrorKind::Unreachable) => {
                    faults += 1;
                    let (is_old, is_new) = (cluster.view(&model, now), cluster.view(&new, now));
                    match (is_old, is_new) {
                        (Ok(()), _) => {}
                        (_, Ok(())) => model = new,
                        (old, new) => complain(format!("{got}: not old: {old:?}, not new: {new:?}")),
                    }
                }
                // Whether the file has other names is answered by a server that may be down.
                Ok(Answer::Lost(Some((file, _)))) if matches!(expected, Ok(Answer::Lost(Some((lost, _)))) if lost == file) =>
                {
                    model = new;
                }
                real if real == expected => model = new,
                real => complain(format!("{got}: got {real:?}, expected {expected:?}")),
            }
            cluster.view(&model, now).unwrap_or_else(|problem| complain(format!("{got}: {problem}")));
            // A machine crash loses unsynced data; another test covers that.
            cluster.sync();
        }
        cluster.resolve_all(moment(2000));
        assert_eq!(cluster.check(), Vec::<String>::new(), "FOREBAY_SEED={base}, round {round}");
        let same = cluster.compare(&model, moment(2000));
        same.unwrap_or_else(|problem| panic!("FOREBAY_SEED={base}, round {round}: {problem}"));
    }
    assert!(faults > 60, "FOREBAY_SEED={base}: only {faults} faults");
}

#[test]
fn random_machine_crashes_leave_a_consistent_namespace() {
    let base = seed();
    for round in rounds(12) {
        let cluster = Cluster::new(3);
        let (mut model, mut author) =
            (Model::new(0o777, Stamp(1)), Author::new(base.wrapping_add(500 + round)));
        for number in 1..=250 {
            let (op, now) = (author.op(&model), moment(number));
            // Lost changes are not in the model: most of its operations work all the same.
            let got = cluster.perform(&Identity::root(), &op, now);
            let made = match got {
                Ok(Answer::Made(id)) => id,
                _ => FileId(u64::MAX),
            };
            if got.is_ok() {
                drop(model.apply(&Identity::root(), &op, now, made));
            }
            if author.random.one_in(30) {
                let server = ServerId(author.random.below(3) as u16);
                cluster.crash(server, true);
                cluster.restart();
                cluster.resolve_all(now);
                let findings = cluster.check();
                assert_eq!(findings, Vec::<String>::new(), "FOREBAY_SEED={base}, round {round}, {number}");
            }
        }
    }
}

#[test]
fn a_namespace_of_an_older_format_is_refused() {
    let kv = Arc::new(MemoryKv::new());
    Names::format(&*kv, ServerId(0), Some(open_root()), Stamp(1)).expect("an empty store");
    let mut mark = kv.get(b"n").expect("memory").expect("there");
    mark[0] = 1;
    let mut batch = Batch::default();
    batch.put(b"n", mark);
    kv.commit(batch).expect("memory");
    let error = Names::open(kv, ServerId(0)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadStore);
    assert!(error.to_string().contains("format 1") && error.to_string().contains("format 3"), "{error}");
}

#[test]
fn a_server_joins_only_a_list_that_fits_its_store() {
    let members = |list: &[u16]| {
        let member = |&n: &u16| Member { server: ServerId(n), address: format!("tcp:h{n}:1"), socket: None };
        Arc::new(Members::new(1, list.iter().map(member).collect()).expect("a good list"))
    };
    let kv = Arc::new(MemoryKv::new());
    Names::format(&*kv, ServerId(1), None, Stamp(1)).expect("an empty store");
    let names = Names::open(kv, ServerId(1)).expect("no root is needed");
    let join = |list: &[u16]| outcome(&names.join(members(list), Box::new(|_| true)));
    assert_eq!(join(&[0, 2]), "Invalid", "it is not in the list");
    assert_eq!(join(&[1, 2]), "BadStore", "the first server has the root");
    assert_eq!(join(&[0, 1]), "ok");
}
