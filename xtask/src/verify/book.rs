//! The book: links lead somewhere, commands and examples of settings are valid, decisions have their form, and the
//! generated reference is that of the code.

use super::Finding;
use crate::tree::Tree;
use crate::{args, book, machine, markdown, shell};
use std::collections::BTreeSet;
use std::path::Path;

/// The command that reads a block of TOML, by the word behind `toml` at its fence, and the name that its file gets.
/// Blocks of one page lie in one directory, so that one may name another.
const READERS: &[(&str, &str, &[&str])] = &[
    ("", "forebay.toml", &["reference", "check"]),
    ("plan", "machine.toml", &["plan"]),
    ("shares", "jobs.toml", &["shares"]),
    ("place", "place.toml", &["place"]),
    // Read by the block that names it.
    ("topology.toml", "topology.toml", &[]),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let root = shell::root();
    let mut findings = links(tree, |path| root.join(path).exists());
    findings.extend(contents(tree));
    findings.extend(commands(tree, book::refusals));
    findings.extend(cargo_commands(tree));
    findings.extend(book::decisions::flaws(tree).into_iter().map(|(path, flaw)| Finding::wrong(path, flaw)));
    match book::program() {
        Ok(program) => {
            let dir = shell::target_dir().join("book-examples");
            findings.extend(examples(tree, &dir, |words, file| {
                let mut command = shell::command(&program);
                shell::output(command.args(words).arg(file)).map(|_| ())
            }));
        }
        Err(why) => findings.push(Finding::wrong("docs", why)),
    }
    match book::reference(tree) {
        Ok(pages) => findings.extend(pages.iter().flat_map(|(path, text)| differs(tree, path, text))),
        Err(why) => findings.push(Finding::wrong("docs/reference", why)),
    }
    findings.extend(built(tree, machine::present_mdbook()));
    findings
}

/// The pages as HTML, if mdBook is at hand.
fn built(tree: &Tree, mdbook: Option<String>) -> Option<Finding> {
    let Some(mdbook) = mdbook else {
        let what = "mdBook is not installed, so the pages were checked and not built: \"cargo xtask book\" installs it";
        return Some(Finding::note("docs", what));
    };
    book::html_pages(tree, &mdbook).err().map(|why| Finding::wrong("docs", why))
}

/// Blocks of TOML that the program refuses. `read` gives a file to the program with these arguments.
fn examples(tree: &Tree, dir: &Path, read: impl Fn(&[&str], &Path) -> Result<(), String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, page) in tree.pages() {
        let dir = dir.join(path.replace('/', "-"));
        let mut files = Vec::new();
        for (number, block) in markdown::blocks(page).into_iter().enumerate() {
            let Some(kind) = block.what.info.strip_prefix("toml").map(str::trim) else { continue };
            let place = format!("{path}:{}", block.line);
            let Some((_, name, words)) = READERS.iter().find(|(known, ..)| *known == kind) else {
                findings.push(Finding::wrong(place, format!("no command reads \"toml {kind}\" (READERS)")));
                continue;
            };
            // A page may show several files of one name.
            let home = if words.is_empty() { dir.clone() } else { dir.join(number.to_string()) };
            let file = home.join(name);
            let text = block.what.text.replace("\"topology.toml\"", "\"../topology.toml\"");
            let written = std::fs::create_dir_all(&home).and_then(|()| std::fs::write(&file, text));
            match written {
                Ok(()) => files.push((place, *words, file)),
                Err(why) => findings.push(Finding::wrong(place, format!("{}: {why}", file.display()))),
            }
        }
        for (place, words, file) in files.iter().filter(|(_, words, _)| !words.is_empty()) {
            findings.extend(read(words, file).err().map(|why| Finding::wrong(place.as_str(), why)));
        }
    }
    findings
}

/// Links whose file or anchor is not there.
fn links(tree: &Tree, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, page) in tree.pages() {
        for link in markdown::links(page) {
            if link.what.contains("://") || link.what.starts_with("mailto:") {
                continue;
            }
            let place = || format!("{path}:{}", link.line);
            let Some(file) = book::target(path, link.what).filter(|file| exists(file)) else {
                findings.push(Finding::wrong(place(), format!("{} leads nowhere", link.what)));
                continue;
            };
            let anchor = link.what.split_once('#').map(|(_, anchor)| anchor);
            if let (Some(anchor), Some(page)) = (anchor, tree.get(&file).filter(|_| file.ends_with(".md")))
                && !markdown::anchors(page).iter().any(|found| found == anchor)
            {
                findings.push(Finding::wrong(place(), format!("{file} has no heading #{anchor}")));
            }
        }
    }
    findings
}

/// Pages of the book that its table of contents leaves out.
fn contents(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.get(book::SUMMARY) else {
        return vec![Finding::wrong(book::SUMMARY, "is missing")];
    };
    let listed: BTreeSet<String> =
        markdown::links(summary).iter().filter_map(|link| book::target(book::SUMMARY, link.what)).collect();
    let pages = tree.pages().map(|(path, _)| path).filter(|path| path.starts_with("docs/"));
    // The index lists the decisions, and is compared with them.
    let is_decision = |path: &str| path.starts_with("docs/decisions/0");
    let left_out =
        pages.filter(|path| *path != book::SUMMARY && !is_decision(path) && !listed.contains(*path));
    left_out.map(|path| Finding::wrong(path, format!("{} does not list it", book::SUMMARY))).collect()
}

