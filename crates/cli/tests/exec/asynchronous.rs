//! Asynchronous I/O of the kernel: `io_submit` and io_uring, on files of Forebay and others.

use crate::world::{World, has, skip, succeed};
use std::process::Command;

/// Whether this kernel has a system call, tested by a program without the library.
fn can(world: &World, table: &str) -> bool {
    let mut plain = Command::new(world.compile(table));
    plain.arg(std::env::temp_dir()).arg(world.path("tried"));
    let can = plain.status().is_ok_and(|status| status.success());
    let _ = std::fs::remove_file(std::env::temp_dir().join("a"));
    if !can {
        skip(&format!("this kernel lacks a system call of {table}"));
    }
    can
}

/// Whether entries of io_uring can be served: a no-operation can have a result.
fn can_inject(world: &World) -> bool {
    let injects = cfg!(target_arch = "x86_64")
        && Command::new(world.compile("injects")).status().is_ok_and(|status| status.success());
    if !injects {
        skip("no-operations of io_uring have no result here (before Linux 6.12): rings are refused");
    }
    injects
}

fn intercepted(world: &World, program: &std::path::Path, how: &str) -> Command {
    let mut command = world.command(program);
    command.env("FOREBAY_INTERCEPT", how);
    command
}

#[test]
fn kernel_aio_behaves_as_on_tmpfs() {
    let world = World::new();
    if !can(&world, "kernel_aio") {
        return;
    }
    for how in ["library", "auto", "dispatch"] {
        world.table("kernel_aio", how, |program| intercepted(&world, program, how), "/fb");
    }
}

#[test]
fn io_uring_behaves_as_on_tmpfs() {
    let world = World::new();
    if !can_inject(&world) {
        return;
    }
    for how in ["auto", "dispatch"] {
        world.table("rings", how, |program| intercepted(&world, program, how), "/fb");
    }
}

#[test]
fn kernel_aio_behaves_as_on_tmpfs_through_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    if can(&world, "kernel_aio") {
        world.table("kernel_aio", "mount", |program| Command::new(program), mount.path());
    }
}

/// The kernel does not advance the position of a file of a mount when a ring reads where it stands.
#[test]
fn io_uring_behaves_as_on_tmpfs_through_the_mount() {
    let world = World::new();
    let Some(mount) = world.mounted() else { return };
    if !can(&world, "rings") {
        return;
    }
    let (program, shm) = (world.compile("rings"), std::path::Path::new("/dev/shm"));
    let base = if shm.is_dir() { shm.to_path_buf() } else { world.path("") };
    let local = tempfile::Builder::new().prefix("fb-table-").tempdir_in(base).expect("a directory");
    let run = |dir: &std::path::Path, found: &str| {
        let mut command = Command::new(&program);
        command.arg(dir).arg(world.path(found));
        succeed(command);
        std::fs::read_to_string(world.path(found)).expect("the program has written it")
    };
    let expected = run(local.path(), "expected").replace("side, then at 6\n", "side, then at 2\n");
    assert_eq!(run(mount.path(), "found").replace("side, then at 6\n", "side, then at 2\n"), expected);
}

#[test]
fn two_threads_of_one_ring_never_submit_each_others_entries_unserved() {
    let world = World::new();
    if !can_inject(&world) {
        return;
    }
    let mut command = world.command(world.compile("two_threads"));
    command.arg("/fb/file");
    assert_eq!(succeed(command), "0 and 0 short\n");
}

/// Where system calls are not intercepted, the functions of libaio and liburing are.
#[test]
fn libaio_and_liburing_are_refused_without_interception() {
    let world = World::new();
    let program = world.path("by_library");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/programs/by_library.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-w", "-o"]).arg(&program).args([source, "-l:libaio.so.1", "-l:liburing.so.2"]);
    if !compiler.output().is_ok_and(|output| output.status.success()) {
        return skip("libaio.so.1 or liburing.so.2 is not installed");
    }
    let ring = if can_inject(&world) { 0 } else { -38 };
    let served = |ring| format!("setup 0 submit 1 ring {ring} size 5\n");
    // Some builds of libaio make their calls by the C library's function.
    let refused = "setup 0 submit -22 ring -38 size 0\n".to_owned();
    for (how, expected) in [("library", [served(-38), refused]), ("auto", [served(ring), served(ring)])] {
        let mut command = intercepted(&world, &program, how);
        let output = command.arg("/fb/written").output().expect("it runs");
        let found = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(expected.contains(&found), "{how}: {found}");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(text.contains("io_submit refused"), found.contains("-22"), "{text}");
        assert_eq!(text.contains("no io_uring"), how == "library", "{text}");
    }
}

const REFUSED: &str = "\
polling thread EINVAL
polling thread on a processor EINVAL
rings of the program's EINVAL
registered ring alone EINVAL
entries of two sizes EINVAL
plain done
register others done
update to ours EOPNOTSUPP
update to ours, tagged EOPNOTSUPP
unregister done
register ours EOPNOTSUPP
register ours, tagged EOPNOTSUPP
register the ring EINVAL
restrictions EINVAL
resize EINVAL
enter by index EINVAL
provided buffer EOPNOTSUPP
multishot read EOPNOTSUPP
after another's in a chain EOPNOTSUPP
registering ours by an entry EOPNOTSUPP
registered buffers EOPNOTSUPP
";

#[test]
fn unsupported_io_uring_features_are_refused() {
    let world = World::new();
    if !can_inject(&world) {
        return;
    }
    let program = world.compile("rings_refused");
    let found = succeed({
        let mut command = world.command(&program);
        command.arg("/fb/file");
        command
    });
    assert_eq!(found, REFUSED);
    // Where the entries cannot be intercepted, creating a ring fails.
    let mut blind = intercepted(&world, &program, "library");
    blind.arg("/fb/file");
    assert!(succeed(blind).contains("plain ENOSYS\n"));
}

#[test]
fn fio_verifies_with_asynchronous_engines() {
    let world = World::new();
    if !has("fio") {
        return;
    }
    for engine in ["libaio", "io_uring"] {
        if engine == "io_uring" && !can_inject(&world) {
            continue;
        }
        for form in ["--rw=randwrite --bs=16k --iodepth=8", "--rw=write --bs=1m --iodepth=2 --direct=1"] {
            let mut fio = world.command("fio");
            fio.args(["--name=job", "--directory=/fb", "--size=8m", "--verify=crc32c", "--minimal"]);
            fio.args(["--numjobs=2", "--group_reporting", "--ioengine", engine]).args(form.split(' '));
            succeed(fio);
        }
    }
}
