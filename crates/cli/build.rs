//! Embeds `libforebay.so` and the placement libraries in the binary.
//!
//! As ordinary dependencies the libraries would replace functions of the C library in this binary. So a separate cargo
//! builds them, for the same target and profile, in a target directory that all variants of this crate share. `cargo
//! check`, `cargo clippy` and rust-analyzer do not need them and skip this; the next build catches up.
//!
//! `cargo xtask test` builds the whole workspace anyway. It names the directory with the libraries in `FOREBAY_EMBEDDED`,
//! and no other cargo is started.

use std::collections::BTreeSet;
use std::env;
use std::error::Error;
use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that names a directory with all libraries.
const READY: &str = "FOREBAY_EMBEDDED";

/// A cargo command selects both packages, so that what both depend on is compiled once.
const PACKAGES: [&str; 5] = ["build", "--package", "forebay-preload", "--package", "forebay-place"];

/// The embedded files, what cargo makes them from, and the arguments that build it.
const ARTEFACTS: [(&str, &str, &[&str]); 3] = [
    ("libforebay.so", "libforebay.so", &["--lib"]),
    ("libforebay_place.so", "libforebay_place.so", &["--lib"]),
    (
        "libforebay_place.a",
        "examples/libforebay_place_archive.a",
        &["--example", "forebay_place_archive", "--features", "forebay-place/wrap"],
    ),
];

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = fs::canonicalize(PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../.."))?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={READY}");
    for (name, artefact, words) in ARTEFACTS {
        let bytes = if name.ends_with(".a") && !has_archive() {
            Vec::new()
        } else if is_check_only() {
            // A file that never exists makes cargo run this script again before the next build.
            println!("cargo::rerun-if-changed={}", out.join("not-built").display());
            Vec::new()
        } else if let Some(dir) = env::var_os(READY) {
            let made = Path::new(&dir).join(name);
            println!("cargo::rerun-if-changed={}", made.display());
            fs::read(slim(&made, &out)?)?
        } else {
            let made = build(&root, &out, artefact, words)?;
            for source in sources(&root, &made.with_extension("d"))? {
                println!("cargo::rerun-if-changed={}", source.display());
            }
            fs::read(slim(&made, &out)?)?
        };
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        fs::write(out.join(name), &bytes)?;
        let variable = name.replace('.', "_").to_uppercase();
        println!("cargo::rustc-env=HASH_{variable}={:016x}", hasher.finish());
    }
    Ok(())
}

/// Whether the static archive is embedded: programs that are linked statically need it, and it is as large as
/// everything else. Builds for tests always have it, a release only with the feature `archive`.
fn has_archive() -> bool {
    env::var_os("CARGO_FEATURE_ARCHIVE").is_some() || env::var("PROFILE").is_ok_and(|kind| kind == "debug")
}

/// Whether no binary is built. Cargo does not pass that to build scripts, but its wrappers and its command line
/// show it.
fn is_check_only() -> bool {
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

fn build(root: &Path, out: &Path, artefact: &str, words: &[&str]) -> Result<PathBuf, Box<dyn Error>> {
    let target = env::var("TARGET")?;
    // target/debug/build/forebay-0123/out: the directory above `build` belongs to the profile, and all variants of
    // this crate share it.
    let above = out.ancestors().nth(3).ok_or("OUT_DIR is not where cargo puts it")?;
    let subdirectory = above.file_name().and_then(|name| name.to_str()).ok_or("OUT_DIR has no profile")?;
    let profile = if subdirectory == "debug" { "dev" } else { subdirectory };
    let dir = above.join("preload");
    // The embedded copies are stripped in every profile: debug information in them would only make the binary large.
    let mut settings = vec![format!("profile.{profile}.strip=\"symbols\"")];
    if profile != "dev" {
        settings.push(format!("profile.{profile}.debug=false"));
    }
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo
        .current_dir(root)
        .args(PACKAGES)
        .args(words)
        .args(["--quiet", "--locked", "--profile", profile, "--target", &target, "--target-dir"])
        .arg(&dir)
        .args(settings.iter().flat_map(|setting| ["--config", setting]))
        // Variables that cargo and its wrappers set for this build script must not reach the other cargo.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("CARGO_BUILD_TARGET")
        .env_remove("CARGO_TARGET_DIR")
        .env_remove("RUSTC");
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("{artefact} could not be built: {status}").into());
    }
    Ok(dir.join(target).join(subdirectory).join(artefact))
}

/// Strips what programs and linkers do not need: debug information and bitcode of an archive, all but the exported
/// symbols of a library. Keeps the file as it is if `strip` fails.
fn slim(made: &Path, out: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let copy = out.join("slim");
    fs::copy(made, &copy)?;
    let is_archive = made.extension().is_some_and(|end| end == "a");
    let options: &[&str] = match is_archive {
        true => &["--strip-debug", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"],
        false => &["--strip-all"],
    };
    let mut strip = Command::new("strip");
    strip.args(options).arg(&copy);
    if strip.status().is_ok_and(|status| status.success()) { Ok(copy) } else { Ok(made.to_owned()) }
}

/// The sources of a library, from the compiler's dependency file, and the manifests of their crates.
fn sources(root: &Path, notes: &Path) -> Result<BTreeSet<PathBuf>, Box<dyn Error>> {
    let notes = fs::read_to_string(notes)?;
    let (_, list) = notes.split_once(": ").ok_or("the compiler noted no sources")?;
    // Spaces in names are escaped.
    let list = list.replace("\\ ", "\0");
    let mut found: BTreeSet<PathBuf> = ["Cargo.lock", "Cargo.toml"].map(|name| root.join(name)).into();
    for source in list.split_whitespace().map(|name| PathBuf::from(name.replace('\0', " "))) {
        let home = source.ancestors().skip(1).map(|dir| dir.join("Cargo.toml")).find(|file| file.exists());
        found.extend(home);
        found.insert(source);
    }
    Ok(found)
}
