//! Random operations on one file through two mounts, against bytes in memory.

use crate::mapped::Mapped;
use crate::world::World;
use forebay_testkit::{Rng, pattern, seed};
use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

const LONGEST: usize = 256 << 10;
const SEEDS: u64 = 3;
const STEPS: u64 = 34_000;

/// Mostly short, sometimes long ranges; now and then aligned.
fn range(rng: &mut Rng) -> (usize, usize) {
    let start = rng.index(LONGEST);
    let longest = if rng.one_in(8) { 64 << 10 } else { 4 << 10 };
    let start = if rng.one_in(4) { start & !4095 } else { start };
    (start, (1 + rng.index(longest)).min(LONGEST - start))
}

struct Exercise {
    paths: [PathBuf; 2],
    files: [File; 2],
    model: Vec<u8>,
    rng: Rng,
}

fn open(path: &PathBuf, append: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(!append).append(append).open(path).unwrap()
}

impl Exercise {
    fn new(paths: [PathBuf; 2], seed: u64) -> Exercise {
        File::create(&paths[0]).unwrap();
        let files = [open(&paths[0], false), open(&paths[1], false)];
        Exercise { paths, files, model: Vec::new(), rng: Rng::new(seed) }
    }

    fn grow(&mut self, len: usize) {
        if self.model.len() < len {
            self.model.resize(len, 0);
        }
    }

    /// One operation; returns its description.
    fn step(&mut self) -> String {
        let side = self.rng.index(2);
        let (start, len) = range(&mut self.rng);
        match self.rng.below(100) {
            0..30 => self.read(side, start, len),
            30..55 => self.write(side, start, len),
            55..65 => self.map_read(side, start, len),
            65..75 => self.map_write(side, start, len),
            75..80 => self.append(side, len),
            80..86 => self.truncate(side, start),
            86..92 => self.zero(side, start, len),
            92..95 => self.allocate(side, start, len),
            95..97 => self.reopen(side),
            97..98 => {
                self.files[side].sync_all().unwrap();
                format!("sync {side}")
            }
            _ => self.whole(side),
        }
    }

    fn read(&mut self, side: usize, start: usize, len: usize) -> String {
        let what = format!("read {side} {start}+{len}");
        let mut into = vec![0; len];
        let count = self.files[side].read_at(&mut into, start as u64).unwrap();
        let end = self.model.len().min(start + len);
        assert_eq!(into[..count], self.model[start.min(end)..end], "{what}");
        what
    }

    fn write(&mut self, side: usize, start: usize, len: usize) -> String {
        let bytes = pattern(self.rng.next(), len);
        self.files[side].write_all_at(&bytes, start as u64).unwrap();
        self.grow(start + len);
        self.model[start..start + len].copy_from_slice(&bytes);
        format!("write {side} {start}+{len}")
    }

    /// The kernel learns from `stat` how much of a file can be mapped: the other mount may have extended it.
    fn refresh_size(&self, side: usize) {
        assert_eq!(self.files[side].metadata().unwrap().len(), self.model.len() as u64);
    }

    fn map_read(&mut self, side: usize, start: usize, len: usize) -> String {
        let end = self.model.len().min(start + len);
        let what = format!("map and read {side} {start}+{len} of {}", self.model.len());
        if start < end {
            self.refresh_size(side);
            let mut mapped = Mapped::new(&self.files[side], end);
            assert!(mapped.bytes()[start..] == self.model[start..end], "{what}");
        }
        what
    }

    fn map_write(&mut self, side: usize, start: usize, len: usize) -> String {
        let end = start + len;
        if self.model.len() < end {
            self.files[side].set_len(end as u64).unwrap();
            self.grow(end);
        }
        self.refresh_size(side);
        let bytes = pattern(self.rng.next(), len);
        let mut mapped = Mapped::new(&self.files[side], end);
        mapped.bytes()[start..].copy_from_slice(&bytes);
        if self.rng.below(2) == 0 {
            mapped.sync();
        }
        self.model[start..end].copy_from_slice(&bytes);
        format!("map and write {side} {start}+{len}")
    }

    fn append(&mut self, side: usize, len: usize) -> String {
        let space = LONGEST - self.model.len();
        let bytes = pattern(self.rng.next(), len.min(space));
        open(&self.paths[side], true).write_all(&bytes).unwrap();
        self.model.extend(&bytes);
        format!("append {side} {}", bytes.len())
    }

    fn truncate(&mut self, side: usize, len: usize) -> String {
        self.files[side].set_len(len as u64).unwrap();
        self.model.resize(len, 0);
        format!("truncate {side} {len}")
    }

    fn zero(&mut self, side: usize, start: usize, len: usize) -> String {
        let keep = FallocateFlags::KEEP_SIZE;
        let how = match self.rng.below(3) {
            0 => FallocateFlags::PUNCH_HOLE | keep,
            1 => FallocateFlags::ZERO_RANGE | keep,
            _ => FallocateFlags::ZERO_RANGE,
        };
        rustix::fs::fallocate(&self.files[side], how, start as u64, len as u64).unwrap();
        if !how.contains(keep) {
            self.grow(start + len);
        }
        let end = self.model.len().min(start + len);
        self.model[start.min(end)..end].fill(0);
        format!("zero {side} {how:?} {start}+{len}")
    }

    fn allocate(&mut self, side: usize, start: usize, len: usize) -> String {
        let none = FallocateFlags::empty();
        rustix::fs::fallocate(&self.files[side], none, start as u64, len as u64).unwrap();
        self.grow(start + len);
        format!("allocate {side} {start}+{len}")
    }

    fn reopen(&mut self, side: usize) -> String {
        self.files[side] = open(&self.paths[side], false);
        format!("reopen {side}")
    }

    fn whole(&mut self, side: usize) -> String {
        let mut all = Vec::new();
        self.files[side].rewind().unwrap();
        self.files[side].read_to_end(&mut all).unwrap();
        assert!(all == self.model, "the whole file differs");
        assert_eq!(std::fs::metadata(&self.paths[side]).unwrap().len(), self.model.len() as u64);
        format!("whole {side}")
    }
}

/// Prints how to repeat a failure.
struct FailureReport<'a> {
    seed: u64,
    done: &'a std::cell::RefCell<Vec<String>>,
}

impl Drop for FailureReport<'_> {
    #[expect(clippy::print_stderr, reason = "how to repeat a failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let done = self.done.borrow();
            let last = &done[done.len().saturating_sub(20)..];
            eprintln!(
                "FOREBAY_SEED={} after {} steps, the last of which:\n{}",
                self.seed,
                done.len(),
                last.join("\n")
            );
        }
    }
}

#[test]
fn random_operations_on_one_file_through_two_mounts() {
    let Some(world) = World::new("") else { return };
    exercise(world, SEEDS, STEPS);
}

#[test]
fn random_operations_on_one_file_of_three_servers_through_two_mounts() {
    let Some(world) = World::of(3, "") else { return };
    world.stripe();
    exercise(world, 1, STEPS / 4);
}

fn exercise(mut world: World, seeds: u64, steps: u64) {
    let other = world.mount("other", "");
    let first = seed();
    for seed in first..first + seeds {
        let name = format!("file-{seed}");
        let mut exercise = Exercise::new([world.at().join(&name), other.join(&name)], seed);
        let done = std::cell::RefCell::default();
        let _report = FailureReport { seed, done: &done };
        for _ in 0..steps {
            let what = exercise.step();
            done.borrow_mut().push(what);
        }
        exercise.whole(0);
        exercise.whole(1);
    }
}
