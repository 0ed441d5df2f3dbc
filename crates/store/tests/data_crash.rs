//! Power cuts at every flush: no synced data is lost, no deleted data returns, no torn record is used.

#[path = "data/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use forebay_model::{FileId, Uid};
use forebay_store::{Batch, CrashDisk, Geometry, MemoryKv, Place, Start};
use forebay_testkit::{Rng, rounds, seed};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use world::{BackingFiles, FILES, Ids, Op, World, is_gone};

/// Slightly more than the files need, so that regions are reused often.
const TIGHT: Geometry = Geometry { regions: 9, size: 16 << 10, slots: 48 };

/// The allowed states of a file: its content at the last sync, and after every operation since.
type Versions = Vec<Option<Vec<u8>>>;

#[derive(Default)]
struct Expected {
    files: BTreeMap<FileId, Versions>,
}

impl Expected {
    /// Checks a recovered store. Any subset of the operations since the last sync may have survived, so every byte must
    /// occur at its offset in one of the versions.
    fn check(&self, world: &World, context: &str) {
        for (&id, versions) in &self.files {
            let size = world.data.facts(id).unwrap().size as usize;
            let bytes = world.read_all(id).unwrap_or_else(|error| panic!("{context}: file {id}: {error}"));
            let len = |version: &Option<Vec<u8>>| version.as_ref().map_or(0, Vec::len);
            let (least, most) =
                (versions.iter().map(len).min().unwrap(), versions.iter().map(len).max().unwrap());
            assert!(
                (least..=most).contains(&size),
                "{context}: file {id} has {size} bytes, not {least}..={most}"
            );
            for (at, &byte) in bytes.iter().enumerate() {
                let allowed = versions.iter().any(|version| {
                    version.as_ref().and_then(|version| version.get(at)).copied().unwrap_or(0) == byte
                });
                assert!(
                    allowed,
                    "{context}: file {id} has {byte} at {at}, which it never had since the last sync"
                );
            }
        }
    }

    fn change(&mut self, id: FileId, op: &Op) {
        let versions = self.files.get_mut(&id).expect("a known file");
        let mut next = versions.last().expect("a version").clone().unwrap_or_default();
        op.apply(&mut next);
        versions.push((!matches!(op, Op::Delete)).then_some(next));
    }

    fn synced(&mut self, id: FileId) {
        let versions = self.files.get_mut(&id).expect("a known file");
        versions.drain(..versions.len() - 1);
    }
}

/// Cuts power in several ways and checks the recovered state.
fn cut(
    disk: &CrashDisk,
    kv: &MemoryKv,
    backing: &BackingFiles,
    expected: &Expected,
    random: &mut Rng,
    context: &str,
) {
    // Disks tear at sectors; a killed process followed by a machine crash tears at the words of a copy.
    for (tear, odds) in [(512, 2), (4096, 2), (16, 2), (512, 0), (512, 1)] {
        let unsynced = kv.unsynced();
        let keep_meta = random.below(unsynced as u64 + 1) as usize;
        let mut keep = || match odds {
            0 => false,
            1 => true,
            odds => random.below(odds) == 0,
        };
        let after = Arc::new(disk.after_power_cut(tear, &mut keep));
        let meta = Arc::new(kv.crash(keep_meta));
        let context =
            format!("{context}, tear {tear}, odds {odds}, {keep_meta} of {unsynced} metadata batches");
        let (world, _) = World::open(after, meta, TIGHT, Start::MachineDied)
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let world = World { backing: Arc::clone(backing), ..world };
        expected.check(&world, &context);
        // A second recovery finds the same state.
        let before: Vec<_> = expected.files.keys().map(|&id| world.read_all(id).unwrap()).collect();
        let world = world.restart();
        let again: Vec<_> = expected.files.keys().map(|&id| world.read_all(id).unwrap()).collect();
        assert!(before == again, "{context}: a second recovery found something else");
    }
}

