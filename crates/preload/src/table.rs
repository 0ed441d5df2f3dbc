//! The table of Forebay's descriptors. A lookup costs two loads for a foreign descriptor and a reference count for one
//! of Forebay; it never blocks.
//!
//! **Invariant**: a slot in the table keeps the open file it points to alive. Cells are reused but never freed, so a
//! late reader finds a count of zero or another open file, never freed memory.

use crate::backing::Kind;
use crate::lock::Lock;
use crate::open::Open;
use crate::process_state;
use rustix::fd::RawFd;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

const ROW: usize = 1024;
const ROWS: usize = 1024;

type Row = [AtomicPtr<Cell>; ROW];

static TABLE: [AtomicPtr<Row>; ROWS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; ROWS];
static SPARE: Lock<Vec<&'static Cell>> = Lock::new(Vec::new());

/// Marks a descriptor of the library itself, such as a connection: the application may not touch it.
const HIDDEN: *mut Cell = std::ptr::without_provenance_mut(8);
/// Marks a hidden descriptor that forked children keep, such as a lock.
const KEPT: *mut Cell = std::ptr::without_provenance_mut(16);

/// Whether a slot is empty or holds a mark.
fn is_mark(cell: *mut Cell) -> bool {
    cell.is_null() || cell == HIDDEN || cell == KEPT
}

/// Holds an open file while it is referenced.
struct Cell {
    /// References from table slots and from calls in progress; 0: free.
    count: AtomicU32,
    open: UnsafeCell<Option<Open>>,
}

// SAFETY: the content changes only while the count is zero, by the one owner of the free cell.
unsafe impl Sync for Cell {}

/// Keeps an open file alive.
pub(crate) struct Held(&'static Cell);

impl Held {
    fn take(cell: &'static Cell) -> Option<Held> {
        let counted = cell.count.fetch_update(Ordering::Acquire, Ordering::Relaxed, |count| {
            if count == 0 { None } else { count.checked_add(1) }
        });
        counted.is_ok().then_some(Held(cell))
    }
}

impl std::ops::Deref for Held {
    type Target = Open;

    fn deref(&self) -> &Open {
        // SAFETY: a counted cell is full and does not change.
        unsafe { (*self.0.open.get()).as_ref() }.expect("a referenced cell holds an open file")
    }
}

impl Clone for Held {
    fn clone(&self) -> Held {
        self.0.count.fetch_add(1, Ordering::Relaxed);
        Held(self.0)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.count.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: the count is zero, so there are no readers; a late reader that still has the cell's address finds
            // the zero.
            let last = unsafe { (*self.0.open.get()).take() };
            SPARE.with(|spare| spare.push(self.0));
            drop(last);
        }
    }
}

/// Puts an open file into a cell.
pub(crate) fn hold(open: Open) -> Held {
    // Before the library is set up there are no spare cells, and no generation to lock with.
    let spare = if process_state::is_set_up() { SPARE.with(Vec::pop) } else { None };
    let cell = spare.unwrap_or_else(|| {
        Box::leak(Box::new(Cell { count: AtomicU32::new(0), open: UnsafeCell::new(None) }))
    });
    // SAFETY: a spare or new cell belongs to this call alone.
    unsafe { *cell.open.get() = Some(open) };
    cell.count.store(1, Ordering::Release);
    Held(cell)
}

fn place(fd: RawFd) -> Option<&'static AtomicPtr<Cell>> {
    let index = usize::try_from(fd).ok()?;
    let row = TABLE.get(index / ROW)?.load(Ordering::Acquire);
    // SAFETY: rows are never freed.
    let row = unsafe { row.as_ref() }?;
    Some(&row[index % ROW])
}

fn make_place(fd: RawFd) -> Option<&'static AtomicPtr<Cell>> {
    if let Some(place) = place(fd) {
        return Some(place);
    }
    let slot = TABLE.get(usize::try_from(fd).ok()? / ROW)?;
    let row: Box<Row> = Box::new([const { AtomicPtr::new(std::ptr::null_mut()) }; ROW]);
    let row = Box::into_raw(row);
    let won = slot.compare_exchange(std::ptr::null_mut(), row, Ordering::AcqRel, Ordering::Acquire);
    if won.is_err() {
        // SAFETY: no other thread has seen this row.
        drop(unsafe { Box::from_raw(row) });
    }
    place(fd)
}

/// The open file of a descriptor, if it is one of Forebay's.
pub(crate) fn get(fd: RawFd) -> Option<Held> {
    let place = place(fd)?;
    loop {
        let cell = place.load(Ordering::Acquire);
        if is_mark(cell) {
            return None;
        }
        // SAFETY: cells are never freed.
        let held = Held::take(unsafe { &*cell });
        if held.is_some() && place.load(Ordering::Acquire) == cell {
            return held;
        }
    }
}

fn exchange(place: &AtomicPtr<Cell>, new: *mut Cell) -> Option<Held> {
    let old = place.swap(new, Ordering::AcqRel);
    // SAFETY: cells are never freed, and the slot held a reference to this one.
    (!is_mark(old)).then(|| Held(unsafe { &*old }))
}

/// Enters a descriptor into the table. A process that borrows its parent's memory leaves the table alone.
pub(crate) fn put(fd: RawFd, held: &Held) {
    if let Some(place) = make_place(fd) {
        let cell = std::mem::ManuallyDrop::new(held.clone()).0;
        drop(exchange(place, std::ptr::from_ref(cell).cast_mut()));
    }
}

/// Removes a descriptor from the table; returns its open file.
pub(crate) fn remove(fd: RawFd) -> Option<Held> {
    exchange(place(fd)?, std::ptr::null_mut())
}

/// Hides a descriptor of the library from the application.
pub(crate) fn hide(fd: RawFd) {
    if let Some(place) = make_place(fd) {
        drop(exchange(place, HIDDEN));
    }
}

/// Hides a descriptor of the library that forked children keep.
pub(crate) fn keep(fd: RawFd) {
    if let Some(place) = make_place(fd) {
        drop(exchange(place, KEPT));
    }
}

/// Whether a descriptor is hidden.
pub(crate) fn is_hidden(fd: RawFd) -> bool {
    place(fd).is_some_and(|place| matches!(place.load(Ordering::Acquire), HIDDEN | KEPT))
}

/// Removes every hidden descriptor that children do not keep, and passes each to `visit`.
pub(crate) fn forget_hidden(mut visit: impl FnMut(RawFd)) {
    each(0, RawFd::MAX, |fd| {
        let forgot = place(fd).is_some_and(|place| {
            place.compare_exchange(HIDDEN, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
        if forgot {
            visit(fd);
        }
    });
}

/// Whether any descriptor is an open file of Forebay.
pub(crate) fn has_files() -> bool {
    let mut found = false;
    each(0, RawFd::MAX, |fd| found = found || get(fd).is_some_and(|open| open.kind() == Kind::File));
    found
}

/// Visits every descriptor from `first` to `last` that is Forebay's or hidden.
pub(crate) fn each(first: RawFd, last: RawFd, mut visit: impl FnMut(RawFd)) {
    let mut fd = first.max(0);
    while fd <= last && (fd as usize) < ROW * ROWS {
        if place(fd).is_none() {
            // The whole row is empty.
            fd = (fd / ROW as i32 + 1) * ROW as i32;
            continue;
        }
        if place(fd).is_some_and(|place| !place.load(Ordering::Acquire).is_null()) {
            visit(fd);
        }
        fd += 1;
    }
}
