//! A writer whose files can be compared with what was acknowledged.

use crate::ledger::{Fate, Ledger};
use forebay_client::OpenOptions;
use forebay_client::blocking::{Client, File};
use forebay_model::{Error, ErrorKind, FileId};
use forebay_testkit::Rng;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Slot size and number of slots of each writer's files: from many small to few large ones.
const SHAPES: [(u64, usize); 3] = [(4096, 64), (100_000, 12), (1 << 20, 4)];

/// Writes, truncates and removes its own files, and records what was acknowledged.
pub struct Writer {
    dir: &'static str,
    number: u64,
    rng: Rng,
    files: Vec<Ledger>,
    /// Ids of files whose removal was acknowledged.
    gone: Vec<FileId>,
}

impl Writer {
    /// The writer of this number, with files in `dir`.
    #[must_use]
    pub fn new(dir: &'static str, number: u64, rng: Rng) -> Writer {
        let files = SHAPES.iter().enumerate();
        let files = files.map(|(file, (slot, slots))| Ledger::new(number * 10 + file as u64, *slot, *slots));
        Writer { dir, number, rng, files: files.collect(), gone: Vec::new() }
    }

    fn path(&self, file: usize) -> String {
        format!("{}/w{}.{file}", self.dir, self.number)
    }

    /// Works until it is stopped or a call fails; the outcome of that call is unknown, and its error has to be an expected
    /// one. Returns the number of calls that succeeded.
    pub fn work(&mut self, client: &Client, stop: &AtomicBool, is_expected: impl Fn(&Error) -> bool) -> u64 {
        let mut open: Vec<Option<File>> = SHAPES.iter().map(|_| None).collect();
        let mut done = 0;
        while !stop.load(Ordering::Relaxed) {
            let file = self.rng.below(SHAPES.len() as u64) as usize;
            if let Err(error) = self.act(client, file, &mut open[file]) {
                assert!(is_expected(&error), "writer {}: {error}", self.number);
                break;
            }
            done += 1;
        }
        done
    }

    fn act(&mut self, client: &Client, file: usize, open: &mut Option<File>) -> Result<(), Error> {
        let path = self.path(file);
        let ledger = &mut self.files[file];
        if !ledger.exists() {
            *open = None;
            let made = client.open(&path, OpenOptions { mode: 0o666, ..OpenOptions::CREATE_NEW });
            ledger.emptied(fate(&made));
            *open = Some(made?);
            return Ok(());
        }
        if open.is_none() {
            *open = Some(client.open(&path, OpenOptions::WRITE)?);
        }
        let handle = open.as_ref().expect("open file");
        match self.rng.below(60) {
            0 => {
                let id = handle.id();
                let removed = client.unlink(&path);
                ledger.removed(fate(&removed));
                removed?;
                *open = None;
                self.gone.push(id);
            }
            1 => {
                let slots = self.rng.below(ledger.slots() as u64) as usize;
                let truncated = handle.truncate(slots as u64 * ledger.slot);
                ledger.truncated(slots, fate(&truncated));
                truncated?;
            }
            2..4 => handle.sync()?,
            _ => {
                let slot = self.rng.below(ledger.slots() as u64) as usize;
                let block = ledger.block(slot);
                let wrote = handle.pwrite(slot as u64 * ledger.slot, &block.bytes());
                ledger.wrote(block, fate(&wrote));
                wrote?;
            }
        }
        Ok(())
    }

    /// Compares all files with the acknowledged state.
    pub fn verify(&mut self, client: &Client) {
        for file in 0..self.files.len() {
            let path = self.path(file);
            let bytes = match client.open(&path, OpenOptions::READ) {
                Ok(file) => {
                    let mut bytes =
                        vec![0xaa; file.stat().expect("a call that has to succeed").size as usize];
                    assert_eq!(file.pread(0, &mut bytes).expect("a call that has to succeed"), bytes.len());
                    Some(bytes)
                }
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => panic!("{error}"),
            };
            self.files[file].reconcile(bytes.as_deref()).unwrap_or_else(|why| panic!("{path}: {why}"));
        }
    }

    /// Compares all files with those of a directory on another file system.
    pub fn verify_copies(&mut self, dir: &Path) {
        for (file, ledger) in self.files.iter_mut().enumerate() {
            let path = dir.join(format!("w{}.{file}", self.number));
            let bytes = match std::fs::read(&path) {
                Ok(bytes) => Some(bytes),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            ledger.reconcile(bytes.as_deref()).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        }
    }

    /// Asserts that the files whose removal was acknowledged do not exist.
    pub fn verify_removed(&self, client: &Client) {
        for id in &self.gone {
            let found = client.wait(client.by_id().get_attr(*id));
            assert_eq!(found.map_err(|error| error.kind()), Err(ErrorKind::Stale), "file {id} was removed");
        }
    }
}

fn fate<T>(result: &Result<T, Error>) -> Fate {
    if result.is_ok() { Fate::Done } else { Fate::Unknown }
}
