//! The workspace's own text files, read once, so that the checks are functions of text.

use std::collections::BTreeMap;
use std::path::Path;

/// Rust, Markdown and TOML files by their path from the root, with forward slashes.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    files: BTreeMap<String, String>,
}

impl Tree {
    /// Reads everything below `root` but build output and hidden directories.
    pub(crate) fn read(root: &Path) -> Result<Tree, String> {
        let mut tree = Tree::default();
        tree.walk(root, "")?;
        Ok(tree)
    }

    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Tree {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        Tree { files }
    }

    fn walk(&mut self, dir: &Path, prefix: &str) -> Result<(), String> {
        let cannot = |path: &Path, why: std::io::Error| format!("cannot read {}: {why}", path.display());
        for entry in std::fs::read_dir(dir).map_err(|why| cannot(dir, why))? {
            let entry = entry.map_err(|why| cannot(dir, why))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(|why| cannot(&path, why))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            if kind.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    self.walk(&path, &format!("{prefix}{name}/"))?;
                }
            } else if [".rs", ".md", ".toml"].iter().any(|end| name.ends_with(end)) {
                let text = std::fs::read_to_string(&path).map_err(|why| cannot(&path, why))?;
                self.files.insert(format!("{prefix}{name}"), text);
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// All Rust files.
    pub(crate) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// All Markdown pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files
            .iter()
            .filter(|(path, _)| path.ends_with(".md"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Directories of all packages: `crates/model`, `xtask`.
    pub(crate) fn packages(&self) -> impl Iterator<Item = &str> {
        self.files.keys().filter_map(|path| path.strip_suffix("/Cargo.toml"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_can_be_read() {
        let tree = Tree::read(&crate::shell::root()).unwrap();
        assert!(tree.get("xtask/src/tree.rs").unwrap().starts_with("//! The workspace's own"));
        assert!(tree.packages().any(|dir| dir == "xtask"));
        assert!(tree.rust().all(|(path, _)| !path.starts_with("target/")));
        assert!(Tree::read(Path::new("/no/such/place")).unwrap_err().contains("/no/such/place"));
    }
}
