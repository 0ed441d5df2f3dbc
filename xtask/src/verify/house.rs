//! Rules of the house about source files.

use super::Finding;
use crate::rust;
use crate::tree::Tree;

/// Past this a file is to be split.
const MAX_LINES: usize = 700;

/// The only places where `unsafe` may stand in a crate's own sources: directories (with a slash at the end) or files.
/// Elsewhere `#![forbid(unsafe_code)]` stands in the crate's root; a crate that owns only some files here has
/// `#![deny(unsafe_code)]` in its root, and allows it module by module.
pub(super) const UNSAFE_HOMES: &[&str] =
    &["crates/shm/src/", "crates/place/src/", "crates/preload/src/", "crates/server/src/peer.rs"];

/// Crates that only decide: time, randomness, files, sockets and threads come in as arguments or not at all.
const PURE: &[&str] = &["model", "policy", "wire", "planner", "sim", "report"];

/// Where a lock of the standard library is taken: everything that is loaded into other programs calls it.
const LOCK_HOME: &str = "crates/model/src/lock.rs";

/// Crates that are loaded into other programs, where the table of waiters of `parking_lot` is not safe after `fork` and
/// in signal handlers.
const GUESTS: &[&str] = &["model", "wire", "shm", "client", "preload", "place"];

/// What the `clippy.toml` of a pure crate must ban.
const BANNED: &[&str] =
    &["std::time::Instant::now", "std::time::SystemTime::now", "std::fs::", "std::net::", "std::thread::"];

pub(super) fn size(tree: &Tree) -> Vec<Finding> {
    let sources = tree.rust().filter(|(path, _)| is_source(path));
    let long =
        sources.map(|(path, text)| (path, text.lines().count())).filter(|(_, lines)| *lines > MAX_LINES);
    long.map(|(path, lines)| Finding::wrong(path, format!("has {lines} lines; split it below {MAX_LINES}")))
        .collect()
}

pub(super) fn headers(tree: &Tree) -> Vec<Finding> {
    let bare = roots(tree).filter(|(_, text)| !text.starts_with("//!"));
    bare.map(|(path, _)| {
        Finding::wrong(path, "must start with //!: what it is for, its invariant, what is absent")
    })
    .collect()
}

pub(super) fn unsafe_code(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in roots(tree) {
        let src = &path[..path.find("/src/").map_or(0, |at| at + "/src/".len())];
        let level = if UNSAFE_HOMES.contains(&src) {
            continue;
        } else if UNSAFE_HOMES.iter().any(|home| home.starts_with(src)) {
            "deny"
        } else {
            "forbid"
        };
        if !rust::code(text).contains(&format!("#![{level}(unsafe_code)]")) {
            findings.push(Finding::wrong(path, format!("lacks #![{level}(unsafe_code)]")));
        }
    }
    for (path, text) in tree.rust().filter(|(path, _)| is_source(path) && !is_unsafe_home(path)) {
        for line in rust::lines_with(&rust::code(text), "unsafe") {
            let what = "unsafe is not at home here: move it, or give it a home in UNSAFE_HOMES (xtask)";
            findings.push(Finding::wrong(format!("{path}:{line}"), what));
        }
    }
    findings
}

fn is_unsafe_home(path: &str) -> bool {
    UNSAFE_HOMES.iter().any(|home| path == *home || (home.ends_with('/') && path.starts_with(home)))
}

pub(super) fn pure(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dir in PURE.iter().map(|name| format!("crates/{name}")) {
        if !tree.packages().any(|package| package == dir) {
            continue;
        }
        let Some(guard) = tree.get(&format!("{dir}/clippy.toml")) else {
            findings.push(Finding::wrong(dir, "is a pure crate and has no clippy.toml"));
            continue;
        };
        for banned in BANNED.iter().filter(|banned| !guard.contains(&format!("\"{banned}"))) {
            findings.push(Finding::wrong(format!("{dir}/clippy.toml"), format!("does not ban {banned}")));
        }
    }
    findings
}

