//! Parsing of policies, with helpful errors.

use super::policy::{Level, Policy};
use std::fmt;
use std::ops::Range;

/// Longest policy that is accepted; the longest canonical one is shorter.
const MAX_POLICY: usize = 128;

/// Why a line is not a policy: the cause, the position of the wrong word, and the nearest correct one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyError {
    text: String,
    /// Wrong characters of the text; one past the end if something is missing there.
    at: Range<usize>,
    why: String,
    instead: Option<String>,
}

impl PolicyError {
    /// The characters of the line that are wrong.
    #[must_use]
    pub fn at(&self) -> Range<usize> {
        self.at.clone()
    }

    /// What to write instead, if there is a good guess.
    #[must_use]
    pub fn instead(&self) -> Option<&str> {
        self.instead.as_deref()
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: String =
            self.text.chars().take(MAX_POLICY).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
        writeln!(f, "{}", self.why)?;
        writeln!(f, "  {shown}")?;
        let carets = "^".repeat(self.at.len().clamp(1, MAX_POLICY));
        write!(f, "  {:>1$}{carets}", "", self.at.start.min(MAX_POLICY))?;
        match &self.instead {
            Some(word) => write!(f, " did you mean \"{word}\"?"),
            None => {
                write!(f, " such as: fifo, job-fair, user-then-size-fair, group-then-user-then-size-fair")
            }
        }
    }
}

impl std::error::Error for PolicyError {}

/// One word of the line and the characters it covers.
struct Word<'a> {
    text: &'a str,
    at: Range<usize>,
}

pub(super) fn parse(line: &str) -> Result<Policy, PolicyError> {
    let line = line.trim();
    let fail = |at: Range<usize>, why: &str, instead: Option<&str>| PolicyError {
        text: line.chars().take(MAX_POLICY).collect(),
        at,
        why: why.to_owned(),
        instead: instead.map(str::to_owned),
    };
    if line.len() > MAX_POLICY {
        return Err(fail(0..1, "this is too long for a policy", None));
    }
    let words = words(line);
    let end = line.chars().count();
    if let [only] = words.as_slice() {
        return match only.text {
            "fifo" => Ok(Policy::FIFO),
            "" => Err(fail(0..1, "the policy is missing", None)),
            word if Level::ALL.iter().any(|level| level.word() == word) => {
                let instead = format!("{word}-fair");
                Err(fail(end..end + 1, "a policy other than fifo ends in -fair", Some(&instead)))
            }
            word => {
                let why = format!("\"{}\" is not a policy", printable(word));
                Err(fail(only.at.clone(), &why, nearest(word, &POLICIES)))
            }
        };
    }
    let mut levels: Vec<Level> = Vec::new();
    let (last, front) = words.split_last().expect("a line has a word");
    let mut joint = true;
    for word in front {
        if word.text == "then" && !joint {
            joint = true;
            continue;
        }
        let level = level(word, &levels).map_err(|(why, instead)| fail(word.at.clone(), &why, instead))?;
        levels.push(level);
        joint = false;
    }
    if last.text != "fair" {
        let missing = Level::ALL.iter().any(|level| level.word() == last.text);
        return Err(match missing {
            true => fail(end..end + 1, "a policy other than fifo ends in -fair", Some("-fair")),
            false => fail(last.at.clone(), "a policy other than fifo ends in -fair", Some("fair")),
        });
    }
    if joint {
        return Err(fail(last.at.clone(), "a level is missing before this word", None));
    }
    Ok(Policy::new(levels))
}

/// The level that a word names, below the levels before it; or the error, and a better word.
fn level(word: &Word<'_>, above: &[Level]) -> Result<Level, (String, Option<&'static str>)> {
    let text = printable(word.text);
    let Some(level) = Level::ALL.into_iter().find(|level| level.word() == word.text) else {
        return Err(match word.text {
            "fair" => ("\"fair\" comes once, at the end".to_owned(), None),
            "fifo" => ("\"fifo\" stands alone: it shares nothing".to_owned(), None),
            "then" => ("\"then\" stands between two levels".to_owned(), None),
            _ => (format!("\"{text}\" is not a sharing level"), nearest(word.text, &LEVELS)),
        });
    };
    if above.contains(&level) {
        return Err((format!("\"{text}\" occurs twice"), None));
    }
    match above.last() {
        Some(leaf) if leaf.is_leaf() => {
            Err((format!("\"{}\" shares between jobs: nothing can come below it", leaf.word()), None))
        }
        _ => Ok(level),
    }
}

const LEVELS: [&str; 6] = ["group", "user", "job", "size", "priority", "then"];
const POLICIES: [&str; 6] = ["fifo", "job-fair", "size-fair", "user-fair", "priority-fair", "group-fair"];

