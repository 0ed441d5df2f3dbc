//! Leases for writing to a file in the back end whose bytes several servers hold.
//!
//! Only its authority creates such a file in the back end and sets its size there. A holder requests a lease, writes no
//! further than the size in the back end, and stops when the authority revokes the lease: before the file is truncated,
//! and before its version in the back end is recorded. Then the holder has to request a new lease.
//!
//! **Invariant**: while writes of a file are *suspended*, this server does not write to it in the back end, and a lease
//! requested before does not count.

use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_wire::BackingFile;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A lease is renewed after this time, which tells the authority that the file is still being written.
pub(crate) const RENEW: Duration = Duration::from_secs(5);

/// All leases that this server holds or requests.
pub(crate) struct WriteLeases {
    table: Mutex<HashMap<FileId, WriteLease>>,
    changed: Condvar,
    /// How long a lease is used without being renewed.
    renew: Duration,
}

impl Default for WriteLeases {
    fn default() -> WriteLeases {
        WriteLeases { table: Mutex::default(), changed: Condvar::new(), renew: RENEW }
    }
}

#[derive(Default)]
struct WriteLease {
    backing_file: Option<Arc<BackingFile>>,
    /// When it was last requested.
    requested: Option<Instant>,
    /// Pending requests. A lease counts only if it was not revoked since it was requested.
    requests: u32,
    revocations: u64,
    /// Writes under way.
    writes: u32,
    /// Number of `SuspendedWrites` that exist.
    suspensions: u32,
    /// How often bytes have reached the back end, for watchers.
    count: u64,
    watchers: u32,
}

impl WriteLease {
    fn revoke(&mut self) {
        self.backing_file = None;
        self.revocations += 1;
    }

    fn is_idle(&self) -> bool {
        self.backing_file.is_none()
            && self.requests == 0
            && self.writes == 0
            && self.suspensions == 0
            && self.watchers == 0
    }
}

/// A write under way.
pub(crate) struct LeasedWrite<'a> {
    write_leases: &'a WriteLeases,
    file: FileId,
    pub(crate) backing_file: Arc<BackingFile>,
}

/// Suspends writes to the file in the back end while it is held.
pub(crate) struct SuspendedWrites<'a> {
    write_leases: &'a WriteLeases,
    file: FileId,
}

/// Detects whether bytes reach the back end.
pub(crate) struct Watch<'a> {
    write_leases: &'a WriteLeases,
    file: FileId,
    count: u64,
}

