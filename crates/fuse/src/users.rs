//! The processes that use a directory.

use std::fs::{self, DirEntry};
use std::path::Path;

/// Maximum number of processes in the text.
const MOST: usize = 8;

/// The processes that have files below a directory open or mapped, or have it as their working directory, as far as
/// this user may see them: `4711 (cat), 4712 (bash)`. Does not access the directory itself: the process that serves it
/// may be gone.
pub(crate) fn users(dir: &Path) -> Option<String> {
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let processes = processes.filter(|entry| is_number(entry) && entry.file_name() != own.as_str());
    let found: Vec<String> =
        processes.filter(|entry| uses(&entry.path(), dir)).map(|entry| named(&entry)).collect();
    let shown = found.iter().take(MOST).cloned().collect::<Vec<_>>().join(", ");
    match found.len() {
        0 => None,
        count if count > MOST => Some(format!("{shown} and {} more", count - MOST)),
        _ => Some(shown),
    }
}

fn is_number(entry: &DirEntry) -> bool {
    entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn uses(process: &Path, dir: &Path) -> bool {
    let is_below = |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(dir));
    let open = || {
        let descriptors = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
        descriptors.map(|entry| entry.path()).any(|link| is_below(&link))
    };
    let mapped = || {
        let maps = fs::read_to_string(process.join("maps")).unwrap_or_default();
        // The sixth column, which may contain spaces, is the path.
        maps.lines()
            .filter_map(|line| line.find('/').map(|at| &line[at..]))
            .any(|path| Path::new(path).starts_with(dir))
    };
    ["cwd", "root", "exe"].iter().any(|link| is_below(&process.join(link))) || open() || mapped()
}

fn named(entry: &DirEntry) -> String {
    let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
    format!("{} ({})", entry.file_name().to_string_lossy(), name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn processes_that_use_a_directory_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().canonicalize().unwrap();
        assert_eq!(users(&place), None);
        fs::write(place.join("f"), "x").unwrap();
        let open = fs::File::open(place.join("f")).unwrap();
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stderr(Stdio::from(open)).spawn().unwrap();
        let mut sleep = Command::new("sleep").arg("600").current_dir(&place).spawn().unwrap();
        let found_users = users(&place).expect("two processes");
        for (child, name) in [(&cat, "cat"), (&sleep, "sleep")] {
            assert!(found_users.contains(&format!("{} ({name})", child.id())), "{found_users}");
        }
        for child in [&mut cat, &mut sleep] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(users(&place), None);
        assert_eq!(users(&place.join("f/none")), None);
    }
}
