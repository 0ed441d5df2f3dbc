//! The workers: create files in the back end, write, sync, free the buffered bytes, finalize.

use super::DrainEngine;
use super::queue::{Assignment, DrainQueue, Task};
use super::remake::replaced_in_backing;
use super::settings::Verify;
use super::striped::open_place;
use crate::backing::{Backing, BackingWriter, Extras};
use crate::service::Service;
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, FileKind, JobId, Name, Result, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::drain::{BatchId, Layout, TargetId};
use forebay_store::{Batch, Picked};
use forebay_wire::{BackingFile, PeerRequest};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a worker sleeps at most, with and without unsynced writes.
const NAP: Duration = Duration::from_millis(100);
const SLEEP: Duration = Duration::from_secs(1);
/// Most bytes that one worker has written and not synced.
const UNSYNCED: u64 = 64 << 20;
const MOST_WRITES: usize = 256;
const MOST_FILES: usize = 64;

/// A file that a worker is writing.
struct FileBatch {
    writer: BackingWriter,
    /// The answer of the file's authority, if other servers hold bytes of it too.
    backing_file: Option<Arc<BackingFile>>,
    writes: Vec<(JobId, BatchId)>,
    written: Vec<(Span, Stamp)>,
    /// Checksums of the written bytes, kept only for read-back verification.
    sums: Vec<(Span, Stamp, u32)>,
}

/// Everything that one worker has written and not synced.
#[derive(Default)]
struct WorkerBatch {
    files: HashMap<FileId, FileBatch>,
    /// The jobs that the bytes belong to.
    queues: BTreeSet<JobId>,
    bytes: u64,
    writes: usize,
}

/// One worker's thread.
pub(super) fn run_worker(service: &Arc<Service>) {
    let (Some(engine), Some(backing)) = (&service.drain, &service.backing) else { return };
    let stopping = service.life.stopping();
    let mut worker_batch = WorkerBatch::default();
    let limit = UNSYNCED.min(service.store.data().usage().capacity / (2 * engine.workers as u64).max(16));
    while let Some(task) = engine.next(service, &worker_batch, &stopping) {
        match task {
            Task::Prepare(file) => {
                engine.prepare(service, backing, file);
                engine.drain_queue().preparing -= 1;
            }
            Task::Write(assignment) => {
                engine.write(service, backing, &mut worker_batch, assignment);
                let full = worker_batch.bytes >= limit
                    || worker_batch.writes >= MOST_WRITES
                    || worker_batch.files.len() >= MOST_FILES;
                if full || engine.drain_queue().has_given_all_of(&worker_batch.queues) {
                    // Another worker can use the slot meanwhile.
                    engine.doorbell.notify_one();
                    engine.sync_batch(service, backing, &mut worker_batch);
                }
            }
            Task::Sync => engine.sync_batch(service, backing, &mut worker_batch),
            Task::Finish(file) => engine.finalize(service, backing, file),
        }
        let busy = {
            let mut drain_queue = engine.drain_queue();
            drain_queue.busy -= 1;
            drain_queue.busy
        };
        // Directories wait until no worker is busy.
        if busy == 0 {
            engine.doorbell.notify_one();
        }
    }
    engine.sync_batch(service, backing, &mut worker_batch);
}

impl DrainEngine {
    /// The next task; none when the server ends.
    fn next(
        &self,
        service: &Service,
        worker_batch: &WorkerBatch,
        stopping: &watch::Receiver<bool>,
    ) -> Option<Task> {
        let unsynced = !worker_batch.files.is_empty();
        let (mut drain_queue, begin) = (self.drain_queue(), Instant::now());
        loop {
            if *stopping.borrow() {
                return None;
            }
            let now = (Tick(service.store.data().now().0), Instant::now());
            // A slot may become free in a moment, and a sync after each write costs more than the write.
            let sync_due =
                unsynced && (drain_queue.has_given_all_of(&worker_batch.queues) || begin.elapsed() >= NAP);
            let task = drain_queue.task(now, sync_due);
            self.indexing_since(now.1);
            if std::mem::take(&mut drain_queue.grants.has_messages) {
                self.exchange.notify_waiters();
            }
            if let Some(task) = task {
                drain_queue.busy += 1;
                drop(drain_queue);
                // The next worker finds out whether there is more to do.
                self.doorbell.notify_one();
                return Some(task);
            }
            self.doorbell.wait_for(&mut drain_queue, if unsynced { NAP } else { SLEEP });
        }
    }

