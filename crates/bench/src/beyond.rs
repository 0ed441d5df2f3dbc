//! More than the buffer holds: a writer that has to wait until something has left for the storage behind.

use crate::Outcome;
use crate::board::{Board, timed};
use crate::far::LITTLE;
use crate::near::{BYTE, Near};
use crate::plan::{MIB, Party, Plan, Size, Socket, Style, Work};
use forebay_client::{OpenOptions, blocking};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PATH: &str = "/beyond";
/// How many times the capacity is written.
const TIMES: usize = 4;
/// Between two looks at the drain.
const PAUSE: Duration = Duration::from_millis(2);

/// Writes a fresh file through the buffer, and one on the disk that is behind it; what left the buffer is read back and
/// compared.
pub(crate) fn run(plan: &Plan, near: &Near, board: &mut Board) -> Outcome {
    let size = Size::of(MIB, TIMES * LITTLE.0 as usize);
    through(near, size, board)?;
    on_disk(plan, size, board)
}

fn offsets(size: Size) -> impl Iterator<Item = u64> {
    (0..size.count).map(move |index| (index * size.chunk) as u64)
}

fn through(near: &Near, size: Size, board: &mut Board) -> Outcome {
    let party = Party::Forebay(Socket::Unix, Style::Blocking);
    let client = blocking::Client::connect(near.client(Socket::Unix)?)?;
    let file = client.open(PATH, OpenOptions::CREATE)?;
    let mut chunk = vec![BYTE; size.chunk];
    let begin = Instant::now();
    let (done, took) = timed(|| offsets(size).try_for_each(|offset| file.pwrite(offset, &chunk)));
    done?;
    board.moved(Work::Beyond, party, size, took);
    let ticket = client.drain(None, None)?.ticket.ok_or("the drain gave no number")?.id;
    while !client.drain_state(Some(ticket))?.ticket.ok_or("the drain has forgotten its number")?.done {
        std::thread::sleep(PAUSE);
    }
    board.moved(Work::Drained, party, size, begin.elapsed());
    for offset in offsets(size) {
        chunk.fill(0);
        if file.pread(offset, &mut chunk)? < chunk.len() || chunk.iter().any(|byte| *byte != BYTE) {
            return Err(format!("wrong bytes were read at {offset}").into());
        }
    }
    file.close()?;
    Ok(client.unlink(PATH)?)
}

fn on_disk(plan: &Plan, size: Size, board: &mut Board) -> Outcome {
    let file = tempfile::tempfile_in(&plan.disk)?;
    let chunk = vec![BYTE; size.chunk];
    let begin = Instant::now();
    offsets(size).try_for_each(|offset| file.write_all_at(&chunk, offset))?;
    board.moved(Work::Beyond, Party::Disk, size, begin.elapsed());
    file.sync_data()?;
    board.moved(Work::Drained, Party::Disk, size, begin.elapsed());
    Ok(())
}
