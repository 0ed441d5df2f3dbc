//! Closing at the service: nobody waits for it, except the end of the process.

use crate::quiet::Quiet;
use crate::{engine, map, stdio, table};
use forebay_client::File;
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Closes that may be under way before a caller waits for one.
const MOST: u32 = 64;
/// How long the end of a process waits for them.
const PATIENCE: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 2, tv_nsec: 0 };

/// Closes a file at the service, in the background unless many are on their way already.
pub(crate) fn close(file: Arc<File>) {
    // A read or write of another thread may still use it; the last of them closes it then.
    let Some(file) = Arc::into_inner(file) else { return };
    let Some(engine) = engine::started() else { return std::mem::forget(file) };
    let _quiet = Quiet::begin();
    if file.close_now() {
        return drop(file);
    }
    if UNDER_WAY.fetch_add(1, Ordering::AcqRel) >= MOST {
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        let _ = engine::run(|_| file.close());
        return;
    }
    engine.spawn(async move {
        // The service closes it with the session at the latest.
        let _ = file.close().await;
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        let _ = futex::wake(&UNDER_WAY, futex::Flags::PRIVATE, i32::MAX as u32);
    });
}

/// The process ends in order: what is buffered is written, what is open is closed.
pub(crate) fn farewell() {
    stdio::flush();
    let_go();
}

/// Writes back what was changed in memory, and closes everything.
pub(crate) fn let_go() {
    map::write_back_all();
    if engine::started().is_none() {
        return;
    }
    let mut tokens = Vec::new();
    table::each(0, i32::MAX, |fd| tokens.extend(table::get(fd).and_then(|open| open.held_token())));
    // What is still used after this, by a thread or a destructor, is taken over anew by its token.
    let _ = engine::run(async |engine| {
        for token in tokens {
            engine.by_id().close(token).await?;
        }
        Ok(())
    });
    wait_for_closes();
}

/// Waits until what was closed is closed at the service too, for a while.
pub(crate) fn wait_for_closes() {
    loop {
        let left = UNDER_WAY.load(Ordering::Acquire);
        if left == 0 {
            return;
        }
        let waited = futex::wait(&UNDER_WAY, futex::Flags::PRIVATE, left, Some(&PATIENCE));
        if waited == Err(rustix::io::Errno::TIMEDOUT) {
            return;
        }
    }
}
