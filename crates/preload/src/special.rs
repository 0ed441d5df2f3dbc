//! Named pipes and sockets on this machine: the service has their names, the kernel carries their data. Each has a
//! local twin: in the private directory of its owner, or, of pipes of a server of root's, where that server says.
//!
//! **Deliberately absent**: pipes and sockets between machines, sockets between users, which are refused; removing a twin
//! in a private directory when its name is removed.

use crate::credentials::Credentials;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::place::{Place, locate};
use crate::quiet::is_internal;
use crate::{dispatch, engine, hook, mem, opening, private};
use forebay_model::{Access, Attr, ErrorKind, FileKind, Special, may};
use libc::{c_char, c_int, c_uint, c_void, msghdr, size_t, sockaddr_un};
use rustix::fs::{AtFlags, CWD, FileType, Mode};
use std::ffi::CString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// Path of the twin of a pipe or socket. File ids are unique within one service, and programs may name that by different
/// addresses: so the twin is named after the store.
fn twin(attr: &Attr) -> Outcome<PathBuf> {
    if attr.uid.0 != rustix::process::geteuid().as_raw() {
        return fail(libc::EOPNOTSUPP);
    }
    let dir = private::dir()?.join(".forebay-special");
    match rustix::fs::mkdirat(CWD, &dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let file = attr.id;
    let store = engine::run(move |engine| engine.by_id().incarnation(file))?.0;
    // The address of a socket has little room.
    Ok(dir.join(format!("{:016x}-{file}", store as u64 ^ (store >> 64) as u64)))
}

/// The twin of a named pipe; created if it does not exist.
pub(crate) fn pipe(attr: &Attr) -> Outcome<Vec<u8>> {
    let twin = twin(attr)?;
    match rustix::fs::mknodat(CWD, &twin, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(twin.as_os_str().as_bytes().to_vec()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a path of this machine is a named pipe.
pub(crate) fn is_pipe(path: &[u8]) -> bool {
    rustix::fs::lstat(path).is_ok_and(|found| found.st_mode & libc::S_IFMT == libc::S_IFIFO)
}

/// Where the path of a socket leads.
enum SocketPath {
    Inside(Place),
    /// Out of Forebay, to this path.
    Outside(CString),
}

fn socket_path(fd: c_int, address: *const sockaddr_un, len: c_uint) -> Outcome<SocketPath> {
    const FAMILY: usize = size_of::<libc::sa_family_t>();
    let len = (len as usize).min(size_of::<sockaddr_un>());
    if is_internal() || len <= FAMILY {
        return Err(Stop::Foreign);
    }
    let bytes = mem::readable(address.cast(), len)?;
    let path = bytes[FAMILY..].split(|byte| *byte == 0).next().unwrap_or_default();
    if bytes[..FAMILY] != (libc::AF_UNIX as libc::sa_family_t).to_ne_bytes() || path.is_empty() {
        return Err(Stop::Foreign);
    }
    let path = CString::new(path).unwrap_or_default();
    match locate(libc::AT_FDCWD, path.as_ptr()) {
        // For other kinds of sockets the kernel reports the error.
        Ok(_) if !is_local(fd) => Err(Stop::Foreign),
        Ok(place) => Ok(SocketPath::Inside(place)),
        Err(Stop::Outside(path)) => Ok(SocketPath::Outside(path)),
        Err(stop) => Err(stop),
    }
}

/// Whether a descriptor is a Unix socket.
fn is_local(fd: c_int) -> bool {
    let (mut domain, mut len) = (0, size_of::<c_int>() as c_uint);
    let (level, option) = (libc::SOL_SOCKET as usize, libc::SO_DOMAIN as usize);
    let args = [fd as usize, level, option, &raw mut domain as usize, &raw mut len as usize, 0];
    // SAFETY: the kernel writes into two local variables.
    unsafe { try_system_call(libc::SYS_getsockopt, args) }.is_ok() && domain == libc::AF_UNIX
}

/// The address of a socket at a path.
fn address_of(path: &[u8]) -> Outcome<sockaddr_un> {
    let mut address = sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let path_field = address.sun_path[..107].get_mut(..path.len()).ok_or(Errno(libc::ENAMETOOLONG))?;
    path_field.iter_mut().zip(path).for_each(|(to, from)| *to = *from as c_char);
    Ok(address)
}

/// Makes a system call on a socket with another path than the application's.
fn at_path(number: i64, fd: c_int, path: &[u8]) -> Outcome<c_int> {
    let address = address_of(path)?;
    let args = [fd as usize, &raw const address as usize, size_of::<sockaddr_un>(), 0, 0, 0];
    // SAFETY: an address of the library in place of the application's.
    Ok(unsafe { try_system_call(number, args) }? as c_int)
}

pub(crate) fn bind_socket(fd: c_int, address: *const sockaddr_un, len: c_uint) -> Outcome<c_int> {
    let place = match socket_path(fd, address, len)? {
        SocketPath::Outside(path) => return at_path(libc::SYS_bind, fd, path.as_bytes()),
        SocketPath::Inside(place) => place,
    };
    let (entry, mode) = (place.own_entry(ErrorKind::Exists)?, opening::masked(0o777));
    let (dir, name) = (entry.dir, entry.name);
    let made = engine::run(|engine| engine.by_id().make_special(dir, name.clone(), mode, Special::Socket));
    let made =
        made.map_err(|errno| if errno == Errno(libc::EEXIST) { Errno(libc::EADDRINUSE) } else { errno })?;
    let bound = twin(&made).and_then(|twin| {
        // A leftover of another service.
        let _ = rustix::fs::unlinkat(CWD, &twin, AtFlags::empty());
        at_path(libc::SYS_bind, fd, twin.as_os_str().as_bytes())
    });
    if bound.is_err() {
        let _ = engine::run(|engine| engine.by_id().unlink(dir, name));
    }
    bound
}

/// Where the kernel finds the socket that an address of the application's names.
fn target(fd: c_int, address: *const sockaddr_un, len: c_uint) -> Outcome<Vec<u8>> {
    let place = match socket_path(fd, address, len)? {
        SocketPath::Outside(path) => return Ok(path.into_bytes()),
        SocketPath::Inside(place) => place,
    };
    let attr = place.find(true)?;
    if attr.kind != FileKind::Special(Special::Socket) {
        return fail(libc::ECONNREFUSED);
    }
    if !may(&Credentials::read().for_files(), &attr, Access::WRITE) {
        return fail(libc::EACCES);
    }
    Ok(twin(&attr)?.into_os_string().into_vec())
}

/// The name of a socket exists, but no process on this machine has it open.
fn unheard<T>(outcome: Outcome<T>) -> Outcome<T> {
    match outcome {
        Err(Stop::Errno(Errno(libc::ENOENT))) => fail(libc::ECONNREFUSED),
        done => done,
    }
}

pub(crate) fn connect_socket(fd: c_int, address: *const sockaddr_un, len: c_uint) -> Outcome<c_int> {
    let target = target(fd, address, len)?;
    unheard(at_path(libc::SYS_connect, fd, &target))
}

/// Whether an address names a socket of Forebay.
pub(crate) fn names_ours(fd: c_int, address: *const sockaddr_un, len: c_uint) -> bool {
    matches!(socket_path(fd, address, len), Ok(SocketPath::Inside(_)))
}

pub(crate) fn send_to(
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    address: *const sockaddr_un,
    address_len: c_uint,
) -> Outcome<isize> {
    if address.is_null() {
        return Err(Stop::Foreign);
    }
    let address = address_of(&target(fd, address, address_len)?)?;
    let (place, size) = (&raw const address as usize, size_of::<sockaddr_un>());
    let args = [fd as usize, bytes as usize, len, flags as usize, place, size];
    // SAFETY: the application's own call, with an address of the library.
    let sent = dispatch::waiting(|| unsafe { try_system_call(libc::SYS_sendto, args) });
    unheard(sent.map_err(Stop::from))
}

/// As [`send_to`], for a message whose address is part of it.
pub(crate) fn send_message(fd: c_int, message: &msghdr, flags: c_int) -> Outcome<isize> {
    if message.msg_name.is_null() {
        return Err(Stop::Foreign);
    }
    let mut address = address_of(&target(fd, message.msg_name.cast(), message.msg_namelen)?)?;
    let mut message = *message;
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<sockaddr_un>() as c_uint;
    let args = [fd as usize, &raw const message as usize, flags as usize, 0, 0, 0];
    // SAFETY: as above.
    let sent = dispatch::waiting(|| unsafe { try_system_call(libc::SYS_sendmsg, args) });
    unheard(sent.map_err(Stop::from))
}

hook::hooks! {
    fn [bind](fd: c_int, address: *const sockaddr_un, len: c_uint) -> c_int => bind_socket(fd, address, len);
    fn [connect, __connect](fd: c_int, address: *const sockaddr_un, len: c_uint) -> c_int =>
        connect_socket(fd, address, len);
    fn [sendto](fd: c_int, bytes: *const c_void, len: size_t, flags: c_int, address: *const sockaddr_un, size: c_uint)
        -> isize => send_to(fd, bytes, len, flags, address, size);
}
