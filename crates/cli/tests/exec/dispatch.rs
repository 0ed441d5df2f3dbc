//! Interception of every system call: because of `FOREBAY_INTERCEPT=dispatch`, or because a program makes calls
//! that bypass the C library.

use crate::world::{World, has, skip, succeed};
use std::path::PathBuf;
use std::process::Command;

fn dispatched(world: &World, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = world.command(program);
    command.env("FOREBAY_INTERCEPT", "dispatch");
    command
}

/// Whether this kernel supports it.
fn can() -> bool {
    if cfg!(not(target_arch = "x86_64")) {
        skip("system calls are intercepted on x86-64 only");
        return false;
    }
    true
}

#[test]
fn raw_and_internal_libc_system_calls_are_intercepted() {
    if can() {
        raw_calls_are_answered(Some("dispatch"));
    }
}

#[test]
fn programs_with_raw_calls_are_detected() {
    if can() {
        raw_calls_are_answered(None);
    }
}

fn raw_calls_are_answered(how: Option<&str>) {
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
    let mut program = world.command(&program);
    program.arg("/fb/raw").envs(how.map(|how| ("FOREBAY_INTERCEPT", how)));
    assert_eq!(succeed(program), expected);
}

/// A shared library made from one of the programs beside these tests.
fn shared(world: &World, name: &str) -> PathBuf {
    let made = world.compile_with(name, &["-O1", "-shared", "-fPIC"]);
    let library = made.with_file_name(format!("lib{name}.so"));
    std::fs::rename(made, &library).expect("a new name");
    library
}

#[test]
fn loaded_libraries_with_raw_calls_are_detected() {
    if !can() {
        return;
    }
    let world = World::new();
    let library = shared(&world, "rawlib");
    let program = world.compile("loads");
    let expected = "6\n6\n6\nfirst\nearly\nearly\n";
    // By a path, by a name alone, and from Forebay itself, where the loader's calls are intercepted too.
    let mut copy = world.command("cp");
    copy.arg(&library).arg("/fb/librawlib.so");
    succeed(copy);
    let name = PathBuf::from("librawlib.so");
    for (number, library) in [library.clone(), name, "/fb/librawlib.so".into()].into_iter().enumerate() {
        let mut command = world.command(&program);
        command.arg(&library).arg(format!("/fb/appended{number}")).env("LD_LIBRARY_PATH", world.path(""));
        assert_eq!(succeed(command), expected, "{}", library.display());
    }
    // Without dispatch the library's calls bypass Forebay: the file does not exist.
    let mut command = world.command(&program);
    command.arg(&library).arg("/fb/appended").env("FOREBAY_INTERCEPT", "library");
    assert_eq!(succeed(command), "-2\n-2\n-2\n");
}

/// Go makes its calls on stacks that are too small for the handler of intercepted calls.
#[test]
fn library_of_go_is_not_loaded_while_calls_are_intercepted() {
    if !can() {
        return;
    }
    let world = World::new();
    let (library, program) = (shared(&world, "golib"), world.compile("loads"));
    let mut copy = world.command("cp");
    copy.arg(&library).arg("/fb/libgolib.so");
    succeed(copy);
    for library in [library.as_path(), "libgolib.so".as_ref(), "/fb/libgolib.so".as_ref()] {
        let mut command = dispatched(&world, &program);
        command.arg(library).arg("/fb/file").env("LD_LIBRARY_PATH", world.path(""));
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.code() == Some(1) && text.contains("contains Go code"), "{text}");
        if library.starts_with("/fb") {
            // Loaded from Forebay, which takes interception.
            let output = world.command(&program).arg(library).arg("/fb/file").output().expect("it runs");
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("contains Go code"), "{text}");
            continue;
        }
        let mut plain = world.command(&program);
        plain.arg(library).arg("/fb/file").env("LD_LIBRARY_PATH", world.path(""));
        plain.env("FOREBAY_INTERCEPT", "library");
        assert!(succeed(plain).starts_with("6\n"));
    }
}

/// Raw calls are not intercepted beside Go code: one warning says so, whether Go's code or a library loaded later makes them.
#[test]
fn raw_calls_beside_go_code_are_reported() {
    if !can() {
        return;
    }
    let world = World::new();
    let [go, raw_go, raw] = ["golib", "golib_raw", "rawlib"].map(|name| shared(&world, name));
    let program = world.compile("loads");
    let mut copy = world.command("cp");
    copy.arg(&raw).arg("/fb/librawlib.so");
    succeed(copy);
    let of = |before: Option<&PathBuf>, library: &str, how: &str| {
        let mut command = world.command(&program);
        command
            .arg(library)
            .arg("/fb/file")
            .env("FOREBAY_INTERCEPT", how)
            .env("LD_LIBRARY_PATH", world.path(""));
        let output = command.envs(before.map(|go| ("LD_PRELOAD", go))).output().expect("it runs");
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        (out, err)
    };
    let by_name = "libgolib_raw.so";
    for (before, library) in [
        (None, raw_go.to_str().expect("UTF-8")),
        (None, by_name),
        (Some(&go), raw.to_str().expect("UTF-8")),
        (Some(&go), "/fb/librawlib.so"),
    ] {
        let (out, err) = of(before, library, "auto");
        assert_eq!(err.lines().count(), 1, "{library}: {err}");
        assert!(err.contains("contains Go code") && err.contains("--intercept mount"), "{library}: {err}");
        assert!(out.starts_with("-2\n") || library.starts_with("/fb"), "{library}: {out}");
    }
    for (before, library, how) in [(None, go.to_str().expect("UTF-8"), "auto"), (None, by_name, "library")] {
        let (_, err) = of(before, library, how);
        assert_eq!(err, "", "{library}");
    }
    // A ring needs interception too, and gets none that Go's code would not survive.
    let mut rings = world.command(world.compile("rings_refused"));
    rings.arg("/fb/rings").env("LD_PRELOAD", &go);
    assert!(succeed(rings).contains("plain ENOSYS\n"));
}

