//! Whose turn it is.

use forebay_model::{Bytes, JobId};
use std::collections::VecDeque;

/// What every request costs besides its bytes, so that jobs with small requests are charged for their number.
pub const OPERATION: Cost = Cost(16 << 10);

/// What a turn costs the server, in bytes or their equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Cost(pub u64);

impl Cost {
    /// The cost of a request that moves so many bytes.
    #[must_use]
    pub fn of(bytes: Bytes) -> Cost {
        Cost(OPERATION.0.saturating_add(bytes.0))
    }
}

/// The number of a request that waits for its turn; each is used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ticket(pub u64);

/// Decides who is next. It is told of every arrival and every end, and asked when a place is free.
pub trait Scheduler: Send {
    /// A request has come and waits.
    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket);

    /// Takes the request that is next, if any waits.
    fn next(&mut self) -> Option<Ticket>;

    /// A request that had its turn is done.
    fn done(&mut self, job: JobId, cost: Cost);

    /// How many requests wait.
    fn waiting(&self) -> usize;
}

/// First come, first served.
#[derive(Debug, Default)]
pub struct Fifo {
    queue: VecDeque<Ticket>,
}

impl Scheduler for Fifo {
    fn arrive(&mut self, _job: JobId, _cost: Cost, ticket: Ticket) {
        self.queue.push_back(ticket);
    }

    fn next(&mut self) -> Option<Ticket> {
        self.queue.pop_front()
    }

    fn done(&mut self, _job: JobId, _cost: Cost) {}

    fn waiting(&self) -> usize {
        self.queue.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `+7` arrives ticket 7, `.` asks for the next.
    fn check(story: &str, served: &str) {
        let mut fifo = Fifo::default();
        let mut order = Vec::new();
        for word in story.split_whitespace() {
            match word.strip_prefix('+') {
                Some(ticket) => {
                    let ticket = Ticket(ticket.parse().expect("a number"));
                    fifo.arrive(JobId(ticket.0 % 3), Cost::of(Bytes(1)), ticket);
                }
                None => {
                    order.push(fifo.next().map_or("-".to_owned(), |ticket| ticket.0.to_string()));
                }
            }
        }
        assert_eq!(order.join(" "), served, "{story}");
    }

    #[test]
    fn fifo_serves_in_the_order_of_arrival() {
        check(".", "-");
        check("+1 +2 +3 . . . .", "1 2 3 -");
        check("+9 . +4 +5 . +1 . .", "9 4 5 1");
    }

    #[test]
    fn small_requests_are_charged_for_their_number() {
        assert_eq!(Cost::of(Bytes(0)), OPERATION);
        assert_eq!(Cost::of(Bytes(u64::MAX)), Cost(u64::MAX));
    }
}
