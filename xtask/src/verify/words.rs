//! One vocabulary: words of the field in names and prose, and one definition for each public name of a crate.

use super::Finding;
use crate::rust;
use crate::tree::Tree;
use std::collections::BTreeMap;

/// Words that no identifier has as a part, and the word of the field that takes their place.
const RETIRED: &[(&str, &str)] = &[
    ("afar", "remote or striped"),
    ("aids", "retry context"),
    ("aloft", "in_flight"),
    ("anybody", "the actor's name"),
    ("asker", "client"),
    ("attend", "poll"),
    ("attends", "polls"),
    ("bay", "target_state"),
    ("bays", "target_states"),
    ("bear", "create_backing"),
    ("bears", "creates"),
    ("bell", "doorbell"),
    ("berth", "run_dir"),
    ("board", "drain_queue"),
    ("born", "birth, or created"),
    ("buried", "reaped"),
    ("bury", "reap"),
    ("clerk", "server"),
    ("conclude", "finalize"),
    ("court", "arbiter"),
    ("deal", "striped"),
    ("desk", "shm_queue"),
    ("dial", "connect"),
    ("dialled", "connected"),
    ("dice", "rng"),
    ("door", "space_queue"),
    ("dress", "set_attrs"),
    ("errand", "call"),
    ("everybody", "the actor's name"),
    ("glance", "prefetch, or poll"),
    ("hall", "accept_limiter"),
    ("hear", "consume, or take_reply"),
    ("heard", "received, or last_seen"),
    ("hears", "consumes"),
    ("hers", "the user's name"),
    ("his", "the user's name"),
    ("inbox", "the name of the queue"),
    ("keeper", "server_process"),
    ("lane", "ring_writer, or write_stream"),
    ("lanes", "ring_writers, or write_streams"),
    ("lot", "rng"),
    ("meet", "look up, or introduce"),
    ("meets", "overlaps, or finds"),
    ("nobody", "the actor's name"),
    ("outbox", "send_queue"),
    ("pane", "ro_map"),
    ("pen", "backing_writer"),
    ("said", "answered, or the message's name"),
    ("say", "send, or log"),
    ("scout", "scanner"),
    ("settle", "persist, sync, finish or resolve"),
    ("somebody", "the actor's name"),
    ("stash", "postponed"),
    ("stint", "file_batch"),
    ("talk", "rpc, or messages"),
    ("tell", "send, or report"),
    ("tells", "sends, or reports"),
    ("told", "sent, or reported"),
    ("undertaker", "orphan_reaper"),
    ("veil", "stale"),
    ("visitor", "peer"),
    ("whoever", "the actor's name"),
    ("warmth", "prepared"),
    ("wish", "placement, or options"),
];

/// Words that are no whole identifier, and may be a part of one.
const RETIRED_ALONE: &[(&str, &str)] = &[("past", "direct"), ("several", "cluster, striped or shards")];

/// Names that another crate has given.
const FOREIGN: &[&str] = &["Visitor", "parking_lot"];

/// Names of files at rest, which stay as they are.
const AT_REST: &[&str] = &["\"desk{number}{DOORBELL}\""];

/// Words that no comment has: each hides who acts, or is a word of this project alone.
const RIDDLES: &[&str] = &[
    "afar",
    "anybody",
    "berth",
    "buried",
    "bury",
    "clerk",
    "desk",
    "everybody",
    "nobody",
    "somebody",
    "undertaker",
    "whoever",
];

/// Names that two modules of a crate may define. This list only shrinks.
const TWINS: &[(&str, &[&str])] = &[
    (
        "crates/cli",
        // Commands, and what they print.
        &["Command", "Drain", "Library", "Place", "Replace", "Route", "Set", "Shares", "Show", "Status"],
    ),
    // The blocking client mirrors the other one.
    ("crates/client", &["Client", "File", "ReadDir"]),
    ("crates/server", &["Membership"]),
];

/// Public names that several crates define. This list only shrinks.
const NAMESAKES: &[&str] = &[
    "Access",
    "Addresses",
    "Alpha",
    "Answer",
    "Answered",
    "Batch",
    "Body",
    "Choice",
    "Claim",
    "Client",
    "Cost",
    "Entry",
    "Error",
    "Failure",
    "Fate",
    "Fault",
    "File",
    "Flaw",
    "Found",
    "Grant",
    "Job",
    "Key",
    "Layout",
    "Ledger",
    "Limits",
    "Line",
    "Medium",
    "Member",
    "Name",
    "Next",
    "Now",
    "Object",
    "Op",
    "Opening",
    "Options",
    "Panel",
    "Part",
    "Pattern",
    "Piece",
    "Place",
    "Plan",
    "Report",
    "Request",
    "Rng",
    "Route",
    "Sample",
    "Seen",
    "Series",
    "Server",
    "Settings",
    "Shape",
    "Share",
    "Slots",
    "Step",
    "Stopper",
    "Stripes",
    "Table",
    "Target",
    "Ticket",
    "Version",
    "View",
    "Weights",
    "Writer",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.starts_with("xtask/src/verify/words")) {
        findings.extend(retired(path, text));
        findings.extend(riddles(path, text));
    }
    findings.extend(pages(tree));
    findings.extend(twins(tree));
    findings
}

