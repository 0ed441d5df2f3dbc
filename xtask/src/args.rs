//! The command line, as values. Small enough to need no library, which keeps `cargo xtask` quick to build.

use crate::verify;

pub(crate) const USAGE: &str = "\
usage: cargo xtask test   [--seed S] [--no-install] [NAME]... [-- RUNNER-ARGS]
       cargo xtask soak   [--minutes N] [--rounds N] [--seconds N] [--seed S] [NAME]...
       cargo xtask verify [CHECK]...
       cargo xtask bench  io [--quick] [--json] [--out DIR] [data] [names] [writers] [programs] [servers]
                          [beyond] [deployments] [calls]
       cargo xtask book   [--reference]

test    install what is missing, then run the whole suite with a fixed seed (NAME: only tests whose name contains it)
soak    run the random drivers with fresh seeds for N minutes (default 10), each for --seconds (default 10) in a round; --rounds 1 --seed S replays one seed
verify  format, lints, documentation, dependencies and house rules; read-only (CHECK: only these checks)
bench   measure reads, writes, names and unmodified programs side by side with sockets, tmpfs, the page cache and a bare mount (or only some of these); as forebay bench does
book    write the generated reference, and build the book in target/book with mdbook, which is installed if it is missing (--reference: write the reference alone)";

/// How long `soak` runs by default.
const SOAK_MINUTES: u64 = 10;
/// How long each driver goes on in one round by default.
pub(crate) const ROUND_SECONDS: u64 = 10;

#[derive(Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Test(Test),
    Soak(Soak),
    Verify(Vec<String>),
    Bench(Vec<String>),
    /// Whether the pages are built too.
    Book {
        html: bool,
    },
}

#[derive(Debug, PartialEq, Default)]
pub(crate) struct Test {
    pub(crate) seed: Option<u64>,
    pub(crate) no_install: bool,
    pub(crate) names: Vec<String>,
    pub(crate) runner_args: Vec<String>,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Soak {
    pub(crate) minutes: u64,
    pub(crate) rounds: Option<u64>,
    /// For each driver in one round.
    pub(crate) seconds: u64,
    pub(crate) seed: Option<u64>,
    pub(crate) names: Vec<String>,
}

pub(crate) fn parse(words: &[String]) -> Result<Command, String> {
    let Some((chore, rest)) = words.split_first() else {
        return Err("which chore?".into());
    };
    if rest.iter().take_while(|word| *word != "--").any(|word| is_help(word)) {
        return Ok(Command::Help);
    }
    match chore.as_str() {
        "test" => test(rest).map(Command::Test),
        "soak" => soak(rest).map(Command::Soak),
        "verify" => checks(rest).map(Command::Verify),
        "bench" => Ok(Command::Bench(rest.to_vec())),
        "book" => match rest {
            [] => Ok(Command::Book { html: true }),
            [word] if word == "--reference" => Ok(Command::Book { html: false }),
            _ => Err(format!("book takes --reference or nothing, not {rest:?}")),
        },
        "help" => Ok(Command::Help),
        word if is_help(word) => Ok(Command::Help),
        other => Err(format!("there is no chore {other:?}")),
    }
}

fn is_help(word: &str) -> bool {
    matches!(word, "-h" | "--help")
}

fn test(words: &[String]) -> Result<Test, String> {
    let mut options = Test::default();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--" => {
                options.runner_args = words.cloned().collect();
                break;
            }
            "--seed" => options.seed = Some(number(word, words.next())?),
            "--no-install" => options.no_install = true,
            name => options.names.push(plain(name)?),
        }
    }
    Ok(options)
}

fn soak(words: &[String]) -> Result<Soak, String> {
    let mut options =
        Soak { minutes: SOAK_MINUTES, rounds: None, seconds: ROUND_SECONDS, seed: None, names: Vec::new() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--minutes" => options.minutes = number(word, words.next())?,
            "--rounds" => options.rounds = Some(number(word, words.next())?),
            "--seconds" => options.seconds = number(word, words.next())?,
            "--seed" => options.seed = Some(number(word, words.next())?),
            name => options.names.push(plain(name)?),
        }
    }
    Ok(options)
}

fn checks(words: &[String]) -> Result<Vec<String>, String> {
    let known = verify::names();
    for word in words {
        if !known.contains(&word.as_str()) {
            return Err(format!("there is no check {word:?}; the checks are {}", known.join(", ")));
        }
    }
    Ok(words.to_vec())
}

fn plain(word: &str) -> Result<String, String> {
    if word.starts_with('-') { Err(format!("unknown option {word}")) } else { Ok(word.to_owned()) }
}

/// Decimal, or hexadecimal with `0x`.
pub(crate) fn number(option: &str, value: Option<&String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{option} needs a number"))?;
    let parsed = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => value.parse(),
    };
    parsed.map_err(|_| format!("{option} needs a whole number, not {value:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<Command, &str>) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        match (parse(&words), expected) {
            (Ok(got), Ok(want)) => assert_eq!(got, want, "{line}"),
            (Err(got), Err(want)) => assert!(got.contains(want), "{line}: {got}"),
            (got, want) => panic!("{line}: got {got:?}, expected {want:?}"),
        }
    }

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn command_lines() {
        check("test", Ok(Command::Test(Test::default())));
        check(
            "test --seed 0x10 store --no-install -- -p forebay-store --help",
            Ok(Command::Test(Test {
                seed: Some(16),
                no_install: true,
                names: words("store"),
                runner_args: words("-p forebay-store --help"),
            })),
        );
        check(
            "soak --minutes 3 --seed 7 --rounds 1 --seconds 60 crash",
            Ok(Command::Soak(Soak {
                minutes: 3,
                rounds: Some(1),
                seconds: 60,
                seed: Some(7),
                names: words("crash"),
            })),
        );
        check(
            "soak",
            Ok(Command::Soak(Soak {
                minutes: SOAK_MINUTES,
                rounds: None,
                seconds: ROUND_SECONDS,
                seed: None,
                names: vec![],
            })),
        );
        check("verify fmt size", Ok(Command::Verify(words("fmt size"))));
        check("bench io --quick", Ok(Command::Bench(words("io --quick"))));
        check("book", Ok(Command::Book { html: true }));
        check("book --reference", Ok(Command::Book { html: false }));
        check("book --pdf", Err("book takes"));
        check("verify --help", Ok(Command::Help));
        check("", Err("which chore"));
        check("tets", Err("no chore"));
        check("verify nonsense", Err("no check \"nonsense\""));
        check("soak --minutes", Err("needs a number"));
        check("soak --minutes soon", Err("whole number"));
        check("test --frobnicate", Err("unknown option"));
    }
}
