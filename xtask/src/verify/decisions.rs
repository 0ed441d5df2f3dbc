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

/// A decision, what `policy` offers for it, and the functions of the daemon and of the simulator that ask for it.
struct Decision {
    what: &'static str,
    /// The function of `policy`, or a type or trait.
    import: &'static str,
    /// The call: a function of that name, or a method of the type.
    call: &'static str,
    server: &'static str,
    sim: &'static str,
}

const fn decision(
    what: &'static str,
    (import, call): (&'static str, &'static str),
    [server, sim]: [&'static str; 2],
) -> Decision {
    Decision { what, import, call, server, sim }
}

const DECISIONS: &[Decision] = &[
    decision("when a buffer is drained", ("want", "want"), ["apply_trigger", "is_active"]),
    decision(
        "whether a burst keeps the drain from the processors",
        ("Arrivals", "is_burst"),
        ["apply_trigger", "is_active"],
    ),
    decision("which bytes are drained", ("want", "takes"), ["choose_now", "is_active"]),
    decision("when a burst is over", ("burst", "burst"), ["burst", "is_active"]),
    decision("who may take free space", ("SpaceQueue", "is_uncontested"), ["is_uncontested", "finds_space"]),
    decision("who gets space in a full buffer", ("SpaceQueue", "next_job"), ["is_next", "next_parked"]),
    decision("a job's part of the space", ("due_among", "due_among"), ["due_among", "give_space"]),
    decision("which writes bypass the buffer", ("WriteRouter", "route"), ["route_of", "arrive"]),
    decision("which writes bypass a full buffer", ("decide", "decide"), ["write", "arrive"]),
    decision("how many servers and writers use a target", ("slots", "slots"), ["slots", "slots"]),
    decision("who may write to a target", ("Member", "request"), ["request", "request_grants"]),
    decision("what is written next", ("Pick", "next"), ["next_write", "spend"]),
    decision("whose turn it is", ("Scheduler", "next"), ["pick", "serve"]),
    decision("where a new file lies", ("place", "place"), ["layout", "balanced"]),
    decision("shares over all servers", ("divide", "divide"), ["reckon", "exchange_tables"]),
];

/// Decisions about what the simulator does not have, and why: the function of `policy`, and the daemon's caller.
const DAEMON_ONLY: &[(&str, (&str, &str), &str, &str)] = &[
    (
        "who gets the last write slot of a target",
        ("WriteSlots", "may_begin"),
        "may_begin",
        "writes that bypass the buffer take turns and no slots there",
    ),
    (
        "over how many targets a file lies",
        ("width", "width"),
        "layout",
        "a scenario says how many targets a file has",
    ),
];

/// Functions of the simulator that carry out what was decided, and what they must not do themselves.
const ONLY_LATER: &[(&str, &str, &str)] = &[(
    "arrive",
    "direct",
    "a write that bypasses the buffer waits for its turn: send it when it was served",
)];

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
    if ["crates/policy", "crates/server", "crates/sim"].iter().all(|one| tree.packages().any(|p| p == *one)) {
        findings.extend(DECISIONS.iter().flat_map(|decision| callers(tree, decision)));
        findings.extend(DAEMON_ONLY.iter().flat_map(|&(what, (import, call), server, _)| {
            let decision = Decision { what, import, call, server, sim: "" };
            callers(tree, &decision).into_iter().filter(|finding| finding.place != "crates/sim")
        }));
        findings.extend(ONLY_LATER.iter().filter_map(|&(function, call, why)| {
            let path = sources(tree, "crates/sim/")
                .find(|(_, code)| bodies(code, function).any(|body| calls(body, call, true)))?;
            Some(Finding::wrong(format!("{}: {function}", path.0), why))
        }));
    }
    findings
}

/// The decision is in `policy`, and both the daemon and the simulator ask for it.
fn callers(tree: &Tree, decision: &Decision) -> Vec<Finding> {
    let Decision { what, import, call, server, sim } = decision;
    let is_defined = sources(tree, "crates/policy/").any(|(_, code)| bodies(&code, call).next().is_some());
    let missing = (!is_defined)
        .then(|| Finding::wrong("crates/policy", format!("{what}: there is no function {call}")));
    let asks = |dir: &str, function: &str| {
        sources(tree, dir).any(|(_, code)| {
            imports(&code, import) && bodies(&code, function).any(|body| calls(body, call, import != call))
        })
    };
    let silent = [("crates/server/", server), ("crates/sim/", sim)]
        .into_iter()
        .filter(|(dir, function)| !asks(dir, function));
    let silent = silent.map(|(dir, function)| {
        let text = format!("{what}: no function {function} asks {call} of forebay_policy ({import})");
        Finding::wrong(dir.trim_end_matches('/'), text)
    });
    missing.into_iter().chain(silent).collect()
}

