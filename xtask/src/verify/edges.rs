//! The layers of the server: a file uses its own layer and those below it. What does not yet is listed, and the list
//! may only shrink.

mod exceptions;

use super::Finding;
use crate::rust;
use crate::tree::Tree;
use exceptions::EXCEPTIONS;
use std::collections::{BTreeMap, BTreeSet};

const SOURCE: &str = "crates/server/src/";

/// The layers from the bottom to the top, and the files (without `.rs`) and directories of each. The longest path wins.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "base",
        &[
            "config",
            "direct/settings",
            "drain/settings",
            "error_limit",
            "history",
            "human",
            "key",
            "lifecycle",
            "log_limit",
            "members",
            "people",
            "per_user",
            "privileges",
            "rows",
            "working",
        ],
    ),
    ("sched", &["device", "jobs", "pace", "policy_store", "turns", "virtual_time"]),
    ("conn", &["answers", "connector", "framing", "peer", "transport"]),
    (
        "session",
        &["connection_epoch", "kept_pages", "keys", "opens", "orphans", "pipes", "session", "tokens"],
    ),
    (
        "peers",
        &[
            "cluster/homes",
            "cluster/leases",
            "cluster/membership",
            "cluster/peers",
            "cluster/requests",
            "file_homes",
            "gossip",
        ],
    ),
    ("striped", &["cluster/rebuild", "cluster/reshape", "cluster/striped"]),
    ("writers", &["writers"]),
    ("backing", &["backing"]),
    ("drain", &["drain"]),
    ("direct", &["direct"]),
    (
        "request",
        &["blocking", "caller", "cluster", "handle", "listing", "mapping", "memory", "peer_identity"],
    ),
    ("net", &["accept_limiter", "connection", "control", "data", "handshake", "shm_queue"]),
    ("root", &["lib", "run", "service", "sweep", "warm"]),
];

/// What all parts of the server share. Its methods and fields count for the files that define them.
const SHARED: &str = "Service";
const SHARED_IN: &str = "service";

/// A file, and another one whose items it uses.
type Edge = (String, String);

/// A name, and whether it is a method.
type Member<'a> = (&'a str, bool);

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    judge(tree, EXCEPTIONS)
}

fn judge(tree: &Tree, exceptions: &[(&str, &[&str])]) -> Vec<Finding> {
    let sources = Sources::read(tree);
    let mut findings = Vec::new();
    for file in sources.files.keys().filter(|file| layer(file).is_none()) {
        findings.push(Finding::wrong(place(file), "belongs to no layer of the server: add it to LAYERS"));
    }
    let mut unused: BTreeSet<Edge> = exceptions
        .iter()
        .flat_map(|(from, list)| list.iter().map(|to| ((*from).to_owned(), (*to).to_owned())))
        .collect();
    for ((from, to), line) in sources.edges() {
        let (Some(low), Some(high)) = (layer(&from), layer(&to)) else { continue };
        if low < high && !unused.remove(&(from.clone(), to.clone())) {
            let what = format!(
                "uses {}, but {} lies below {}: return a value, or move what both need down",
                place(&to),
                LAYERS[low].0,
                LAYERS[high].0
            );
            findings.push(Finding::wrong(format!("{}:{line}", place(&from)), what));
        }
    }
    for (from, to) in unused {
        let what = format!("no longer uses {}: take it off the exceptions", place(&to));
        findings.push(Finding::wrong(place(&from), what));
    }
    findings
}

fn place(file: &str) -> String {
    format!("{SOURCE}{file}.rs")
}

/// The index of a file's layer.
fn layer(file: &str) -> Option<usize> {
    let holds =
        |path: &str| file == path || file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    let paths =
        LAYERS.iter().enumerate().flat_map(|(index, (_, paths))| paths.iter().map(move |path| (index, path)));
    paths.filter(|(_, path)| holds(path)).max_by_key(|(_, path)| path.len()).map(|(index, _)| index)
}

/// The code of the server without its tests, by file (`drain/mod` for `drain/mod.rs`).
struct Sources {
    files: BTreeMap<String, String>,
}

impl Sources {
    fn read(tree: &Tree) -> Sources {
        let name = |path: &str| path.strip_prefix(SOURCE)?.strip_suffix(".rs").map(str::to_owned);
        let files =
            tree.rust().filter_map(|(path, text)| Some((name(path)?, without_tests(&rust::code(text)))));
        Sources { files: files.collect() }
    }

    /// All uses of another file, with the first line of each.
    fn edges(&self) -> BTreeMap<Edge, usize> {
        let members = self.members();
        let mut edges = BTreeMap::new();
        for (file, code) in &self.files {
            let paths = paths(code, "crate::").into_iter();
            let used = paths.filter_map(|(line, path)| Some((line, self.file_of(&path)?)));
            let shared = members_used(code).into_iter().flat_map(|(line, member)| {
                members.get(&member).into_iter().flatten().map(move |to| (line, to.clone()))
            });
            for (line, to) in used.chain(shared).filter(|(_, to)| to != file) {
                edges.entry((file.clone(), to)).or_insert(line);
            }
        }
        edges
    }