pub(super) fn locks(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_source(path) && *path != LOCK_HOME) {
        for line in rust::lines_with(&rust::code(text), "PoisonError") {
            let what = "take locks of parking_lot, or by lock() of the model in what is loaded into programs";
            findings.push(Finding::wrong(format!("{path}:{line}"), what));
        }
    }
    for manifest in GUESTS.iter().map(|name| format!("crates/{name}/Cargo.toml")) {
        if tree.get(&manifest).is_some_and(|text| text.contains("parking_lot")) {
            let what =
                "is loaded into programs, where parking_lot is not safe after fork: use lock() of the model";
            findings.push(Finding::wrong(manifest, what));
        }
    }
    findings
}

pub(super) fn lints(tree: &Tree) -> Vec<Finding> {
    let takes = |dir: &&str| {
        let manifest = tree.get(&format!("{dir}/Cargo.toml")).unwrap_or_default();
        let mut lines = manifest.lines().map(str::trim).skip_while(|line| *line != "[lints]").skip(1);
        lines.next() == Some("workspace = true")
    };
    let without = tree.packages().filter(|dir| !takes(dir));
    without.map(|dir| Finding::wrong(format!("{dir}/Cargo.toml"), "lacks [lints] workspace = true")).collect()
}

pub(super) fn leftovers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust() {
        let code = rust::code(text);
        for (index, line) in code.lines().enumerate() {
            let line: String = line.split_whitespace().collect();
            let found = if is_ignored(&line) {
                "a test that never runs proves nothing: fix it, or let it skip aloud"
            } else if line.contains("todo!(") || line.contains("unimplemented!(") {
                "left to do: do it, or return an error that says so"
            } else {
                continue;
            };
            findings.push(Finding::wrong(format!("{path}:{}", index + 1), found));
        }
    }
    findings
}

/// Whether the line (without spaces) switches a test off, also under a condition.
fn is_ignored(line: &str) -> bool {
    let conditional =
        line.contains("#[cfg_attr(") && (line.contains(",ignore)") || line.contains(",ignore="));
    line.contains("#[ignore]") || line.contains("#[ignore=") || conditional
}

/// A source file of a crate, not of its tests.
fn is_source(path: &str) -> bool {
    let inside = path.strip_prefix("crates/").and_then(|rest| rest.split_once('/')).map(|(_, inside)| inside);
    inside.or(path.strip_prefix("xtask/")).is_some_and(|inside| inside.starts_with("src/"))
}

