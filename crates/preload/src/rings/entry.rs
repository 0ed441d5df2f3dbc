//! Entries of a submission ring: their meaning and their results.

use crate::errno::{Errno, Outcome, Stop, fail};
use crate::place::{locate, ours};
use crate::{mem, raw, special};
use libc::{c_char, c_int, c_long, iovec};

pub(super) const SIZE: usize = 64;

/// An entry as the kernel reads it. Fields that operations share are named after their most common use.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    fd: i32,
    offset: u64,
    address: u64,
    len: u32,
    operation_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    /// The second descriptor of `splice`; otherwise an index in the table of registered files plus one.
    slot: i32,
    address3: u64,
    reserved: u64,
}

const _: () = assert!(size_of::<Entry>() == SIZE);

const FIXED_FILE: u8 = 1;
const DRAIN: u8 = 1 << 1;
const LINK: u8 = 1 << 2;
const HARD_LINK: u8 = 1 << 3;
const ASYNC: u8 = 1 << 4;
const BUFFER_SELECT: u8 = 1 << 5;
const SKIP_SUCCESS: u8 = 1 << 6;

const NOP: u8 = 0;
/// The no-operation completes with the result that its entry holds.
const INJECT_RESULT: u32 = 1;

const READV: u8 = 1;
const WRITEV: u8 = 2;
const FSYNC: u8 = 3;
const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const SYNC_FILE_RANGE: u8 = 8;
const SENDMSG: u8 = 9;
const RECVMSG: u8 = 10;
const CONNECT: u8 = 16;
const FALLOCATE: u8 = 17;
const OPENAT: u8 = 18;
const CLOSE: u8 = 19;
const FILES_UPDATE: u8 = 20;
const STATX: u8 = 21;
const READ: u8 = 22;
const WRITE: u8 = 23;
const FADVISE: u8 = 24;
const OPENAT2: u8 = 28;
const SEND: u8 = 26;
const SPLICE: u8 = 30;
const TEE: u8 = 33;
const RENAMEAT: u8 = 35;
const UNLINKAT: u8 = 36;
const MKDIRAT: u8 = 37;
const SYMLINKAT: u8 = 38;
const LINKAT: u8 = 39;
const FSETXATTR: u8 = 41;
const SETXATTR: u8 = 42;
const FGETXATTR: u8 = 43;
const GETXATTR: u8 = 44;
const URING_CMD: u8 = 46;
const SEND_ZC: u8 = 47;
const SENDMSG_ZC: u8 = 48;
const READ_MULTISHOT: u8 = 49;
const FTRUNCATE: u8 = 55;
const BIND: u8 = 56;
const READV_FIXED: u8 = 60;
const WRITEV_FIXED: u8 = 61;
/// The first opcode that this library does not know.
const NEWER: u8 = 63;

const FSYNC_DATA_ONLY: u32 = 1;

impl Entry {
    /// A no-operation in place of this entry that completes with a result.
    pub(super) fn no_operation(&self, result: i32) -> Entry {
        Entry {
            opcode: NOP,
            flags: self.flags & (DRAIN | LINK | HARD_LINK | ASYNC | SKIP_SUCCESS),
            len: result as u32,
            operation_flags: INJECT_RESULT,
            user_data: self.user_data,
            fd: -1,
            ..Entry::default()
        }
    }

    fn is_sync(&self) -> bool {
        matches!(self.opcode, FSYNC | SYNC_FILE_RANGE)
    }

    /// Number of bytes that a transfer requests.
    fn wanted(&self) -> Option<usize> {
        match self.opcode {
            READ | WRITE | READ_FIXED | WRITE_FIXED => Some(self.len as usize),
            READV | WRITEV => {
                let list = self.address as *const iovec;
                let lens =
                    (0..self.len as usize).map(|at| Some(mem::take(list.wrapping_add(at)).ok()?.iov_len));
                lens.sum()
            }
            _ => None,
        }
    }

    /// Whether it concerns a file or path of Forebay.
    fn is_ours(&self) -> bool {
        let at = |dir: c_int, path: u64| locate(dir, path as *const c_char).is_ok();
        match self.opcode {
            _ if self.flags & FIXED_FILE != 0 => false,
            RENAMEAT | LINKAT => at(self.fd, self.address) || at(self.len as c_int, self.offset),
            OPENAT | OPENAT2 | STATX | UNLINKAT | MKDIRAT => at(self.fd, self.address),
            SYMLINKAT => at(self.fd, self.offset),
            SETXATTR | GETXATTR => at(libc::AT_FDCWD, self.address3),
            SPLICE | TEE => ours(self.slot).is_ok() || ours(self.fd).is_ok(),
            CONNECT | BIND | SEND | SEND_ZC => self.names_our_socket(),
            READV
            | WRITEV
            | FSYNC
            | READ_FIXED
            | WRITE_FIXED
            | SYNC_FILE_RANGE
            | FALLOCATE
            | CLOSE
            | READ
            | WRITE
            | FADVISE
            | FSETXATTR
            | FGETXATTR
            | URING_CMD
            | READ_MULTISHOT
            | FTRUNCATE
            | READV_FIXED
            | WRITEV_FIXED
            | NEWER.. => ours(self.fd).is_ok(),
            _ => false,
        }
    }

