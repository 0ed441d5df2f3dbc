//! Checksums of waiting records, computed before they are consumed: operations that need the file do not wait for them.

use super::channel::Channel;
use crc32c::{crc32c, crc32c_combine};
use forebay_shm::{Found, Ticket, View};

/// Largest number of adjacent bytes under one checksum.
const RUN: u32 = 1 << 20;

/// Checksums of consecutive bytes in slabs.
#[derive(Default)]
pub(super) struct Sums(Vec<(Ticket, u32)>);

impl Sums {
    /// The checksum of some bytes, if known.
    pub(super) fn of(&self, bytes: Ticket) -> Option<u32> {
        let first = self.0.iter().position(|(ticket, _)| bytes.begins_with(*ticket))?;
        let (mut done, mut crc) = self.0[first];
        for &(next, sum) in &self.0[first + 1..] {
            if done == bytes || !done.is_followed_by(next) {
                break;
            }
            (done, crc) = (done.extended(next), crc32c_combine(crc, sum, next.len() as usize));
        }
        (done == bytes).then_some(crc)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Channel {
    /// Computes the checksums of about `most` waiting bytes, and returns the record before which it stopped. Nothing is
    /// locked meanwhile, and nothing is trusted: consuming uses a checksum only for exactly the bytes that it covers.
    pub(super) fn sum_up(&self, most: u64) -> u64 {
        let (runs, until) = self.runs(most);
        let sums = runs.into_iter().map(|(ticket, view)| (ticket, crc32c(view.as_ref()))).collect();
        self.lock().sums = Sums(sums);
        until
    }

    /// The waiting bytes, adjacent ones merged, until `most` is reached and a write ends. Each byte of a slab is
    /// published once, so this is no more than was granted.
    fn runs(&self, most: u64) -> (Vec<(Ticket, View)>, u64) {
        let state = self.lock();
        let taken = state.note.taken();
        let waiting = self.taker.waiting(taken).unwrap_or(0);
        let mut filled: Vec<u32> = state.slabs.iter().map(|granted| granted.filled).collect();
        let mut runs: Vec<(usize, Ticket)> = Vec::new();
        let (mut until, mut bytes, mut within) = (taken, 0, false);
        while until < taken + waiting && (bytes < most || within) {
            let found = self.taker.read(until);
            until += 1;
            let Found::Commit(commit) = found else { continue };
            (bytes, within) = (bytes + u64::from(commit.len), commit.more);
            let Some(number) = state.slabs.iter().position(|granted| granted.note.number == commit.slab)
            else {
                continue;
            };
            let Some(ticket) = state.slabs[number].slab.publish(commit.position, commit.len) else {
                continue;
            };
            if commit.position < filled[number] {
                continue;
            }
            filled[number] = commit.position + commit.len;
            match runs.last_mut() {
                Some((_, run)) if run.is_followed_by(ticket) && run.len() + ticket.len() <= RUN => {
                    *run = run.extended(ticket);
                }
                _ => runs.push((number, ticket)),
            }
        }
        let view = |(number, ticket): (usize, Ticket)| {
            Some((ticket, state.slabs[number].region.arena.view(ticket)?))
        };
        (runs.into_iter().filter_map(view).collect(), until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_shm::Arena;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    #[test]
    fn checksums_combine_for_adjacent_runs_only() {
        let file = std::fs::File::from(memfd_create("sums", MemfdFlags::CLOEXEC).unwrap());
        ftruncate(&file, 4096).unwrap();
        let mut grant = Arena::new(&file, 4096, 1).unwrap().grant(300).unwrap();
        let bytes: Vec<u8> = (0..300_u32).map(|at| (at * 7) as u8).collect();
        grant.as_mut_slice().copy_from_slice(&bytes);
        let all = grant.publish(300);
        let sum = |from: u32, to: u32| (all.part(from..to), crc32c(&bytes[from as usize..to as usize]));
        // The third does not follow the second.
        let sums = Sums(vec![sum(0, 100), sum(100, 150), sum(200, 300)]);
        for (from, to, known) in [
            (0, 100, true),
            (0, 150, true),
            (100, 150, true),
            (200, 300, true),
            (0, 120, false),
            (10, 100, false),
            (100, 300, false),
            (0, 300, false),
        ] {
            let expected = known.then(|| crc32c(&bytes[from as usize..to as usize]));
            assert_eq!(sums.of(all.part(from..to)), expected, "{from}..{to}");
        }
    }
}
