//! Programs in C, beside these tests.

use crate::world::{World, has, succeed};
use std::process::Command;

#[test]
fn a_table_of_operations_gives_what_tmpfs_gives() {
    let world = World::new();
    let program = world.compile("blackbox");
    let shm = std::path::Path::new("/dev/shm");
    let base = if shm.is_dir() { shm.to_path_buf() } else { world.path("") };
    let local =
        tempfile::Builder::new().prefix("fb-blackbox-").tempdir_in(base).expect("a temporary directory");
    let (expected, found) = (world.path("expected"), world.path("found"));
    let mut plain = Command::new(&program);
    plain.arg(local.path()).arg(&expected);
    succeed(plain);
    let mut make = world.command("mkdir");
    make.arg("/fb/box");
    succeed(make);
    let mut through = world.command(&program);
    through.arg("/fb/box").arg(&found);
    succeed(through);
    let read = |path| std::fs::read_to_string(path).expect("the program has written it");
    let (expected, found) = (read(&expected), read(&found));
    assert!(expected.ends_with("end\n"), "the table ran to its end");
    for (number, (expected, found)) in expected.lines().zip(found.lines()).enumerate() {
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
fn streams_of_cpp() {
    if !has("c++") {
        return;
    }
    let world = World::new();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/exec/programs/streams.cc");
    let mut compiler = Command::new("c++");
    compiler.args(["-o"]).arg(world.path("streams")).arg(source);
    succeed(compiler);
    world.same(
        "echo one two > $D/in; ../streams $D/file < $D/in > $D/out 2> $D/err; cat $D/out $D/err $D/file",
    );
}

#[test]
fn sixty_four_threads_on_one_descriptor() {
    let world = World::new();
    let mut program = world.command(world.compile("threads"));
    program.arg("/fb/threads");
    succeed(program);
}

#[test]
fn ten_thousand_opens_leave_nothing_behind() {
    let world = World::new();
    let mut program = world.command(world.compile("cycles"));
    program.arg("/fb/cycles");
    succeed(program);
    assert_eq!(world.client().status().expect("the server answers").opens, 0, "nothing is open");
}

#[test]
fn a_program_that_stays_outside_makes_no_connection_and_no_thread() {
    let world = World::new();
    let mut program = world.command("sh");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all");
    program.args([
        "-c",
        "ls / > /dev/null; grep Threads /proc/self/status; ls -l /proc/self/fd | grep -c socket",
    ]);
    let output = program.output().expect("the program runs");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "Threads:\t1\n0\n");
}

#[test]
fn without_a_service_calls_fail_and_the_library_is_silent() {
    let world = World::new();
    let mut program = world.command("cat");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all").arg("/fb/x");
    let output = program.output().expect("the program runs");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "cat: /fb/x: Transport endpoint is not connected\n");
    let log = world.path("log");
    let mut program = world.command("cat");
    program.env("FOREBAY_SERVICE", "unix:/nowhere/at/all").env("FOREBAY_LOG", &log).arg("/fb/x");
    program.output().expect("the program runs");
    let said = std::fs::read_to_string(log).expect("a log was asked for");
    assert!(said.contains("service unix:/nowhere/at/all: cannot connect"), "{said}");
}