/// Command lines on pages, and commands and options that prose mentions, which the program refuses.
fn commands(
    tree: &Tree,
    refusals: impl Fn(&[&Vec<String>], bool) -> Result<Vec<Option<String>>, String>,
) -> Vec<Finding> {
    let (shown, mut findings) = shown(tree, "forebay");
    for (lines, are_mentions) in [(shown, false), (mentioned(tree, "forebay"), true)] {
        let words: Vec<&Vec<String>> = lines.iter().map(|(_, words)| words).collect();
        match refusals(&words, are_mentions) {
            Err(why) => findings.push(Finding::wrong("docs", why)),
            Ok(answers) => {
                let refused = lines.iter().zip(answers).filter_map(|((place, _), why)| Some((place, why?)));
                findings.extend(refused.map(|(place, why)| Finding::wrong(place, why)));
            }
        }
    }
    findings
}

/// Places and words of command lines.
type Lines = Vec<(String, Vec<String>)>;

/// The command lines of a program in blocks of shell, and its lines in blocks that do not say what they are.
fn shown(tree: &Tree, program: &str) -> (Lines, Vec<Finding>) {
    let (mut lines, mut findings) = (Lines::new(), Vec::new());
    for (path, page) in tree.pages() {
        let found = markdown::commands(page, program);
        findings.extend(found.unmarked.iter().map(|line| {
            Finding::wrong(
                format!("{path}:{line}"),
                "a command in a block without a language: mark the block as sh, so that it is checked, or as text",
            )
        }));
        lines.extend(found.shown.into_iter().map(|found| (format!("{path}:{}", found.line), found.what)));
    }
    (lines, findings)
}

/// The commands of a program that prose mentions. What changed in earlier versions may be gone.
fn mentioned(tree: &Tree, program: &str) -> Lines {
    let pages = tree.pages().filter(|(path, _)| *path != "CHANGELOG.md");
    pages
        .flat_map(|(path, page)| {
            let found = markdown::mentions(page, program).into_iter();
            found.map(move |found| (format!("{path}:{}", found.line), found.what))
        })
        .collect()
}

/// Command lines of cargo that name a chore, package, example or profile which is not there.
fn cargo_commands(tree: &Tree) -> Vec<Finding> {
    let (mut lines, mut findings) = shown(tree, "cargo");
    lines.extend(mentioned(tree, "cargo"));
    let flawed = lines.iter().filter_map(|(place, words)| Some((place, cargo_flaw(tree, words)?)));
    findings.extend(flawed.map(|(place, flaw)| Finding::wrong(place, flaw)));
    findings
}

fn cargo_flaw(tree: &Tree, words: &[String]) -> Option<String> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if let ["cargo", "xtask", rest @ ..] = &words[..] {
        let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
        return args::parse(&rest).err();
    }
    let ours = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let manifests = |line: String| {
        let dirs = tree.packages().chain([""]);
        let paths = dirs.map(|dir| format!("{dir}/Cargo.toml").trim_start_matches('/').to_owned());
        paths.into_iter().any(|path| tree.get(&path).is_some_and(|text| text.lines().any(|l| l == line)))
    };
    words[..ours].windows(2).find_map(|pair| {
        let (is_there, what) = match pair[0] {
            "-p" | "--package" => (manifests(format!("name = \"{}\"", pair[1])), "package"),
            "--profile" => (manifests(format!("[profile.{}]", pair[1])), "profile"),
            "--example" => {
                let file = format!("/examples/{}.rs", pair[1]);
                (tree.rust().any(|(path, _)| path.ends_with(&file)), "example")
            }
            _ => return None,
        };
        (!is_there).then(|| format!("there is no {what} {}", pair[1]))
    })
}

