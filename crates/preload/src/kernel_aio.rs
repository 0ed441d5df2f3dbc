//! Linux asynchronous I/O (`io_submit` and related calls), on files of Forebay and others in one context.
//!
//! The kernel cannot execute a transfer on a descriptor of Forebay. The library submits a stand-in to the kernel's
//! context, executes the transfer once the kernel has accepted that, and then lets the stand-in complete: it polls an
//! eventfd. The library translates its event when the program reads it. So the kernel still counts and waits, wakes
//! other threads and signals eventfds.
//!
//! **Invariant**: a request that `io_submit` does not count among those submitted was not executed.
//!
//! **Invariant**: programs never see the kernel's own ring of events, which holds the stand-ins: the library returns
//! the address of an empty page as the context, so programs that would read the ring make the system call instead.

use crate::backing::Kind;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::place::ours;
use crate::{data, descriptors, dispatch, hook, mem, raw};
use libc::{c_int, c_long, iovec};
use rustix::mm::{MapFlags, ProtFlags};

const READ: u16 = 0;
const WRITE: u16 = 1;
const SYNC: u16 = 2;
const DATA_SYNC: u16 = 3;
const POLL: u16 = 5;
const READ_VECTOR: u16 = 7;
const WRITE_VECTOR: u16 = 8;
const KNOWN: [u16; 6] = [READ, WRITE, SYNC, DATA_SYNC, READ_VECTOR, WRITE_VECTOR];
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
    /// Boxed, since the kernel has their addresses.
    #[expect(clippy::vec_box, reason = "the kernel holds the addresses")]
    pending: Vec<Box<StandIn>>,
}

static CONTEXTS: Lock<Vec<Context>> = Lock::new(Vec::new());

fn with<T>(page: usize, work: impl FnOnce(&mut Context) -> T) -> Option<T> {
    CONTEXTS.with(|contexts| contexts.iter_mut().find(|context| context.page == page).map(work))
}