/// The message is on standard error, once, at the start or when the library is loaded.
#[test]
fn kernel_without_dispatch_is_reported_to_programs_with_raw_calls() {
    if !can() {
        return;
    }
    let world = World::new();
    let (blind, raw) = (world.compile("nodispatch"), world.compile("raw"));
    let (loads, library) = (world.compile("loads"), shared(&world, "rawlib"));
    let of = |words: &[&std::path::Path]| {
        let mut command = world.command(&blind);
        let output = command.args(words).output().expect("it runs");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = of(&[&raw, "/fb/raw".as_ref()]);
    if code == Some(77) {
        return skip("system calls cannot be filtered here");
    }
    let warnings = |text: &str| text.matches("cannot intercept them").count();
    assert_eq!(warnings(&text), 1, "{text}");
    assert!(text.contains("--intercept mount") && text.contains("/raw makes system calls"), "{text}");
    let (_, text) = of(&[&loads, &library, "/fb/file".as_ref()]);
    assert_eq!(warnings(&text), 1, "{text}");
    let (_, text) = of(&["cat".as_ref(), "/dev/null".as_ref()]);
    assert_eq!(warnings(&text), 0, "{text}");
}

#[test]
fn scan_results_of_large_programs_are_cached() {
    if !can() {
        return;
    }
    let world = World::new();
    let remembered = world.path("cache/forebay/raw-calls");
    let run = || {
        let mut shell = world.command("bash");
        shell.args(["-c", "true"]);
        succeed(shell);
        std::fs::read(&remembered).expect("something was remembered")
    };
    let once = run();
    assert!(!once.is_empty() && once.len() % 32 == 0, "whole records: {} bytes", once.len());
    assert_eq!(run(), once, "a known program is not scanned again");
}

/// The Python interpreter for tests, if it has this module.
fn python(module: &str) -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("FOREBAY_PYTHON").unwrap_or_else(|| "python3".into()));
    let found = Command::new(&python).args(["-c", &format!("import {module}")]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(python);
    }
    skip(&format!("Python has no module {module}"));
    None
}

#[test]
fn safetensors_are_saved_and_loaded() {
    let (true, Some(python)) = (can(), python("safetensors.numpy")) else { return };
    let world = World::new();
    let script = "
import hashlib, numpy, sys
from safetensors.numpy import load_file, save_file
path = sys.argv[1] + '/model.safetensors'
save_file({'a': numpy.arange(100000, dtype=numpy.float32), 'b': numpy.ones((3, 5))}, path)
back = load_file(path)
print(back['a'].sum(), back['b'].shape, hashlib.sha256(open(path, 'rb').read()).hexdigest())
";
    let local = world.path("local");
    std::fs::create_dir(&local).expect("a directory");
    let mut plain = Command::new(&python);
    plain.args(["-c", script]).arg(&local);
    let mut with = world.command(&python);
    with.args(["-c", script, "/fb"]);
    assert_eq!(succeed(with), succeed(plain));
}

/// A virtual environment in Forebay: its C extensions are loaded from it.
#[test]
fn virtual_environment_in_forebay_loads_its_extensions() {
    let (true, Some(python)) = (can(), python("numpy, venv")) else { return };
    let world = World::new();
    let find = "import numpy, os; print(os.path.dirname(os.path.dirname(numpy.__file__)))";
    let mut find_command = Command::new(&python);
    find_command.args(["-c", find]);
    let modules = succeed(find_command);
    let script = format!(
        "set -e; {0} -m venv --without-pip /fb/venv; cd /fb/venv/lib/python3*/site-packages; \
         cp -r {1}/numpy {1}/numpy.libs .; \
         /fb/venv/bin/python -c 'import numpy; print(numpy.__file__, numpy.arange(10.0).dot(numpy.arange(10.0)))'",
        python.display(),
        modules.trim(),
    );
    let mut shell = world.command("bash");
    shell.args(["-c", &script]);
    let found = succeed(shell);
    assert!(found.starts_with("/fb/venv/lib/") && found.ends_with(" 285.0\n"), "{found}");
}

#[test]
fn programs_behave_the_same_with_dispatch() {
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
