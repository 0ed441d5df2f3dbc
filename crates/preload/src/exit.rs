//! Closing files at the service: in the background, except at the end of the process.

use crate::quiet::Quiet;
use crate::{engine, stdio, table};
use forebay_client::File;
use rustix::thread::futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

static UNDER_WAY: AtomicU32 = AtomicU32::new(0);
/// Closes in flight before a caller waits for its own.
const MOST: u32 = 64;
/// How long a process that exits waits for closes in flight.
const PATIENCE: rustix::thread::Timespec = rustix::thread::Timespec { tv_sec: 2, tv_nsec: 0 };

/// Closes a file at the service, in the background unless many closes are in flight.
pub(crate) fn close(file: Arc<File>) {
    // A read or write of another thread may still use it; the last of them closes it.
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
        // On failure, the service closes the file when the session ends.
        let _ = file.close().await;
        UNDER_WAY.fetch_sub(1, Ordering::AcqRel);
        let _ = futex::wake(&UNDER_WAY, futex::Flags::PRIVATE, i32::MAX as u32);
    });
}

/// The process exits normally: flushes streams and closes open files.
pub(crate) fn at_exit() {
    stdio::flush();
    close_all();
}

/// Closes all files.
pub(crate) fn close_all() {
    if engine::started().is_none() {
        return;
    }
    let mut files = Vec::new();
    table::each(0, i32::MAX, |fd| files.extend(table::get(fd).and_then(|open| open.held())));
    // A thread or destructor that still uses a file after this reopens it by its token.
    let _ = engine::run(async |_| {
        for file in files {
            // On failure, the service closes the file when the session ends.
            let _ = file.close_for_all().await;
        }
        Ok(())
    });
    wait_for_closes();
}

/// Waits, up to a limit, until the closes in flight are done at the service.
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
