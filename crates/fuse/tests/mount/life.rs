//! Start and end: mounts that are stopped, servers that crash.

use crate::world::{World, is_mounted, wait_until};
use forebay_model::ErrorKind;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

fn signal(world: &mut World, signal: Signal) {
    let id = i32::try_from(world.mount_process().id()).unwrap();
    kill_process(Pid::from_raw(id).unwrap(), signal).unwrap();
}

#[test]
fn signal_unmounts_cleanly() {
    for which in [Signal::TERM, Signal::INT] {
        let Some(mut world) = World::new("") else { return };
        std::fs::write(world.at().join("kept"), b"kept").unwrap();
        signal(&mut world, which);
        let end = world.mount_process().wait().unwrap();
        assert!(end.success(), "{which:?}: {end}");
        assert!(!is_mounted(&world.at()), "{which:?}");
        let again = world.mount("again", "");
        assert_eq!(std::fs::read(again.join("kept")).unwrap(), b"kept");
    }
}

#[test]
fn mount_in_use_is_busy_and_ends_with_its_last_user() {
    let Some(mut world) = World::new("") else { return };
    let at = world.at();
    let file = File::create(at.join("file")).unwrap();
    let error = forebay_fuse::unmount(&at, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
    assert!(error.to_string().contains("in use"), "{error}");
    signal(&mut world, Signal::TERM);
    wait_until("the mount is detached", || !is_mounted(&at));
    file.write_all_at(b"to the end", 0).unwrap();
    assert!(world.mount_process().try_wait().unwrap().is_none(), "a file is still open");
    drop(file);
    assert!(world.mount_process().wait().unwrap().success());
    let error = forebay_fuse::unmount(&at, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

/// Writers write blocks while the server is killed repeatedly.
#[test]
fn mount_waits_for_a_server_that_crashes_under_load() {
    const CRASHES: usize = 5;
    const BLOCK: usize = 64 << 10;
    let Some(mut world) = World::new("") else { return };
    let (at, stop, written) = (world.at(), AtomicBool::new(false), AtomicU64::new(0));
    let unlinked = File::create_new(at.join("unlinked")).unwrap();
    unlinked.write_all_at(b"without a name", 0).unwrap();
    std::fs::remove_file(at.join("unlinked")).unwrap();
    let (at, stop, written) = (&at, &stop, &written);
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let writer = |index: u64, file: File| {
            let mut count = 0;
            while !stop.load(Ordering::Relaxed) {
                let block = vec![(count % 251) as u8 ^ index as u8; BLOCK];
                file.write_all_at(&block, count % 64 * BLOCK as u64).unwrap();
                count += 1;
                written.fetch_add(1, Ordering::Relaxed);
            }
            count
        };
        // Created before the first crash: a create is not repeatable, so its outcome could be unknown.
        let files: Vec<_> =
            (0..3).map(|index| File::create_new(at.join(format!("w{index}"))).unwrap()).collect();
        let files = (0..).zip(files);
        let writers: Vec<_> = files.map(|(index, file)| scope.spawn(move || writer(index, file))).collect();
        for _ in 0..CRASHES {
            let before = written.load(Ordering::Relaxed);
            wait_until("more is written", || written.load(Ordering::Relaxed) > before + 20);
            world.crash_server();
        }
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect()
    });
    for (index, count) in counts.into_iter().enumerate() {
        let found = std::fs::read(at.join(format!("w{index}"))).unwrap();
        for slot in 0..count.min(64) {
            let last = (slot..count).step_by(64).last().unwrap();
            let block = &found[slot as usize * BLOCK..][..BLOCK];
            let expected = (last % 251) as u8 ^ index as u8;
            assert!(block.iter().all(|byte| *byte == expected), "writer {index}, slot {slot} of {count}");
        }
    }
    let mut back = [0; 14];
    unlinked.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(&back, b"without a name");
}

/// Makes one call of each kind on an open file and on names; each gives up in its own time. None waits for another one's
/// lock of a directory.
fn each_call_times_out(at: &Path, file: &File, patience: Duration) {
    type Call<'a> = (&'a str, Box<dyn Fn() -> std::io::Result<()> + Send + 'a>);
    let calls: [Call; 6] = [
        ("stat", Box::new(|| std::fs::metadata(at.join("kept")).map(drop))),
        // At the end of the file: elsewhere it could be written to shared memory without the server.
        ("write", Box::new(|| (&*file).write_all(b"late"))),
        ("open", Box::new(|| File::open(at.join("kept")).map(drop))),
        ("fsync", Box::new(|| file.sync_all())),
        ("unlink", Box::new(|| std::fs::remove_file(at.join("one/file")))),
        ("mkdir", Box::new(|| std::fs::create_dir(at.join("two/dir")))),
    ];
    std::thread::scope(|scope| {
        for (name, call) in calls {
            scope.spawn(move || {
                let begin = Instant::now();
                let error = call().expect_err(name);
                assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{name}: {error}");
                // The rest is for a busy machine.
                assert!(begin.elapsed() < patience * 6, "{name} gave up after {:?}", begin.elapsed());
            });
        }
    });
}

#[test]
fn calls_time_out_while_the_server_is_frozen_or_dead() {
    let patience = Duration::from_secs(3);
    let Some(mut world) = World::with(1, "", patience) else { return };
    let at = world.at();
    let file = File::options().create_new(true).append(true).open(at.join("kept")).unwrap();
    (&file).write_all(b"kept").unwrap();
    for name in ["one", "two"] {
        std::fs::create_dir(at.join(name)).unwrap();
    }
    std::fs::write(at.join("one/file"), b"x").unwrap();
    world.freeze_server();
    each_call_times_out(&at, &file, patience);
    world.kill_server();
    each_call_times_out(&at, &file, patience);
    world.start_server();
    wait_until("the mount answers again", || std::fs::metadata(at.join("kept")).is_ok());
    (&file).write_all(b"more").unwrap();
    file.sync_all().unwrap();
    let found = std::fs::read(at.join("kept")).unwrap();
    assert!(found.starts_with(b"kept") && found.ends_with(b"more"), "{}", String::from_utf8_lossy(&found));
}

#[test]
fn calls_of_many_threads_time_out_together_when_the_server_is_silent() {
    const CALLERS: u32 = 120;
    /// Number of timeouts that would pass if the calls queued behind one another: eight readers serve at a time.
    const QUEUED: u32 = CALLERS / 8;
    let patience = Duration::from_secs(3);
    let Some(world) = World::with(1, "", patience) else { return };
    let at = world.at();
    world.freeze_server();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let at = &at;
        for number in 0..CALLERS {
            scope.spawn(move || {
                let error = std::fs::metadata(at.join(format!("n{number}"))).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::ETIMEDOUT), "{error}");
            });
        }
    });
    let took = begin.elapsed();
    // What a user sees.
    let cat = Command::new("cat").arg(at.join("file")).env("LC_ALL", "C").output().unwrap();
    let message = String::from_utf8_lossy(&cat.stderr).into_owned();
    assert_eq!(
        (cat.status.code(), message.ends_with(": Connection timed out\n")),
        (Some(1), true),
        "{message}"
    );
    world.signal_server(Signal::CONT);
    // A busy machine may add a few timeouts, but not half of what queued calls would wait.
    assert!(took < patience * QUEUED / 2, "{CALLERS} calls with a timeout of {patience:?} took {took:?}");
}
