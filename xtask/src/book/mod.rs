//! `cargo xtask book`: writes the generated reference and builds the book as HTML.
//!
//! `cargo xtask book` installs mdBook under `target/` when it is not in the search path. That takes minutes, so `verify`
//! builds the pages only if mdBook is there, and checks links, commands and examples itself.

pub(crate) mod decisions;
mod settings;

use crate::tree::Tree;
use crate::{embedded, machine, markdown, shell};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

/// The table of contents. Decisions follow its end: their index is generated.
pub(crate) const SUMMARY: &str = "docs/SUMMARY.md";

/// The generated pages: path and text.
pub(crate) fn reference(tree: &Tree) -> Result<[(&'static str, String); 3], String> {
    let commands = forebay(&["commands"], "")?;
    let settings = settings::page(tree, &forebay(&["settings"], "")?)?;
    let index = decisions::page(tree)?;
    Ok([
        ("docs/reference/commands.md", commands),
        ("docs/reference/settings.md", settings),
        (decisions::INDEX, index),
    ])
}

/// Why the program refuses command lines, or mentions of commands in prose; none for those that it accepts.
pub(crate) fn refusals(lines: &[&Vec<String>], are_mentions: bool) -> Result<Vec<Option<String>>, String> {
    let words = ["lines", "--mentions"];
    let answer =
        forebay(if are_mentions { &words } else { &words[..1] }, &serde_json::json!(lines).to_string())?;
    serde_json::from_str(&answer).map_err(|why| format!("the answer about command lines: {why}"))
}

/// What the command line of this tree answers.
fn forebay(words: &[&str], input: &str) -> Result<String, String> {
    shell::filter(shell::command(&program()?).arg("reference").args(words), input)
}

/// The path of the binary of this tree, built once in this process.
pub(crate) fn program() -> Result<String, String> {
    static PROGRAM: OnceLock<Result<String, String>> = OnceLock::new();
    PROGRAM.get_or_init(build_program).clone()
}

fn build_program() -> Result<String, String> {
    // With the features that the suite has, so that nothing is compiled twice: cargo unites those of all packages, and
    // of what tests need if a test is built too.
    let build = ["build", "--quiet", "--locked", "--workspace", "--bins", "--test", "cli"];
    embedded::build()?;
    if !shell::cargo().args(build).status().is_ok_and(|status| status.success()) {
        return Err(format!("cargo {} failed", build.join(" ")));
    }
    Ok(shell::target_dir().join("debug/forebay").to_string_lossy().into_owned())
}

/// Writes the reference and, if `html`, builds the pages.
pub(crate) fn run(html: bool) -> Result<(), String> {
    let root = shell::root();
    let tree = Tree::read(&root)?;
    for (path, text) in reference(&tree)? {
        write(&root.join(path), &text)?;
        println!("{path}");
    }
    if !html {
        return Ok(());
    }
    // With the pages as they are now.
    let tree = Tree::read(&root)?;
    let index = html_pages(&tree, &machine::mdbook()?)?;
    println!("{}", index.display());
    Ok(())
}

/// Builds the pages with this mdBook, and returns the path of the first.
pub(crate) fn html_pages(tree: &Tree, mdbook: &str) -> Result<PathBuf, String> {
    let stage = shell::target_dir().join("book-source");
    copy(tree, &shell::root(), &stage)?;
    let pages = shell::target_dir().join("book");
    shell::run(shell::command(mdbook).arg("build").arg(&stage).arg("--dest-dir").arg(&pages))?;
    Ok(pages.join("index.html"))
}

/// Copies the pages to a directory of their own, with the repository's paths: pages link to each other across it.
fn copy(tree: &Tree, root: &Path, stage: &Path) -> Result<(), String> {
    if stage.exists() {
        std::fs::remove_dir_all(stage).map_err(|why| format!("cannot empty {}: {why}", stage.display()))?;
    }
    for (path, page) in tree.pages() {
        write(&stage.join(path), page)?;
        for link in markdown::links(page) {
            let Some(file) = target(path, link.what).filter(|file| !file.ends_with(".md")) else { continue };
            if let Ok(text) = std::fs::read_to_string(root.join(&file)) {
                write(&stage.join(&file), &text)?;
            }
        }
    }
    let summary = tree.get(SUMMARY).ok_or_else(|| format!("{SUMMARY} is missing"))?;
    write(&stage.join("SUMMARY.md"), &(from_root(summary) + &decisions::contents(tree)?))?;
    let settings = root.join("docs/book.toml");
    let text = std::fs::read_to_string(&settings)
        .map_err(|why| format!("cannot read {}: {why}", settings.display()))?;
    write(&stage.join("book.toml"), &text)
}

/// The table of contents with links from the root of the repository.
fn from_root(summary: &str) -> String {
    let mut pieces = summary.split("](");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (link, rest) = piece.split_once(')').unwrap_or((piece, ""));
        let link = target(SUMMARY, link).unwrap_or_else(|| link.to_owned());
        text.push_str(&format!("]({link}){rest}"));
    }
    text
}

/// The file that a link on a page leads to, from the root of the repository; none if it leads out of it.
pub(crate) fn target(page: &str, link: &str) -> Option<String> {
    let file = link.split('#').next().unwrap_or_default();
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    if file.is_empty() {
        return Some(page.to_owned());
    }
    let mut path = PathBuf::from(page);
    path.pop();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir if !path.pop() => return None,
            Component::ParentDir => {}
            Component::Normal(name) => path.push(name),
            _ => {}
        }
    }
    Some(path.to_string_lossy().into_owned())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    let cannot = |why: std::io::Error| format!("cannot write {}: {why}", path.display());
    std::fs::create_dir_all(path.parent().unwrap_or(path)).map_err(cannot)?;
    std::fs::write(path, text).map_err(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_from_their_page() {
        for (page, link, expected) in [
            ("docs/a.md", "b.md#c", Some("docs/b.md")),
            ("docs/guide/a.md", "../../README.md", Some("README.md")),
            ("docs/a.md", "#here", Some("docs/a.md")),
            ("README.md", "../out.md", None),
            ("README.md", "https://example.org/a.md", None),
        ] {
            assert_eq!(target(page, link).as_deref(), expected, "{page}: {link}");
        }
    }

    #[test]
    fn table_of_contents_is_moved_to_the_root() {
        let summary = "- [Start](guide/start.md)\n  - [Promises](../SEMANTICS.md)\n- [Later]()\n";
        let moved =
            "- [Start](docs/guide/start.md)\n  - [Promises](SEMANTICS.md)\n- [Later](docs/SUMMARY.md)\n";
        assert_eq!(from_root(summary), moved);
    }
}