    pub(super) fn indexing_since(&self, begin: Instant) {
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.indexed.fetch_add(took, Ordering::Relaxed);
    }

    /// Updates the queue, then wakes a worker.
    pub(super) fn notify(&self, notify: impl FnOnce(&mut DrainQueue)) {
        self.notify_of_grants(notify);
        self.doorbell.notify_one();
    }

    /// Updates the queue, and wakes a worker only if there are new grants.
    pub(super) fn notify_of_grants(&self, notify: impl FnOnce(&mut DrainQueue)) {
        let mut drain_queue = self.drain_queue();
        notify(&mut drain_queue);
        if std::mem::take(&mut drain_queue.grants.has_messages) {
            self.exchange.notify_waiters();
        }
        let (fresh, direct_waiters) =
            (std::mem::take(&mut drain_queue.grants.has_new_grants), drain_queue.direct_waiters);
        drop(drain_queue);
        if fresh {
            self.doorbell.notify_one();
        }
        if direct_waiters > 0 {
            self.slot_freed.notify_all();
        }
    }

    fn prepare(&self, service: &Arc<Service>, backing: &Backing, file: FileId) {
        match self.prepared(service, backing, file) {
            Ok(Prepared::Queue(path, user, layout)) => {
                let begin = Instant::now();
                let dirty = service.store.data().dirty(file);
                self.indexing_since(begin);
                if dirty.is_empty() {
                    return self.finalize(service, backing, file);
                }
                let newest = dirty.iter().max_by_key(|piece| piece.stamp).map(|piece| piece.job);
                let priority = newest.map_or(0, |job| service.jobs.priority(job));
                let now = Tick(service.store.data().now().0);
                self.notify(|drain_queue| {
                    let begin = Instant::now();
                    drain_queue.enqueue(now, (file, path, user), &layout, &dirty, priority);
                    self.indexing_since(begin);
                });
            }
            Ok(Prepared::Finalize) => self.finalize(service, backing, file),
            Ok(Prepared::Later) => self.notify(|drain_queue| {
                drain_queue.touch_dirs(&[file]);
                drain_queue.finished(file);
            }),
            Ok(Prepared::Gone) => self.notify(|drain_queue| drain_queue.gone(file)),
            Err(error) => self.failed(service, file, error),
        }
    }

    /// Creates or finds a file in the back end.
    fn prepared(&self, service: &Arc<Service>, backing: &Backing, file: FileId) -> Result<Prepared> {
        if service.homes.is_shared(file) {
            return self.prepared_shared(service, backing, file);
        }
        let choose_layout = self.choose_layout(service, file);
        let Some(backing_file) = service.layer.create_backing(backing, file, &choose_layout)? else {
            return Ok(Prepared::Gone);
        };
        let path = shown(&backing_file.path);
        {
            let mut drain_queue = self.drain_queue();
            if let Some(entry) = drain_queue.files.get_mut(&file) {
                (entry.path, entry.user) = (path.clone(), backing_file.owner);
            }
        }
        match backing_file.kind {
            FileKind::File => {
                Ok(Prepared::Queue(path, backing_file.owner, layout(backing, &backing_file.path)?))
            }
            FileKind::Directory => Ok(Prepared::Later),
            FileKind::Symlink | FileKind::Special(_) => Ok(Prepared::Finalize),
        }
    }

    /// Obtains a write lease for a file whose bytes or name other servers hold.
    fn prepared_shared(&self, service: &Arc<Service>, backing: &Backing, file: FileId) -> Result<Prepared> {
        // Other servers may write to an open file. A writeback mark set now would hide changes that other programs make
        // in the back end.
        let last = self.last.load(Ordering::Relaxed);
        if !last && service.homes.is_authority(file) && service.layer.is_in_backing_by_all(backing, file)? {
            return Ok(Prepared::Finalize);
        }
        let size = service.store.data().facts(file)?.size;
        let Some(lease) = self.writers.leases.write_direct(file, size, || service.request_lease(file, 0))?
        else {
            return Ok(Prepared::Gone);
        };
        let path = shown(&lease.backing_file.place.path);
        if let Some(entry) = self.drain_queue().files.get_mut(&file) {
            (entry.path, entry.user) = (path.clone(), lease.backing_file.owner);
        }
        Ok(Prepared::Queue(path, lease.backing_file.owner, layout(backing, &lease.backing_file.place.path)?))
    }

