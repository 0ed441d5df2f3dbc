//! Faults that pass while the server runs and writers write: a back end that does not answer, a file system below the
//! back end that goes away, a process without descriptors. Acknowledged data survives in the buffer and, once drained, in
//! the back end.

use forebay_client::blocking::Client;
use forebay_model::{Bytes, Error};
use forebay_proof::{By, Drains, Host, Plan, Rng, Seeded, Writer, drain, is_root, rounds, skip};
use forebay_server::Medium;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WRITERS: u64 = 3;
/// The writers' directory.
const DIR: &str = "/m";

fn plan(medium: Medium, drain: Drains) -> Plan {
    Plan { has_backend: true, drain, ..Plan::new(medium, Bytes::mib(64), Bytes::mib(2)) }
}

fn pause(rng: &mut Rng, millis: u64) {
    std::thread::sleep(Duration::from_millis(rng.below(millis)));
}

/// Lets the writers work through outages. After each of them, everything is as acknowledged; in the end also in the back
/// end.
fn play(host: &Host, part: u64, is_expected: fn(&Error) -> bool, outage: impl Fn(&mut Rng)) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let mut writers: Vec<Writer> =
        (0..WRITERS).map(|number| Writer::new(DIR, number, seeded.rng(part + 1 + number))).collect();
    let (mut done, mut outages) = (0, 0);
    for round in rounds(8) {
        let stop = AtomicBool::new(false);
        // Connected before the outage, which may keep clients from connecting.
        let clients: Vec<Client> = (0..WRITERS).map(|writer| host.client(By::turn(writer + round))).collect();
        std::thread::scope(|scope| {
            let work = |(writer, client): (_, _)| {
                let (writer, client, stop): (&mut Writer, &Client, _) = (writer, client, &stop);
                scope.spawn(move || writer.work(client, stop, is_expected))
            };
            let working: Vec<_> = writers.iter_mut().zip(&clients).map(work).collect();
            pause(&mut rng, 150);
            outage(&mut rng);
            outages += 1;
            pause(&mut rng, 100);
            stop.store(true, Ordering::Relaxed);
            done += working.into_iter().map(|writer| writer.join().expect("a writer")).sum::<u64>();
        });
        let reader = host.client(By::turn(round));
        for writer in &mut writers {
            writer.verify(&reader);
            writer.verify_removed(&reader);
        }
    }
    assert!(done > outages, "the writers made {done} calls in {outages} outages");
    drain(&host.client(By::Unix));
    writers.iter_mut().for_each(|writer| writer.verify_copies(&host.backing_dir().join("m")));
    let status = host.client(By::Unix).status().expect("status");
    assert_eq!(status.damage, Vec::<String>::new());
}

#[test]
fn random_stalls_of_the_back_end_delay_calls_and_fail_none() {
    let host = Host::new(PROGRAM, plan(Medium::Memory, Drains::Stalling));
    host.client(By::Unix).mkdir(DIR, 0o777).expect("directory created");
    play(
        &host,
        3000,
        |_| false,
        |rng| {
            host.stall_backend(true);
            pause(rng, 400);
            host.stall_backend(false);
        },
    );
}

/// A file system in memory that is mounted below the back end.
struct Below {
    /// Where it stays mounted.
    kept: PathBuf,
    at: PathBuf,
}

impl Below {
    /// `None` if this process may not mount.
    fn new(host: &Host) -> Option<Below> {
        let below = Below { kept: host.dir().join("kept"), at: host.backing_dir().join("m") };
        for dir in [&below.kept, &below.at] {
            std::fs::create_dir(dir).expect("directory created");
        }
        mount("forebay-test", &below.kept, "tmpfs", MountFlags::empty(), None).ok()?;
        below.comes();
        Some(below)
    }

    fn goes(&self) {
        unmount(&self.at, UnmountFlags::DETACH).expect("unmounted");
    }

    fn comes(&self) {
        mount_bind(&self.kept, &self.at).expect("mounted");
    }
}

impl Drop for Below {
    fn drop(&mut self) {
        for dir in [&self.at, &self.kept] {
            // It may not be mounted.
            let _ = unmount(dir, UnmountFlags::DETACH);
        }
    }
}

#[test]
fn random_absences_of_a_file_system_below_the_back_end_lose_nothing() {
    let test = "random_absences_of_a_file_system_below_the_back_end_lose_nothing";
    if !is_root() {
        return skip(test, "only root can mount");
    }
    let mut host = Host::prepare(PROGRAM, plan(Medium::Memory, Drains::Eagerly));
    let Some(below) = Below::new(&host) else {
        return skip(test, "this machine lets no file system be mounted");
    };
    host.start();
    play(
        &host,
        4000,
        |error| !error.kind().is_no_answer(),
        |rng| {
            below.goes();
            pause(rng, 400);
            below.comes();
        },
    );
    let misplaced = {
        below.goes();
        std::fs::read_dir(&below.at).expect("the directory below the mount").count()
    };
    assert_eq!(misplaced, 0, "files were written to the directory below the mount");
}

#[test]
fn random_shortages_of_descriptors_lose_nothing() {
    for (part, medium) in [(5000, Medium::Memory), (6000, Medium::Disk)] {
        let host = Host::new(PROGRAM, plan(medium, Drains::Eagerly));
        host.client(By::Unix).mkdir(DIR, 0o777).expect("directory created");
        play(
            &host,
            part,
            |error| !error.kind().is_no_answer(),
            |rng| {
                host.limit_descriptors(Some(rng.below(6)));
                pause(rng, 400);
                host.limit_descriptors(None);
            },
        );
    }
}