fn retired(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in rust::code(text).lines().enumerate() {
        for name in line.split(|c: char| !c.is_alphanumeric() && c != '_') {
            if FOREIGN.contains(&name) {
                continue;
            }
            let parts = parts(name);
            let part = RETIRED.iter().find(|(word, _)| parts.iter().any(|part| part == word));
            let alone = || RETIRED_ALONE.iter().find(|(word, _)| name.eq_ignore_ascii_case(word));
            if let Some((word, instead)) = part.or_else(alone) {
                let what = format!("{name}: {word} is no word of the field; say {instead}");
                findings.push(Finding::wrong(format!("{path}:{}", index + 1), what));
            }
        }
    }
    findings
}

/// Pages with a word that hides the actor.
fn pages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.pages() {
        for (index, line) in text.lines().enumerate() {
            findings.extend(riddle(line).map(|word| {
                let what = format!("\"{word}\" on a page: name the actor, in the words of the field");
                Finding::wrong(format!("{path}:{}", index + 1), what)
            }));
        }
    }
    findings
}

/// The first word of the line that hides who acts.
fn riddle(line: &str) -> Option<&'static str> {
    let line = line.to_lowercase();
    let mut words = line.split(|c: char| !c.is_alphanumeric());
    words.find_map(|word| RIDDLES.iter().find(|riddle| **riddle == word)).copied()
}

fn riddles(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let comment = line.find("//").and_then(|at| riddle(&line[at..]));
        if let Some(word) = comment {
            let what = format!("\"{word}\" in a comment: name the actor, in the words of the field");
            findings.push(Finding::wrong(format!("{path}:{}", index + 1), what));
        }
    }
    let literals = rust::parts(&rust::without_tests(text)).into_iter();
    for part in literals.filter(|_| path.contains("/src/") && path.starts_with("crates/")) {
        let message = part.literal.as_deref().filter(|literal| !AT_REST.contains(literal));
        let Some(word) = message.and_then(riddle) else { continue };
        let what = format!("\"{word}\" in a message: name the actor, in the words of the field");
        findings.push(Finding::wrong(format!("{path}:{}", part.line), what));
    }
    findings
}

/// Types that two modules of one crate define for all of it, and public types that two crates define.
fn twins(tree: &Tree) -> Vec<Finding> {
    let mut homes: BTreeMap<(&str, String), Vec<String>> = BTreeMap::new();
    let mut crates: BTreeMap<String, BTreeMap<&str, String>> = BTreeMap::new();
    for (path, text) in tree.rust().filter(|(path, _)| !path.ends_with("/tests.rs")) {
        let Some((package, _)) = path.split_once("/src/") else { continue };
        for (index, line) in rust::code(&rust::without_tests(text)).lines().enumerate() {
            let Some((is_public, name)) = defined_type(line) else { continue };
            let place = format!("{path}:{}", index + 1);
            if is_public {
                crates.entry(name.clone()).or_default().entry(package).or_insert_with(|| place.clone());
            }
            homes.entry((package, name)).or_default().push(place);
        }
    }
    let is_allowed = |package: &str, name: &str| {
        TWINS.iter().any(|(home, names)| *home == package && names.contains(&name))
    };
    let twin = |name: &str, one: &str, other: &str| {
        Finding::wrong(other, format!("{name} is defined in {one} too: give one another name"))
    };
    let mut findings = Vec::new();
    for ((package, name), places) in &homes {
        match (places.len() > 1, is_allowed(package, name)) {
            (true, false) => findings.push(twin(name, &places[0], &places[1])),
            (false, true) => findings.push(unused(&places[0], name, "TWINS")),
            _ => {}
        }
    }
    for (name, homes) in &crates {
        let places: Vec<&String> = homes.values().collect();
        match (places.len() > 1, NAMESAKES.contains(&name.as_str())) {
            (true, false) => findings.push(twin(name, places[0], places[1])),
            (false, true) => findings.push(unused(places[0], name, "NAMESAKES")),
            _ => {}
        }
    }
    findings
}

fn unused(place: &str, name: &str, list: &str) -> Finding {
    Finding::wrong(place, format!("{name} is defined once: remove it from {list}"))
}

