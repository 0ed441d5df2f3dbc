//! Names: create, stat, unlink.

use crate::Outcome;
use crate::near::{self, Near};
use crate::plan::{Party, SOCKETS, Socket, Style, Work};
use crate::results::{Results, timed};
use forebay_client::{Client, OpenOptions, blocking};
use forebay_model::Result;
use std::fs::File;
use std::io;
use std::time::Duration;

/// Requests in flight: a group commit costs little more than a single one.
const DEPTH: usize = 4;

/// Creates, stats and removes the given number of empty files.
pub(crate) fn run(near: &Near, count: usize, results: &mut Results) -> Outcome {
    note(results, Party::Tmpfs, count, in_memory(count)?);
    for socket in SOCKETS {
        note(results, Party::Forebay(socket, Style::Blocking), count, in_thread(near, socket, count)?);
        let took = in_tasks(near, socket, count, DEPTH)?;
        note(results, Party::Forebay(socket, Style::Async(DEPTH)), count, took);
    }
    Ok(())
}

pub(crate) fn note(results: &mut Results, party: Party, count: usize, took: [Duration; 3]) {
    for (work, took) in [Work::Create, Work::Stat, Work::Unlink].into_iter().zip(took) {
        results.done(work, party, count, took);
    }
}

fn in_memory(count: usize) -> io::Result<[Duration; 3]> {
    let dir = tempfile::tempdir_in(near::memory())?;
    let paths: Vec<_> = (0..count).map(|index| dir.path().join(format!("f{index}"))).collect();
    let (made, create) = timed(|| paths.iter().try_for_each(|path| File::create_new(path).map(drop)));
    let (asked, stat) = timed(|| paths.iter().try_for_each(|path| path.metadata().map(drop)));
    let (removed, unlink) = timed(|| paths.iter().try_for_each(std::fs::remove_file));
    made.and(asked).and(removed)?;
    Ok([create, stat, unlink])
}

fn in_thread(near: &Near, socket: Socket, count: usize) -> Outcome<[Duration; 3]> {
    let client = blocking::Client::connect(near.client(socket)?)?;
    let paths = paths(count);
    let make = |path| client.open(path, OpenOptions::CREATE_NEW).and_then(blocking::File::close);
    let (made, create) = timed(|| paths.iter().try_for_each(make));
    let (asked, stat) = timed(|| paths.iter().try_for_each(|path| client.stat(path).map(drop)));
    let (removed, unlink) = timed(|| paths.iter().try_for_each(|path| client.unlink(path)));
    made.and(asked).and(removed)?;
    Ok([create, stat, unlink])
}

/// The same by the given number of concurrent tasks.
pub(crate) fn in_tasks(near: &Near, socket: Socket, count: usize, depth: usize) -> Outcome<[Duration; 3]> {
    let client = near.runtime.block_on(Client::connect(near.client(socket)?))?;
    let (made, create) = timed(|| each(near, &client, count, depth, make));
    let (asked, stat) = timed(|| each(near, &client, count, depth, stat));
    let (removed, unlink) = timed(|| each(near, &client, count, depth, remove));
    made.and(asked).and(removed)?;
    Ok([create, stat, unlink])
}

fn each<F: Future<Output = Result<()>> + Send + 'static>(
    near: &Near,
    client: &Client,
    count: usize,
    depth: usize,
    work: fn(Client, Vec<String>) -> F,
) -> Outcome {
    let paths = paths(count);
    let shares = paths.chunks(count.div_ceil(depth));
    let tasks: Vec<_> =
        shares.map(|share| near.runtime.spawn(work(client.clone(), share.to_vec()))).collect();
    tasks.into_iter().try_for_each(|task| Ok(near.runtime.block_on(task)??))
}

async fn make(client: Client, paths: Vec<String>) -> Result<()> {
    for path in paths {
        client.open(path, OpenOptions::CREATE_NEW).await?.close().await?;
    }
    Ok(())
}

async fn stat(client: Client, paths: Vec<String>) -> Result<()> {
    for path in paths {
        client.stat(path).await?;
    }
    Ok(())
}

async fn remove(client: Client, paths: Vec<String>) -> Result<()> {
    for path in paths {
        client.unlink(path).await?;
    }
    Ok(())
}

fn paths(count: usize) -> Vec<String> {
    (0..count).map(|index| format!("/f{index}")).collect()
}
