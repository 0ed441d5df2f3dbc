//! The way past the buffer: opened behind, queued for its targets, written together with its neighbours.

use super::lanes::Flight;
use super::{MOST_OPEN, Opened, lock};
use crate::drain::Engine;
use crate::service::Service;
use crate::union::Union;
use forebay_model::{Error, ErrorKind, FileId, Result, Span};
use forebay_policy::Tick;
use forebay_policy::drain::{Layout, TargetId};
use forebay_store::Data;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::sync::oneshot;

/// Most objects by which one file is written at the same time.
const MOST_OBJECTS: usize = 4;
/// What one turn at a target takes at most.
const BATCH: usize = 32;
const BATCH_BYTES: u64 = 16 << 20;

/// What waits for one target.
#[derive(Default)]
pub(super) struct Queue {
    pieces: Vec<Piece>,
    writers: usize,
}

/// A part of a write that one target holds.
struct Piece {
    flown: Arc<Flown>,
    span: Span,
}

/// A write past the buffer. While it is held, nobody else writes these bytes behind.
pub(crate) struct Flown {
    file: FileId,
    span: Span,
    bytes: Arc<Vec<u8>>,
    opened: Arc<Opened>,
    /// Parts that are not written yet.
    left: AtomicUsize,
    /// Told when all are, or the first has failed.
    done: Mutex<Option<oneshot::Sender<Result<()>>>>,
    flight: Flight,
}

impl Flown {
    /// The store is told that it is behind. False if somebody has cut the file meanwhile: then it has to be buffered.
    pub(crate) fn count(&self, data: &Data) -> Result<bool> {
        match self.flight.rise() {
            Some(_aloft) => data.past(self.file, self.span).map(|()| true),
            None => Ok(false),
        }
    }

    fn part(&self, span: Span) -> &[u8] {
        &self.bytes[(span.start - self.span.start) as usize..(span.end - self.span.start) as usize]
    }

    fn tell(&self, result: Result<()>) {
        if let Some(done) = lock(&self.done).take() {
            // Whoever waited may have gone; then it was never answered, and does not count.
            let _ = done.send(result);
        }
    }

    fn landed(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell(Ok(()));
        }
    }
}

impl Queue {
    /// The next pieces, in the order of files and offsets; nothing, and one writer less, if there are none.
    fn take(&mut self) -> Vec<Piece> {
        self.pieces.sort_by_key(|piece| (piece.flown.file, piece.span.start));
        let mut bytes = 0;
        let fits = |piece: &&Piece| {
            bytes += piece.span.len();
            bytes <= BATCH_BYTES
        };
        let count = self.pieces.iter().take(BATCH).take_while(fits).count().max(1).min(self.pieces.len());
        if count == 0 {
            self.writers -= 1;
        }
        self.pieces.drain(..count).collect()
    }
}

impl Service {
    /// Writes bytes past the buffer. Nothing if they have to be buffered; otherwise they are behind, and count when the
    /// store was told.
    pub(crate) async fn fly(
        self: &Arc<Service>,
        file: FileId,
        span: Span,
        bytes: Arc<Vec<u8>>,
    ) -> Option<Arc<Flown>> {
        let opened = self.open_past(file).await?;
        let flight = self.ways.lanes.reserve(file, span, Some(&opened))?;
        if !self.store.data().is_blank(file, span).unwrap_or(false) {
            return None;
        }
        *lock(&opened.used) = Instant::now();
        let pieces: Vec<(TargetId, Span)> = opened.layout.cut(span).collect();
        let (done, is_done) = oneshot::channel();
        let flown = Arc::new(Flown {
            file,
            span,
            bytes,
            opened,
            left: AtomicUsize::new(pieces.len()),
            done: Mutex::new(Some(done)),
            flight,
        });
        for (target, span) in pieces {
            self.enqueue(target, Piece { flown: flown.clone(), span });
        }
        match is_done.await {
            Ok(Ok(())) => Some(flown),
            Ok(Err(error)) if error.kind() == ErrorKind::Busy => None,
            Ok(Err(error)) => {
                tracing::warn!(%file, %error, "a write past the buffer failed: writes are buffered for a while");
                self.ways.rest();
                None
            }
            Err(_) => None,
        }
    }

