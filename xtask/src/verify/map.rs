//! ARCHITECTURE.md is a true map: every file and function that it names exists, and it names all homes of unsafe code.

use super::{Finding, house};
use crate::rust;
use crate::tree::Tree;
use std::collections::{BTreeMap, BTreeSet};

const MAP: &str = "ARCHITECTURE.md";

/// Where the ways of a write, a read and a create are described: every name there is one that `grep` finds.
const WAYS: (&str, &str) = ("## The way of a write", "## Rooms");

/// Where each crate has a row.
const ROOMS: (&str, &str) = ("## Rooms", "## Entry points");

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.get(MAP) else { return vec![Finding::wrong(MAP, "is missing")] };
    let code = Code::read(tree);
    let mut findings = unsafe_rows(text);
    let (mut dir, mut in_ways) = (String::new(), false);
    for (index, line) in text.lines().enumerate() {
        in_ways = line == WAYS.0 || (in_ways && line != WAYS.1);
        let wrong = |what| Finding::wrong(format!("{MAP}:{}", index + 1), what);
        for cell in line.split('|') {
            let mut file = None;
            for span in cell.split('`').skip(1).step_by(2) {
                if span.contains("/src/") {
                    let file = span.ends_with(".rs").then(|| span.rsplit_once('/')).flatten();
                    dir = file.map_or(span, |(dir, _)| dir).to_owned();
                }
                if span.ends_with(".rs") {
                    file = find(tree, span, &dir);
                    findings.extend(file.is_none().then(|| wrong(format!("there is no file {span}"))));
                } else if !code.has(span, file.as_deref(), in_ways) {
                    let home = file.as_ref().map_or(String::new(), |file| format!(" in {file}"));
                    findings.push(wrong(format!("there is no function {span}{home}")));
                }
            }
        }
    }
    findings
}

/// The path of a source file that the map names: from `crates` on, or beside the last one that had a path.
fn find(tree: &Tree, span: &str, dir: &str) -> Option<String> {
    let paths = [format!("crates/{span}"), span.to_owned(), format!("crates/{dir}/{span}")];
    paths.into_iter().find(|path| tree.get(path).is_some())
}

/// The code of all source files.
struct Code {
    files: BTreeMap<String, String>,
    functions: BTreeSet<String>,
}

impl Code {
    fn read(tree: &Tree) -> Code {
        let files: BTreeMap<_, _> =
            tree.rust().map(|(path, text)| (path.to_owned(), rust::code(text))).collect();
        let functions = files.values().flat_map(|code| functions(code)).map(str::to_owned).collect();
        Code { files, functions }
    }

    /// Whether what a span names as a function is one: `Type::function` everywhere, and every name on the ways. A
    /// function without a type is in the file that is named before it.
    fn has(&self, span: &str, file: Option<&str>, in_ways: bool) -> bool {
        let is_name = |name: &str| {
            !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        };
        match span.split_once("::") {
            Some((kind, name)) if is_name(name) && kind.starts_with(char::is_uppercase) => {
                self.files.values().any(|code| has_method(code, kind, name))
            }
            None if in_ways && is_name(span) && !span.starts_with("forebay_") => match file {
                Some(file) => functions(&self.files[file]).any(|name| name == span),
                None => self.functions.contains(span),
            },
            _ => true,
        }
    }
}

/// The names of all functions of a source file.
fn functions(code: &str) -> impl Iterator<Item = &str> {
    let words = || code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    words().zip(words().skip(1)).filter(|(word, _)| *word == "fn").map(|(_, name)| name)
}

/// Whether an implementation of a type, or a trait of that name, has a function.
fn has_method(code: &str, kind: &str, name: &str) -> bool {
    let is_block = |line: &str| {
        ["impl", "trait", "pub trait", "pub(crate) trait"].iter().any(|mark| line.starts_with(mark))
    };
    let mut at = 0;
    code.split_inclusive('\n').any(|line| {
        let block = &code[at..];
        at += line.len();
        let Some((head, _)) = block.split_once('{').filter(|_| is_block(line.trim_start())) else {
            return false;
        };
        let names_kind = !rust::lines_with(head, kind).is_empty();
        // The block ends where a line closes it at its own margin.
        let margin = &line[..line.len() - line.trim_start().len()];
        let body = block.split_once(&format!("\n{margin}}}")).map_or(block, |(body, _)| body);
        names_kind && functions(body).any(|one| one == name)
    })
}

/// The rows of crates say where unsafe code is at home, and no other row does.
fn unsafe_rows(text: &str) -> Vec<Finding> {
    let rooms = text.lines().enumerate().skip_while(|(_, line)| *line != ROOMS.0);
    let rooms = rooms.take_while(|(_, line)| *line != ROOMS.1);
    let mut findings = Vec::new();
    for (index, line) in rooms.filter(|(_, line)| line.starts_with("| `")) {
        let name = line.split('`').nth(1).unwrap_or_default();
        let src = format!("crates/{name}/src/");
        let home = house::UNSAFE_HOMES.iter().find(|home| home.starts_with(&src));
        let says = line.contains("`unsafe`");
        let names_file =
            home.is_none_or(|home| !home.ends_with(".rs") || line.contains(&home["crates/".len()..]));
        if says != home.is_some() || !names_file {
            let what =
                format!("{name}: where unsafe code is at home is {}", home.unwrap_or(&"nowhere in it"));
            findings.push(Finding::wrong(format!("{MAP}:{}", index + 1), what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(map: &str) -> Vec<String> {
        let files = [
            (MAP, map),
            (
                "crates/a/src/x.rs",
                "struct Data;\nimpl Data {\n    fn put() {}\n}\ntrait Kv {\n    fn get();\n}\nfn look() {}",
            ),
            ("crates/a/src/y.rs", "impl Other {\n    fn take() {}\n}"),
        ];
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
        let ways = |hop: &str| wrong(&format!("{}\n| {hop} |\n{}\n`elsewhere`", WAYS.0, WAYS.1));
        assert!(ways("`Data::put`, `Kv::get`, `look`").is_empty());
        assert_eq!(ways("`Data::take`"), ["there is no function Data::take"], "another type has it");
        assert_eq!(wrong("`Data::take`"), ["there is no function Data::take"], "everywhere on the map");
        assert!(ways("`a/src/x.rs`: `look`").is_empty());
        assert_eq!(ways("`a/src/y.rs`: `look`"), ["there is no function look in crates/a/src/y.rs"]);
        assert_eq!(ways("`seek`"), ["there is no function seek"]);
    }

    #[test]
    fn row_that_is_wrong_about_unsafe_code_is_found() {
        let rooms = |row: &str| wrong(&format!("{}\n| {row} |\n{}\n", ROOMS.0, ROOMS.1));
        assert!(rooms("`shm` | rings. A home of `unsafe`").is_empty());
        assert!(rooms("`store` | bytes").is_empty());
        assert_eq!(rooms("`shm` | rings"), ["shm: where unsafe code is at home is crates/shm/src/"]);
        assert_eq!(rooms("`store` | `unsafe`"), ["store: where unsafe code is at home is nowhere in it"]);
        assert_eq!(rooms("`server` | a home of `unsafe`").len(), 1, "the file is named");
    }
}
