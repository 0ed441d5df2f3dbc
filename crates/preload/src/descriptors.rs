//! Closing, duplicating and controlling descriptors.

use crate::errno::{Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::lock::Lock;
use crate::opening::{CREATED, LINKABLE};
use crate::place::ours;
use crate::quiet::{Quiet, is_internal};
use crate::table::{self, Held};
use crate::{backing, hook, locks, mem, opening, process_state, rings, special, stdio};
use libc::{c_int, c_uint, c_ulong, c_void, rlimit};
use rustix::fs::OFlags;
use std::sync::atomic::Ordering;

/// A system call that takes only descriptors and flags.
fn plain(number: i64, args: [usize; 3]) -> Outcome<c_int> {
    // SAFETY: the numbers used here take descriptors and flags only.
    let result = unsafe { try_system_call(number, [args[0], args[1], args[2], 0, 0, 0]) }?;
    Ok(result as c_int)
}

pub(crate) fn close_fd(fd: c_int) -> Outcome<c_int> {
    process_state::ready();
    rings::closing(fd, fd);
    if table::is_hidden(fd) && !is_internal() {
        return fail(libc::EBADF);
    }
    if process_state::is_set_up() && table::get(fd).is_none() {
        return Err(Stop::Foreign);
    }
    if process_state::is_borrowed() {
        return Err(Stop::Foreign);
    }
    let _quiet = Quiet::begin();
    // Removed from the table first: another thread may get the number as soon as the kernel has closed it.
    let held = table::remove(fd);
    if let Some(open) = &held {
        locks::closing(open.id());
        open.backing().keep(fd);
    }
    let closed = plain(libc::SYS_close, [fd as usize, 0, 0]);
    stdio::changed(fd);
    drop(held);
    closed
}

/// Records the open file that a descriptor now refers to.
fn note(fd: c_int, held: Option<&Held>) {
    if process_state::is_borrowed() {
        return;
    }
    match held {
        Some(held) => table::put(fd, held),
        None => drop(table::remove(fd)),
    }
    stdio::changed(fd);
}

/// Checks the standard descriptors again after the C library may have changed them without calling this library.
pub(crate) fn look_again() {
    for fd in 0..3 {
        if table::get(fd).is_some() && !backing::is_ours(fd) {
            note(fd, None);
        }
    }
}

fn duplicate(fd: c_int, command: c_int, least: c_int) -> Outcome<c_int> {
    let open = ours(fd)?;
    let new = plain(libc::SYS_fcntl, [fd as usize, command as usize, least as usize])?;
    note(new, Some(&open));
    Ok(new)
}

pub(crate) fn duplicate_to(old: c_int, new: c_int, flags: c_int) -> Outcome<c_int> {
    process_state::ready();
    let (from, to) = (table::get(old), table::get(new));
    if table::is_hidden(new) && !is_internal() {
        let is_beyond = descriptor_limit(None)?.rlim_cur <= new as u64;
        return fail(if is_beyond { libc::EBADF } else { libc::EBUSY });
    }
    if old != new {
        rings::closing(new, new);
    }
    if from.is_none() && to.is_none() {
        return Err(Stop::Foreign);
    }
    if old == new {
        return fail(libc::EINVAL);
    }
    plain(libc::SYS_dup3, [old as usize, new as usize, flags as usize])?;
    note(new, from.as_ref());
    if let Some(closed) = to {
        locks::closing(closed.id());
    }
    Ok(new)
}

/// Duplicates a descriptor onto a hidden descriptor, which stays hidden.
pub(crate) fn replace(old: c_int, hidden: c_int) -> Outcome<c_int> {
    above_limit(|_| plain(libc::SYS_dup3, [old as usize, hidden as usize, libc::O_CLOEXEC as usize]))
}

pub(crate) fn duplicate_to_same(old: c_int, new: c_int) -> Outcome<c_int> {
    if old == new {
        return ours(old).map(|_| new);
    }
    duplicate_to(old, new, 0)
}

/// Closes a range of descriptors, except hidden ones.
pub(crate) fn close_some(first: c_uint, last: c_uint, flags: c_uint) -> Outcome<c_int> {
    const UNSHARE: c_uint = 2;
    const CLOEXEC: c_uint = 4;
    process_state::ready();
    if first > last || flags & !(UNSHARE | CLOEXEC) != 0 {
        return fail(libc::EINVAL);
    }
    let (low, high) =
        (c_int::try_from(first).unwrap_or(c_int::MAX), c_int::try_from(last).unwrap_or(c_int::MAX));
    let mut spared = Vec::new();
    if flags & CLOEXEC == 0 {
        rings::closing(low, high);
    }
    table::each(low, high, |fd| {
        if table::is_hidden(fd) {
            spared.push(fd as c_uint);
        } else if flags & CLOEXEC == 0 {
            let _ = close_fd(fd);
        }
    });
    let mut start = first;
    for fd in spared {
        if start < fd {
            plain(libc::SYS_close_range, [start as usize, fd as usize - 1, flags as usize])?;
        }
        start = fd + 1;
    }
    if start <= last {
        plain(libc::SYS_close_range, [start as usize, last as usize, flags as usize])?;
    }
    Ok(0)
}

/// `F_CREATED_QUERY` of Linux 6.12: whether the open that returned the descriptor created the file.
const CREATED_QUERY: c_int = 1024 + 4;

/// The kernel sends at most this many messages in one call.
const MOST_MESSAGES: c_uint = 1024;

/// Commands allowed on a descriptor opened with `O_PATH`.
fn of_paths(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_GETFD | libc::F_SETFD | libc::F_GETFL)
}

