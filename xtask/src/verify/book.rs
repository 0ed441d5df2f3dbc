//! The book: links lead somewhere, commands are commands, and the generated reference is that of the code.

use super::Finding;
use crate::tree::Tree;
use crate::{book, markdown, shell};
use std::collections::BTreeSet;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let root = shell::root();
    let mut findings = links(tree, |path| root.join(path).exists());
    findings.extend(contents(tree));
    findings.extend(commands(tree, book::refusals));
    match book::reference(tree) {
        Ok(pages) => findings.extend(pages.iter().flat_map(|(path, text)| differs(tree, path, text))),
        Err(why) => findings.push(Finding::wrong("docs/reference", why)),
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

/// Command lines on pages that the program refuses.
fn commands(
    tree: &Tree,
    refusals: impl Fn(&[&Vec<String>]) -> Result<Vec<Option<String>>, String>,
) -> Vec<Finding> {
    let (mut findings, mut places, mut lines) = (Vec::new(), Vec::new(), Vec::new());
    let found: Vec<_> =
        tree.pages().map(|(path, page)| (path, markdown::commands(page, "forebay"))).collect();
    for (path, found) in &found {
        for line in &found.unmarked {
            findings.push(Finding::wrong(
                format!("{path}:{line}"),
                "a command in a block without a language: mark the block as sh, so that it is checked, or as text",
            ));
        }
        for command in &found.shown {
            places.push(format!("{path}:{}", command.line));
            lines.push(&command.what);
        }
    }
    match refusals(&lines) {
        Err(why) => findings.push(Finding::wrong("docs", why)),
        Ok(answers) => {
            let refused = places.iter().zip(answers).filter_map(|(place, why)| Some((place, why?)));
            findings.extend(refused.map(|(place, why)| Finding::wrong(place, why)));
        }
    }
    findings
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
        let found = commands(&tree, |lines| {
            Ok(lines.iter().map(|line| (line[1] == "pu").then(|| "no such command".to_owned())).collect())
        });
        assert_eq!(places(&found), ["README.md:7", "README.md:3"]);
        assert_eq!(commands(&tree, |_| Err("does not build".to_owned())).len(), 2);
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
