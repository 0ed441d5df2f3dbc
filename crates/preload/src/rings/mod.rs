//! io_uring on files of Forebay and others in one ring.
//!
//! The rings are the kernel's. At submission the library executes the entries that concern files or paths of Forebay,
//! and gives the kernel a no-operation in their place that completes with their result. So the kernel still orders,
//! links, counts and wakes, and executes entries on other files.
//!
//! **Invariant**: no entry on a file of Forebay reaches the kernel. Where the library cannot guarantee that, it refuses
//! to create a ring: without interception of every system call, with a kernel thread that polls for entries, with rings
//! in memory of the application, and on kernels whose no-operation has no result. Files of Forebay cannot be
//! registered.

mod entry;
mod map;

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::place::ours;
use crate::{dispatch, hook, mem, process_state};
use entry::{Chain, Entry};
use libc::{c_int, c_long};
use map::{Params, Ring};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

const CLOSED_TO_US: u32 =
    map::SETUP_SQPOLL | map::SETUP_SQ_AFF | map::SETUP_NO_MMAP | map::SETUP_REGISTERED_ONLY;

const ENTER_GETEVENTS: usize = 1;
const ENTER_REGISTERED_RING: usize = 1 << 4;
/// The flags of `io_uring_enter` up to Linux 6.18; all of them concern the wait, which is a call of its own here.
const ENTER_KNOWN: usize = (1 << 8) - 1;

const REGISTER_FILES: usize = 2;
const REGISTER_FILES_UPDATE: usize = 6;
const REGISTER_RESTRICTIONS: usize = 11;
const REGISTER_FILES2: usize = 13;
const REGISTER_FILES_UPDATE2: usize = 14;
const REGISTER_RING_FDS: usize = 20;
const REGISTER_RESIZE_RINGS: usize = 33;
const REGISTER_BY_INDEX: usize = 1 << 31;

static RINGS: Lock<Vec<Arc<Ring>>> = Lock::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn find(fd: c_int) -> Option<Arc<Ring>> {
    RINGS.with(|rings| rings.iter().find(|ring| ring.fd() == fd).cloned())
}

/// Forgets rings whose descriptors, in a range, are about to be closed or replaced.
pub(crate) fn closing(first: c_int, last: c_int) {
    if COUNT.load(Ordering::Relaxed) == 0 || process_state::is_borrowed() {
        return;
    }
    let gone = RINGS.with(|rings| {
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(rings).into_iter().partition(|ring| (first..=last).contains(&ring.fd()));
        *rings = left;
        COUNT.store(rings.len(), Ordering::Relaxed);
        gone
    });
    drop(gone);
}

