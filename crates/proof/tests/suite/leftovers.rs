//! Three servers with a back-end directory, killed while clients create, rename, write and remove: no unreferenced
//! files remain in the stores or in the directory.

use forebay_client::blocking::{Client, File};
use forebay_client::{ClientConfig, Listing, OpenOptions};
use forebay_model::{Bytes, FileKind, Identity, Result, ServerId, Striping};
use forebay_proof::{By, Drains, Fleet, Plan, Rng, Seeded, drain, pattern, rounds};
use forebay_server::Medium;
use forebay_testkit::until_equal;
use forebay_wire::RenameMode;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const WORKERS: u64 = 4;
const KILLS: u64 = 8;
const DIRS: [&str; 3] = ["/d0", "/d1", "/d2"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
const STRIPE: u64 = 64 << 10;

/// A client that creates, renames, writes and removes at random, and keeps some files open.
struct Worker {
    client: Client,
    rng: Rng,
    open: Vec<File>,
}

impl Worker {
    fn new(config: ClientConfig, rng: Rng) -> Worker {
        let config = ClientConfig { request_timeout: Duration::from_secs(3), ..config };
        let client = Client::connect(config).expect("client connected");
        Worker { client: client.as_identity(Identity::root()), rng, open: Vec::new() }
    }

    fn path(&mut self) -> String {
        let dir = *self.rng.pick(&DIRS);
        let name = *self.rng.pick(&NAMES);
        match self.rng.below(6) {
            0 => format!("{dir}/sub/{name}"),
            _ => format!("{dir}/{name}"),
        }
    }

    /// The result does not matter: a server may be killed meanwhile.
    fn act(&mut self) -> Result<()> {
        let path = self.path();
        match self.rng.below(20) {
            0..5 => {
                let file = self.client.open(&path, OpenOptions::CREATE)?;
                let len = self.rng.size(6 * STRIPE) as usize;
                file.pwrite(self.rng.below(STRIPE), &pattern(self.rng.next(), len))?;
                self.keep(file)
            }
            5 => {
                let file = self.client.open(&path, OpenOptions { read: true, ..OpenOptions::APPEND })?;
                file.append(&pattern(self.rng.next(), 3000))?;
                self.keep(file)
            }
            6 => {
                let file = self.client.open(&path, OpenOptions::WRITE)?;
                file.truncate(self.rng.below(3 * STRIPE))?;
                self.keep(file)
            }
            7..10 => self.client.unlink(&path),
            10..13 => {
                let to = self.path();
                let mode = *self.rng.pick(&[RenameMode::Replace, RenameMode::Replace, RenameMode::Exchange]);
                self.client.rename(&path, &to, mode)
            }
            13 => self.client.mkdir(&path, 0o755).map(drop),
            14 => self.client.rmdir(&path),
            15 => self.client.symlink("a", &path).map(drop),
            16 => {
                let to = self.path();
                self.client.link(&path, &to).map(drop)
            }
            17 => {
                let dir = *self.rng.pick(&DIRS);
                let width = self.rng.below(4) as u16;
                self.client.set_layout(dir, Some(Striping { width, stripe: STRIPE }))
            }
            18 => {
                let dir = format!("{}/sub", self.rng.pick(&DIRS));
                match self.rng.one_in(2) {
                    true => self.client.mkdir(&dir, 0o755).map(drop),
                    false => self.client.rmdir(&dir),
                }
            }
            _ => {
                let Some(index) = self.any_open() else { return Ok(()) };
                self.open.swap_remove(index).close()
            }
        }
    }

    fn any_open(&mut self) -> Option<usize> {
        (!self.open.is_empty()).then(|| self.rng.index(self.open.len()))
    }

    /// Some files are open while they are removed or replaced.
    fn keep(&mut self, file: File) -> Result<()> {
        match self.rng.one_in(3) && self.open.len() < 6 {
            true => {
                self.open.push(file);
                Ok(())
            }
            false => file.close(),
        }
    }
}

/// Removes everything below a directory.
fn clear(client: &Client, dir: &str) {
    let entries = client.read_dir(dir, Listing::Names).expect("listing");
    for entry in entries.collect::<Result<Vec<_>>>().expect("listing") {
        let path = format!("{dir}/{}", entry.name);
        match entry.kind {
            FileKind::Directory => {
                clear(client, &path);
                client.rmdir(&path).expect("empty directory");
            }
            _ => client.unlink(&path).expect("removed"),
        }
    }
}

/// Kills some of the servers while the workers run, and restarts them.
fn kill_some(fleet: &mut Fleet, rng: &mut Rng) {
    std::thread::sleep(Duration::from_micros(rng.below(400_000)));
    let all = rng.one_in(3);
    let one = rng.index(fleet.hosts.len());
    for (index, host) in fleet.hosts.iter_mut().enumerate() {
        if all || index == one {
            host.kill();
        }
    }
    fleet.start_all();
}

fn play(drain_how: Drains, part: u64) {
    let seeded = Seeded::new();
    let mut rng = seeded.rng(part);
    let done = AtomicU64::new(0);
    for world in rounds(2) {
        let plan = Plan::new(Medium::Disk, Bytes::mib(64), Bytes::mib(4));
        let session = Duration::from_millis(500);
        let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, drain: drain_how, session, ..plan });
        let client = fleet.client(0, By::Unix);
        for dir in DIRS {
            client.mkdir(dir, 0o777).expect("created");
        }
        for kill in 0..KILLS {
            let workers: Vec<Worker> = (0..WORKERS)
                .map(|number| {
                    let rng = seeded.rng(part + 1000 * (world + 1) + 10 * kill + number);
                    Worker::new(fleet.hosts[number as usize % 3].client_config(By::turn(number)), rng)
                })
                .collect();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for mut worker in workers {
                    let (over, done) = (&over, &done);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            done.fetch_add(u64::from(worker.act().is_ok()), Ordering::Relaxed);
                        }
                    });
                }
                kill_some(&mut fleet, &mut rng);
                over.store(true, Ordering::Relaxed);
            });
        }
        let client = fleet.client(0, By::Unix).as_identity(Identity::root());
        drain(&client);
        fleet.check_stores();
        fleet.start_all();
        DIRS.iter().for_each(|dir| clear(&client, dir));
        drain(&client);
        await_reaping(&fleet, &client);
        drop(client);
        nothing_is_left(&mut fleet);
    }
    assert!(done.load(Ordering::Relaxed) > 50, "only {done:?} operations succeeded");
}

