//! What a process uses.

use std::fs;

/// What a process used at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Meter {
    /// Open descriptors.
    pub descriptors: usize,
    /// Threads.
    pub threads: u64,
    /// Memory of its own, without mapped files, in KiB.
    pub private: u64,
    /// The most it ever held in memory, mapped files included, in KiB.
    pub peak: u64,
}

impl Meter {
    /// Reads it off.
    #[must_use]
    pub fn of(pid: u32) -> Meter {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells");
            let digits: String = line.chars().filter(char::is_ascii_digit).collect();
            digits.parse().expect("a number")
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("the process lives").count();
        Meter { descriptors, threads: field("Threads:"), private: field("RssAnon:"), peak: field("VmHWM:") }
    }
}
