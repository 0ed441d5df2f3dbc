//! Draining with several servers: each drains the stripes it holds, and the back end has one file.

use crate::cluster::Fleet;
use crate::counting::Counting;
use crate::drain::{clean, drain, drain_with, report, until};
use crate::raw::{Raw, name, pattern};
use forebay_backend::{Backend, Dir, Memory};
use forebay_model::{Bytes, Change, FileId, Layout, ServerId, Span, Striping};
use forebay_server::{Alpha, Draining, Mode, Routing};
use forebay_wire::{At, DrainCall, RenameMode, Reply, Request, Token};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;
const STRIPE: u64 = 64 << 10;

/// Three servers with a back end, and no automatic drain.
pub(crate) fn fleet(backend: &Arc<dyn Backend>, draining: Draining) -> Fleet {
    routed(backend, draining, Mode::Buffer)
}

/// As `fleet`, but streams of four writes may bypass the buffer.
fn routed(backend: &Arc<dyn Backend>, draining: Draining, mode: Mode) -> Fleet {
    let mut fleet = Fleet::plan(3, |config| {
        config.backend = Some("dir:/".into());
        config.drain = Draining { threshold: 90, age: Duration::from_secs(600), ..draining };
        config.route = Routing { mode, stream: 4, ..Routing::default() };
    });
    fleet.start_before(backend);
    let striping = Some(Striping { width: 0, stripe: STRIPE });
    fleet.control(0).call(Request::SetLayout { dir: ROOT, striping }).unwrap();
    fleet
}

pub(crate) fn layout(control: &mut Raw, file: FileId) -> Layout {
    match control.call(Request::GetLayout { file }) {
        Ok(Reply::Layout { layout: Some(layout), .. }) => layout,
        other => panic!("no layout: {other:?}"),
    }
}

pub(crate) fn write(fleet: &Fleet, token: Token, offset: u64, bytes: &[u8]) {
    let layout = layout(&mut fleet.control(0), token.file);
    for (server, span) in layout.pieces(Span::at(offset, bytes.len() as u64).unwrap()) {
        let piece = &bytes[(span.start - offset) as usize..(span.end - offset) as usize];
        fleet.data(server).write(token, At::Offset(span.start), piece).unwrap();
    }
}

pub(crate) fn read(fleet: &Fleet, token: Token, len: u64) -> Vec<u8> {
    let layout = layout(&mut fleet.control(0), token.file);
    let mut bytes = vec![0; len as usize];
    for (server, span) in layout.pieces(Span::new(0, len)) {
        let got = fleet.data(server).read(token, span.start, span.len() as u32).unwrap();
        bytes[span.start as usize..][..got.len()].copy_from_slice(&got);
    }
    bytes
}

fn live(fleet: &Fleet) -> Vec<u64> {
    (0..3).map(|index| fleet.status(index).usage.live).collect()
}

#[test]
fn file_striped_over_three_servers_is_one_file_in_the_back_end() {
    let dir = tempfile::tempdir().unwrap();
    let place = |text: &str| dir.path().join(text);
    let backend: Arc<dyn Backend> = Arc::new(Dir::open(dir.path().to_str().unwrap()).unwrap());
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o640);
    let mut model = pattern(1, 1_000_000);
    write(&fleet, token, 0, &model);
    assert!(live(&fleet).iter().all(|&live| live > 0), "every server holds a part");
    clean(&drain(&mut control, None));
    assert_eq!(live(&fleet), [0, 0, 0]);
    assert!(std::fs::read(place("f")).unwrap() == model);
    assert!(read(&fleet, token, 1_000_000) == model, "each server reads its part from the back end");

    // Overwrite drained bytes and punch a hole; then drain again.
    write(&fleet, token, 100_000, &pattern(2, 200_000));
    model[100_000..300_000].copy_from_slice(&pattern(2, 200_000));
    control.call(Request::Punch { token, offset: 400_000, len: 150_000 }).unwrap();
    model[400_000..550_000].fill(0);
    assert!(read(&fleet, token, 1_000_000) == model);
    clean(&drain(&mut control, None));
    assert!(std::fs::read(place("f")).unwrap() == model);

    // The server truncates the file in the back end before it replies; a later write beyond leaves a hole of zeros.
    control.call(Request::Truncate { token, size: 90_000 }).unwrap();
    assert_eq!(std::fs::metadata(place("f")).unwrap().len(), 90_000);
    write(&fleet, token, 500_000, b"far");
    model.truncate(90_000);
    model.resize(500_000, 0);
    model.extend(b"far");
    assert!(read(&fleet, token, 500_003) == model);
    clean(&drain(&mut control, None));
    assert!(std::fs::read(place("f")).unwrap() == model);

    let rename = Request::Rename {
        dir: ROOT,
        name: name("f"),
        to_dir: ROOT,
        to_name: name("g"),
        mode: RenameMode::Replace,
    };
    control.call(rename).unwrap();
    assert!(!place("f").exists() && read(&fleet, token, 500_003) == model, "readable after the rename");
    let change = Change { mode: Some(0o400), ..Change::default() };
    control.call(Request::SetAttr { file: token.file, change }).unwrap();
    clean(&drain(&mut control, Some(token.file)));
    let buffered = control.walk("g").unwrap();
    let found = backend.find(&[name("g")]).unwrap().unwrap();
    assert_eq!((found.mode, found.version.mtime), (0o400, buffered.mtime));
    control.call(Request::Unlink { dir: ROOT, name: name("g") }).unwrap();
    control.call(Request::Close { token }).unwrap();
    assert!(!place("g").exists());
}

