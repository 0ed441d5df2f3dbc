//! What the suite wants from the machine around it, and how it gets there.
//!
//! A missing package is installed when we may (root, and `apt-get` at hand). What cannot be had is said plainly, at
//! once and again at the end of the run; the tests that need it skip.

use crate::shell;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How we know that a package is there.
#[derive(Clone, Copy, Debug)]
enum Proof {
    /// This program is in the search path.
    Program(&'static str),
    /// This command succeeds.
    Succeeds(&'static [&'static str]),
}

/// A system package that tests want: its Debian name, its proof and what it is for.
#[derive(Clone, Copy, Debug)]
struct Package {
    name: &'static str,
    proof: Proof,
    why: &'static str,
}

/// Add a line here and `cargo xtask test` brings the package along.
const PACKAGES: &[Package] = &[
    Package {
        name: "util-linux",
        proof: Proof::Program("unshare"),
        why: "mounts and namespaces of a test's own",
    },
    Package { name: "iproute2", proof: Proof::Program("ip"), why: "networks of a test's own" },
    Package { name: "e2fsprogs", proof: Proof::Program("mkfs.ext4"), why: "small disks that can be full" },
    Package {
        name: "chromium",
        proof: Proof::Program("chromium"),
        why: "a picture of the planner's report, as a browser shows it",
    },
    Package {
        name: "fonts-dejavu-core",
        proof: Proof::Succeeds(&["test", "-d", "/usr/share/fonts/truetype/dejavu"]),
        why: "letters in that picture",
    },
    Package {
        name: "python3-venv",
        proof: Proof::Succeeds(&["python3", "-c", "import ensurepip, venv"]),
        why: "Python modules for tests, apart from the system's",
    },
    Package {
        name: "fio",
        proof: Proof::Program("fio"),
        why: "an unmodified program that writes, reads and verifies",
    },
    Package {
        name: "gcc",
        proof: Proof::Program("cc"),
        why: "programs in C that run with the preload library and on a mount",
    },
    Package {
        name: "libc6-dev",
        proof: Proof::Succeeds(&["test", "-e", "/usr/include/stdio.h"]),
        why: "what those programs are made with, also linked statically",
    },
    Package { name: "g++", proof: Proof::Program("c++"), why: "streams of C++ on files of Forebay" },
    Package { name: "binutils", proof: Proof::Program("nm"), why: "the list of what the library takes over" },
    Package { name: "git", proof: Proof::Program("git"), why: "an unmodified program that renames and maps" },
    Package {
        name: "python3",
        proof: Proof::Program("python3"),
        why: "an unmodified program with many modules",
    },
    Package { name: "fuse3", proof: Proof::Program("fusermount3"), why: "mounts of users who are not root" },
    Package {
        name: "rclone",
        proof: Proof::Program("rclone"),
        why: "an unmodified program in Go, which no library sees into",
    },
    Package { name: "rsync", proof: Proof::Program("rsync"), why: "an unmodified program on a mount" },
    Package { name: "gfortran", proof: Proof::Program("gfortran"), why: "parallel programs in Fortran" },
    Package {
        name: "libacl1-dev",
        proof: Proof::Succeeds(&["test", "-e", "/usr/include/sys/acl.h"]),
        why: "pjdfstest, a suite of checks, is built with it",
    },
    Package {
        name: "libhdf5-mpich-dev",
        proof: Proof::Program("h5pcc.mpich"),
        why: "parallel programs and HDF5, with the MPI-IO of mpich, which it brings",
    },
    Package {
        name: "libhdf5-openmpi-dev",
        proof: Proof::Program("h5pcc.openmpi"),
        why: "the same of Open MPI",
    },
    Package { name: "sqlite3", proof: Proof::Program("sqlite3"), why: "an unmodified program on a mount" },
];

/// A program from Rust's registry, and what it is for.
#[derive(Clone, Copy, Debug)]
struct Tool {
    name: &'static str,
    version: &'static str,
    why: &'static str,
}

/// Add a line here and the program is in the tests' search path.
const TOOLS: &[Tool] = &[Tool {
    name: "pjdfstest",
    version: "0.2.2",
    why: "a public suite of checks of what POSIX says about files, for the mount",
}];

/// Builds the book as HTML; no test needs it.
const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.2", why: "the book as HTML" };

/// A Python package: its name in the index, the module that proves it, and what it is for.
#[derive(Clone, Copy, Debug)]
struct Module {
    name: &'static str,
    import: &'static str,
    why: &'static str,
}

