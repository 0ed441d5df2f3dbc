//! As much as the storage behind takes, and no more.
//!
//! What it takes is saved up for a second at most, so that a burst goes straight through only as far as the storage would
//! have been idle otherwise. How much it takes is measured by what goes there: where nothing may any more, one write now and
//! then finds out whether that is still so.

use super::Route;
use crate::share::Tick;
use forebay_model::Bytes;

/// What may be saved up.
const SAVED: Tick = Tick::ms(1000);
/// When nothing was measured for so long, and nothing may go for long, one write goes to be measured.
const LAPSE: Tick = Tick::ms(2000);
const LONG: Tick = Tick::ms(10_000);

/// What may go straight to the storage behind.
#[derive(Clone, Default, Debug)]
pub(super) struct Allowance {
    /// Bytes a second; not measured yet if not given.
    bandwidth: Option<f64>,
    /// Bytes that may go now.
    left: f64,
    now: Tick,
    /// When something was last measured, or sent to be.
    known: Tick,
}

impl Allowance {
    pub(super) fn measured(&mut self, now: Tick, bandwidth: Bytes) {
        self.advance(now);
        if self.bandwidth.is_none() {
            self.left = bandwidth.0 as f64 * SAVED.secs();
        }
        self.bandwidth = Some(bandwidth.0 as f64);
        self.known = self.now;
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
        let wait = ((len.0 as f64).min(most) - self.left) / self.bandwidth.unwrap_or(0.0);
        if wait > LONG.secs() && self.now.since(self.known) >= LAPSE {
            self.known = self.now;
            return Route::Direct;
        }
        Route::Buffer
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
        assert_eq!(allowance.route(Tick(6), Bytes(1)), Route::Direct, "there is nothing to keep up with");
        assert_eq!(allowance.route(Tick(7), Bytes(1)), Route::Buffer);
        allowance.measured(Tick(3), Bytes(u64::MAX));
        assert_eq!(allowance.route(Tick(7), Bytes(1)), Route::Buffer, "time never goes back");
        assert_eq!(allowance.route(Tick(u64::MAX), Bytes(u64::MAX)), Route::Direct);
    }

    #[test]
    fn no_more_is_saved_than_a_second_of_it() {
        let mut allowance = Allowance::default();
        allowance.measured(Tick(0), Bytes(1000));
        let mut route = |ms, len| allowance.route(Tick::ms(ms), Bytes(len));
        assert_eq!(route(0, 600), Route::Direct);
        assert_eq!(
            (route(0, 401), route(100, 500), route(100, 1)),
            (Route::Buffer, Route::Direct, Route::Buffer)
        );
        assert_eq!((route(1900, 1000), route(1900, 1)), (Route::Direct, Route::Buffer));
    }

    #[test]
    fn storage_that_hung_is_tried_again() {
        let mut allowance = Allowance::default();
        // 4 KiB in a minute, and a write that is half an hour's worth.
        allowance.measured(Tick(0), Bytes(68));
        assert_eq!(allowance.route(Tick(0), Bytes::kib(128)), Route::Direct);
        let mut direct = 0;
        for ms in (0..6000).step_by(10) {
            direct += u32::from(allowance.route(Tick::ms(ms), Bytes::kib(128)) == Route::Direct);
        }
        assert_eq!(direct, 2, "one for each time that nothing was known for long");
        allowance.measured(Tick::ms(6000), Bytes::mib(100));
        assert_eq!(allowance.route(Tick::ms(6010), Bytes::kib(128)), Route::Direct, "it is well again");
        allowance.measured(Tick::ms(6020), Bytes(0));
        let found = [7000, 7010, 9010].map(|ms| allowance.route(Tick::ms(ms), Bytes(1)));
        assert_eq!(found, [Route::Direct, Route::Buffer, Route::Direct], "also where it took nothing");
    }
}
