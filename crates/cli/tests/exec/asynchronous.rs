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
    if cfg!(not(target_arch = "x86_64")) || !can(&world, "rings") {
        return;
    }
    for how in ["auto", "dispatch"] {
        world.table("rings", how, |program| intercepted(&world, program, how), "/fb");
    }
}

const REFUSED: &str = "\
polling thread EINVAL
rings of the program's EINVAL
plain done
register others done
unregister done
register ours EOPNOTSUPP
";

#[test]
fn unsupported_io_uring_features_are_refused() {
    let world = World::new();
    if cfg!(not(target_arch = "x86_64")) || !can(&world, "rings") {
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
        if engine == "io_uring" && !can(&world, "rings") {
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