#[test]
fn changes_in_the_back_end_are_seen_by_all_servers() {
    let dir = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Dir::open(dir.path().to_str().unwrap()).unwrap());
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o644);
    write(&fleet, token, 0, &pattern(1, 300_000));
    clean(&drain(&mut control, None));
    std::fs::write(dir.path().join("f"), pattern(9, 500_000)).unwrap();
    assert_eq!(control.walk("f").unwrap().size, 500_000);
    assert!(read(&fleet, token, 500_000) == pattern(9, 500_000));
    // Changed on both sides: the drain fails, and the two contents are never mixed.
    write(&fleet, token, 0, b"mine");
    std::fs::write(dir.path().join("f"), pattern(8, 600_000)).unwrap();
    let _ = control.walk("f");
    let report = drain(&mut control, Some(token.file));
    assert_eq!(report.ticket.unwrap().failed, 1, "{report:?}");
    assert!(std::fs::read(dir.path().join("f")).unwrap() == pattern(8, 600_000));
}

#[test]
fn servers_respect_the_writer_limit_of_a_target() {
    for alpha in [1, 2] {
        let memory = Memory::default();
        let counting = Counting { slow: Some(Duration::from_millis(3)), ..Counting::new(&memory) };
        let crowd = counting.crowd.clone();
        let backend: Arc<dyn Backend> = Arc::new(counting);
        let fleet = fleet(&backend, Draining { alpha: Alpha::Fixed(alpha), ..Draining::default() });
        let mut control = fleet.control(0);
        for number in 0..12 {
            let token = control.create(ROOT, &format!("f{number}"), 0o644);
            write(&fleet, token, 0, &pattern(number, 400_000));
        }
        assert!(live(&fleet).iter().all(|&live| live > 0), "every server has something to write");
        clean(&drain(&mut control, None));
        let most = crowd.most.load(Ordering::Relaxed);
        assert!(most > 0 && most <= u64::from(alpha), "{most} of at most {alpha}");
        for number in 0..12 {
            assert!(memory.bytes(&[name(&format!("f{number}"))]).unwrap() == pattern(number, 400_000));
        }
        assert_eq!(fleet.members().authority(ROOT), ServerId(0));
    }
}

/// Servers do not repeat their messages: a worker that waits for a slot continues because it is notified of a free one.
#[test]
fn waiting_server_is_notified_when_a_target_is_free() {
    let (memory, stripes) = (Memory::default(), 30);
    let counting = Counting::new(&memory);
    let (crowd, disk) = (counting.crowd.clone(), counting.disk.clone());
    let backend: Arc<dyn Backend> = Arc::new(counting);
    // A slot is good for one stripe, and then another server gets it.
    let (quantum, write_at_once) = (Some(Bytes(STRIPE)), Bytes(STRIPE));
    let (alpha, beat) = (Alpha::Fixed(1), Duration::from_secs(24 * 3600));
    let fleet =
        fleet(&backend, Draining { alpha, quantum, beat, write: write_at_once, ..Draining::default() });
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o644);
    let bytes = pattern(1, stripes * STRIPE as usize);
    write(&fleet, token, 0, &bytes);
    disk.close();
    report(&mut control, DrainCall::Begin { file: None, order: None, last: false });
    let wants = |index| fleet.status(index).drain.unwrap().targets[0].queued > 0;
    until("all servers queue data for the target, and one writes", || {
        disk.waiting.load(Ordering::Relaxed) > 0 && (0..3).all(wants)
    });
    disk.open();
    clean(&drain(&mut control, None));
    assert_eq!(crowd.most.load(Ordering::Relaxed), 1);
    assert!(memory.bytes(&[name("f")]).unwrap() == bytes);
}

