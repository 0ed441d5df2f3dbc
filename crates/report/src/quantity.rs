//! Quantities with units: `12 GB/s`, `4 TB`, `10 min`, `20 %`.

use forebay_model::{Bytes, time_unit};

/// A number and its unit.
fn parts(text: &str) -> Option<(f64, &str)> {
    let text = text.trim();
    let end = text
        .char_indices()
        .find(|(i, c)| {
            let exponent = matches!(c, 'e' | 'E') && text[i + 1..].starts_with(|c: char| c.is_ascii_digit());
            !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+') || exponent)
        })
        .map_or(text.len(), |(i, _)| i);
    let value: f64 = text[..end].parse().ok()?;
    value.is_finite().then_some((value, text[end..].trim()))
}

fn second_unit(unit: &str) -> Option<f64> {
    time_unit(unit).map(|unit| unit.as_secs_f64())
}

/// Parses a size, in bytes.
pub fn size(text: &str) -> Result<f64, String> {
    let help = || format!("\"{text}\" is not a size: write a number and a unit, such as 500 GB or 4 TiB");
    let (value, unit) = parts(text).ok_or_else(help)?;
    positive(value * Bytes::unit(unit).ok_or_else(help)? as f64, text)
}

/// Parses a rate, in bytes per second.
pub fn rate(text: &str) -> Result<f64, String> {
    let help = || format!("\"{text}\" is not a rate: write a size per time, such as 12 GB/s");
    let (value, unit) = parts(text).ok_or_else(help)?;
    let (amount, time) = unit.split_once('/').ok_or_else(help)?;
    let factor = Bytes::unit(amount.trim()).zip(second_unit(time.trim()));
    let (bytes, seconds) = factor.ok_or_else(help)?;
    positive(value * bytes as f64 / seconds, text)
}

/// Parses a duration, in seconds.
pub fn seconds(text: &str) -> Result<f64, String> {
    let help =
        || format!("\"{text}\" is not a length of time: write a number and a unit, such as 30 s or 10 min");
    let (value, unit) = parts(text).ok_or_else(help)?;
    positive(value * second_unit(unit).ok_or_else(help)?, text)
}

/// Parses a share: `0.2`, `20%`.
pub fn share(text: &str) -> Result<f64, String> {
    let help = || format!("\"{text}\" is not a share: write 0.2 or 20%");
    let (value, unit) = parts(text).ok_or_else(help)?;
    let share = match unit {
        "" => value,
        "%" => value / 100.0,
        _ => return Err(help()),
    };
    if (0.0..=1.0).contains(&share) { Ok(share) } else { Err(format!("\"{text}\" is not between 0 and 1")) }
}

fn positive(value: f64, text: &str) -> Result<f64, String> {
    if value >= 0.0 { Ok(value) } else { Err(format!("\"{text}\" is negative")) }
}

/// A size with the decimal unit that gives the shortest number.
pub fn show_bytes(bytes: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let power = if bytes >= 1.0 { ((bytes.log10() / 3.0 + 1e-9) as usize).min(units.len() - 1) } else { 0 };
    format!("{} {}", show(bytes / 1000f64.powi(power as i32)), units[power])
}

/// A share of time as a percentage with three digits.
pub fn show_share(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0 %".into(),
        x if x < 1e-3 => format!("{x:.1e} %"),
        x if x < 0.1 => format!("{x:.4} %"),
        x if x < 10.0 => format!("{x:.2} %"),
        x => format!("{x:.1} %"),
    }
}

/// A number with about three significant digits.
pub fn show(value: f64) -> String {
    let text = match value.abs() {
        x if x >= 100.0 => return format!("{value:.0}"),
        x if x >= 10.0 => format!("{value:.1}"),
        x if x >= 0.01 || x == 0.0 => format!("{value:.2}"),
        _ => return format!("{value:.1e}"),
    };
    let short = text.trim_end_matches('0').trim_end_matches('.');
    short.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read() {
        for (text, expected) in
            [("12 GB/s", 12e9), ("1.5TB/min", 2.5e10), ("1 MiB/s", 1_048_576.0), ("2e3 MB/h", 2e9 / 3600.0)]
        {
            assert!((rate(text).unwrap() / expected - 1.0).abs() < 1e-12, "{text}");
        }
        for (text, expected) in [("30 s", 30.0), ("10 min", 600.0), ("0.5 h", 1800.0), ("250ms", 0.25)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for (text, expected) in
            [("4 TB", 4e12), ("1 GiB", 1_073_741_824.0), ("7 b", 7.0), ("2T", (2_u64 << 40) as f64)]
        {
            assert_eq!(size(text), Ok(expected), "{text}");
        }
        for (text, expected) in [("1%", 0.01), ("0.2", 0.2), ("20 %", 0.2), ("1", 1.0)] {
            assert_eq!(share(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused_with_their_text() {
        for text in ["fast", "12 GB", "-3 GB/s", "12 XB/s", "GB/s", "12 GB/fortnight", "", "NaN GB/s"] {
            assert!(rate(text).unwrap_err().contains(text), "{text}");
        }
        for text in ["30", "-1 s", "s", "3 parsec"] {
            assert!(seconds(text).is_err(), "{text}");
        }
        for text in ["120%", "-0.1", "1.5", "x"] {
            assert!(share(text).is_err(), "{text}");
        }
    }

    #[test]
    fn quantities_are_shown() {
        for (bytes, text) in
            [(4e12, "4 TB"), (1.25e9, "1.25 GB"), (999.0, "999 B"), (0.0, "0 B"), (123.4e6, "123 MB")]
        {
            assert_eq!(show_bytes(bytes), text);
        }
        for (share, text) in
            [(0.0, "0 %"), (0.0123, "1.23 %"), (0.5, "50.0 %"), (3e-7, "3.0e-5 %"), (5e-4, "0.0500 %")]
        {
            assert_eq!(show_share(share), text);
        }
    }
}
