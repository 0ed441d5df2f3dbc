//! The schedulers by name.

use super::cost::{Rate, Tick};
use super::fifo::Fifo;
use super::gift::Gift;
use super::policy::Policy;
use super::scheduler::Scheduler;
use super::stride::Stride;
use super::tbf::Tbf;
use super::tokens::{Draws, Tokens};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which scheduler enforces the policy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Discipline {
    /// First come, first served, whatever the policy.
    Fifo,
    /// Deterministic, in virtual time.
    #[default]
    Stride,
    /// Lottery over slices of work.
    Tokens,
    /// Lottery over requests, as published.
    Draws,
    /// GIFT, deciding twice a second.
    Gift,
    /// GIFT as published, deciding every ten seconds.
    GiftSlow,
    /// Token buckets.
    Tbf,
}

impl Discipline {
    /// All of them.
    pub const ALL: [Discipline; 7] = [
        Discipline::Fifo,
        Discipline::Stride,
        Discipline::Tokens,
        Discipline::Draws,
        Discipline::Gift,
        Discipline::GiftSlow,
        Discipline::Tbf,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Discipline::Fifo => "fifo",
            Discipline::Stride => "stride",
            Discipline::Tokens => "tokens",
            Discipline::Draws => "draws",
            Discipline::Gift => "gift",
            Discipline::GiftSlow => "gift-10s",
            Discipline::Tbf => "tbf",
        }
    }

    /// A scheduler that enforces `policy`. `seed` is for the lottery schedulers, `rate` (the assumed
    /// throughput of the device) for those that plan with it: `gift` and `tbf`.
    #[must_use]
    pub fn scheduler(self, policy: &Policy, seed: u64, rate: Rate) -> Box<dyn Scheduler> {
        match self {
            _ if policy.is_fifo() => Box::new(Fifo::default()),
            Discipline::Fifo => Box::new(Fifo::default()),
            Discipline::Stride => Box::new(Stride::new(policy)),
            Discipline::Tokens => Box::new(Tokens::new(policy, seed)),
            Discipline::Draws => Box::new(Draws::new(policy, seed)),
            Discipline::Gift => Box::new(Gift::new(policy, rate, Tick::ms(500))),
            Discipline::GiftSlow => Box::new(Gift::new(policy, rate, Tick::ms(10_000))),
            Discipline::Tbf => Box::new(Tbf::new(policy, rate)),
        }
    }
}

impl fmt::Display for Discipline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Discipline {
    type Err = String;

    fn from_str(text: &str) -> Result<Discipline, String> {
        Discipline::ALL.into_iter().find(|one| one.name() == text.trim()).ok_or_else(|| {
            let names: Vec<&str> = Discipline::ALL.iter().map(|one| one.name()).collect();
            format!("\"{}\" is not a scheduler: use one of {}", text.escape_debug(), names.join(", "))
        })
    }
}

impl TryFrom<String> for Discipline {
    type Error = String;

    fn try_from(text: String) -> Result<Discipline, String> {
        text.parse()
    }
}

impl From<Discipline> for String {
    fn from(discipline: Discipline) -> String {
        discipline.name().to_owned()
    }
}
