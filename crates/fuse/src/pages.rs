//! Coordinates direct writes with mapped pages of one file.
//!
//! The kernel drops the pages of a range before it sends a direct write. If a program touches the range before the
//! write is done, a page holds the old bytes again; stores beside them make it dirty, and its writeback would undo the
//! write. So the mount drops the range again when the write is done, before it replies; of a page that is written back
//! until then, only bytes count that the write did not touch.
//!
//! **Invariant**: page requests at the service (reads and writebacks) and direct writes never overlap in time, so a
//! page was read either before a write or after it.

use fuser::{INodeNo, Notifier, ReplyWrite};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Weak};

type Span = Range<u64>;

/// The pages of all open files.
#[derive(Default)]
pub(crate) struct AllPages {
    files: Mutex<HashMap<u64, Weak<Pages>>>,
}

impl AllPages {
    /// The pages of a file, shared by all of its handles.
    pub(crate) fn of(&self, inode: INodeNo) -> Arc<Pages> {
        let mut files = self.files.lock();
        if let Some(known) = files.get(&inode.0).and_then(Weak::upgrade) {
            return known;
        }
        let pages = Arc::new(Pages { inode, state: Mutex::default(), idle: Condvar::new() });
        files.insert(inode.0, Arc::downgrade(&pages));
        pages
    }

    /// A handle was closed.
    pub(crate) fn closed(&self, inode: INodeNo) {
        let mut files = self.files.lock();
        if files.get(&inode.0).is_some_and(|pages| pages.strong_count() == 0) {
            files.remove(&inode.0);
        }
    }
}

/// The pages of one file.
pub(crate) struct Pages {
    inode: INodeNo,
    state: Mutex<State>,
    idle: Condvar,
}

/// The two groups of requests that exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    /// Reads and writebacks of pages.
    Paged,
    /// Direct writes.
    Direct,
}

#[derive(Default)]
struct State {
    paged: Group,
    direct: Group,
    /// Which group is next if both wait.
    direct_next: bool,
    /// Whether the kernel has had pages of the file.
    mapped: bool,
    /// Direct writes whose ranges are not yet dropped.
    pending: Vec<Pending>,
    next: u64,
}

#[derive(Default)]
struct Group {
    inside: u32,
    waiting: u32,
}

struct Pending {
    number: u64,
    span: Span,
    /// Ranges of pages that were read since the write.
    fresh: Vec<Span>,
}

impl State {
    fn groups(&mut self, side: Side) -> (&mut Group, &mut Group, bool) {
        match side {
            Side::Paged => (&mut self.paged, &mut self.direct, !self.direct_next),
            Side::Direct => (&mut self.direct, &mut self.paged, self.direct_next),
        }
    }
}

/// A request in progress; ends when it is dropped.
struct SideGuard<'a> {
    pages: &'a Pages,
    side: Side,
}

impl Drop for SideGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.pages.state.lock();
        let (own, ..) = state.groups(self.side);
        own.inside -= 1;
        if own.inside == 0 {
            state.direct_next = self.side == Side::Paged;
            if state.paged.waiting + state.direct.waiting > 0 {
                self.pages.idle.notify_all();
            }
        }
    }
}

/// A direct write that is done, and whose range must still be dropped.
pub(crate) struct Stale {
    pages: Arc<Pages>,
    number: u64,
    span: Span,
}

impl Pages {
    fn acquire(&self, side: Side) -> SideGuard<'_> {
        let mut state = self.state.lock();
        loop {
            let (own, other, turn) = state.groups(side);
            if other.inside == 0 && (other.waiting == 0 || turn) {
                own.inside += 1;
                return SideGuard { pages: self, side };
            }
            own.waiting += 1;
            self.idle.wait(&mut state);
            state.groups(side).0.waiting -= 1;
        }
    }

    /// Reads pages.
    pub(crate) fn read<T>(&self, span: Span, read: impl FnOnce() -> T) -> T {
        let _guard = self.acquire(Side::Paged);
        {
            let mut state = self.state.lock();
            state.mapped = true;
            for pending in &mut state.pending {
                pending.fresh.push(span.clone());
            }
        }
        read()
    }

    /// Whether the kernel has had pages of the file.
    pub(crate) fn are_mapped(&self) -> bool {
        self.state.lock().mapped
    }

    /// Writes back the ranges of pages that no direct write has changed since they were read.
    pub(crate) fn take_back<E>(
        &self,
        span: Span,
        mut write_span: impl FnMut(Span) -> Result<(), E>,
    ) -> Result<(), E> {
        let _guard = self.acquire(Side::Paged);
        let mut ranges = vec![span];
        for pending in &self.state.lock().pending {
            let mut stale = vec![pending.span.clone()];
            pending.fresh.iter().for_each(|fresh| stale = without(&stale, fresh));
            stale.iter().for_each(|stale| ranges = without(&ranges, stale));
        }
        ranges.into_iter().try_for_each(&mut write_span)
    }

    /// Performs a direct write. `write` returns the written range; if the kernel may have pages of it, they must be
    /// dropped before the reply.
    pub(crate) fn write<T>(self: &Arc<Pages>, write: impl FnOnce() -> (T, Span)) -> (T, Option<Stale>) {
        let _guard = self.acquire(Side::Direct);
        let (done, span) = write();
        let mut state = self.state.lock();
        if !state.mapped {
            return (done, None);
        }
        let number = state.next;
        state.next += 1;
        state.pending.push(Pending { number, span: span.clone(), fresh: Vec::new() });
        (done, Some(Stale { pages: self.clone(), number, span }))
    }
}