#[test]
fn direct_writes_respect_the_writer_limit_of_a_target() {
    for alpha in [1, 2] {
        let mut counting = Counting::new(&Memory::default());
        counting.slow = Some(Duration::from_millis(5));
        let crowd = counting.crowd.clone();
        let backend: Arc<dyn Backend> = Arc::new(counting);
        let fleet = fleet(&backend, Draining { alpha: Alpha::Fixed(alpha), ..Draining::default() });
        let mut control = fleet.control(0);
        let (old, new) = (control.create(ROOT, "old", 0o644), control.create(ROOT, "new", 0o644));
        write(&fleet, old, 0, &pattern(1, 3_000_000));
        for server in 0..3 {
            fleet.control(server).call(Request::SetRoute { mode: "direct".into() }).unwrap();
        }
        report(&mut control, DrainCall::Begin { file: None, order: None, last: false });
        let direct = || (0..3).map(|index| fleet.status(index).route.unwrap().direct).sum::<u64>();
        // A writer that gets no slot for a while is buffered.
        let mut number = 0;
        until("some writes bypass the buffers", || {
            write(&fleet, new, number * STRIPE, &pattern(number, STRIPE as usize));
            number += 1;
            number >= 24 && direct() > 0
        });
        clean(&drain(&mut control, None));
        let most = crowd.most.load(Ordering::Relaxed);
        assert!(most > 0 && most <= u64::from(alpha), "{most} of at most {alpha}");
        assert!(read(&fleet, old, 3_000_000) == pattern(1, 3_000_000));
        let all: Vec<u8> = (0..number).flat_map(|number| pattern(number, STRIPE as usize)).collect();
        assert!(read(&fleet, new, all.len() as u64) == all);
    }
}

#[test]
fn drain_order_is_set_on_all_servers_or_on_none() {
    let memory = Memory::default();
    let backend: Arc<dyn Backend> = Arc::new(memory.clone());
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let orders = |fleet: &Fleet| {
        let of = |index| report(&mut fleet.control(index), DrainCall::Look { ticket: None }).status.order;
        (0..3).map(of).collect::<Vec<String>>()
    };
    let begin = |order: &str| DrainCall::Begin { file: None, order: Some(order.to_owned()), last: false };
    assert_eq!(orders(&fleet), ["trio"; 3]);
    for order in ["offset", "arrival", "target", "trio"] {
        let token = control.create(ROOT, order, 0o644);
        write(&fleet, token, 0, &pattern(7, 400_000));
        drain_with(&mut control, begin(order));
        assert_eq!(orders(&fleet), [order; 3]);
        assert!(memory.bytes(&[name(order)]).unwrap() == pattern(7, 400_000), "{order}");
        // A server releases the last file a moment after the drain is done.
        until("no server drains a file", || {
            let files =
                |index| report(&mut fleet.control(index), DrainCall::Look { ticket: None }).status.files;
            (0..3).map(files).sum::<u64>() == 0
        });
    }
    let nonsense = control.call(Request::Drain(begin("fast")));
    assert!(nonsense.unwrap_err().to_string().contains("is no order"));
    assert_eq!(orders(&fleet), ["trio"; 3]);
}

/// Bytes that were drained are lost with the file; the buffered ones stay, and drain when the buffer holds the whole
/// file.
#[test]
fn file_removed_in_the_back_end_is_recreated_once_fully_buffered() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("f");
    let backend: Arc<dyn Backend> = Arc::new(Dir::open(dir.path().to_str().unwrap()).unwrap());
    let fleet = fleet(&backend, Draining::default());
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o644);
    write(&fleet, token, 0, &pattern(1, 600_000));
    clean(&drain(&mut control, None));
    // Some bytes are buffered and newer, some were only in the back end.
    write(&fleet, token, 0, &pattern(2, 300_000));
    std::fs::remove_file(&place).unwrap();
    let report = drain(&mut control, Some(token.file));
    assert_eq!(report.ticket.unwrap().failed, 1, "{report:?}");
    assert!(!place.exists(), "no incomplete file is created");
    assert!(read(&fleet, token, 300_000) == pattern(2, 300_000), "buffered bytes are readable");
    write(&fleet, token, 300_000, &pattern(3, 300_000));
    let whole = [pattern(2, 300_000), pattern(3, 300_000)].concat();
    assert!(read(&fleet, token, 600_000) == whole);
    until("the file is created again", || drain(&mut fleet.control(0), None).ticket.unwrap().failed == 0);
    assert!(std::fs::read(&place).unwrap() == whole);
    assert!(read(&fleet, token, 600_000) == whole, "read from the back end");
}