fn drive(seed: u64, round: u64) -> u64 {
    let mut random = Rng::new(seed.wrapping_mul(977).wrapping_add(round));
    let world = World::new(TIGHT);
    let expected = Arc::new(Mutex::new(Expected::default()));
    let mut ids = Ids::new();
    let mut files: Vec<FileId> = (0..FILES).map(|_| ids.next()).collect();
    for &id in &files {
        expected.lock().unwrap().files.insert(id, vec![None]);
    }
    // One of the files existed in the back end before.
    let found = random.bytes(5000);
    world.find(files[0], &found);
    world.data.sync_all().unwrap();
    expected.lock().unwrap().files.insert(files[0], vec![Some(found)]);
    let cuts = Arc::new(Mutex::new((Rng::new(random.below(u64::MAX)), 0_u64)));
    let context = Arc::new(Mutex::new(String::new()));
    world.disk.set_at_flush(Some(Arc::new({
        let (expected, kv, backing) =
            (Arc::clone(&expected), Arc::clone(&world.kv), Arc::clone(&world.backing));
        let (cuts, context) = (Arc::clone(&cuts), Arc::clone(&context));
        move |disk: &CrashDisk| {
            let mut cuts = cuts.lock().unwrap();
            cuts.1 += 1;
            let context = format!("{}, flush {}", context.lock().unwrap(), cuts.1);
            cut(disk, &kv, &backing, &expected.lock().unwrap(), &mut cuts.0, &context);
        }
    })));
    for step in 0..400 {
        *context.lock().unwrap() = format!("seed {seed}, round {round}, step {step}");
        let which = random.below(FILES) as usize;
        let id = files[which];
        let op = Op::random(&mut random);
        let model = expected.lock().unwrap().files[&id].last().unwrap().clone().unwrap_or_default();
        if op.fits(&model) {
            // From now on both states are allowed: with and without the operation.
            expected.lock().unwrap().change(id, &op);
            op.perform(&world, id, Uid(which as u32 % 2)).unwrap();
            if matches!(op, Op::Delete) {
                files[which] = ids.next();
                expected.lock().unwrap().files.insert(files[which], vec![None]);
            }
        }
        match random.below(30) {
            0 => {
                world.data.sync_all().unwrap();
                let mut expected = expected.lock().unwrap();
                let known: Vec<FileId> = expected.files.keys().copied().collect();
                known.into_iter().for_each(|id| expected.synced(id));
            }
            1..=3 => {
                world.data.sync(id).unwrap();
                expected.lock().unwrap().synced(id);
            }
            4 => world.data.persist_size(files[which]).unwrap(),
            _ => {}
        }
    }
    world.disk.set_at_flush(None);
    cuts.lock().unwrap().1
}

/// The deletion record alone hides the records of a file. After the region of the newest record is reused, an older
/// record must not become valid again.
#[test]
fn deleted_file_stays_deleted_when_its_newest_region_is_reused() {
    let world = World::new(TIGHT);
    let (gone, other) = (FileId(50), FileId(51));
    let region = TIGHT.size as usize;
    let keep = vec![7; region / 2];
    // The older bytes share a region with a file that stays; the newer ones have their own regions.
    world.write(other, Place::At(0), &keep, Uid(1)).unwrap();
    world.write(gone, Place::At(0), &vec![1; region / 4], Uid(1)).unwrap();
    world.data.sync_all().unwrap();
    world.write(FileId(52), Place::At(0), &vec![2; region / 4], Uid(1)).unwrap();
    world.write(gone, Place::At(0), &vec![3; region], Uid(1)).unwrap();
    world.data.sync_all().unwrap();
    world.data.delete(gone, Batch::default()).unwrap();
    world.data.sync_all().unwrap();
    assert_eq!(records_of(&world.disk, gone), 2, "both are hidden only by the deletion");
    // A third file is rewritten until every free region was reused.
    for round in 0..40 {
        world.write(FileId(53), Place::At(0), &vec![round; region], Uid(1)).unwrap();
    }
    assert_eq!(records_of(&world.disk, gone), 1, "the newest record is gone, the older one is not");
    let mut random = Rng::new(seed());
    for (start, odds) in [
        (Start::ProcessDied, 1),
        (Start::MachineDied, 0),
        (Start::MachineDied, 1),
        (Start::MachineDied, 2),
        (Start::MachineDied, 2),
    ] {
        let died = start == Start::MachineDied;
        let disk = world.disk.after_power_cut(512, &mut || odds > 0 && random.below(odds) == 0);
        let meta = world.kv.crash(if died { 0 } else { usize::MAX });
        let (found, _) = World::open(Arc::new(disk), Arc::new(meta), TIGHT, start).unwrap();
        assert!(is_gone(&found, gone), "{start:?}, odds {odds}");
        assert_eq!(found.read_all(other).unwrap(), keep, "{start:?}, odds {odds}");
        assert!(is_gone(&found.restart(), gone), "{start:?}, odds {odds}, at the second start");
    }
}

/// Number of valid records of a file, read from the journals as `docs/format.md` describes them.
fn records_of(disk: &CrashDisk, file: FileId) -> usize {
    let word = |slot: &[u8], at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap());
    let long = |slot: &[u8], at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
    let logs = disk.names().into_iter().filter(|name| name.ends_with(".log")).map(|name| disk.read(&name));
    let counts = logs.map(|log| {
        let slots: Vec<&[u8]> = log.chunks(64).collect();
        let [first, records @ .., last] = &slots[..] else { panic!("a journal has two headers") };
        let newest = if long(first, 48) > long(last, 48) { first } else { last };
        let ours = |slot: &&&[u8]| word(slot, 4) == word(newest, 16) && long(slot, 8) == file.0;
        records.iter().filter(ours).count()
    });
    counts.sum()
}

#[test]
fn random_power_cuts_at_every_flush() {
    let seed = seed();
    let flushes: u64 = rounds(6).map(|round| drive(seed, round)).sum();
    assert!(flushes > 100, "only {flushes} flushes were cut");
}