impl Stale {
    fn drop_pages(&self, kernel: &Notifier) {
        let (start, len) = (self.span.start, self.span.end - self.span.start);
        // The kernel has no pages of an inode that it has forgotten.
        let _ = kernel.inval_inode(self.pages.inode, start as i64, len as i64);
        self.pages.state.lock().pending.retain(|pending| pending.number != self.number);
    }
}

/// The ranges without `hole`.
fn without(ranges: &[Span], hole: &Span) -> Vec<Span> {
    let parts = ranges
        .iter()
        .flat_map(|range| [range.start..range.end.min(hole.start), range.start.max(hole.end)..range.end]);
    parts.filter(|part| part.start < part.end).collect()
}

/// The reply to a write, sent after its pages are dropped.
pub(crate) struct Answer {
    pub(crate) stale: Stale,
    pub(crate) reply: ReplyWrite,
    pub(crate) done: Result<u32, fuser::Errno>,
}

/// Queue of replies that wait for their pages to be dropped.
pub(crate) type Answers = Sender<Answer>;

/// Sends the replies, one by one, on a thread of its own: while the kernel drops pages, it may wait for the threads
/// that serve it.
pub(crate) fn answer_all(answers: &Receiver<Answer>, kernel: &Notifier) {
    while let Ok(Answer { stale, reply, done }) = answers.recv() {
        stale.drop_pages(kernel);
        match done {
            Ok(len) => reply.written(len),
            Err(errno) => reply.error(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written_back(pages: &Pages, span: Span) -> Vec<Span> {
        let mut written_back = Vec::new();
        let write_span = |part| {
            written_back.push(part);
            Ok::<_, ()>(())
        };
        pages.take_back(span, write_span).unwrap();
        written_back
    }

    #[test]
    fn stale_page_does_not_undo_a_write() {
        let all = AllPages::default();
        let pages = all.of(INodeNo(7));
        assert!(Arc::ptr_eq(&pages, &all.of(INodeNo(7))));
        assert!(pages.write(|| ((), 0..4096)).1.is_none(), "the kernel has no pages");
        pages.read(0..4096, || {});
        let stale = pages.write(|| ((), 100..200)).1.unwrap();
        assert_eq!(written_back(&pages, 0..4096), [0..100, 200..4096]);
        assert_eq!(written_back(&pages, 4096..8192), vec![4096..8192; 1]);
        // Read since the write: a store into the page is later than the write.
        pages.read(0..4096, || {});
        assert_eq!(written_back(&pages, 0..4096), vec![0..4096; 1]);
        let number = stale.number;
        pages.state.lock().pending.retain(|pending| pending.number != number);
        drop((pages, stale));
        all.closed(INodeNo(7));
        assert!(all.files.lock().is_empty());
    }

    #[test]
    fn pages_and_direct_writes_take_turns() {
        let pages = AllPages::default().of(INodeNo(7));
        let busy = std::sync::atomic::AtomicI32::new(0);
        let step = |by: i32| {
            let now = busy.fetch_add(by, std::sync::atomic::Ordering::SeqCst) + by;
            assert!(now.signum() != -by.signum(), "both sides at once: {now}");
            std::thread::yield_now();
            busy.fetch_sub(by, std::sync::atomic::Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            for side in [1, -1, 1, -1] {
                let (pages, step) = (&pages, &step);
                scope.spawn(move || {
                    for _ in 0..1000 {
                        match side {
                            1 => pages.read(0..1, || step(1)),
                            _ => drop(pages.write(|| (step(-1), 0..0))),
                        }
                    }
                });
            }
        });
    }
}
