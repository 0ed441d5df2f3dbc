//! Direct writes up to the back end's bandwidth.
//!
//! Unused bandwidth accumulates for at most one second, so that a burst goes direct only as far as the back
//! end would have been idle. Direct writes measure the bandwidth. While no direct write is allowed, an
//! occasional probe write finds out whether the bandwidth is still that low.

use super::Route;
use crate::share::Tick;
use forebay_model::Bytes;

/// Most bandwidth that accumulates.
const SAVED: Tick = Tick::ms(1000);
/// If nothing was measured for `LAPSE`, and no write may go direct for `LONG`, one write goes direct as a
/// probe.
const LAPSE: Tick = Tick::ms(2000);
const LONG: Tick = Tick::ms(10_000);

/// Bandwidth that direct writes may use.
#[derive(Clone, Default, Debug)]
pub(super) struct Allowance {
    /// Bytes per second; `None` until measured.
    bandwidth: Option<f64>,
    /// Bytes that may go direct now.
    left: f64,
    now: Tick,
    /// Time of the last measurement or probe.
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
        // The bandwidth is unknown until the first direct write.
        if self.bandwidth.is_none() {
            return Route::Direct;
        }
        // A write is not split: one that is larger than the whole allowance goes when the allowance is full.
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

    /// Writes of `len` bytes, `a_second` per second, for ten seconds to a back end of 1000 bytes per second.
    /// Returns the direct bytes after the first second.
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
    fn direct_writes_use_the_bandwidth_and_the_rest_is_buffered() {
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
    fn unknown_bandwidth_is_probed_and_odd_values_are_harmless() {
        let mut allowance = Allowance::default();
        assert_eq!(allowance.route(Tick(5), Bytes(u64::MAX)), Route::Direct);
        allowance.measured(Tick(5), Bytes(0));
        assert_eq!(
            allowance.route(Tick(6), Bytes(1)),
            Route::Direct,
            "infinite bandwidth allows every write"
        );
        assert_eq!(allowance.route(Tick(7), Bytes(1)), Route::Buffer);
        allowance.measured(Tick(3), Bytes(u64::MAX));
        assert_eq!(allowance.route(Tick(7), Bytes(1)), Route::Buffer, "time never goes back");
        assert_eq!(allowance.route(Tick(u64::MAX), Bytes(u64::MAX)), Route::Direct);
    }

    #[test]
    fn allowance_accumulates_for_one_second_at_most() {
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
    fn hung_storage_is_probed_again() {
        let mut allowance = Allowance::default();
        // 4 KiB in a minute, then a write of half an hour at that rate.
        allowance.measured(Tick(0), Bytes(68));
        assert_eq!(allowance.route(Tick(0), Bytes::kib(128)), Route::Direct);
        let mut direct = 0;
        for ms in (0..6000).step_by(10) {
            direct += u32::from(allowance.route(Tick::ms(ms), Bytes::kib(128)) == Route::Direct);
        }
        assert_eq!(direct, 2, "one probe per lapse");
        allowance.measured(Tick::ms(6000), Bytes::mib(100));
        assert_eq!(
            allowance.route(Tick::ms(6010), Bytes::kib(128)),
            Route::Direct,
            "the back end is fast again"
        );
        allowance.measured(Tick::ms(6020), Bytes(0));
        let found = [7000, 7010, 9010].map(|ms| allowance.route(Tick::ms(ms), Bytes(1)));
        assert_eq!(
            found,
            [Route::Direct, Route::Buffer, Route::Direct],
            "also with a measured bandwidth of zero"
        );
    }
}
