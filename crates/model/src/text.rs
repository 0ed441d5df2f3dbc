//! Values as the readers of messages see them.

use std::fmt::{self, Display};
use std::time::Duration;

/// The items, separated by commas.
pub fn list(items: impl IntoIterator<Item: Display>) -> String {
    let items: Vec<String> = items.into_iter().map(|item| item.to_string()).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// A length of time as settings write it: `10s`, `250ms`, `1.5s`.
#[must_use]
pub fn shown_time(time: Duration) -> impl Display {
    Time(time)
}

struct Time(Duration);

impl Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.as_secs(), self.0.subsec_millis()) {
            (0, millis) => write!(f, "{millis}ms"),
            (seconds, 0) => write!(f, "{seconds}s"),
            _ => write!(f, "{:.1}s", self.0.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_as_settings_write_them() {
        for (millis, text) in [(0, "0ms"), (250, "250ms"), (10_000, "10s"), (1_500, "1.5s")] {
            assert_eq!(shown_time(Duration::from_millis(millis)).to_string(), text);
        }
        assert_eq!(list([1, 2, 3]), "1, 2, 3");
        assert_eq!(list([0; 0]), "none");
    }
}
