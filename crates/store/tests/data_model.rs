//! Random operations and restarts on a store's data, compared with a model that is a byte vector.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{FileId, Uid};
use forebay_testkit::{Rng, rounds, seed};
use world::{FILES, Ids, Op, SMALL, World, is_gone};

fn check(world: &World, files: &[(FileId, Vec<u8>)], context: &str) {
    for (id, model) in files {
        let facts = world.data.facts(*id).unwrap();
        assert_eq!(facts.size, model.len() as u64, "{context}: size of {id}");
        let bytes = world.read_all(*id).unwrap();
        if let Some(at) = bytes.iter().zip(model).position(|(a, b)| a != b) {
            panic!("{context}: file {id} differs at {at}: {} is not {}", bytes[at], model[at]);
        }
        assert_eq!(bytes.len(), model.len(), "{context}: bytes of {id}");
    }
}

#[test]
fn random_operations_and_restarts_equal_the_model() {
    let seed = seed();
    for round in rounds(40) {
        let mut random = Rng::new(seed.wrapping_mul(1000).wrapping_add(round));
        let mut world = World::new(SMALL);
        let mut ids = Ids::new();
        let mut files: Vec<(FileId, Vec<u8>)> = (0..FILES).map(|_| (ids.next(), Vec::new())).collect();
        // One of the files existed in the back end before.
        files[0].1 = random.bytes(5000);
        world.find(files[0].0, &files[0].1);
        let mut deleted = Vec::new();
        for step in 0..400 {
            let context = format!("seed {seed}, round {round}, step {step}");
            let which = random.below(FILES) as usize;
            let op = Op::random(&mut random);
            let (id, model) = &mut files[which];
            let uid = Uid(which as u32 % 2);
            if op.fits(model) {
                op.perform(&world, *id, uid).unwrap_or_else(|error| panic!("{context}: {op:?}: {error}"));
                op.apply(model);
                if matches!(op, Op::Delete) {
                    deleted.push(std::mem::replace(id, ids.next()));
                }
            }
            match random.below(40) {
                0 => world = world.restart(),
                1 => world.data.persist_size(files[which].0).unwrap(),
                2 => drop(world.data.tidy()),
                3 => world.data.sync(files[which].0).unwrap(),
                _ => {}
            }
            if random.below(8) == 0 {
                check(&world, &files, &context);
            }
        }
        check(&world, &files, &format!("seed {seed}, round {round}, end"));
        let world = world.restart();
        check(&world, &files, &format!("seed {seed}, round {round}, after the last restart"));
        for id in deleted {
            assert!(is_gone(&world, id), "seed {seed}, round {round}: {id} came back");
        }
    }
}
