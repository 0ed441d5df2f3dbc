//! A private directory of the user on this machine.

use crate::credentials::Credentials;
use crate::errno::{Outcome, fail};
use rustix::fs::Mode;
use std::path::PathBuf;

/// Where a user may have a private directory.
pub(crate) fn places(uid: u32) -> [Option<PathBuf>; 3] {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    [runtime, Some(format!("/run/user/{uid}").into()), Some(format!("/tmp/.forebay-{uid}").into())]
}

/// A directory of this user that no other user can write to.
pub(crate) fn dir() -> Outcome<PathBuf> {
    let uid = Credentials::read().identity.uid.0;
    for dir in places(uid).into_iter().flatten() {
        let made = rustix::fs::mkdir(&dir, Mode::RWXU);
        let known = matches!(made, Ok(()) | Err(rustix::io::Errno::EXIST));
        let own = rustix::fs::lstat(&dir).is_ok_and(|stat| {
            stat.st_uid == uid && stat.st_mode & libc::S_IFMT == libc::S_IFDIR && stat.st_mode & 0o022 == 0
        });
        if known && own && rustix::fs::access(&dir, rustix::fs::Access::WRITE_OK).is_ok() {
            return Ok(dir);
        }
    }
    fail(libc::EACCES)
}