impl WriteLeases {
    fn lock(&self) -> MutexGuard<'_, HashMap<FileId, WriteLease>> {
        self.table.lock()
    }

    fn change<T>(&self, file: FileId, change: impl FnOnce(&mut WriteLease) -> T) -> T {
        let mut table = self.lock();
        let lease = table.entry(file).or_default();
        let changed = change(lease);
        if lease.is_idle() {
            table.remove(&file);
        }
        self.changed.notify_all();
        changed
    }

    /// Begins a write up to an offset; requests a lease if there is none that reaches that far. `None` if the file is
    /// gone.
    pub(crate) fn write_direct(
        &self,
        file: FileId,
        end: u64,
        mut request: impl FnMut() -> Result<Option<BackingFile>>,
    ) -> Result<Option<LeasedWrite<'_>>> {
        let mut age = self.renew;
        loop {
            if let Some(write) = self.begin_leased(file, end, age) {
                return Ok(Some(write));
            }
            age = Duration::MAX;
            let revocations = self.change(file, |lease| {
                lease.requests += 1;
                lease.revocations
            });
            let reply = request();
            let gone = self.change(file, |lease| {
                lease.requests -= 1;
                match &reply {
                    Ok(Some(backing_file))
                        if lease.revocations == revocations && backing_file.grown >= end =>
                    {
                        lease.backing_file = Some(Arc::new(backing_file.clone()));
                        lease.requested = Some(Instant::now());
                    }
                    _ => {}
                }
                matches!(reply, Ok(None))
            });
            if gone {
                return Ok(None);
            }
            if reply?.is_some_and(|backing_file| backing_file.grown < end) {
                let text = format!("file {file} is too short in the back end: the write is retried");
                return Err(Error::new(ErrorKind::Busy, text));
            }
        }
    }

    /// Begins a write up to an offset if there is a lease and writes are not suspended.
    pub(crate) fn try_begin(&self, file: FileId, end: u64) -> Option<LeasedWrite<'_>> {
        let mut table = self.lock();
        let lease = table.get_mut(&file).filter(|lease| lease.suspensions == 0)?;
        let backing_file = lease.backing_file.clone().filter(|backing_file| backing_file.grown >= end)?;
        lease.writes += 1;
        Some(LeasedWrite { write_leases: self, file, backing_file })
    }

    fn begin_leased(&self, file: FileId, end: u64, age: Duration) -> Option<LeasedWrite<'_>> {
        let mut table = self.lock();
        while table.get(&file).is_some_and(|lease| lease.suspensions > 0) {
            self.changed.wait(&mut table);
        }
        let lease = table.get_mut(&file)?;
        let fresh = lease.requested.is_some_and(|requested| requested.elapsed() < age);
        let backing_file =
            lease.backing_file.clone().filter(|backing_file| fresh && backing_file.grown >= end)?;
        lease.writes += 1;
        Some(LeasedWrite { write_leases: self, file, backing_file })
    }

    /// Revokes the lease, and waits until no write is under way.
    pub(crate) fn suspend(&self, file: FileId, patience: Duration) -> Result<SuspendedWrites<'_>> {
        let deadline = Instant::now() + patience;
        let mut table = self.lock();
        table.entry(file).or_default().revoke();
        while let Some(lease) = table.get_mut(&file).filter(|lease| lease.writes > 0 || lease.suspensions > 0)
        {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text =
                    format!("timed out waiting for {} writes of file {file} to the back end", lease.writes);
                return Err(Error::new(ErrorKind::Busy, text));
            }
            self.changed.wait_for(&mut table, left);
        }
        let lease = table.entry(file).or_default();
        lease.revoke();
        lease.suspensions += 1;
        Ok(SuspendedWrites { write_leases: self, file })
    }

    /// Whether this server holds a lease of a file, uses one, or has requested one.
    pub(crate) fn has_lease(&self, file: FileId) -> bool {
        let table = self.lock();
        table
            .get(&file)
            .is_some_and(|lease| lease.backing_file.is_some() || lease.requests > 0 || lease.writes > 0)
    }

    /// The lease is no longer needed.
    pub(crate) fn give_up(&self, file: FileId) {
        self.change(file, |lease| lease.backing_file = None);
    }

    /// Bytes of a file are about to reach the back end.
    pub(crate) fn count(&self, file: FileId) {
        self.change(file, |lease| lease.count += 1);
    }

    /// Watches whether bytes of a file reach the back end.
    pub(crate) fn watch(&self, file: FileId) -> Watch<'_> {
        let count = self.change(file, |lease| {
            lease.watchers += 1;
            lease.count
        });
        Watch { write_leases: self, file, count }
    }
}

impl Watch<'_> {
    /// Whether no bytes have reached the back end.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.write_leases.change(self.file, |lease| lease.count) == self.count
    }
}

impl Drop for LeasedWrite<'_> {
    fn drop(&mut self) {
        self.write_leases.change(self.file, |lease| lease.writes -= 1);
    }
}

