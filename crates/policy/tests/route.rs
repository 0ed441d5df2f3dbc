//! Routing of writes: the paper's examples, and random streams against an independent computation.

use forebay_model::{Bytes, ErrorKind, FileId};
use forebay_policy::Tick;
use forebay_policy::route::{Detector, Marks, Mode, Route, Seen, Settings, Write, WriteRouter, local};
use forebay_testkit::{Rng, seed};

const KIB: u64 = 1 << 10;

fn write(file: u64, offset: u64, len: u64) -> Write {
    Write { file: FileId(file), offset, len: Bytes(len), sync: false }
}

/// Statistics of the writes as one stream.
fn seen(writes: &[Write]) -> Seen {
    let mut detector = Detector::new(Settings::new(writes.len(), Marks::default()).unwrap());
    let mut all = writes.iter().filter_map(|write| detector.see(write));
    let found = all.next().unwrap();
    assert!(all.next().is_none());
    found
}

/// Random writes among these offsets, in requests, in order of arrival.
fn random(offsets: impl IntoIterator<Item = u64>) -> usize {
    let writes: Vec<Write> =
        offsets.into_iter().map(|offset| write(1, offset * 256 * KIB, 256 * KIB)).collect();
    seen(&writes).random
}

/// Fig. 4: sorted, #2 and #3 follow each other, #4 and #7 do not.
#[test]
fn published_sorting_example_counts_its_random_writes() {
    assert_eq!(random([1, 7, 8, 2, 4, 3, 9]), 1);
    assert_eq!(random([4, 7]), 1);
    assert_eq!(random([3, 2]), 0);
    assert_eq!(random([1, 3, 5, 7]), 3);
}

const PROCESSES: u64 = 16;
const REQUESTS: u64 = 65_536;

/// Arrivals of 16 processes in random order, none more than `ahead` requests before the last: calls back with
/// the process and the index of its request.
fn arrivals(ahead: u64, mut notify: impl FnMut(u64, u64)) {
    let mut rng = Rng::new(seed());
    let mut next = [0; PROCESSES as usize];
    for _ in 0..REQUESTS {
        let last = *next.iter().min().unwrap();
        let ready: Vec<usize> = (0..next.len()).filter(|&process| next[process] <= last + ahead).collect();
        let process = ready[rng.below(ready.len() as u64) as usize];
        notify(process as u64, next[process]);
        next[process] += 1;
    }
}

/// The mean share of random writes over all streams of a pattern.
fn percent(ahead: u64, place: impl Fn(u64, u64) -> u64) -> f64 {
    let mut detector = Detector::new(Settings::default());
    let (mut sum, mut count) = (0.0, 0.0);
    arrivals(ahead, |process, number| {
        if let Some(seen) = detector.see(&write(1, place(process, number) * 256 * KIB, 256 * KIB)) {
            (sum, count) = (sum + seen.percent(), count + 1.0);
        }
    });
    sum / count
}

/// The paper's three patterns at 16 processes: 11 % (15/127), 45 % (57/127) and 100 %. Contiguous segments
/// and random offsets give these for any order of arrival. The strided pattern depends on the order: no
/// random writes when processes keep step, more the further they drift apart. The paper's 45 % corresponds to
/// processes that drift apart by up to a dozen requests.
#[test]
fn published_patterns_at_sixteen_processes() {
    let segment = REQUESTS / PROCESSES;
    let contiguous = |ahead| percent(ahead, |process, number| process * segment + number);
    let strided = |ahead| percent(ahead, |process, number| number * PROCESSES + process);
    let scattered =
        percent(4, |process, number| process * segment + (number * 1_597 + process * 31) % segment);
    for ahead in [0, 1, 4, 64] {
        let found = contiguous(ahead);
        assert!((0.11..=0.119).contains(&found), "contiguous: {found}");
    }
    assert!(scattered > 0.95, "random: {scattered}");
    let drift: Vec<f64> = [0, 1, 4, 12, 64].map(strided).to_vec();
    assert!(drift.is_sorted() && drift[0] < 0.01 && drift[4] > 0.6, "strided: {drift:?}");
    assert!((0.38..=0.52).contains(&drift[3]), "strided: {drift:?}");
}

#[test]
fn route_changes_only_beyond_the_marks() {
    // The number of random writes among ten, and the route of the next stream.
    let table = [
        (0, Route::Direct),
        (4, Route::Direct),
        (5, Route::Buffer),
        (4, Route::Buffer),
        (3, Route::Buffer),
        (2, Route::Direct),
        (3, Route::Direct),
        (10, Route::Buffer),
        (0, Route::Direct),
    ];
    let mut detector = Detector::new(Settings::new(11, Marks::default()).unwrap());
    assert_eq!(detector.now(), Route::Direct, "the first stream goes direct");
    for (random, next) in table {
        let mut offset = 0;
        for number in 0..11 {
            offset += if number > 0 && number <= random { 1000 } else { 10 };
            let ended = detector.see(&write(1, offset, 10));
            assert_eq!(ended.is_some(), number == 10);
            assert!(ended.is_none_or(|seen| seen == Seen { requests: 11, random }), "{ended:?}");
        }
        assert_eq!(detector.now(), next, "after {random}");
    }
}

/// A value exactly on a mark changes nothing.
#[test]
fn route_stays_on_an_exact_mark() {
    let mut detector = Detector::new(Settings::new(3, Marks::new(0.5, 0.5).unwrap()).unwrap());
    for offsets in [[0, 10, 50], [0, 50, 90], [0, 10, 50]] {
        for offset in offsets {
            detector.see(&write(1, offset, 10));
        }
    }
    assert_eq!(detector.now(), Route::Buffer);
}

