//! Named pipes and sockets on this machine: the service has their names, the kernel carries their data. Each has a
//! local twin in the private directory of its owner.
//!
//! **Deliberately absent**: pipes and sockets between users or machines, which are refused; removing a twin when its
//! name is removed.

use crate::credentials::Credentials;
use crate::errno::{Errno, Outcome, Stop, fail};
use crate::kernel::try_system_call;
use crate::place::{Place, locate};
use crate::quiet::is_internal;
use crate::{engine, hook, life, mem, opening, private};
use forebay_model::{Access, Attr, ErrorKind, FileKind, Special, may};
use libc::{c_char, c_int, c_uint, sockaddr_un};
use rustix::fs::{AtFlags, CWD, FileType, Mode};
use std::ffi::CString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Path of the twin of a pipe or socket. File ids are unique within one service.
fn twin(attr: &Attr) -> Outcome<PathBuf> {
    if attr.uid.0 != rustix::process::geteuid().as_raw() {
        return fail(libc::EOPNOTSUPP);
    }
    let dir = private::dir()?.join(".forebay-special");
    match rustix::fs::mkdirat(CWD, &dir, Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let mut service = DefaultHasher::new();
    life::config().service.hash(&mut service);
    Ok(dir.join(format!("{:016x}-{}", service.finish(), attr.id)))
}

/// The twin of a named pipe; created if it does not exist.
pub(crate) fn pipe(attr: &Attr) -> Outcome<Vec<u8>> {
    let twin = twin(attr)?;
    match rustix::fs::mknodat(CWD, &twin, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(twin.as_os_str().as_bytes().to_vec()),
        Err(error) => Err(error.into()),
    }
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

/// Makes a system call on a socket with another path than the application's.
fn at_path(number: i64, fd: c_int, path: &[u8]) -> Outcome<c_int> {
    let mut address = sockaddr_un { sun_family: libc::AF_UNIX as libc::sa_family_t, sun_path: [0; 108] };
    let path_field = address.sun_path[..107].get_mut(..path.len()).ok_or(Errno(libc::ENAMETOOLONG))?;
    path_field.iter_mut().zip(path).for_each(|(to, from)| *to = *from as c_char);
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

pub(crate) fn connect_socket(fd: c_int, address: *const sockaddr_un, len: c_uint) -> Outcome<c_int> {
    let place = match socket_path(fd, address, len)? {
        SocketPath::Outside(path) => return at_path(libc::SYS_connect, fd, path.as_bytes()),
        SocketPath::Inside(place) => place,
    };
    let attr = place.find(true)?;
    if attr.kind != FileKind::Special(Special::Socket) {
        return fail(libc::ECONNREFUSED);
    }
    if !may(&Credentials::read().for_files(), &attr, Access::WRITE) {
        return fail(libc::EACCES);
    }
    match at_path(libc::SYS_connect, fd, twin(&attr)?.as_os_str().as_bytes()) {
        // The name exists, but no process on this machine listens on the socket.
        Err(Stop::Errno(Errno(libc::ENOENT))) => fail(libc::ECONNREFUSED),
        done => done,
    }
}

hook::hooks! {
    fn [bind](fd: c_int, address: *const sockaddr_un, len: c_uint) -> c_int => bind_socket(fd, address, len);
    fn [connect, __connect](fd: c_int, address: *const sockaddr_un, len: c_uint) -> c_int =>
        connect_socket(fd, address, len);
}
