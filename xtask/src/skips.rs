//! Tests that may skip in CI, and why. Everywhere else a skip is listed, and nothing more.

/// A skip that depends on the machine and on nothing that `cargo xtask test` can install.
#[derive(Clone, Copy, Debug)]
struct Accepted {
    /// A part of the line that the test appends to the log.
    says: &'static str,
    why: &'static str,
}

/// A missing package or Python module is not accepted: it belongs into the tables in `machine.rs`. Neither is a missing
/// FUSE device, nor a user other than root: too much would go untested.
const ACCEPTED: &[Accepted] = &[
    Accepted {
        says: "oom_score_adj may not be lowered here",
        why: "containers may lack CAP_SYS_RESOURCE; the server then keeps the score that it was given",
    },
    Accepted {
        says: "cbindgen is not installed (cargo install cbindgen): the header was not made anew",
        why: "programs in C are compiled with the header in any case; only its regeneration is left out",
    },
    Accepted {
        says: "system calls are intercepted on x86-64 only",
        why: "Syscall User Dispatch needs code for each architecture",
    },
    Accepted {
        says: "system calls cannot be filtered here",
        why: "seccomp is a build option of the kernel, and some containers forbid it",
    },
    Accepted {
        says: "no-operations of io_uring have no result here (before Linux 6.12): rings are refused",
        why: "hosted machines run older kernels; that rings are refused there is tested",
    },
    Accepted {
        says: "this kernel lacks a system call of ",
        why: "containers disable io_uring and AIO, and older kernels lack some calls",
    },
    Accepted {
        says: "the file system of temporary files does not support them",
        why: "access lists need a file system that stores them: some overlays do not",
    },
    Accepted {
        says: "the file system keeps all pages, or does not report them",
        why: "pages of tmpfs are the file itself, and cannot be dropped",
    },
    Accepted {
        says: "no control group with a memory limit can be created",
        why: "containers often mount control groups read-only",
    },
    Accepted {
        says: "this process may not open as many files",
        why: "the hard limit of open files is the machine's",
    },
    Accepted {
        says: "there is no overlay to put a helper of mount into",
        why: "overlays cannot be stacked on every file system of a container",
    },
    Accepted {
        says: "bad sectors need root, mkfs.ext4 and loop devices",
        why: "containers often have no loop devices, and root and mkfs.ext4 are there",
    },
];

/// The distinct lines of the log, without their label.
pub(crate) fn lines(log: &str) -> Vec<&str> {
    let mut lines: Vec<&str> =
        log.lines().map(|line| line.strip_prefix("skipped: ").unwrap_or(line)).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// The line with the reason for which it is accepted, if it is.
pub(crate) fn shown(line: &str) -> String {
    match accepted(line) {
        Some(Accepted { why, .. }) => format!("skipped: {line} (accepted: {why})"),
        None => format!("skipped: {line}"),
    }
}

/// Whether this is CI, by the variable that every service of that kind sets.
pub(crate) fn is_ci(variable: Option<&str>) -> bool {
    variable.is_some_and(|value| !matches!(value, "" | "0" | "false"))
}

/// An error if a test skipped in CI without an accepted reason.
pub(crate) fn judge(lines: &[&str], ci: bool) -> Result<(), String> {
    let wrong: Vec<&str> = lines.iter().copied().filter(|line| ci && accepted(line).is_none()).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!(
        "in CI a test skips only for a reason that xtask/src/skips.rs accepts; these did not run: {}",
        wrong.join("; ")
    ))
}

fn accepted(line: &str) -> Option<&'static Accepted> {
    ACCEPTED.iter().find(|skip| line.contains(skip.says))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::Tree;

    const OOM: &str = "server_lowers_its_oom_score: oom_score_adj may not be lowered here";
    const MISSING: &str = "place: mpicc is not installed";

    #[test]
    fn skips_without_an_accepted_reason_fail_in_ci_only() {
        assert_eq!(judge(&[OOM], true), Ok(()));
        let refused = judge(&[OOM, MISSING], true).unwrap_err();
        assert!(refused.contains(MISSING) && !refused.contains(OOM), "{refused}");
        assert_eq!(judge(&[OOM, MISSING], false), Ok(()));
    }

    #[test]
    fn ci_is_recognised_by_its_variable() {
        assert!(is_ci(Some("true")) && is_ci(Some("1")));
        assert!(!is_ci(None) && !is_ci(Some("")) && !is_ci(Some("false")));
    }

    #[test]
    fn each_skip_is_shown_once_with_the_accepted_reason() {
        let log = format!("skipped: {OOM}\nskipped: {MISSING}\nskipped: {OOM}\n");
        assert_eq!(lines(&log), [MISSING, OOM]);
        assert_eq!(shown(MISSING), format!("skipped: {MISSING}"));
        assert!(shown(OOM).contains("(accepted: containers may lack"), "{}", shown(OOM));
    }

    #[test]
    fn every_accepted_skip_stands_in_a_test() {
        let tree = Tree::read(&crate::shell::root()).unwrap();
        for skip in ACCEPTED {
            let mut files = tree.rust().filter(|(path, _)| path.starts_with("crates/"));
            assert!(files.any(|(_, text)| text.contains(skip.says)), "no test says {:?}", skip.says);
            assert!(!skip.why.is_empty());
        }
    }
}
