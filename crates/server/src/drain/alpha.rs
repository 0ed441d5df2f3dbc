//! How many writers each target gets: told, measured before, or found out while writing.

use forebay_model::{Bytes, Error, ErrorKind, Result, ServerId};
use forebay_policy::Tick;
use forebay_policy::arbiter::Climber;
use forebay_policy::drain::TargetId;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// What is found out begins here: what most targets like.
const START: u32 = 2;
/// Most writers at a target that are tried.
const MOST: u32 = 16;
/// A window has so many writes for each writer, and so many at least: a write more or less is not to count.
const WRITES: u32 = 32;
const LEAST: u32 = 128;
/// A window of several servers is so long, and what ends so soon after a change does not count.
const LONG: Tick = Tick(1_000_000_000);
const SETTLES: Tick = Tick(200_000_000);
/// After this part of a window a trial is looked at.
const EARLY: f64 = 0.25;

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

/// How long a window is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// So many writes: whoever measures does all of them.
    Writes,
    /// So long: others say now and then how much they have written.
    Time,
}

/// Finds out how many writers each target likes.
pub(super) struct Learner {
    pace: Pace,
    windows: Vec<Window>,
    /// What other servers had written when they last said so.
    said: HashMap<(ServerId, TargetId), u64>,
}

/// What is measured at one target.
struct Window {
    climber: Climber,
    begin: Tick,
    bytes: u64,
    writes: u32,
    /// What was begun before the number of writers changed is not to count: so many writes, and whatever ends before this.
    skip: (u32, Tick),
    /// Whether a trial was looked at, before its end.
    looked: bool,
}

impl Window {
    fn new() -> Window {
        let climber = Climber::new(START, MOST);
        // What came before the first write is not to count.
        Window { climber, begin: Tick(0), bytes: 0, writes: 0, skip: (1, Tick(0)), looked: false }
    }

    fn begin(&mut self, now: Tick) {
        (self.begin, self.bytes, self.writes, self.looked) = (now, 0, 0, false);
    }

    /// What part of the window has passed.
    fn passed(&self, pace: Pace, now: Tick) -> f64 {
        match pace {
            Pace::Writes => {
                f64::from(self.writes) / f64::from(LEAST.max(self.climber.alpha().saturating_mul(WRITES)))
            }
            Pace::Time => now.since(self.begin).secs() / LONG.secs(),
        }
    }

    /// Whether this ended before the number of writers that is measured was at work.
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
        Learner { pace, windows, said: HashMap::new() }
    }

    /// Another server has written so much to a target since it began.
    pub(super) fn heard(
        &mut self,
        now: Tick,
        (server, target): (ServerId, TargetId),
        written: u64,
        full: bool,
    ) -> Option<u32> {
        self.windows.get(target.0 as usize)?;
        let before = self.said.insert((server, target), written);
        // One that says less than before has begun anew; of one that says it for the first time nobody knows since when.
        let bytes = before.map_or(0, |before| written.checked_sub(before).unwrap_or(written));
        self.wrote(now, target, bytes, full)
    }

    /// So much was written to a target, which had as many writers as it should, or had not. Says how many are to write there
    /// from now on, where that is another number than before.
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
        let looks = passed >= EARLY && !window.looked;
        window.looked |= looks;
        if passed < 1.0 && !(looks && window.climber.is_hopeless(rate)) {
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
            Pace::Time => (0, now.after(SETTLES)),
        };
        Some(next)
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
            let (mut learner, mut alpha, mut now) = (Learner::new(1, Pace::Writes), START, Tick(0));
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

    /// The same of four servers, whose writers say every 50 ms what they have done.
    #[test]
    fn the_best_number_of_writers_is_found_from_what_others_say() {
        let curve = Curve::new(&[(1, Bytes(400_000)), (4, Bytes(1_000_000)), (16, Bytes(500_000))]).unwrap();
        let (mut learner, mut alpha, target) = (Learner::new(1, Pace::Time), START, TargetId(0));
        let mut written = [0_u64; 4];
        for beat in 1..4000_u64 {
            let now = Tick::ms(50 * beat);
            for (server, sum) in (1..).map(ServerId).zip(&mut written) {
                *sum += (curve.rate(alpha) * 0.05 / 4.0) as u64;
                alpha = learner.heard(now, (server, target), *sum, true).unwrap_or(alpha);
            }
        }
        let found = learner.windows[0].climber.alpha();
        assert!(curve.rate(found) > 0.95 * curve.rate(4), "{found} instead of 4");
        let mut fresh = Learner::new(1, Pace::Time);
        for beat in 1..400_u64 {
            assert_eq!(
                fresh.heard(Tick::ms(50 * beat), (ServerId(1), target), beat, false),
                None,
                "never full"
            );
        }
    }
}