/// The files that crates start with: libraries and programs.
fn roots(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.rust().filter(|(path, _)| {
        let inside = path.split_once("/src/").map(|(_, inside)| inside);
        let program = inside.and_then(|inside| inside.strip_prefix("bin/"));
        let starts = matches!(inside, Some("lib.rs" | "main.rs"))
            || program.is_some_and(|name| !name.contains('/') || name.ends_with("/main.rs"));
        is_source(path) && starts
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the check on the files and compares the places of what it finds.
    fn check(rule: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)], places: &[&str]) {
        let findings = rule(&Tree::of(files));
        let found: Vec<&str> = findings.iter().map(|finding| finding.place.as_str()).collect();
        assert_eq!(found, places, "{files:?}");
    }

    #[test]
    fn long_files_are_found() {
        let (long, longest) = ("\n".repeat(MAX_LINES + 1), "\n".repeat(MAX_LINES));
        check(size, &[("crates/a/src/x.rs", &longest), ("crates/a/tests/x.rs", &long)], &[]);
        check(
            size,
            &[("crates/a/src/x.rs", &long), ("xtask/src/y.rs", &long)],
            &["crates/a/src/x.rs", "xtask/src/y.rs"],
        );
    }

    #[test]
    fn crates_without_a_header_are_found() {
        check(headers, &[("crates/a/src/lib.rs", "//! For x."), ("crates/a/src/x.rs", "fn f() {}")], &[]);
        let bare = "// For x.\n#![forbid(unsafe_code)]";
        let roots = [
            "crates/a/src/bin/x.rs",
            "crates/a/src/bin/y/main.rs",
            "crates/a/src/lib.rs",
            "crates/b/src/main.rs",
        ];
        check(headers, &roots.map(|path| (path, bare)), &roots);
    }

    #[test]
    fn unsafe_code_is_found_outside_of_its_homes() {
        let (forbids, denies) = ("#![forbid(unsafe_code)]", "#![deny(unsafe_code)]");
        let (uses, speaks) =
            ("fn f() {\n  unsafe { g() }\n}", "// unsafe\nfn f() { \"unsafe\"; unsafe_code(); }");
        check(unsafe_code, &[("crates/a/src/lib.rs", forbids), ("crates/a/src/x.rs", speaks)], &[]);
        check(unsafe_code, &[("crates/a/src/lib.rs", denies)], &["crates/a/src/lib.rs"]);
        check(
            unsafe_code,
            &[("crates/a/src/lib.rs", "// #![forbid(unsafe_code)]")],
            &["crates/a/src/lib.rs"],
        );
        check(unsafe_code, &[("crates/a/src/x.rs", uses)], &["crates/a/src/x.rs:2"]);
        check(unsafe_code, &[("crates/a/tests/x.rs", uses)], &[]);
        check(unsafe_code, &[("crates/shm/src/lib.rs", uses), ("crates/shm/src/map.rs", uses)], &[]);
        check(unsafe_code, &[("crates/server/src/lib.rs", denies), ("crates/server/src/peer.rs", uses)], &[]);
        check(unsafe_code, &[("crates/server/src/lib.rs", "")], &["crates/server/src/lib.rs"]);
        check(unsafe_code, &[("crates/server/src/other.rs", uses)], &["crates/server/src/other.rs:2"]);
    }

    #[test]
    fn unguarded_pure_crates_are_found() {
        let guard: String = BANNED.iter().map(|banned| format!("{{ path = \"{banned}x\" }}\n")).collect();
        check(pure, &[("crates/model/Cargo.toml", ""), ("crates/model/clippy.toml", &guard)], &[]);
        check(pure, &[("crates/store/Cargo.toml", "")], &[]);
        check(pure, &[("crates/model/Cargo.toml", "")], &["crates/model"]);
        let partly = guard.replace("std::net::", "std::nut::");
        check(
            pure,
            &[("crates/sim/Cargo.toml", ""), ("crates/sim/clippy.toml", &partly)],
            &["crates/sim/clippy.toml"],
        );
    }

    #[test]
    fn locks_that_are_taken_in_other_ways_are_found() {
        let uses = "use std::sync::PoisonError;";
        check(locks, &[(LOCK_HOME, uses), ("crates/a/tests/x.rs", uses)], &[]);
        check(locks, &[("crates/a/src/x.rs", uses)], &["crates/a/src/x.rs:1"]);
        let needs = "[dependencies]\nparking_lot.workspace = true\n";
        check(locks, &[("crates/server/Cargo.toml", needs)], &[]);
        check(locks, &[("crates/client/Cargo.toml", needs)], &["crates/client/Cargo.toml"]);
    }

    #[test]
    fn crates_without_the_lints_are_found() {
        check(
            lints,
            &[("Cargo.toml", "[workspace]"), ("crates/a/Cargo.toml", "[lints]\nworkspace = true\n")],
            &[],
        );
        check(lints, &[("crates/a/Cargo.toml", "[package]\nworkspace = true")], &["crates/a/Cargo.toml"]);
        check(lints, &[("xtask/Cargo.toml", "[lints]\n[dependencies]")], &["xtask/Cargo.toml"]);
    }

    #[test]
    fn leftovers_are_found() {
        let good = "#[test]\nfn f() { ignore(); } // todo!()\n/* #[ignore] */ const S: &str = \"todo!()\";";
        check(leftovers, &[("crates/a/src/x.rs", good)], &[]);
        for bad in [
            "#[ignore]",
            "#[ignore = \"slow\"]",
            "#[cfg_attr(miri, ignore)]",
            "#[cfg_attr(miri, ignore = \"slow\")]",
            "#[test] #[ignore] fn f() {}",
            "todo!()",
            "unimplemented!(\"later\")",
        ] {
            check(leftovers, &[("crates/a/tests/x.rs", &format!("\n{bad}"))], &["crates/a/tests/x.rs:2"]);
        }
    }
}
