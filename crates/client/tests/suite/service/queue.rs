//! Requests by a queue in shared memory, from threads that wait for the answers.

use super::world::{By, World, pattern, wait_for_queue};
use forebay_client::{OpenOptions, blocking};
use forebay_model::ErrorKind;
use forebay_wire::RenameMode;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

fn count(world: &World, suffix: &str) -> usize {
    let list = std::fs::read_dir(world.store().join("regions")).unwrap();
    let names = list.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(suffix)).count()
}

fn queues(world: &World) -> usize {
    count(world, ".queue")
}

#[test]
fn threads_share_one_queue_and_each_gets_its_own_answer() {
    let world = World::new(32);
    let client = blocking::Client::connect(world.client_config(By::Unix)).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let client = &client;
            scope.spawn(move || {
                let dir = format!("/d{thread}");
                client.mkdir(&dir, 0o755).unwrap();
                for round in 0..40 {
                    let (one, two) = (format!("{dir}/a{round}"), format!("{dir}/b{round}"));
                    let file = client.open(&one, OpenOptions::CREATE_NEW).unwrap();
                    file.truncate(round).unwrap();
                    assert_eq!(client.stat(&one).unwrap().size, round);
                    file.close().unwrap();
                    client.rename(&one, &two, RenameMode::NoReplace).unwrap();
                    assert_eq!(client.stat(&one).unwrap_err().kind(), ErrorKind::NotFound);
                    assert_eq!(
                        client.open(&two, OpenOptions::CREATE_NEW).err().unwrap().kind(),
                        ErrorKind::Exists
                    );
                    assert_eq!(client.stat(&two).unwrap().size, round);
                    client.unlink(&two).unwrap();
                }
                client.rmdir(&dir).unwrap();
            });
        }
    });
    assert_eq!(queues(&world), 1);
    assert_eq!(client.status().unwrap().opens, 0);
    let remote = blocking::Client::connect(world.client_config(By::Tcp)).unwrap();
    (0..10).for_each(|_| assert!(remote.stat("/").is_ok()));
    assert_eq!(queues(&world), 1, "a client over TCP uses its socket");
    drop(client);
    while queues(&world) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn queued_requests_survive_server_restarts() {
    let mut world = World::new(32);
    let config = world.client_config(By::Unix);
    let (barrier, rounds) = (Barrier::new(3), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let threads = [0, 1].map(|thread| {
            let (config, barrier, rounds) = (config.clone(), &barrier, &rounds);
            scope.spawn(move || {
                let client = blocking::Client::connect(config).unwrap();
                let path = format!("/f{thread}");
                client.open(&path, OpenOptions::CREATE).unwrap().close().unwrap();
                barrier.wait();
                for round in 0..400 {
                    // All of these requests are idempotent.
                    client.truncate(&path, round).unwrap();
                    assert_eq!(client.stat(&path).unwrap().size, round);
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        barrier.wait();
        for least in [100, 300, 500] {
            while rounds.load(Ordering::Relaxed) < least && threads.iter().all(|thread| !thread.is_finished())
            {
                std::thread::yield_now();
            }
            world.start_again();
        }
    });
}

#[test]
fn close_without_waiting_takes_effect() {
    let world = World::new(32);
    let client = blocking::Client::connect(world.client_config(By::Unix)).unwrap();
    wait_for_queue(&client);
    for round in 0..100 {
        let path = format!("/f{round}");
        let file = client.wait(client.inner().open(&path, OpenOptions::CREATE_NEW)).unwrap();
        client.unlink(&path).unwrap();
        assert!(file.close_now(), "the queue has a free slot");
    }
    while client.status().unwrap().opens > 0 {
        std::thread::yield_now();
    }
}

/// A small file is created with its ring in one message, and opened with ring and extents in one: with the close two
/// requests for a file that is written, and three for one that is read, because its path is walked.
#[test]
fn small_files_are_opened_with_their_rings() {
    const FILES: u64 = 40;
    /// Slabs, walks of directories, the status itself.
    const OTHERS: u64 = 12;
    let world = World::new(32);
    let (writer, reader) =
        [(), ()].map(|()| blocking::Client::connect(world.client_config(By::Unix)).unwrap()).into();
    let write = |name: String| {
        let file = writer.open(&name, OpenOptions::CREATE_NEW).unwrap();
        file.pwrite(0, name.as_bytes()).unwrap();
        file.close().unwrap();
    };
    let read = |name: String| {
        let (file, mut found) = (reader.open(&name, OpenOptions::READ).unwrap(), [0; 100]);
        let len = file.pread(0, &mut found).unwrap();
        assert_eq!(&found[..len], name.as_bytes());
        file.close().unwrap();
    };
    let requests = || writer.status().unwrap().jobs.iter().map(|job| job.requests).sum::<u64>();
    for (step, most) in [(&write as &dyn Fn(String), 2), (&read, 3)] {
        wait_for_queue(&writer);
        wait_for_queue(&reader);
        (0..10).for_each(|number| step(format!("/early{number}")));
        let before = requests();
        (0..FILES).for_each(|number| step(format!("/file{number}")));
        let needed = requests() - before;
        assert!(needed <= most * FILES + OTHERS, "{needed} requests for {FILES} files");
    }
}

/// Files that are written and closed one after the other reuse the rings of earlier files. There are a few rings,
/// because space is requested ahead. This holds across restarts too, and each file has the bytes that were written to
/// it.
#[test]
fn small_files_reuse_rings_of_earlier_files() {
    let mut world = World::new(32);
    let client = blocking::Client::connect(world.client_config(By::Unix)).unwrap();
    let bytes = |round: usize| pattern(round as u64, 1 + round * 977 % 9000);
    for round in 0..300 {
        let file = client.open(format!("/f{round}"), OpenOptions::CREATE_NEW).unwrap();
        file.pwrite(0, &bytes(round)).unwrap();
        if round % 2 == 0 {
            file.close().unwrap();
        }
        if round % 100 == 99 {
            assert!((1..=10).contains(&count(&world, ".ring")));
            world.start_again();
        }
    }
    for by in [By::Unix, By::Tcp] {
        let other = blocking::Client::connect(world.client_config(by)).unwrap();
        for round in 0..300 {
            let (written, mut found) = (bytes(round), vec![0; 10_000]);
            let file = other.open(format!("/f{round}"), OpenOptions::READ).unwrap();
            let len = file.pread(0, &mut found).unwrap();
            assert!(found[..len] == written, "file {round}");
        }
    }
}
