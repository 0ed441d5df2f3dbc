//! Planning errors.

use std::fmt;

/// Why a plan cannot be computed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Error {
    /// A probability outside [0, 1).
    Probability(f64),
    /// A threshold outside [0, 1].
    Fraction(f64),
    /// There are no applications.
    NoApplication,
    /// The back end has no bandwidth, so the buffer never drains.
    NoBandwidth,
    /// The model would have more states than the limit.
    TooLarge {
        /// The number of states.
        states: usize,
        /// The limit.
        limit: usize,
    },
    /// The stationary distribution did not reach the required residual.
    NotConverged {
        /// The residual: the total absolute imbalance of all states.
        residual: f64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Probability(p) => write!(f, "p = {p} is not a probability below 1: give 0 <= p < 1"),
            Error::Fraction(t) => {
                write!(f, "{t} is not a fraction of the capacity: give a value from 0 to 1")
            }
            Error::NoApplication => f.write_str("there is no application to plan for: describe at least one"),
            Error::NoBandwidth => {
                f.write_str("the bandwidth is 0, so nothing would ever drain: give at least 1 unit")
            }
            Error::TooLarge { states, limit } => write!(
                f,
                "the model would have {states} states, more than {limit}: choose a larger unit of data"
            ),
            Error::NotConverged { residual } => write!(
                f,
                "the stationary distribution was only found to a residual of {residual:.1e}: choose a larger unit of data"
            ),
        }
    }
}

impl std::error::Error for Error {}
