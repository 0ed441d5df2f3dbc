//! Linux asynchronous I/O (`io_submit` and related calls), on files of Forebay and others in one context.
//!
//! The kernel cannot execute a transfer on a descriptor of Forebay. The library executes it at submission, and submits
//! a stand-in to the kernel's context: an operation that completes at once, and whose event the library translates when
//! the program reads it. So the kernel still orders, counts and waits, wakes other threads and signals eventfds.
//!
//! **Invariant**: programs never see the kernel's own ring of events, which holds the stand-ins: the library returns
//! the address of an empty page as the context, so programs that would read the ring make the system call instead.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::place::ours;
use crate::{descriptors, dispatch, mem, raw};
use libc::{c_int, c_long, iovec};
use rustix::fd::IntoRawFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;
/// The request names an eventfd to be signalled.
const SIGNALS: u32 = 1;
const PAGE: usize = 4096;
/// The number of `io_pgetevents`.
pub(crate) const WITH_SIGNALS: c_long = if cfg!(target_arch = "x86_64") { 333 } else { 292 };

/// The kernel's control block of one request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    data: u64,
    key: u32,
    transfer_flags: u32,
    opcode: u16,
    priority: u16,
    fd: u32,
    buffer: u64,
    len: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// The kernel's event for a completed request.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Event {
    data: u64,
    request: u64,
    result: i64,
    result2: i64,
}

/// The operation submitted in place of a request on a file of Forebay. Its address identifies it in the event.
struct StandIn {
    request: Request,
    /// Address of the application's request, and the result.
    original: u64,
    result: i64,
}

/// A context of the application.
struct Context {
    /// The context as the application knows it.
    page: usize,
    kernel: usize,
    /// Number of requests given when it was created: the kernel has space for at least these.
    capacity: usize,
    /// Requests in the kernel whose events have not been read.
    running: usize,
    /// Boxed, since the kernel has their addresses.
    #[expect(clippy::vec_box, reason = "the kernel holds the addresses")]
    pending: Vec<Box<StandIn>>,
    /// A hidden descriptor whose transfers complete at once.
    nothing: c_int,
}

static CONTEXTS: Lock<Vec<Context>> = Lock::new(Vec::new());

fn with<T>(page: usize, work: impl FnOnce(&mut Context) -> T) -> Option<T> {
    CONTEXTS.with(|contexts| contexts.iter_mut().find(|context| context.page == page).map(work))
}

pub(crate) fn set_up(capacity: u32, place: *mut usize) -> Outcome<c_long> {
    if mem::take(place)? != 0 {
        return fail(libc::EINVAL);
    }
    let nothing = rustix::fs::openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let nothing = descriptors::hide_high(nothing.into_raw_fd())?;
    let mut kernel = 0_usize;
    // SAFETY: the kernel writes one word, a local variable.
    let made = unsafe {
        try_system_call(libc::SYS_io_setup, [capacity as usize, &raw mut kernel as usize, 0, 0, 0, 0])
    };
    let page = made.and_then(|_| empty_page());
    let given = page.map_err(Stop::from).and_then(|page| mem::give(place, page).map(|()| page));
    match given {
        Ok(page) => {
            let capacity = capacity as usize;
            let context = Context { page, kernel, capacity, running: 0, pending: Vec::new(), nothing };
            CONTEXTS.with(|contexts| contexts.push(context));
            Ok(0)
        }
        Err(stop) => {
            descriptors::close_hidden(nothing);
            // SAFETY: no context, or one that was just created and that no other code knows.
            let _ = unsafe { try_system_call(libc::SYS_io_destroy, [kernel, 0, 0, 0, 0, 0]) };
            Err(stop)
        }
    }
}

fn empty_page() -> Result<usize, Errno> {
    // SAFETY: a new page at an address of the kernel's choice.
    let page =
        unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ, MapFlags::PRIVATE) };
    Ok(page? as usize)
}

