//! pjdfstest: every check that passes on tmpfs passes on the mount.

use crate::world::{World, open_to_all, skip};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

const SETTINGS: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.01
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Every check with its result.
fn checks(settings: &Path, dir: &Path) -> BTreeSet<String> {
    let place = dir.join("checks");
    std::fs::create_dir(&place).unwrap();
    open_to_all(&place);
    let mut command = Command::new("pjdfstest");
    let output = command.arg("-c").arg(settings).arg("-p").arg(&place).output().unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "));
    words.filter(|line| line.contains("::") || line.starts_with("Summary")).collect()
}

#[test]
fn pjdfstest_checks_that_pass_on_tmpfs_pass_on_the_mount() {
    let Some(world) = World::new("allow_other,default_permissions,suid,dev") else { return };
    if Command::new("pjdfstest").arg("--help").output().is_err() {
        return skip("pjdfstest is not installed: cargo install pjdfstest");
    }
    let settings = world.local().join("settings");
    std::fs::write(&settings, SETTINGS).unwrap();
    let expected = checks(&settings, &world.local());
    let passed = expected.iter().filter(|line| line.ends_with(" ok")).count();
    assert!(passed > 300, "the suite ran: {expected:?}");
    let found = checks(&settings, &world.at());
    let differ: Vec<_> = expected.difference(&found).collect();
    assert!(differ.is_empty(), "on tmpfs: {differ:#?}");
}