pub(crate) fn control(fd: c_int, command: c_int, argument: *mut c_void) -> Outcome<c_int> {
    if is_internal() && command == libc::F_DUPFD_CLOEXEC {
        // If the limit allows, the descriptor never has a number among the application's.
        let copy = || hide_high(plain(libc::SYS_fcntl, [fd as usize, command as usize, argument as usize])?);
        return hidden_copy(fd).map_or_else(copy, Ok);
    }
    let open = ours(fd)?;
    if open.kind() == backing::Kind::Path && !of_paths(command) {
        return fail(libc::EBADF);
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate(fd, command, argument as c_int),
        libc::F_GETFL => {
            let large = OFlags::LARGEFILE.bits();
            Ok((open.access & !(LINKABLE | CREATED) | open.flags.load(Ordering::Relaxed) | large) as c_int)
        }
        libc::F_SETFL => {
            let flags = argument as c_int & opening::CHANGEABLE;
            open.flags.store(flags as u32, Ordering::Relaxed);
            Ok(0)
        }
        libc::F_GETLK
        | libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_OFD_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW => locks::range(&open, command, argument.cast()),
        libc::F_GETLEASE => Ok(libc::F_UNLCK),
        // Leases are not supported. Requests that no file system would grant keep their own error.
        libc::F_SETLEASE => {
            let writes = open.access as c_int & libc::O_ACCMODE != libc::O_RDONLY;
            let kind = argument as c_int;
            fail(if kind == libc::F_UNLCK || (kind == libc::F_RDLCK && writes) {
                libc::EAGAIN
            } else {
                libc::EINVAL
            })
        }
        CREATED_QUERY => Ok(c_int::from(open.access & CREATED != 0)),
        // These concern the descriptor, which is the kernel's.
        libc::F_GETFD | libc::F_SETFD | libc::F_GETOWN | libc::F_SETOWN => Err(Stop::Foreign),
        _ => fail(libc::EINVAL),
    }
}

pub(crate) fn device_control(fd: c_int, request: c_ulong, argument: *mut c_void) -> Outcome<c_int> {
    let open = ours(fd)?;
    if open.kind() == backing::Kind::Path {
        return fail(libc::EBADF);
    }
    match request {
        libc::FIONREAD => {
            let left = open.attr()?.size.saturating_sub(open.offset.load(Ordering::Acquire));
            mem::give(argument.cast(), c_int::try_from(left).unwrap_or(c_int::MAX))?;
            Ok(0)
        }
        libc::FIONBIO => {
            let on = mem::take(argument.cast::<c_int>())? != 0;
            let bit = libc::O_NONBLOCK as u32;
            match on {
                true => open.flags.fetch_or(bit, Ordering::Relaxed),
                false => open.flags.fetch_and(!bit, Ordering::Relaxed),
            };
            Ok(0)
        }
        libc::FIOCLEX | libc::FIONCLEX => Err(Stop::Foreign),
        libc::FICLONE | libc::FICLONERANGE => fail(libc::EOPNOTSUPP),
        _ => fail(libc::ENOTTY),
    }
}

/// The largest limit above which hidden descriptors are put: the kernel's table, which every `fork` copies, stays small.
const LARGEST: u64 = 32 << 10;
/// Lowest number for hidden descriptors if they cannot be above the limit, and the limit allows.
const HIGH: u64 = 4096;
/// How many hidden descriptors have room.
const ROOM: u64 = 1024;

static LIFTING: Lock<()> = Lock::new(());

/// Sets the limit of descriptors, if a new one is given; returns the one before.
fn descriptor_limit(new: Option<&rlimit>) -> Outcome<rlimit> {
    let mut before = rlimit { rlim_cur: 0, rlim_max: 0 };
    let new = new.map_or(0, |new| std::ptr::from_ref(new) as usize);
    let args = [0, libc::RLIMIT_NOFILE as usize, new, &raw mut before as usize, 0, 0];
    // SAFETY: the kernel reads and writes variables of this function and its caller.
    unsafe { try_system_call(libc::SYS_prlimit64, args) }?;
    Ok(before)
}