pub(crate) fn destroy(page: usize) -> Outcome<c_long> {
    let kernel = with(page, |context| context.kernel).ok_or(Stop::Foreign)?;
    // SAFETY: waits for requests in flight, and accesses no memory of the process.
    let done = unsafe { try_system_call(libc::SYS_io_destroy, [kernel, 0, 0, 0, 0, 0]) }?;
    // A stand-in must exist as long as the kernel may name it.
    let gone = CONTEXTS.with(|contexts| {
        let at = contexts.iter().position(|context| context.page == page)?;
        Some(contexts.swap_remove(at))
    });
    if let Some(gone) = gone {
        descriptors::close_hidden(gone.nothing);
        // SAFETY: the page was mapped for this context, which cannot be looked up any more.
        let _ = unsafe { rustix::mm::munmap(page as *mut _, PAGE) };
    }
    Ok(done as c_long)
}

/// Requests on files of Forebay are already done and cannot be cancelled. The kernel handles the others.
pub(crate) fn cancel(page: usize, request: usize, event: usize) -> Outcome<c_long> {
    let kernel = with(page, |context| context.kernel).ok_or(Stop::Foreign)?;
    // SAFETY: the application's own call, on the kernel's context.
    Ok(unsafe { try_system_call(libc::SYS_io_cancel, [kernel, request, event, 0, 0, 0]) }? as c_long)
}

/// Executes a request on a file of Forebay. Invalid requests are errors of `io_submit` itself, as in the kernel.
fn perform(request: &Request) -> Outcome<i64> {
    ours(request.fd as c_int)?;
    if request.reserved != 0 || request.offset < 0 && request.opcode != SYNC && request.opcode != DATA_SYNC {
        return fail(libc::EINVAL);
    }
    let (fd, buffer, len) = (request.fd as usize, request.buffer as usize, request.len as usize);
    let (offset, flags) = (request.offset as usize, request.transfer_flags as usize);
    let one = iovec { iov_base: buffer as *mut _, iov_len: len };
    let one = &raw const one as usize;
    let done = match request.opcode {
        READ => raw::perform(libc::SYS_preadv2, [fd, one, 1, offset, 0, flags]),
        WRITE => raw::perform(libc::SYS_pwritev2, [fd, one, 1, offset, 0, flags]),
        READ_VECTOR => raw::perform(libc::SYS_preadv2, [fd, buffer, len, offset, 0, flags]),
        WRITE_VECTOR => raw::perform(libc::SYS_pwritev2, [fd, buffer, len, offset, 0, flags]),
        SYNC => raw::perform(libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
        DATA_SYNC => raw::perform(libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0]),
        // For other operations the kernel returns the error, as for any memory file.
        _ => return Err(Stop::Foreign),
    };
    match done {
        Err(Stop::Errno(Errno(number)))
            if !matches!(number, libc::EBADF | libc::EINVAL | libc::EOPNOTSUPP) =>
        {
            Ok(-i64::from(number))
        }
        done => done,
    }
}

/// Requests to be submitted to the kernel next, in order.
struct Batch<'a> {
    page: usize,
    kernel: usize,
    addresses: &'a mut Vec<usize>,
    accepted: usize,
}

impl Batch<'_> {
    /// Submits the batch; returns whether the kernel accepted all of it.
    fn submit(&mut self) -> Outcome<bool> {
        if self.addresses.is_empty() {
            return Ok(true);
        }
        let args = [self.kernel, self.addresses.len(), self.addresses.as_ptr() as usize, 0, 0, 0];
        // SAFETY: addresses of the application's requests, which it vouches for, and of stand-ins that exist until
        // their events are read.
        let taken = match unsafe { try_system_call(libc::SYS_io_submit, args) } {
            Ok(taken) => taken as usize,
            Err(_) if self.accepted > 0 => 0,
            Err(errno) => return Err(errno.into()),
        };
        self.accepted += taken;
        with(self.page, |context| context.running += taken);
        let all = taken == self.addresses.len();
        self.addresses.clear();
        Ok(all)
    }
}