    fn write(
        &self,
        service: &Arc<Service>,
        backing: &Backing,
        worker_batch: &mut WorkerBatch,
        assignment: Assignment,
    ) {
        let Assignment { queue, id, batch } = assignment;
        let (file, target, span) = (batch.file, batch.target, batch.span());
        let wait = self.drain_queue().valve.as_mut().map(|valve| valve.pass(Instant::now(), span.len()));
        pause(service, wait.unwrap_or_default());
        let written = self.write_span(service, backing, worker_batch, file, span);
        let now = Tick(service.store.data().now().0);
        match written {
            Ok(Some(bytes)) => {
                if let Some(file_batch) = worker_batch.files.get_mut(&file) {
                    file_batch.writes.push((queue, id));
                    worker_batch.queues.insert(queue);
                }
                worker_batch.bytes += bytes;
                worker_batch.writes += 1;
                self.written.fetch_add(bytes, Ordering::Relaxed);
                self.notify_of_grants(|drain_queue| drain_queue.wrote(now, queue, target, bytes));
            }
            Ok(None) => {
                let writes = [worker_batch.drop(file), vec![(queue, id)]].concat();
                self.notify(|drain_queue| {
                    drain_queue.wrote(now, queue, target, 0);
                    drain_queue.synced(file, &writes);
                    drain_queue.gone(file);
                });
            }
            Err(error) => {
                if error.kind() == ErrorKind::NoSpace {
                    self.placement.filled(target.0);
                }
                let error = self.at_target(target, error);
                let writes = [worker_batch.drop(file), vec![(queue, id)]].concat();
                self.notify_of_grants(|drain_queue| {
                    drain_queue.wrote(now, queue, target, 0);
                    drain_queue.synced(file, &writes);
                });
                self.failed(service, file, error);
            }
        }
    }