    /// The file that defines what a path from `crate` names; re-exports are followed.
    fn file_of(&self, path: &[String]) -> Option<String> {
        let (mut dir, mut root) = (String::new(), "lib".to_owned());
        for (depth, name) in path.iter().enumerate() {
            let below = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
            if self.files.contains_key(&below) {
                return Some(below);
            }
            if self.files.contains_key(&format!("{below}/mod")) {
                (root, dir) = (format!("{below}/mod"), below);
                continue;
            }
            let exports = paths(self.files.get(&root)?, "use ");
            let is_below = |module: &String| {
                [format!("{dir}/{module}"), format!("{dir}/{module}/mod")]
                    .iter()
                    .any(|file| self.files.contains_key(file))
            };
            let export = exports
                .into_iter()
                .map(|(_, export)| export)
                .find(|export| export.len() > 1 && export.last() == Some(name) && is_below(&export[0]));
            let Some(export) = export else { break };
            return self.file_of(&[&path[..depth], &export].concat());
        }
        Some(root)
    }

    /// The methods and fields of the shared type, and the files that they come from.
    fn members(&self) -> BTreeMap<Member<'_>, BTreeSet<String>> {
        let mut members: BTreeMap<Member<'_>, BTreeSet<String>> = BTreeMap::new();
        for (file, code) in &self.files {
            for block in blocks(code, &format!("impl {SHARED} {{")) {
                let signatures = block.split("\n    ").filter(|line| !line.starts_with(' '));
                for (_, rest) in signatures.filter_map(|line| line.split_once("fn ")) {
                    members.entry((word(rest), true)).or_default().insert(file.clone());
                }
            }
        }
        let Some(code) = self.files.get(SHARED_IN) else { return members };
        let imports = paths(code, "crate::");
        for block in blocks(code, &format!("struct {SHARED} {{")) {
            for (name, kind) in block.lines().filter_map(|line| line.split_once(": ")) {
                let types = kind.split(|c: char| !is_word(c)).filter(|name| !name.is_empty());
                let defined = types.filter_map(|kind| {
                    let (_, path) =
                        imports.iter().find(|(_, path)| path.last().is_some_and(|last| last == kind))?;
                    self.file_of(path)
                });
                let name = name.rsplit(' ').next().unwrap_or(name);
                members.entry((name, false)).or_default().extend(defined);
            }
        }
        members
    }
}

/// The code up to its module of tests.
fn without_tests(code: &str) -> String {
    let tests =
        code.match_indices("#[cfg(test)]").map(|(at, mark)| (at, code[at + mark.len()..].trim_start()));
    let mut modules = tests.filter(|(_, rest)| {
        let line = rest.lines().next().unwrap_or_default();
        line.contains("mod ") && line.ends_with('{')
    });
    modules.next().map_or(code, |(at, _)| &code[..at]).to_owned()
}

/// The members of the shared type that a file uses, by line.
fn members_used<'a>(code: &'a str) -> Vec<(usize, Member<'a>)> {
    let own = blocks(code, &format!("impl {SHARED} {{")).into_iter().flat_map(|block| after(block, "self"));
    let all = after(code, "service").into_iter().chain(own);
    let members = all.filter_map(|rest| Some(rest.trim_start().strip_prefix('.')?.trim_start()));
    let member = |rest: &'a str| (word(rest), rest[word(rest).len()..].starts_with('('));
    members.map(|rest| (line_of(code, rest), member(rest))).collect()
}

/// The paths that follow `start`, without it, by line: two for `start{a, b::c}`.
fn paths(code: &str, start: &str) -> Vec<(usize, Vec<String>)> {
    let mut paths = Vec::new();
    for rest in after(code, start.trim_end()) {
        let mut tree = Vec::new();
        expand(&mut rest.trim_start().chars().peekable(), &[], &mut tree);
        paths.extend(tree.into_iter().map(|path| (line_of(code, rest), path)));
    }
    paths
}

/// Reads one use tree; adds each path in it behind `prefix`.
fn expand(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    prefix: &[String],
    paths: &mut Vec<Vec<String>>,
) {
    let mut path = prefix.to_vec();
    loop {
        let mut name = String::new();
        while let Some(c) = chars.next_if(|c| is_word(*c)) {
            name.push(c);
        }
        if chars.peek() == Some(&'{') {
            while matches!(chars.next(), Some('{' | ',')) {
                while chars.next_if(|c| c.is_whitespace()).is_some() {}
                expand(chars, &path, paths);
                while chars.next_if(|c| *c != ',' && *c != '}').is_some() {}
            }
            return;
        }
        path.extend((!name.is_empty()).then_some(name));
        if chars.next_if_eq(&':').is_none() || chars.next_if_eq(&':').is_none() {
            break;
        }
    }
    if path.len() > prefix.len() {
        paths.push(path);
    }
}

/// What follows each place where `mark` stands as a whole word.
fn after<'a>(code: &'a str, mark: &str) -> Vec<&'a str> {
    let starts = code.match_indices(mark).filter(|(at, _)| !code[..*at].ends_with(is_word));
    starts
        .map(|(at, _)| &code[at + mark.len()..])
        .filter(|rest| mark.ends_with(':') || !rest.starts_with(is_word))
        .collect()
}

