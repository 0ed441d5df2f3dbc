//! Sweeps on the command line: `capacity=0..500:50`.

use std::str::FromStr;

/// Maximum number of points of one sweep.
const MOST: usize = 10_000;

/// The parameter that is varied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Key {
    /// Capacity of the buffer, in units.
    Capacity,
    /// Share of the capacity at which the drain starts.
    Threshold,
    /// Bandwidth of the back end, in units.
    Bandwidth,
}

impl Key {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Key::Capacity => "capacity",
            Key::Threshold => "threshold",
            Key::Bandwidth => "bandwidth",
        }
    }
}

/// A range of values with a step, both ends included.
#[derive(Clone, PartialEq, Debug)]
pub struct Sweep {
    /// The parameter.
    pub key: Key,
    first: f64,
    last: f64,
    step: f64,
}

impl Sweep {
    /// Evenly spread points for the chart of one key.
    pub fn even(key: Key, last: f64, step: f64) -> Sweep {
        Sweep { key, first: 0.0, last, step }
    }

    /// The values, at least one.
    pub fn values(&self) -> Vec<f64> {
        // The tolerance lets a step that divides the range reach its end despite rounding.
        let count = ((self.last - self.first) / self.step + 1e-9).floor() as usize;
        (0..=count).map(|i| self.first + i as f64 * self.step).collect()
    }
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Sweep, String> {
        let help =
            || format!("\"{text}\" is not a sweep: write key=first..last:step, such as capacity=0..500:50");
        let (key, range) = text.split_once('=').ok_or_else(help)?;
        let key = match key.trim() {
            "capacity" => Key::Capacity,
            "threshold" => Key::Threshold,
            "bandwidth" => Key::Bandwidth,
            other => return Err(format!("cannot sweep \"{other}\": capacity, threshold or bandwidth")),
        };
        let (ends, step) = range.split_once(':').ok_or_else(help)?;
        let (first, last) = ends.split_once("..").ok_or_else(help)?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite()).ok_or_else(help);
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if step <= 0.0 || last < first {
            return Err(format!("the sweep \"{text}\" is empty: it must go upwards in steps above 0"));
        }
        if first < 0.0 || (key == Key::Bandwidth && first < 1.0) || (key == Key::Threshold && last > 1.0) {
            return Err(format!(
                "the sweep \"{text}\" leaves its range: capacity from 0, bandwidth from 1, threshold from 0 to 1"
            ));
        }
        let whole = [first, last, step].iter().all(|n| n.fract() == 0.0);
        if key != Key::Threshold && !whole {
            return Err(format!("the sweep \"{text}\" must use whole units"));
        }
        if (last - first) / step > MOST as f64 {
            return Err(format!("the sweep \"{text}\" has more than {MOST} points"));
        }
        Ok(Sweep { key, first, last, step })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_are_read() {
        for (text, count, last) in [
            ("capacity=0..500:50", 11, 500.0),
            ("threshold=0..1:0.1", 11, 1.0),
            ("capacity=7..7:1", 1, 7.0),
            ("bandwidth=1..10:4", 3, 9.0),
        ] {
            let values = text.parse::<Sweep>().unwrap().values();
            assert_eq!(values.len(), count, "{text}");
            assert!((values[count - 1] - last).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn bad_sweeps_are_refused() {
        for (text, why) in [
            ("capacity=500..0:50", "empty"),
            ("capacity=0..500:0", "empty"),
            ("capacity=0..500:-5", "empty"),
            ("capacity=0..500", "not a sweep"),
            ("capacity", "not a sweep"),
            ("capacity=a..b:c", "not a sweep"),
            ("moon=0..5:1", "cannot sweep"),
            ("threshold=0..2:0.5", "leaves its range"),
            ("bandwidth=0..5:1", "leaves its range"),
            ("capacity=0..1:0.5", "whole units"),
            ("capacity=0..1000000000:1", "more than"),
        ] {
            let error = text.parse::<Sweep>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
