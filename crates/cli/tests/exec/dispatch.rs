//! Every system call is intercepted (`FOREBAY_INTERCEPT=dispatch`).

use crate::world::{World, has, succeed};
use std::process::Command;

fn dispatched(world: &World, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = world.command(program);
    command.env("FOREBAY_INTERCEPT", "dispatch");
    command
}

/// Whether this kernel can.
fn can() -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        crate::world::skip("system calls are intercepted on x86-64 only");
        return false;
    }
    true
}

#[test]
fn raw_system_calls_and_inner_parts_of_the_c_library_are_answered() {
    if !can() {
        return;
    }
    let world = World::new();
    let program = world.compile("raw");
    let library = world.path("library.so");
    std::fs::write(world.path("library.c"), "int nothing;").expect("a file");
    let mut compiler = Command::new("cc");
    succeed({
        compiler.args(["-shared", "-o"]).arg(&library).arg(world.path("library.c"));
        compiler
    });
    let local = world.path("local");
    std::fs::create_dir(&local).expect("a directory");
    std::fs::copy(&library, local.join("library.so")).expect("a copy");
    let expected = succeed({
        let mut plain = Command::new(&program);
        plain.arg(&local);
        plain
    });
    assert!(expected.contains("dlopen\n") && expected.contains("fts 3\n"), "{expected}");
    let mut make = dispatched(&world, "sh");
    make.args(["-c", "mkdir /fb/raw; cp library.so /fb/raw"]);
    succeed(make);
    let mut program = dispatched(&world, &program);
    program.arg("/fb/raw");
    assert_eq!(succeed(program), expected);
}

#[test]
fn programs_do_the_same_with_every_call_intercepted() {
    if !can() {
        return;
    }
    let world = World::new();
    for table in ["blackbox", "further"] {
        world.table(table, "dispatched", |program| dispatched(&world, program), "/fb");
    }
    let mut threads = dispatched(&world, world.compile("threads"));
    threads.arg("/fb/threads");
    succeed(threads);
    let mut signals = dispatched(&world, world.compile("signals"));
    signals.arg("/fb/signals");
    succeed(signals);
    for script in [
        "mkdir $D/a; for i in 1 2 3; do echo $i > $D/a/$i; done; cat $D/a/* | sort -r; ls $D/a | wc -l; rm -r $D/a",
        "seq 1000 | gzip > $D/z; gunzip -c < $D/z | tail -1; tar -C $D -cf - z | tar tf -",
        "trap 'echo caught > $D/t' USR1; kill -USR1 $$; cat $D/t; (sleep 0.1; echo late) > $D/l & wait; cat $D/l",
    ] {
        world.same_with(script, &[("FOREBAY_INTERCEPT", "dispatch")]);
    }
    if has("python3") {
        let script = "python3 -c 'import os,sys,threading; d=sys.argv[1]; open(d+\"/p\",\"w\").write(\"x\"*9); print(os.path.getsize(d+\"/p\")); t=threading.Thread(target=lambda: print(open(d+\"/p\").read())); t.start(); t.join()' $D";
        world.same_with(script, &[("FOREBAY_INTERCEPT", "dispatch")]);
    }
}
