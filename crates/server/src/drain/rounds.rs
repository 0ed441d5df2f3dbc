//! Polls of other servers about files that drain requests wait for.

use super::DrainEngine;
use super::ticket::TRIES;
use crate::backing::Backing;
use forebay_model::{FileId, ServerId, Stamp};
use forebay_wire::{PeerReply, PeerRequest};
use std::collections::{BTreeMap, HashSet};
use std::time::Instant;

/// Most files in one request.
const FILES: usize = 1024;

impl DrainEngine {
    /// Polls the holders of files that drain requests wait for, and has them drain these files.
    pub(super) fn poll_holders(&self) {
        let tickets: Vec<u64> = self.drain_queue().tickets.keys().copied().collect();
        for id in tickets {
            self.poll_for_ticket(id);
        }
    }

    fn poll_for_ticket(&self, id: u64) {
        let (files, clocks) = match self.drain_queue().tickets.get(&id) {
            Some(ticket) => (ticket.to_poll().take(FILES).collect::<Vec<_>>(), ticket.clocks.clone()),
            None => return,
        };
        let mut holders: BTreeMap<ServerId, Vec<FileId>> = BTreeMap::new();
        for &file in &files {
            // The worker finds out that a file was removed.
            for server in self.homes.holders(file).unwrap_or_default() {
                holders.entry(server).or_default().push(file);
            }
        }
        let question = |(&server, files): (&ServerId, &Vec<FileId>)| {
            let before = clocks.get(&server).copied().unwrap_or(Stamp(u64::MAX));
            (server, PeerRequest::Undrained { files: files.clone(), before, drain: true })
        };
        let list = holders.iter().map(question).collect();
        let Ok(answers) = self.life.await_unless_it_ends(self.peers.request_all(list)) else { return };
        let mut held: HashSet<FileId> = HashSet::new();
        let mut drain_queue = self.drain_queue();
        let Some(ticket) = drain_queue.tickets.get_mut(&id) else { return };
        for ((server, files), answer) in holders.iter().zip(answers) {
            let (now, left) = match answer {
                Ok(PeerReply::Undrained { now, left }) if left.len() == files.len() => (now, left),
                _ => {
                    held.extend(files);
                    for &file in files {
                        let tries = ticket.striped.entry(file).or_default();
                        *tries += 1;
                        let tries = *tries;
                        ticket.failed(file, tries, false);
                    }
                    continue;
                }
            };
            let first =
                ticket.clocks.insert(*server, now.min(clocks.get(server).copied().unwrap_or(now))).is_none();
            for (&file, left) in files.iter().zip(left) {
                if first {
                    ticket.bytes += left.bytes;
                }
                if left.bytes > 0 {
                    held.insert(file);
                }
                if left.bytes > 0 && left.tries >= TRIES {
                    ticket.failed(file, left.tries, false);
                }
            }
        }
        ticket.drained.extend(files.into_iter().filter(|file| !held.contains(file)));
    }

    /// Queues files of this authority that their holders have drained, or that an earlier run of a server left unfinished:
    /// they are finalized.
    pub(super) fn resume_abandoned(&self, backing: &Backing) {
        let (abandoned, now) = (self.abandoned(backing), Instant::now());
        let mut drain_queue = self.drain_queue();
        for file in abandoned {
            if drain_queue.failures.may_try(now, file) {
                drain_queue.resume(file);
            }
        }
    }
}
