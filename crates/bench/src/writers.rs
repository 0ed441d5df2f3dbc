//! Many writers: of one file, each in its own part, and of one file each.

use crate::Outcome;
use crate::near::Near;
use crate::plan::{Party, SOCKETS, Size, Socket, Style, Work};
use crate::results::{Results, timed};
use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::Result;

const WRITERS: [usize; 3] = [1, 2, 4];

/// Writes the same total with every number of writers. Each has its own client, like a process.
pub(crate) fn run(near: &Near, size: Size, results: &mut Results) -> Outcome {
    for socket in SOCKETS {
        for writers in WRITERS {
            one(near, socket, Work::OneFile(writers), writers, size, results)?;
            one(near, socket, Work::FileEach(writers), writers, size, results)?;
        }
    }
    Ok(())
}

fn one(
    near: &Near,
    socket: Socket,
    work: Work,
    writers: usize,
    size: Size,
    results: &mut Results,
) -> Outcome {
    let part = Size { count: size.count / writers, ..size };
    let name = |writer: usize| match work {
        Work::OneFile(_) => "/shared".to_owned(),
        _ => format!("/own{writer}"),
    };
    let start = |writer: usize| match work {
        Work::OneFile(_) => (writer * part.bytes()) as u64,
        _ => 0,
    };
    let mut all = Vec::new();
    for writer in 0..writers {
        let client = Client::connect(near.client(socket)?)?;
        let file = client.open(name(writer), OpenOptions { create: true, ..OpenOptions::WRITE })?;
        all.push((client, file));
    }
    let (done, took) = timed(|| {
        std::thread::scope(|scope| {
            let threads: Vec<_> = all
                .iter()
                .enumerate()
                .map(|(writer, (_, file))| scope.spawn(move || write(file, start(writer), part)))
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a writer panicked"))
        })
    });
    done?;
    results.moved(work, Party::Forebay(socket, Style::Blocking), size, took);
    for (writer, (client, file)) in all.into_iter().enumerate() {
        if writer == 0 || name(writer) != name(0) {
            client.unlink(name(writer))?;
        }
        file.close()?;
    }
    Ok(())
}

fn write(file: &File, start: u64, part: Size) -> Result<()> {
    let chunk = vec![7; part.chunk];
    (0..part.count).try_for_each(|index| file.pwrite(start + (index * part.chunk) as u64, &chunk))
}
