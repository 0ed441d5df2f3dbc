//! Builds `libforebay.so` and hands it to the binary as bytes.
//!
//! As an ordinary dependency the library's functions would take the place of the C library's in this very binary. So
//! it is built by a cargo of its own, in a directory of its own, for the same target and profile.

use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the library is made of.
const SOURCES: [&str; 6] =
    ["Cargo.lock", "Cargo.toml", "crates/client", "crates/model", "crates/preload", "crates/wire"];

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let root = here.join("../..");
    println!("cargo::rerun-if-changed=build.rs");
    for source in SOURCES {
        let path = root.join(source);
        match path.join("src").is_dir() {
            true => ["src", "Cargo.toml", "build.rs"]
                .iter()
                .map(|part| path.join(part))
                .filter(|part| part.exists())
                .for_each(|part| println!("cargo::rerun-if-changed={}", part.display())),
            false => println!("cargo::rerun-if-changed={}", path.display()),
        }
    }
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let library = fs::read(build(&root, &out)?)?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&library);
    fs::write(out.join("libforebay.so"), &library)?;
    println!("cargo::rustc-env=FOREBAY_LIBRARY={:016x}", hasher.finish());
    Ok(())
}

fn build(root: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let (target, dir) = (env::var("TARGET")?, out.join("preload"));
    let release = env::var("PROFILE")? == "release";
    let profile = if release { "release" } else { "dev" };
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(root)
        .args(["build", "--quiet", "--locked", "--package", "forebay-preload", "--lib"])
        .args(["--profile", profile, "--target", &target, "--target-dir"])
        .arg(&dir)
        .args(["--config", &format!("profile.{profile}.strip=\"symbols\"")])
        // What cargo and its helpers tell a build script is not meant for another cargo.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTC");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("libforebay.so could not be built: {status}").into());
    }
    let name = if release { "release" } else { "debug" };
    Ok(dir.join(target).join(name).join("libforebay.so"))
}
