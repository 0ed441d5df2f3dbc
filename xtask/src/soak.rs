//! `cargo xtask soak`: the random drivers, again and again, with fresh seeds.
//!
//! A round is one seed. Every round gives each driver the same number of seconds, so that the command printed for a
//! failing seed does the same work again.

use crate::args::{ROUND_SECONDS, Soak};
use crate::runner::{Pick, Runner};
use crate::{embedded, seed, shell};
use std::time::{Duration, Instant};

pub(crate) fn run(options: &Soak) -> Result<(), String> {
    let runner = Runner::find();
    embedded::build()?;
    shell::run(&mut runner.build())?;
    let start = Instant::now();
    let end = start + Duration::from_secs(options.minutes.saturating_mul(60));
    let go_on = |done| goes_on(done, options.rounds, Instant::now() < end);
    let rounds = soak(options, go_on, |seed| {
        let mut tests = runner.run(Pick::Random, &options.names, &[]);
        tests.env(seed::SEED, seed.to_string()).env(seed::PROPTEST_SEED, seed.to_string());
        shell::run(tests.env(seed::SOAK_SECONDS, options.seconds.to_string()))
    })?;
    println!("soaked {} with {rounds} seeds: nothing found", shell::clock(start.elapsed()));
    Ok(())
}

/// A given number of rounds, or as many as fit into the time; at least one either way.
fn goes_on(done: u64, rounds: Option<u64>, time_left: bool) -> bool {
    done == 0 || rounds.map_or(time_left, |rounds| done < rounds)
}

/// Plays one round per seed until told to stop, and returns how many; a failure names the command that replays it.
fn soak(
    options: &Soak,
    go_on: impl Fn(u64) -> bool,
    mut round: impl FnMut(u64) -> Result<(), String>,
) -> Result<u64, String> {
    let mut done = 0;
    for seed in seed::sequence(options.seed.unwrap_or_else(seed::fresh)) {
        if !go_on(done) {
            break;
        }
        done += 1;
        println!("round {done}: {}={seed}", seed::SEED);
        round(seed).map_err(|why| {
            format!("{why}\nseed {seed} failed; replay it with\n  {}", replay(seed, options))
        })?;
    }
    Ok(done)
}

fn replay(seed: u64, options: &Soak) -> String {
    let mut line = format!("cargo xtask soak --rounds 1 --seed {seed}");
    if options.seconds != ROUND_SECONDS {
        line.push_str(&format!(" --seconds {}", options.seconds));
    }
    for name in &options.names {
        line.push_str(&format!(" {name}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{self, Command};

    fn options(seed: u64, names: &[&str]) -> Soak {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Soak { minutes: 1, rounds: None, seconds: ROUND_SECONDS, seed: Some(seed), names }
    }

    #[test]
    fn a_soak_ends_by_rounds_or_by_time() {
        assert!(goes_on(0, None, false), "at least one");
        assert!(goes_on(5, None, true) && !goes_on(5, None, false));
        assert!(goes_on(1, Some(2), false) && !goes_on(2, Some(2), true));
    }

    #[test]
    fn every_round_has_its_own_seed() {
        let mut seeds = Vec::new();
        let done = soak(
            &options(3, &[]),
            |done| done < 4,
            |seed| {
                seeds.push(seed);
                Ok(())
            },
        );
        assert_eq!(done, Ok(4));
        assert_eq!(seeds, seed::sequence(3).take(4).collect::<Vec<_>>());
    }

    #[test]
    fn a_failure_stops_the_soak_and_names_the_command_that_repeats_it() {
        let bad = seed::sequence(3).nth(2).unwrap();
        let fails = |seed| if seed == bad { Err("tests failed".to_owned()) } else { Ok(()) };
        let why = soak(&options(3, &["crash"]), |_| true, fails).unwrap_err();
        let command = why.lines().last().unwrap().trim();
        assert_eq!(command, format!("cargo xtask soak --rounds 1 --seed {bad} crash"));
        let long = Soak { seconds: 60, ..options(3, &[]) };
        assert_eq!(replay(7, &long), "cargo xtask soak --rounds 1 --seed 7 --seconds 60");

        let words: Vec<String> = command.split_whitespace().skip(2).map(str::to_owned).collect();
        let Ok(Command::Soak(again)) = args::parse(&words) else { panic!("{command}") };
        assert_eq!((again.seed, again.rounds, again.names), (Some(bad), Some(1), vec!["crash".to_owned()]));
        assert!(soak(&options(again.seed.unwrap(), &[]), |done| done < 1, fails).is_err());
    }
}
