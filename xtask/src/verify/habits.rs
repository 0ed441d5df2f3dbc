//! What a public project has: licence, policies, templates, a workflow that runs `.ci/run`, and a page for each crate.

use super::Finding;
use crate::shell;
use crate::tree::Tree;

/// Files that are there, and what each must say.
const FILES: &[(&str, &str)] = &[
    ("LICENSE", "Apache License"),
    ("SECURITY.md", "Report"),
    ("CODE_OF_CONDUCT.md", "# Code of conduct"),
    ("CONTRIBUTING.md", ".ci/run"),
    ("CHANGELOG.md", "\n## 0.1.0 ("),
    ("rust-toolchain.toml", "channel = \""),
    ("deny.toml", "[licenses]"),
    (".github/PULL_REQUEST_TEMPLATE.md", ".ci/run"),
    (".github/ISSUE_TEMPLATE/bug.md", "name: "),
    (".github/ISSUE_TEMPLATE/feature.md", "name: "),
    (".github/workflows/ci.yml", ".ci/run"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let root = shell::root();
    let mut findings = files(|path| std::fs::read_to_string(root.join(path)).ok());
    findings.extend(release(tree));
    findings.extend(pages(tree));
    findings
}

fn files(read: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, says) in FILES {
        match read(path) {
            None => findings.push(Finding::wrong(*path, "is missing")),
            Some(text) if !text.contains(says) => {
                findings.push(Finding::wrong(*path, format!("does not say {:?}", says.trim())));
            }
            Some(_) => {}
        }
    }
    findings
}

/// The changelog begins with the version of the workspace, and every version in it has a date.
fn release(tree: &Tree) -> Vec<Finding> {
    let manifest = tree.get("Cargo.toml").unwrap_or_default();
    let version = manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'));
    let heads =
        tree.get("CHANGELOG.md").unwrap_or_default().lines().filter_map(|line| line.strip_prefix("## "));
    let heads: Vec<&str> = heads.collect();
    let mut findings = Vec::new();
    let newest = heads.first().and_then(|head| head.split(' ').next());
    if newest != version {
        let what = format!("begins with version {newest:?}, and Cargo.toml has {version:?}");
        findings.push(Finding::wrong("CHANGELOG.md", what));
    }
    let undated = heads.iter().filter(|head| !head.contains(" (20") && !head.ends_with("(unreleased)"));
    findings.extend(undated.map(|head| Finding::wrong("CHANGELOG.md", format!("{head} has no date"))));
    findings
}

/// Every crate has a page with its name and its invariant.
fn pages(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for dir in tree.packages().filter(|dir| dir.starts_with("crates/")) {
        let manifest = tree.get(&format!("{dir}/Cargo.toml")).unwrap_or_default();
        let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let path = format!("{dir}/README.md");
        let Some(page) = tree.get(&path) else {
            findings.push(Finding::wrong(path, "is missing: what the crate is for, and its invariant"));
            continue;
        };
        if page.lines().next().and_then(|line| line.strip_prefix("# ")) != name {
            findings.push(Finding::wrong(path.as_str(), "does not begin with the name of the crate"));
        }
        if !page.contains("\n**Invariant**: ") {
            findings.push(Finding::wrong(path, "has no **Invariant**"));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.place.as_str()).collect()
    }

    #[test]
    fn file_that_is_missing_or_empty_is_found() {
        let all =
            |path: &str| FILES.iter().find(|(name, _)| *name == path).map(|(_, says)| (*says).to_owned());
        assert_eq!(files(all), []);
        let found = files(|path| if path == "LICENSE" { None } else { all(path) });
        assert_eq!(places(&found), ["LICENSE"]);
        let found = files(|path| if path.ends_with("ci.yml") { Some(String::new()) } else { all(path) });
        assert_eq!(places(&found), [".github/workflows/ci.yml"]);
    }

    #[test]
    fn changelog_without_the_present_version_or_a_date_is_found() {
        let found = |manifest: &str, log: &str| {
            release(&Tree::of(&[("Cargo.toml", manifest), ("CHANGELOG.md", log)])).len()
        };
        let log = "# Changelog\n\n## 0.2.0 (2026-11-19)\n\n## 0.1.0 (2026-11-16)\n";
        assert_eq!(found("version = \"0.2.0\"\n", log), 0);
        assert_eq!(found("version = \"0.3.0\"\n", log), 1);
        assert_eq!(found("version = \"0.2.0\"\n", &log.replace(" (2026-11-16)", "")), 1);
    }

    #[test]
    fn crate_without_a_page_of_its_own_is_found() {
        let manifest = ("crates/a/Cargo.toml", "name = \"forebay-a\"\n");
        let found = |page: &str| {
            let tree = Tree::of(&[manifest, ("crates/a/README.md", page)]);
            places(&pages(&tree)).len()
        };
        assert_eq!(found("# forebay-a\n\nIt is.\n\n**Invariant**: it holds.\n"), 0);
        assert_eq!(found("# forebay-b\n\n**Invariant**: it holds.\n"), 1);
        assert_eq!(found("# forebay-a\n"), 1);
        assert_eq!(places(&pages(&Tree::of(&[manifest]))), ["crates/a/README.md"]);
    }
}
