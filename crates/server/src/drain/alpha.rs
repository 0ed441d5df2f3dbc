//! How many writers each target gets (α): fixed, calibrated before, or learnt while writing.

use forebay_model::{Bytes, Error, ErrorKind, Result, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::Climber;
use forebay_policy::drain::TargetId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The first value that is tried when α is learnt: it suits most targets.
const START: u32 = 2;
/// Most writers at a target that are tried.
const MAX_ALPHA: u32 = 16;
/// Writes in a window for each writer, and the minimum: one write more or less should not matter.
const WRITES_PER_WRITER: u32 = 32;
const MIN_WRITES: u32 = 128;
/// Length of a window with several servers, and the time after a change during which writes do not count.
const WINDOW_TIME: Tick = Tick(1_000_000_000);
const STEADY_AFTER: Tick = Tick(200_000_000);
/// A trial is checked for the first time after this part of a window.
const EARLY: f64 = 0.25;

/// How many servers write to one target at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Alpha {
    /// This number.
    Fixed(u32),
    /// Learnt while writing.
    Learnt,
    /// The values that `forebay calibrate --json` has written to this file.
    Measured(PathBuf),
}

impl Alpha {
    /// The initial number of writers of each target.
    pub(super) fn of(&self, targets: &[String]) -> Result<Vec<u32>> {
        match self {
            Alpha::Fixed(count) => Ok(vec![*count; targets.len()]),
            Alpha::Learnt => Ok(vec![START; targets.len()]),
            Alpha::Measured(path) => measured(path, targets),
        }
    }

    /// Most writers at any target.
    pub(super) fn most(&self, first: &[u32]) -> u32 {
        match self {
            Alpha::Learnt => MAX_ALPHA,
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
            NumberOrText::Text(word) => {
                Err(de::Error::custom(format!("\"{word}\" is not a valid alpha: {help}")))
            }
        }
    }
}

/// The output of `forebay calibrate --json`.
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
        .map_err(|error| invalid(format!("is not the output of calibrate ({error})")))?;
    let alpha = |name: &String| match found.targets.iter().find(|found| found.name == *name) {
        Some(found) if found.alpha > 0 => Ok(found.alpha),
        _ => Err(invalid(format!("has no entry for target {name}"))),
    };
    targets.iter().map(alpha).collect()
}

/// What determines the length of a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// A number of writes: this server does all of them.
    Writes,
    /// A time: other servers report now and then how much they have written.
    Time,
}

/// Learns how many writers give each target its best rate.
pub(super) struct Learner {
    pace: Pace,
    windows: Vec<Window>,
    /// Bytes that other servers had written at their last report.
    reported: HashMap<(ServerId, TargetId), u64>,
}

/// The measurement at one target.
struct Window {
    climber: Climber,
    begin: Tick,
    bytes: u64,
    writes: u32,
    /// Writes that began before the number of writers changed do not count: this many, and all that end before this
    /// time.
    skip: (u32, Tick),
    /// Whether the trial was checked before its end.
    checked: bool,
}

impl Window {
    fn new() -> Window {
        let climber = Climber::new(START, MAX_ALPHA);
        // The time before the first write does not count.
        Window { climber, begin: Tick(0), bytes: 0, writes: 0, skip: (1, Tick(0)), checked: false }
    }

    fn begin(&mut self, now: Tick) {
        (self.begin, self.bytes, self.writes, self.checked) = (now, 0, 0, false);
    }

    /// The part of the window that has passed.
    fn passed(&self, pace: Pace, now: Tick) -> f64 {
        match pace {
            Pace::Writes => {
                f64::from(self.writes)
                    / f64::from(MIN_WRITES.max(self.climber.alpha().saturating_mul(WRITES_PER_WRITER)))
            }
            Pace::Time => now.since(self.begin).secs() / WINDOW_TIME.secs(),
        }
    }

    /// Whether this write began before the number of writers was changed.
    fn skips(&mut self, now: Tick) -> bool {
        let (writes, until) = &mut self.skip;
        let skips = *writes > 0 || now < *until;
        *writes = writes.saturating_sub(1);
        if skips {
            self.begin(now);
        }
        skips
    }
}

