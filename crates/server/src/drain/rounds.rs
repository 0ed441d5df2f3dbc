//! What other servers are asked about what somebody wants to be drained.

use super::Engine;
use super::ticket::TRIES;
use crate::service::Service;
use crate::union::Union;
use forebay_model::{FileId, ServerId, Stamp};
use forebay_wire::{PeerReply, PeerRequest};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// Most files in one question.
const FILES: usize = 1024;

impl Engine {
    /// Asks the others how much they hold of what somebody waits for, and has them drain it.
    pub(super) fn ask_round(&self, service: &Arc<Service>) {
        let tickets: Vec<u64> = self.board().tickets.keys().copied().collect();
        for id in tickets {
            self.ask_for(service, id);
        }
    }

    fn ask_for(&self, service: &Arc<Service>, id: u64) {
        let (files, clocks) = match self.board().tickets.get(&id) {
            Some(ticket) => (ticket.unsure().take(FILES).collect::<Vec<_>>(), ticket.clocks.clone()),
            None => return,
        };
        let mut holders: BTreeMap<ServerId, Vec<FileId>> = BTreeMap::new();
        for &file in &files {
            // One that has gone is found out by whoever drains it.
            for server in service.holders(file).unwrap_or_default() {
                holders.entry(server).or_default().push(file);
            }
        }
        let question = |(&server, files): (&ServerId, &Vec<FileId>)| {
            let before = clocks.get(&server).copied().unwrap_or(Stamp(u64::MAX));
            (server, PeerRequest::Undrained { files: files.clone(), before, drain: true })
        };
        let list = holders.iter().map(question).collect();
        let Ok(answers) = service.await_unless_it_ends(service.ask_all(list)) else { return };
        let mut held: HashSet<FileId> = HashSet::new();
        let mut board = self.board();
        let Some(ticket) = board.tickets.get_mut(&id) else { return };
        for ((server, files), answer) in holders.iter().zip(answers) {
            let (now, left) = match answer {
                Ok(PeerReply::Undrained { now, left }) if left.len() == files.len() => (now, left),
                _ => {
                    held.extend(files);
                    for &file in files {
                        let tries = ticket.afar.entry(file).or_default();
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
        ticket.out.extend(files.into_iter().filter(|file| !held.contains(file)));
    }

    /// Files of ours that others have drained, or that an earlier life of somebody left: they are looked at, and let go of.
    pub(super) fn take_up_abandoned(&self, service: &Service, union: &Union) {
        let (abandoned, now) = (self.abandoned(service, union), Instant::now());
        let mut board = self.board();
        for file in abandoned {
            if board.failures.may_try(now, file) {
                board.take_up(file);
            }
        }
    }
}
