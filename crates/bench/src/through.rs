//! Reads and writes through the client.

use crate::Outcome;
use crate::board::{Board, timed};
use crate::near::{BYTE, Near};
use crate::plan::{MANY, MIB, Party, STYLES, Size, Socket, Style, Work};
use forebay_client::{Client, File, OpenOptions, blocking};
use forebay_model::Result;
use std::sync::Arc;
use tokio::runtime::Runtime;

const PATH: &str = "/bench";

/// Writes a fresh file and reads it back, in every style.
pub(crate) fn run(near: &Near, socket: Socket, size: Size, board: &mut Board) -> Outcome {
    let many = (size.chunk < MIB).then_some(MANY);
    for style in STYLES.into_iter().chain(many) {
        let party = Party::Forebay(socket, style);
        match style {
            Style::Blocking => in_thread(near, party, socket, size, board)?,
            Style::Async(depth) => in_tasks(near, party, socket, depth, size, board)?,
        }
    }
    Ok(())
}

fn in_thread(near: &Near, party: Party, socket: Socket, size: Size, board: &mut Board) -> Outcome {
    let client = blocking::Client::connect(near.client(socket)?)?;
    let file = client.open(PATH, OpenOptions::CREATE)?;
    let mut chunk = vec![BYTE; size.chunk];
    let offsets = || (0..size.count).map(|index| (index * size.chunk) as u64);
    let (done, took) = timed(|| offsets().try_for_each(|offset| file.pwrite(offset, &chunk)));
    done?;
    board.moved(Work::Write(size.chunk), party, size, took);
    chunk.fill(0);
    let (done, took) = timed(|| offsets().try_for_each(|offset| file.pread(offset, &mut chunk).map(drop)));
    done?;
    board.moved(Work::Read(size.chunk), party, size, took);
    check(&chunk)?;
    client.unlink(PATH)?;
    Ok(file.close()?)
}

fn in_tasks(
    near: &Near,
    party: Party,
    socket: Socket,
    depth: usize,
    size: Size,
    board: &mut Board,
) -> Outcome {
    let (runtime, config) = (&near.runtime, near.client(socket)?);
    let client = runtime.block_on(Client::connect(config))?;
    let file = Arc::new(runtime.block_on(client.open(PATH, OpenOptions::CREATE))?);
    // The same bytes for all, as on the bare socket.
    let chunk = Arc::new(vec![BYTE; size.chunk]);
    let (done, took) = timed(|| {
        spread(runtime, depth, size, |offsets| {
            let (file, chunk) = (file.clone(), chunk.clone());
            async move { write(&file, &offsets, &chunk).await }
        })
    });
    done?;
    board.moved(Work::Write(size.chunk), party, size, took);
    let (done, took) = timed(|| {
        spread(runtime, depth, size, |offsets| {
            let file = file.clone();
            async move { read(&file, &offsets, size.chunk).await }
        })
    });
    done?.iter().try_for_each(|chunk| check(chunk))?;
    board.moved(Work::Read(size.chunk), party, size, took);
    runtime.block_on(client.unlink(PATH))?;
    let file = Arc::into_inner(file).ok_or("a task still has the file")?;
    Ok(runtime.block_on(file.close())?)
}

/// Deals the requests out to so many tasks.
fn spread<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
    runtime: &Runtime,
    depth: usize,
    size: Size,
    task: impl Fn(Vec<u64>) -> F,
) -> Outcome<Vec<T>> {
    let tasks: Vec<_> = (0..depth)
        .map(|first| {
            let mine = (first..size.count).step_by(depth).map(|index| (index * size.chunk) as u64);
            runtime.spawn(task(mine.collect()))
        })
        .collect();
    tasks.into_iter().map(|task| Ok(runtime.block_on(task)??)).collect()
}

async fn write(file: &File, offsets: &[u64], chunk: &[u8]) -> Result<()> {
    for &offset in offsets {
        file.pwrite(offset, chunk).await?;
    }
    Ok(())
}

async fn read(file: &File, offsets: &[u64], chunk: usize) -> Result<Vec<u8>> {
    let mut chunk = vec![0; chunk];
    for &offset in offsets {
        file.pread(offset, &mut chunk).await?;
    }
    Ok(chunk)
}

fn check(chunk: &[u8]) -> Outcome {
    if chunk.iter().all(|byte| *byte == BYTE) { Ok(()) } else { Err("wrong bytes were read".into()) }
}