/// The words between hyphens, with their positions in characters.
fn words(line: &str) -> Vec<Word<'_>> {
    let mut start = 0;
    line.split('-')
        .map(|text| {
            let at = start..start + text.chars().count().max(1);
            start += text.chars().count() + 1;
            Word { text, at }
        })
        .collect()
}

fn printable(word: &str) -> String {
    word.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// The candidate with the smallest edit distance, if it is close enough.
fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let word = word.to_lowercase();
    let (candidate, edits) = candidates
        .iter()
        .map(|candidate| (*candidate, edits(&word, candidate)))
        .min_by_key(|(_, edits)| *edits)?;
    (edits <= 1 + candidate.len() / 3).then_some(candidate)
}

/// Edit distance: insertions, deletions and substitutions.
fn edits(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_policy_names_parse_and_print_canonically() {
        for (line, canonical) in [
            ("fifo", "fifo"),
            (" job-fair ", "job-fair"),
            ("size-fair", "size-fair"),
            ("user-fair", "user-fair"),
            ("priority-fair", "priority-fair"),
            ("group-fair", "group-fair"),
            ("user-then-job-fair", "user-then-job-fair"),
            ("user-size-fair", "user-then-size-fair"),
            ("group-then-size-fair", "group-then-size-fair"),
            ("group-then-user-fair", "group-then-user-fair"),
            ("group-user-size-fair", "group-then-user-then-size-fair"),
            ("group-user-then-size-fair", "group-then-user-then-size-fair"),
            ("group-then-user-size-fair", "group-then-user-then-size-fair"),
            ("group-then-user-then-size-fair", "group-then-user-then-size-fair"),
            ("user-then-group-then-priority-fair", "user-then-group-then-priority-fair"),
        ] {
            let policy: Policy = line.parse().unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(policy.to_string(), canonical, "{line}");
            assert_eq!(canonical.parse(), Ok(policy), "{line}");
        }
    }

    #[test]
    fn parse_error_points_at_the_wrong_word() {
        for (line, carets, says) in [
            ("group-then-usr-fair", "           ^^^", "did you mean \"user\"?"),
            ("groop-fair", "^^^^^", "did you mean \"group\"?"),
            ("group-than-user-fair", "      ^^^^", "did you mean \"then\"?"),
            ("user-size-fare", "          ^^^^", "did you mean \"fair\"?"),
            ("user-then-size", "              ^", "ends in -fair"),
            ("size", "    ^", "did you mean \"size-fair\"?"),
            ("fiffo", "^^^^^", "did you mean \"fifo\"?"),
            ("jobfair", "^^^^^^^", "did you mean \"job-fair\"?"),
            ("user-user-fair", "     ^^^^", "occurs twice"),
            ("size-user-fair", "     ^^^^", "nothing can come below it"),
            ("job-fair-fair", "    ^^^^", "comes once"),
            ("fifo-fair", "^^^^", "stands alone"),
            ("then-user-fair", "^^^^", "between two levels"),
            ("user-then-then-job-fair", "          ^^^^", "between two levels"),
            ("user-then-fair", "          ^^^^", "missing before this word"),
            ("-fair", "^", "is not a sharing level"),
            ("user--fair", "     ^", "is not a sharing level"),
            ("", "^", "the policy is missing"),
            ("User-fair", "^^^^", "did you mean \"user\"?"),
            ("gruppe-ünd-fair", "^^^^^^", "not a sharing level"),
            ("user-ünd-fair", "     ^^^", "not a sharing level"),
            ("user-\u{7}-fair", "     ^", "not a sharing level"),
        ] {
            let error = line.parse::<Policy>().expect_err(line).to_string();
            let lines: Vec<&str> = error.lines().collect();
            assert_eq!(lines.len(), 3, "{error}");
            let pointer = &lines[2][2..];
            assert!(
                pointer == carets || pointer.starts_with(&format!("{carets} ")),
                "{line}: wanted {carets:?}\n{error}"
            );
            assert!(error.contains(says), "{line}: wanted {says:?}\n{error}");
        }
        let long = "user-then-".repeat(1_000);
        assert!(long.parse::<Policy>().unwrap_err().to_string().len() < 500);
    }

    #[test]
    fn policy_serializes_as_a_string() {
        use serde::Deserialize;
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, StrDeserializer};
        let from: StrDeserializer<'_, Error> = "user-size-fair".into_deserializer();
        let policy = Policy::deserialize(from).unwrap();
        assert_eq!(String::from(policy), "user-then-size-fair");
        let from: StrDeserializer<'_, Error> = "usr-fair".into_deserializer();
        assert!(Policy::deserialize(from).unwrap_err().to_string().contains("did you mean"));
    }
}
