//! Unusable stores, and stores that lost their regions, seen from outside of the process.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{Bytes, ErrorKind};
use forebay_proof::{By, Host, Plan, pattern, skip};
use forebay_server::Medium;
use forebay_store::Store;
use forebay_testkit::{Seeded, rounds};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use std::path::{Path, PathBuf};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

fn host(medium: Medium) -> Host {
    Host::prepare(PROGRAM, Plan::new(medium, Bytes::mib(8), Bytes::mib(1)))
}

/// The server does not start, and its error contains all of these words.
fn fails(host: &mut Host, words: &[&str]) {
    let Err(output) = host.try_start() else {
        panic!("the server started; expected an error with {words:?}")
    };
    for word in words {
        assert!(output.contains(word), "\"{output}\" does not contain \"{word}\"");
    }
    assert!(!output.contains("panicked"), "{output}");
}

/// A small tmpfs, unmounted at the end.
struct Small(PathBuf);

impl Small {
    /// `None`, with a note, if this process may not mount: an ordinary user, or root in a container.
    fn new(test: &str, at: &Path, mib: u64) -> Option<Small> {
        std::fs::create_dir(at).unwrap();
        let options = std::ffi::CString::new(format!("size={mib}m,mode=0700")).unwrap();
        match mount("forebay-proof", at, "tmpfs", MountFlags::empty(), options.as_c_str()) {
            Ok(()) => Some(Small(at.to_owned())),
            Err(Errno::PERM | Errno::ACCESS) => {
                skip(test, "mounting the small file system it needs is not permitted");
                None
            }
            Err(error) => panic!("a small file system cannot be mounted: {error}"),
        }
    }

