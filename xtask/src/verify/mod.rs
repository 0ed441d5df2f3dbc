//! `cargo xtask verify`: every rule that a machine can check. Read-only but for build output.
//!
//! A check is a function from the workspace's text to findings. All checks run, whatever the ones before found.

mod book;
mod decisions;
mod dependencies;
mod edges;
mod functions;
mod habits;
mod house;
mod licence;
mod map;
mod messages;
mod semantics;
mod tools;
mod words;

use crate::shell;
use crate::tree::Tree;
use std::fmt;
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Weight {
    /// The workspace is not as it should be.
    Wrong,
    /// Worth knowing, and no more.
    Note,
}

#[derive(Clone, Debug, PartialEq)]
struct Finding {
    weight: Weight,
    place: String,
    what: String,
}

impl Finding {
    fn wrong(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { weight: Weight::Wrong, place: place.into(), what: what.into() }
    }

    fn note(place: impl Into<String>, what: impl Into<String>) -> Finding {
        Finding { weight: Weight::Note, place: place.into(), what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match self.weight {
            Weight::Wrong => "wrong",
            Weight::Note => "note",
        };
        write!(f, "  {label}: {}: {}", self.place, self.what)
    }
}

struct Check {
    name: &'static str,
    about: &'static str,
    run: fn(&Tree) -> Vec<Finding>,
}

/// The quick ones first.
const CHECKS: &[Check] = &[
    Check { name: "size", about: "no source file is too long", run: house::size },
    Check { name: "functions", about: "functions are short and flat", run: functions::check },
    Check { name: "headers", about: "every crate says what it is for", run: house::headers },
    Check { name: "unsafe", about: "unsafe code lives only where it is at home", run: house::unsafe_code },
    Check { name: "pure", about: "pure crates are guarded", run: house::pure },
    Check { name: "decisions", about: "policies live in policy, and nowhere else", run: decisions::check },
    Check { name: "edges", about: "in the server, layers use only what lies below them", run: edges::check },
    Check { name: "map", about: "ARCHITECTURE.md names files and functions that exist", run: map::check },
    Check { name: "words", about: "names and prose have the words of the field", run: words::check },
    Check { name: "locks", about: "locks are taken in one way", run: house::locks },
    Check { name: "messages", about: "no Debug output in what users read", run: messages::check },
    Check { name: "lints", about: "every crate takes the workspace's lints", run: house::lints },
    Check {
        name: "habits",
        about: "licence, templates, changelog and pages of crates are there",
        run: habits::check,
    },
    Check { name: "leftovers", about: "nothing is ignored or left to do", run: house::leftovers },
    Check { name: "semantics", about: "every promise names a test that exists", run: semantics::check },
    Check {
        name: "dependencies",
        about: "sources, licences, unwanted crates, rooms",
        run: dependencies::check,
    },
    Check {
        name: "book",
        about: "links, commands, examples, decisions and the generated reference of the book",
        run: book::check,
    },
    Check { name: "fmt", about: "formatting", run: tools::fmt },
    Check { name: "clippy", about: "lints", run: tools::clippy },
    Check { name: "docs", about: "documentation builds without warnings", run: tools::docs },
];

pub(crate) fn names() -> Vec<&'static str> {
    CHECKS.iter().map(|check| check.name).collect()
}

/// Runs the checks named in `only`, or all.
pub(crate) fn run(only: &[String]) -> Result<(), String> {
    let tree = Tree::read(&shell::root())?;
    let chosen = CHECKS.iter().filter(|check| only.is_empty() || only.iter().any(|name| name == check.name));
    let failed = play(chosen, &tree);
    if failed.is_empty() { Ok(()) } else { Err(format!("not as it should be: {}", failed.join(", "))) }
}

/// Runs the checks, prints what they find, and returns the names of those that found something wrong.
fn play<'a>(checks: impl Iterator<Item = &'a Check>, tree: &Tree) -> Vec<&'static str> {
    let mut failed = Vec::new();
    for check in checks {
        println!("{}: {}", check.name, check.about);
        let start = Instant::now();
        let findings = (check.run)(tree);
        for finding in &findings {
            println!("{finding}");
        }
        let wrong = findings.iter().filter(|finding| finding.weight == Weight::Wrong).count();
        let took = shell::clock(start.elapsed());
        if wrong == 0 {
            println!("  ok ({took})");
        } else {
            println!("  {wrong} found ({took})");
            failed.push(check.name);
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_fails_and_a_note_does_not() {
        let checks = [
            Check { name: "good", about: "", run: |_| vec![] },
            Check { name: "bad", about: "", run: |_| vec![Finding::wrong("a.rs:1", "broken")] },
            Check { name: "chatty", about: "", run: |_| vec![Finding::note("a.rs", "by the way")] },
            Check { name: "worse", about: "", run: |_| vec![Finding::wrong("b.rs:1", "broken")] },
        ];
        assert_eq!(play(checks.iter(), &Tree::default()), ["bad", "worse"], "and none stops the others");
    }

    #[test]
    fn findings_name_the_place() {
        assert_eq!(Finding::wrong("a.rs:7", "is odd").to_string(), "  wrong: a.rs:7: is odd");
        assert_eq!(Finding::note("a.rs", "is old").to_string(), "  note: a.rs: is old");
    }
}
