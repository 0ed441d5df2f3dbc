//! Files of the kernel: in memory, and on disk as far as the page cache.

use crate::Outcome;
use crate::board::{Board, timed};
use crate::near;
use crate::plan::{Party, Plan, Size, Work};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes a fresh file and reads it back, in memory and on disk.
pub(crate) fn run(plan: &Plan, size: Size, board: &mut Board) -> Outcome {
    one(near::memory(), Party::Tmpfs, size, board)?;
    one(&plan.disk, Party::Disk, size, board)
}

fn one(dir: &Path, party: Party, size: Size, board: &mut Board) -> Outcome {
    // It has no name, so it is gone with us.
    let file = tempfile::tempfile_in(dir)?;
    let (done, took) = timed(|| write(&file, size));
    done?;
    board.moved(Work::Write(size.chunk), party, size, took);
    let (done, took) = timed(|| read(&file, size));
    done?;
    board.moved(Work::Read(size.chunk), party, size, took);
    Ok(())
}

fn write(file: &File, size: Size) -> io::Result<()> {
    let chunk = vec![near::BYTE; size.chunk];
    (0..size.count).try_for_each(|index| file.write_all_at(&chunk, (index * size.chunk) as u64))
}

fn read(file: &File, size: Size) -> io::Result<()> {
    let mut chunk = vec![0; size.chunk];
    (0..size.count).try_for_each(|index| file.read_exact_at(&mut chunk, (index * size.chunk) as u64))
}
