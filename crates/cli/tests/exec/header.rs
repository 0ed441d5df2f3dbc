//! `forebay.h`: it declares the library's functions, and the example in `examples/` works.

use crate::world::{World, has, skip, succeed};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

fn preload() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../preload")
}

fn header() -> String {
    std::fs::read_to_string(preload().join("include/forebay.h")).expect("the header is there")
}

#[test]
fn header_declares_the_exports_of_the_library() {
    let world = World::new();
    let mut tools = Command::new("nm");
    tools.args(["-D", "--defined-only"]).arg(world.library());
    let exported = succeed(tools);
    let exported: BTreeSet<&str> = exported
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| name.starts_with("fb_"))
        .collect();
    let header = header();
    let declared: BTreeSet<&str> = header
        .lines()
        .filter(|line| line.contains("fb_") && line.ends_with(");"))
        .filter_map(|line| Some(&line[line.find("fb_")?..line.find('(')?]))
        .collect();
    assert!(declared.contains("fb_open"), "{declared:?}");
    assert_eq!(declared, exported);
    let mut printed = Command::new(env!("CARGO_BIN_EXE_forebay"));
    printed.args(["library", "--header"]);
    assert_eq!(succeed(printed), header);
}

#[test]
fn header_equals_the_output_of_cbindgen() {
    if Command::new("cbindgen").arg("--version").output().is_err() {
        skip("cbindgen is not installed (cargo install cbindgen): the header was not made anew");
        return;
    }
    let mut generator = Command::new("cbindgen");
    generator.current_dir(preload()).args(["--quiet", "--config", "cbindgen.toml", "src/api.rs"]);
    assert_eq!(succeed(generator), header());
}

#[test]
fn example_compiles_as_c_and_cpp_and_runs() {
    let world = World::new();
    let library = world.library();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/checkpoint.c");
    for (compiler, flags) in [("cc", &["-std=c11", "-D_GNU_SOURCE"][..]), ("c++", &["-xc++"])] {
        if !has(compiler) {
            continue;
        }
        let program = world.path(&format!("checkpoint-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Werror"]).args(flags).arg("-I").arg(preload().join("include"));
        command.arg(&source).args(["-xnone"]).arg(&library).arg("-o").arg(&program);
        command.arg(format!("-Wl,-rpath,{}", world.path("").display()));
        succeed(command);
        // The soname in the program is that of the library, whatever the file is called.
        std::fs::copy(&library, world.path("libforebay.so")).expect("a copy");
        let mut run = Command::new(&program);
        run.arg(format!("/{compiler}")).env("FOREBAY_SERVICE", world.service());
        let printed = succeed(run);
        assert!(printed.starts_with(&format!("/{compiler}/step.3: 800000 bytes (libforebay ")), "{printed}");
        let mut list = world.command("ls");
        list.arg(format!("/fb/{compiler}"));
        assert_eq!(succeed(list), "step.0\nstep.1\nstep.2\nstep.3\n");
    }
}