#[test]
fn striped_file_bypasses_the_buffers_of_three_servers() {
    let dir = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Dir::open(dir.path().to_str().unwrap()).unwrap());
    let fleet = routed(&backend, Draining::default(), Mode::Traffic);
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o640);
    // In order, stripe by stripe: on each server every stripe follows the previous one, though not in the file.
    let mut model = pattern(1, 3 * 40 * STRIPE as usize);
    for (number, stripe) in model.chunks(STRIPE as usize).enumerate() {
        write(&fleet, token, number as u64 * STRIPE, stripe);
    }
    // A writer that gets no slot for a while is buffered; if the stream counted as random, all but the first four of
    // forty stripes would be.
    assert!(live(&fleet).iter().all(|&live| live <= 20 * STRIPE), "{:?}", live(&fleet));
    assert!(read(&fleet, token, model.len() as u64) == model, "before it is finalized");
    // Overwrite bytes in the back end, punch, truncate and grow.
    write(&fleet, token, 100_000, &pattern(2, 50_000));
    model[100_000..150_000].copy_from_slice(&pattern(2, 50_000));
    control.call(Request::Punch { token, offset: 200_000, len: 100_000 }).unwrap();
    model[200_000..300_000].fill(0);
    write(&fleet, token, 210_000, &pattern(3, 50_000));
    model[210_000..260_000].copy_from_slice(&pattern(3, 50_000));
    control.call(Request::Truncate { token, size: 400_000 }).unwrap();
    model.truncate(400_000);
    write(&fleet, token, 500_000, &pattern(4, 70_000));
    model.resize(500_000, 0);
    model.extend(pattern(4, 70_000));
    assert!(read(&fleet, token, model.len() as u64) == model);
    clean(&drain(&mut control, None));
    assert!(std::fs::read(dir.path().join("f")).unwrap() == model);
    assert!(read(&fleet, token, model.len() as u64) == model, "finalized");
}

#[test]
fn random_streams_are_buffered_by_each_of_three_servers() {
    let dir = tempfile::tempdir().unwrap();
    let backend: Arc<dyn Backend> = Arc::new(Dir::open(dir.path().to_str().unwrap()).unwrap());
    let fleet = routed(&backend, Draining::default(), Mode::Traffic);
    let mut control = fleet.control(0);
    let token = control.create(ROOT, "f", 0o640);
    // Every second stripe of a server, backwards: after the first four, all are buffered.
    let mut written = 0;
    for round in (0..20).rev() {
        for server in 0..3 {
            write(&fleet, token, (round * 6 + server) * STRIPE, &pattern(round, STRIPE as usize));
            written += STRIPE;
        }
    }
    let live = live(&fleet);
    assert!(live.iter().all(|&live| live >= 16 * STRIPE), "{live:?} of {written}");
    clean(&drain(&mut control, None));
    let drained = std::fs::read(dir.path().join("f")).unwrap();
    for round in 0..20 {
        for server in 0..3 {
            let at = ((round * 6 + server) * STRIPE) as usize;
            assert!(drained[at..at + STRIPE as usize] == pattern(round, STRIPE as usize), "{round} {server}");
        }
    }
}

#[test]
fn striped_appends_wait_for_space_in_full_buffers() {
    const PIECE: usize = 100_000;
    let counting = Counting::new(&Memory::default());
    let disk = counting.disk.clone();
    let backend: Arc<dyn Backend> = Arc::new(counting);
    let mut fleet = Fleet::plan(3, |config| {
        config.backend = Some("dir:/".into());
        (config.capacity, config.region) = (Bytes::mib(8), Some(Bytes::mib(1)));
        config.drain = Draining { threshold: 20, ..Draining::default() };
    });
    fleet.start_before(&backend);
    let mut control = fleet.control(0);
    let striping = Some(Striping { width: 0, stripe: STRIPE });
    control.call(Request::SetLayout { dir: ROOT, striping }).unwrap();
    let token = control.create(ROOT, "f", 0o640);
    let mut data = fleet.data(ServerId(0));
    let data = &mut data;
    // Nothing drains before the buffers are full.
    disk.close();
    let is_full = |index| {
        let status = fleet.status(index);
        status.regions.free == 0 || status.drain.is_some_and(|drain| drain.waiting > 0)
    };
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for piece in 0..400 {
                let offset = data.write(token, At::End, &pattern(piece, PIECE)).unwrap();
                assert_eq!(offset, piece * PIECE as u64);
            }
        });
        until("a buffer is full", || (0..3).any(is_full));
        disk.open();
    });
}
