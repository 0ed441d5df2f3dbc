//! Counters that the processes of one run share: words of a page in a file that all of them map.
//!
//! Updates are lock-free, and the counts of a killed process remain.

/// Environment variable with the path of the file.
pub const COUNTS_VARIABLE: &str = "FOREBAY_COUNTS";

/// Size of the file in bytes.
pub const PAGE: usize = 4096;

/// The counters, by index in the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Nanoseconds in calls that used the service, summed over all threads.
    Nanos,
    /// The same of the process with the highest value.
    Longest,
    /// Processes that used the service.
    Processes,
    /// Calls that used the service.
    Calls,
    /// Calls that found the buffer full.
    Full,
    /// Bytes that calls of the program wrote.
    Written,
    /// Bytes that calls of the program read.
    Read,
}

/// A snapshot of the page.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RunCounts {
    /// See [`Count::Nanos`].
    pub nanos: u64,
    /// See [`Count::Longest`].
    pub longest: u64,
    /// See [`Count::Processes`].
    pub processes: u64,
    /// See [`Count::Calls`].
    pub calls: u64,
    /// See [`Count::Full`].
    pub full: u64,
    /// See [`Count::Written`].
    pub written: u64,
    /// See [`Count::Read`].
    pub read: u64,
}

impl RunCounts {
    /// Reads the counters of a page; `None` if the page is too short.
    #[must_use]
    pub fn read(page: &[u8]) -> Option<RunCounts> {
        let word = |count: Count| {
            let bytes = page.chunks_exact(8).nth(count as usize)?;
            Some(u64::from_ne_bytes(bytes.try_into().ok()?))
        };
        Some(RunCounts {
            nanos: word(Count::Nanos)?,
            longest: word(Count::Longest)?,
            processes: word(Count::Processes)?,
            calls: word(Count::Calls)?,
            full: word(Count::Full)?,
            written: word(Count::Written)?,
            read: word(Count::Read)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_at_their_offsets() {
        let page: Vec<u8> = (1..=7_u64).flat_map(u64::to_ne_bytes).collect();
        let expected =
            RunCounts { nanos: 1, longest: 2, processes: 3, calls: 4, full: 5, written: 6, read: 7 };
        assert_eq!(RunCounts::read(&page), Some(expected));
        assert_eq!(RunCounts::read(&page[..55]), None);
    }
}