/// Adds a stand-in to a context, and returns its address.
fn stand_in(page: usize, request: &Request, original: usize, result: i64) -> Option<usize> {
    with(page, |context| {
        let nothing = context.nothing as u32;
        let request = Request {
            transfer_flags: 0,
            opcode: READ,
            priority: 0,
            fd: nothing,
            buffer: 0,
            len: 0,
            offset: 0,
            flags: request.flags & SIGNALS,
            ..*request
        };
        let made = Box::new(StandIn { request, original: original as u64, result });
        let address = &raw const made.request as usize;
        context.pending.push(made);
        address
    })
}

pub(crate) fn submit(page: usize, count: c_long, list: *const usize) -> Outcome<c_long> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    let Some((kernel, capacity)) = with(page, |context| (context.kernel, context.capacity)) else {
        return refuse_ours(count, list);
    };
    let mut addresses = Vec::new();
    let mut batch = Batch { page, kernel, addresses: &mut addresses, accepted: 0 };
    let mut foreign = false;
    for at in 0..count {
        let next = mem::take(list.wrapping_add(at)).and_then(|place| {
            let request = mem::take(place as *const Request)?;
            Ok((place, request))
        });
        let (place, request) = match next {
            Ok(next) => next,
            Err(stop) if batch.accepted == 0 && batch.addresses.is_empty() => return Err(stop),
            Err(_) => break,
        };
        if ours(request.fd as c_int).is_err() {
            foreign = true;
            batch.addresses.push(place);
            continue;
        }
        // If the kernel refuses an earlier request, this one is not submitted, and must not be executed.
        if foreign && !batch.submit()? {
            return Ok(batch.accepted as c_long);
        }
        foreign = false;
        let running = with(page, |context| context.running).unwrap_or(0);
        let done = match running + batch.addresses.len() < capacity {
            true => perform(&request),
            false => fail(libc::EAGAIN),
        };
        match done {
            Ok(result) => batch.addresses.extend(stand_in(page, &request, place, result)),
            Err(Stop::Foreign) => {
                foreign = true;
                batch.addresses.push(place);
            }
            Err(stop) => {
                batch.submit()?;
                return if batch.accepted == 0 { Err(stop) } else { Ok(batch.accepted as c_long) };
            }
        }
    }
    batch.submit()?;
    Ok(batch.accepted as c_long)
}

/// Refuses requests on files of Forebay in a context that this library has not created: without stand-ins, the kernel
/// would transfer no data and report no error.
fn refuse_ours(count: usize, list: *const usize) -> Outcome<c_long> {
    for at in 0..count {
        let Ok(place) = mem::take(list.wrapping_add(at)) else { break };
        let Ok(request) = mem::take(place as *const Request) else { break };
        if ours(request.fd as c_int).is_ok() {
            return fail(libc::EINVAL);
        }
    }
    Err(Stop::Foreign)
}

/// `io_getevents` and `io_pgetevents`: the kernel waits, and the library translates events of stand-ins.
pub(crate) fn events(number: c_long, args: [usize; 6]) -> Outcome<c_long> {
    let mut asked = args;
    asked[0] = with(args[0], |context| context.kernel).ok_or(Stop::Foreign)?;
    // SAFETY: the application's own call, on the kernel's context.
    let count = dispatch::waiting(|| unsafe { try_system_call(number, asked) })?;
    let events = args[3] as *mut Event;
    for at in 0..count {
        // SAFETY: the kernel has just written `count` events there.
        let event = unsafe { &mut *events.offset(at) };
        let stand_in = with(args[0], |context| {
            context.running = context.running.saturating_sub(1);
            let named = |stand_in: &StandIn| &raw const stand_in.request as u64 == event.request;
            let at = context.pending.iter().position(|stand_in| named(stand_in))?;
            Some(context.pending.swap_remove(at))
        });
        if let Some(stand_in) = stand_in.flatten() {
            (event.request, event.result) = (stand_in.original, stand_in.result);
        }
    }
    Ok(count as c_long)
}
