//! Servers that benchmarks of scenarios start as processes of their own, and their stores.

use forebay_store::Store;
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;

/// What a server prints, in one line, when it serves.
#[derive(Deserialize)]
struct Started {
    #[serde(rename = "pid")]
    _pid: u32,
}

/// Waits until a server serves, or has ended without.
pub(crate) fn is_serving(server: &mut Child) -> bool {
    let mut line = String::new();
    if let Some(stdout) = server.stdout.take() {
        // A server that fails prints nothing to standard output; its log has the reason.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    serde_json::from_str::<Started>(&line).is_ok()
}

/// Removes the stores in a directory. Each may have mounted memory, so that the directory itself cannot be removed
/// before. A store that cannot be removed stays.
pub(crate) fn remove_stores(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if Store::exists(&entry.path()) {
            let _ = Store::remove(&entry.path());
        }
    }
}
