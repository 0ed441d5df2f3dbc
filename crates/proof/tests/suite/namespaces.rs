//! Servers in namespaces and control groups of their own, as in containers and hardened systemd units: acknowledged
//! data survives a kill, or the server refuses to start.

use forebay_client::OpenOptions;
use forebay_client::blocking::File;
use forebay_model::Bytes;
use forebay_proof::{By, Host, Plan, pattern};
use forebay_server::Medium;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");

/// Whether programs can run in new namespaces on this host.
fn can(test: &str, option: &str) -> bool {
    let tried = Command::new("unshare").args([option, "true"]).stderr(Stdio::null()).status();
    let works = forebay_testkit::is_root() && tried.is_ok_and(|status| status.success());
    if !works {
        forebay_testkit::skip(
            test,
            &format!("\"unshare {option}\" needs root and a kernel with these namespaces"),
        );
    }
    works
}

fn prepared() -> Host {
    Host::prepare(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(16), Bytes::mib(1)))
}

/// Runs a program in a new mount namespace, after a line of shell.
fn in_new_mounts(line: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", line, "sh"]);
    command
}

#[test]
fn synced_bytes_survive_a_kill_in_a_private_mount_namespace() {
    if !can("synced_bytes_survive_a_kill_in_a_private_mount_namespace", "--mount") {
        return;
    }
    let mut host = prepared();
    let start = |host: &mut Host| host.start_as(in_new_mounts("exec \"$@\""), Path::new(PROGRAM)).unwrap();
    start(&mut host);
    let bytes = pattern(7, 3_000_000);
    for round in 0..3 {
        let client = host.client(By::turn(round));
        let file = client.open(format!("/f{round}"), OpenOptions::CREATE).unwrap();
        file.pwrite(0, &bytes).unwrap();
        file.sync().unwrap();
        host.kill();
        start(&mut host);
        for earlier in 0..=round {
            let file = client.open(format!("/f{earlier}"), OpenOptions::READ).unwrap();
            let mut seen = vec![0; bytes.len() + 1];
            assert_eq!(file.pread(0, &mut seen).unwrap(), bytes.len(), "round {round}");
            assert!(seen[..bytes.len()] == bytes[..], "round {round}: file {earlier} has wrong bytes");
        }
    }
}

#[test]
fn memory_lost_with_the_process_is_refused() {
    if !can("memory_lost_with_the_process_is_refused", "--mount") {
        return;
    }
    let own = "mount -t tmpfs none /dev/shm && exec \"$@\"";
    let why = prepared().start_as(in_new_mounts(own), Path::new(PROGRAM)).unwrap_err();
    assert!(why.contains("/dev/shm would be lost with the server's process"), "{why}");
    let mut host = prepared();
    let line = format!("mount -t tmpfs none {} && exec \"$@\"", host.dir().display());
    let why = host.start_as(in_new_mounts(&line), Path::new(PROGRAM)).unwrap_err();
    assert!(why.contains("would be lost with the server's process"), "{why}");
}

#[test]
fn memory_kept_by_an_ancestor_is_used_with_a_warning() {
    if !can("memory_kept_by_an_ancestor_is_used_with_a_warning", "--mount") {
        return;
    }
    let mut host = prepared();
    let line = "mount -t tmpfs none /dev/shm && { \"$@\"; exit $?; }";
    host.start_as(in_new_mounts(line), Path::new(PROGRAM)).unwrap();
    let warned = host.log().contains("is lost with its mount namespace, which process");
    host.stop();
    assert!(warned, "{}", host.log());
}

/// Runs a program in a new time namespace, whose monotonic clock is the given number of seconds ahead.
fn in_new_time(seconds: i64) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--time", "--monotonic", &seconds.to_string()]);
    command
}

fn uptime() -> i64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap();
    text.split('.').next().unwrap().parse().unwrap()
}

fn check(file: &File, expected: &[u8], when: &str) {
    let mut seen = vec![0; expected.len() + 1];
    let len = file.pread(0, &mut seen).unwrap_or_else(|error| panic!("{when}: {error}"));
    let right = seen.iter().zip(expected).take(len).filter(|(seen, expected)| seen == expected).count();
    assert_eq!((len, right), (expected.len(), expected.len()), "{when}");
}

