//! Leave to write behind to a file whose bytes several servers hold.
//!
//! Its authority alone makes such a file behind, and sets its length there. Whoever holds bytes of it asks for leave, writes
//! no further than the file is long there, and stops when it is told to: before the file is cut, and before what is there
//! is seen anew. Then it has to ask again.
//!
//! **Invariant**: while a file is *still* nothing is written to it behind by this server, and leave that was asked for
//! before does not count.

use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_wire::Born;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Whoever gives leave is told that the file is still being written after so long.
pub(crate) const RENEW: Duration = Duration::from_secs(5);

/// All leave that this server has, or asks for.
pub(crate) struct Permits {
    table: Mutex<HashMap<FileId, Permit>>,
    changed: Condvar,
    /// For how long leave counts without being asked for again.
    renew: Duration,
}

impl Default for Permits {
    fn default() -> Permits {
        Permits { table: Mutex::default(), changed: Condvar::new(), renew: RENEW }
    }
}

#[derive(Default)]
struct Permit {
    born: Option<Arc<Born>>,
    /// When it was last asked for.
    asked: Option<Instant>,
    /// Those who ask for leave. What they are told counts if it was not taken away since they asked.
    asking: u32,
    taken: u64,
    /// Writes under way.
    flights: u32,
    /// Those who want it still, or are at work on it themselves.
    still: u32,
    /// How often bytes have come to be behind, for those who watch.
    count: u64,
    watchers: u32,
}

impl Permit {
    fn take_away(&mut self) {
        self.born = None;
        self.taken += 1;
    }

    fn is_idle(&self) -> bool {
        self.born.is_none() && self.asking == 0 && self.flights == 0 && self.still == 0 && self.watchers == 0
    }
}

/// A write under way.
pub(crate) struct Flight<'a> {
    permits: &'a Permits,
    file: FileId,
    pub(crate) born: Arc<Born>,
}

/// Nothing is written to the file behind as long as this is held.
pub(crate) struct Still<'a> {
    permits: &'a Permits,
    file: FileId,
}

/// Sees whether bytes come to be behind.
pub(crate) struct Watch<'a> {
    permits: &'a Permits,
    file: FileId,
    count: u64,
}

impl Permits {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, Permit>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, file: FileId, change: impl FnOnce(&mut Permit) -> T) -> T {
        let mut table = self.lock();
        let permit = table.entry(file).or_default();
        let changed = change(permit);
        if permit.is_idle() {
            table.remove(&file);
        }
        self.changed.notify_all();
        changed
    }

    /// Begins to write up to an offset; asks for leave if there is none that reaches so far. Nothing if there is none.
    pub(crate) fn fly(
        &self,
        file: FileId,
        end: u64,
        mut ask: impl FnMut() -> Result<Option<Born>>,
    ) -> Result<Option<Flight<'_>>> {
        let mut age = self.renew;
        loop {
            if let Some(flight) = self.take_off(file, end, age) {
                return Ok(Some(flight));
            }
            age = Duration::MAX;
            let taken = self.change(file, |permit| {
                permit.asking += 1;
                permit.taken
            });
            let told = ask();
            let gone = self.change(file, |permit| {
                permit.asking -= 1;
                match &told {
                    Ok(Some(born)) if permit.taken == taken && born.grown >= end => {
                        permit.born = Some(Arc::new(born.clone()));
                        permit.asked = Some(Instant::now());
                    }
                    _ => {}
                }
                matches!(told, Ok(None))
            });
            if gone {
                return Ok(None);
            }
            if told?.is_some_and(|born| born.grown < end) {
                let text = format!("file {file} is not as long behind as it has to be: it is tried again");
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
    }

    /// Begins to write up to an offset if there is leave, and nobody wants it still.
    pub(crate) fn try_fly(&self, file: FileId, end: u64) -> Option<Flight<'_>> {
        let mut table = self.lock();
        let permit = table.get_mut(&file).filter(|permit| permit.still == 0)?;
        let born = permit.born.clone().filter(|born| born.grown >= end)?;
        permit.flights += 1;
        Some(Flight { permits: self, file, born })
    }

    fn take_off(&self, file: FileId, end: u64, age: Duration) -> Option<Flight<'_>> {
        let mut table = self.lock();
        while table.get(&file).is_some_and(|permit| permit.still > 0) {
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        let permit = table.get_mut(&file)?;
        let fresh = permit.asked.is_some_and(|asked| asked.elapsed() < age);
        let born = permit.born.clone().filter(|born| fresh && born.grown >= end)?;
        permit.flights += 1;
        Some(Flight { permits: self, file, born })
    }

    /// Takes leave away, and waits until nothing is being written.
    pub(crate) fn still(&self, file: FileId, patience: Duration) -> Result<Still<'_>> {
        let deadline = Instant::now() + patience;
        let mut table = self.lock();
        table.entry(file).or_default().take_away();
        while let Some(permit) = table.get_mut(&file).filter(|permit| permit.flights > 0 || permit.still > 0)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = format!("{} writes of file {file} to the back end do not end", permit.flights);
                return Err(Error::new(ErrorKind::Busy, text));
            }
            table = self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let permit = table.entry(file).or_default();
        permit.take_away();
        permit.still += 1;
        Ok(Still { permits: self, file })
    }

    /// Whether this server may write to a file behind, or does, or has asked whether it may.
    pub(crate) fn has_leave(&self, file: FileId) -> bool {
        let table = self.lock();
        table
            .get(&file)
            .is_some_and(|permit| permit.born.is_some() || permit.asking > 0 || permit.flights > 0)
    }

    /// Leave is not needed any more.
    pub(crate) fn give_up(&self, file: FileId) {
        self.change(file, |permit| permit.born = None);
    }

    /// Bytes of a file are about to come to be behind.
    pub(crate) fn count(&self, file: FileId) {
        self.change(file, |permit| permit.count += 1);
    }

    /// Watches whether bytes of a file come to be behind.
    pub(crate) fn watch(&self, file: FileId) -> Watch<'_> {
        let count = self.change(file, |permit| {
            permit.watchers += 1;
            permit.count
        });
        Watch { permits: self, file, count }
    }
}