    fn set_read_only(&self, yes: bool) {
        let flags = if yes { MountFlags::RDONLY } else { MountFlags::empty() };
        mount_remount(&self.0, flags, c"").unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // Processes that use it keep it until they exit.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn unusable_store_directories_are_named() {
    let mut host = host(Medium::Disk);
    let store = host.store();
    std::fs::write(&store, b"a file").unwrap();
    fails(&mut host, &["cannot make", store.to_str().unwrap()]);
    std::fs::remove_file(host.store()).unwrap();
    std::fs::create_dir(host.store()).unwrap();
    std::fs::write(host.store().join("thesis.tex"), b"mine").unwrap();
    fails(&mut host, &["BadStore", "thesis.tex", "choose an empty directory"]);
    assert_eq!(std::fs::read(host.store().join("thesis.tex")).unwrap(), b"mine");
    std::fs::remove_file(host.store().join("thesis.tex")).unwrap();
    host.start();
    host.stop();
    // A part of the store is missing.
    let (meta, aside) = (host.store().join("meta"), host.dir().join("aside"));
    std::fs::rename(&meta, &aside).unwrap();
    fails(&mut host, &["BadStore", "meta"]);
    if meta.exists() {
        std::fs::remove_dir_all(&meta).unwrap();
    }
    std::fs::rename(&aside, &meta).unwrap();
    host.start();
}

#[test]
fn read_only_and_full_file_systems_are_refused() {
    let test = "read_only_and_full_file_systems_are_refused";
    let mut host = host(Medium::Disk);
    let Some(small) = Small::new(test, &host.store(), 4) else { return };
    small.set_read_only(true);
    fails(&mut host, &["BadStore", "choose a directory that can be written"]);
    small.set_read_only(false);
    fails(&mut host, &["NoSpace", "free space there"]);
    // With enough space the same directory works: the failed attempt left nothing.
    drop(small);
    host.start();
    assert!(host.client(By::Unix).ping().is_ok());
}

#[test]
fn random_full_disks_are_survived_by_a_running_server() {
    let seeded = Seeded::new();
    for round in rounds(1) {
        let mut rng = seeded.rng(round);
        survive_a_full_disk(96 + rng.below(64));
    }
}

fn survive_a_full_disk(mib: u64) {
    let test = "random_full_disks_are_survived_by_a_running_server";
    let mut host = host(Medium::Disk);
    let Some(small) = Small::new(test, &host.store(), mib) else { return };
    host.start();
    let client = host.client(By::Unix);
    let file = client.open("/f", OpenOptions::CREATE).unwrap();
    file.pwrite(0, &pattern(1, 1 << 20)).unwrap();
    // Another process takes all the space that is left.
    let hog = host.store().join("hog");
    let mut whole = std::fs::File::create(&hog).unwrap();
    while std::io::Write::write_all(&mut whole, &[7; 1 << 16]).is_ok() {}
    drop(whole);
    let (mut made, mut refusals) = (Vec::new(), Vec::new());
    // Some fit into the preallocated log of the metadata.
    for number in 0..50_000 {
        let path = format!("/{}{number}", "n".repeat(200));
        match client.mkdir(&path, 0o755) {
            Ok(_) => made.push(path),
            Err(error) => refusals.push(error),
        }
        if refusals.len() == 100 {
            break;
        }
    }
    let mut back = vec![0; 1 << 20];
    assert_eq!(file.pread(0, &mut back).unwrap(), back.len());
    assert!(back == pattern(1, 1 << 20), "existing data is readable");
    assert!(!refusals.is_empty(), "the disk is full");
    for error in &refusals {
        assert!(matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Io), "{error} ({:?})", error.kind());
    }
    std::fs::remove_file(&hog).unwrap();
    // The server continues by itself; acknowledged operations persist.
    client.mkdir("/revived", 0o755).unwrap();
    for path in made.iter().step_by(50) {
        client.stat(path).unwrap();
    }
    let lines = host.log().lines().filter(|line| line.contains("metadata store")).count();
    assert!(lines <= 10, "{lines} lines about it: {}", host.log());
    host.kill();
    host.start();
    let client = host.client(By::Unix);
    for path in &made {
        client.stat(path).unwrap();
    }
    client.stat("/revived").unwrap();
    client.mkdir("/after", 0o755).unwrap();
    let file = client.open("/f", OpenOptions::READ).unwrap();
    assert_eq!(file.pread(0, &mut back).unwrap(), back.len());
    assert!(back == pattern(1, 1 << 20));
    host.kill();
    Store::remove(&host.store()).unwrap();
    drop(small);
}

#[test]
fn store_of_another_version_is_refused_and_not_changed() {
    let mut host = host(Medium::Disk);
    host.start();
    host.client(By::Unix).mkdir("/d", 0o755).unwrap();
    host.stop();
    let head = host.store().join("store");
    let sound = std::fs::read(&head).unwrap();
    let mut newer = sound.clone();
    newer[8..12].copy_from_slice(&99_u32.to_le_bytes());
    std::fs::write(&head, &newer).unwrap();
    fails(&mut host, &["BadStore", "format 99", "use the version of Forebay that made it"]);
    assert_eq!(std::fs::read(&head).unwrap(), newer);
    for at in [0, 20, sound.len() - 12] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x40;
        std::fs::write(&head, &damaged).unwrap();
        fails(&mut host, &["BadStore", "damaged"]);
    }
    std::fs::write(&head, &sound[..40]).unwrap();
    fails(&mut host, &["BadStore", "damaged"]);
    std::fs::write(&head, &sound).unwrap();
    host.start();
    host.client(By::Unix).stat("/d").unwrap();
}

#[test]
fn regions_and_metadata_of_another_store_are_refused() {
    let (mut one, mut other) = (host(Medium::Disk), host(Medium::Disk));
    for host in [&mut one, &mut other] {
        host.start();
        let file = host.client(By::Unix).open("/f", OpenOptions::CREATE).unwrap();
        file.pwrite(0, &pattern(1, 1 << 20)).unwrap();
        host.stop();
    }
    for part in ["regions", "meta"] {
        swap(&one, &other, part);
        for host in [&mut one, &mut other] {
            fails(host, &["BadStore", "another store"]);
        }
        swap(&one, &other, part);
    }
    for host in [&mut one, &mut other] {
        host.start();
        check(&host.client(By::Unix), "/f", 1);
    }
}