#[test]
fn unconsumed_ring_records_survive_a_restart_in_another_time_namespace() {
    const PIECE: usize = 4096;
    if !can("unconsumed_ring_records_survive_a_restart_in_another_time_namespace", "--time") {
        return;
    }
    for offset in [-uptime() / 2, 100_000] {
        let mut host = prepared();
        host.start();
        let client = host.client(By::Unix);
        let file = client.open("/f", OpenOptions { read: true, ..OpenOptions::CREATE }).unwrap();
        let mut expected = pattern(1, 20 * PIECE);
        file.pwrite(0, &vec![0; expected.len()]).unwrap();
        let rings = std::fs::read_dir(host.store().join("regions")).unwrap();
        let is_ring = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().path().extension() == Some("ring".as_ref())
        };
        assert_eq!(
            rings.filter_map(|entry| is_ring(entry).then_some(())).count(),
            1,
            "the client writes through a ring"
        );
        // The server consumes none of these records before it is killed.
        host.freeze();
        for (number, piece) in expected.chunks(PIECE).enumerate() {
            file.pwrite((number * PIECE) as u64, piece).unwrap();
        }
        host.kill();
        host.start_as(in_new_time(offset), Path::new(PROGRAM)).unwrap();
        let other = host.client(By::Tcp);
        check(&other.open("/f", OpenOptions::READ).unwrap(), &expected, &format!("{offset} s ahead"));
        // New writes, on either path, are later than all earlier ones; so they are back in the old time namespace.
        for (round, fill) in [(0, 7), (1, 8)] {
            expected[..PIECE].fill(fill);
            file.pwrite(0, &expected[..PIECE]).unwrap();
            check(
                &other.open("/f", OpenOptions::READ).unwrap(),
                &expected,
                &format!("{offset} s, round {round}"),
            );
            host.kill();
            host.start();
            check(
                &other.open("/f", OpenOptions::READ).unwrap(),
                &expected,
                &format!("{offset} s, restart {round}"),
            );
        }
        assert!(!host.log().contains("future"), "{}", host.log());
    }
}

/// A control group with a memory limit; `None` if it cannot be created.
struct Limited(PathBuf);

impl Limited {
    fn new(limit: u64) -> Option<Limited> {
        Limited::below("/sys/fs/cgroup/memory", ":memory:", "memory.limit_in_bytes", limit)
            .or_else(|| Limited::below("/sys/fs/cgroup", "0::", "memory.max", limit))
            // The hierarchy of version 2 beside that of version 1.
            .or_else(|| Limited::below("/sys/fs/cgroup/unified", "0::", "memory.max", limit))
    }

    /// A group in the hierarchy mounted at `mount`, in the group of this process or, if that may have none below it,
    /// beside it.
    fn below(mount: &str, membership: &str, key: &str, limit: u64) -> Option<Limited> {
        let memberships = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = memberships.lines().find_map(|line| line.split_once(membership))?.1.trim_start_matches('/');
        let own = Path::new(mount).join(own);
        let name = format!("forebay-proof-{}", std::process::id());
        // A group of version 2 that has processes gives groups below it no memory controller.
        let parents = [Some(own.as_path()), own.parent().filter(|parent| parent.starts_with(mount))];
        parents.into_iter().flatten().find_map(|parent| {
            // Delegation may be missing; then there is no file for the limit.
            let _ = std::fs::write(parent.join("cgroup.subtree_control"), "+memory");
            let group = Limited(parent.join(&name));
            std::fs::create_dir(&group.0).ok()?;
            std::fs::OpenOptions::new().write(true).open(group.0.join(key)).ok()?;
            std::fs::write(group.0.join(key), limit.to_string()).ok()?;
            Some(group)
        })
    }

    /// Runs a program in it.
    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display()), "sh"]);
        command
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn capacity_above_the_control_group_limit_is_refused_first() {
    let Some(group) = Limited::new(96 << 20) else {
        let test = "capacity_above_the_control_group_limit_is_refused_first";
        return forebay_testkit::skip(test, "no control group with a memory limit can be created");
    };
    let mut host = Host::prepare(PROGRAM, Plan::new(Medium::Memory, Bytes::mib(128), Bytes::mib(4)));
    let why = host.start_as(group.command(), Path::new(PROGRAM)).unwrap_err();
    assert!(why.contains("below the memory limit of the control group"), "{why}");
    assert!(why.contains("ask for less with --capacity"), "{why}");
    assert!(!host.store().join("regions").exists() && !host.store().join("making").exists());
    host.plan.capacity = Bytes::mib(16);
    host.start_as(group.command(), Path::new(PROGRAM)).unwrap();
    assert!(host.client(By::Unix).ping().is_ok());
    host.kill();
}