    /// Whether its address names a socket of Forebay. `SEND` has a second address, whose length is two bytes.
    fn names_our_socket(&self) -> bool {
        let (address, len) = match self.opcode {
            SEND | SEND_ZC => (self.offset, self.slot as u32 & 0xffff),
            _ => (self.address, self.offset as u32),
        };
        special::names_ours(self.fd, address as *const libc::sockaddr_un, len)
    }

    /// Executes the entry, if it concerns Forebay.
    fn perform(&self) -> Outcome<c_long> {
        if self.flags & FIXED_FILE != 0 {
            return Err(Stop::Foreign);
        }
        match self.opcode {
            OPENAT | OPENAT2 | STATX | RENAMEAT | UNLINKAT | MKDIRAT | SYMLINKAT | LINKAT | SETXATTR
            | GETXATTR => self.on_path(),
            SENDMSG | SENDMSG_ZC => {
                let flags = self.operation_flags as usize;
                raw::perform(libc::SYS_sendmsg, [self.fd as usize, self.address as usize, flags, 0, 0, 0])
            }
            CONNECT | BIND => {
                let number = if self.opcode == BIND { libc::SYS_bind } else { libc::SYS_connect };
                raw::perform(number, [self.fd as usize, self.address as usize, self.offset as usize, 0, 0, 0])
            }
            SEND | SEND_ZC if self.names_our_socket() => fail(libc::EOPNOTSUPP),
            SEND | SEND_ZC => Err(Stop::Foreign),
            RECVMSG => self.receive(),
            FILES_UPDATE => self.register(),
            SPLICE | TEE => self.between(),
            READV | WRITEV | READ_FIXED | WRITE_FIXED | READ | WRITE => self.transfer(),
            READ_MULTISHOT | READV_FIXED | WRITEV_FIXED | URING_CMD | NEWER.. => {
                ours(self.fd)?;
                fail(libc::EOPNOTSUPP)
            }
            _ => self.on_descriptor(),
        }
    }

    fn transfer(&self) -> Outcome<c_long> {
        ours(self.fd)?;
        if self.flags & BUFFER_SELECT != 0 {
            return fail(libc::EOPNOTSUPP);
        }
        let (fd, flags) = (self.fd as usize, self.operation_flags as usize);
        let one = iovec { iov_base: self.address as *mut _, iov_len: self.len as usize };
        let (list, count) = match self.opcode {
            READV | WRITEV => (self.address as usize, self.len as usize),
            _ => (&raw const one as usize, 1),
        };
        let number = match self.opcode {
            READV | READ | READ_FIXED => libc::SYS_preadv2,
            _ => libc::SYS_pwritev2,
        };
        raw::perform(number, [fd, list, count, self.offset as usize, 0, flags])
    }

    fn on_descriptor(&self) -> Outcome<c_long> {
        let (fd, flags) = (self.fd as usize, self.operation_flags as usize);
        let (offset, address, len) = (self.offset as usize, self.address as usize, self.len as usize);
        match self.opcode {
            FSYNC if self.operation_flags & FSYNC_DATA_ONLY != 0 => {
                raw::perform(libc::SYS_fdatasync, [fd, 0, 0, 0, 0, 0])
            }
            FSYNC => raw::perform(libc::SYS_fsync, [fd, 0, 0, 0, 0, 0]),
            SYNC_FILE_RANGE => raw::perform(libc::SYS_sync_file_range, [fd, offset, len, flags, 0, 0]),
            FALLOCATE => raw::perform(libc::SYS_fallocate, [fd, len, offset, address, 0, 0]),
            FTRUNCATE => raw::perform(libc::SYS_ftruncate, [fd, offset, 0, 0, 0, 0]),
            FADVISE => raw::perform(libc::SYS_fadvise64, [fd, offset, len, flags, 0, 0]),
            FSETXATTR => raw::perform(libc::SYS_fsetxattr, [fd, address, offset, len, flags, 0]),
            FGETXATTR => raw::perform(libc::SYS_fgetxattr, [fd, address, offset, len, 0, 0]),
            CLOSE if self.slot == 0 => raw::perform(libc::SYS_close, [fd, 0, 0, 0, 0, 0]),
            _ => Err(Stop::Foreign),
        }
    }