fn swap(one: &Host, other: &Host, part: &str) {
    let aside = one.dir().join("aside");
    std::fs::rename(one.store().join(part), &aside).unwrap();
    std::fs::rename(other.store().join(part), one.store().join(part)).unwrap();
    std::fs::rename(&aside, other.store().join(part)).unwrap();
}

fn check(client: &Client, path: &str, seed: u64) {
    let file = client.open(path, OpenOptions::READ).unwrap();
    let mut back = vec![0; 1 << 20];
    assert_eq!(file.pread(0, &mut back).unwrap(), back.len());
    assert!(back == pattern(seed, 1 << 20), "{path}");
}

/// Removes the regions as a loss of their medium does.
fn lose(host: &Host) {
    let regions = host.store().join("regions");
    match std::fs::read_link(&regions) {
        Ok(elsewhere) => std::fs::remove_dir_all(elsewhere).unwrap(),
        Err(_) if unmount(&regions, UnmountFlags::empty()).is_ok() => {}
        Err(_) => std::fs::remove_dir_all(&regions).unwrap(),
    }
}

#[test]
fn store_without_its_regions_keeps_names_and_never_returns_zeros() {
    for medium in [Medium::Memory, Medium::Disk] {
        let mut host = host(medium);
        host.start();
        let client = host.client(By::Unix);
        client.mkdir("/d", 0o750).unwrap();
        let file = client.open("/d/old", OpenOptions::CREATE).unwrap();
        file.pwrite(0, &pattern(1, 1 << 20)).unwrap();
        file.sync().unwrap();
        file.close().unwrap();
        client.open("/d/empty", OpenOptions::CREATE).unwrap().close().unwrap();
        drop(client);
        host.stop();
        lose(&host);
        fails(&mut host, &["BadStore", "are gone", "forebay store replace"]);
        let kept = match medium {
            Medium::Memory => forebay_store::Medium::Memory,
            Medium::Disk => forebay_store::Medium::Disk,
        };
        Store::replace(&host.store(), kept).unwrap();
        for boot in 0..2 {
            host.start();
            let client = host.client(By::Tcp);
            let attr = client.stat("/d/old").unwrap();
            assert_eq!((attr.size, client.stat("/d").unwrap().mode), (1 << 20, 0o750), "names stay");
            let old = client.open("/d/old", OpenOptions::WRITE).unwrap();
            let mut back = vec![0xaa; 4096];
            for offset in [0, 5000, (1 << 20) - 100] {
                // New writes are readable; everything else is lost, and is never returned as zeros.
                if boot == 1 && offset == 5000 {
                    continue;
                }
                let error = old.pread(offset, &mut back).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Io, "{medium:?} at {offset}: {error}");
                assert!(error.to_string().contains("lost"), "{error}");
            }
            if boot == 0 {
                old.pwrite(5000, &pattern(2, 4096)).unwrap();
                let new = client.open("/d/new", OpenOptions::CREATE).unwrap();
                new.pwrite(0, &pattern(3, 1 << 20)).unwrap();
                let empty = client.open("/d/empty", OpenOptions::WRITE).unwrap();
                empty.pwrite(0, &pattern(4, 1 << 20)).unwrap();
                old.pread(5000, &mut back).unwrap();
                assert!(back == pattern(2, 4096), "new writes are readable");
                host.kill();
                continue;
            }
            old.pread(5000, &mut back).unwrap();
            assert!(back == pattern(2, 4096), "new writes survive a restart");
            check(&client, "/d/new", 3);
            check(&client, "/d/empty", 4);
            old.truncate(0).unwrap();
            old.pwrite(0, &pattern(5, 1 << 20)).unwrap();
            check(&client, "/d/old", 5);
            client.unlink("/d/old").unwrap();
        }
    }
}
