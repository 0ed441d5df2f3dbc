//! The workers: make behind, write, settle, let go.

use super::Engine;
use super::board::{Assignment, Board, Task};
use super::remake::other_by_now;
use super::settings::Verify;
use super::shared::open_place;
use crate::service::Service;
use crate::union::{Extras, Pen, Union};
use crc32c::crc32c;
use forebay_model::{Error, ErrorKind, FileId, FileKind, JobId, Name, Result, Span, Stamp, Uid};
use forebay_policy::Tick;
use forebay_policy::drain::{BatchId, Layout, TargetId};
use forebay_store::{Batch, Picked};
use forebay_wire::{Born, PeerRequest};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a worker sleeps at most, with something in hand that is not settled and with nothing.
const NAP: Duration = Duration::from_millis(100);
const SLEEP: Duration = Duration::from_secs(1);
/// What one worker has written and not settled, at most.
const UNSETTLED: u64 = 64 << 20;
const MOST_WRITES: usize = 256;
const MOST_FILES: usize = 64;

/// A file that a worker is writing.
struct Stint {
    pen: Pen,
    /// What its authority said, if other servers hold bytes of it too.
    born: Option<Arc<Born>>,
    writes: Vec<(JobId, BatchId)>,
    written: Vec<(Span, Stamp)>,
    /// Checksums of what was written, where they are asked for later.
    sums: Vec<(Span, Stamp, u32)>,
}

/// What one worker has in hand.
#[derive(Default)]
struct Hand {
    stints: HashMap<FileId, Stint>,
    /// Whose bytes these are.
    queues: BTreeSet<JobId>,
    bytes: u64,
    writes: usize,
}

/// One worker's thread.
pub(super) fn work(service: &Arc<Service>) {
    let (Some(engine), Some(union)) = (&service.drain, &service.union) else { return };
    let stopping = service.stopping();
    let mut hand = Hand::default();
    let limit = UNSETTLED.min(service.store.data().usage().capacity / (2 * engine.workers as u64).max(16));
    while let Some(task) = engine.next(service, &hand, &stopping) {
        match task {
            Task::Prepare(file) => {
                engine.prepare(service, union, file);
                engine.board().preparing -= 1;
            }
            Task::Write(assignment) => {
                engine.write(service, union, &mut hand, assignment);
                let full =
                    hand.bytes >= limit || hand.writes >= MOST_WRITES || hand.stints.len() >= MOST_FILES;
                if full || engine.board().has_given_all_of(&hand.queues) {
                    // Somebody else can have the place meanwhile.
                    engine.bell.notify_one();
                    engine.settle(service, union, &mut hand);
                }
            }
            Task::Settle => engine.settle(service, union, &mut hand),
            Task::Finish(file) => engine.conclude(service, union, file),
        }
        let busy = {
            let mut board = engine.board();
            board.busy -= 1;
            board.busy
        };
        // Directories wait until nothing else is done.
        if busy == 0 {
            engine.bell.notify_one();
        }
    }
    engine.settle(service, union, &mut hand);
}

