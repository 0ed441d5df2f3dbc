//! The path of a direct write: the file is opened in the back end, the write is queued for its targets and written
//! together with its neighbours.

use super::rounds::{Rounds, Waits};
use super::{DirectIo, MOST_OPEN, OPENING};
use crate::backing::Backing;
use crate::drain::{DrainEngine, open_place};
use crate::writers::{Opened, RENEW, RangeReservation};
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Name, Result, ServerId, Span};
use forebay_policy::Tick;
use forebay_policy::drain::{Layout, TargetId};
use forebay_store::MAX_FILE;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;

/// Most objects with which one file is written at the same time.
const MOST_OBJECTS: usize = 4;
/// A striped file is extended further than necessary in the back end, so that not every write needs a new lease; it
/// gets its size when it is finalized.
const AHEAD: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;

/// The pieces that wait for one target, and the number of its writers.
#[derive(Default)]
pub(super) struct Queue {
    pieces: Rounds<Piece>,
    writers: usize,
}

/// The part of a write that one target holds.
struct Piece {
    write: Arc<DirectWrite>,
    span: Span,
}

/// A direct write. While it exists, no other writer has its range.
pub(crate) struct DirectWrite {
    file: FileId,
    span: Span,
    bytes: Arc<Vec<u8>>,
    opened: Arc<Opened>,
    /// Pieces that are not written yet.
    left: AtomicUsize,
    /// Notified when all pieces are written, or the first has failed.
    done: Mutex<Option<oneshot::Sender<Result<()>>>>,
    reservation: RangeReservation,
}

impl DirectWrite {
    /// Records in the store that the bytes are in the back end. False if the file was truncated or the range was
    /// written meanwhile, or if a necessary sync failed: then the write has to be buffered.
    pub(crate) fn count(&self, direct: &DirectIo) -> Result<bool> {
        let Some(_in_flight) = self.reservation.start_io() else { return Ok(false) };
        if direct.writers.range_locks.has_hidden(self.file) {
            direct.count_written(self.file);
        }
        if direct.writers.range_locks.is_stale(self.file, self.span)
            && let Err(error) = self.opened.sync()
        {
            tracing::warn!(file = %self.file, %error, "cannot sync a direct write");
            direct.writers.fail_direct(self.file);
            return Ok(false);
        }
        direct.store.data().record_direct(self.file, self.span)
    }

    fn part(&self, span: Span) -> &[u8] {
        &self.bytes[(span.start - self.span.start) as usize..(span.end - self.span.start) as usize]
    }

    fn notify(&self, result: Result<()>) {
        if let Some(done) = self.done.lock().take() {
            // The receiver may be gone; then the write was never acknowledged and does not count.
            let _ = done.send(result);
        }
    }

    fn piece_written(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.notify(Ok(()));
        }
    }
}

impl Waits for Piece {
    fn place(&self) -> (FileId, u64) {
        (self.write.file, self.span.start)
    }

    fn bytes(&self) -> u64 {
        self.span.len()
    }
}

impl Queue {
    /// The next pieces, ordered by file and offset; if there are none, an empty list and one writer less.
    fn take(&mut self) -> Vec<Piece> {
        let pieces = self.pieces.take();
        if pieces.is_empty() {
            self.writers -= 1;
        }
        pieces
    }

    /// All pieces, because none can be written; one writer less.
    fn give_up(&mut self) -> Vec<Piece> {
        self.writers -= 1;
        self.pieces.take_all()
    }
}

impl DirectIo {
    /// Writes bytes directly to the back end. `None` if they have to be buffered; otherwise `DirectWrite::count` makes
    /// them visible.
    pub(crate) async fn write(
        self: &Arc<DirectIo>,
        file: FileId,
        span: Span,
        bytes: Arc<Vec<u8>>,
    ) -> Option<Arc<DirectWrite>> {
        let (opened, reservation) = self.open_direct(file, span).await?;
        if !self.store.data().can_pass(file, span).unwrap_or(false) {
            return None;
        }
        *opened.used.lock() = Instant::now();
        let pieces: Vec<(TargetId, Span)> = opened.layout.cut(span).collect();
        let (done, is_done) = oneshot::channel();
        let write = Arc::new(DirectWrite {
            file,
            span,
            bytes,
            opened,
            left: AtomicUsize::new(pieces.len()),
            done: Mutex::new(Some(done)),
            reservation,
        });
        for (target, span) in pieces {
            self.enqueue(target, Piece { write: write.clone(), span });
        }
        match is_done.await {
            Ok(Ok(())) => Some(write),
            Ok(Err(error)) if error.kind() == ErrorKind::Busy => None,
            Ok(Err(error)) => {
                tracing::warn!(%file, %error, "a direct write failed; writes are buffered for a while");
                self.pauses.begin(file, &error);
                None
            }
            Err(_) => None,
        }
    }

