//! A disk with bad sectors under a store: their bytes return an I/O error, all others are correct, and the server
//! survives.

use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{Bytes, ErrorKind};
use forebay_proof::{By, Host, Plan, Seeded, pattern, rounds};
use forebay_server::Medium;
use forebay_store::{AtRest, check_payloads};
use forebay_testkit::until;
use std::cmp::Reverse;
use std::fs::{DirEntry, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const FILES: u64 = 10;
const LEN: usize = 1 << 20;
const PAGE: usize = 4096;
const IMAGE: u64 = 48 << 20;

fn run(program: &str, args: &[&str]) -> Option<String> {
    let done = Command::new(program).args(args).stderr(Stdio::null()).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

/// A file system on a loop device over an image file. The device cannot read beyond the end of the image.
struct Failing {
    image: PathBuf,
    device: String,
}

impl Failing {
    fn new(dir: &Path) -> Option<Failing> {
        let image = dir.join("image");
        File::create(&image).and_then(|file| file.set_len(IMAGE)).expect("image created");
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal", text(&image)])?;
        // Only with direct I/O does the device return an error; otherwise it returns zeros.
        let device = run("losetup", &["--show", "-f", "--direct-io=on", text(&image)])?;
        Some(Failing { image, device })
    }

    fn mount(&self, at: &Path) {
        run("mount", &["-t", "ext4", &self.device, text(at)]).expect("mounted");
    }

    /// Truncates the image.
    fn truncate(&self, len: u64) {
        File::options().write(true).open(&self.image).and_then(|file| file.set_len(len)).expect("truncated");
    }
}

impl Drop for Failing {
    fn drop(&mut self) {
        run("losetup", &["-d", &self.device]);
    }
}

/// Stops the server when it has consumed all records of its clients, and they are gone.
fn stop(host: &mut Host) {
    let is_ring =
        |entry: std::io::Result<DirEntry>| entry.unwrap().path().extension() == Some("ring".as_ref());
    until("all rings are gone", || !std::fs::read_dir(host.store().join("regions")).unwrap().any(is_ring));
    host.stop();
}

/// Moves the shared-memory files of a stopped store onto the failing device, and truncates that until none of them can
/// be read. Returns their paths.
fn damage_shared(host: &Host, failing: &Failing) -> Vec<PathBuf> {
    let (regions, aside) = (host.store().join("regions"), host.dir().join("aside"));
    std::fs::create_dir(&aside).unwrap();
    failing.mount(&aside);
    let mut moved = Vec::new();
    for entry in std::fs::read_dir(&regions).unwrap() {
        let (from, to) = (entry.as_ref().unwrap().path(), aside.join(entry.unwrap().file_name()));
        if from.extension().is_none_or(|end| end != "log" && end != "data") {
            std::fs::copy(&from, &to).unwrap();
            std::fs::remove_file(&from).unwrap();
            std::os::unix::fs::symlink(&to, &from).unwrap();
            moved.push(from);
        }
    }
    let mut len = IMAGE;
    while moved.iter().any(|path| File::open(path).unwrap().read_exact_at(&mut [0; PAGE], 0).is_ok()) {
        len -= 64 << 10;
        run("umount", &[text(&aside)]).unwrap();
        failing.truncate(len);
        failing.mount(&aside);
    }
    moved
}

/// Moves the regions of a stopped store onto the failing device.
fn move_regions(host: &Host, failing: &Failing) {
    let (regions, aside) = (host.store().join("regions"), host.dir().join("aside"));
    std::fs::create_dir(&aside).unwrap();
    failing.mount(&aside);
    let mut names: Vec<_> =
        std::fs::read_dir(&regions).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The journals go to the front of the device, and the regions that are filled first to its end.
    names.sort_by_key(|name| (!name.to_string_lossy().ends_with(".log"), Reverse(name.clone())));
    for name in names {
        std::fs::copy(regions.join(&name), aside.join(&name)).unwrap();
    }
    run("umount", &[text(&aside)]).expect("unmounted");
    failing.mount(&regions);
}

/// Number of pages of the region files that the device cannot read.
fn unreadable(host: &Host) -> usize {
    let mut count = 0;
    for entry in std::fs::read_dir(host.store().join("regions")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension() != Some("data".as_ref()) {
            continue;
        }
        let file = File::open(&path).unwrap();
        let pages = file.metadata().unwrap().len() / PAGE as u64;
        count +=
            (0..pages).filter(|page| file.read_exact_at(&mut [0; PAGE], page * PAGE as u64).is_err()).count();
    }
    count
}

/// Reads all files page by page; returns the number of correct pages, and of I/O errors.
fn read_all(client: &Client, seed: u64) -> (usize, usize) {
    let (mut right, mut failed) = (0, 0);
    for number in 0..FILES {
        let expected = pattern(seed + number, LEN);
        let file = client.open(format!("/f{number}"), OpenOptions::READ).unwrap();
        for (page, expected) in expected.chunks(PAGE).enumerate() {
            let mut seen = [0; PAGE];
            match file.pread((page * PAGE) as u64, &mut seen) {
                Ok(len) => {
                    assert!(len == PAGE && seen == expected, "file {number}, page {page}: {len} wrong bytes");
                    right += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Io, "file {number}, page {page}: {error}");
                    failed += 1;
                }
            }
        }
    }
    (right, failed)
}

#[test]
fn random_bad_sectors_give_errors_for_their_bytes_only() {
    let seeded = Seeded::new();
    for round in rounds(1) {
        let mut rng = seeded.rng(round);
        let mut host = Host::new(PROGRAM, Plan::new(Medium::Disk, Bytes::mib(16), Bytes::mib(1)));
        let Some(failing) = Failing::new(host.dir()).filter(|_| forebay_testkit::is_root()) else {
            let why = "bad sectors need root, mkfs.ext4 and loop devices";
            return forebay_testkit::skip("random_bad_sectors_give_errors_for_their_bytes_only", why);
        };
        let seed = rng.next() >> 1;
        {
            let client = host.client(By::Unix);
            for number in 0..FILES {
                let file = client.open(format!("/f{number}"), OpenOptions::CREATE).unwrap();
                pattern(seed + number, LEN)
                    .chunks(100_000)
                    .enumerate()
                    .for_each(|(index, piece)| file.pwrite((index * 100_000) as u64, piece).unwrap());
                file.sync().unwrap();
            }
        }
        stop(&mut host);
        move_regions(&host, &failing);
        let mut len = IMAGE;
        let mut found = Vec::new();
        while found.is_empty() {
            len -= (1 << 20) + rng.below(64) * PAGE as u64;
            failing.truncate(len);
            run("umount", &[text(&host.store().join("regions"))]).unwrap();
            failing.mount(&host.store().join("regions"));
            found = check_payloads(&[AtRest::open(&host.store()).unwrap()]).unwrap();
        }
        let bad = unreadable(&host);
        assert!(found.iter().any(|flaw| flaw.what.contains("cannot be read")), "{found:?}");
        host.start();
        for by in [By::Unix, By::Tcp, By::Unix] {
            let client = host.client(by);
            let (right, failed) = read_all(&client, seed);
            assert!((1..=2 * bad).contains(&failed), "{failed} pages fail, {bad} are bad");
            assert_eq!(right + failed, FILES as usize * LEN / PAGE);
            // Twice with one client: the second time through a lease, if it got one.
            assert_eq!(read_all(&client, seed), (right, failed));
        }
        let status = host.client(By::Unix).status().unwrap();
        assert!(
            status.damage.iter().any(|sentence| sentence.contains("cannot be read")),
            "{:?}",
            status.damage
        );
        host.kill();
        host.start();
        let client = host.client(By::Unix);
        // Lost bytes stay lost after a restart, and the server accepts new writes.
        assert!(read_all(&client, seed).1 > 0);
        let file = client.open("/new", OpenOptions { read: true, ..OpenOptions::CREATE }).unwrap();
        file.pwrite(0, &pattern(seed, LEN)).unwrap();
        let mut seen = vec![0; LEN];
        assert_eq!(file.pread(0, &mut seen).unwrap(), LEN);
        assert!(seen == pattern(seed, LEN), "wrong bytes");
    }
}

#[test]
fn server_starts_with_shared_memory_files_on_bad_sectors() {
    let mut host = Host::new(PROGRAM, Plan::new(Medium::Disk, Bytes::mib(16), Bytes::mib(1)));
    let Some(failing) = Failing::new(host.dir()).filter(|_| forebay_testkit::is_root()) else {
        let why = "bad sectors need root, mkfs.ext4 and loop devices";
        return forebay_testkit::skip("server_starts_with_shared_memory_files_on_bad_sectors", why);
    };
    let write = |host: &Host, name: &str| {
        let client = host.client(By::Unix);
        let file = client.open(name, OpenOptions { read: true, ..OpenOptions::CREATE }).unwrap();
        file.pwrite(0, &pattern(1, LEN)).unwrap();
        let mut seen = vec![0; LEN];
        assert_eq!(file.pread(0, &mut seen).unwrap(), LEN);
        assert!(seen == pattern(1, LEN), "wrong bytes");
    };
    write(&host, "/before");
    stop(&mut host);
    let damaged = damage_shared(&host, &failing);
    assert!(damaged.iter().any(|path| path.ends_with("bell")), "{damaged:?}");
    host.start();
    write(&host, "/after");
    host.stop();
    run("umount", &[text(&host.dir().join("aside"))]).expect("unmounted");
}