/// Calls `work` with a number from which on descriptors are not the application's, so that it has all numbers up to its
/// limit. The limit is raised for that moment, where the process may do that.
fn above_limit<T>(work: impl Fn(usize) -> Outcome<T>) -> Outcome<T> {
    LIFTING.with(|_| {
        let limit = descriptor_limit(None)?;
        let end = limit.rlim_cur.saturating_add(ROOM);
        let raised = rlimit { rlim_cur: end, rlim_max: limit.rlim_max.max(end) };
        if limit.rlim_cur <= LARGEST && descriptor_limit(Some(&raised)).is_ok() {
            let done = work(limit.rlim_cur as usize);
            let found = descriptor_limit(Some(&limit))?;
            if (found.rlim_cur, found.rlim_max) != (raised.rlim_cur, raised.rlim_max) {
                // The application has set it meanwhile.
                descriptor_limit(Some(&found))?;
            }
            if done.is_ok() {
                return done;
            }
        }
        work(limit.rlim_cur.min(HIGH).saturating_sub(64) as usize)
    })
}

/// Moves a descriptor of the library to a number above the application's.
pub(crate) fn move_high(fd: c_int, command: c_int) -> Outcome<c_int> {
    let lifted = above_limit(|least| plain(libc::SYS_fcntl, [fd as usize, command as usize, least]));
    let Ok(lifted) = lifted else { return Ok(fd) };
    plain(libc::SYS_close, [fd as usize, 0, 0])?;
    Ok(lifted)
}

/// A hidden copy of a descriptor, numbered above the application's.
pub(crate) fn hidden_copy(fd: c_int) -> Option<c_int> {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    let copy = above_limit(|least| plain(libc::SYS_fcntl, [fd as usize, command, least])).ok()?;
    table::hide(copy);
    Some(copy)
}

/// Closes a hidden descriptor.
pub(crate) fn close_hidden(fd: c_int) {
    drop(table::remove(fd));
    // The descriptor is the library's: closing it cannot fail.
    let _ = plain(libc::SYS_close, [fd as usize, 0, 0]);
}

/// Moves a descriptor of the library above the application's, and hides it.
pub(crate) fn hide_high(fd: c_int) -> Outcome<c_int> {
    let lifted = move_high(fd, libc::F_DUPFD_CLOEXEC)?;
    table::hide(lifted);
    Ok(lifted)
}

/// The library's own threads create descriptors by the same functions as the application.
fn own(number: i64, args: [usize; 3]) -> Outcome<c_int> {
    if !is_internal() {
        return Err(Stop::Foreign);
    }
    hide_high(plain(number, args)?)
}

/// As [`own`], for a pair. Only the runtime's signal pipe is created this way. It belongs to the process, not to an
/// engine, so a forked child keeps it.
fn own_pair(domain: c_int, kind: c_int, protocol: c_int, into: *mut c_int) -> Outcome<c_int> {
    if !is_internal() {
        return Err(Stop::Foreign);
    }
    let args = [domain as usize, kind as usize, protocol as usize, into as usize, 0, 0];
    // SAFETY: the caller is the library, and has space for two descriptors.
    let [one, two] = unsafe {
        try_system_call(libc::SYS_socketpair, args)?;
        into.cast::<[c_int; 2]>().read()
    };
    let pair = [one, two].map(|fd| move_high(fd, libc::F_DUPFD_CLOEXEC).unwrap_or(fd));
    pair.iter().for_each(|fd| table::keep(*fd));
    mem::give(into.cast(), pair)?;
    Ok(0)
}

/// A hidden descriptor is closed through the C library only by the library's own threads.
fn close_any(fd: c_int) -> Outcome<c_int> {
    if is_internal() && table::is_hidden(fd) {
        drop(table::remove(fd));
        return Err(Stop::Foreign);
    }
    close_fd(fd)
}

/// A message may carry descriptors, and these may be Forebay's. So may be the socket that its address names.
pub(crate) fn sends(fd: c_int, message: *const libc::msghdr, flags: c_int) -> Outcome<isize> {
    let (false, Ok(message)) = (is_internal(), mem::take(message)) else { return Err(Stop::Foreign) };
    if !message.msg_control.is_null() {
        backing::note_sharing();
    }
    special::send_message(fd, &message, flags)
}