#[test]
fn change_of_file_counts_as_random() {
    let writes = [write(1, 0, 10), write(2, 10, 10), write(1, 10, 10), write(2, 20, 10)];
    assert_eq!(seen(&writes), Seen { requests: 4, random: 1 });
}

#[test]
fn extreme_offsets_do_not_overflow() {
    const END: u64 = 1 << 63;
    for (writes, random) in [
        ([(0, 0), (0, 0), (0, 0)], 0),
        ([(0, 0), (0, 5), (5, 0)], 0),
        ([(END - 8, 8), (END, 8), (END + 8, 1)], 0),
        ([(END - 1, u64::MAX), (u64::MAX, 0), (u64::MAX, 1)], 1),
        ([(u64::MAX, 1), (0, 1), (0, u64::MAX)], 1),
        ([(u64::MAX, u64::MAX), (u64::MAX, u64::MAX), (0, u64::MAX)], 1),
    ] {
        let found = seen(&writes.map(|(offset, len)| write(1, offset, len)));
        assert_eq!(found.random, random, "{writes:?}");
    }
}

/// The same by repeated search for the next write of the sorted order.
fn counted_by_hand(writes: &[Write]) -> usize {
    let mut left: Vec<(usize, &Write)> = writes.iter().enumerate().collect();
    let (mut random, mut head): (usize, Option<&Write>) = (0, None);
    while let Some(&(arrival, next)) =
        left.iter().min_by_key(|(arrival, write)| (write.file, write.offset, *arrival))
    {
        left.retain(|&(other, _)| other != arrival);
        if let Some(head) = head {
            let end = u128::from(head.offset) + u128::from(head.len.0);
            let small = next.sync && next.len < Bytes::kib(64);
            random += usize::from(head.file != next.file || end != u128::from(next.offset) || small);
        }
        head = Some(next);
    }
    random
}

#[test]
fn random_streams_are_counted_as_by_hand() {
    let mut rng = Rng::new(seed());
    for _ in 0..400 {
        let (count, files, scale) = (2 + rng.below(60), 1 + rng.below(4), 1 + rng.below(40));
        let base = [0, (1 << 63) - 20, u64::MAX - 200][rng.below(3) as usize];
        let writes: Vec<Write> = (0..count)
            .map(|_| Write {
                file: FileId(rng.below(files)),
                offset: base + rng.below(scale),
                len: Bytes(if rng.below(20) == 0 { u64::MAX } else { rng.below(4) }),
                sync: rng.below(10) == 0,
            })
            .collect();
        assert_eq!(seen(&writes).random, counted_by_hand(&writes), "seed {}: {writes:?}", seed());
    }
}

fn router(mode: Mode) -> WriteRouter {
    WriteRouter::new(mode, Settings::default())
}

/// How many of the last writes were buffered.
fn buffered(mut router: WriteRouter, writes: impl IntoIterator<Item = Write>) -> usize {
    let routes: Vec<Route> =
        writes.into_iter().map(|write| router.route(Tick(0), &write)).skip(128).collect();
    routes.into_iter().filter(|route| *route == Route::Buffer).count()
}

/// A log that is synced after each record has sequential offsets only: the disk needs a rotation for each.
#[test]
fn small_synchronous_writes_never_count_as_sequential() {
    let log =
        |len: u64, sync: bool| (0..1280).map(move |number| Write { sync, ..write(1, number * len, len) });
    assert_eq!(buffered(router(Mode::Traffic), log(4 * KIB, true)), 1152);
    assert_eq!(buffered(router(Mode::Traffic), log(4 * KIB, false)), 0);
    assert_eq!(buffered(router(Mode::Traffic), log(256 * KIB, true)), 0, "large ones are sequential");
    // In a sequential stream they are the only buffered writes.
    let mixed = (0..1280).map(|number| match number % 8 {
        0 => Write { sync: true, ..write(2, number * KIB, KIB) },
        _ => write(1, number * 256 * KIB, 256 * KIB),
    });
    assert_eq!(buffered(router(Mode::Traffic), mixed), 144);
}

/// Each of three servers gets every third stripe, without a gap.
#[test]
fn sequential_file_on_three_servers_is_sequential_on_each() {
    const STRIPE: u64 = 1 << 20;
    for server in 0..3 {
        let part = (0..3 * 5120)
            .map(|number| number * 256 * KIB)
            .filter(|offset| offset / STRIPE % 3 == server)
            .map(|offset| write(1, local(offset, STRIPE, 3), 256 * KIB));
        assert_eq!(buffered(router(Mode::Traffic), part), 0, "server {server}");
    }
}

#[test]
fn random_traffic_is_buffered_and_invalid_marks_are_refused() {
    let mut rng = Rng::new(seed());
    let scattered = (0..1280).map(|_| write(1, rng.below(1 << 40), 256 * KIB));
    assert_eq!(buffered(router(Mode::Traffic), scattered), 1152);
    for (high, low) in [(0.3, 0.45), (1.1, 0.3), (0.5, -0.1), (f64::NAN, 0.1), (0.5, f64::NAN)] {
        let error = Marks::new(high, low).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{high} {low}");
    }
    for stream in [0, 1, usize::MAX] {
        assert!(Settings::new(stream, Marks::default()).is_err(), "{stream}");
    }
}
