//! A few workers and a short queue.

use super::PIECE;
use super::tally::Tally;
use crate::failure::Outcome;
use parking_lot::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

const WORKERS: usize = 4;
const QUEUE: usize = 64;

/// A copy task, which gets a buffer of one piece.
pub(super) type Task<'a> = Box<dyn FnOnce(&mut [u8]) -> Outcome + Send + 'a>;

/// The queue between walker and workers; sending blocks while it is full.
pub(super) struct Queue<'a> {
    tasks: SyncSender<Task<'a>>,
}

impl<'a> Queue<'a> {
    pub(super) fn add(&self, task: impl FnOnce(&mut [u8]) -> Outcome + Send + 'a) {
        // Workers stop early only if the copy is aborted, and then the task is not needed.
        let _ = self.tasks.send(Box::new(task));
    }
}

/// Runs the walker and the workers until all tasks are done.
pub(super) fn run<'a>(tally: &'a Tally, walk: impl FnOnce(&Queue<'a>) -> Outcome) -> Outcome {
    let (tasks, queue) = sync_channel(QUEUE);
    let queue = Mutex::new(queue);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| work(tally, &queue));
        }
        let queue = Queue { tasks };
        walk(&queue)
    })
}

fn work(tally: &Tally, queue: &Mutex<Receiver<Task<'_>>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let task = queue.lock().recv();
        let Ok(task) = task else { return };
        // Drop the remaining tasks, so that the walker does not block.
        if tally.is_halted() {
            continue;
        }
        if let Err(failure) = task(&mut buffer) {
            tally.fail(&failure);
        }
    }
}