/// Assumes that at least one of several messages carries descriptors. A message to a socket of Forebay is sent alone or
/// not at all.
pub(crate) fn sends_many(fd: c_int, messages: *const libc::mmsghdr, count: c_uint) -> Outcome<c_int> {
    backing::note_sharing();
    for at in 0..count.min(MOST_MESSAGES) as usize {
        let Ok(libc::mmsghdr { msg_hdr: message, .. }) = mem::take(messages.wrapping_add(at)) else { break };
        if special::names_ours(fd, message.msg_name.cast(), message.msg_namelen) {
            return fail(libc::EOPNOTSUPP);
        }
    }
    Err(Stop::Foreign)
}

/// A received message may carry descriptors of Forebay.
pub(crate) fn receive(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> Outcome<isize> {
    if is_internal() || mem::take(message).map_or(true, |message| message.msg_control.is_null()) {
        return Err(Stop::Foreign);
    }
    // SAFETY: the application's own arguments, unchanged.
    let count = unsafe {
        try_system_call(libc::SYS_recvmsg, [fd as usize, message as usize, flags as usize, 0, 0, 0])
    }?;
    adopt_from(message);
    Ok(count)
}

/// As [`receive`], for several messages.
pub(crate) fn receive_many(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    room: c_uint,
    flags: c_int,
    timeout: *mut libc::timespec,
) -> Outcome<c_int> {
    let args = [fd as usize, messages as usize, room as usize, flags as usize, timeout as usize, 0];
    // SAFETY: as above.
    let count = unsafe { try_system_call(libc::SYS_recvmmsg, args) }?;
    for at in 0..count {
        // SAFETY: the kernel has filled this many messages.
        adopt_from(unsafe { &raw mut (*messages.offset(at)).msg_hdr });
    }
    Ok(count as c_int)
}

fn adopt_from(message: *const libc::msghdr) {
    process_state::ready();
    if process_state::is_borrowed() {
        return;
    }
    // SAFETY: the kernel has just filled the message and its control buffer.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while let Some(part) = header.as_ref() {
            if part.cmsg_level == libc::SOL_SOCKET && part.cmsg_type == libc::SCM_RIGHTS {
                let bytes = part.cmsg_len - (libc::CMSG_LEN(0) as usize);
                let list = libc::CMSG_DATA(part).cast::<c_int>();
                (0..bytes / size_of::<c_int>()).for_each(|at| backing::adopt(list.add(at).read_unaligned()));
            }
            header = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// A descriptor opened with `O_PATH` cannot be polled.
fn watch(fd: c_int) -> Outcome<c_int> {
    if !is_internal() && ours(fd)?.kind() == backing::Kind::Path {
        return fail(libc::EBADF);
    }
    Err(Stop::Foreign)
}

hook::hooks! {
    fn [epoll_ctl](_epoll: c_int, _operation: c_int, fd: c_int, _event: *mut c_void) -> c_int => watch(fd);
    fn [sendmsg](fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize => sends(fd, message, flags);
    fn [sendmmsg](fd: c_int, messages: *mut libc::mmsghdr, count: c_uint, _flags: c_int) -> c_int =>
        sends_many(fd, messages, count);
    fn [recvmsg](fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize => receive(fd, message, flags);
    fn [recvmmsg](fd: c_int, messages: *mut libc::mmsghdr, room: c_uint, flags: c_int, timeout: *mut libc::timespec)
        -> c_int => receive_many(fd, messages, room, flags, timeout);
    fn [close, __close](fd: c_int) -> c_int => close_any(fd);
    fn [dup](fd: c_int) -> c_int => duplicate(fd, libc::F_DUPFD, 0);
    fn [dup2, __dup2](old: c_int, new: c_int) -> c_int => duplicate_to_same(old, new);
    fn [dup3](old: c_int, new: c_int, flags: c_int) -> c_int => duplicate_to(old, new, flags);
    fn [fcntl, fcntl64, __fcntl](fd: c_int, command: c_int, argument: *mut c_void) -> c_int =>
        control(fd, command, argument);
    fn [ioctl](fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int => device_control(fd, request, argument);
    fn [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int => close_some(first, last, flags as c_uint);
    fn [closefrom](first: c_int) -> () => close_some(first.max(0) as c_uint, c_uint::MAX, 0).map(|_| ());
    fn [socket](domain: c_int, kind: c_int, protocol: c_int) -> c_int =>
        own(libc::SYS_socket, [domain as usize, kind as usize, protocol as usize]);
    fn [socketpair](domain: c_int, kind: c_int, protocol: c_int, into: *mut c_int) -> c_int =>
        own_pair(domain, kind, protocol, into);
    fn [epoll_create1](flags: c_int) -> c_int => own(libc::SYS_epoll_create1, [flags as usize, 0, 0]);
    fn [eventfd](start: c_uint, flags: c_int) -> c_int => own(libc::SYS_eventfd2, [start as usize, flags as usize, 0]);
}