/// The blocks at the left margin that begin with `head`.
fn blocks<'a>(code: &'a str, head: &str) -> Vec<&'a str> {
    code.match_indices(head)
        .map(|(at, _)| &code[at..at + code[at..].find("\n}").unwrap_or(code.len() - at)])
        .collect()
}

/// The line of `part`, which is a part of `code`.
fn line_of(code: &str, part: &str) -> usize {
    code[..part.as_ptr() as usize - code.as_ptr() as usize].matches('\n').count() + 1
}

fn word(text: &str) -> &str {
    text.split(|c: char| !is_word(c)).next().unwrap_or_default()
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in files of the server.
    fn findings(files: &[(&str, &str)], exceptions: &[(&str, &[&str])]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(file, text)| (place(file), *text)).collect();
        let files: Vec<_> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let found = judge(&Tree::of(&files), exceptions).into_iter();
        found.map(|finding| format!("{} {}", &finding.place[SOURCE.len()..], &finding.what[..9])).collect()
    }

    #[test]
    fn path_to_an_upper_layer_is_found() {
        for (low, found) in [
            ("use crate::drain::Worker;", true),
            ("use crate::{config, drain::{Other, Worker}};", true),
            ("use crate::{\n    drain,\n};", true),
            ("fn f() { crate::drain::worker::f() }", true),
            ("use crate::config::Config; // crate::drain", false),
            ("#[cfg(test)]\nmod tests {\n    use crate::drain::Worker;\n}", false),
        ] {
            let files = [
                ("turns", low),
                ("drain/mod", "pub(crate) use worker::Worker;"),
                ("drain/worker", ""),
                ("config", ""),
            ];
            assert_eq!(!findings(&files, &[]).is_empty(), found, "{low}");
        }
        let files = [("drain/mod", "use crate::turns::Turns;"), ("turns", "")];
        assert!(findings(&files, &[]).is_empty(), "downwards all are free");
    }

    #[test]
    fn reexported_item_counts_for_the_file_that_defines_it() {
        let root = (
            "cluster/mod",
            "mod peers;\nmod outcome;\npub(crate) use outcome::{Blocked, Outcome};\npub(crate) use peers::keep;",
        );
        let files = |text| [root, ("cluster/peers", ""), ("cluster/outcome", ""), ("backing/mod", text)];
        assert!(findings(&files("use crate::cluster::keep;"), &[]).is_empty());
        assert_eq!(findings(&files("\nuse crate::cluster::Blocked;"), &[]), ["backing/mod.rs:2 uses crat"]);
    }

    #[test]
    fn member_of_the_shared_type_counts_for_the_file_that_it_comes_from() {
        let shared = (
            "service",
            "use crate::drain::Engine;\npub(crate) struct Service {\n    pub(crate) drain: Option<Engine>,\n}",
        );
        let engine = (
            "drain/mod",
            "struct Engine;\nimpl Service {\n    pub(crate) async fn flush(&self) {\n        x()\n    }\n}",
        );
        let files = |text| [shared, engine, ("backing/mod", text)];
        for (text, found) in [
            ("fn f(service: &S) { service.flush() }", true),
            ("fn f(service: &S) { service\n    .drain }", true),
            ("impl Service {\n    fn f(&self) { self.flush() }\n}", true),
            ("impl Other {\n    fn f(&self) { self.flush() }\n}", false),
            ("fn f(service: &S) { service.other() }", false),
        ] {
            assert_eq!(!findings(&files(text), &[]).is_empty(), found, "{text}");
        }
    }

    #[test]
    fn exceptions_may_only_shrink() {
        let files = [("turns", "use crate::drain::Worker;"), ("drain/mod", "")];
        assert!(findings(&files, &[("turns", &["drain/mod"])]).is_empty());
        assert_eq!(findings(&files, &[("turns", &["drain/mod", "direct/mod"])]), ["turns.rs no longer"]);
        assert_eq!(findings(&[("turns", "")], &[("turns", &["drain/mod"])]), ["turns.rs no longer"]);
    }

    #[test]
    fn file_without_a_layer_is_found() {
        assert_eq!(findings(&[("novel", "")], &[]), ["novel.rs belongs t"]);
    }
}
