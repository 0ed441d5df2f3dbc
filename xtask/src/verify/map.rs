//! ARCHITECTURE.md is a true map: every file and function that it names exists.

use super::Finding;
use crate::rust;
use crate::tree::Tree;
use std::collections::BTreeSet;

const MAP: &str = "ARCHITECTURE.md";

/// Where the ways of a write, a read and a create are described: every name there is one that `grep` finds.
const WAYS: (&str, &str) = ("## The way of a write", "## Rooms");

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.get(MAP) else { return vec![Finding::wrong(MAP, "is missing")] };
    let defined: BTreeSet<String> = tree.rust().flat_map(|(_, text)| functions(text)).collect();
    let mut findings = Vec::new();
    let (mut dir, mut in_ways) = (String::new(), false);
    for (index, line) in text.lines().enumerate() {
        in_ways = line == WAYS.0 || (in_ways && line != WAYS.1);
        let place = || format!("{MAP}:{}", index + 1);
        for span in line.split('`').skip(1).step_by(2) {
            if span.contains("/src/") {
                let file = span.ends_with(".rs").then(|| span.rsplit_once('/')).flatten();
                dir = file.map_or(span, |(dir, _)| dir).to_owned();
            }
            if !is_there(tree, span, &dir) {
                findings.push(Finding::wrong(place(), format!("there is no file {span}")));
            }
            let name = span.rsplit("::").next().unwrap_or_default();
            let is_hop = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            if in_ways && is_hop && !span.starts_with("forebay_") && !defined.contains(name) {
                findings.push(Finding::wrong(place(), format!("there is no function {name} ({span})")));
            }
        }
    }
    findings
}

/// Whether a span that looks like a source file is one: by its path from `crates`, or beside the last one that had one.
fn is_there(tree: &Tree, span: &str, dir: &str) -> bool {
    if !span.ends_with(".rs") {
        return true;
    }
    [format!("crates/{span}"), span.to_owned(), format!("crates/{dir}/{span}")]
        .iter()
        .any(|path| tree.get(path).is_some())
}

/// The names of all functions of a source file.
fn functions(text: &str) -> Vec<String> {
    let code = rust::code(text);
    let words: Vec<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    words.windows(2).filter(|pair| pair[0] == "fn").map(|pair| pair[1].to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(map: &str) -> Vec<String> {
        let files = [(MAP, map), ("crates/a/src/x.rs", "fn put() {}"), ("crates/a/src/y.rs", "")];
        check(&Tree::of(&files)).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn file_that_is_not_there_is_found() {
        assert!(wrong("see `a/src/x.rs`, `y.rs`").is_empty());
        assert_eq!(wrong("see `a/src/x.rs`, `z.rs`"), ["there is no file z.rs"]);
        assert_eq!(wrong("see `a/src/w.rs`"), ["there is no file a/src/w.rs"]);
    }

    #[test]
    fn hop_that_is_not_there_is_found() {
        let ways = |hop: &str| format!("{}\n| `{hop}` |\n{}\n`elsewhere`", WAYS.0, WAYS.1);
        assert!(wrong(&ways("Data::put")).is_empty());
        assert_eq!(wrong(&ways("Data::take")), ["there is no function take (Data::take)"]);
    }
}
