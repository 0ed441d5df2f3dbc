//! Deciding what leaves: by the rules, because somebody asked, or because it has changed some time ago.

use super::Engine;
use super::board::Phase;
use super::trigger::{View, Want, want};
use crate::service::Service;
use crate::union::Union;
use forebay_model::{FileId, FileKind, Identity, Result, Stamp};
use forebay_policy::Tick;
use forebay_store::{Backlog, MAX_LISTED};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks.
const GLANCE: Duration = Duration::from_millis(20);
/// Between two questions to other servers.
const ROUND: Duration = Duration::from_millis(100);
/// Things that are looked at in one glance because their names or attributes changed.
const NOTES: usize = 256;
/// Things of one request that are on their way at the same time.
const PENDING: usize = 4096;

/// A walk through what somebody asked to be drained.
pub(crate) struct Walk {
    /// Directories, and where to go on in each.
    stack: Vec<(FileId, u64)>,
    /// The first step has not been made.
    root: Option<FileId>,
}

impl Walk {
    pub(super) fn new(file: Option<FileId>) -> Walk {
        match file {
            Some(file) if file != FileId::ROOT => Walk { stack: Vec::new(), root: Some(file) },
            _ => Walk { stack: vec![(FileId::ROOT, 0)], root: None },
        }
    }

    /// The next things; nothing at the end.
    fn step(&mut self, service: &Service) -> Option<Vec<FileId>> {
        let names = service.store.names();
        if let Some(root) = self.root.take() {
            if names.inode(root).is_ok_and(|inode| inode.kind() == FileKind::Directory) {
                self.stack.push((root, 0));
            }
            return Some(vec![root]);
        }
        let (dir, cookie) = self.stack.pop()?;
        // A directory that has gone meanwhile has nothing in it.
        let Ok((entries, next)) = names.read_dir(&Identity::root(), dir, cookie, MAX_LISTED) else {
            return Some(Vec::new());
        };
        if let Some(next) = next {
            self.stack.push((dir, next));
        }
        let dirs = entries.iter().filter(|entry| entry.kind == FileKind::Directory);
        self.stack.extend(dirs.map(|entry| (entry.file, 0)));
        if let Some(union) = &service.union {
            entries.iter().for_each(|entry| union.note_name(entry.file, dir, entry.name.clone()));
        }
        Some(entries.into_iter().map(|entry| entry.file).collect())
    }
}

/// The scout's thread.
pub(super) fn scout(service: &Arc<Service>) {
    let (Some(engine), Some(union)) = (&service.drain, &service.union) else { return };
    let stopping = service.stopping();
    let (mut rest, mut asked) = (GLANCE, Instant::now());
    while !*stopping.borrow() {
        std::thread::sleep(rest);
        let begin = Instant::now();
        let usage = service.store.data().usage();
        let fill = (usage.live * 1000 / usage.capacity.max(1)).min(1000) as u16;
        engine.tell_of_places(|board| board.beat((Tick(service.store.data().now().0), begin), fill));
        engine.walk_on(service, union);
        engine.take_notes(service, union);
        engine.follow_the_rules(service);
        engine.retry(begin);
        service.sweep_ways();
        engine.take_up_kept(service, union);
        if !service.is_alone() && asked.elapsed() >= ROUND {
            engine.ask_round(service);
            engine.take_up_abandoned(service, union);
            asked = Instant::now();
        }
        if engine.board().has_something() {
            engine.bell.notify_one();
        }
        // Looking takes at most a part of the time.
        rest = GLANCE.max(begin.elapsed() * 4);
    }
    // Whoever looked before sleeps by now, or will look again.
    drop(engine.board());
    engine.bell.notify_all();
}

impl Engine {
    /// Goes on with what somebody asked for.
    fn walk_on(&self, service: &Service, union: &Union) {
        let mut walks = std::mem::take(&mut *self.walks.lock().unwrap_or_else(PoisonError::into_inner));
        walks.retain_mut(|(id, walk)| {
            loop {
                let room = self.board().tickets.get(id).map(|ticket| ticket.pending.len() < PENDING);
                match room {
                    None => return false,
                    Some(false) => return true,
                    Some(true) => {}
                }
                match walk.step(service) {
                    Some(found) => self.want(service, union, *id, &found),
                    None => {
                        if let Some(ticket) = self.board().tickets.get_mut(id) {
                            ticket.walking = false;
                        }
                        return false;
                    }
                }
            }
        });
        self.walks.lock().unwrap_or_else(PoisonError::into_inner).append(&mut walks);
    }