    fn enqueue(self: &Arc<DirectIo>, target: TargetId, piece: Piece) {
        let Some(queue) = self.queues.get(target.0 as usize) else {
            let text = format!("the back end has no target {target}");
            return piece.write.notify(Err(Error::new(ErrorKind::Io, text)));
        };
        let mut queue = queue.lock();
        queue.pieces.push(piece);
        self.notify_waiting(target, &queue);
        let most = self.drain.as_ref().map_or(1, |engine| engine.streams());
        if queue.writers < most.min(queue.pieces.len()) {
            queue.writers += 1;
            let direct = self.clone();
            tokio::task::spawn_blocking(move || direct.write_queued(target));
        }
    }

    /// Reports to the arbiter how many bytes wait for a target, if there are other servers.
    fn notify_waiting(&self, target: TargetId, queue: &Queue) {
        if let Some(engine) = self.drain.as_ref().filter(|_| !self.life.is_alone()) {
            engine.wait_direct(target, queue.pieces.bytes());
        }
    }

    /// One writer at a target: runs as long as pieces wait.
    fn write_queued(&self, target: TargetId) {
        let (Some(engine), Some(backing)) = (&self.drain, &self.backing) else { return };
        loop {
            let entered = engine.enter(target);
            let pieces = {
                let mut queue = self.queues[target.0 as usize].lock();
                let pieces = if entered { queue.take() } else { queue.give_up() };
                self.notify_waiting(target, &queue);
                pieces
            };
            if !entered {
                let refuse = |piece: Piece| piece.write.notify(Err(ErrorKind::Busy.into()));
                return pieces.into_iter().for_each(refuse);
            }
            self.meter.lock().begin(Instant::now());
            let bytes = pieces.iter().map(|piece| piece.span.len()).sum();
            let is_last = pieces.is_empty();
            let follows = |one: &Piece, next: &Piece| {
                one.write.file == next.write.file && one.span.end == next.span.start
            };
            for run in pieces.chunk_by(follows) {
                write_run(backing, run);
            }
            if let Some(rate) = self.meter.lock().end(Instant::now(), bytes) {
                let now = Tick(self.store.data().now().0);
                self.router.lock().measured(now, rate);
            }
            engine.leave(target, bytes);
            if is_last {
                return;
            }
        }
    }

    /// The opened file and the reserved range for a direct write; `None` if it is not possible.
    async fn open_direct(
        self: &Arc<DirectIo>,
        file: FileId,
        span: Span,
    ) -> Option<(Arc<Opened>, RangeReservation)> {
        if let Some(reserved) = self.reserve_direct(file, span) {
            return Some(reserved);
        }
        let _one = self.opening[(file.0 % OPENING as u64) as usize].lock().await;
        if let Some(reserved) = self.reserve_direct(file, span) {
            return Some(reserved);
        }
        let direct = self.clone();
        let opening = tokio::task::spawn_blocking(move || match direct.homes.is_shared(file) {
            true => direct.open_shared_now(file, span.end),
            false => direct.open_direct_now(file),
        });
        match opening.await.unwrap_or_else(|_| Err(ErrorKind::Io.into())) {
            Ok(opened) => opened,
            // The file is about to be truncated or finalized.
            Err(error) if error.kind() == ErrorKind::Busy => None,
            Err(error) => {
                tracing::warn!(%file, %error, "cannot open a file for direct writes; its writes are buffered");
                self.pauses.begin(file, &error);
                None
            }
        }?;
        self.reserve_direct(file, span)
    }

    /// Reserves a range of an open file for which this server holds a lease, if it needs one.
    fn reserve_direct(&self, file: FileId, span: Span) -> Option<(Arc<Opened>, RangeReservation)> {
        let opened = self.writers.range_locks.opened(file)?;
        let Some((serial, requested)) = &opened.lease else {
            let reservation = self.writers.range_locks.reserve(file, span, Some(&opened))?;
            return Some((opened, reservation));
        };
        let write_leases = &self.writers.leases;
        if requested.lock().elapsed() > RENEW {
            return None;
        }
        // A suspension waits for this lease, and then for the reserved ranges.
        let lease = write_leases
            .try_begin(file, span.end)
            .filter(|lease| lease.backing_file.place.serial == *serial)?;
        let reservation = self.writers.range_locks.reserve(file, span, Some(&opened));
        drop(lease);
        Some((opened, reservation?))
    }

