//! Looking at what the next events will need, before they happen.
//!
//! A machine of ten thousand servers does not fit into a cache, and an event waits for memory a dozen times, each time for
//! what the last told it. The next few events are known: what they will need is read for all of them at once, so that
//! they wait together. Nothing is changed and nothing decided here; without it everything happens just the same, later.

use crate::queue::Event;
use crate::servers::Request;
use crate::targets::{Owner, Write};
use crate::world::World;
use forebay_model::JobId;
use forebay_policy::drain::TargetId;
use std::hint::black_box;

impl World {
    pub(crate) fn foresee(&self, near: &[Event]) {
        // Whom they meet, then what those have: each look waits only for what the one before it has brought.
        near.iter().for_each(|&event| self.meet(event));
        near.iter().for_each(|&event| self.look(event));
        near.iter().for_each(|&event| self.look_closely(event));
    }

    fn meet(&self, event: Event) {
        match event {
            Event::Served(number) => {
                let Request { process, server, .. } = *self.requests.get(number);
                black_box(self.processes[process as usize].round);
                self.servers[usize::from(server)].glance();
            }
            Event::End(target, _) => {
                black_box(self.bays[target as usize].works.front());
            }
            _ => {}
        }
    }

    fn look(&self, event: Event) {
        match event {
            Event::Served(number) => {
                let Request { process, server, .. } = *self.requests.get(number);
                let server = &self.servers[usize::from(server)];
                black_box(server.scheduler.glance(JobId(u64::MAX)));
                server.lanes.iter().for_each(|berth| self.lanes[berth.lane as usize].glance());
                black_box(process);
            }
            Event::End(target, _) => {
                for &(_, number) in self.bays[target as usize].works.iter().take(4) {
                    if let Owner::Lane(lane, _) = self.writes.get(number).owner {
                        self.lanes[lane as usize].glance();
                        self.servers[usize::from(self.lanes[lane as usize].server)].glance();
                    }
                }
            }
            _ => {}
        }
    }

    fn look_closely(&self, event: Event) {
        match event {
            Event::Served(number) => {
                let Request { process, server, span, .. } = *self.requests.get(number);
                let server = &self.servers[usize::from(server)];
                let job = self.processes[process as usize].job;
                black_box(server.scheduler.glance(self.jobs[job as usize].id));
                let file = self.file(process);
                let target = self.layout(file).cut(span).next().map_or(TargetId(0), |(target, _)| target);
                for berth in &server.lanes {
                    black_box(self.lanes[berth.lane as usize].drain.glance(target, file));
                }
            }
            Event::End(target, _) => {
                for &(_, number) in self.bays[target as usize].works.iter().take(4) {
                    let Write { owner, target, file, .. } = *self.writes.get(number);
                    if let Owner::Lane(lane, _) = owner {
                        black_box(self.lanes[lane as usize].drain.glance(target, file));
                        let server = usize::from(self.lanes[lane as usize].server);
                        for berth in &self.servers[server].lanes {
                            self.lanes[berth.lane as usize].glance();
                        }
                    }
                }
            }
            _ => {}
        }
    }
}