    /// Writes the part of a span that is still in the buffer; `None` if the file was removed.
    fn write_span(
        &self,
        service: &Arc<Service>,
        backing: &Backing,
        worker_batch: &mut WorkerBatch,
        file: FileId,
        span: Span,
    ) -> Result<Option<u64>> {
        // While the lease is held, no server truncates the file in the back end.
        let mut _lease = None;
        if service.homes.is_shared(file) {
            let Some(lease) =
                self.writers.leases.write_direct(file, span.end, || service.request_lease(file, 0))?
            else {
                return Ok(None);
            };
            self.open_shared(backing, worker_batch, file, &lease.backing_file)?;
            _lease = Some(lease);
        } else if worker_batch.files.get(&file).is_none_or(|file_batch| file_batch.writer.grown < span.end) {
            let Some(writer) = service.layer.writer(backing, file)? else { return Ok(None) };
            worker_batch.take(backing, file, writer, None)?;
        }
        // A range that a direct writer or a truncation holds is drained later, if it is still in the buffer then.
        let Some(reserved) = service.writers.range_locks.reserve(file, span, None) else {
            return Ok(Some(0));
        };
        let Some(_in_flight) = reserved.start_io() else { return Ok(Some(0)) };
        // The file may have been finalized since it was opened; a write would then look like another program's change.
        if !service.homes.is_shared(file) && backing.mark(file).is_none() {
            return Ok(Some(0));
        }
        let picked = match service.store.data().pick(file, span) {
            Ok(picked) => picked,
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(file_batch) = worker_batch.files.get_mut(&file) else { return Ok(None) };
        let mut bytes = 0;
        for run in picked.chunk_by(|one, next| one.span.end == next.span.start) {
            let parts: Vec<&[u8]> = run.iter().map(|piece| piece.bytes.as_ref()).collect();
            backing.ask(|_| file_batch.writer.object.write_at(run[0].span.start, &parts))?;
            bytes += run.iter().map(|piece| piece.span.len()).sum::<u64>();
        }
        for Picked { span, stamp, bytes } in &picked {
            file_batch.written.push((*span, *stamp));
            if self.settings.verify == Verify::ReadBack {
                file_batch.sums.push((*span, *stamp, crc32c(bytes.as_ref())));
            }
        }
        Ok(Some(bytes))
    }

    /// Adds a file whose bytes or name other servers hold to the batch.
    fn open_shared(
        &self,
        backing: &Backing,
        worker_batch: &mut WorkerBatch,
        file: FileId,
        backing_file: &Arc<BackingFile>,
    ) -> Result<()> {
        let known = worker_batch.files.get(&file).and_then(|file_batch| file_batch.backing_file.as_ref());
        if known.is_some_and(|known| known.place.serial == backing_file.place.serial) {
            return Ok(());
        }
        let object = open_place(backing, file, &backing_file.place).inspect_err(|_| {
            // The file may have a new name: the next attempt requests a new lease.
            self.writers.leases.give_up(file);
        })?;
        let writer = BackingWriter { object, grown: backing_file.grown };
        worker_batch.take(backing, file, writer, Some(backing_file.clone()))
    }

    /// Syncs all files of the batch and frees their buffered bytes.
    fn sync_batch(&self, service: &Arc<Service>, backing: &Backing, worker_batch: &mut WorkerBatch) {
        for (file, file_batch) in std::mem::take(&mut worker_batch.files) {
            let FileBatch { writer, backing_file, writes, written, sums } = file_batch;
            let synced = backing
                .ask(|_| writer.object.sync().and_then(|()| writer.object.version()))
                .and_then(|version| {
                    DrainEngine::check_same_file(backing, file, version.serial, backing_file.as_deref())
                })
                .and_then(|()| backing.ask(|_| verified(service, file, &writer, &sums)))
                .and_then(|()| {
                    backing.count_writeback(file);
                    self.writers.leases.count(file);
                    service.store.data().backing_all(file, &written)
                })
                .and_then(|freed| {
                    // The gaps belong to other servers. Recording them too keeps the list of ranges in the back end
                    // short.
                    let between = backing_file
                        .iter()
                        .flat_map(|backing_file| foreign(&backing_file.layout, service, &written));
                    let between: Vec<Span> = between.collect();
                    service.store.data().hollow(file, &between, Batch::default()).map(|()| freed)
                });
            // Some back ends assemble a file when its last writer closes it.
            backing.ask(|_| drop(writer));
            match synced {
                Ok(freed) => {
                    self.note_freed(freed);
                    let out = self.drain_queue().synced(file, &writes);
                    if out {
                        self.finalize(service, backing, file);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Stale => {
                    let mut drain_queue = self.drain_queue();
                    drain_queue.synced(file, &writes);
                    drain_queue.gone(file);
                }
                Err(error) => {
                    self.drain_queue().synced(file, &writes);
                    self.failed(service, file, error);
                }
            }
        }
        *worker_batch = WorkerBatch::default();
    }

    fn note_freed(&self, freed: u64) {
        if freed > 0 {
            self.freed.fetch_add(freed, Ordering::Relaxed);
            self.reset_stuck();
            self.space_freed.notify_waiters();
        }
    }

    /// All bytes of a file are written: sets its size, owner, mode and time, and ends its writeback mark.
    fn finalize(&self, service: &Arc<Service>, backing: &Backing, file: FileId) {
        // Finalizing would make reads of all holes go to the back end while a direct writer is active, and would
        // assemble a file that lies in parts again and again. It waits until the writer is done.
        let is_used = service.writers.is_written_directly(file)
            || (backing.is_held_open(file) && service.has_more_of(file));
        if is_used && !self.drain_queue().is_wanted(file) {
            return self.notify(|drain_queue| drain_queue.finished(file));
        }
        self.drain_queue().begin_finalizing(file);
        let (shared, last) = (service.homes.is_shared(file), self.last.load(Ordering::Relaxed));
        let finalized = match shared {
            true => self.finalize_part(service, file, last),
            false => service.layer.finalize(backing, file, last, None).map(Some),
        };
        let extras = match finalized {
            Ok(Some(extras)) => extras,
            // Other servers still drain bytes of it: they trigger the next attempt.
            Ok(None) => {
                return self.notify(|drain_queue| {
                    drain_queue.stop_finalizing(file);
                    drain_queue.finished(file);
                });
            }
            Err(error) => {
                self.drain_queue().stop_finalizing(file);
                return self.failed(service, file, error);
            }
        };
        self.losses.lock().extend(extras.notes);
        // Releases the memory that the file no longer needs.
        if let Err(error) = service.store.data().persist_size(file) {
            tracing::warn!(%file, %error, "cannot persist the size of a drained file; the next start persists it");
        }
        let backlog = service.store.data().backlog(file);
        let made = shared || service.layer.is_made(backing, file);
        self.notify(|drain_queue| {
            if !drain_queue.finalized(Instant::now(), file) {
                return;
            }
            for ticket in drain_queue.tickets.values_mut() {
                let is_drained =
                    matches!(backlog, Ok(left) if left.is_none_or(|left| left.oldest > ticket.begun));
                if made && is_drained && (!shared || ticket.is_drained_by_others(file)) {
                    ticket.gone(file);
                }
            }
        });
    }

    /// This server's bytes of a file are written: notifies the authority, which finalizes the file when all holders are
    /// done.
    fn finalize_part(&self, service: &Arc<Service>, file: FileId, last: bool) -> Result<Option<Extras>> {
        self.writers.leases.give_up(file);
        if !service.homes.is_authority(file) {
            service.writers.close_direct(file)?;
        }
        // The ticket has already found out that the other holders are done.
        let wanted = self.drain_queue().tickets.values().any(|ticket| ticket.drained.contains(&file));
        let notified = async {
            if !service.homes.is_authority(file) {
                let authority = service.members.members().authority(file);
                if let Err(error) = service.peers.ask(authority, PeerRequest::Drained { file }).await {
                    tracing::debug!(%file, %error, "cannot notify the authority of a drained file; it polls later");
                }
                return Ok(Some(Extras::default()));
            }
            if self.parts.are_busy(file) && !wanted {
                return Ok(None);
            }
            let extras = service.finalize_striped(file, last).await?;
            // The size has to be persisted before a store can be lost.
            if let Err(error) = service.striped.persist_size(file).await {
                tracing::debug!(%file, %error, "cannot persist the size of a drained file; it is persisted later");
            }
            Ok(Some(extras))
        };
        service.life.await_unless_it_ends(notified)?
    }

    fn failed(&self, service: &Service, file: FileId, error: Error) {
        let found = service.store.names().inode(file);
        if service.homes.is_authority(file) && found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // The file was removed meanwhile: that explains the error.
            return self.notify(|drain_queue| drain_queue.gone(file));
        }
        // A directory that does not exist in the back end, or has no writeback mark, has to be prepared again.
        let is_marked =
            |backing: &Arc<Backing>| backing.knows(file) == Ok(true) && backing.mark(file).is_some();
        let is_dir = service.backing.as_ref().is_some_and(is_marked) && service.homes.is_directory(file);
        self.fill_in_path(service, file);
        self.notify(|drain_queue| drain_queue.failed(Instant::now(), file, is_dir, error));
    }

    /// Fills in the path and owner of a file for failure reports.
    fn fill_in_path(&self, service: &Service, file: FileId) {
        let unknown = self.drain_queue().files.get(&file).is_some_and(|entry| !entry.path.starts_with('/'));
        if let (true, Some(backing)) = (unknown, &service.backing)
            && let Ok(called) = service.layer.display_path(backing, file)
            && let Some(entry) = self.drain_queue().files.get_mut(&file)
        {
            (entry.path, entry.user) = called;
        }
    }

    fn at_target(&self, target: TargetId, error: Error) -> Error {
        match self.targets.get(target.0 as usize) {
            Some(name) => error.within(format!("target {name}")),
            None => error,
        }
    }
}

/// What to do with a file after it was prepared.
enum Prepared {
    Gone,
    /// Its bytes are to be written.
    Queue(String, Uid, Layout),
    /// There is nothing to write.
    Finalize,
    /// Attributes are set when all entries exist.
    Later,
}

/// Which target holds which bytes of a file in the back end.
fn layout(backing: &Backing, path: &[Name]) -> Result<Layout> {
    let layout = backing.ask(|backend| backend.layout(path))?;
    let targets = layout.targets.into_iter().map(TargetId).collect();
    Ok(Layout::new(targets, layout.stripe))
}

/// The ranges of other servers between the first and the last of these spans.
fn foreign(layout: &forebay_model::Layout, service: &Service, written: &[(Span, Stamp)]) -> Vec<Span> {
    let start = written.iter().map(|(span, _)| span.start).min().unwrap_or(0);
    let end = written.iter().map(|(span, _)| span.end).max().unwrap_or(0);
    let others = layout.pieces(Span::new(start, end)).filter(|(server, _)| *server != service.config.server);
    others.map(|(_, span)| span).collect()
}

impl WorkerBatch {
    /// Adds a file, or replaces its writer: the new writer also syncs the old one's writes.
    fn take(
        &mut self,
        backing: &Backing,
        file: FileId,
        writer: BackingWriter,
        backing_file: Option<Arc<BackingFile>>,
    ) -> Result<()> {
        match self.files.get_mut(&file) {
            Some(file_batch) => {
                let serial = |writer: &BackingWriter| {
                    backing.ask(|_| writer.object.version()).map(|version| version.serial)
                };
                if serial(&file_batch.writer)? != serial(&writer)? {
                    return Err(replaced_in_backing(file));
                }
                let before = std::mem::replace(&mut file_batch.writer, writer);
                file_batch.backing_file = backing_file;
                backing.ask(|_| before.object.sync())
            }
            None => {
                let (writes, written, sums) = (Vec::new(), Vec::new(), Vec::new());
                self.files.insert(file, FileBatch { writer, backing_file, writes, written, sums });
                Ok(())
            }
        }
    }

    /// Drops a file from the batch; returns its unsynced writes.
    fn drop(&mut self, file: FileId) -> Vec<(JobId, BatchId)> {
        self.files.remove(&file).map_or_else(Vec::new, |file_batch| file_batch.writes)
    }
}

/// Sleeps, but not beyond the end of the server.
fn pause(service: &Service, wait: Duration) {
    let (stopping, begin) = (service.life.stopping(), Instant::now());
    while let Some(left) = wait.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        if *stopping.borrow() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Reads back what was written, where checksums were kept.
fn verified(
    service: &Service,
    file: FileId,
    writer: &BackingWriter,
    sums: &[(Span, Stamp, u32)],
) -> Result<()> {
    for &(span, stamp, sum) in sums {
        let mut back = vec![0; span.len() as usize];
        writer.object.forget(span);
        let count = writer.object.read_at(span.start, &mut back)?;
        if count != back.len() || crc32c(&back) != sum {
            still_differs(service, file, writer, (span, stamp))?;
        }
    }
    Ok(())
}

/// Compares again, byte by byte, those parts of a span that were not overwritten or truncated since they were drained,
/// while no other writer has the range: a later write may have reached the back end already.
fn still_differs(
    service: &Service,
    file: FileId,
    writer: &BackingWriter,
    (span, stamp): (Span, Stamp),
) -> Result<()> {
    let Some(_reserved) = service.writers.range_locks.reserve(file, span, None) else {
        let text = format!(
            "bytes {span} are being written to the back end by another writer: they are drained again"
        );
        return Err(Error::new(ErrorKind::Busy, text));
    };
    let now = match service.store.data().pick(file, span) {
        Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
        now => now?,
    };
    for Picked { span, bytes, .. } in now.iter().filter(|one| one.stamp == stamp) {
        let mut back = vec![0; span.len() as usize];
        writer.object.forget(*span);
        let count = writer.object.read_at(span.start, &mut back)?;
        if back[..count] != *bytes.as_ref() {
            let text = format!(
                "read-back mismatch at bytes {span}: the back end returned different data; the buffer keeps its copy"
            );
            return Err(Error::new(ErrorKind::Io, text));
        }
    }
    Ok(())
}

fn shown(path: &[Name]) -> String {
    path.iter().map(|name| format!("/{name}")).collect()
}