    /// Requests a lease for a striped file up to `end`, and opens the file.
    fn open_shared_now(&self, file: FileId, end: u64) -> Result<Option<Arc<Opened>>> {
        let (Some(engine), Some(backing)) = (&self.drain, &self.backing) else { return Ok(None) };
        if self.writers.range_locks.all_open().len() >= MOST_OPEN {
            return Ok(None);
        }
        let write_leases = &self.writers.leases;
        let known = self.writers.range_locks.opened(file);
        if let Some((_, requested)) = known.as_ref().and_then(|opened| opened.lease.as_ref())
            && requested.lock().elapsed() > RENEW
        {
            *requested.lock() = Instant::now();
            write_leases.give_up(file);
        }
        let far = end.saturating_add(end.clamp(*AHEAD.start(), *AHEAD.end())).min(MAX_FILE);
        let Some(lease) = write_leases.write_direct(file, end, || engine.request_lease(file, far))? else {
            return Ok(None);
        };
        let place = &lease.backing_file.place;
        let is_same =
            |opened: &Arc<Opened>| matches!(opened.lease, Some((serial, _)) if serial == place.serial);
        match known {
            Some(known) if is_same(&known) => return Ok(Some(known)),
            Some(_) => self.writers.close_direct(file)?,
            None => {}
        }
        let objects = |count| (0..count).map(|_| open_place(backing, file, place)).collect();
        let opened = self.objects_of(backing, engine, &place.path, Some(place.serial), objects);
        let opened = opened.inspect_err(|_| write_leases.give_up(file))?;
        self.writers.begin_direct(file, &opened, false)?;
        self.count_written(file);
        let holes = self.own_holes(file, &lease.backing_file.layout)?;
        Ok(Some(self.writers.range_locks.open(file, opened, &holes)))
    }

    /// The holes in this server's part of a file: bytes there in the back end do not count.
    fn own_holes(&self, file: FileId, layout: &forebay_model::Layout) -> Result<Vec<Span>> {
        let data = self.store.data();
        let gaps = data.gaps(file, Span::new(0, data.facts(file)?.size))?;
        let own = |(server, _): &(ServerId, Span)| *server == self.own;
        Ok(gaps.into_iter().flat_map(|gap| layout.pieces(gap).filter(own)).map(|(_, span)| span).collect())
    }

    fn open_direct_now(&self, file: FileId) -> Result<Option<Arc<Opened>>> {
        let (Some(engine), Some(backing)) = (&self.drain, &self.backing) else { return Ok(None) };
        if self.writers.range_locks.all_open().len() >= MOST_OPEN {
            return Ok(None);
        }
        // The final size is unknown: the back end chooses the layout.
        let Some(backing_file) = self.layer.create_backing(backing, file, &|_| None)? else {
            return Ok(None);
        };
        let objects = |count| {
            let writers =
                (0..count).map(|_| Ok(self.layer.writer(backing, file)?.map(|writer| writer.object)));
            // A file that has no name any more has no writer.
            writers.collect::<Result<Option<Vec<_>>>>()?.ok_or_else(|| Error::from(ErrorKind::Busy))
        };
        let opened = self.objects_of(backing, engine, &backing_file.path, None, objects)?;
        self.writers.begin_direct(file, &opened, backing_file.is_new)?;
        self.writers.range_locks.clear_stale(file, backing.ask(|_| opened.object().version())?.size);
        backing.count_writeback(file);
        Ok(self.open_marked(backing, file, opened))
    }

    /// A file in the back end with as many objects as it has concurrent writers.
    fn objects_of(
        &self,
        backing: &Backing,
        engine: &DrainEngine,
        path: &[Name],
        serial: Option<u64>,
        objects: impl FnOnce(usize) -> Result<Vec<Box<dyn Object>>>,
    ) -> Result<Opened> {
        let layout = backing.ask(|backend| backend.layout(path))?;
        let targets: Vec<TargetId> = layout.targets.into_iter().map(TargetId).collect();
        let count = targets.len().saturating_mul(engine.streams()).clamp(1, MOST_OBJECTS);
        Ok(Opened::new(objects(count)?, Layout::new(targets, layout.stripe), serial))
    }

    /// Bytes of a file are about to reach the back end: concurrent readers have to retry.
    fn count_written(&self, file: FileId) {
        if let Some(backing) = &self.backing {
            backing.count_writeback(file);
            self.writers.leases.count(file);
        }
    }

    /// Opens the file for direct writes, unless it was finalized meanwhile.
    fn open_marked(&self, backing: &Backing, file: FileId, opened: Opened) -> Option<Arc<Opened>> {
        backing.while_marked(file, || self.writers.range_locks.open(file, opened, &[]))
    }
}

/// Writes adjacent pieces as one.
fn write_run(backing: &Backing, run: &[Piece]) {
    let Some(first) = run.first() else { return };
    let parts: Vec<&[u8]> = run.iter().map(|piece| piece.write.part(piece.span)).collect();
    let opened = &first.write.opened;
    let in_flight: Option<Vec<_>> = run.iter().map(|piece| piece.write.reservation.start_io()).collect();
    let written = match &in_flight {
        Some(_) => {
            let object = opened.object();
            let written = backing.ask(|_| object.write_at(first.span.start, &parts));
            opened.dirty.store(true, Ordering::Release);
            written
        }
        None => Err(Error::new(ErrorKind::Busy, "the file was truncated meanwhile")),
    };
    drop(in_flight);
    for piece in run {
        match &written {
            Ok(()) => piece.write.piece_written(),
            Err(error) => piece.write.notify(Err(error.clone())),
        }
    }
}