/// Add a line here and the module is in the environment that `FOREBAY_PYTHON` points to.
const MODULES: &[Module] = &[
    Module {
        name: "darshan",
        import: "darshan",
        why: "the planner reads Darshan logs; this is their own reader",
    },
    Module { name: "moto[server]", import: "moto.server", why: "an object store that speaks S3" },
    Module {
        name: "numpy",
        import: "numpy",
        why: "C extensions that are loaded from Forebay, and mapped arrays",
    },
    Module {
        name: "safetensors",
        import: "safetensors.numpy",
        why: "a library that makes system calls past the C library",
    },
    Module { name: "joblib", import: "joblib", why: "processes that work on one mapped array" },
    Module {
        name: "tokenizers",
        import: "tokenizers",
        why: "a library in Rust that Hugging Face's programs use",
    },
    Module {
        name: "huggingface_hub",
        import: "huggingface_hub",
        why: "a cache of links, locks and renamed files",
    },
    Module { name: "lmdb", import: "lmdb", why: "a database that several processes map and write" },
];

/// Tests that want a module from [`MODULES`] start this interpreter.
pub(crate) const PYTHON: &str = "FOREBAY_PYTHON";

/// What the machine has become.
#[derive(Debug, Default)]
pub(crate) struct Machine {
    /// The interpreter of our own environment, when there is one.
    pub(crate) python: Option<PathBuf>,
    /// Where the programs from Rust's registry are.
    pub(crate) tools: PathBuf,
    /// One line for everything that is wanted and absent.
    pub(crate) missing: Vec<String>,
}

/// Installs what is missing, if `install` and if we may, and reports what is not there.
pub(crate) fn prepare(install: bool) -> Machine {
    let mut machine = Machine::default();
    packages(install, &mut machine);
    python(install, &mut machine);
    tools(install, &mut machine);
    for line in &machine.missing {
        println!("missing: {line}");
    }
    machine
}

fn packages(install: bool, machine: &mut Machine) {
    let wanted = absent(PACKAGES, is_present);
    if wanted.is_empty() {
        return;
    }
    let refusal = if install { may_not_install() } else { Some("told not to install") };
    if refusal.is_none() {
        apt(&wanted);
    }
    let why_not = refusal.unwrap_or("apt-get could not install it");
    for package in absent(PACKAGES, is_present) {
        machine.missing.push(line(package.name, package.why, why_not));
    }
}

/// The packages that tests want and that `present` denies.
fn absent(table: &[Package], present: impl Fn(&Package) -> bool) -> Vec<Package> {
    table.iter().filter(|package| !present(package)).copied().collect()
}

fn is_present(package: &Package) -> bool {
    match package.proof {
        Proof::Program(name) => shell::in_path(name),
        Proof::Succeeds(words) => shell::succeeds(shell::command(words[0]).args(&words[1..])),
    }
}

fn line(name: &str, why: &str, why_not: &str) -> String {
    format!("{name} ({why}): {why_not}; tests that need it skip")
}

fn may_not_install() -> Option<&'static str> {
    if !shell::in_path("apt-get") {
        Some("there is no apt-get here")
    } else if !is_root() {
        Some("not root, so not ours to install")
    } else {
        None
    }
}

