//! Beside the drain: writers past the buffer have places at the same targets, and what they made gets its looks.

use super::Engine;
use crate::service::Service;
use forebay_model::FileId;
use forebay_policy::drain::TargetId;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// How long whoever waits for a place sleeps at most.
const NAP: Duration = Duration::from_millis(100);

impl Engine {
    /// Most writers at a target at once.
    pub(crate) fn streams(&self) -> usize {
        self.board().streams() as usize
    }

    /// Waits for a place at a target. At the end of the server nobody waits.
    pub(crate) fn enter(&self, service: &Service, target: TargetId) {
        let stopping = service.stopping();
        let mut board = self.board();
        while !board.enter(target, Instant::now()) && !*stopping.borrow() {
            let waited = self.bell.wait_timeout(board, NAP);
            board = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Gives a place back at which so much was written.
    pub(crate) fn leave(&self, target: TargetId, bytes: u64) {
        self.board().leave(target, bytes);
        self.bell.notify_all();
    }

    /// Directories whose time of change behind is our doing.
    pub(crate) fn touched(&self, dirs: &[FileId]) {
        self.board().touch_dirs(dirs);
    }

    /// A file behind that nobody writes any more is given its looks.
    pub(crate) fn finish_later(&self, file: FileId) {
        self.board().take_up(file);
        self.bell.notify_all();
    }
}
