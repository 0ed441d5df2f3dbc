//! Reads and writes through the client.

use crate::Outcome;
use crate::near::{BYTE, Near};
use crate::plan::{MANY, MIB, Party, STYLES, Size, Socket, Style, Work};
use crate::results::{Results, timed};
use forebay_client::{Client, File, OpenOptions, blocking};
use forebay_model::Result;
use std::sync::Arc;
use tokio::runtime::Runtime;

const PATH: &str = "/bench";

/// Writes a new file and reads it back, in every style.
pub(crate) fn run(near: &Near, socket: Socket, size: Size, results: &mut Results) -> Outcome {
    let many = (size.chunk < MIB).then_some(MANY);
    for style in STYLES.into_iter().chain(many) {
        let party = Party::Forebay(socket, style);
        match style {
            Style::Blocking => in_thread(near, party, socket, size, results)?,
            Style::Async(depth) => in_tasks(near, party, socket, depth, size, results)?,
        }
    }
    Ok(())
}

fn in_thread(near: &Near, party: Party, socket: Socket, size: Size, results: &mut Results) -> Outcome {
    let client = blocking::Client::connect(near.client(socket)?)?;
    let file = client.open(PATH, OpenOptions::CREATE)?;
    let mut chunk = vec![BYTE; size.chunk];
    let offsets = || (0..size.count).map(|index| (index * size.chunk) as u64);
    let (done, took) = timed(|| offsets().try_for_each(|offset| file.pwrite(offset, &chunk)));
    done?;
    results.moved(Work::Write(size.chunk), party, size, took);
    chunk.fill(0);
    let (done, took) = timed(|| offsets().try_for_each(|offset| file.pread(offset, &mut chunk).map(drop)));
    done?;
    results.moved(Work::Read(size.chunk), party, size, took);
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
    results: &mut Results,
) -> Outcome {
    let (runtime, config) = (&near.runtime, near.client(socket)?);
    let client = runtime.block_on(Client::connect(config))?;
    let file = Arc::new(runtime.block_on(client.open(PATH, OpenOptions::CREATE))?);
    // The same bytes for all requests, as on the raw socket.
    let chunk = Arc::new(vec![BYTE; size.chunk]);
    let (done, took) = timed(|| {
        spread(runtime, depth, size, |offsets| {
            let (file, chunk) = (file.clone(), chunk.clone());
            async move { write(&file, &offsets, &chunk).await }
        })
    });
    done?;
    results.moved(Work::Write(size.chunk), party, size, took);
    let (done, took) = timed(|| {
        spread(runtime, depth, size, |offsets| {
            let file = file.clone();
            async move { read(&file, &offsets, size.chunk).await }
        })
    });
    done?.iter().try_for_each(|chunk| check(chunk))?;
    results.moved(Work::Read(size.chunk), party, size, took);
    runtime.block_on(client.unlink(PATH))?;
    let file = Arc::into_inner(file).ok_or("a task still has the file")?;
    Ok(runtime.block_on(file.close())?)
}

/// Spreads the requests over the given number of tasks.
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
    if chunk.iter().all(|byte| *byte == BYTE) { Ok(()) } else { Err("read-back mismatch".into()) }
}
