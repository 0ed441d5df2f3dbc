//! Credentials of the peer of a Unix socket, as reported by the kernel.
//!
//! The only unsafe code of this crate: no safe interface provides the groups of a peer.

#![allow(unsafe_code)]

use forebay_model::{Gid, Identity, MAX_GROUPS, Uid};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The identity of a peer at the time it connected.
pub(crate) fn identity(socket: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<Identity> {
    let groups = groups(socket)?.into_iter().filter(|&group| group != gid).map(Gid).collect();
    Ok(Identity { uid: Uid(uid), gid: Gid(gid), groups })
}

fn groups(socket: BorrowedFd<'_>) -> io::Result<Vec<libc::gid_t>> {
    let mut groups: Vec<libc::gid_t> = vec![0; 64];
    loop {
        let room = size_of_val(groups.as_slice());
        let mut len = libc::socklen_t::try_from(room).expect("a few hundred KiB");
        // SAFETY: `groups` is initialised memory of `len` bytes that lives, unshared, until the call returns; the
        // kernel writes at most `len` bytes there and any bytes are a valid gid_t; `len` is a valid socklen_t; the
        // descriptor is borrowed, so it is open.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        let needed = len as usize / size_of::<libc::gid_t>();
        if result == 0 {
            groups.truncate(needed);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // The kernel returned the size it needs.
        let grows = needed > groups.len() && needed <= MAX_GROUPS;
        if error.raw_os_error() != Some(libc::ERANGE) || !grows {
            return Err(error);
        }
        groups.resize(needed, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn kernel_reports_the_credentials_of_this_process() {
        let (near, _far) = UnixStream::pair().unwrap();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap();
        let mut expected: Vec<u32> = line.split_whitespace().map(|gid| gid.parse().unwrap()).collect();
        expected.retain(|&gid| gid != 5);
        let who = identity(near.as_fd(), 4, 5).unwrap();
        assert_eq!((who.uid, who.gid), (Uid(4), Gid(5)));
        assert_eq!(who.groups, expected.into_iter().map(Gid).collect::<Vec<_>>());
    }
}
