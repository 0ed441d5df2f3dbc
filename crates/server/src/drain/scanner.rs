//! The scanner chooses files to drain: by the trigger, for drain requests, and when names or attributes have changed
//! some time ago.

use super::DrainEngine;
use super::queue::Phase;
use crate::backing::Backing;
use forebay_model::{FileId, FileKind, Identity, Result, Stamp};
use forebay_policy::Tick;
use forebay_policy::drain::{Arrivals, View, Want, oldest_first, want};
use forebay_store::{Backlog, MAX_LISTED};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Shortest pause between two passes.
const POLL: Duration = Duration::from_millis(20);
/// Time between two polls of other servers.
const POLL_HOLDERS: Duration = Duration::from_millis(100);
/// Most changed files that one pass checks.
const NOTES: usize = 256;
/// Most files of one drain request that are queued at the same time.
const PENDING: usize = 4096;

/// A walk through the tree of a drain request.
pub(crate) struct Walk {
    /// Directories, each with the cookie where its listing continues.
    stack: Vec<(FileId, u64)>,
    /// The file or directory to begin with, if the first step has not been made.
    root: Option<FileId>,
}

impl Walk {
    pub(super) fn new(file: Option<FileId>) -> Walk {
        match file {
            Some(file) if file != FileId::ROOT => Walk { stack: Vec::new(), root: Some(file) },
            _ => Walk { stack: vec![(FileId::ROOT, 0)], root: None },
        }
    }

    /// The next files; `None` at the end.
    fn step(&mut self, engine: &DrainEngine) -> Option<Vec<FileId>> {
        let names = engine.store.names();
        if let Some(root) = self.root.take() {
            if names.inode(root).is_ok_and(|inode| inode.kind() == FileKind::Directory) {
                self.stack.push((root, 0));
            }
            return Some(vec![root]);
        }
        let (dir, cookie) = self.stack.pop()?;
        // A directory that was removed meanwhile is empty.
        let Ok((entries, next)) = names.read_dir(&Identity::root(), dir, cookie, MAX_LISTED) else {
            return Some(Vec::new());
        };
        if let Some(next) = next {
            self.stack.push((dir, next));
        }
        let dirs = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
        self.stack.extend(dirs.map(|entry| (entry.file, 0)));
        engine.backing.note_names(entries.iter().map(|entry| (entry.file, dir, entry.name.clone())));
        Some(entries.into_iter().map(|entry| entry.file).collect())
    }
}

/// The scanner's thread.
pub(super) fn scanner(engine: &DrainEngine) {
    let backing = &*engine.backing;
    let stopping = engine.life.stopping();
    let (mut rest, mut polled) = (POLL, Instant::now());
    let (mut arrivals, mut oldest) = (Arrivals::default(), Stamp::default());
    while !*stopping.borrow() {
        std::thread::sleep(rest);
        let begin = Instant::now();
        let usage = engine.store.data().usage();
        let fill = (usage.live * 1000 / usage.capacity.max(1)).min(1000) as u16;
        engine.notify_of_grants(|drain_queue| {
            drain_queue.tick((Tick(engine.store.data().now().0), begin), fill);
        });
        engine.take_created();
        engine.continue_walks(backing);
        engine.choose_changed(backing);
        engine.apply_trigger(&mut arrivals, &mut oldest);
        engine.retry(begin);
        engine.resume_closed(backing);
        if !engine.life.is_alone() && polled.elapsed() >= POLL_HOLDERS {
            engine.poll_holders();
            engine.resume_abandoned(backing);
            polled = Instant::now();
        }
        if engine.drain_queue().has_work() {
            engine.doorbell.notify_one();
        }
        // Scanning takes at most a fifth of the time.
        rest = POLL.max(begin.elapsed() * 4);
    }
    // Taking the lock once ensures that every worker is asleep by now, or checks for the end of the server again.
    drop(engine.drain_queue());
    engine.doorbell.notify_all();
}

impl DrainEngine {
    /// Continues the walks of drain requests.
    fn continue_walks(&self, backing: &Backing) {
        let mut walks = std::mem::take(&mut *self.walks.lock());
        walks.retain_mut(|(id, walk)| {
            loop {
                let has_space =
                    self.drain_queue().tickets.get(id).map(|ticket| ticket.pending.len() < PENDING);
                match has_space {
                    None => return false,
                    Some(false) => return true,
                    Some(true) => {}
                }
                match walk.step(self) {
                    Some(found) => self.want(backing, *id, &found),
                    None => {
                        if let Some(ticket) = self.drain_queue().tickets.get_mut(id) {
                            ticket.walking = false;
                        }
                        return false;
                    }
                }
            }
        });
        self.walks.lock().append(&mut walks);
    }

    /// Queues the files of a drain request that differ from the back end.
    fn want(&self, backing: &Backing, id: u64, files: &[FileId]) {
        for &file in files {
            let last = self.last.load(Ordering::Relaxed);
            let Ok(needed) = self.needs(backing, file, last) else { continue };
            let Some(need) = needed else { continue };
            let backlog = self.store.data().backlog(file).ok().flatten();
            let (mut drain_queue, now) = (self.drain_queue(), Instant::now());
            drain_queue.failures.retry_now(now, file);
            drain_queue.want(now, file);
            // Bytes that are written and not synced are still in the buffer, but need not be written again.
            let bytes =
                backlog.map_or(0, |backlog| backlog.bytes).saturating_sub(drain_queue.under_way(file));
            if let Some(ticket) = drain_queue.tickets.get_mut(&id) {
                ticket.files += 1;
                ticket.bytes += bytes;
                match need {
                    Need::Directory => ticket.dirs.insert(file),
                    Need::Other => ticket.pending.insert(file),
                };
                if self.homes.is_shared(file) {
                    ticket.striped.insert(file, 0);
                }
            }
        }
    }

