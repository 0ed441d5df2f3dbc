//! What users read: no `Debug` output in an error, a printed line or the log.

use super::Finding;
use crate::rust;
use crate::tree::Tree;

/// Crates that only tests run; their messages are for developers.
const TEST_CRATES: &[&str] = &["crates/proof/", "crates/testkit/"];

/// Macros whose message only a bug of ours shows.
const FOR_BUGS: &[&str] = &[
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "debug_assert_ne",
    "panic",
    "unreachable",
];

/// Macros that write to the log, where `?field` is `Debug` output.
const LOGS: &[&str] = &["error", "warn", "info", "debug", "trace"];

const WRONG: &str = "Debug output in a message: print it in the reader's words (Display)";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| is_shipped(path)) {
        let shipped = rust::without_tests(text);
        findings.extend(lines(&shipped).map(|line| Finding::wrong(format!("{path}:{line}"), WRONG)));
    }
    findings
}

/// A source file of a crate that users run, and no module of tests.
fn is_shipped(path: &str) -> bool {
    let is_test = path.ends_with("/tests.rs") || path.contains("/tests/");
    path.starts_with("crates/")
        && path.contains("/src/")
        && !is_test
        && !TEST_CRATES.iter().any(|dir| path.starts_with(dir))
}

/// The lines with `Debug` output.
fn lines(text: &str) -> impl Iterator<Item = usize> {
    let parts = rust::parts(text).into_iter();
    let wrong = parts.filter(|part| match &part.literal {
        Some(literal) => {
            formats_debug(literal) && !FOR_BUGS.iter().any(|name| part.macros.iter().any(|of| of == name))
        }
        None => part.debug_field && part.macros.last().is_some_and(|name| LOGS.contains(&name.as_str())),
    });
    let mut lines: Vec<usize> = wrong.map(|part| part.line).collect();
    lines.dedup();
    lines.into_iter()
}

/// Whether a literal has a place such as `{name:?}`, `{:#?}` or `{:02x?}`.
fn formats_debug(literal: &str) -> bool {
    literal.match_indices("?}").any(|(end, _)| {
        let Some(begin) = literal[..end].rfind('{') else { return false };
        literal[begin..end].contains(':')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn debug_output_in_a_message_is_found() {
        let path = "crates/server/src/x.rs";
        for wrong in [
            "fn f() { format!(\"no {name:?} here\") }",
            "fn f() { write!(out, \"{:#?}\", x) }",
            "fn f() { println!(\"{:02x?}\", x) }",
            "fn f() { tracing::warn!(?step, \"done\") }",
            "fn f() { tracing::info!(%uid, start = ?store.start(), \"opened\") }",
            "fn f() { Error::new(format!(\"{}: {reply:?}\", name)) }",
        ] {
            assert_eq!(found(path, wrong), ["crates/server/src/x.rs:1"], "{wrong}");
        }
        for right in [
            "fn f() { assert!(a, \"{a:?}\"); panic!(\"{a:?}\") }",
            "fn f() -> Result<()> { tracing::info!(%uid, \"{}\", g()?) }",
            "// {a:?}\nfn f() { format!(\"{a}: why?\") }",
            "fn f() { format!(\"{a}?}}\") }",
            "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() { format!(\"{a:?}\") }\n}",
        ] {
            assert_eq!(found(path, right), [""; 0], "{right}");
        }
        let debugs = "fn f() { format!(\"{a:?}\") }";
        assert_eq!(found("crates/proof/src/x.rs", debugs), [""; 0]);
        assert_eq!(found("crates/store/src/data/tests.rs", debugs), [""; 0]);
        assert_eq!(found("crates/store/tests/x.rs", debugs), [""; 0]);
        let after = "#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn f() { format!(\"{a:?}\") }";
        assert_eq!(found(path, after), ["crates/server/src/x.rs:5"]);
    }
}
