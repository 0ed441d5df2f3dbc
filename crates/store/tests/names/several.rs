//! The namespace of several servers: against the model, with messages lost and servers killed at every step.

use crate::cluster::{Cluster, Mishap, any_mishap};
use crate::common::{ROOT, Random, name, seed};
use crate::model::{Answer, How, Model, Op, Outcome};
use crate::random::Author;
use forebay_model::{FileId, Identity, Name, Stamp};
use std::sync::atomic::Ordering;

fn moment(number: u64) -> Stamp {
    Stamp(number * 1_000_000_007)
}

/// One step in both worlds; returns what the real one said, or how they differ.
fn step(cluster: &Cluster, model: &mut Model, author: &mut Author, now: Stamp) -> Result<Outcome, String> {
    let (who, op) = (author.who(), author.op(model));
    let real = cluster.perform(&who, &op, now);
    let told = real.as_ref().err().map(ToString::to_string);
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
        false => Err(format!("user {} {op:?}: got {real:?} ({told:?}), expected {expected:?}", who.uid)),
    }
}

#[test]
fn random_operations_of_several_servers_match_the_model() {
    let base = seed();
    for (servers, rounds) in [(1, 2), (3, 8), (5, 8)] {
        let mut succeeded = 0;
        for round in 0..rounds {
            let (cluster, mut model) = (Cluster::new(servers), Model::new(0o777, Stamp(1)));
            let mut author = Author::new(base.wrapping_add(round));
            let complain = |number: u64, problem: String| -> ! {
                panic!("FOREBAY_SEED={base}, {servers} servers, round {round}, step {number}: {problem}")
            };
            for number in 1..=500 {
                let now = moment(number);
                let told = step(&cluster, &mut model, &mut author, now);
                succeeded += u64::from(told.unwrap_or_else(|problem| complain(number, problem)).is_ok());
                if number % 5 == 0 {
                    let same = cluster.compare(&model, now);
                    same.unwrap_or_else(|problem| complain(number, problem));
                }
            }
            let findings = cluster.check();
            assert_eq!(findings, Vec::<String>::new(), "FOREBAY_SEED={base}, {servers}, {round}");
        }
        assert!(succeeded > rounds * 100, "FOREBAY_SEED={base}: only {succeeded} got anywhere");
    }
}
