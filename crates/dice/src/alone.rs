//! A test in a process of its own.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::process::Command;

const ALONE: &str = "FOREBAY_TEST_ALONE";

/// Runs the body of a test, known to the harness by this name, in a process of its own that may have so many bytes of
/// memory. Fails if that does, and if any thread of it panicked, though somebody may have caught it.
///
/// For bodies that could take the whole process with them, or whose panics would be somebody else's.
pub fn alone(test: &str, memory: u64, body: impl FnOnce()) {
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        let limit = getrlimit(Resource::As);
        let less = limit.maximum.map_or(memory, |most| most.min(memory));
        setrlimit(Resource::As, Rlimit { current: Some(less), ..limit }).expect("a limit can be lowered");
        return body();
    }
    let program = std::env::current_exe().expect("this test is a program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(ALONE, test);
    let output = command.output().expect("it can be started again");
    let said = String::from_utf8_lossy(&output.stderr);
    let heard = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{test} ended with {}:\n{said}\n{heard}", output.status);
    assert!(heard.contains("1 passed"), "{test} did not run:\n{heard}");
    assert!(!said.contains("panicked"), "{test} let a panic out:\n{said}");
}
