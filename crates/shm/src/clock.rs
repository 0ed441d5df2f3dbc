//! The clock that processes of one machine use for timestamps.

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::read;
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;

const SECOND: i64 = 1_000_000_000;

/// Nanoseconds of the machine's monotonic clock, the same in every process: the offset that the time namespace of this
/// process adds to `CLOCK_MONOTONIC` is subtracted.
#[must_use]
pub fn monotonic() -> u64 {
    static OFFSET: OnceLock<i64> = OnceLock::new();
    let time = clock_gettime(ClockId::Monotonic);
    let here = time.tv_sec * SECOND + time.tv_nsec;
    (here - OFFSET.get_or_init(offset)).max(0) as u64
}

/// The offset of this process's time namespace. 0 on kernels without time namespaces.
fn offset() -> i64 {
    // No heap allocation: the program may be inside an allocator call.
    let mut text = [0; 256];
    let Ok(file) = openat(CWD, "/proc/self/timens_offsets", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return 0;
    };
    let len = read(&file, &mut text).unwrap_or(0);
    std::str::from_utf8(&text[..len]).ok().and_then(parse).unwrap_or(0)
}

/// Parses the line `monotonic SECONDS NANOSECONDS`.
fn parse(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("monotonic"))?;
    let mut words = line.split_ascii_whitespace();
    let (seconds, nanos): (i64, i64) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    seconds.checked_mul(SECOND)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_of_a_time_namespace_are_read_from_the_kernels_table() {
        for (text, offset) in [
            ("monotonic           0         0\nboottime            0         0\n", Some(0)),
            ("monotonic        -600         0\nboottime        86400         5\n", Some(-600 * SECOND)),
            ("monotonic          -2  500000000\n", Some(-1_500_000_000)),
            ("boottime            3         0\n", None),
            ("monotonic           x         0\n", None),
            ("", None),
        ] {
            assert_eq!(parse(text), offset, "{text}");
        }
    }
}