    /// Somebody wants these to be behind.
    fn want(&self, service: &Service, union: &Union, id: u64, files: &[FileId]) {
        for &file in files {
            let last = self.last.load(Ordering::Relaxed);
            let Ok(needed) = service.needs(union, file, last) else { continue };
            let Some(need) = needed else { continue };
            let backlog = service.store.data().backlog(file).ok().flatten();
            let (mut board, now) = (self.board(), Instant::now());
            board.failures.try_anew(now, file);
            board.choose(now, file);
            // What is written and not settled is still here, and nobody waits for its being written.
            let bytes = backlog.map_or(0, |backlog| backlog.bytes).saturating_sub(board.under_way(file));
            if let Some(ticket) = board.tickets.get_mut(&id) {
                ticket.files += 1;
                ticket.bytes += bytes;
                match need {
                    Need::Directory => ticket.dirs.insert(file),
                    Need::Other => ticket.pending.insert(file),
                };
                if service.is_shared(file) {
                    ticket.afar.insert(file, 0);
                }
            }
        }
    }

    /// Names and attributes that changed some time ago, of what has no bytes here: bytes leave by rules of their own, and
    /// take these with them.
    fn take_notes(&self, service: &Service, union: &Union) {
        let data = service.store.data();
        let now = Instant::now();
        if std::mem::take(&mut self.board().failures.forgot) {
            self.notes().note_more(now);
        }
        if !self.settings.may_leave(data.now()) || !self.board().hungers() {
            return;
        }
        let (mut due, sweep) = {
            let mut notes = self.notes();
            (notes.due(now, self.settings.age, NOTES), notes.sweep.take())
        };
        if let Some(mut walk) = sweep
            && let Some(found) = walk.step(service)
        {
            due.extend(found);
            self.notes().sweep = Some(walk);
        }
        for file in due {
            if data.backlog(file).is_ok_and(|backlog| backlog.is_none())
                && matches!(service.needs(union, file, false), Ok(Some(_)))
            {
                self.board().choose(now, file);
            }
        }
    }

    /// What should leave by itself.
    fn follow_the_rules(&self, service: &Service) {
        let data = service.store.data();
        let usage = data.usage();
        let (idle, hungers) = {
            let board = self.board();
            (board.is_idle(), board.hungers())
        };
        let waiting = usize::try_from(self.rooms.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
        let now = data.now();
        let burst = service.ways.burst(now);
        let view = View { capacity: usage.capacity, live: usage.live, waiting, idle, burst, now };
        match want(&self.settings, view) {
            Want::Nothing => {}
            _ if !hungers => {}
            Want::Bytes(bytes) => self.choose(service, bytes, view.now),
            Want::Before(stamp) => self.choose(service, u64::MAX, stamp),
        }
    }

    /// Chooses files, those with the oldest bytes first, until they have so many bytes. Only what was written before
    /// counts.
    fn choose(&self, service: &Service, bytes: u64, before: Stamp) {
        let begin = Instant::now();
        self.choose_now(service, bytes, before);
        self.indexing_since(begin);
    }

    fn choose_now(&self, service: &Service, bytes: u64, before: Stamp) {
        let data = service.store.data();
        let mut files: Vec<(Stamp, u64, FileId)> = Vec::new();
        for file in data.files() {
            // What cannot be heard now leaves later.
            if let Ok(Some(Backlog { bytes, oldest })) = data.backlog(file)
                && oldest <= before
            {
                files.push((oldest, bytes, file));
            }
        }
        files.sort_unstable();
        let (now, mut chosen) = (Instant::now(), 0);
        for (_, size, file) in files {
            if chosen >= bytes {
                break;
            }
            // Nobody will ever look for a file without a name behind.
            if service.store.names().inode(file).is_ok_and(|inode| inode.parents.is_empty()) {
                continue;
            }
            let mut board = self.board();
            let under_way = board.files.get(&file).is_some_and(|entry| entry.phase != Phase::Finishing);
            if under_way || board.choose(now, file) {
                chosen += size;
            }
        }
    }

    /// What failed is tried again.
    fn retry(&self, now: Instant) {
        let mut board = self.board();
        let failed: Vec<FileId> = board.failures.due(now).collect();
        let wanted = board.tickets.values().flat_map(|ticket| {
            let all = ticket.pending.iter().chain(&ticket.dirs);
            all.copied().filter(|&file| ticket.is_out(file))
        });
        let wanted: Vec<FileId> = wanted.collect();
        for file in wanted.into_iter().chain(failed) {
            if !board.waits_for(file) {
                board.choose(now, file);
            }
        }
    }
}

/// What has to be brought behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Need {
    Directory,
    Other,
}

impl Service {
    /// Whether something is not behind as it is here.
    fn needs(&self, union: &Union, file: FileId, last: bool) -> Result<Option<Need>> {
        let inode = self.store.names().inode(file)?;
        let need = match inode.kind() {
            FileKind::Directory => Need::Directory,
            _ => Need::Other,
        };
        if file == FileId::ROOT || inode.parents.is_empty() {
            return Ok(None);
        }
        let same = self.is_behind(union, file, &inode)? && !(last && self.has_extras(file, &inode)?);
        Ok((!same).then_some(need))
    }
}
