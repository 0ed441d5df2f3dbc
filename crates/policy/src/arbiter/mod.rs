//! The arbiter grants access to targets: at most α servers write to a target at once, in order of rank.
//!
//! A request comes from a *member*: one server with the bytes of one job, per target. The state is TRIO's
//! stacked index, job → target → server. A free place at a target goes to a member of the first job by
//! [`Rank`] that has an idle server with bytes for it; within a job, servers take turns. An idle server gets
//! the least used of its targets that has a free place.
//!
//! **Invariant**: a target is never granted to more than its α members at once, no server holds more grants
//! than its limit, and no place stays free while an idle member has bytes for it: free places are granted at once.
//!
//! **Deliberately absent**: clocks, messages, the writes themselves. Several arbiters need not know each
//! other, because each has its own targets ([`home`]).

mod alpha;
mod bits;
mod grants;
mod rank;
mod slots;
mod state;

pub use alpha::{Alpha, Climber};
pub use rank::{Choice, Rank};
pub use slots::{Slots, slots};
pub use state::{Arbiter, Grant, Member, Rules, Until};

use crate::drain::TargetId;
use crate::share::Rng;
use forebay_model::ServerId;

/// The server that arbitrates a target. All processes that know the same servers compute the same one, and as
/// few targets as possible move when a server joins or leaves (rendezvous hashing).
#[must_use]
pub fn home(target: TargetId, servers: &[ServerId]) -> Option<ServerId> {
    servers
        .iter()
        .copied()
        .max_by_key(|server| (mix(u64::from(target.0) << 16 | u64::from(server.0)), server.0))
}

/// A number of which every bit depends on every bit of this one.
fn mix(number: u64) -> u64 {
    Rng::new(number).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_spread_over_arbiters_and_few_move() {
        let servers: Vec<ServerId> = (0..10).map(ServerId).collect();
        assert_eq!(home(TargetId(1), &[]), None);
        let mut counts = [0; 10];
        let mut moved = 0;
        for target in (0..1000).map(TargetId) {
            let at = home(target, &servers).expect("there are servers");
            counts[usize::from(at.0)] += 1;
            let without = home(target, &servers[..9]).expect("there are servers");
            moved += u32::from(at != without);
            assert!(at == without || at == ServerId(9), "only the targets of the lost server move");
        }
        assert!(counts.iter().all(|&count| (60..=140).contains(&count)), "{counts:?}");
        assert_eq!(moved, counts[9]);
    }
}