pub(crate) fn set_up(entries: usize, place: *mut Params) -> Outcome<c_long> {
    let asked = mem::take(place)?;
    if asked.flags & CLOSED_TO_US != 0 || asked.flags & !map::SETUP_KNOWN != 0 {
        return fail(libc::EINVAL);
    }
    if process_state::is_borrowed() || !can_inject() || !dispatch::switch_on() {
        crate::log::note(|| {
            "io_uring_setup refused: the library cannot intercept entries on files of Forebay".to_owned()
        });
        return fail(libc::ENOSYS);
    }
    // SAFETY: the application's own call; the kernel fills its parameters.
    let fd = unsafe { try_system_call(libc::SYS_io_uring_setup, [entries, place as usize, 0, 0, 0, 0]) }?;
    closing(fd as c_int, fd as c_int);
    match mem::take(place).and_then(|made| Ring::map(fd as c_int, &made)) {
        Ok(ring) => {
            RINGS.with(|rings| {
                rings.push(Arc::new(ring));
                COUNT.store(rings.len(), Ordering::Relaxed);
            });
            Ok(fd as c_long)
        }
        Err(stop) => {
            // SAFETY: a descriptor that no other code knows.
            let _ = unsafe { try_system_call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
            Err(stop)
        }
    }
}

/// Whether this kernel's no-operation can complete with a given result; tested once, on a ring of the library.
fn can_inject() -> bool {
    const UNKNOWN: u8 = 0;
    const NO: u8 = 1;
    const YES: u8 = 2;
    static CAN: AtomicU8 = AtomicU8::new(UNKNOWN);
    match CAN.load(Ordering::Relaxed) {
        UNKNOWN => {
            let can = map::try_to_inject();
            CAN.store(if can { YES } else { NO }, Ordering::Relaxed);
            can
        }
        known => known == YES,
    }
}

/// An entry that was replaced by a no-operation.
struct Replaced {
    position: u32,
    original: Entry,
    result: i32,
}

/// Executes the next entries that concern Forebay, and replaces them by no-operations.
fn serve(ring: &Ring, most: u32) -> Vec<Replaced> {
    let (head, tail) = ring.range();
    let mut replaced = Vec::new();
    let mut chain = Chain::default();
    for position in (0..tail.wrapping_sub(head).min(most)).map(|at| head.wrapping_add(at)) {
        // The kernel reports an invalid index.
        let Some(place) = ring.entry(position) else { continue };
        // SAFETY: inside the mapping of the entries; the application does not change entries between submission and
        // return.
        let original = unsafe { place.read() };
        let known = ring.take_done(position);
        let result = chain.result(&original, known);
        if let Some(result) = result {
            // SAFETY: as above.
            unsafe { place.write(original.no_operation(result)) };
            replaced.push(Replaced { position, original, result });
        }
    }
    replaced
}

pub(crate) fn enter(args: [usize; 6]) -> Outcome<c_long> {
    let [fd, count, complete, flags, ..] = args;
    if flags & ENTER_REGISTERED_RING != 0 {
        return fail(libc::EINVAL);
    }
    let count = count as u32;
    if count == 0 {
        return Err(Stop::Foreign);
    }
    let Some(ring) = find(fd as c_int) else {
        // SAFETY: only checks that the descriptor is open.
        unsafe { try_system_call(libc::SYS_fcntl, [fd, libc::F_GETFD as usize, 0, 0, 0, 0]) }?;
        return fail(libc::EOPNOTSUPP);
    };
    if flags & !ENTER_KNOWN != 0 {
        return fail(libc::EINVAL);
    }
    // The kernel takes the entries within the turn, even if none of them was replaced: it takes the next ones, whichever
    // those are by then, and so could take one that another thread has added and that was not looked at.
    let turn = ring.turn()?;
    let replaced = serve(&ring, count);
    // Without waiting: other threads may submit, and the original entries are restored before the application can reuse
    // them.
    // SAFETY: the application's own call, except for entries already executed.
    let submitted = unsafe { try_system_call(libc::SYS_io_uring_enter, [fd, count as usize, 0, 0, 0, 0]) };
    let (head, _) = ring.range();
    for entry in replaced {
        if let Some(place) = ring.entry(entry.position) {
            // SAFETY: as in `serve`.
            unsafe { place.write(entry.original) };
        }
        if entry.position.wrapping_sub(head) < u32::MAX / 2 {
            // The kernel has not taken it, and will get it again: it must not be executed twice.
            ring.note_done(entry.position, entry.result);
        }
    }
    drop(turn);
    let submitted = submitted?;
    if flags & ENTER_GETEVENTS == 0 || submitted as u32 != count {
        return Ok(submitted as c_long);
    }
    let args = [fd, 0, complete, flags, args[4], args[5]];
    // SAFETY: the application's own call, without the entries already submitted.
    let waited = dispatch::waiting(|| unsafe { try_system_call(libc::SYS_io_uring_enter, args) });
    match waited {
        Err(errno) if submitted == 0 => Err(errno.into()),
        _ => Ok(submitted as c_long),
    }
}

/// Whether an array of descriptors contains one of Forebay's.
fn any_ours(list: *const c_int, count: usize) -> Outcome<bool> {
    for at in 0..count {
        if ours(mem::take(list.wrapping_add(at))?).is_ok() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The kernel's structures that name arrays of descriptors, up to the fields read here.
#[repr(C)]
#[derive(Clone, Copy)]
struct Update {
    first: [u32; 2],
    data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Update2 {
    update: Update,
    tags: u64,
    count: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Table2 {
    count: u32,
    flags: u32,
    reserved: u64,
    data: u64,
}

pub(crate) fn register(args: [usize; 6]) -> Outcome<c_long> {
    let [_, operation, place, count, ..] = args;
    let operation = operation as u32 as usize;
    let found = match operation {
        REGISTER_RING_FDS | REGISTER_RESTRICTIONS | REGISTER_RESIZE_RINGS => return fail(libc::EINVAL),
        _ if operation & REGISTER_BY_INDEX != 0 => return fail(libc::EINVAL),
        REGISTER_FILES => any_ours(place as *const c_int, count)?,
        REGISTER_FILES_UPDATE => any_ours(mem::take(place as *const Update)?.data as *const c_int, count)?,
        REGISTER_FILES2 => {
            let table = mem::take(place as *const Table2)?;
            table.data != 0 && any_ours(table.data as *const c_int, table.count as usize)?
        }
        REGISTER_FILES_UPDATE2 => {
            let update = mem::take(place as *const Update2)?;
            any_ours(update.update.data as *const c_int, update.count as usize)?
        }
        _ => false,
    };
    if found { Err(Errno(libc::EOPNOTSUPP).into()) } else { Err(Stop::Foreign) }
}

/// liburing's functions that create a ring: they make the system call by an instruction of their own, and return their
/// error as a negative number.
static REAL_SETUP: hook::Real = hook::Real::new("io_uring_setup\0");
static REAL_INIT: hook::Real = hook::Real::new("io_uring_queue_init\0");
static REAL_INIT_PARAMS: hook::Real = hook::Real::new("io_uring_queue_init_params\0");
static REAL_INIT_MEMORY: hook::Real = hook::Real::new("io_uring_queue_init_mem\0");

fn by_library(real: &hook::Real, args: [usize; 6]) -> Outcome<c_int> {
    let Some(real) = real.address() else { return fail(libc::ENOSYS) };
    if !dispatch::switch_on() {
        crate::log::warn("no io_uring: this program's system calls are not intercepted");
        return Ok(-libc::ENOSYS);
    }
    // SAFETY: liburing's functions of these names take up to five words, and the arguments are the caller's own.
    Ok(dispatch::waiting(|| unsafe {
        let real: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int =
            std::mem::transmute(real);
        real(args[0], args[1], args[2], args[3], args[4], args[5])
    }))
}

hook::hooks! {
    fn [io_uring_setup](a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int =>
        by_library(&REAL_SETUP, [a, b, c, d, e, f]);
    fn [io_uring_queue_init](a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int =>
        by_library(&REAL_INIT, [a, b, c, d, e, f]);
    fn [io_uring_queue_init_params](a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int =>
        by_library(&REAL_INIT_PARAMS, [a, b, c, d, e, f]);
    fn [io_uring_queue_init_mem](a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_int =>
        by_library(&REAL_INIT_MEMORY, [a, b, c, d, e, f]);
}