/// The name of a type that a line defines for its crate, and whether it is public.
fn defined_type(line: &str) -> Option<(bool, String)> {
    let line = line.trim_start();
    let (is_public, rest) = match line.strip_prefix("pub(crate) ") {
        Some(rest) => (false, rest),
        None => (true, line.strip_prefix("pub ")?),
    };
    let mut words = rest.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty());
    let is_type = matches!(words.next(), Some("struct" | "enum" | "trait"));
    words.next().filter(|_| is_type).map(|name| (is_public, name.to_owned()))
}

/// The words of an identifier, in lower case.
fn parts(name: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && after_lower) || parts.is_empty() {
            parts.push(String::new());
        }
        after_lower = c.is_lowercase() || c.is_numeric();
        if c != '_' {
            let last = parts.len() - 1;
            parts[last].extend(c.to_lowercase());
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn identifiers_split_into_words() {
        assert_eq!(parts("QueueServer"), ["queue", "server"]);
        assert_eq!(parts("open_desk2"), ["open", "desk2"]);
        assert_eq!(parts("MAX_CLERKS"), ["max", "clerks"]);
    }

    #[test]
    fn retired_word_in_an_identifier_is_found() {
        let path = "crates/server/src/x.rs";
        for (code, wrong) in [
            ("struct Desk;", true),
            ("fn open_desk() {}", true),
            ("fn desktop() {}", false),
            ("let text = \"the hall\";", false),
            ("fn whoever_waits() {}", true),
            ("fn drain_queue() {}", false),
            ("fn read(visitor: impl Visitor) {}", true),
            ("fn read(value: impl Visitor) {}", false),
            ("use parking_lot::Mutex;", false),
            ("enum Deployment { Several }", true),
            ("fn several_users() {}", false),
            ("fn hear() {}", true),
        ] {
            assert_eq!(!found(&[(path, code)]).is_empty(), wrong, "{code}");
        }
    }

    #[test]
    fn riddle_in_a_comment_is_found() {
        let path = "crates/server/src/x.rs";
        assert_eq!(
            found(&[(path, "fn a() {}\n/// Whoever asks waits.\nfn b() {}")]),
            ["crates/server/src/x.rs:2"]
        );
        assert!(found(&[(path, "/// The client waits.\nfn b() {}")]).is_empty());
    }

    #[test]
    fn riddle_in_a_message_or_on_a_page_is_found() {
        let code = "fn f() {\n    error(\"nobody has it open\");\n}";
        assert_eq!(found(&[("crates/server/src/x.rs", code)]), ["crates/server/src/x.rs:2"]);
        assert!(found(&[("crates/server/tests/x.rs", code)]).is_empty());
        assert_eq!(found(&[("docs/x.md", "# X\n\nWhoever asks waits.")]), ["docs/x.md:3"]);
        assert!(found(&[("docs/x.md", "The client that asks waits.")]).is_empty());
    }

    #[test]
    fn two_public_types_of_one_name_in_a_crate_are_found() {
        let twice = [("crates/a/src/x.rs", "pub struct Wheel;"), ("crates/a/src/y.rs", "pub enum Wheel {}")];
        assert_eq!(found(&twice), ["crates/a/src/y.rs:1"]);
        let inside =
            [("crates/a/src/x.rs", "pub struct Wheel;"), ("crates/a/src/y.rs", "pub(crate) struct Wheel;")];
        assert_eq!(found(&inside), ["crates/a/src/y.rs:1"]);
        let apart = [("crates/a/src/x.rs", "pub struct Wheel;"), ("crates/b/src/y.rs", "pub enum Wheel {}")];
        assert_eq!(found(&apart), ["crates/b/src/y.rs:1"], "a reader of both crates knows one name");
        let private =
            [("crates/a/src/x.rs", "pub struct Wheel;"), ("crates/a/src/y.rs", "pub(super) struct Wheel;")];
        assert!(found(&private).is_empty(), "modules have names of their own");
        let tests = "#[cfg(test)]\nmod tests {\n    pub(crate) struct Wheel;\n}";
        assert!(
            found(&[("crates/a/src/x.rs", "pub struct Wheel;"), ("crates/a/src/y.rs", tests)]).is_empty()
        );
        let alone = [("crates/server/src/x.rs", "pub(crate) struct Membership;")];
        assert_eq!(found(&alone), ["crates/server/src/x.rs:1"], "the list of exceptions shrinks");
        let mirrored = [
            ("crates/client/src/x.rs", "pub struct ReadDir;"),
            ("crates/client/src/y.rs", "pub struct ReadDir;"),
        ];
        assert!(found(&mirrored).is_empty(), "the blocking client mirrors the other one");
    }
}