    fn on_path(&self) -> Outcome<c_long> {
        let (fd, flags) = (self.fd as usize, self.operation_flags as usize);
        let (offset, address, len) = (self.offset as usize, self.address as usize, self.len as usize);
        if matches!(self.opcode, OPENAT | OPENAT2) && self.slot != 0 {
            // The kernel would add the file to its registered files.
            locate(self.fd, address as *const c_char)?;
            return fail(libc::EOPNOTSUPP);
        }
        let second = self.len as c_int as usize;
        match self.opcode {
            OPENAT => raw::perform(libc::SYS_openat, [fd, address, flags, len, 0, 0]),
            OPENAT2 => raw::perform(libc::SYS_openat2, [fd, address, offset, len, 0, 0]),
            STATX => raw::perform(libc::SYS_statx, [fd, address, flags, len, offset, 0]),
            RENAMEAT => raw::perform(libc::SYS_renameat2, [fd, address, second, offset, flags, 0]),
            UNLINKAT => raw::perform(libc::SYS_unlinkat, [fd, address, flags, 0, 0, 0]),
            MKDIRAT => raw::perform(libc::SYS_mkdirat, [fd, address, len, 0, 0, 0]),
            SYMLINKAT => raw::perform(libc::SYS_symlinkat, [address, fd, offset, 0, 0, 0]),
            LINKAT => raw::perform(libc::SYS_linkat, [fd, address, second, offset, flags, 0]),
            SETXATTR => {
                raw::perform(libc::SYS_setxattr, [self.address3 as usize, address, offset, len, flags, 0])
            }
            _ => raw::perform(libc::SYS_getxattr, [self.address3 as usize, address, offset, len, 0, 0]),
        }
    }

    /// `splice` and `tee` have two descriptors.
    fn between(&self) -> Outcome<c_long> {
        const IN_FIXED: u32 = 1 << 31;
        if self.operation_flags & IN_FIXED != 0 || ours(self.slot).is_err() && ours(self.fd).is_err() {
            return Err(Stop::Foreign);
        }
        let place = |offset: u64| if offset == u64::MAX { None } else { Some(offset as i64) };
        let (mut from, mut to) = (place(self.address), place(self.offset));
        let pointer =
            |place: &mut Option<i64>| place.as_mut().map_or(0, |place| std::ptr::from_mut(place) as usize);
        let (input, output, len) = (self.slot as usize, self.fd as usize, self.len as usize);
        let flags = self.operation_flags as usize;
        match self.opcode {
            SPLICE => raw::perform(
                libc::SYS_splice,
                [input, pointer(&mut from), output, pointer(&mut to), len, flags],
            ),
            _ => raw::perform(libc::SYS_tee, [input, output, len, flags, 0, 0]),
        }
    }

    /// A received message may carry descriptors of Forebay, which only a synchronous call could adopt.
    fn receive(&self) -> Outcome<c_long> {
        let message = mem::take(self.address as *const libc::msghdr);
        match message.is_ok_and(|message| !message.msg_control.is_null()) {
            true => fail(libc::EOPNOTSUPP),
            false => Err(Stop::Foreign),
        }
    }

    /// Files of Forebay cannot be registered.
    fn register(&self) -> Outcome<c_long> {
        match super::any_ours(self.address as *const c_int, self.len as usize)? {
            true => fail(libc::EOPNOTSUPP),
            false => Err(Stop::Foreign),
        }
    }
}

/// What the linked entries before it mean for the next entry.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// It is not linked, or all entries before it in its chain are done.
    #[default]
    Free,
    /// The kernel still has to execute an entry before it.
    Waits,
    /// An entry before it has failed: it is not executed.
    Severed,
}

/// Follows chains of linked entries.
#[derive(Default)]
pub(super) struct Chain {
    state: State,
}

impl Chain {
    /// The result of the next entry, if it concerns Forebay or its chain was cut by an entry that does. An entry that
    /// was executed before is not executed again.
    pub(super) fn result(&mut self, entry: &Entry, known: Option<i32>) -> Option<i32> {
        let result = match (known, self.state) {
            (Some(result), _) => Some(result),
            (None, State::Severed) => Some(-libc::ECANCELED),
            (None, state) => {
                result(entry, state == State::Waits || entry.flags & DRAIN != 0 && !entry.is_sync())
            }
        };
        let linked = entry.flags & (LINK | HARD_LINK) != 0;
        let failed = result.is_some_and(|result| {
            result < 0 || entry.wanted().is_some_and(|wanted| (result as usize) < wanted)
        });
        self.state = match (linked, self.state, result) {
            (false, ..) => State::Free,
            (true, State::Severed, _) => State::Severed,
            (true, _, Some(_)) if failed && entry.flags & HARD_LINK == 0 => State::Severed,
            (true, State::Waits, _) | (true, _, None) => State::Waits,
            (true, State::Free, Some(_)) => State::Free,
        };
        result
    }
}

/// Executes an entry if it concerns Forebay. One that has to wait for an entry in the kernel cannot be executed in
/// order, and is refused.
fn result(entry: &Entry, waits: bool) -> Option<i32> {
    let outcome = if waits && entry.is_ours() { fail(libc::EOPNOTSUPP) } else { entry.perform() };
    match outcome {
        Ok(value) => Some(value as i32),
        Err(Stop::Errno(Errno(number))) => Some(-number),
        Err(Stop::Foreign | Stop::Outside(_)) => None,
    }
}
