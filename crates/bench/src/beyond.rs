//! More data than the buffer holds: a writer that has to wait for the drain.

use crate::Outcome;
use crate::far::LITTLE;
use crate::near::{BYTE, Near};
use crate::plan::{MIB, Party, Plan, Size, Socket, Style, Work};
use crate::results::{Results, timed};
use forebay_client::{OpenOptions, blocking};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PATH: &str = "/beyond";
/// Written data as a multiple of the capacity.
const TIMES: usize = 4;
/// Poll interval of the drain.
const PAUSE: Duration = Duration::from_millis(2);

/// Writes a new file through the buffer, and one directly on the back end's disk; reads back and compares the
/// drained data.
pub(crate) fn run(plan: &Plan, near: &Near, results: &mut Results) -> Outcome {
    let size = Size::of(MIB, TIMES * LITTLE.0 as usize);
    through(near, size, results)?;
    on_disk(plan, size, results)
}

fn offsets(size: Size) -> impl Iterator<Item = u64> {
    (0..size.count).map(move |index| (index * size.chunk) as u64)
}

fn through(near: &Near, size: Size, results: &mut Results) -> Outcome {
    let party = Party::Forebay(Socket::Unix, Style::Blocking);
    let client = blocking::Client::connect(near.client(Socket::Unix)?)?;
    let file = client.open(PATH, OpenOptions::CREATE)?;
    let mut chunk = vec![BYTE; size.chunk];
    let begin = Instant::now();
    let (done, took) = timed(|| offsets(size).try_for_each(|offset| file.pwrite(offset, &chunk)));
    done?;
    results.moved(Work::Beyond, party, size, took);
    let ticket = client.drain(None, None)?.ticket.ok_or("the drain returned no ticket")?.id;
    while !client.drain_state(Some(ticket))?.ticket.ok_or("the drain's ticket is unknown")?.done {
        std::thread::sleep(PAUSE);
    }
    results.moved(Work::Drained, party, size, begin.elapsed());
    for offset in offsets(size) {
        chunk.fill(0);
        if file.pread(offset, &mut chunk)? < chunk.len() || chunk.iter().any(|byte| *byte != BYTE) {
            return Err(format!("read-back mismatch at offset {offset}").into());
        }
    }
    file.close()?;
    Ok(client.unlink(PATH)?)
}

fn on_disk(plan: &Plan, size: Size, results: &mut Results) -> Outcome {
    let file = tempfile::tempfile_in(&plan.disk)?;
    let chunk = vec![BYTE; size.chunk];
    let begin = Instant::now();
    offsets(size).try_for_each(|offset| file.write_all_at(&chunk, offset))?;
    results.moved(Work::Beyond, Party::Disk, size, begin.elapsed());
    file.sync_data()?;
    results.moved(Work::Drained, Party::Disk, size, begin.elapsed());
    Ok(())
}
