//! Runs a test in its own process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;

const ALONE: &str = "FOREBAY_TEST_ALONE";

/// Runs the body of the test with this name in a process of its own, with the given limit of memory in bytes.
/// Fails if the process fails, or if any of its threads panicked, even if the panic was caught.
///
/// For bodies that could abort the whole process, or whose panics must not affect other tests.
pub fn alone(test: &str, memory: u64, body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        let limit = getrlimit(Resource::As);
        let less = limit.maximum.map_or(memory, |most| most.min(memory));
        setrlimit(Resource::As, Rlimit { current: Some(less), ..limit }).expect("a limit can be lowered");
        return body();
    }
    let program = std::env::current_exe().expect("path of the test program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, test);
    let output = command.output().expect("restart of the test program");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test} ended with {}:\n{stderr}\n{stdout}", output.status);
    assert!(stdout.contains("1 passed"), "{test} did not run:\n{stdout}");
    assert!(!stderr.contains("panicked"), "{test} panicked:\n{stderr}");
}
