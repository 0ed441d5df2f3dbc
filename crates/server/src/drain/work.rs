//! The workers: make behind, write, settle, let go.

use super::Engine;
use super::board::{Assignment, Board, Task};
use super::settings::Verify;
use crate::service::Service;
use crate::union::{Pen, Union};
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, FileKind, JobId, Name, Result, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::drain::{BatchId, Layout, TargetId};
use forebay_store::Picked;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a worker without work sleeps at most.
const NAP: Duration = Duration::from_millis(100);
/// What one worker has written and not settled, at most.
const UNSETTLED: u64 = 64 << 20;
const MOST_WRITES: usize = 256;
const MOST_FILES: usize = 64;

/// A file that a worker is writing.
struct Stint {
    pen: Pen,
    queue: JobId,
    writes: Vec<BatchId>,
    written: Vec<(Span, Stamp)>,
    /// Checksums of what was written, where they are asked for later.
    sums: Vec<(Span, Stamp, u32)>,
}

/// What one worker has in hand.
#[derive(Default)]
struct Hand {
    stints: HashMap<FileId, Stint>,
    bytes: u64,
    writes: usize,
}

/// One worker's thread.
pub(super) fn work(service: &Service) {
    let (Some(engine), Some(union)) = (&service.drain, &service.union) else { return };
    let stopping = service.stopping();
    let mut hand = Hand::default();
    let limit = UNSETTLED.min(service.store.data().usage().capacity / (2 * engine.workers as u64).max(16));
    while let Some(task) = engine.next(service, !hand.stints.is_empty(), &stopping) {
        match task {
            Task::Prepare(file) => engine.prepare(service, union, file),
            Task::Write(assignment) => {
                engine.write(service, union, &mut hand, assignment);
                if hand.bytes >= limit || hand.writes >= MOST_WRITES || hand.stints.len() >= MOST_FILES {
                    engine.settle(service, union, &mut hand);
                }
            }
            Task::Settle => engine.settle(service, union, &mut hand),
            Task::Finish(file) => engine.conclude(service, union, file),
        }
        engine.tell(|board| board.busy -= 1);
    }
    engine.settle(service, union, &mut hand);
}

