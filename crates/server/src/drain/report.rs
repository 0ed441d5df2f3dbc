//! Requests to and reports of the drain.

use super::ticket::Ticket;
use super::{DrainEngine, scanner};
use crate::per_user::UserLimit;
use forebay_model::{Error, ErrorKind, FileId, Result, Uid};
use forebay_policy::drain::{Order, TargetId};
use forebay_wire::{DrainReport, DrainStatus, Failing, TargetStatus};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Most failures in one report.
const SHOWN: usize = 64;
/// Most requests that are remembered.
const TICKETS: usize = 1024;

pub(super) const ORDERS: [(&str, Order); 4] = [
    ("arrival", Order::Arrival),
    ("offset", Order::Offset),
    ("target", Order::Target),
    ("trio", Order::Trio),
];

/// Makes space for another request of a user: forgets the oldest finished request, of this user if the user has as many
/// requests as one user may have. Fails if none is finished.
fn make_space(tickets: &mut BTreeMap<u64, Ticket>, limit: UserLimit, user: Uid) -> Result<()> {
    let oldest_done = |tickets: &BTreeMap<u64, Ticket>, counts: &dyn Fn(&Ticket) -> bool| {
        tickets.values().find(|ticket| counts(ticket) && ticket.is_done()).map(|ticket| ticket.id)
    };
    let own = |ticket: &Ticket| ticket.user == user;
    if !limit.exempts(user) && tickets.values().filter(|ticket| own(ticket)).count() >= limit.most {
        let oldest = oldest_done(tickets, &own).ok_or_else(|| limit.refusal(user))?;
        tickets.remove(&oldest);
    }
    if tickets.len() >= TICKETS {
        let oldest = oldest_done(tickets, &|_| true).ok_or_else(|| {
            let text = format!("{TICKETS} drains are running: wait until one of them finishes");
            Error::new(ErrorKind::Busy, text)
        })?;
        tickets.remove(&oldest);
    }
    Ok(())
}

impl DrainEngine {
    /// Begins to drain a file or tree, or everything, for a user; returns the number of the request.
    pub(crate) fn begin(&self, user: Uid, file: Option<FileId>, last: bool) -> Result<u64> {
        let mut drain_queue = self.drain_queue();
        make_space(&mut drain_queue.tickets, self.tickets_of_user, user)?;
        drain_queue.last_ticket += 1;
        let id = drain_queue.last_ticket;
        drain_queue.tickets.insert(id, Ticket::new(id, user, self.store.data().now()));
        drop(drain_queue);
        self.last.fetch_or(last, Ordering::Relaxed);
        self.walks.lock().push((id, scanner::Walk::new(file)));
        Ok(id)
    }

    /// Sets the order of the drain, or with `dry_run` only checks whether it could be set.
    pub(crate) fn set_order(&self, name: &str, dry_run: bool) -> Result<()> {
        let known = ORDERS.iter().find(|(known, _)| *known == name);
        let (_, order) = known.ok_or_else(|| {
            let text = format!("\"{name}\" is no order: choose arrival, offset, target or trio");
            Error::new(ErrorKind::Invalid, text)
        })?;
        let mut drain_queue = self.drain_queue();
        match if dry_run { drain_queue.can_order(*order) } else { drain_queue.set_order(*order) } {
            true => Ok(()),
            false => {
                let text = "the drain is running: change its order when it is idle";
                Err(Error::new(ErrorKind::Busy, text))
            }
        }
    }

    /// The progress of a request and the drain's status; failures of one user only, if given.
    pub(crate) fn report(&self, ticket: Option<u64>, only: Option<Uid>) -> Result<DrainReport> {
        let status = self.status(only);
        let drain_queue = self.drain_queue();
        let ticket = match ticket {
            None => None,
            Some(id) => match drain_queue.tickets.get(&id) {
                Some(ticket) => Some(ticket.view()),
                None => {
                    let text = format!("drain {id} is unknown or was forgotten: start it again");
                    return Err(Error::new(ErrorKind::NotFound, text));
                }
            },
        };
        Ok(DrainReport { ticket, fetched: 0, full: false, status })
    }

    /// The drain's status; failures of one user only, if given.
    pub(crate) fn status(&self, only: Option<Uid>) -> DrainStatus {
        let drain_queue = self.drain_queue();
        let targets = self.targets.iter().enumerate().map(|(number, name)| {
            let gauge = &drain_queue.gauges[number];
            TargetStatus {
                name: name.clone(),
                queued: drain_queue.queued_at(TargetId(number as u32)),
                written: gauge.written,
                rate: gauge.rate(),
                alpha: drain_queue.alpha(TargetId(number as u32)),
                writers: gauge.slots.writers(),
            }
        });
        let mut failing: Vec<Failing> = drain_queue
            .failures
            .all()
            .filter(|failure| only.is_none_or(|user| failure.user == user))
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
            backend: self.backing.name(),
            order: ORDERS
                .iter()
                .find(|(_, order)| *order == drain_queue.order)
                .map_or("", |(name, _)| name)
                .to_owned(),
            threshold: self.settings.threshold,
            queued: drain_queue.queued(),
            files: drain_queue.files.len() as u64,
            waiting: self.waiting_writers.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            freed: self.freed.load(Ordering::Relaxed),
            read_cache: self.backing.read_cache.bytes(),
            targets: targets.collect(),
            failing,
            failures,
            resting: drain_queue.failures.is_paused(std::time::Instant::now()),
            notes: self.losses.lock().iter().cloned().collect(),
        }
    }

    /// The kind of error that keeps files from being drained, if there is one. Only the status names the files, to
    /// users who may see them.
    pub(super) fn trouble(&self) -> Option<String> {
        let drain_queue = self.drain_queue();
        let worst = drain_queue.failures.all().max_by_key(|failure| failure.tries);
        worst.map(|failure| format!("{}: see \"forebay status\"", failure.error.kind()))
    }
}