fn is_root() -> bool {
    shell::output(shell::command("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0")
}

/// All at once; if that fails, one by one, so that one bad package does not take the others along.
fn apt(wanted: &[Package]) {
    let names: Vec<&str> = wanted.iter().map(|package| package.name).collect();
    println!("installing {}", names.join(", "));
    if let Err(why) = shell::run(apt_get("update").arg("--quiet=2")) {
        println!("{why}; trying with the package lists at hand");
    }
    if shell::run(apt_get("install").args(&names)).is_ok() || names.len() == 1 {
        return;
    }
    for name in names {
        if let Err(why) = shell::run(apt_get("install").arg(name)) {
            println!("{why}");
        }
    }
}

fn apt_get(what: &str) -> Command {
    let mut command = shell::command("apt-get");
    command.env("DEBIAN_FRONTEND", "noninteractive").arg(what).args(["-o", "DPkg::Lock::Timeout=120"]);
    command.args(["-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30"]);
    if what == "install" {
        command.args(["--yes", "--no-install-recommends", "--quiet=2", "-o", "Dpkg::Use-Pty=0"]);
    }
    command
}

/// Brings [`TOOLS`] into a directory under `target/`.
fn tools(install: bool, machine: &mut Machine) {
    let home = tools_dir();
    machine.tools = home.join("bin");
    for tool in TOOLS {
        let is_here = || machine.tools.join(tool.name).exists() || shell::in_path(tool.name);
        if install
            && !is_here()
            && let Err(why) = install_tool(tool, &home, &[])
        {
            println!("{why}");
        }
        if !is_here() {
            let why_not = if install { "cargo could not install it" } else { "told not to install" };
            machine.missing.push(line(tool.name, tool.why, why_not));
        }
    }
}

fn install_tool(tool: &Tool, home: &Path, options: &[&str]) -> Result<(), String> {
    println!("installing {}", tool.name);
    let mut cargo = shell::cargo();
    cargo.args(["install", "--quiet", "--debug", "--locked", "--version", tool.version]).args(options);
    shell::run(cargo.arg("--root").arg(home).arg(tool.name))
}

/// The path of mdBook, if this machine has it.
pub(crate) fn present_mdbook() -> Option<String> {
    let ours = tools_dir().join("bin").join(MDBOOK.name);
    let in_path = || shell::in_path(MDBOOK.name).then(|| MDBOOK.name.to_owned());
    in_path().or_else(|| ours.exists().then(|| ours.to_string_lossy().into_owned()))
}

/// The path of mdBook, installed without its server and its search if it is missing.
pub(crate) fn mdbook() -> Result<String, String> {
    if let Some(program) = present_mdbook() {
        return Ok(program);
    }
    install_tool(&MDBOOK, &tools_dir(), &["--no-default-features"])
        .map_err(|why| format!("{}: {why}", MDBOOK.why))?;
    present_mdbook().ok_or_else(|| format!("{} was installed and is not there", MDBOOK.name))
}

/// Where programs from Rust's registry are installed.
fn tools_dir() -> PathBuf {
    shell::target_dir().join("tools")
}

/// Brings [`MODULES`] into an environment under `target/`.
fn python(install: bool, machine: &mut Machine) {
    let home = shell::target_dir().join("python");
    let interpreter = home.join("bin/python");
    let imports = |module: &Module| imports(&interpreter, module.import);
    let wanted: Vec<&Module> = MODULES.iter().filter(|module| !imports(module)).collect();
    if install && !wanted.is_empty() {
        if !interpreter.exists() {
            let _ = shell::run(shell::command("python3").args(["-m", "venv"]).arg(&home));
        }
        for module in &wanted {
            if interpreter.exists() {
                let mut pip = Command::new(&interpreter);
                pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
                let _ = shell::run(pip.arg(module.name));
            }
        }
    }
    for module in wanted.into_iter().filter(|module| !imports(module)) {
        let why_not = match (install, interpreter.exists()) {
            (false, _) => "told not to install",
            (true, false) => "there is no Python environment to put it in",
            (true, true) => "pip could not install it",
        };
        machine.missing.push(line(&format!("Python's {}", module.name), module.why, why_not));
    }
    machine.python = interpreter.exists().then_some(interpreter);
}

fn imports(interpreter: &Path, module: &str) -> bool {
    shell::succeeds(Command::new(interpreter).args(["-c", &format!("import {module}")]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_lacking_is_absent() {
        let names = |present: fn(&Package) -> bool| -> Vec<&str> {
            absent(PACKAGES, present).iter().map(|package| package.name).collect()
        };
        assert!(names(|_| true).is_empty());
        assert!(names(|_| false).contains(&"iproute2"));
        assert_eq!(names(|package| package.name != "chromium"), ["chromium"]);
    }

    #[test]
    fn proofs_can_fail() {
        let package = |proof| Package { name: "x", proof, why: "to see the proof at work" };
        assert!(is_present(&package(Proof::Program("sh"))));
        assert!(!is_present(&package(Proof::Program("no-such-program"))));
        assert!(is_present(&package(Proof::Succeeds(&["sh", "-c", "exit 0"]))));
        assert!(!is_present(&package(Proof::Succeeds(&["sh", "-c", "exit 1"]))));
        assert!(!imports(Path::new("/no/such/python"), "sys"));
    }

    #[test]
    fn missing_packages_are_named_with_reason_and_consequence() {
        assert_eq!(
            line("chromium", "pictures", "not root, so not ours to install"),
            "chromium (pictures): not root, so not ours to install; tests that need it skip"
        );
    }
}
