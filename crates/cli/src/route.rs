//! `route`: which writes of a trace would be buffered, computed without a service.

use crate::failure::{Failure, Outcome};
use crate::output;
use crate::view::table;
use clap::Args;
use forebay_model::{Bytes, Error, FileId};
use forebay_policy::route::{self, Detector, Marks, Seen, Settings, Write};
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;

/// Longest line of a trace.
const LINE: u64 = 16 << 10;
/// The optional heading of a trace.
const HEADING: &str = "file,offset,size";

#[derive(Args)]
pub(crate) struct Route {
    /// The writes in order of arrival: file,offset,size on each line, in bytes
    #[arg(value_name = "TRACE.csv")]
    trace: PathBuf,
    /// Number of writes in one stream
    #[arg(long, value_name = "N", default_value_t = 128)]
    stream: usize,
    /// Above this share of random writes the next ones are buffered
    #[arg(long, value_name = "SHARE", default_value_t = 0.45)]
    high: f64,
    /// Below this share of random writes the next ones go directly to the back end
    #[arg(long, value_name = "SHARE", default_value_t = 0.30)]
    low: f64,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

/// The result for one stream.
#[derive(Serialize)]
struct Stream {
    index: usize,
    requests: usize,
    random: usize,
    percent: f64,
    /// Where the next stream goes; an incomplete stream decides nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<route::Route>,
}

impl Stream {
    fn new(index: usize, seen: Seen, decision: Option<route::Route>) -> Stream {
        let Seen { requests, random } = seen;
        Stream { index, requests, random, percent: seen.percent(), decision }
    }
}

#[derive(Serialize)]
struct Routed {
    streams: Vec<Stream>,
    buffered_bytes: u128,
    direct_bytes: u128,
}

impl Route {
    pub(crate) fn run(&self) -> Outcome {
        let usage = |error: Error| Failure::Usage(error.to_string());
        let marks = Marks::new(self.high, self.low).map_err(usage)?;
        let settings = Settings::new(self.stream, marks).map_err(usage)?;
        let file = File::open(&self.trace).map_err(|error| self.unreadable(&error))?;
        output::show(&self.routed(settings, &mut BufReader::new(file))?, self.json)
    }

    fn routed(&self, settings: Settings, trace: &mut impl BufRead) -> Outcome<Routed> {
        let mut detector = Detector::new(settings);
        let mut routed = Routed { streams: Vec::new(), buffered_bytes: 0, direct_bytes: 0 };
        // File names of the current stream only: the classifier forgets files between streams.
        let mut files: HashMap<String, FileId> = HashMap::new();
        let (mut line, mut number) = (Vec::new(), 0_u64);
        loop {
            line.clear();
            number += 1;
            let read = trace.by_ref().take(LINE).read_until(b'\n', &mut line);
            if read.map_err(|error| self.unreadable(&error))? == 0 {
                break;
            }
            let Some((name, offset, len)) = self.parse(number, &line)? else { continue };
            let next = FileId(files.len() as u64);
            let file = *files.entry(name.to_owned()).or_insert(next);
            match detector.now() {
                route::Route::Buffer => routed.buffered_bytes += u128::from(len),
                route::Route::Direct => routed.direct_bytes += u128::from(len),
            }
            if let Some(seen) = detector.see(&Write { file, offset, len: Bytes(len), sync: false }) {
                let stream = Stream::new(routed.streams.len(), seen, Some(detector.now()));
                routed.streams.push(stream);
                files.clear();
            }
        }
        if let Some(seen) = detector.finish() {
            routed.streams.push(Stream::new(routed.streams.len(), seen, None));
        }
        Ok(routed)
    }

    /// Parses one line of the trace; `None` if it is empty or the heading.
    fn parse<'a>(&self, number: u64, line: &'a [u8]) -> Outcome<Option<(&'a str, u64, u64)>> {
        let wrong = |what: &str| {
            let place = format!("{}:{number}", self.trace.display());
            Failure::Usage(format!("{place}: {what}: write {HEADING}, such as ckpt.7,1048576,262144"))
        };
        if line.len() as u64 >= LINE {
            return Err(wrong("the line is too long"));
        }
        let line = std::str::from_utf8(line).map_err(|_| wrong("the line is not UTF-8"))?.trim();
        if line.is_empty() || (number == 1 && line == HEADING) {
            return Ok(None);
        }
        // Split from the end: a file name may contain commas.
        let mut words = line.rsplitn(3, ',').map(str::trim);
        let (Some(len), Some(offset), Some(file)) = (words.next(), words.next(), words.next()) else {
            return Err(wrong("the line has fewer than three columns"));
        };
        let read = |what: &str, word: &str| {
            word.parse::<u64>().map_err(|_| wrong(&format!("the {what} \"{word}\" is no number of bytes")))
        };
        match file {
            "" => Err(wrong("the file has no name")),
            file => Ok(Some((file, read("offset", offset)?, read("size", len)?))),
        }
    }

    fn unreadable(&self, error: &std::io::Error) -> Failure {
        Failure::local("read", &self.trace, error)
    }
}

impl fmt::Display for Routed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["stream", "requests", "random", "share", "the next goes"].map(str::to_owned);
        let row = |stream: &Stream| {
            [
                stream.index.to_string(),
                stream.requests.to_string(),
                stream.random.to_string(),
                format!("{:.1} %", 100.0 * stream.percent),
                match stream.decision {
                    Some(route::Route::Buffer) => "into the buffer",
                    Some(route::Route::Direct) => "straight to storage",
                    None => "",
                }
                .to_owned(),
            ]
        };
        let rows: Vec<[String; 5]> = std::iter::once(heading).chain(self.streams.iter().map(row)).collect();
        table(f, "rrrrl", 0, &rows)?;
        let all = (self.buffered_bytes + self.direct_bytes).max(1);
        let share = 100.0 * self.buffered_bytes as f64 / all as f64;
        let (buffered, direct) = (shown(self.buffered_bytes), shown(self.direct_bytes));
        write!(f, "\nbuffered {buffered} ({share:.1} %), straight to storage {direct}")
    }
}

fn shown(bytes: u128) -> Bytes {
    Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
}
