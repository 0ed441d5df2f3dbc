//! As much as the storage behind takes, and no more.
//!
//! What it takes is saved up for a second at most, so that a burst goes straight through only as far as the storage would
//! have been idle otherwise.

use super::Route;
use crate::share::Tick;
use forebay_model::Bytes;

/// What may be saved up.
const SAVED: Tick = Tick::ms(1000);

/// What may go straight to the storage behind.
#[derive(Clone, Default, Debug)]
pub(super) struct Allowance {
    /// Bytes a second; not measured yet if not given.
    bandwidth: Option<f64>,
    /// Bytes that may go now.
    left: f64,
    now: Tick,
}

impl Allowance {
    pub(super) fn measured(&mut self, now: Tick, bandwidth: Bytes) {
        self.advance(now);
        if self.bandwidth.is_none() {
            self.left = bandwidth.0 as f64 * SAVED.secs();
        }
        self.bandwidth = Some(bandwidth.0 as f64);
    }

    pub(super) fn route(&mut self, now: Tick, len: Bytes) -> Route {
        self.advance(now);
        // Nobody knows how fast it is before something was written there.
        if self.bandwidth.is_none() {
            return Route::Direct;
        }
        // A write is not cut in two: one that is larger than all that may be saved goes when nothing else did.
        let most = self.most();
        if len.0 as f64 <= self.left || (len.0 as f64 > most && self.left >= most) {
            self.left -= len.0 as f64;
            return Route::Direct;
        }
        Route::Buffer
    }

    pub(super) fn spare(&mut self, now: Tick) -> Bytes {
        self.advance(now);
        Bytes(self.left.max(0.0) as u64)
    }

    fn most(&self) -> f64 {
        self.bandwidth.unwrap_or(0.0) * SAVED.secs()
    }

    fn advance(&mut self, now: Tick) {
        let came = self.bandwidth.unwrap_or(0.0) * now.since(self.now).secs();
        self.left = (self.left + came).min(self.most());
        self.now = self.now.max(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes of `len` bytes, `a_second` of them, for ten seconds before storage of 1000 bytes a second: what went
    /// directly after the first second.
    fn direct(len: u64, a_second: u64) -> u64 {
        let mut allowance = Allowance::default();
        allowance.measured(Tick(0), Bytes(1000));
        let mut direct = 0;
        for number in 0..10 * a_second {
            let now = Tick(number * 1_000_000_000 / a_second);
            if allowance.route(now, Bytes(len)) == Route::Direct && now >= Tick::ms(1000) {
                direct += len;
            }
        }
        direct
    }

    #[test]
    fn what_the_storage_takes_goes_there_and_the_rest_is_buffered() {
        for (len, a_second, least, most) in
            [(10, 50, 4500, 4500), (10, 99, 8900, 8910), (10, 200, 8900, 9100), (1, 5000, 8900, 9100)]
        {
            let found = direct(len, a_second);
            assert!((least..=most).contains(&found), "{a_second} writes of {len}: {found}");
        }
        let huge = direct(3000, 10);
        assert!(
            (6000..=12_000).contains(&huge),
            "writes larger than a second's worth go at its rate: {huge}"
        );
    }

    #[test]
    fn what_is_not_measured_is_found_out_and_nonsense_does_no_harm() {
        let mut allowance = Allowance::default();
        assert_eq!(allowance.route(Tick(5), Bytes(u64::MAX)), Route::Direct);
        allowance.measured(Tick(5), Bytes(0));
        assert_eq!(
            allowance.route(Tick(u64::MAX), Bytes(1)),
            Route::Direct,
            "there is nothing to keep up with"
        );
        assert_eq!(allowance.route(Tick(u64::MAX), Bytes(1)), Route::Buffer);
        allowance.measured(Tick(3), Bytes(u64::MAX));
        assert_eq!(allowance.spare(Tick(u64::MAX)), Bytes(0));
        assert_eq!(allowance.route(Tick(7), Bytes(1)), Route::Buffer, "time never goes back");
    }

    #[test]
    fn the_drain_gets_what_is_left() {
        let mut allowance = Allowance::default();
        allowance.measured(Tick(0), Bytes(1000));
        assert_eq!(allowance.route(Tick(0), Bytes(600)), Route::Direct);
        assert_eq!(allowance.spare(Tick(0)), Bytes(400));
        assert_eq!(allowance.spare(Tick::ms(100)), Bytes(500));
        assert_eq!(allowance.spare(Tick::ms(60_000)), Bytes(1000), "a second's worth is saved, no more");
    }
}