/// The code of a crate without its tests.
fn sources<'a>(tree: &'a Tree, dir: &str) -> impl Iterator<Item = (&'a str, String)> {
    let dir = format!("{dir}src/");
    tree.rust()
        .filter(move |(path, _)| path.starts_with(&dir))
        .map(|(path, text)| (path, rust::code(&rust::without_tests(text))))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Whether `policy`'s item of this name is imported.
fn imports(code: &str, name: &str) -> bool {
    let uses = code.split("use forebay_policy::").skip(1).filter_map(|rest| rest.split(';').next());
    uses.into_iter().any(|names| names.split(|c| !is_word(c)).any(|one| one == name))
}

/// The bodies of the functions of this name.
fn bodies<'a>(code: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    code.match_indices("fn ").filter_map(move |(at, _)| {
        let rest = code[at + 3..].strip_prefix(name)?;
        if rest.starts_with(is_word) {
            return None;
        }
        let begin = rest.find(['{', ';']).filter(|&begin| rest[begin..].starts_with('{'))?;
        let mut depth = 0;
        let end = rest[begin..].find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        })?;
        Some(&rest[begin..begin + end])
    })
}

/// Whether code calls a function or a method of this name.
fn calls(code: &str, name: &str, is_method: bool) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (code[..at].trim_end().chars().next_back(), &code[at + name.len()..]);
        let is_whole = !code[..at].ends_with(is_word) && after.starts_with('(');
        is_whole && (before == Some('.')) == is_method
    })
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

    /// The wanted callers, with the bodies of some of the simulator's functions replaced.
    fn with_callers(replaced: &[(&str, &str)]) -> Vec<String> {
        let (mut policy, mut server, mut sim) = (String::new(), String::new(), ASKS.to_owned());
        for (_, (import, call), caller, _) in DAEMON_ONLY {
            let ask = if import == call { format!("{call}(1)") } else { format!("it.{call}(1)") };
            policy += &format!("pub fn {call}() {{ }}\n");
            server += &format!("use forebay_policy::x::{import};\nfn {caller}() {{ {ask} }}\n");
        }
        for Decision { import, call, .. } in DECISIONS {
            policy += &format!("pub fn {call}() {{ }}\n");
            server += &format!("use forebay_policy::x::{{{import}, Other}};\n");
            sim += &format!("use forebay_policy::x::{import};\n");
        }
        for Decision { import, call, server: caller, sim: player, .. } in DECISIONS {
            let ask = if import == call { format!("{call}(1)") } else { format!("it.{call}(1)") };
            server += &format!("fn {caller}(a: u8) -> u8 {{ if a {{ {ask} }} }}\n");
            let text = replaced.iter().find(|(name, _)| name == player).map(|(_, text)| (*text).to_owned());
            sim += &text.unwrap_or_else(|| format!("fn {player}() {{ {ask} }}\n"));
        }
        let files = [
            ("crates/policy/Cargo.toml", ""),
            ("crates/policy/src/lib.rs", &policy),
            ("crates/server/Cargo.toml", ""),
            ("crates/server/src/lib.rs", &server),
            ("crates/sim/Cargo.toml", ""),
            ("crates/sim/src/lib.rs", &sim),
        ];
        check(&Tree::of(&files)).into_iter().map(|finding| finding.what).collect()
    }

    /// Functions as the simulator could decide by itself, and the decision that is missed then.
    const COPIES: [(&str, &str, &str); 4] = [
        (
            "is_active",
            "fn is_active(&self) -> bool { match plan.when { When::Above(share) => state.held > share * capacity, \
                When::Between => state.released } }",
            "when a buffer is drained",
        ),
        (
            "next_parked",
            "fn unpark(&mut self) { while let Some(&number) = self.parked.front() { self.parked.pop_front(); } }",
            "who gets space in a full buffer",
        ),
        (
            "arrive",
            "fn arrive(&mut self) { if router.route(now) == Route::Direct { return self.direct(number, now); } \
                match decide(chosen, space, full) { _ => self.direct(number, now) } }",
            "waits for its turn",
        ),
        (
            "slots",
            "fn slots(&self) -> Rules { Rules { per_server: 1, ..Rules::default() } }",
            "how many servers and writers use a target",
        ),
    ];

    #[test]
    fn decision_that_the_simulator_takes_itself_is_found() {
        assert_eq!(with_callers(&[]), Vec::<String>::new());
        for (function, copy, decision) in COPIES {
            let found = with_callers(&[(function, copy)]);
            assert!(found.iter().any(|what| what.contains(decision)), "{function}: {found:?}");
        }
    }

    #[test]
    fn caller_that_uses_a_function_of_its_own_is_found() {
        let own = "use crate::trigger::want; fn apply_trigger() { want(1) }";
        assert!(
            !imports(own, "want")
                && imports("use forebay_policy::drain::{\n    View,\n    want,\n};", "want")
        );
        assert!(calls("let a = want(1);", "want", false) && !calls("queue.want(1)", "want", false));
        assert!(calls("queue\n    .want(1)", "want", true) && !calls("wanted(1)", "want", false));
        let bodies: Vec<&str> =
            bodies("fn a(); fn ab() { 1 } fn a() -> X { { 2 } } fn b() { 3 }", "a").collect();
        assert_eq!(bodies, ["{ { 2 } "]);
    }

    #[test]
    fn simulator_that_calls_no_policy_is_found() {
        let deaf =
            Tree::of(&[("crates/sim/Cargo.toml", ""), ("crates/sim/src/lib.rs", "// forebay_policy::share")]);
        assert_eq!(check(&deaf).len(), ASKED.len());
        assert_eq!(check(&Tree::of(&[("crates/a/src/lib.rs", "")])), []);
    }
}