/// The first line in which a committed page is not what the code says.
fn differs(tree: &Tree, path: &str, text: &str) -> Option<Finding> {
    let advice = "run \"cargo xtask book\" or \"cargo xtask book --reference\"";
    let Some(page) = tree.get(path) else {
        return Some(Finding::wrong(path, format!("is missing: {advice}")));
    };
    if page == text {
        return None;
    }
    let same = page.lines().zip(text.lines()).take_while(|(old, new)| old == new).count();
    let now = text.lines().nth(same).unwrap_or("no more lines");
    Some(Finding::wrong(format!("{path}:{}", same + 1), format!("the code says \"{now}\": {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.place.as_str()).collect()
    }

    #[test]
    fn link_to_a_missing_file_or_heading_is_found() {
        let tree = Tree::of(&[
            (
                "docs/a.md",
                "# A\n[b](b.md#b) [b](b.md#c)\n[x](gone.md) [y](../LICENSE) [z](https://example.org)\n",
            ),
            ("docs/b.md", "# B\n[here](#b) [not](#d)\n"),
        ]);
        let there = |path: &str| path == "LICENSE" || tree.get(path).is_some();
        assert_eq!(places(&links(&tree, there)), ["docs/a.md:2", "docs/a.md:3", "docs/b.md:2"]);
    }

    #[test]
    fn page_that_is_not_in_the_contents_is_found() {
        let tree = Tree::of(&[
            ("docs/SUMMARY.md", "- [A](a.md)\n"),
            ("docs/a.md", ""),
            ("docs/b.md", ""),
            ("README.md", ""),
        ]);
        assert_eq!(places(&contents(&tree)), ["docs/b.md"]);
        assert_eq!(places(&contents(&Tree::default())), ["docs/SUMMARY.md"]);
    }

    #[test]
    fn command_that_is_refused_or_not_marked_is_found() {
        let tree =
            Tree::of(&[("README.md", "```sh\nforebay up\nforebay pu\n```\n\n```\nforebay down\n```\n")]);
        let found = commands(&tree, |lines, _| {
            Ok(lines.iter().map(|line| (line[1] == "pu").then(|| "no such command".to_owned())).collect())
        });
        assert_eq!(places(&found), ["README.md:7", "README.md:3"]);
        assert_eq!(commands(&tree, |_, _| Err("does not build".to_owned())).len(), 3);
    }

    #[test]
    fn mention_of_a_command_that_is_refused_is_found() {
        let page = "Run `forebay up` or\n`forebay pu --x`; `forebay 1 key` is no command.\n";
        let tree = Tree::of(&[("docs/a.md", page), ("CHANGELOG.md", "`forebay gone` went\n")]);
        let found = commands(&tree, |lines, are_mentions| {
            assert!(are_mentions || lines.is_empty());
            Ok(lines.iter().map(|line| (line[1] != "up").then(|| "no such command".to_owned())).collect())
        });
        assert_eq!(places(&found), ["docs/a.md:2"]);
    }

    #[test]
    fn cargo_command_that_names_nothing_is_found() {
        let page = "`cargo xtask tset`\n`cargo xtask verify nonsense`\n`cargo run -p forebay-gone`\n\
                    `cargo run -p forebay-a --example none`\n`cargo build --profile fast`\n\
                    `cargo run -p forebay-a --example one -- -p x`, `cargo build --profile slow`, `cargo xtask test NAME`\n\
                    ```\ncargo build\n```\n";
        let tree = Tree::of(&[
            ("README.md", page),
            ("Cargo.toml", "[profile.slow]\n"),
            ("crates/a/Cargo.toml", "name = \"forebay-a\"\n"),
            ("crates/a/examples/one.rs", ""),
        ]);
        let lines = [8, 1, 2, 3, 4, 5].map(|line| format!("README.md:{line}"));
        assert_eq!(places(&cargo_commands(&tree)), lines);
    }

    #[test]
    fn example_of_settings_that_is_refused_or_that_no_command_reads_is_found() {
        let dir = shell::target_dir().join("book-examples-test");
        let page = "```toml\ngood\n```\n```toml\nbad\n```\n```toml place\na = \"topology.toml\"\n```\n\
                    ```toml topology.toml\nbad\n```\n```toml other\ngood\n```\n```sh\nbad\n```\n";
        let tree = Tree::of(&[("docs/a.md", page)]);
        let found = examples(&tree, &dir, |words, file| {
            let text = std::fs::read_to_string(file).map_err(|why| why.to_string())?;
            if words == ["place"] {
                let other = file.parent().unwrap().join(text.split('"').nth(1).unwrap());
                assert_eq!(std::fs::read_to_string(other).unwrap(), "bad\n");
            }
            if text == "bad\n" { Err("refused".to_owned()) } else { Ok(()) }
        });
        assert_eq!(places(&found), ["docs/a.md:13", "docs/a.md:4"]);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn book_that_cannot_be_built_is_wrong_and_a_missing_mdbook_is_noted() {
        let tree = Tree::default();
        let missing = built(&tree, None).unwrap();
        assert!(
            missing.weight == super::super::Weight::Note && missing.what.contains("not built"),
            "{missing}"
        );
        let failed = built(&tree, Some("false".to_owned())).unwrap();
        assert_eq!(failed.weight, super::super::Weight::Wrong, "{failed}");
    }

    #[test]
    fn reference_that_lacks_or_adds_a_line_is_found() {
        let tree = Tree::of(&[("docs/reference/commands.md", "# Commands\n## up\n## down\n")]);
        let found =
            |text: &str| differs(&tree, "docs/reference/commands.md", text).map(|finding| finding.place);
        assert_eq!(found("# Commands\n## up\n## down\n"), None);
        assert_eq!(
            found("# Commands\n## up\n## put\n## down\n").as_deref(),
            Some("docs/reference/commands.md:3")
        );
        assert_eq!(found("# Commands\n## up\n").as_deref(), Some("docs/reference/commands.md:3"));
        assert!(differs(&tree, "docs/reference/settings.md", "").is_some());
    }
}