    /// Queues files without buffered bytes whose names or attributes changed some time ago. Files with bytes are queued
    /// by the trigger, and their attributes are set with them.
    fn choose_changed(&self, backing: &Backing) {
        let data = self.store.data();
        let now = Instant::now();
        if std::mem::take(&mut self.drain_queue().failures.overflowed) {
            self.notes().note_more(now);
        }
        if !self.settings.may_drain(data.now()) || !self.drain_queue().wants_files() {
            return;
        }
        let (mut due, sweep) = {
            let mut notes = self.notes();
            (notes.due(now, self.settings.age, NOTES), notes.sweep.take())
        };
        if let Some(mut walk) = sweep
            && let Some(found) = walk.step(self)
        {
            due.extend(found);
            self.notes().sweep = Some(walk);
        }
        for file in due {
            if data.backlog(file).is_ok_and(|backlog| backlog.is_none())
                && matches!(self.needs(backing, file, false), Ok(Some(_)))
            {
                self.drain_queue().choose(now, file);
            }
        }
    }

    /// Queues what the trigger selects. No byte in a region is older than `oldest`: as long as none can be old enough,
    /// the files are not looked at.
    fn apply_trigger(&self, arrivals: &mut Arrivals, oldest: &mut Stamp) {
        let data = self.store.data();
        let usage = data.usage();
        let (idle, wants_files) = {
            let drain_queue = self.drain_queue();
            (drain_queue.is_idle(), drain_queue.wants_files())
        };
        let waiting = usize::try_from(self.waiting_writers.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let now = data.now();
        let burst = self.writers.route.burst(now);
        let trigger = self.settings.trigger();
        let room = trigger.room(usage.capacity);
        let filling = arrivals.is_burst(now, self.writers.route.arrived(), room);
        let within_hours = self.settings.may_drain(now);
        let (capacity, live) = (usage.capacity, usage.live);
        let want = want(&trigger, View { capacity, live, waiting, idle, burst, filling, within_hours, now });
        match want {
            Want::Nothing => {}
            _ if !wants_files => {}
            Want::Before(stamp) if *oldest > stamp => {}
            _ => *oldest = self.choose(want),
        }
    }

    /// Queues the files that are to be drained. Returns a time before which no byte in a region was written; bytes that
    /// are being drained count too.
    fn choose(&self, want: Want) -> Stamp {
        let begin = Instant::now();
        let oldest = self.choose_now(want);
        self.indexing_since(begin);
        oldest
    }

    fn choose_now(&self, want: Want) -> Stamp {
        let data = self.store.data();
        let mut files: Vec<(Stamp, u64, FileId)> = Vec::new();
        // What is written from now on has a later stamp.
        let mut oldest_of_all = data.now();
        for file in data.files() {
            match data.backlog(file) {
                Ok(Some(Backlog { bytes, oldest })) => {
                    oldest_of_all = oldest_of_all.min(oldest);
                    if want.takes(0, oldest) {
                        files.push((oldest, bytes, file));
                    }
                }
                Ok(None) => {}
                // It is drained later.
                Err(_) => oldest_of_all = Stamp::default(),
            }
        }
        oldest_first(&mut files);
        let (now, mut chosen) = (Instant::now(), 0);
        for (oldest, size, file) in files {
            if !want.takes(chosen, oldest) {
                break;
            }
            // A file without a name is not needed in the back end.
            if self.store.names().inode(file).is_ok_and(|inode| inode.parents.is_empty()) {
                continue;
            }
            let mut drain_queue = self.drain_queue();
            let under_way = drain_queue.files.get(&file).is_some_and(|entry| entry.phase != Phase::Finishing);
            if under_way || drain_queue.choose(now, file) {
                chosen += size;
            }
        }
        oldest_of_all
    }

    /// Retries failed files.
    fn retry(&self, now: Instant) {
        let mut drain_queue = self.drain_queue();
        let failed: Vec<FileId> = drain_queue.failures.due(now).collect();
        let wanted = drain_queue.tickets.values().flat_map(|ticket| {
            let all = ticket.pending.iter().chain(&ticket.dirs);
            all.copied().filter(|&file| ticket.is_drained_by_others(file))
        });
        let wanted: Vec<FileId> = wanted.collect();
        for file in wanted.into_iter().chain(failed) {
            if !drain_queue.waits_for(file) {
                drain_queue.choose(now, file);
            }
        }
    }
}

/// A file that has to be created or changed in the back end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Directory,
    Other,
}

impl DrainEngine {
    /// Whether a file in the back end differs from the one in the buffer.
    fn needs(&self, backing: &Backing, file: FileId, last: bool) -> Result<Option<Need>> {
        let inode = self.store.names().inode(file)?;
        let need = match inode.kind() {
            FileKind::Directory => Need::Directory,
            _ => Need::Other,
        };
        if file == FileId::ROOT || inode.parents.is_empty() {
            return Ok(None);
        }
        let same = self.layer.is_in_backing(backing, file, &inode)?
            && !(last && self.layer.has_extras(file, &inode)?);
        Ok((!same).then_some(need))
    }
}
