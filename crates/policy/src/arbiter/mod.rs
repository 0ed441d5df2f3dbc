//! Who may write to which target now: at most α servers at each, the right ones first.
//!
//! A request comes from a *member*: one server with the bytes of one job, target by target. The state is TRIO's stacked
//! index, job → target → server. When a place at a target is free, it goes to a member of the first job in [`Rank`] that
//! has an idle server with bytes for it; within a job, servers take turns. When a server is idle, it gets the least used
//! of its targets that has a place.
//!
//! **Invariant**: no target is ever granted to more than its α members at once, no server holds more grants than it may,
//! and no place stays free while an idle member has bytes for it: whoever can be granted is granted at once.
//!
//! **Deliberately absent**: clocks, messages, the writing itself; several arbiters need not know of each other, because
//! each has targets of its own ([`home`]).

mod alpha;
mod bits;
mod book;
mod give;
mod rank;

pub use alpha::{Alpha, Climber};
pub use book::{Arbiter, Grant, Member, Rules, Until};
pub use rank::{Choice, Rank};

use crate::drain::TargetId;
use forebay_model::ServerId;

/// The server that arbitrates a target: the same for all who know the same servers, and as few targets as possible
/// change hands when a server comes or goes.
#[must_use]
pub fn home(target: TargetId, servers: &[ServerId]) -> Option<ServerId> {
    servers
        .iter()
        .copied()
        .max_by_key(|server| (mix(u64::from(target.0) << 16 | u64::from(server.0)), server.0))
}

/// SplitMix64's finisher: every bit of the input moves every bit of the output.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_spread_over_servers_and_few_move() {
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
