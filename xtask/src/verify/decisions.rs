//! Decisions have one home: what the daemon and the simulator decide by is in `policy` and `planner`, and nowhere else.

use super::Finding;
use crate::rust;
use crate::tree::Tree;

/// Traits of `policy` that only `policy` implements.
const TRAITS: &[&str] = &["Scheduler", "Layer"];

/// The names of the deciders in `policy`. The simulator uses them and defines none of its own.
const DECIDERS: &[&str] = &[
    "Scheduler",
    "Policy",
    "Discipline",
    "Tokens",
    "Stride",
    "Draws",
    "Gift",
    "Tbf",
    "Fifo",
    "Drain",
    "Order",
    "Arbiter",
    "Climber",
    "Rules",
    "Route",
    "route",
    "divide",
    "shares",
    "place",
    "Target",
    "Curve",
];

/// The rooms of `policy` that the simulator must ask.
const ASKED: &[&str] = &["share", "route", "drain", "arbiter", "place", "device"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut asks = String::new();
    for (path, text) in
        tree.rust().filter(|(path, _)| path.contains("/src/") && !path.starts_with("crates/policy/"))
    {
        let code = rust::code(text);
        let simulates = path.starts_with("crates/sim/");
        if simulates {
            asks.push_str(&code);
        }
        for (index, line) in code.lines().enumerate() {
            let words: Vec<&str> = line
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .filter(|word| !word.is_empty())
                .collect();
            let implements = |name: &&&str| {
                words.first() == Some(&"impl") && words.windows(2).any(|pair| pair == [**name, "for"])
            };
            let defines = |name: &&&str| {
                let kind = |word: &str| ["struct", "enum", "trait", "fn", "type"].contains(&word);
                simulates && words.windows(2).any(|pair| kind(pair[0]) && pair[1] == **name)
            };
            let place = || format!("{path}:{}", index + 1);
            if let Some(name) = TRAITS.iter().find(implements) {
                findings.push(Finding::wrong(
                    place(),
                    format!("{name} is implemented in policy, and nowhere else"),
                ));
            } else if let Some(name) = DECIDERS.iter().find(defines) {
                findings.push(Finding::wrong(
                    place(),
                    format!("policy has {name}: ask it, and decide nothing here"),
                ));
            }
        }
    }
    if tree.packages().any(|package| package == "crates/sim") {
        let silent = ASKED.iter().filter(|room| !asks.contains(&format!("forebay_policy::{room}")));
        findings.extend(
            silent.map(|room| Finding::wrong("crates/sim", format!("never asks forebay_policy::{room}"))),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &str = "use forebay_policy::share::Tick; use forebay_policy::drain::Drain; use forebay_policy::arbiter::Arbiter; \
        use forebay_policy::device::Device; use forebay_policy::route::Router; use forebay_policy::place::place;";

    fn places(files: &[(&str, &str)]) -> Vec<String> {
        let all = [&[("crates/sim/Cargo.toml", ""), ("crates/sim/src/lib.rs", ASKS)], files].concat();
        check(&Tree::of(&all)).into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn decisions_outside_of_their_home_are_found() {
        for (path, code, found) in [
            ("crates/sim/src/x.rs", "struct Drain { a: u8 }", true),
            ("crates/sim/src/x.rs", "pub(crate) enum Order {}", true),
            ("crates/sim/src/x.rs", "fn divide() {}", true),
            (
                "crates/sim/src/x.rs",
                "use forebay_policy::drain::Drain; struct Drains; // struct Drain",
                false,
            ),
            ("crates/server/src/x.rs", "struct Drain;", false),
            ("crates/server/src/x.rs", "impl Scheduler for Mine {}", true),
            ("crates/server/src/x.rs", "impl<T> policy::Scheduler for Mine<T> {}", true),
            ("crates/policy/src/x.rs", "struct Drain; impl Scheduler for Mine {}", false),
            ("crates/server/tests/x.rs", "impl Scheduler for Mine {}", false),
        ] {
            let wanted = if found { vec![format!("{path}:1")] } else { vec![] };
            assert_eq!(places(&[(path, code)]), wanted, "{code}");
        }
    }

    #[test]
    fn simulator_that_calls_no_policy_is_found() {
        let deaf =
            Tree::of(&[("crates/sim/Cargo.toml", ""), ("crates/sim/src/lib.rs", "// forebay_policy::share")]);
        assert_eq!(check(&deaf).len(), ASKED.len());
        assert_eq!(check(&Tree::of(&[("crates/a/src/lib.rs", "")])), []);
    }
}
