//! A place of this user's own on this machine.

use crate::errno::{Outcome, fail};
use rustix::fs::Mode;
use std::path::PathBuf;

/// A directory of this user that nobody else can write to.
pub(crate) fn dir() -> Outcome<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let places =
        [runtime, Some(format!("/run/user/{uid}").into()), Some(format!("/tmp/.forebay-{uid}").into())];
    for dir in places.into_iter().flatten() {
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
