//! Builds `libforebay.so` and its smaller relatives for placement, and hands them to the binary as bytes.
//!
//! As an ordinary dependency the libraries' functions would take the place of the C library's in this very binary. So
//! they are built by a cargo of their own, in a directory of its own that all variants of this crate share, for the same
//! target and profile. Where code is only looked at (`cargo check`, `cargo clippy`, rust-analyzer) nothing is built,
//! and the next build makes up for it.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What travels in the binary: its file, and the words by which cargo makes it.
const ARTEFACTS: [(&str, &[&str]); 3] = [
    ("libforebay.so", &["build", "--package", "forebay-preload", "--lib"]),
    ("libforebay_place.so", &["build", "--package", "forebay-place", "--lib"]),
    (
        "libforebay_place.a",
        &["rustc", "--package", "forebay-place", "--lib", "--features", "wrap", "--crate-type", "staticlib"],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = fs::canonicalize(PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../.."))?;
    println!("cargo::rerun-if-changed=build.rs");
    for (name, words) in ARTEFACTS {
        let bytes = if only_looked_at() {
            // A file that is never there makes cargo run this again before something is built.
            println!("cargo::rerun-if-changed={}", out.join("not-built").display());
            Vec::new()
        } else {
            let made = build(&root, &out, name, words)?;
            for source in sources(&root, &made.with_extension("d"))? {
                println!("cargo::rerun-if-changed={}", source.display());
            }
            fs::read(if name.ends_with(".a") { slim(&made, &out)? } else { made })?
        };
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        fs::write(out.join(name), &bytes)?;
        let variable = name.replace('.', "_").to_uppercase();
        println!("cargo::rustc-env=HASH_{variable}={:016x}", hasher.finish());
    }
    Ok(())
}

/// Whether nobody wants a program: cargo does not tell, but those who work with its wrappers do, and otherwise its
/// command line does.
fn only_looked_at() -> bool {
    let wrapped = |name| {
        env::var_os(name).is_some_and(|wrapper| {
            let wrapper = wrapper.to_string_lossy().into_owned();
            wrapper.contains("clippy") || wrapper.contains("rust-analyzer")
        })
    };
    if wrapped("RUSTC_WORKSPACE_WRAPPER") || wrapped("RUSTC_WRAPPER") {
        return true;
    }
    let parent = std::os::unix::process::parent_id();
    let Ok(words) = fs::read(format!("/proc/{parent}/cmdline")) else { return false };
    let mut words = words.split(|&byte| byte == 0).map(String::from_utf8_lossy);
    let is_cargo = words.next().is_some_and(|program| program.ends_with("cargo"));
    let command = words.find(|word| !word.starts_with(['-', '+']));
    is_cargo
        && command.is_some_and(|command| matches!(&*command, "check" | "c" | "clippy" | "doc" | "d" | "fix"))
}

fn build(root: &Path, out: &Path, name: &str, words: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    let release = env::var("PROFILE")? == "release";
    let profile = if release { "release" } else { "dev" };
    // target/debug/build/forebay-0123/out: what is above `build` is there for all variants.
    let dir = out.ancestors().nth(3).ok_or("OUT_DIR is not where cargo puts it")?.join("preload");
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(root)
        .args(words)
        .args(["--quiet", "--locked", "--profile", profile, "--target", &target, "--target-dir"])
        .arg(&dir)
        .args(["--config", &format!("profile.{profile}.strip=\"symbols\"")])
        // What cargo and its helpers tell a build script is not meant for another cargo.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTC");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("{name} could not be built: {status}").into());
    }
    Ok(dir.join(target).join(if release { "release" } else { "debug" }).join(name))
}

/// An archive has what a linker does not need: lines, and code for optimising once more. Where nobody can take that away it
/// stays.
fn slim(made: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let copy = out.join("slim.a");
    fs::copy(made, &copy)?;
    let mut strip = Command::new("strip");
    strip.args(["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"]).arg(&copy);
    if strip.status().is_ok_and(|status| status.success()) { Ok(copy) } else { Ok(made.to_owned()) }
}

/// What the library was made of, as the compiler noted it, and the manifests of those crates.
fn sources(root: &Path, notes: &Path) -> Result<BTreeSet<PathBuf>, Box<dyn Error>> {
    let notes = fs::read_to_string(notes)?;
    let (_, list) = notes.split_once(": ").ok_or("the compiler noted no sources")?;
    // Blanks in names are escaped.
    let list = list.replace("\\ ", "\0");
    let mut found: BTreeSet<PathBuf> = ["Cargo.lock", "Cargo.toml"].map(|name| root.join(name)).into();
    for source in list.split_whitespace().map(|name| PathBuf::from(name.replace('\0', " "))) {
        let home = source.ancestors().skip(1).map(|dir| dir.join("Cargo.toml")).find(|file| file.exists());
        found.extend(home);
        found.insert(source);
    }
    Ok(found)
}