impl Drop for SuspendedWrites<'_> {
    fn drop(&mut self) {
        self.write_leases.change(self.file, |lease| lease.suspensions -= 1);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        self.write_leases.change(self.file, |lease| lease.watchers -= 1);
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

    fn backing_file(grown: u64) -> BackingFile {
        let place = Place { path: Vec::new(), serial: 1 };
        BackingFile { place, grown, layout: Layout::whole(ServerId(1), 1 << 20), owner: Uid(0) }
    }

    fn write_leases(renew: Duration) -> WriteLeases {
        WriteLeases { renew, ..WriteLeases::default() }
    }

    #[test]
    fn lease_is_renewed_after_a_while() {
        let (write_leases, mut requested) = (write_leases(Duration::ZERO), 0);
        for _ in 0..3 {
            let write = write_leases.write_direct(FILE, 1, || {
                requested += 1;
                Ok(Some(backing_file(1)))
            });
            drop(write.unwrap().unwrap());
        }
        assert_eq!(requested, 3);
    }

    #[test]
    fn lease_counts_up_to_its_size_and_until_it_is_revoked() {
        let write_leases = write_leases(PATIENCE);
        let mut requested = 0;
        for (end, grown, asks) in [(10, 10, 1), (5, 0, 1), (11, 20, 2), (20, 0, 2)] {
            let mut request = || {
                requested += 1;
                Ok(Some(backing_file(grown)))
            };
            assert!(write_leases.write_direct(FILE, end, &mut request).unwrap().is_some());
            assert_eq!(requested, asks, "up to {end}");
        }
        drop(write_leases.suspend(FILE, PATIENCE).unwrap());
        assert!(write_leases.write_direct(FILE, 1, || Ok(None)).unwrap().is_none());
        assert!(write_leases.write_direct(FILE, 1, || Err(ErrorKind::Io.into())).is_err());
        assert!(write_leases.write_direct(FILE, 2, || Ok(Some(backing_file(1)))).is_err());
        assert!(write_leases.lock().is_empty(), "the entry is removed");
    }

    #[test]
    fn lease_requested_before_a_suspension_does_not_count() {
        let write_leases = write_leases(PATIENCE);
        let mut requested = 0;
        let write = write_leases.write_direct(FILE, 1, || {
            requested += 1;
            if requested == 1 {
                drop(write_leases.suspend(FILE, PATIENCE).unwrap());
            }
            Ok(Some(backing_file(1)))
        });
        drop(write.unwrap());
        assert_eq!(requested, 2);
    }

    /// Concurrent requests do not void a lease that is requested after the suspension.
    #[test]
    fn lease_requested_after_a_suspension_counts_despite_other_requests() {
        let write_leases = write_leases(PATIENCE);
        let (mut inner, mut outer) = (0, 0);
        let write = write_leases.write_direct(FILE, 1, || {
            outer += 1;
            if outer == 1 {
                drop(write_leases.suspend(FILE, PATIENCE).unwrap());
                let other = write_leases.write_direct(FILE, 1, || {
                    inner += 1;
                    Ok(Some(backing_file(1)))
                });
                drop(other.unwrap());
            }
            Ok(Some(backing_file(1)))
        });
        drop(write.unwrap());
        assert_eq!((outer, inner), (1, 1), "the first request is void, and uses the lease of the second");
    }

    #[test]
    fn suspension_waits_for_writes_and_writes_for_suspension() {
        let write_leases = write_leases(PATIENCE);
        let write = write_leases.write_direct(FILE, 1, || Ok(Some(backing_file(1)))).unwrap().unwrap();
        let (notify, reply) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let still = write_leases.suspend(FILE, PATIENCE).unwrap();
                notify.send("still").unwrap();
                drop(still);
            });
            scope.spawn(|| {
                while write_leases.lock().get(&FILE).is_none_or(|lease| lease.backing_file.is_some()) {
                    std::thread::yield_now();
                }
                notify.send("landed").unwrap();
                drop(write);
                // Writes may be suspended by now: a new lease has to be requested.
                drop(write_leases.write_direct(FILE, 1, || Ok(Some(backing_file(1)))).unwrap().unwrap());
            });
        });
        assert_eq!(reply.try_iter().collect::<Vec<_>>(), ["landed", "still"]);
    }
}