impl Engine {
    /// The next task; none when the server ends.
    fn next(&self, service: &Service, unsettled: bool, stopping: &watch::Receiver<bool>) -> Option<Task> {
        let mut board = self.board();
        loop {
            if *stopping.borrow() {
                return None;
            }
            let now = (Tick(service.store.data().now().0), Instant::now());
            if let Some(task) = board.task(now, unsettled) {
                board.busy += 1;
                drop(board);
                return Some(task);
            }
            let waited = self.bell.wait_timeout(board, NAP);
            board = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    /// Whatever the board has to know of is told, and there may be something to do for others.
    fn tell(&self, tell: impl FnOnce(&mut Board)) {
        tell(&mut self.board());
        self.bell.notify_all();
    }

    fn prepare(&self, service: &Service, union: &Union, file: FileId) {
        match self.prepared(service, union, file) {
            Ok(Prepared::Queue(path, user, layout)) => {
                let dirty = service.store.data().dirty(file);
                if dirty.is_empty() {
                    return self.conclude(service, union, file);
                }
                let newest = dirty.iter().max_by_key(|piece| piece.stamp).map(|piece| piece.job);
                let priority = newest.map_or(0, |job| service.jobs.priority(job));
                let now = Tick(service.store.data().now().0);
                self.tell(|board| board.enqueue(now, (file, path, user), &layout, &dirty, priority));
            }
            Ok(Prepared::Conclude) => self.conclude(service, union, file),
            Ok(Prepared::Later) => self.tell(|board| {
                board.touch_dirs(&[file]);
                board.finished(file);
            }),
            Ok(Prepared::Gone) => self.tell(|board| board.gone(file)),
            Err(error) => self.failed(service, file, error),
        }
    }

    /// Makes or finds something behind.
    fn prepared(&self, service: &Service, union: &Union, file: FileId) -> Result<Prepared> {
        let now = Tick(service.store.data().now().0);
        let newest = service.store.data().dirty(file).into_iter().max_by_key(|piece| piece.stamp);
        let job = newest.map_or(JobId(0), |piece| piece.job);
        let wish = |size: u64| self.placement.layout(now, job, size);
        let Some(born) = service.bear(union, file, &wish)? else {
            return Ok(Prepared::Gone);
        };
        let path = shown(&born.path);
        {
            let mut board = self.board();
            if let Some(entry) = board.files.get_mut(&file) {
                (entry.path, entry.user) = (path.clone(), born.owner);
            }
            board.touch_dirs(&born.dirs);
        }
        match born.kind {
            FileKind::File => {
                let layout = union.ask(|backend| backend.layout(&born.path))?;
                let targets = layout.targets.into_iter().map(TargetId).collect();
                Ok(Prepared::Queue(path, born.owner, Layout::new(targets, layout.stripe)))
            }
            FileKind::Directory => Ok(Prepared::Later),
            FileKind::Symlink | FileKind::Special(_) => Ok(Prepared::Conclude),
        }
    }

    fn write(&self, service: &Service, union: &Union, hand: &mut Hand, assignment: Assignment) {
        let Assignment { queue, id, batch } = assignment;
        let (file, target, span) = (batch.file, batch.target, batch.span());
        let wait = self.board().valve.as_mut().map(|valve| valve.pass(Instant::now(), span.len()));
        if let Some(wait) = wait.filter(|wait| !wait.is_zero()) {
            std::thread::sleep(wait);
        }
        let written = self.written_now(service, union, hand, (file, queue), span);
        let now = Tick(service.store.data().now().0);
        match written {
            Ok(Some(bytes)) => {
                if let Some(stint) = hand.stints.get_mut(&file) {
                    stint.writes.push(id);
                }
                hand.bytes += bytes;
                hand.writes += 1;
                self.written.fetch_add(bytes, Ordering::Relaxed);
                self.tell(|board| board.wrote(now, queue, target, bytes));
            }
            Ok(None) => {
                let writes = [hand.drop(file), vec![id]].concat();
                self.tell(|board| {
                    board.wrote(now, queue, target, 0);
                    board.settled(file, queue, &writes);
                    board.gone(file);
                });
            }
            Err(error) => {
                if error.kind() == ErrorKind::NoSpace {
                    self.placement.filled(target.0);
                }
                let error = self.at_target(target, error);
                let writes = hand.drop(file);
                self.board().wrote(now, queue, target, 0);
                self.board().settled(file, queue, &[writes, vec![id]].concat());
                self.failed(service, file, error);
            }
        }
    }

    /// Writes what of a span is still in regions; nothing if the file has gone.
    fn written_now(
        &self,
        service: &Service,
        union: &Union,
        hand: &mut Hand,
        (file, queue): (FileId, JobId),
        span: Span,
    ) -> Result<Option<u64>> {
        if hand.stints.get(&file).is_none_or(|stint| stint.pen.grown < span.end) {
            let Some(pen) = service.pen(union, file)? else { return Ok(None) };
            match hand.stints.get_mut(&file) {
                // Another object: the first one's writes are synced by it.
                Some(stint) => {
                    let before = std::mem::replace(&mut stint.pen, pen);
                    union.ask(|_| before.object.sync())?;
                }
                None => {
                    let (writes, written, sums) = (Vec::new(), Vec::new(), Vec::new());
                    hand.stints.insert(file, Stint { pen, queue, writes, written, sums });
                }
            }
        }
        let picked = match service.store.data().pick(file, span) {
            Ok(picked) => picked,
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(stint) = hand.stints.get_mut(&file) else { return Ok(None) };
        let mut bytes = 0;
        for run in picked.chunk_by(|one, next| one.span.end == next.span.start) {
            let parts: Vec<&[u8]> = run.iter().map(|piece| piece.bytes.as_ref()).collect();
            union.ask(|_| stint.pen.object.write_at(run[0].span.start, &parts))?;
            bytes += run.iter().map(|piece| piece.span.len()).sum::<u64>();
        }
        for Picked { span, stamp, bytes } in &picked {
            stint.written.push((*span, *stamp));
            if self.settings.verify == Verify::ReadBack {
                stint.sums.push((*span, *stamp, crc32c(bytes.as_ref())));
            }
        }
        Ok(Some(bytes))
    }

    /// Sees that everything in hand is on its device, and lets go of it here.
    fn settle(&self, service: &Service, union: &Union, hand: &mut Hand) {
        for (file, stint) in std::mem::take(&mut hand.stints) {
            let Stint { pen, queue, writes, written, sums } = stint;
            let settled = union
                .ask(|_| pen.object.sync())
                .and_then(|()| union.ask(|_| verified(service, file, &pen, &sums)))
                .and_then(|()| {
                    union.count_claim(file);
                    service.store.data().behind_all(file, &written)
                });
            match settled {
                Ok(freed) => {
                    self.made_room(freed);
                    let out = self.board().settled(file, queue, &writes);
                    if out {
                        self.conclude(service, union, file);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Stale => {
                    let mut board = self.board();
                    board.settled(file, queue, &writes);
                    board.gone(file);
                }
                Err(error) => {
                    self.board().settled(file, queue, &writes);
                    self.failed(service, file, error);
                }
            }
        }
        (hand.bytes, hand.writes) = (0, 0);
    }

    fn made_room(&self, freed: u64) {
        if freed > 0 {
            self.freed.fetch_add(freed, Ordering::Relaxed);
            self.room.notify_waiters();
        }
    }

    /// Everything of a file is out: it gets its length, owner, mode and time, and is let go of.
    fn conclude(&self, service: &Service, union: &Union, file: FileId) {
        let extras = match service.conclude(union, file, self.last.load(Ordering::Relaxed)) {
            Ok(extras) => extras,
            Err(error) => return self.failed(service, file, error),
        };
        self.losses.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(extras.notes);
        // What need not be in memory any more goes.
        if let Err(error) = service.store.data().settle(file) {
            tracing::warn!(%file, %error, "a drained file could not be settled; the next start will do it");
        }
        let dirty = service.store.data().dirty(file);
        let oldest = dirty.iter().map(|piece| piece.stamp).min();
        self.tell(|board| {
            board.finished(file);
            board.touch_dirs(&extras.dirs);
            for ticket in board.tickets.values_mut() {
                if oldest.is_none_or(|oldest| oldest > ticket.begun) {
                    ticket.gone(file);
                }
            }
        });
    }

    fn failed(&self, service: &Service, file: FileId, error: Error) {
        let is_dir = service.is_directory(file);
        if error.kind() == ErrorKind::NotFound && service.store.names().inode(file).is_err() {
            return self.tell(|board| board.gone(file));
        }
        self.tell(|board| board.failed(Instant::now(), file, is_dir, error));
    }

    fn at_target(&self, target: TargetId, error: Error) -> Error {
        match self.targets.get(target.0 as usize) {
            Some(name) => error.within(format!("target {name}")),
            None => error,
        }
    }
}

/// What is to be done with something that is behind.
enum Prepared {
    Gone,
    /// Its bytes are to be written.
    Queue(String, Uid, Layout),
    /// There is nothing to write.
    Conclude,
    /// It is given its looks when everything is in it.
    Later,
}

impl Hand {
    /// Gives a file up; returns the writes that are not settled.
    fn drop(&mut self, file: FileId) -> Vec<BatchId> {
        self.stints.remove(&file).map_or_else(Vec::new, |stint| stint.writes)
    }
}

/// Reads back what was written, where checksums were kept of it.
fn verified(service: &Service, file: FileId, pen: &Pen, sums: &[(Span, Stamp, u32)]) -> Result<()> {
    for &(span, stamp, sum) in sums {
        let mut back = vec![0; span.len() as usize];
        let count = pen.object.read_at(span.start, &mut back)?;
        let is_same = count == back.len() && crc32c(&back) == sum;
        // What was cut meanwhile may be gone there too.
        let counts = || {
            service.store.data().pick(file, span).is_ok_and(|now| now.iter().any(|one| one.stamp == stamp))
        };
        if !is_same && counts() {
            let text = format!("bytes {span} came back from the back end as others than were written there");
            return Err(Error::new(ErrorKind::Io, text));
        }
    }
    Ok(())
}

fn shown(path: &[Name]) -> String {
    path.iter().map(|name| format!("/{name}")).collect()
}
