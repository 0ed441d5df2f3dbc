//! Marks that are learnt: what streams cost on either way, by how long they took to come.
//!
//! Past the buffer that depends on how random they are; in the buffer it does not. Where both are known the cheaper way is
//! taken, and the one past the buffer if there is next to no difference, since it wears nothing. Elsewhere the marks count.

use super::Route;
use super::stream::Marks;
use crate::share::Tick;
use forebay_model::Bytes;

/// Shares of random writes that are told apart.
const STEPS: usize = 8;
/// A pause longer than this is nobody's cost: the writers had something else to do.
const PAUSE: Tick = Tick::ms(20);
/// What a new measurement counts.
const NEW: f64 = 0.3;
/// The buffer has to be so much cheaper to be taken, and to be kept.
const TAKE: f64 = 1.15;
const KEEP: f64 = 1.05;

/// What is known of both ways, in nanoseconds a byte.
#[derive(Clone, Default, Debug)]
pub(super) struct Lore {
    direct: [Option<f64>; STEPS],
    buffer: Option<f64>,
    last: Option<Tick>,
    took: u64,
    bytes: u64,
}

impl Lore {
    /// A write of the present stream has come.
    pub(super) fn came(&mut self, now: Tick, len: Bytes) {
        let since = self.last.map_or(Tick(0), |last| now.since(last));
        self.took += since.min(PAUSE).0;
        self.bytes = self.bytes.saturating_add(len.0);
        self.last = Some(now);
    }

    /// The stream is over, and went this way: where the next one goes.
    pub(super) fn decide(&mut self, percent: f64, now: Route, marks: Marks) -> Route {
        let step = ((percent * STEPS as f64) as usize).min(STEPS - 1);
        let cost = self.took as f64 / self.bytes.max(1) as f64;
        (self.took, self.bytes) = (0, 0);
        let known = match now {
            Route::Direct => &mut self.direct[step],
            Route::Buffer => &mut self.buffer,
        };
        *known = Some(known.map_or(cost, |old| old + (cost - old) * NEW));
        let (Some(direct), Some(buffer)) = (self.direct[step], self.buffer) else {
            return marks.decide(percent, now);
        };
        match now {
            Route::Direct if direct > buffer * TAKE => Route::Buffer,
            Route::Buffer if direct < buffer * KEEP => Route::Direct,
            _ => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Streams of ten writes of a thousand bytes each: how random, and how long each write takes on either way. Where the
    /// next one goes after each.
    fn routes(streams: &[(f64, u64, u64)]) -> Vec<Route> {
        let (mut lore, mut now, mut route) = (Lore::default(), Tick(0), Route::Direct);
        let mut routes = Vec::new();
        for &(percent, direct, buffer) in streams {
            for _ in 0..10 {
                now = now.after(Tick(if route == Route::Direct { direct } else { buffer }));
                lore.came(now, Bytes(1000));
            }
            route = lore.decide(percent, route, Marks::default());
            routes.push(route);
        }
        routes
    }

    #[test]
    fn the_cheaper_way_is_taken_where_both_are_known() {
        use Route::{Buffer, Direct};
        let (random, middle, even) = ((0.9, 900, 100), (0.35, 300, 100), (0.05, 100, 100));
        assert_eq!(routes(&[random, even, even]), [Buffer, Direct, Direct], "by the marks at first");
        assert_eq!(
            routes(&[random, even, middle, middle, even]),
            [Buffer, Direct, Buffer, Buffer, Direct],
            "below the high mark, and dear"
        );
        let slow = (0.9, 300, 400);
        assert_eq!(
            routes(&[random, slow, slow, slow, slow, slow, slow]).last(),
            Some(&Direct),
            "a full buffer"
        );
    }

    #[test]
    fn a_pause_is_nobodys_cost() {
        let mut lore = Lore::default();
        lore.came(Tick(0), Bytes(1));
        lore.came(Tick::ms(100_000), Bytes(1));
        assert_eq!(lore.took, PAUSE.0);
    }
}
