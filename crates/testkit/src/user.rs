//! Acting as other users in a test thread.

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Makes the calling thread, and no other, act as this user from now on, with only the group of the same
/// number. Needs root. The kernel reports this user to the peers of the thread's connections.
///
/// # Panics
///
/// If the tests do not run as the superuser.
pub fn become_user(uid: u32) {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(uid));
    let changed = set_thread_groups(&[])
        .and_then(|()| set_thread_res_gid(gid, gid, gid))
        .and_then(|()| set_thread_res_uid(uid, uid, uid));
    changed.unwrap_or_else(|error| panic!("cannot act as user {}: {error}", uid.as_raw()));
}

/// Runs a closure in its own thread as another user.
///
/// # Panics
///
/// As [`become_user`], and if the closure panics.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> T {
    let done = |done: std::thread::Result<T>| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            become_user(uid);
            work()
        });
        done(worker.join())
    })
}
