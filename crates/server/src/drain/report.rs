//! What is said about the drain.

use super::ticket::Ticket;
use super::{Engine, scout};
use crate::service::Service;
use forebay_model::{Error, ErrorKind, FileId, Result};
use forebay_policy::drain::{Order, TargetId};
use forebay_wire::{DrainReport, DrainStatus, Failing, TargetStatus};
use std::cmp::Reverse;
use std::sync::atomic::Ordering;

/// Most failures in one answer.
const SHOWN: usize = 64;
/// Most requests that are remembered.
const TICKETS: usize = 1024;

pub(super) const ORDERS: [(&str, Order); 4] = [
    ("arrival", Order::Arrival),
    ("offset", Order::Offset),
    ("target", Order::Target),
    ("trio", Order::Trio),
];

impl Engine {
    /// Begins to drain something, everything if it is not said what; returns its number.
    pub(crate) fn begin(&self, service: &Service, file: Option<FileId>, last: bool) -> Result<u64> {
        self.last.fetch_or(last, Ordering::Relaxed);
        let mut board = self.board();
        let finished = |ticket: &&Ticket| ticket.is_done();
        if board.tickets.len() >= TICKETS {
            let oldest = board.tickets.values().find(finished).map(|ticket| ticket.id);
            let Some(oldest) = oldest else {
                let text = format!("{TICKETS} drains are under way: wait for one of them");
                return Err(Error::new(ErrorKind::Busy, text));
            };
            board.tickets.remove(&oldest);
        }
        board.last_ticket += 1;
        let id = board.last_ticket;
        board.tickets.insert(id, Ticket::new(id, service.store.data().now()));
        drop(board);
        self.walks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push((id, scout::Walk::new(file)));
        Ok(id)
    }

    /// From now on things leave in this order, or could if it is only asked.
    pub(crate) fn set_order(&self, name: &str, ask: bool) -> Result<()> {
        let known = ORDERS.iter().find(|(known, _)| *known == name);
        let (_, order) = known.ok_or_else(|| {
            let text = format!("\"{name}\" is no order: choose arrival, offset, target or trio");
            Error::new(ErrorKind::Invalid, text)
        })?;
        let mut board = self.board();
        match if ask { board.can_order(*order) } else { board.set_order(*order) } {
            true => Ok(()),
            false => {
                let text = "the drain is at work: change its order when it is done";
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    /// How far it is.
    pub(crate) fn report(&self, service: &Service, ticket: Option<u64>) -> Result<DrainReport> {
        let status = self.status(service);
        let board = self.board();
        let ticket = match ticket {
            None => None,
            Some(id) => match board.tickets.get(&id) {
                Some(ticket) => Some(ticket.view()),
                None => {
                    let text = format!("drain {id} is not known here (any more): begin it again");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
            },
        };
        Ok(DrainReport { ticket, fetched: 0, full: false, status })
    }

    pub(crate) fn status(&self, service: &Service) -> DrainStatus {
        let board = self.board();
        let targets = self.targets.iter().enumerate().map(|(number, name)| {
            let gauge = &board.gauges[number];
            TargetStatus {
                name: name.clone(),
                queued: board.queued_at(TargetId(number as u32)),
                written: gauge.written,
                rate: gauge.rate(),
                alpha: board.alpha(TargetId(number as u32)),
                writers: gauge.writers,
            }
        });
        let mut failing: Vec<Failing> = board
            .failures
            .all()
            .map(|failure| Failing {
                path: failure.path.clone(),
                user: failure.user,
                why: failure.error.to_string(),
                tries: failure.tries,
            })
            .collect();
        failing
            .sort_by(|one, other| (Reverse(one.tries), &one.path).cmp(&(Reverse(other.tries), &other.path)));
        let failures = failing.len() as u64;
        failing.truncate(SHOWN);
        DrainStatus {
            backend: service.union.as_ref().map(|union| union.name()).unwrap_or_default(),
            order: ORDERS
                .iter()
                .find(|(_, order)| *order == board.order)
                .map_or("", |(name, _)| name)
                .to_owned(),
            threshold: self.settings.threshold,
            queued: board.queued(),
            files: board.files.len() as u64,
            waiting: self.rooms.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            freed: self.freed.load(Ordering::Relaxed),
            near: service.union.as_ref().map_or((0, 0), |union| union.near.bytes()),
            targets: targets.collect(),
            failing,
            failures,
            resting: board.failures.rests(std::time::Instant::now()),
            notes: self
                .losses
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .iter()
                .cloned()
                .collect(),
        }
    }

    /// Why something could not be drained, if there is anything of that kind.
    pub(super) fn trouble(&self) -> Option<String> {
        let board = self.board();
        let worst = board.failures.all().max_by_key(|failure| failure.tries);
        worst.map(|failure| format!("{}: {}", failure.path, failure.error))
    }
}
