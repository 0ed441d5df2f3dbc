//! The libraries that the binary embeds, built together with the workspace: what they and everything else depend on is
//! compiled once, and not again by the build script of the command line.

use crate::shell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Names the directory with the libraries to the build script.
const READY: &str = "FOREBAY_EMBEDDED";

/// The directory, once this process has built them.
static BUILT: OnceLock<PathBuf> = OnceLock::new();

/// The embedded files, and what cargo makes them from, in its directory of the profile.
const LIBRARIES: &[(&str, &str)] = &[
    ("libforebay.so", "libforebay.so"),
    ("libforebay_place.so", "libforebay_place.so"),
    ("libforebay_place.a", "examples/libforebay_place_archive.a"),
];

/// The features that the suite has: cargo unites those of all packages, and of what tests need if an example is built.
const BUILDS: [&[&str]; 2] = [
    &["build", "--workspace", "--locked", "--lib", "--examples"],
    &[
        "build",
        "--workspace",
        "--locked",
        "--example",
        "forebay_place_archive",
        "--features",
        "forebay-place/wrap",
    ],
];

/// Builds the libraries. Every cargo that this process starts later embeds them.
pub(crate) fn build() -> Result<(), String> {
    for words in BUILDS {
        shell::run(shell::cargo().args(words))?;
    }
    let (from, to) = (shell::target_dir().join("debug"), shell::target_dir().join("embedded"));
    copy(&from, &to)?;
    BUILT.get_or_init(|| to);
    Ok(())
}

/// Tells a cargo where the libraries are, if they were built.
pub(crate) fn announce(cargo: &mut Command) {
    if let Some(dir) = BUILT.get() {
        cargo.env(READY, dir);
    }
}

/// Copies the libraries that have changed: the build script looks at the time of the copies.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    let cannot = |path: &Path, why: std::io::Error| format!("cannot copy {}: {why}", path.display());
    std::fs::create_dir_all(to).map_err(|why| cannot(to, why))?;
    for (name, artefact) in LIBRARIES {
        let (made, kept) = (from.join(artefact), to.join(name));
        let bytes = std::fs::read(&made).map_err(|why| cannot(&made, why))?;
        if std::fs::read(&kept).ok().as_ref() != Some(&bytes) {
            std::fs::write(&kept, bytes).map_err(|why| cannot(&made, why))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_that_changed_are_written() {
        let (from, to) =
            (shell::target_dir().join("embedded-test-a"), shell::target_dir().join("embedded-test-b"));
        std::fs::create_dir_all(from.join("examples")).unwrap();
        for (_, artefact) in LIBRARIES {
            std::fs::write(from.join(artefact), artefact).unwrap();
        }
        copy(&from, &to).unwrap();
        let times = || -> Vec<_> {
            let written = |name| std::fs::metadata(to.join(name)).unwrap().modified().unwrap();
            LIBRARIES.iter().map(|(name, _)| written(name)).collect()
        };
        let before = times();
        std::fs::write(from.join("libforebay.so"), "new").unwrap();
        copy(&from, &to).unwrap();
        let after = times();
        assert!(before[0] < after[0] && before[1..] == after[1..], "{before:?} {after:?}");
        assert_eq!(std::fs::read_to_string(to.join("libforebay.so")).unwrap(), "new");
        std::fs::remove_file(from.join("libforebay_place.so")).unwrap();
        assert!(copy(&from, &to).unwrap_err().contains("libforebay_place.so"));
        std::fs::remove_dir_all(&from).unwrap();
        std::fs::remove_dir_all(&to).unwrap();
    }
}