/// Waits until files without a name are reaped: clients that had them open may reconnect for a while.
fn await_reaping(fleet: &Fleet, client: &Client) {
    let private = fleet.backing_dir().join(".forebay");
    until_equal("bytes and names that are left", &(0, Vec::new()), || {
        let statuses = client.statuses().expect("status of the servers");
        let held: u64 = statuses.into_iter().map(|(_, status)| status.expect("status").usage.live).sum();
        (held, names_in(&private))
    });
}

/// After everything was removed, the stores hold the three directories and no bytes, and so does the back end.
fn nothing_is_left(fleet: &mut Fleet) {
    fleet.check_stores();
    for dir in DIRS.iter().map(|dir| fleet.backing_dir().join(&dir[1..])) {
        assert_eq!(names_in(&dir), Vec::<String>::new(), "{}", dir.display());
    }
    assert_eq!(
        names_in(&fleet.backing_dir().join(".forebay")),
        Vec::<String>::new(),
        "the private directory of the servers"
    );
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn random_kills_of_three_servers_with_a_back_end_leak_nothing() {
    play(Drains::Eagerly, 31_000);
}

#[test]
fn random_kills_of_three_servers_that_drain_late_leak_nothing() {
    play(Drains::Lazily, 32_000);
}

/// A file is replaced while a client opens its name with truncation: the open truncates the file that has the name
/// afterwards, not the previous one.
#[test]
fn open_with_truncation_truncates_the_file_that_has_the_name() {
    let plan = Plan::new(Medium::Disk, Bytes::mib(64), Bytes::mib(4));
    let mut fleet = Fleet::new(PROGRAM, 3, Plan { has_backend: true, ..plan }.without_rings());
    let client = fleet.client(0, By::Unix);
    let over = |width| Some(Striping { width, stripe: STRIPE });
    let make = |path: &str, width| {
        client.set_layout("/", over(width)).expect("layout set");
        let file = client.open(path, OpenOptions::CREATE_NEW).expect("created");
        file.pwrite(0, &pattern(7, 5 * STRIPE as usize)).expect("written");
        file.close().expect("closed");
        client.layout(path).expect("layout").1.expect("layout of a file").servers
    };
    // One of these is placed on the servers that keep running.
    let spare = (0..).map(|number| format!("/spare{number}"));
    let spare = spare.take(50).find(|path| !make(path, 2).contains(&ServerId(3))).expect("a spare file");
    let mut rng = Seeded::new().rng(33_000);
    let mut truncated = 0;
    for round in 0..8 {
        let (path, other) = (format!("/f{round}"), format!("/g{round}"));
        make(&path, 0);
        client.rename(&spare, &other, RenameMode::Replace).expect("renamed");
        let pid = Pid::from_raw(fleet.host(3).pid() as i32).expect("a process");
        kill_process(pid, Signal::STOP).expect("stopped");
        let opener = fleet.client(1, By::Tcp);
        let opened = std::thread::scope(|scope| {
            let opened = scope.spawn(|| opener.open(&path, OpenOptions::CREATE).map(drop));
            // At any point of the open: server 3 has a request and does not answer yet.
            std::thread::sleep(Duration::from_millis(50 + rng.below(300)));
            let swapped = client.rename(&other, &path, RenameMode::Replace);
            kill_process(pid, Signal::CONT).expect("continued");
            swapped.expect("renamed on server 1");
            opened.join().expect("opener thread")
        });
        if opened.is_ok() {
            assert_eq!(client.stat(&path).expect("attributes").size, 0, "round {round}");
            truncated += 1;
        }
        client.unlink(&path).expect("removed");
        let made = make(&spare, 2);
        assert!(!made.contains(&ServerId(3)), "the placement depends on the name");
    }
    assert!(truncated > 0, "no file was opened while it was replaced");
    drop((client, spare));
    fleet.check_stores();
}
