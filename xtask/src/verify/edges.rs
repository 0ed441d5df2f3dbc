//! The layers of the server: a file uses its own layer and those below it, whichever way a path says it.

use super::Finding;
use crate::rust;
use crate::tree::Tree;
use std::collections::BTreeMap;

const SOURCE: &str = "crates/server/src/";

/// The layers from the bottom to the top, and the files (without `.rs`) and directories of each. The longest path wins.
const LAYERS: &[(&str, &[&str])] = &[
    (
        "base",
        &[
            "config",
            "direct/settings",
            "drain/alpha",
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
            "thread_state",
            "warm",
            "working",
        ],
    ),
    ("sched", &["device", "jobs", "pace", "policy_store", "turns", "virtual_time"]),
    ("conn", &["answers", "connector", "framing", "peer", "transport"]),
    (
        "session",
        &[
            "connection_epoch",
            "kept_pages",
            "keys",
            "opens",
            "orphans",
            "pipes",
            "session",
            "sweep",
            "tokens",
        ],
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
    ("backing", &["backing", "reaper"]),
    ("drain", &["drain"]),
    ("direct", &["direct"]),
    ("caller", &["caller", "cluster/outcome", "peer_identity"]),
    ("cluster", &["cluster"]),
    ("request", &["handle"]),
    ("dispatch", &["blocking", "dispatch", "listing", "mapping", "memory"]),
    ("net", &["accept_limiter", "connection", "control", "data", "handshake", "shm_queue"]),
    ("root", &["compose", "lib", "run"]),
];

/// A file, and another one whose items it uses.
type Edge = (String, String);

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sources = Sources::read(tree);
    let mut findings = Vec::new();
    for file in sources.files.keys().filter(|file| layer(file).is_none()) {
        findings.push(Finding::wrong(place(file), "belongs to no layer of the server: add it to LAYERS"));
    }
    for ((from, to), line) in sources.edges() {
        let (Some(low), Some(high)) = (layer(&from), layer(&to)) else { continue };
        if low < high {
            let what = format!(
                "uses {}, but {} lies below {}: return a value, or move what both need down",
                place(&to),
                LAYERS[low].0,
                LAYERS[high].0
            );
            findings.push(Finding::wrong(format!("{}:{line}", place(&from)), what));
        }
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
        let files = tree
            .rust()
            .filter_map(|(path, text)| Some((name(path)?, rust::code(&rust::without_tests(text)))));
        Sources { files: files.collect() }
    }

    /// All uses of another file, with the first line of each.
    fn edges(&self) -> BTreeMap<Edge, usize> {
        let mut edges = BTreeMap::new();
        for (file, code) in &self.files {
            let absolute = paths(code, "crate::").into_iter();
            let relative = paths(code, "super::").into_iter();
            let relative = relative.map(|(line, path)| (line, above(file, &path, is_inline(code, line))));
            let used = absolute.chain(relative).filter_map(|(line, path)| Some((line, self.file_of(&path)?)));
            for (line, to) in used.filter(|(_, to)| to != file) {
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
}

/// A path that follows `super::` in a file, from `crate` on. In a module inside the file, `super` is the file.
fn above(file: &str, path: &[String], inline: bool) -> Vec<String> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    let modules: Vec<String> =
        file.strip_suffix("/mod").unwrap_or(file).split('/').map(str::to_owned).collect();
    let kept = modules.len().saturating_sub(supers + usize::from(!inline));
    [&modules[..kept], &path[supers..]].concat()
}

/// Whether a line lies in a module inside its file.
fn is_inline(code: &str, line: usize) -> bool {
    let margin = code.lines().take(line).filter(|text| !text.is_empty() && !text.starts_with(' '));
    margin.last().is_some_and(|text| text.ends_with('{') && text.split(' ').any(|word| word == "mod"))
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
    // `super::` in the middle of a path is a part of what follows the first one.
    let begins = |at: usize| !code[..at].ends_with(is_word) && !code[..at].ends_with("::");
    let starts = code.match_indices(mark).filter(|(at, _)| begins(*at));
    starts
        .map(|(at, _)| &code[at + mark.len()..])
        .filter(|rest| mark.ends_with(':') || !rest.starts_with(is_word))
        .collect()
}

/// The line of `part`, which is a part of `code`.
fn line_of(code: &str, part: &str) -> usize {
    code[..part.as_ptr() as usize - code.as_ptr() as usize].matches('\n').count() + 1
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in files of the server.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> = files.iter().map(|(file, text)| (place(file), *text)).collect();
        let files: Vec<_> = files.iter().map(|(file, text)| (file.as_str(), *text)).collect();
        let found = check(&Tree::of(&files)).into_iter();
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
            ("#[cfg(test)]\nmod tests {\n    use a;\n}\n\nfn f() { crate::drain::worker::f() }", true),
        ] {
            let files = [
                ("turns", low),
                ("drain/mod", "pub(crate) use worker::Worker;"),
                ("drain/worker", ""),
                ("config", ""),
            ];
            assert_eq!(!findings(&files).is_empty(), found, "{low}");
        }
        let files = [("drain/mod", "use crate::turns::Turns;"), ("turns", "")];
        assert!(findings(&files).is_empty(), "downwards all are free");
    }

    #[test]
    fn reexported_item_counts_for_the_file_that_defines_it() {
        let root = (
            "cluster/mod",
            "mod peers;\nmod outcome;\npub(crate) use outcome::{Blocked, Outcome};\npub(crate) use peers::keep;",
        );
        let files = |text| [root, ("cluster/peers", ""), ("cluster/outcome", ""), ("backing/mod", text)];
        assert!(findings(&files("use crate::cluster::keep;")).is_empty());
        assert_eq!(findings(&files("\nuse crate::cluster::Blocked;")), ["backing/mod.rs:2 uses crat"]);
    }

    #[test]
    fn relative_path_to_an_upper_layer_is_found() {
        for (low, found) in [
            ("use super::lost::Search;", true),
            ("use super::super::drain::Worker;", true),
            ("fn f() { super::lost::f() }", true),
            ("use super::{peers::Peers, lost::Search};", true),
            ("use super::Search;", true),
            ("use super::peers::Peers;", false),
            ("pub(super) fn f() {}", false),
            ("mod inner {\n    use super::Search;\n}", false),
            ("mod inner {\n    use super::super::Search;\n}", true),
        ] {
            let files = [
                ("cluster/leases", low),
                ("cluster/mod", "mod lost;\nmod leases;\npub(crate) use lost::Search;"),
                ("cluster/lost/mod", ""),
                ("cluster/peers", ""),
                ("drain/worker", ""),
                ("drain/mod", "pub(crate) use worker::Worker;"),
            ];
            assert_eq!(!findings(&files).is_empty(), found, "{low}");
        }
    }

    #[test]
    fn use_of_the_top_layer_is_found_in_every_other() {
        let files = |low| [(low, "use crate::run::start;"), ("run", "")];
        for (_, paths) in &LAYERS[..LAYERS.len() - 1] {
            assert_eq!(findings(&files(paths[0])).len(), 1, "{}", paths[0]);
        }
    }

    #[test]
    fn file_without_a_layer_is_found() {
        assert_eq!(findings(&[("novel", "")]), ["novel.rs belongs t"]);
    }
}
