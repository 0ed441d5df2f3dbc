//! `SEMANTICS.md`: every promise names the test that keeps it.
//!
//! The convention: in each table whose last column is headed *test* (or *tests*), the last cell of each row holds one
//! or more names of test functions in backticks: `name`, `crate::module::name` (only the name counts), or
//! `file.rs: name` (it must be in a file of that name).

use super::Finding;
use crate::rust;
use crate::tree::Tree;

const PAGE: &str = "SEMANTICS.md";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.get(PAGE) else {
        return vec![Finding::wrong(
            PAGE,
            "is missing: it says what each call promises, and which test shows it",
        )];
    };
    let code: Vec<(&str, String)> = tree.rust().map(|(path, text)| (path, rust::code(text))).collect();
    let rows = rows(page);
    if rows.is_empty() {
        return vec![Finding::wrong(PAGE, "has no table whose last column is headed \"test\"")];
    }
    let mut findings = Vec::new();
    for (line, cell) in rows {
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            findings.push(Finding::wrong(format!("{PAGE}:{line}"), "this row names no test"));
        }
        for name in names.into_iter().filter(|name| !exists(name, &code)) {
            findings.push(Finding::wrong(format!("{PAGE}:{line}"), format!("there is no test {name}")));
        }
    }
    findings
}

/// Line number (from 1) and last cell of every row of the tables that have tests.
fn rows(page: &str) -> Vec<(usize, &str)> {
    let mut rows = Vec::new();
    // Whether the table we are in has tests; none outside of tables.
    let mut in_tests: Option<bool> = None;
    for (index, line) in page.lines().enumerate() {
        let line = line.trim();
        let Some(cell) = line.strip_prefix('|').map(last_cell) else {
            in_tests = None;
            continue;
        };
        match in_tests {
            None => in_tests = Some(matches!(cell.to_lowercase().as_str(), "test" | "tests")),
            Some(true) if !is_rule(cell) => rows.push((index + 1, cell)),
            Some(_) => {}
        }
    }
    rows
}

fn last_cell(row: &str) -> &str {
    let row = row.trim_end().trim_end_matches('|');
    row.rsplit('|').next().unwrap_or(row).trim()
}

/// The line of dashes between head and body.
fn is_rule(cell: &str) -> bool {
    !cell.is_empty() && cell.chars().all(|c| matches!(c, '-' | ':'))
}

fn exists(name: &str, code: &[(&str, String)]) -> bool {
    let (file, name) = match name.split_once(".rs:") {
        Some((file, name)) if !name.starts_with(':') => (Some(format!("{file}.rs")), name.trim()),
        _ => (None, name),
    };
    let name = name.rsplit("::").next().unwrap_or(name);
    let in_file =
        |path: &str| file.as_ref().is_none_or(|file| path == file || path.ends_with(&format!("/{file}")));
    !name.is_empty() && code.iter().any(|(path, code)| in_file(path) && rust::has_test(code, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TESTS: &str = "#[test]\nfn reads_back() {}\n#[tokio::test]\nasync fn survives() {}\nfn helper() {}";

    fn found(page: &str) -> Vec<String> {
        let findings = check(&Tree::of(&[(PAGE, page), ("crates/a/tests/crash.rs", TESTS)]));
        findings.iter().map(|finding| format!("{}: {}", finding.place, finding.what)).collect()
    }

    fn row(cell: &str) -> Vec<String> {
        found(&format!(
            "# Calls\n\n| call | promise | test |\n|---|---|---|\n| `write` | is `read` | {cell} |\n"
        ))
    }

    #[test]
    fn rows_with_tests_pass() {
        for cell in [
            "`reads_back`",
            "`reads_back`, `survives`",
            "`a::tests::survives`",
            "`crash.rs: reads_back`",
            "`tests/crash.rs: a::reads_back`",
        ] {
            assert_eq!(row(cell), [""; 0], "{cell}");
        }
    }

    #[test]
    fn rows_without_a_living_test_are_found() {
        for (cell, what) in [
            ("", "names no test"),
            ("reads_back", "names no test"),
            ("`reads_bac`", "no test reads_bac"),
            ("`helper`", "no test helper"),
            ("`other.rs: reads_back`", "no test other.rs: reads_back"),
            ("`rash.rs: reads_back`", "no test rash.rs: reads_back"),
            ("`reads_back`, `gone`", "no test gone"),
            ("``", "no test"),
        ] {
            let found = row(cell);
            assert!(
                found.len() == 1 && found[0].starts_with("SEMANTICS.md:5") && found[0].contains(what),
                "{found:?}"
            );
        }
    }

    #[test]
    fn other_tables_are_left_alone_and_the_page_must_be_there() {
        let other = "| call | note |\n|---|---|\n| `mmap` | later |\n\n";
        let tests = "| call | Tests |\n|:--|--:|\n| `mmap` | `survives` |\n";
        assert_eq!(found(&format!("{other}{tests}")), [""; 0]);
        assert!(found(other)[0].contains("no table"));
        assert!(check(&Tree::default())[0].what.contains("missing"));
    }
}