impl Engine {
    /// The next task; none when the server ends.
    fn next(&self, service: &Service, hand: &Hand, stopping: &watch::Receiver<bool>) -> Option<Task> {
        let unsettled = !hand.stints.is_empty();
        let (mut board, begin) = (self.board(), Instant::now());
        loop {
            if *stopping.borrow() {
                return None;
            }
            let now = (Tick(service.store.data().now().0), Instant::now());
            // Whoever finds no place just now may find one in a moment, and one sync for each write costs more than the write.
            let settles = unsettled && (board.has_given_all_of(&hand.queues) || begin.elapsed() >= NAP);
            let task = board.task(now, settles);
            self.indexing_since(now.1);
            if std::mem::take(&mut board.places.news) {
                self.talk.notify_waiters();
            }
            if let Some(task) = task {
                board.busy += 1;
                drop(board);
                // Whether there is more to do, the next one finds out.
                self.bell.notify_one();
                return Some(task);
            }
            let waited = self.bell.wait_timeout(board, if unsettled { NAP } else { SLEEP });
            board = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }

    pub(super) fn indexing_since(&self, begin: Instant) {
        let took = u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.indexed.fetch_add(took, Ordering::Relaxed);
    }

    /// Whatever the board has to know of is told, and there may be something to do for others.
    pub(super) fn tell(&self, tell: impl FnOnce(&mut Board)) {
        self.tell_of_places(tell);
        self.bell.notify_one();
    }

    /// The same of what others have something to do for only if there are new places.
    pub(super) fn tell_of_places(&self, tell: impl FnOnce(&mut Board)) {
        let mut board = self.board();
        tell(&mut board);
        if std::mem::take(&mut board.places.news) {
            self.talk.notify_waiters();
        }
        let (fresh, at_door) = (std::mem::take(&mut board.places.fresh), board.at_door);
        drop(board);
        if fresh {
            self.bell.notify_one();
        }
        if at_door > 0 {
            self.door.notify_all();
        }
    }

    fn prepare(&self, service: &Arc<Service>, union: &Union, file: FileId) {
        match self.prepared(service, union, file) {
            Ok(Prepared::Queue(path, user, layout)) => {
                let begin = Instant::now();
                let dirty = service.store.data().dirty(file);
                self.indexing_since(begin);
                if dirty.is_empty() {
                    return self.conclude(service, union, file);
                }
                let newest = dirty.iter().max_by_key(|piece| piece.stamp).map(|piece| piece.job);
                let priority = newest.map_or(0, |job| service.jobs.priority(job));
                let now = Tick(service.store.data().now().0);
                self.tell(|board| {
                    let begin = Instant::now();
                    board.enqueue(now, (file, path, user), &layout, &dirty, priority);
                    self.indexing_since(begin);
                });
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
    fn prepared(&self, service: &Arc<Service>, union: &Union, file: FileId) -> Result<Prepared> {
        if service.is_shared(file) {
            return self.prepared_shared(service, union, file);
        }
        let wish = self.wish(service, file);
        let Some(born) = service.bear(union, file, &wish)? else {
            return Ok(Prepared::Gone);
        };
        let path = shown(&born.path);
        {
            let mut board = self.board();
            if let Some(entry) = board.files.get_mut(&file) {
                (entry.path, entry.user) = (path.clone(), born.owner);
            }
        }
        match born.kind {
            FileKind::File => Ok(Prepared::Queue(path, born.owner, layout(union, &born.path)?)),
            FileKind::Directory => Ok(Prepared::Later),
            FileKind::Symlink | FileKind::Special(_) => Ok(Prepared::Conclude),
        }
    }

    /// Has a file behind of which other servers hold bytes, or the name.
    fn prepared_shared(&self, service: &Arc<Service>, union: &Union, file: FileId) -> Result<Prepared> {
        // Nobody knows what others wrote to one that is open: to claim it would be to overlook what somebody else changes behind.
        let last = self.last.load(Ordering::Relaxed);
        if !last && service.is_authority(file) && service.is_behind_by_all(union, file)? {
            return Ok(Prepared::Conclude);
        }
        let size = service.store.data().facts(file)?.size;
        let Some(flight) = self.permits.fly(file, size, || service.leave(file, 0))? else {
            return Ok(Prepared::Gone);
        };
        let path = shown(&flight.born.place.path);
        if let Some(entry) = self.board().files.get_mut(&file) {
            (entry.path, entry.user) = (path.clone(), flight.born.owner);
        }
        Ok(Prepared::Queue(path, flight.born.owner, layout(union, &flight.born.place.path)?))
    }

    fn write(&self, service: &Arc<Service>, union: &Union, hand: &mut Hand, assignment: Assignment) {
        let Assignment { queue, id, batch } = assignment;
        let (file, target, span) = (batch.file, batch.target, batch.span());
        let wait = self.board().valve.as_mut().map(|valve| valve.pass(Instant::now(), span.len()));
        pause(service, wait.unwrap_or_default());
        let written = self.written_now(service, union, hand, file, span);
        let now = Tick(service.store.data().now().0);
        match written {
            Ok(Some(bytes)) => {
                if let Some(stint) = hand.stints.get_mut(&file) {
                    stint.writes.push((queue, id));
                    hand.queues.insert(queue);
                }
                hand.bytes += bytes;
                hand.writes += 1;
                self.written.fetch_add(bytes, Ordering::Relaxed);
                self.tell_of_places(|board| board.wrote(now, queue, target, bytes));
            }
            Ok(None) => {
                let writes = [hand.drop(file), vec![(queue, id)]].concat();
                self.tell(|board| {
                    board.wrote(now, queue, target, 0);
                    board.settled(file, &writes);
                    board.gone(file);
                });
            }
            Err(error) => {
                if error.kind() == ErrorKind::NoSpace {
                    self.placement.filled(target.0);
                }
                let error = self.at_target(target, error);
                let writes = [hand.drop(file), vec![(queue, id)]].concat();
                self.tell_of_places(|board| {
                    board.wrote(now, queue, target, 0);
                    board.settled(file, &writes);
                });
                self.failed(service, file, error);
            }
        }
    }

    /// Writes what of a span is still in regions; nothing if the file has gone.
    fn written_now(
        &self,
        service: &Arc<Service>,
        union: &Union,
        hand: &mut Hand,
        file: FileId,
        span: Span,
    ) -> Result<Option<u64>> {
        // As long as it is held nobody cuts the file behind.
        let mut _flight = None;
        if service.is_shared(file) {
            let Some(flight) = self.permits.fly(file, span.end, || service.leave(file, 0))? else {
                return Ok(None);
            };
            self.open_shared(union, hand, file, &flight.born)?;
            _flight = Some(flight);
        } else if hand.stints.get(&file).is_none_or(|stint| stint.pen.grown < span.end) {
            let Some(pen) = service.pen(union, file)? else { return Ok(None) };
            hand.take(union, file, pen, None)?;
        }
        // What somebody writes there already, or is about to cut off, leaves later if it is still here then.
        let Some(flight) = service.ways.lanes.reserve(file, span, None) else { return Ok(Some(0)) };
        let Some(_aloft) = flight.rise() else { return Ok(Some(0)) };
        // It may have been concluded since it was opened: what is written then would count as somebody else's doing.
        if !service.is_shared(file) && union.claimed(file).is_none() {
            return Ok(Some(0));
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

    /// Takes up a file of which other servers hold bytes, or the name.
    fn open_shared(&self, union: &Union, hand: &mut Hand, file: FileId, born: &Arc<Born>) -> Result<()> {
        let known = hand.stints.get(&file).and_then(|stint| stint.born.as_ref());
        if known.is_some_and(|known| known.place.serial == born.place.serial) {
            return Ok(());
        }
        let object = open_place(union, file, &born.place).inspect_err(|_| {
            // It may have another name by now: that is asked the next time.
            self.permits.give_up(file);
        })?;
        let pen = Pen { object, grown: born.grown };
        hand.take(union, file, pen, Some(born.clone()))
    }

    /// Sees that everything in hand is on its device, and lets go of it here.
    fn settle(&self, service: &Arc<Service>, union: &Union, hand: &mut Hand) {
        for (file, stint) in std::mem::take(&mut hand.stints) {
            let Stint { pen, born, writes, written, sums } = stint;
            let settled = union
                .ask(|_| pen.object.sync().and_then(|()| pen.object.version()))
                .and_then(|version| Engine::is_there(union, file, version.serial, born.as_deref()))
                .and_then(|()| union.ask(|_| verified(service, file, &pen, &sums)))
                .and_then(|()| {
                    union.count_claim(file);
                    self.permits.count(file);
                    service.store.data().behind_all(file, &written)
                })
                .and_then(|freed| {
                    // What lies between belongs to others: with it, what is behind is few ranges.
                    let between = born.iter().flat_map(|born| foreign(&born.layout, service, &written));
                    let between: Vec<Span> = between.collect();
                    service.store.data().hollow(file, &between, Batch::default()).map(|()| freed)
                });
            // Some back ends put a file together when the last who writes to it lets go.
            union.ask(|_| drop(pen));
            match settled {
                Ok(freed) => {
                    self.made_room(freed);
                    let out = self.board().settled(file, &writes);
                    if out {
                        self.conclude(service, union, file);
                    }
                }
                Err(error) if error.kind() == ErrorKind::Stale => {
                    let mut board = self.board();
                    board.settled(file, &writes);
                    board.gone(file);
                }
                Err(error) => {
                    self.board().settled(file, &writes);
                    self.failed(service, file, error);
                }
            }
        }
        *hand = Hand::default();
    }

    fn made_room(&self, freed: u64) {
        if freed > 0 {
            self.freed.fetch_add(freed, Ordering::Relaxed);
            self.goes_on();
            self.room.notify_waiters();
        }
    }

    /// Everything of a file is out: it gets its length, owner, mode and time, and is let go of.
    fn conclude(&self, service: &Arc<Service>, union: &Union, file: FileId) {
        // Whoever writes it past the buffer would meet bytes behind in all its holes, and what lies in parts would be put
        // together again and again: it is done when he is.
        let is_used = service.is_written_past(file) || (union.is_kept(file) && service.has_more_of(file));
        if is_used && !self.board().is_wanted(file) {
            return self.tell(|board| board.finished(file));
        }
        let (shared, last) = (service.is_shared(file), self.last.load(Ordering::Relaxed));
        let concluded = match shared {
            true => self.conclude_part(service, file, last),
            false => service.conclude(union, file, last, None).map(Some),
        };
        let extras = match concluded {
            Ok(Some(extras)) => extras,
            // Others are at work on it: it is concluded when they are done.
            Ok(None) => return self.tell(|board| board.finished(file)),
            Err(error) => return self.failed(service, file, error),
        };
        self.losses.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(extras.notes);
        // What need not be in memory any more goes.
        if let Err(error) = service.store.data().settle(file) {
            tracing::warn!(%file, %error, "a drained file could not be settled; the next start will do it");
        }
        let backlog = service.store.data().backlog(file);
        let made = shared || service.is_made(union, file);
        self.tell(|board| {
            board.finished(file);
            for ticket in board.tickets.values_mut() {
                let is_out =
                    matches!(backlog, Ok(left) if left.is_none_or(|left| left.oldest > ticket.begun));
                if made && is_out && (!shared || ticket.is_out(file)) {
                    ticket.gone(file);
                }
            }
        });
    }

    /// What this server holds of a file is out: whoever has its name is told, and sees to the rest when all are done.
    fn conclude_part(&self, service: &Arc<Service>, file: FileId, last: bool) -> Result<Option<Extras>> {
        self.permits.give_up(file);
        if !service.is_authority(file) {
            service.let_go_past(file)?;
        }
        // Whoever waits for it has asked the others, and they are done.
        let wanted = self.board().tickets.values().any(|ticket| ticket.out.contains(&file));
        let told = async {
            if !service.is_authority(file) {
                let authority = service.members.members().authority(file);
                if let Err(error) = service.ask(authority, PeerRequest::Drained { file }).await {
                    tracing::debug!(%file, %error, "that a file is drained will be found out");
                }
                return Ok(Some(Extras::default()));
            }
            if self.parts.are_busy(file) && !wanted {
                return Ok(None);
            }
            let extras = service.conclude_shared(file, last).await?;
            // That all of it is behind has to be known before a store can be lost without it.
            if let Err(error) = service.settle(file).await {
                tracing::debug!(%file, %error, "the length of a file will be noted later");
            }
            Ok(Some(extras))
        };
        service.await_unless_it_ends(told)?
    }

    fn failed(&self, service: &Service, file: FileId, error: Error) {
        let found = service.store.names().inode(file);
        if service.is_authority(file) && found.is_err_and(|error| error.kind() == ErrorKind::NotFound) {
            // Whatever went wrong, it did so because it was removed.
            return self.tell(|board| board.gone(file));
        }
        // What is not behind at all has to be made first, and what is not claimed has to be looked at.
        let is_claimed = |union: &Arc<Union>| union.knows(file) == Ok(true) && union.claimed(file).is_some();
        let is_dir = service.union.as_ref().is_some_and(is_claimed) && service.is_directory(file);
        self.name(service, file);
        self.tell(|board| board.failed(Instant::now(), file, is_dir, error));
    }

    /// Whoever is told of a file wants to know which it is, and whose.
    fn name(&self, service: &Service, file: FileId) {
        let unknown = self.board().files.get(&file).is_some_and(|entry| !entry.path.starts_with('/'));
        if let (true, Some(union)) = (unknown, &service.union)
            && let Ok(called) = service.path_for_people(union, file)
            && let Some(entry) = self.board().files.get_mut(&file)
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

/// Which target holds which bytes of something behind.
fn layout(union: &Union, path: &[Name]) -> Result<Layout> {
    let layout = union.ask(|backend| backend.layout(path))?;
    let targets = layout.targets.into_iter().map(TargetId).collect();
    Ok(Layout::new(targets, layout.stripe))
}

/// What other servers hold of a file between the first and the last of these.
fn foreign(layout: &forebay_model::Layout, service: &Service, written: &[(Span, Stamp)]) -> Vec<Span> {
    let start = written.iter().map(|(span, _)| span.start).min().unwrap_or(0);
    let end = written.iter().map(|(span, _)| span.end).max().unwrap_or(0);
    let others = layout.pieces(Span::new(start, end)).filter(|(server, _)| *server != service.config.server);
    others.map(|(_, span)| span).collect()
}

impl Hand {
    /// Takes up a file, or another object of one: the first one's writes are synced by it.
    fn take(&mut self, union: &Union, file: FileId, pen: Pen, born: Option<Arc<Born>>) -> Result<()> {
        match self.stints.get_mut(&file) {
            Some(stint) => {
                let serial = |pen: &Pen| union.ask(|_| pen.object.version()).map(|version| version.serial);
                if serial(&stint.pen)? != serial(&pen)? {
                    return Err(other_by_now(file));
                }
                let before = std::mem::replace(&mut stint.pen, pen);
                stint.born = born;
                union.ask(|_| before.object.sync())
            }
            None => {
                let (writes, written, sums) = (Vec::new(), Vec::new(), Vec::new());
                self.stints.insert(file, Stint { pen, born, writes, written, sums });
                Ok(())
            }
        }
    }

    /// Gives a file up; returns the writes that are not settled.
    fn drop(&mut self, file: FileId) -> Vec<(JobId, BatchId)> {
        self.stints.remove(&file).map_or_else(Vec::new, |stint| stint.writes)
    }
}

/// Sleeps, but not beyond the end of the server.
fn pause(service: &Service, wait: Duration) {
    let (stopping, begin) = (service.stopping(), Instant::now());
    while let Some(left) = wait.checked_sub(begin.elapsed()).filter(|left| !left.is_zero()) {
        if *stopping.borrow() {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

/// Reads back what was written, where checksums were kept of it.
fn verified(service: &Service, file: FileId, pen: &Pen, sums: &[(Span, Stamp, u32)]) -> Result<()> {
    for &(span, stamp, sum) in sums {
        let mut back = vec![0; span.len() as usize];
        pen.object.forget(span);
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
