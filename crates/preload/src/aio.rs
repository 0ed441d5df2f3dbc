//! POSIX asynchronous I/O: what concerns our files is done at once, and its result is left where the C library's own
//! `aio_error`, `aio_return` and `aio_suspend` look for it.

use crate::data::{At, read_fd, sync_fd, write_fd};
use crate::errno::{Outcome, Stop, fail};
use crate::place::ours;
use crate::{hook, mem};
use libc::{aiocb, c_int, c_void, off_t, sigevent, size_t, ssize_t};

/// The C library's control block, with the fields it keeps to itself. Part of its binary interface.
#[repr(C)]
struct Block {
    fd: c_int,
    opcode: c_int,
    priority: c_int,
    buffer: *mut c_void,
    len: size_t,
    event: sigevent,
    next: *mut c_void,
    absolute_priority: c_int,
    policy: c_int,
    error: c_int,
    result: ssize_t,
    offset: off_t,
    reserved: [u8; 32],
}

const _: () = assert!(size_of::<Block>() == size_of::<aiocb>());

fn block<'a>(control: *mut aiocb) -> Outcome<&'a mut Block> {
    mem::writable(control.cast(), size_of::<Block>())?;
    // SAFETY: there, writable, and by contract not used by anybody else until it is done.
    Ok(unsafe { &mut *control.cast::<Block>() })
}

/// Does the work, and leaves its result.
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

/// Tells the application in the way it asked for.
fn notify(event: &sigevent) {
    if event.sigev_notify == libc::SIGEV_SIGNAL && event.sigev_signo > 0 {
        // SAFETY: a signal to this process, with the application's own value.
        unsafe { libc::sigqueue(libc::getpid(), event.sigev_signo, event.sigev_value) };
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

/// A list that is all ours is done here; a mixed one is refused, so that no part is done twice.
fn list(blocks: *const *mut aiocb, count: c_int) -> Outcome<c_int> {
    let count = usize::try_from(count).unwrap_or(0);
    let bytes = mem::readable(blocks.cast(), count * size_of::<usize>())?;
    let blocks: Vec<*mut aiocb> = bytes
        .chunks_exact(size_of::<usize>())
        .map(|word| usize::from_ne_bytes(word.try_into().unwrap_or_default()) as *mut aiocb)
        .filter(|block| !block.is_null())
        .collect();
    let mut mine = 0;
    for control in &blocks {
        mine += usize::from(ours(block(*control)?.fd).is_ok());
    }
    match mine {
        0 => return Err(Stop::Foreign),
        all if all == blocks.len() => {}
        _ => return fail(libc::EINVAL),
    }
    let mut failed = false;
    for control in blocks {
        match block(control)?.opcode {
            libc::LIO_READ => perform(control, read_now)?,
            libc::LIO_WRITE => perform(control, write_now)?,
            _ => 0,
        };
        failed |= block(control)?.error != 0;
    }
    if failed { fail(libc::EIO) } else { Ok(0) }
}

/// What is done cannot be cancelled.
fn cancel(fd: c_int) -> Outcome<c_int> {
    ours(fd)?;
    Ok(libc::AIO_ALLDONE)
}

hook::hooks! {
    fn [aio_read, aio_read64](control: *mut aiocb) -> c_int => perform(control, read_now);
    fn [aio_write, aio_write64](control: *mut aiocb) -> c_int => perform(control, write_now);
    fn [aio_fsync, aio_fsync64](_how: c_int, control: *mut aiocb) -> c_int => perform(control, sync_now);
    fn [lio_listio, lio_listio64](_mode: c_int, blocks: *const *mut aiocb, count: c_int, _event: *mut sigevent)
        -> c_int => list(blocks, count);
    fn [aio_cancel, aio_cancel64](fd: c_int, _control: *mut aiocb) -> c_int => cancel(fd);
}
