//! Looking at what the next events will need, before they happen.
//!
//! A machine of ten thousand servers does not fit into a cache, and an event waits for memory a dozen times, each time for
//! what the last has told it. The next few events are known: what they will need is read for all of them at once, so that
//! they wait together. Nothing is changed and nothing decided here; without it the same happens, only later.

use crate::queue::Event;
use crate::servers::Request;
use crate::targets::{Owner, Write};
use crate::world::World;
use forebay_model::{FileId, JobId};
use forebay_policy::drain::TargetId;
use std::hint::black_box;

/// Steps that a glance takes into a scheduler or a drain.
const STEPS: usize = 4;
/// Writes of a target that may be the next to end.
const FEW: usize = 4;

/// Whom an event will meet.
#[derive(Clone, Copy)]
pub(crate) struct Sight {
    server: u16,
    lane: Option<u32>,
    /// Whose request is served, if one is.
    job: Option<(u32, JobId)>,
    target: TargetId,
    file: FileId,
}

impl World {
    /// Reads what these events will read: each step for all of them waits only for what the one before has brought.
    pub(crate) fn foresee(&self, near: &[Event], sights: &mut Vec<Sight>) {
        for &event in near {
            match event {
                Event::Served(number) => {
                    let Request { process, server, .. } = *self.requests.get(number);
                    black_box(self.processes[process as usize].round);
                    self.servers[usize::from(server)].glance();
                }
                Event::End(target, _) => self.bays[target as usize].glance(),
                _ => {}
            }
        }
        sights.clear();
        near.iter().for_each(|&event| self.sight(event, sights));
        for sight in &mut *sights {
            let lanes = &self.servers[usize::from(sight.server)].lanes;
            let own = sight.job.and_then(|(job, _)| lanes.iter().find(|berth| berth.job == job));
            sight.lane = sight.lane.or(own.map(|berth| berth.lane));
            lanes.iter().for_each(|berth| self.lanes[berth.lane as usize].glance());
        }
        for step in 0..STEPS {
            sights.iter().for_each(|sight| self.look(sight, step));
        }
    }

    fn sight(&self, event: Event, sights: &mut Vec<Sight>) {
        match event {
            Event::Served(number) => {
                let Request { process, server, span, .. } = *self.requests.get(number);
                let (job, file) = (self.processes[process as usize].job, self.file(process));
                let layout = (!self.bays.is_empty()).then(|| self.layout(file));
                let target = layout.and_then(|layout| Some(layout.cut(span).next()?.0)).unwrap_or_default();
                let job = Some((job, self.jobs[job as usize].id));
                sights.push(Sight { server, lane: None, job, target, file });
                self.servers[usize::from(server)].lanes.iter().for_each(|berth| {
                    black_box(berth.lane);
                });
            }
            Event::End(target, _) => {
                for &(_, number) in self.bays[target as usize].works.iter().take(FEW) {
                    let Write { owner, target, file, .. } = *self.writes.get(number);
                    if let Owner::Lane(lane, _) = owner {
                        let server = self.lanes[lane as usize].server;
                        sights.push(Sight { server, lane: Some(lane), job: None, target, file });
                        self.servers[usize::from(server)].glance();
                    }
                }
            }
            _ => {}
        }
    }

    fn look(&self, sight: &Sight, step: usize) {
        if let Some((_, job)) = sight.job {
            black_box(self.servers[usize::from(sight.server)].scheduler.glance(job, step));
        }
        if let Some(lane) = sight.lane {
            black_box(self.lanes[lane as usize].drain.glance(sight.target, sight.file, step));
        }
    }
}