impl Learner {
    pub(super) fn new(targets: usize, pace: Pace) -> Learner {
        let windows = std::iter::repeat_with(Window::new).take(targets).collect();
        Learner { pace, windows, reported: HashMap::new() }
    }

    /// Records how many bytes another server has written to a target since it started.
    pub(super) fn remote_wrote(
        &mut self,
        now: Tick,
        (server, target): (ServerId, TargetId),
        written: u64,
        full: bool,
    ) -> Option<u32> {
        self.windows.get(target.0 as usize)?;
        let before = self.reported.insert((server, target), written);
        // A server that reports less than before has restarted. The first report of a server covers an unknown time.
        let bytes = before.map_or(0, |before| written.checked_sub(before).unwrap_or(written));
        self.wrote(now, target, bytes, full)
    }

    /// Records a write; `full` tells whether the target had all its writers. Returns the new number of writers if it
    /// changes.
    pub(super) fn wrote(&mut self, now: Tick, target: TargetId, bytes: u64, full: bool) -> Option<u32> {
        let window = self.windows.get_mut(target.0 as usize)?;
        if window.skips(now) {
            return None;
        }
        if !full {
            window.begin(now);
            return None;
        }
        window.bytes += bytes;
        window.writes = window.writes.saturating_add(1);
        let passed = window.passed(self.pace, now);
        let rate = Bytes((window.bytes as f64 / now.since(window.begin).secs().max(1e-9)) as u64);
        let checks = passed >= EARLY && !window.checked;
        window.checked |= checks;
        if passed < 1.0 && !(checks && window.climber.is_hopeless(rate)) {
            return None;
        }
        let alpha = window.climber.alpha();
        let next = window.climber.window(rate);
        window.begin(now);
        if next == alpha {
            return None;
        }
        window.skip = match self.pace {
            Pace::Writes => (2 * alpha.max(next), Tick(0)),
            Pace::Time => (0, now.after(STEADY_AFTER)),
        };
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_policy::device::Curve;

    #[test]
    fn alpha_is_a_number_a_word_or_a_file() {
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
    fn calibrated_alpha_is_found_by_target_name() {
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
    fn learner_finds_the_best_number_of_writers() {
        for (at, best) in [(2, 2), (6, 6), (1, 1)] {
            let points =
                if at == 1 { vec![(1, 1000), (16, 200)] } else { vec![(1, 400), (at, 1000), (16, 500)] };
            let points: Vec<(u32, Bytes)> = points.into_iter().map(|(n, rate)| (n, Bytes(rate))).collect();
            let curve = Curve::new(&points).unwrap();
            let (mut learner, mut alpha, mut now) = (Learner::new(1, Pace::Writes), START, Tick(0));
            let target = TargetId(0);
            // Writers that begin together end together: as many writes of 10 bytes as there are writers.
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

    /// The same with four servers, which report every 50 ms how much they have written.
    #[test]
    fn learner_finds_the_best_number_of_writers_from_reports() {
        let curve = Curve::new(&[(1, Bytes(400_000)), (4, Bytes(1_000_000)), (16, Bytes(500_000))]).unwrap();
        let (mut learner, mut alpha, target) = (Learner::new(1, Pace::Time), START, TargetId(0));
        let mut written = [0_u64; 4];
        for beat in 1..4000_u64 {
            let now = Tick::ms(50 * beat);
            for (server, sum) in (1..).map(ServerId).zip(&mut written) {
                *sum += (curve.rate(alpha) * 0.05 / 4.0) as u64;
                alpha = learner.remote_wrote(now, (server, target), *sum, true).unwrap_or(alpha);
            }
        }
        let found = learner.windows[0].climber.alpha();
        assert!(curve.rate(found) > 0.95 * curve.rate(4), "{found} instead of 4");
        let mut fresh = Learner::new(1, Pace::Time);
        for beat in 1..400_u64 {
            assert_eq!(
                fresh.remote_wrote(Tick::ms(50 * beat), (ServerId(1), target), beat, false),
                None,
                "never full"
            );
        }
    }
}
