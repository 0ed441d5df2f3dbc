//! Modelled targets: the devices reproduce their published figures, and the back end applies them.

use forebay_backend::{Backend, Creation, device};
use forebay_model::{ErrorKind, FileId, Gid, Name, Span, Uid};
use forebay_policy::Tick;
use forebay_policy::device::ModelledTarget;
use forebay_testkit::{Rng, seed};

/// MB/s of `writers` sequential streams at one target, with as many bytes in total as TRIO's Fig. 1 has
/// megabytes.
fn streams(writers: u64) -> f64 {
    const ALL: u64 = 32_000_000;
    const WRITE: u64 = 1_000_000;
    let mut target = ModelledTarget::new(device("ost").unwrap());
    let mut next: Vec<u64> = vec![0; writers as usize];
    let (mut now, mut at_work) = (Tick(0), std::collections::BTreeMap::new());
    let mut written = 0;
    for file in 0..writers {
        at_work.insert(target.begin(now, FileId(file), Span::new(0, WRITE)), file);
    }
    while written < 100 * ALL {
        now = target.next_end().unwrap();
        for work in target.ended(now).collect::<Vec<_>>() {
            let file = at_work.remove(&work).unwrap();
            next[file as usize] += WRITE;
            written += WRITE;
            let start = next[file as usize];
            at_work.insert(target.begin(now, FileId(file), Span::new(start, start + WRITE)), file);
        }
    }
    written as f64 / now.secs() / 1e6
}

#[test]
fn modelled_ost_matches_trio_figure_1() {
    for (writers, rate) in [(1, 356.0), (2, 574.0), (32, 401.0)] {
        let found = streams(writers);
        assert!((found / rate - 1.0).abs() < 0.03, "{writers} writers: {found} instead of {rate} MB/s");
    }
}

/// MB/s of two disks when each gets half of requests of 256 KiB from processes in random order.
fn requests(mut place: impl FnMut(&mut Rng) -> u64) -> f64 {
    const HALF: u64 = 128 << 10;
    const COUNT: u64 = 128 * 40;
    let (mut disk, mut rng, mut now) =
        (ModelledTarget::new(device("hdd").unwrap()), Rng::new(seed()), Tick(0));
    for _ in 0..COUNT {
        let start = place(&mut rng) * HALF;
        let work = disk.begin(now, FileId(1), Span::new(start, start + HALF));
        while disk.is_under_way(work) {
            now = disk.next_end().unwrap();
            disk.advance(now);
        }
    }
    let end = disk.flush(now);
    while disk.is_under_way(end) {
        now = disk.next_end().unwrap();
        disk.advance(now);
    }
    2.0 * (COUNT * HALF) as f64 / now.secs() / 1e6
}

#[test]
fn modelled_disk_matches_ssdup_figure_2() {
    let contiguous = |processes: u64| {
        let mut next = vec![0; processes as usize];
        move |rng: &mut Rng| {
            let process = rng.below(processes);
            next[process as usize] += 1;
            process * 1_000_000 + next[process as usize]
        }
    };
    let found = [
        requests(contiguous(32)) / 218.0,
        requests(contiguous(128)) / 150.0,
        requests(|rng| rng.below(1 << 40)) / 95.0,
    ];
    assert!(found.iter().all(|ratio| (0.9..=1.1).contains(ratio)), "the model over the paper: {found:?}");
}

fn create(backend: &dyn Backend, name: &str) -> Box<dyn forebay_backend::Object> {
    let me = (Uid(rustix::process::geteuid().as_raw()), Gid(rustix::process::getegid().as_raw()));
    let creation = Creation { owner: me, mode: 0o644, stripes: Some((2, 4)) };
    backend.create(&[Name::new(name).unwrap()], &creation).unwrap()
}

#[test]
fn every_nth_write_fails_without_effect() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("model:hdd,slower=0.001,faults=3:dir:{}", dir.path().display());
    let backend = forebay_backend::open(&name).unwrap();
    assert_eq!(backend.name(), name);
    let file = create(&*backend, "f");
    for (number, bytes) in [b"a", b"b", b"c", b"d", b"e", b"f"].into_iter().enumerate() {
        let done = file.write_at(number as u64, &[bytes]);
        assert_eq!(
            done.map_err(|error| error.kind()),
            if number % 3 == 2 { Err(ErrorKind::Io) } else { Ok(()) }
        );
    }
    file.sync().unwrap();
    assert_eq!(std::fs::read(dir.path().join("f")).unwrap(), b"ab\0de");
}

#[test]
fn invalid_model_names_are_refused() {
    for (name, says) in [
        ("model:", "model:DEVICE"),
        ("model:ost", "model:DEVICE"),
        ("model:tape:dir:/", "choose hdd or ost"),
        ("model:ost,slower=0:dir:/", "slower=0"),
        ("model:ost,faults=no:dir:/", "faults=no"),
        ("model:ost,shared=:dir:/", "shared="),
        ("model:ost,loud:dir:/", "loud"),
        ("model:ost,shared=/dev/null/x:dir:/", "/dev/null/x"),
        ("model:ost:dir:/no/such", "/no/such"),
    ] {
        let error = forebay_backend::open(name).err().expect("refused");
        assert!(error.to_string().contains(says), "{name}: {error}");
    }
}
