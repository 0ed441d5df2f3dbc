//! Values of a scenario: quantities and choices; every error names the line and the key.

use crate::keys::{Table, Value};
use crate::quantity;
use forebay_model::{Bytes, Error};
use forebay_policy::share::Tick;

type Read<T> = Result<T, Error>;

/// A size above 0.
pub(super) fn bytes(value: &Value<'_>) -> Read<Bytes> {
    let size = value.human(quantity::size)?;
    if size < 1.0 { Err(value.wrong("must be above 0")) } else { Ok(Bytes(size as u64)) }
}

/// A rate in bytes per second, above 0.
pub(super) fn rate(value: &Value<'_>) -> Read<f64> {
    let rate = value.human(quantity::rate)?;
    if rate < 1.0 { Err(value.wrong("must be above 0")) } else { Ok(rate) }
}

/// A duration of at most a hundred years.
pub(super) fn time(value: &Value<'_>) -> Read<Tick> {
    let secs = value.human(quantity::seconds)?;
    if secs > 3.2e9 {
        Err(value.wrong("is longer than a hundred years"))
    } else {
        Ok(Tick((secs * 1e9) as u64))
    }
}

/// A boolean.
pub(super) fn truth(value: &Value<'_>) -> Read<bool> {
    value.truth()
}

/// A share from 0 to 1.
pub(super) fn share(value: &Value<'_>) -> Read<f64> {
    value.share()
}

/// The value of a key, or a default.
pub(super) fn or<T>(
    table: &mut Table<'_>,
    key: &str,
    usual: T,
    read: impl Fn(&Value<'_>) -> Read<T>,
) -> Read<T> {
    table.take(key).map_or(Ok(usual), |value| read(&value))
}

/// The value of a key, if it is given.
pub(super) fn maybe<T>(
    table: &mut Table<'_>,
    key: &str,
    read: impl Fn(&Value<'_>) -> Read<T>,
) -> Read<Option<T>> {
    table.take(key).map(|value| read(&value)).transpose()
}

/// The value of a required key.
pub(super) fn must<T>(
    table: &mut Table<'_>,
    key: &str,
    help: &str,
    read: impl Fn(&Value<'_>) -> Read<T>,
) -> Read<T> {
    let value = table.take(key).ok_or_else(|| table.missing(key, help))?;
    read(&value)
}

/// A whole number from 1 to `most`.
pub(super) fn count(most: u32) -> impl Fn(&Value<'_>) -> Read<u32> {
    move |value| value.whole(1..=most)
}

/// One of several words.
pub(super) fn word<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&Value<'_>) -> Read<T> {
    move |value| {
        let text = value.text()?;
        let found = words.iter().find(|(word, _)| *word == text).map(|(_, meaning)| *meaning);
        let known: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        found.ok_or_else(|| value.wrong(format!("\"{text}\" is none of {}", known.join(", "))))
    }
}

/// The index of a named object.
pub(super) fn named(names: &[String], what: &'static str) -> impl Fn(&Value<'_>) -> Read<usize> {
    move |value| {
        let text = value.name()?.to_string();
        let known = if names.is_empty() {
            "there is none".to_owned()
        } else {
            format!("known are {}", names.join(", "))
        };
        let found = names.iter().position(|name| *name == text);
        found.ok_or_else(|| value.wrong(format!("\"{text}\" is no {what}: {known}")))
    }
}
