//! The way past the buffer: opened behind, queued for its targets, written together with its neighbours.

use super::lanes::Flight;
use super::rounds::{Rounds, Waits};
use super::{MOST_OPEN, OPENING, Opened, lock};
use crate::drain::{Engine, open_place};
use crate::service::Service;
use crate::union::Union;
use forebay_backend::Object;
use forebay_model::{Error, ErrorKind, FileId, Name, Result, ServerId, Span};
use forebay_policy::Tick;
use forebay_policy::drain::{Layout, TargetId};
use forebay_store::MAX_FILE;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Most objects by which one file is written at the same time.
const MOST_OBJECTS: usize = 4;
/// A file of several servers is made longer behind than it has to be, so that not every write asks for leave; it gets its
/// length when it is concluded.
const AHEAD: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// Whoever gives leave is told that the file is still being written after so long.
const RENEW: Duration = Duration::from_secs(5);

/// What waits for one target, and how many write there.
#[derive(Default)]
pub(super) struct Queue {
    pieces: Rounds<Piece>,
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
    /// The store is told that it is behind. False if somebody has cut the file or written there meanwhile, or it cannot be
    /// brought to its device where it has to be: then it has to be buffered.
    pub(crate) fn count(&self, service: &Service) -> Result<bool> {
        let Some(_aloft) = self.flight.rise() else { return Ok(false) };
        if service.ways.lanes.has_hidden(self.file) {
            service.count_behind(self.file);
        }
        if service.ways.lanes.is_veiled(self.file, self.span)
            && let Err(error) = self.opened.sync()
        {
            tracing::warn!(file = %self.file, %error, "what was written past the buffer cannot be synced");
            service.break_past(self.file);
            return Ok(false);
        }
        service.store.data().past(self.file, self.span)
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

impl Waits for Piece {
    fn place(&self) -> (FileId, u64) {
        (self.flown.file, self.span.start)
    }

    fn bytes(&self) -> u64 {
        self.span.len()
    }
}

impl Queue {
    /// The next pieces, in the order of files and offsets; nothing, and one writer less, if there are none.
    fn take(&mut self) -> Vec<Piece> {
        let pieces = self.pieces.take();
        if pieces.is_empty() {
            self.writers -= 1;
        }
        pieces
    }

    /// Everything, because nothing of it can be written: there is one writer less.
    fn give_up(&mut self) -> Vec<Piece> {
        self.writers -= 1;
        self.pieces.take_all()
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
        let (opened, flight) = self.open_past(file, span).await?;
        if !self.store.data().can_pass(file, span).unwrap_or(false) {
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
                self.ways.rest(file, &error);
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
        self.tell_waiting(target, &queue);
        let most = self.drain.as_ref().map_or(1, Engine::streams);
        if queue.writers < most.min(queue.pieces.len()) {
            queue.writers += 1;
            let service = self.clone();
            tokio::task::spawn_blocking(move || service.write_behind(target));
        }
    }

    /// Whoever gives out places is told what waits for a target, if that is not this server alone.
    fn tell_waiting(&self, target: TargetId, queue: &Queue) {
        if let Some(engine) = self.drain.as_ref().filter(|_| !self.is_alone()) {
            engine.wait_past(self, target, queue.pieces.bytes());
        }
    }

    /// One writer at a target: as long as something waits for it.
    fn write_behind(&self, target: TargetId) {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else { return };
        loop {
            let entered = engine.enter(self, target);
            let pieces = {
                let mut queue = lock(&self.ways.queues[target.0 as usize]);
                let pieces = if entered { queue.take() } else { queue.give_up() };
                self.tell_waiting(target, &queue);
                pieces
            };
            if !entered {
                let refuse = |piece: Piece| piece.flown.tell(Err(ErrorKind::Busy.into()));
                return pieces.into_iter().for_each(refuse);
            }
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
            engine.leave(self, target, bytes);
            if is_last {
                return;
            }
        }
    }

    /// What a file is written with past the buffer, and the span that is to be written; nothing if it cannot be.
    async fn open_past(self: &Arc<Service>, file: FileId, span: Span) -> Option<(Arc<Opened>, Flight)> {
        if let Some(reserved) = self.reserve_past(file, span) {
            return Some(reserved);
        }
        let _one = self.ways.opening[(file.0 % OPENING as u64) as usize].lock().await;
        if let Some(reserved) = self.reserve_past(file, span) {
            return Some(reserved);
        }
        let service = self.clone();
        let opening = tokio::task::spawn_blocking(move || match service.is_shared(file) {
            true => service.open_shared_now(file, span.end),
            false => service.open_past_now(file),
        });
        match opening.await.unwrap_or_else(|_| Err(ErrorKind::Io.into())) {
            Ok(opened) => opened,
            // Somebody is about to cut it, or to see it anew.
            Err(error) if error.kind() == ErrorKind::Busy => None,
            Err(error) => {
                tracing::warn!(%file, %error, "a file cannot be written past the buffer: it is buffered");
                self.ways.rest(file, &error);
                None
            }
        }?;
        self.reserve_past(file, span)
    }

    /// Reserves a span of a file that is open, and that this server has leave to write.
    fn reserve_past(&self, file: FileId, span: Span) -> Option<(Arc<Opened>, Flight)> {
        let opened = self.ways.lanes.opened(file)?;
        let Some((serial, asked)) = &opened.leave else {
            let flight = self.ways.lanes.reserve(file, span, Some(&opened))?;
            return Some((opened, flight));
        };
        let permits = self.drain.as_ref()?.permits();
        if lock(asked).elapsed() > RENEW {
            return None;
        }
        // Whoever takes leave back waits for this, and then for what was reserved meanwhile.
        let leave = permits.try_fly(file, span.end).filter(|leave| leave.born.place.serial == *serial)?;
        let flight = self.ways.lanes.reserve(file, span, Some(&opened));
        drop(leave);
        Some((opened, flight?))
    }

    /// Asks for leave to write a file of several servers behind so far, and opens it.
    fn open_shared_now(self: &Arc<Service>, file: FileId, end: u64) -> Result<Option<Arc<Opened>>> {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else { return Ok(None) };
        if self.ways.lanes.all_open().len() >= MOST_OPEN {
            return Ok(None);
        }
        let permits = engine.permits();
        let known = self.ways.lanes.opened(file);
        if let Some((_, asked)) = known.as_ref().and_then(|opened| opened.leave.as_ref())
            && lock(asked).elapsed() > RENEW
        {
            *lock(asked) = Instant::now();
            permits.give_up(file);
        }
        let far = end.saturating_add(end.clamp(*AHEAD.start(), *AHEAD.end())).min(MAX_FILE);
        let Some(leave) = permits.fly(file, end, || self.leave(file, far))? else { return Ok(None) };
        let place = &leave.born.place;
        let is_same =
            |opened: &Arc<Opened>| matches!(opened.leave, Some((serial, _)) if serial == place.serial);
        match known {
            Some(known) if is_same(&known) => return Ok(Some(known)),
            Some(_) => self.let_go_past(file)?,
            None => {}
        }
        let objects = |count| (0..count).map(|_| open_place(union, file, place)).collect();
        let opened = self.objects_of(union, engine, &place.path, Some(place.serial), objects);
        let opened = opened.inspect_err(|_| permits.give_up(file))?;
        self.begin_past(file, &opened, false)?;
        self.count_behind(file);
        let holes = self.own_holes(file, &leave.born.layout)?;
        Ok(Some(self.ways.lanes.open(file, opened, &holes)))
    }

    /// What this server holds of a file and has nothing of: whatever is behind there does not count.
    fn own_holes(&self, file: FileId, layout: &forebay_model::Layout) -> Result<Vec<Span>> {
        let data = self.store.data();
        let gaps = data.gaps(file, Span::new(0, data.facts(file)?.size))?;
        let own = |(server, _): &(ServerId, Span)| *server == self.config.server;
        Ok(gaps.into_iter().flat_map(|gap| layout.pieces(gap).filter(own)).map(|(_, span)| span).collect())
    }

    fn open_past_now(&self, file: FileId) -> Result<Option<Arc<Opened>>> {
        let (Some(engine), Some(union)) = (&self.drain, &self.union) else { return Ok(None) };
        if self.ways.lanes.all_open().len() >= MOST_OPEN {
            return Ok(None);
        }
        // Nobody knows how long it will be: it lies as the back end likes.
        let Some(born) = self.bear(union, file, &|_| None)? else { return Ok(None) };
        let objects = |count| {
            let pens = (0..count).map(|_| Ok(self.pen(union, file)?.map(|pen| pen.object)));
            // One that has no name any more has no pen.
            pens.collect::<Result<Option<Vec<_>>>>()?.ok_or_else(|| Error::from(ErrorKind::Busy))
        };
        let opened = self.objects_of(union, engine, &born.path, None, objects)?;
        self.begin_past(file, &opened, born.is_new)?;
        self.ways.lanes.unveil(file, union.ask(|_| opened.object().version())?.size);
        union.count_claim(file);
        Ok(self.open_claimed(union, file, opened))
    }

    /// A file behind, with as many objects as it is written by at the same time.
    fn objects_of(
        &self,
        union: &Union,
        engine: &Engine,
        path: &[Name],
        serial: Option<u64>,
        objects: impl FnOnce(usize) -> Result<Vec<Box<dyn Object>>>,
    ) -> Result<Opened> {
        let layout = union.ask(|backend| backend.layout(path))?;
        let targets: Vec<TargetId> = layout.targets.into_iter().map(TargetId).collect();
        let count = targets.len().saturating_mul(engine.streams()).clamp(1, MOST_OBJECTS);
        Ok(Opened::new(objects(count)?, Layout::new(targets, layout.stripe), serial))
    }

    /// Nothing more is written to a file past the buffer by what it was opened with; what was is on its device.
    pub(crate) fn let_go_past(&self, file: FileId) -> Result<()> {
        let lanes = &self.ways.lanes;
        if lanes.opened(file).is_none() {
            return Ok(());
        }
        let _quiet = lanes.quiet(file);
        self.settle_past(file)?;
        self.forget_past(file);
        Ok(())
    }

    /// Bytes of a file are about to come to be behind: whoever reads there looks again.
    fn count_behind(&self, file: FileId) {
        if let (Some(engine), Some(union)) = (&self.drain, &self.union) {
            union.count_claim(file);
            engine.permits().count(file);
        }
    }

    /// From now on the file can be written, unless somebody has concluded it meanwhile.
    fn open_claimed(&self, union: &Union, file: FileId, opened: Opened) -> Option<Arc<Opened>> {
        union.while_claimed(file, || self.ways.lanes.open(file, opened, &[]))
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
