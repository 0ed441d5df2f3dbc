//! POSIX asynchronous I/O: requests on files of Forebay are executed synchronously, and their results stored where the
//! C library's `aio_error`, `aio_return` and `aio_suspend` read them.

use crate::data::{At, read_fd, sync_fd, write_fd};
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::ours;
use crate::{hook, mem};
use libc::{aiocb, c_int, c_void, off_t, pthread_attr_t, pthread_t, size_t, ssize_t};

/// The C library's control block with its private fields. Part of its binary interface.
#[repr(C)]
struct Block {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: size_t,
    event: Event,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Block>() == size_of::<aiocb>());

/// How the application is notified, with the fields that the C library keeps in a union.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    value: *mut c_void,
    signal: c_int,
    how: c_int,
    function: Option<extern "C" fn(*mut c_void)>,
    attributes: *const pthread_attr_t,
    reserved: [u64; 4],
}

const _: () = assert!(size_of::<Event>() == size_of::<libc::sigevent>());

fn block<'a>(control: *mut aiocb) -> Outcome<&'a mut Block> {
    mem::writable(control.cast(), size_of::<Block>())?;
    // SAFETY: accessible, writable, and by contract not used by other code until the request is done.
    Ok(unsafe { &mut *control.cast::<Block>() })
}

/// Executes a request and stores its result.
fn perform(control: *mut aiocb, work: impl FnOnce(&Block) -> Outcome<ssize_t>) -> Outcome<c_int> {
    if control.is_null() {
        return Err(Stop::Foreign);
    }
    let block = block(control)?;
    ours(block.fd)?;
    (block.error, block.result) = match work(block) {
        Ok(count) => (0, count),
        Err(Stop::Errno(errno)) => (errno.0, -1),
        Err(stop) => return Err(stop),
    };
    notify(&block.event);
    Ok(0)
}

/// Notifies the application of a completed request.
fn notify(event: &Event) {
    match (event.how, event.function) {
        (libc::SIGEV_SIGNAL, _) if event.signal > 0 => {
            let value = libc::sigval { sival_ptr: event.value };
            // SAFETY: a signal to this process, with the application's own value.
            unsafe { libc::sigqueue(libc::getpid(), event.signal, value) };
        }
        (libc::SIGEV_THREAD, Some(function)) => call_in_thread(function, event.value, event.attributes),
        _ => {}
    }
}

/// Calls the application's function on a new thread.
fn call_in_thread(
    function: extern "C" fn(*mut c_void),
    value: *mut c_void,
    attributes: *const pthread_attr_t,
) {
    struct Call(extern "C" fn(*mut c_void), *mut c_void);
    extern "C" fn begin(call: *mut c_void) -> *mut c_void {
        // SAFETY: created below for this thread alone.
        let call = unsafe { Box::from_raw(call.cast::<Call>()) };
        crate::dispatch::arm();
        (call.0)(call.1);
        std::ptr::null_mut()
    }
    let call = Box::into_raw(Box::new(Call(function, value)));
    let mut thread: pthread_t = 0;
    // SAFETY: the new thread takes ownership of the call, and is detached.
    unsafe {
        match libc::pthread_create(&raw mut thread, attributes, begin, call.cast()) {
            0 => drop(libc::pthread_detach(thread)),
            _ => drop(Box::from_raw(call)),
        }
    }
}

fn read_now(block: &Block) -> Outcome<ssize_t> {
    read_fd(block.fd, block.buffer, block.len, At::offset(block.offset)?)
}

fn write_now(block: &Block) -> Outcome<ssize_t> {
    write_fd(block.fd, block.buffer, block.len, At::offset(block.offset)?)
}

fn sync_now(block: &Block) -> Outcome<ssize_t> {
    sync_fd(block.fd).map(|_| 0)
}

type List = unsafe extern "C" fn(c_int, *const *mut aiocb, c_int, *mut c_void) -> c_int;

static REAL_LIST: hook::Real = hook::Real::new("lio_listio\0");

/// Executes the requests on files of Forebay, and passes the rest of the list to the C library.
fn list(mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut Event) -> Outcome<c_int> {
    let count = usize::try_from(count).unwrap_or(0);
    let bytes = mem::readable(blocks.cast(), count * size_of::<usize>())?;
    let blocks = bytes
        .chunks_exact(size_of::<usize>())
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap_or_default()) as *mut aiocb);
    let (mut mine, mut others) = (Vec::new(), Vec::new());
    for control in blocks.filter(|control| !control.is_null()) {
        if ours(block(control)?.fd).is_ok() { mine.push(control) } else { others.push(control) }
    }
    if mine.is_empty() || !matches!(mode, libc::LIO_WAIT | libc::LIO_NOWAIT) {
        return Err(Stop::Foreign);
    }
    let mut failed = false;
    for control in mine {
        match block(control)?.opcode {
            libc::LIO_READ => perform(control, read_now)?,
            libc::LIO_WRITE => perform(control, write_now)?,
            _ => continue,
        };
        failed |= block(control)?.error != 0;
    }
    if let (false, Some(real)) = (others.is_empty(), REAL_LIST.address()) {
        // SAFETY: the C library's function of this name has this signature.
        let done = unsafe {
            let real: List = std::mem::transmute(real);
            real(mode, others.as_ptr(), others.len() as c_int, event.cast())
        };
        if done != 0 {
            return Err(Errno::last().into());
        }
    } else if mode == libc::LIO_NOWAIT && !event.is_null() {
        notify(&mem::take(event)?);
    }
    if failed && mode == libc::LIO_WAIT { fail(libc::EIO) } else { Ok(0) }
}

/// Requests on files of Forebay are already done, and cannot be cancelled.
fn cancel(fd: c_int) -> Outcome<c_int> {
    ours(fd)?;
    Ok(libc::AIO_ALLDONE)
}

hook::hooks! {
    fn [aio_read, aio_read64](control: *mut aiocb) -> c_int => perform(control, read_now);
    fn [aio_write, aio_write64](control: *mut aiocb) -> c_int => perform(control, write_now);
    fn [aio_fsync, aio_fsync64](_how: c_int, control: *mut aiocb) -> c_int => perform(control, sync_now);
    fn [lio_listio, lio_listio64](mode: c_int, blocks: *const *mut aiocb, count: c_int, event: *mut Event)
        -> c_int => list(mode, blocks, count, event);
    fn [aio_cancel, aio_cancel64](fd: c_int, _control: *mut aiocb) -> c_int => cancel(fd);
}
