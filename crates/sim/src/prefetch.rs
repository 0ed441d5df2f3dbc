//! Prefetching for upcoming events.
//!
//! A machine of ten thousand servers does not fit into the cache, and an event has a dozen dependent cache
//! misses. The next few events are known: their memory is read for all of them together, so that the misses
//! overlap. This changes no state and decides nothing; without it the results are the same, only slower.

use crate::queue::Event;
use crate::servers::Request;
use crate::targets::{Owner, Write};
use crate::world::World;
use forebay_model::{FileId, JobId};
use forebay_policy::drain::TargetId;
use std::hint::black_box;

/// Prefetch steps into a scheduler or a drain.
const STEPS: usize = 4;
/// Writes of a target that may end next.
const FEW: usize = 4;

/// The objects that an event will use.
#[derive(Clone, Copy)]
pub(crate) struct Prefetch {
    server: u16,
    drain_queue: Option<u32>,
    /// The job whose request is served, if one is.
    job: Option<(u32, JobId)>,
    target: TargetId,
    file: FileId,
}

impl World {
    /// Prefetches the memory of these events; each step over all events depends only on the one before.
    pub(crate) fn prefetch_events(&self, near: &[Event], prefetches: &mut Vec<Prefetch>) {
        for &event in near {
            match event {
                Event::Served(number) => {
                    let Request { process, server, .. } = *self.requests.get(number);
                    black_box(self.processes[process as usize].round);
                    self.servers[usize::from(server)].prefetch();
                }
                Event::End(target, _) => self.target_states[target as usize].prefetch(),
                _ => {}
            }
        }
        prefetches.clear();
        near.iter().for_each(|&event| self.prefetch(event, prefetches));
        for prefetch in &mut *prefetches {
            let drain_queues = &self.servers[usize::from(prefetch.server)].drain_queues;
            let own = prefetch.job.and_then(|(job, _)| drain_queues.iter().find(|entry| entry.job == job));
            prefetch.drain_queue = prefetch.drain_queue.or(own.map(|entry| entry.drain_queue));
            drain_queues.iter().for_each(|entry| self.drain_queues[entry.drain_queue as usize].prefetch());
        }
        for step in 0..STEPS {
            prefetches.iter().for_each(|prefetch| self.look(prefetch, step));
        }
    }

    fn prefetch(&self, event: Event, prefetches: &mut Vec<Prefetch>) {
        match event {
            Event::Served(number) => {
                let Request { process, server, span, .. } = *self.requests.get(number);
                let (job, file) = (self.processes[process as usize].job, self.file(process));
                let layout = (!self.target_states.is_empty()).then(|| self.layout(file));
                let target = layout.and_then(|layout| Some(layout.cut(span).next()?.0)).unwrap_or_default();
                let job = Some((job, self.jobs[job as usize].id));
                prefetches.push(Prefetch { server, drain_queue: None, job, target, file });
                self.servers[usize::from(server)].drain_queues.iter().for_each(|entry| {
                    black_box(entry.drain_queue);
                });
            }
            Event::End(target, _) => {
                for &(_, number) in self.target_states[target as usize].works.iter().take(FEW) {
                    let Write { owner, target, file, .. } = *self.writes.get(number);
                    if let Owner::Drain(drain_queue, _) = owner {
                        let server = self.drain_queues[drain_queue as usize].server;
                        prefetches.push(Prefetch {
                            server,
                            drain_queue: Some(drain_queue),
                            job: None,
                            target,
                            file,
                        });
                        self.servers[usize::from(server)].prefetch();
                    }
                }
            }
            _ => {}
        }
    }

    fn look(&self, prefetch: &Prefetch, step: usize) {
        if let Some((_, job)) = prefetch.job {
            black_box(self.servers[usize::from(prefetch.server)].scheduler.prefetch(job, step));
        }
        if let Some(drain_queue) = prefetch.drain_queue {
            black_box(self.drain_queues[drain_queue as usize].drain.prefetch(
                prefetch.target,
                prefetch.file,
                step,
            ));
        }
    }
}
