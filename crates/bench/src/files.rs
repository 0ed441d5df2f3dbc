//! Kernel files: in tmpfs, and on disk in the page cache.

use crate::Outcome;
use crate::near;
use crate::plan::{Party, Plan, Size, Work};
use crate::results::{Results, timed};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes a new file and reads it back, in memory and on disk.
pub(crate) fn run(plan: &Plan, size: Size, results: &mut Results) -> Outcome {
    one(near::memory(), Party::Tmpfs, size, results)?;
    one(&plan.disk, Party::Disk, size, results)
}

fn one(dir: &Path, party: Party, size: Size, results: &mut Results) -> Outcome {
    // An unnamed file, which is removed with the process.
    let file = tempfile::tempfile_in(dir)?;
    let (done, took) = timed(|| write(&file, size));
    done?;
    results.moved(Work::Write(size.chunk), party, size, took);
    let (done, took) = timed(|| read(&file, size));
    done?;
    results.moved(Work::Read(size.chunk), party, size, took);
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
