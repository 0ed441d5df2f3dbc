//! What the processes of one run count together: words of a page in a file that all of them map.
//!
//! Whoever is killed has counted all the same, and nobody waits for anybody.

/// Names the file in a program's environment.
pub const COUNTS_VARIABLE: &str = "FOREBAY_COUNTS";

/// Bytes of the file.
pub const PAGE: usize = 4096;

/// Which word of the page counts what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Nanoseconds in calls that asked the service, of all threads together.
    Nanos,
    /// The same of the process with the most.
    Longest,
    /// Processes that asked.
    Processes,
    /// Calls that asked.
    Calls,
    /// Calls that found the buffer full.
    Full,
}

/// The page as it was at some moment.
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
}

impl RunCounts {
    /// Reads a page; `None` if it is too short for one.
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
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_where_they_are_counted() {
        let page: Vec<u8> = (1..=5_u64).flat_map(u64::to_ne_bytes).collect();
        let expected = RunCounts { nanos: 1, longest: 2, processes: 3, calls: 4, full: 5 };
        assert_eq!(RunCounts::read(&page), Some(expected));
        assert_eq!(RunCounts::read(&page[..39]), None);
    }
}