pub(crate) fn set_up(capacity: u32, place: *mut usize) -> Outcome<c_long> {
    if mem::take(place)? != 0 {
        return fail(libc::EINVAL);
    }
    let mut kernel = 0_usize;
    // SAFETY: the kernel writes one word, a local variable.
    let made = unsafe {
        try_system_call(libc::SYS_io_setup, [capacity as usize, &raw mut kernel as usize, 0, 0, 0, 0])
    };
    let page = made.and_then(|_| empty_page());
    let given = page.map_err(Stop::from).and_then(|page| mem::give(place, page).map(|()| page));
    match given {
        Ok(page) => {
            let context = Context { page, kernel, pending: Vec::new() };
            CONTEXTS.with(|contexts| contexts.push(context));
            Ok(0)
        }
        Err(stop) => {
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
    if gone.is_some() {
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

/// Checks a request on a file of Forebay for what makes `io_submit` itself fail, as the kernel does: once the kernel has
/// accepted its stand-in, errors are results.
fn check(request: &Request) -> Outcome<()> {
    let open = ours(request.fd as c_int)?;
    let access = open.access as c_int & libc::O_ACCMODE;
    let (list, count) = (request.buffer as *const iovec, request.len as c_int);
    if request.reserved != 0 {
        return fail(libc::EINVAL);
    }
    if matches!(request.opcode, SYNC | DATA_SYNC) {
        let fields = [request.buffer, request.offset as u64, request.len, request.transfer_flags.into()];
        return if fields == [0; 4] { Ok(()) } else { fail(libc::EINVAL) };
    }
    match (request.opcode, open.kind()) {
        (_, Kind::Path) => fail(libc::EBADF),
        (READ | READ_VECTOR, _) if access == libc::O_WRONLY => fail(libc::EBADF),
        (WRITE | WRITE_VECTOR, _) if access == libc::O_RDONLY => fail(libc::EBADF),
        (_, Kind::Directory) => fail(libc::EINVAL),
        _ if request.offset < 0 => fail(libc::EINVAL),
        (READ_VECTOR | WRITE_VECTOR, _) => data::vectors(list, count).map(drop),
        _ => Ok(()),
    }?;
    data::flags2(request.fd as c_int, request.transfer_flags as c_int)
}

/// Executes a request on a file of Forebay, and returns its result.
fn perform(request: &Request) -> i64 {
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
        _ => raw::perform(libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0]),
    };
    match done {
        Ok(result) => result,
        Err(Stop::Errno(Errno(number))) => -i64::from(number),
        // Another thread has closed the file since the check.
        Err(Stop::Foreign | Stop::Outside(_)) => -i64::from(libc::EBADF),
    }
}

/// An eventfd that is readable once this is dropped: then the stand-ins that poll it complete.
struct Barrier(c_int);

impl Barrier {
    fn new() -> Outcome<Barrier> {
        // SAFETY: creates a descriptor, and accesses no memory.
        let fd = unsafe { try_system_call(libc::SYS_eventfd2, [0, libc::O_CLOEXEC as usize, 0, 0, 0, 0]) }?;
        Ok(Barrier(descriptors::hide_high(fd as c_int)?))
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        let one = 1_u64;
        let args = [self.0 as usize, &raw const one as usize, size_of::<u64>(), 0, 0, 0];
        // SAFETY: a descriptor of the library, and eight bytes on the stack. The first write never waits or fails.
        let _ = unsafe { try_system_call(libc::SYS_write, args) };
        // The kernel keeps the file for the stand-ins that have not completed.
        descriptors::close_hidden(self.0);
    }
}

/// Adds a stand-in that polls a barrier to a context, and returns its address.
fn stand_in(page: usize, request: &Request, original: usize, barrier: &Barrier) -> Option<usize> {
    with(page, |context| {
        let request = Request {
            transfer_flags: 0,
            opcode: POLL,
            priority: 0,
            fd: barrier.0 as u32,
            buffer: libc::POLLIN as u64,
            len: 0,
            offset: 0,
            flags: request.flags & SIGNALS,
            ..*request
        };
        let result = -i64::from(libc::EIO);
        let made = Box::new(StandIn { request, original: original as u64, result });
        let address = &raw const made.request as usize;
        context.pending.push(made);
        address
    })
}

impl Context {
    fn position(&self, address: u64) -> Option<usize> {
        self.pending.iter().position(|stand_in| &raw const stand_in.request as u64 == address)
    }
}

/// A request of the application, as it is given to the kernel.
struct Planned {
    address: usize,
    /// Set if the address is that of a stand-in.
    request: Option<Request>,
}

/// What becomes of the application's requests, up to the first invalid one; and its error.
fn plan(page: usize, count: usize, list: *const usize, barrier: &Barrier) -> (Vec<Planned>, Option<Stop>) {
    let mut planned = Vec::new();
    for at in 0..count {
        let next = mem::take(list.wrapping_add(at)).and_then(|place| {
            let request = mem::take(place as *const Request)?;
            let own = ours(request.fd as c_int).is_ok() && KNOWN.contains(&request.opcode);
            if own {
                check(&request)?;
            }
            Ok((place, request, own))
        });
        let (place, request, own) = match next {
            Ok(next) => next,
            Err(stop) => return (planned, Some(stop)),
        };
        // For other operations the kernel returns the error, as for any memory file.
        let Some(address) = (if own { stand_in(page, &request, place, barrier) } else { Some(place) }) else {
            return (planned, Some(Errno(libc::EINVAL).into()));
        };
        planned.push(Planned { address, request: own.then_some(request) });
    }
    (planned, None)
}

pub(crate) fn submit(page: usize, count: c_long, list: *const usize) -> Outcome<c_long> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    let Some(kernel) = with(page, |context| context.kernel) else {
        return refuse_ours(count, list);
    };
    let barrier = Barrier::new()?;
    let (planned, refused) = plan(page, count, list, &barrier);
    if let (true, Some(stop)) = (planned.is_empty(), refused) {
        return Err(stop);
    }
    let addresses: Vec<usize> = planned.iter().map(|planned| planned.address).collect();
    let args = [kernel, addresses.len(), addresses.as_ptr() as usize, 0, 0, 0];
    // SAFETY: addresses of the application's requests, which it vouches for, and of stand-ins that exist until their
    // events are read.
    let submitted = unsafe { try_system_call(libc::SYS_io_submit, args) };
    let accepted = submitted.unwrap_or(0) as usize;
    for (at, Planned { address, request }) in planned.into_iter().enumerate() {
        let Some(request) = request else { continue };
        // What the kernel has not accepted was not submitted: it must not be executed.
        let result = (at < accepted).then(|| perform(&request));
        with(page, |context| {
            let Some(at) = context.position(address as u64) else { return };
            match result {
                Some(result) => context.pending[at].result = result,
                None => drop(context.pending.swap_remove(at)),
            }
        });
    }
    drop(barrier);
    Ok(submitted? as c_long)
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
            let at = context.position(event.request)?;
            Some(context.pending.swap_remove(at))
        });
        if let Some(stand_in) = stand_in.flatten() {
            (event.request, event.result) = (stand_in.original, stand_in.result);
        }
    }
    Ok(count as c_long)
}

static REAL_SUBMIT: hook::Real = hook::Real::new("io_submit\0");

/// libaio's function, which returns its error as a negative number. Where its system call is not intercepted, it refuses
/// requests on files of Forebay: the kernel would transfer no data and report no error.
fn submit_by_library(args: [usize; 6]) -> Outcome<isize> {
    if let (true, Some(real)) = (dispatch::is_on(), REAL_SUBMIT.address()) {
        // SAFETY: libaio's function of this name takes three words, and the arguments are the caller's own; a function of
        // another library with this name gets those that are passed in registers.
        return Ok(dispatch::waiting(|| unsafe {
            let real: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize =
                std::mem::transmute(real);
            real(args[0], args[1], args[2], args[3], args[4], args[5])
        }));
    }
    // A context of the library's was made by the function `syscall`, which will also submit to it.
    if with(args[0], |_| ()).is_some() {
        return Err(Stop::Foreign);
    }
    match refuse_ours(args[1], args[2] as *const usize) {
        Err(Stop::Errno(Errno(number))) => {
            crate::log::warn("io_submit refused: this program's system calls are not intercepted");
            Ok(-number as isize)
        }
        other => other.map(|done| done as isize),
    }
}

hook::hooks! {
    fn [io_submit](a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> isize =>
        submit_by_library([a, b, c, d, e, f]);
}
