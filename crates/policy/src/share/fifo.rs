//! First come, first served.

use super::cost::{Cost, Tick, Ticket};
use super::policy::Policy;
use super::scheduler::{Next, Request, Scheduler};
use forebay_model::{Job, JobId, Result};
use std::collections::VecDeque;

/// First come, first served. No later request passes an earlier one.
#[derive(Debug, Default)]
pub struct Fifo {
    queue: VecDeque<Request>,
}

impl Scheduler for Fifo {
    fn join(&mut self, _job: &Job) -> Result<()> {
        Ok(())
    }

    fn leave(&mut self, _job: JobId) {}

    fn set_policy(&mut self, _policy: &Policy) {}

    fn assign(&mut self, _shares: &[(JobId, f64)]) {}

    fn arrive(&mut self, job: JobId, cost: Cost, ticket: Ticket) {
        self.queue.push_back(Request { job, cost, ticket });
    }

    fn next(&mut self, _now: Tick) -> Next {
        self.queue.pop_front().map_or(Next::Idle, |request| Next::Turn(request.ticket))
    }

    fn done(&mut self, _job: JobId, _asked: Cost, _actual: Cost) {}

    fn waiting(&self) -> usize {
        self.queue.len()
    }

    fn take_all(&mut self) -> Vec<Request> {
        self.queue.drain(..).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_model::Bytes;

    /// `+7`: ticket 7 arrives, `.`: takes the next one.
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
                    let next = fifo.next(Tick(0)).ticket();
                    order.push(next.map_or("-".to_owned(), |ticket| ticket.0.to_string()));
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
}
