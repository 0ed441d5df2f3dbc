//! How many writers each target gets: told, measured before, or found out while writing.

use forebay_model::{Bytes, Error, ErrorKind, Result};
use forebay_policy::Tick;
use forebay_policy::arbiter::Climber;
use forebay_policy::drain::TargetId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::path::{Path, PathBuf};

/// What is found out begins here: what most targets like.
const START: u32 = 2;
/// Most writers at a target that are tried.
const MOST: u32 = 16;
/// A window has so many writes for each writer, and so many at least: a write more or less is not to count.
const WRITES: u32 = 32;
const LEAST: u32 = 128;
/// Servers that write to one target at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alpha {
    /// So many.
    Fixed(u32),
    /// As many as are found out to be best.
    Learnt,
    /// As many as `forebay calibrate --json` has written to this file.
    Measured(PathBuf),
}

impl Alpha {
    /// How many each of these targets gets at first.
    pub(super) fn of(&self, targets: &[String]) -> Result<Vec<u32>> {
        match self {
            Alpha::Fixed(count) => Ok(vec![*count; targets.len()]),
            Alpha::Learnt => Ok(vec![START; targets.len()]),
            Alpha::Measured(path) => measured(path, targets),
        }
    }

    /// Most writers at a target.
    pub(super) fn most(&self, first: &[u32]) -> u32 {
        match self {
            Alpha::Learnt => MOST,
            _ => first.iter().copied().max().unwrap_or(1),
        }
    }
}

impl Serialize for Alpha {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match self {
            Alpha::Fixed(count) => out.serialize_u32(*count),
            Alpha::Learnt => out.serialize_str("learnt"),
            Alpha::Measured(path) => path.serialize(out),
        }
    }
}

impl<'de> Deserialize<'de> for Alpha {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Alpha, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NumberOrText {
            Number(u32),
            Text(String),
        }
        let help = "write a number, \"learnt\", or a file that calibrate --json has written";
        match NumberOrText::deserialize(input).map_err(|_| de::Error::custom(help))? {
            NumberOrText::Number(count) => Ok(Alpha::Fixed(count)),
            NumberOrText::Text(word) if word == "learnt" => Ok(Alpha::Learnt),
            NumberOrText::Text(path) if path.contains(['/', '.']) => Ok(Alpha::Measured(path.into())),
            NumberOrText::Text(word) => Err(de::Error::custom(format!("\"{word}\" is no α: {help}"))),
        }
    }
}

/// What `forebay calibrate` found.
#[derive(Deserialize)]
struct Calibrated {
    targets: Vec<Found>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    alpha: u32,
}

fn measured(path: &Path, targets: &[String]) -> Result<Vec<u32>> {
    let invalid = |why: String| {
        let text = format!("drain.alpha: {} {why}: run forebay calibrate --json again", path.display());
        Error::new(ErrorKind::Invalid, text)
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(format!("cannot be read ({error})")))?;
    let found: Calibrated = serde_json::from_str(&text)
        .map_err(|error| invalid(format!("is not what calibrate writes ({error})")))?;
    let alpha = |name: &String| match found.targets.iter().find(|found| found.name == *name) {
        Some(found) if found.alpha > 0 => Ok(found.alpha),
        _ => Err(invalid(format!("says nothing of target {name}"))),
    };
    targets.iter().map(alpha).collect()
}

/// Finds out how many writers each target likes.
pub(super) struct Learner {
    windows: Vec<Window>,
}

/// What is measured at one target.
struct Window {
    climber: Climber,
    begin: Tick,
    bytes: u64,
    writes: u32,
    /// Whether there was nothing to write at some time: then it says nothing of the target.
    short: bool,
}

impl Window {
    fn begin(&mut self, now: Tick) {
        (self.begin, self.bytes, self.writes, self.short) = (now, 0, 0, false);
    }
}

impl Learner {
    pub(super) fn new(targets: usize) -> Learner {
        let climber = || Climber::new(START, MOST);
        // What came before the first write is not to count.
        let window = || Window { climber: climber(), begin: Tick(0), bytes: 0, writes: 0, short: true };
        Learner { windows: std::iter::repeat_with(window).take(targets).collect() }
    }

    /// A writer has written so much to a target, for which more waits or does not. Says how many are to write there from
    /// now on, where that is another number than before.
    pub(super) fn wrote(&mut self, now: Tick, target: TargetId, bytes: u64, waits: bool) -> Option<u32> {
        let window = self.windows.get_mut(target.0 as usize)?;
        window.bytes += bytes;
        window.writes += 1;
        window.short |= !waits;
        let alpha = window.climber.alpha();
        if window.writes < LEAST.max(alpha * WRITES) {
            return None;
        }
        let rate = window.bytes as f64 / now.since(window.begin).secs().max(1e-9);
        let next = if window.short { alpha } else { window.climber.window(Bytes(rate as u64)) };
        window.begin(now);
        (next != alpha).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::device::Curve;

    #[test]
    fn a_setting_is_a_number_a_word_or_a_file() {
        #[derive(Deserialize, Serialize)]
        struct Table {
            alpha: Alpha,
        }
        for (text, alpha) in [
            ("alpha = 3", Alpha::Fixed(3)),
            ("alpha = 'learnt'", Alpha::Learnt),
            ("alpha = 'targets.json'", Alpha::Measured("targets.json".into())),
        ] {
            let table: Table = toml::from_str(text).unwrap();
            assert_eq!(table.alpha, alpha);
            let again: Table = serde_json::from_str(&serde_json::to_string(&table).unwrap()).unwrap();
            assert_eq!(again.alpha, alpha);
        }
        for bad in ["alpha = 'much'", "alpha = -1", "alpha = true"] {
            assert!(toml::from_str::<Table>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_was_measured_is_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.json");
        let names = ["a", "b"].map(str::to_owned);
        let alpha = Alpha::Measured(path.clone());
        assert!(alpha.of(&names).unwrap_err().to_string().contains("calibrate"));
        std::fs::write(
            &path,
            r#"{"backend":"x","targets":[{"name":"b","alpha":4,"rates":[]},{"name":"a","alpha":1}]}"#,
        )
        .unwrap();
        assert_eq!(alpha.of(&names).unwrap(), [1, 4]);
        let more = alpha.of(&["a", "c"].map(str::to_owned)).unwrap_err();
        assert!(more.to_string().contains("target c"), "{more}");
    }

    /// Writers of equal writes at a target with a curve, in virtual time: the best number is found and kept.
    #[test]
    fn the_best_number_of_writers_is_found() {
        for (at, best) in [(2, 2), (6, 6), (1, 1)] {
            let points =
                if at == 1 { vec![(1, 1000), (16, 200)] } else { vec![(1, 400), (at, 1000), (16, 500)] };
            let points: Vec<(u32, Bytes)> = points.into_iter().map(|(n, rate)| (n, Bytes(rate))).collect();
            let curve = Curve::new(&points).unwrap();
            let (mut learner, mut alpha, mut now) = (Learner::new(1), START, Tick(0));
            let target = TargetId(0);
            // Whoever begins together ends together: as many writes of 10 bytes as there are writers.
            for _ in 0..4000 {
                let writers = alpha;
                let took = f64::from(writers) * 10.0 / curve.rate(writers);
                now = now.after(Tick((took * 1e9) as u64));
                for _ in 0..writers {
                    alpha = learner.wrote(now, target, 10, true).unwrap_or(alpha);
                }
            }
            let found = learner.windows[0].climber.alpha();
            assert!(curve.rate(found) > 0.95 * curve.rate(best), "{found} instead of {best}");
        }
    }
}
