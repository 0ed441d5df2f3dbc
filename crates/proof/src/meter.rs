//! Resources that a process uses.

use std::fs;

/// The resources of a process at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
    /// Anonymous memory in KiB, without mapped files.
    pub private: u64,
    /// Peak resident memory in KiB, mapped files included.
    pub peak: u64,
}

impl Meter {
    /// Reads the resources of a process.
    #[must_use]
    pub fn of(pid: u32) -> Meter {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("running process");
        let field = |name: &str| {
            let line =
                status.lines().find_map(|line| line.strip_prefix(name)).expect("field of /proc/PID/status");
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("running process").count();
        Meter { descriptors, threads: field("Threads:"), private: field("RssAnon:"), peak: field("VmHWM:") }
    }
}
