//! Numbers, times and modes in human-readable form. Pure.

use forebay_model::{Bytes, FileKind, Special, Time};
use jiff::Timestamp;
use std::time::Duration;

/// `2026-11-15T10:20:33Z`: in UTC, the same on every machine. Seconds since 1970 where there is no such date.
pub fn time(time: Time) -> String {
    Timestamp::from_second(time.secs).map_or_else(|_| time.secs.to_string(), |date| date.to_string())
}

/// `drwxr-xr-x`.
pub fn mode(kind: FileKind, mode: u16) -> String {
    let mut text = String::with_capacity(10);
    text.push(match kind {
        FileKind::File => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Special(Special::Pipe) => 'p',
        FileKind::Special(Special::Socket) => 's',
        FileKind::Special(Special::Character(_)) => 'c',
        FileKind::Special(Special::Block(_)) => 'b',
    });
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 == 0 { '-' } else { 'r' });
        text.push(if bits & 2 == 0 { '-' } else { 'w' });
        text.push(match (bits & 1 == 0, mode & special == 0) {
            (true, true) => '-',
            (false, true) => 'x',
            (true, false) => letter.to_ascii_uppercase(),
            (false, false) => letter,
        });
    }
    text
}

/// The kind of an entry in one or two words.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Special(Special::Pipe) => "named pipe",
        FileKind::Special(Special::Socket) => "socket",
        FileKind::Special(Special::Character(_)) => "character device",
        FileKind::Special(Special::Block(_)) => "block device",
    }
}

/// `1,234,567`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 file`, `2,000 files`.
pub fn counted(number: u64, what: &str) -> String {
    plural(number, what, &format!("{what}s"))
}

/// `1 process`, `2,000 processes`.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number), if number == 1 { one } else { many })
}

/// `12 ms`, `3.4 s`, `5 min 6 s`, `2 h 3 min`, `4 d 5 h`.
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.as_millis() < 1000 => format!("{} ms", time.as_millis()),
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// `1.4 GiB/s`.
pub fn rate(bytes: u64, time: Duration) -> String {
    let seconds = time.as_secs_f64().max(1e-6);
    format!("{}/s", size((bytes as f64 / seconds) as u64))
}

/// `1.4 GiB`: at most one decimal.
pub fn size(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

/// `42 %`.
pub fn percent(part: u64, whole: u64) -> String {
    format!("{} %", (part as f64 * 100.0 / whole.max(1) as f64).round())
}

/// A word quoted for a shell.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./:@%+=,-".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_794_738_033, "2026-11-15T10:20:33Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (i64::MAX, "9223372036854775807"),
        ] {
            assert_eq!(time(Time { secs, nanos: 0 }), text);
        }
    }

    #[test]
    fn modes() {
        assert_eq!(mode(FileKind::File, 0o644), "-rw-r--r--");
        assert_eq!(mode(FileKind::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode(FileKind::Symlink, 0o777), "lrwxrwxrwx");
        assert_eq!(mode(FileKind::File, 0o6640), "-rwSr-S---");
    }

    #[test]
    fn numbers() {
        for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(count(number), text);
        }
        assert_eq!(counted(1, "file"), "1 file");
        assert_eq!(percent(1, 0), "100 %");
        for (millis, text) in [
            (12, "12 ms"),
            (3400, "3.4 s"),
            (306_000, "5 min 6 s"),
            (7_380_000, "2 h 3 min"),
            (363_600_000, "4 d 5 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(millis)), text);
        }
    }
}