impl Watch<'_> {
    /// Whether none has.
    pub(crate) fn saw_nothing(&self) -> bool {
        self.permits.change(self.file, |permit| permit.count) == self.count
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        self.permits.change(self.file, |permit| permit.flights -= 1);
    }
}

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.permits.change(self.file, |permit| permit.still -= 1);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.permits.change(self.file, |permit| permit.watchers -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::{Layout, ServerId, Uid};
    use forebay_wire::Place;
    use std::sync::mpsc;

    const FILE: FileId = FileId(7);
    const PATIENCE: Duration = Duration::from_secs(120);

    fn born(grown: u64) -> Born {
        let place = Place { path: Vec::new(), serial: 1 };
        Born { place, grown, layout: Layout::whole(ServerId(1), 1 << 20), owner: Uid(0) }
    }

    fn permits(renew: Duration) -> Permits {
        Permits { renew, ..Permits::default() }
    }

    #[test]
    fn leave_that_is_used_for_long_is_asked_for_again() {
        let (permits, mut asked) = (permits(Duration::ZERO), 0);
        for _ in 0..3 {
            let flight = permits.fly(FILE, 1, || {
                asked += 1;
                Ok(Some(born(1)))
            });
            drop(flight.unwrap().unwrap());
        }
        assert_eq!(asked, 3);
    }

    #[test]
    fn leave_counts_as_far_as_it_reaches_and_until_it_is_taken_away() {
        let permits = permits(PATIENCE);
        let mut asked = 0;
        for (end, grown, asks) in [(10, 10, 1), (5, 0, 1), (11, 20, 2), (20, 0, 2)] {
            let mut ask = || {
                asked += 1;
                Ok(Some(born(grown)))
            };
            assert!(permits.fly(FILE, end, &mut ask).unwrap().is_some());
            assert_eq!(asked, asks, "up to {end}");
        }
        drop(permits.still(FILE, PATIENCE).unwrap());
        assert!(permits.fly(FILE, 1, || Ok(None)).unwrap().is_none());
        assert!(permits.fly(FILE, 1, || Err(ErrorKind::Io.into())).is_err());
        assert!(permits.fly(FILE, 2, || Ok(Some(born(1)))).is_err());
        assert!(permits.lock().is_empty(), "nothing is left of it");
    }

    #[test]
    fn leave_that_was_asked_for_before_it_was_still_does_not_count() {
        let permits = permits(PATIENCE);
        let mut asked = 0;
        let flight = permits.fly(FILE, 1, || {
            asked += 1;
            if asked == 1 {
                drop(permits.still(FILE, PATIENCE).unwrap());
            }
            Ok(Some(born(1)))
        });
        drop(flight.unwrap());
        assert_eq!(asked, 2);
    }

    /// Others who ask all the time do not keep an answer from counting that was asked for afterwards.
    #[test]
    fn what_is_asked_for_afterwards_counts_whoever_else_asks() {
        let permits = permits(PATIENCE);
        let (mut inner, mut outer) = (0, 0);
        let flight = permits.fly(FILE, 1, || {
            outer += 1;
            if outer == 1 {
                drop(permits.still(FILE, PATIENCE).unwrap());
                let other = permits.fly(FILE, 1, || {
                    inner += 1;
                    Ok(Some(born(1)))
                });
                drop(other.unwrap());
            }
            Ok(Some(born(1)))
        });
        drop(flight.unwrap());
        assert_eq!((outer, inner), (1, 1), "the first has asked before, and finds what the second was given");
    }

    #[test]
    fn still_waits_for_flights_and_flights_for_still() {
        let permits = permits(PATIENCE);
        let flight = permits.fly(FILE, 1, || Ok(Some(born(1)))).unwrap().unwrap();
        let (tell, told) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let still = permits.still(FILE, PATIENCE).unwrap();
                tell.send("still").unwrap();
                drop(still);
            });
            scope.spawn(|| {
                while permits.lock().get(&FILE).is_none_or(|permit| permit.born.is_some()) {
                    std::thread::yield_now();
                }
                tell.send("landed").unwrap();
                drop(flight);
                // It may be still by now: leave has to be asked for again.
                drop(permits.fly(FILE, 1, || Ok(Some(born(1)))).unwrap().unwrap());
            });
        });
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["landed", "still"]);
    }
}