    fn enqueue(self: &Arc<Service>, target: TargetId, piece: Piece) {
        let Some(queue) = self.ways.queues.get(target.0 as usize) else {
            let text = format!("the back end has no target {target}");
            return piece.flown.tell(Err(Error::new(ErrorKind::Io, text)));
        };
        let mut queue = lock(queue);
        queue.pieces.push(piece);
        let most = self.drain.as_ref().map_or(1, Engine::streams);
        if queue.writers < most.min(queue.pieces.len()) {
            queue.writers += 1;
            let service = self.clone();
            tokio::task::spawn_blocking(move || service.write_behind(target));
        }
    }

    /// One writer at a target: as long as something waits for it.
    fn write_behind(&self, target: TargetId) {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else { return };
        loop {
            engine.enter(self, target);
            let pieces = lock(&self.ways.queues[target.0 as usize]).take();
            lock(&self.ways.meter).begin(Instant::now());
            let bytes = pieces.iter().map(|piece| piece.span.len()).sum();
            let is_last = pieces.is_empty();
            let follows = |one: &Piece, next: &Piece| {
                one.flown.file == next.flown.file && one.span.end == next.span.start
            };
            for run in pieces.chunk_by(follows) {
                write_run(union, run);
            }
            if let Some(rate) = lock(&self.ways.meter).end(Instant::now(), bytes) {
                let now = Tick(self.store.data().now().0);
                lock(&self.ways.router).measured(now, rate);
            }
            engine.leave(target, bytes);
            if is_last {
                return;
            }
        }
    }

    /// What a file is written with past the buffer; nothing if it cannot be.
    async fn open_past(self: &Arc<Service>, file: FileId) -> Option<Arc<Opened>> {
        if let Some(opened) = self.ways.lanes.opened(file) {
            return Some(opened);
        }
        let service = self.clone();
        let opening = tokio::task::spawn_blocking(move || service.open_past_now(file));
        match opening.await.unwrap_or_else(|_| Err(ErrorKind::Io.into())) {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%file, %error, "a file cannot be written past the buffer: it is buffered");
                self.ways.rest();
                None
            }
        }
    }

    fn open_past_now(&self, file: FileId) -> Result<Option<Arc<Opened>>> {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else { return Ok(None) };
        if self.ways.lanes.all_open().len() >= MOST_OPEN {
            return Ok(None);
        }
        // Nobody knows how long it will be: it lies as the back end likes.
        let Some(born) = self.bear(union, file, &|_| None)? else { return Ok(None) };
        let layout = union.ask(|backend| backend.layout(&born.path))?;
        let targets: Vec<TargetId> = layout.targets.into_iter().map(TargetId).collect();
        let count = targets.len().saturating_mul(engine.streams()).clamp(1, MOST_OBJECTS);
        let mut objects = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(pen) = self.pen(union, file)? else { return Ok(None) };
            objects.push(pen.object);
        }
        let opened = Opened::new(objects, Layout::new(targets, layout.stripe));
        Ok(self.open_claimed(union, file, opened))
    }

    /// From now on the file can be written, unless somebody has concluded it meanwhile.
    fn open_claimed(&self, union: &Union, file: FileId, opened: Opened) -> Option<Arc<Opened>> {
        union.while_claimed(file, || self.ways.lanes.open(file, opened))
    }
}

/// Writes pieces that follow each other as one.
fn write_run(union: &Union, run: &[Piece]) {
    let Some(first) = run.first() else { return };
    let parts: Vec<&[u8]> = run.iter().map(|piece| piece.flown.part(piece.span)).collect();
    let opened = &first.flown.opened;
    let risen: Option<Vec<_>> = run.iter().map(|piece| piece.flown.flight.rise()).collect();
    let written = match &risen {
        Some(_) => {
            let object = opened.object();
            let written = union.ask(|_| object.write_at(first.span.start, &parts));
            opened.dirty.store(true, Ordering::Release);
            written
        }
        None => Err(Error::new(ErrorKind::Busy, "the file was cut meanwhile")),
    };
    drop(risen);
    for piece in run {
        match &written {
            Ok(()) => piece.flown.landed(),
            Err(error) => piece.flown.tell(Err(error.clone())),
        }
    }
}
