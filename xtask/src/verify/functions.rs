//! Functions that are short and flat enough to be read at once.

use super::Finding;
use crate::rust;
use crate::tree::Tree;

/// Past this a function is to be split.
const MAX_LINES: usize = 60;

/// Conditions, loops and matches inside one another.
const MAX_DEPTH: usize = 4;

/// Words that open a block of control.
const CONTROL: &[&str] = &["if", "else", "for", "while", "loop", "match"];

/// Functions that are longer or deeper, and why. This list only shrinks.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    (
        "crates/client/src/retry.rs",
        "repeatable",
        "one match over all requests: the compiler finds one that is missing",
    ),
    ("crates/server/src/handle/mod.rs", "handle_alone", "one match over all requests, one line for each"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let (mut findings, mut used) = (Vec::new(), Vec::new());
    for (path, text) in tree.rust().filter(|(path, _)| is_source(path)) {
        for (function, what) in functions(&rust::without_tests(text))
            .iter()
            .filter_map(|function| Some((function, judge(function)?)))
        {
            let exception = EXCEPTIONS.iter().find(|(home, name, _)| *home == path && *name == function.name);
            used.extend(exception);
            if exception.is_none() {
                findings.push(Finding::wrong(format!("{path}:{}", function.line), what));
            }
        }
    }
    let unused = EXCEPTIONS.iter().filter(|(home, ..)| tree.get(home).is_some());
    findings.extend(unused.filter(|exception| !used.contains(exception)).map(|(home, name, _)| {
        Finding::wrong(*home, format!("{name} is not too long or deep: remove it from EXCEPTIONS"))
    }));
    findings
}

/// Source files of crates and chores, without modules of tests.
fn is_source(path: &str) -> bool {
    let inside = path.starts_with("xtask/src/") || (path.starts_with("crates/") && path.contains("/src/"));
    inside && !path.ends_with("/tests.rs") && !path.contains("/tests/")
}

/// What is wrong with a function.
fn judge(Function { name, lines, depth, .. }: &Function) -> Option<String> {
    match (*lines > MAX_LINES, *depth > MAX_DEPTH) {
        (false, false) => None,
        (true, _) => Some(format!("{name} has {lines} lines; split it below {MAX_LINES}")),
        (_, true) => Some(format!("{name} nests {depth} deep; split it to {MAX_DEPTH} or less")),
    }
}

#[derive(Debug, PartialEq)]
struct Function {
    name: String,
    /// Where it begins, from 1.
    line: usize,
    lines: usize,
    /// The most blocks of control inside one another.
    depth: usize,
}

/// A block whose brace is open.
struct Block {
    /// The function that it is the body of: its name, line and depth so far.
    function: Option<(String, usize, usize)>,
    is_control: bool,
}

/// All functions with a body.
fn functions(text: &str) -> Vec<Function> {
    let code = rust::code(text);
    let (mut found, mut open, mut line) = (Vec::new(), Vec::new(), 1);
    // What stands between the last brace or semicolon and here, with the line of its first word.
    let (mut head, mut begin) = (String::new(), 1);
    for c in code.chars() {
        match c {
            '{' => {
                open.push(block(&head, begin));
                deepen(&mut open);
            }
            '}' => found.extend(open.pop().and_then(|block| ended(block, line))),
            _ => {}
        }
        if matches!(c, '{' | '}') || c == ';' && !is_inside_brackets(&head) {
            head.clear();
        } else {
            if head.trim().is_empty() {
                begin = line;
            }
            head.push(c);
        }
        line += usize::from(c == '\n');
    }
    found.sort_by_key(|function: &Function| function.line);
    found
}

/// Whether a bracket is open, as in `[u8; 4]`.
fn is_inside_brackets(head: &str) -> bool {
    head.matches(['(', '[']).count() > head.matches([')', ']']).count()
}

fn block(head: &str, line: usize) -> Block {
    let words: Vec<&str> = head.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let name = words
        .iter()
        .position(|word| *word == "fn")
        .and_then(|at| words[at + 1..].iter().find(|word| !word.is_empty()));
    let function = name.map(|name| ((*name).to_owned(), line, 0));
    let is_arm = head.trim_end().ends_with("=>");
    let is_control = function.is_none() && !is_arm && words.iter().any(|word| CONTROL.contains(word));
    Block { function, is_control }
}

/// Counts how deep the innermost function is at the block that was just opened.
fn deepen(open: &mut [Block]) {
    let inner = open.iter().rposition(|block| block.function.is_some());
    let Some(inner) = inner else { return };
    let depth = open[inner..].iter().filter(|block| block.is_control).count();
    if let Some((_, _, most)) = &mut open[inner].function {
        *most = depth.max(*most);
    }
}

fn ended(block: Block, end: usize) -> Option<Function> {
    let (name, line, depth) = block.function?;
    Some(Function { name, line, lines: end - line + 1, depth })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).into_iter().map(|finding| finding.place).collect()
    }

    #[test]
    fn long_functions_are_found() {
        let of = |lines: usize| format!("//! X.\n\nfn f() {{\n{}}}\n", "    g();\n".repeat(lines - 2));
        assert_eq!(found("crates/a/src/x.rs", &of(MAX_LINES)), [""; 0]);
        assert_eq!(found("crates/a/src/x.rs", &of(MAX_LINES + 1)), ["crates/a/src/x.rs:3"]);
        let array = of(MAX_LINES + 1).replace("fn f()", "fn f(x: [u8; 4])");
        assert_eq!(found("crates/a/src/x.rs", &array), ["crates/a/src/x.rs:3"]);
        assert_eq!(found("crates/a/tests/x.rs", &of(MAX_LINES + 1)), [""; 0]);
        let test = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", of(MAX_LINES + 1));
        assert_eq!(found("crates/a/src/x.rs", &test), [""; 0]);
    }

    #[test]
    fn deep_functions_are_found() {
        let of = |depth: usize| format!("fn f() {{ {} g(); {} }}", "if a {".repeat(depth), "}".repeat(depth));
        assert_eq!(found("crates/a/src/x.rs", &of(MAX_DEPTH)), [""; 0]);
        assert_eq!(found("crates/a/src/x.rs", &of(MAX_DEPTH + 1)), ["crates/a/src/x.rs:1"]);
        let blocks = "fn f() { match a { B => { for c in d { while e { loop { g() } } } } } }";
        assert_eq!(functions(blocks)[0].depth, 4, "an arm of a match is no further level");
        let inner = "fn f() { if a { if b { fn h() { if c { if d { if e { g() } } } } } } }";
        assert_eq!(functions(inner).iter().map(|f| f.depth).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn exceptions_are_named_functions() {
        let long = format!("fn repeatable() {{\n{}}}\n", "    g();\n".repeat(MAX_LINES));
        assert_eq!(found("crates/client/src/retry.rs", &long), [""; 0]);
        assert_eq!(found("crates/client/src/other.rs", &long), ["crates/client/src/other.rs:1"]);
        let other = long.replace("repeatable", "retry");
        assert_eq!(found("crates/client/src/retry.rs", &format!("{long}{other}")).len(), 1);
    }

    #[test]
    fn exception_of_a_short_function_is_found() {
        let short = "fn repeatable() {}";
        assert_eq!(found("crates/client/src/retry.rs", short), ["crates/client/src/retry.rs"]);
    }
}
