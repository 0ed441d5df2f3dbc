//! Temporary failures, and their effect on work in progress.
//!
//! A server that is down starts no requests and sends nothing; its buffer is intact when it is back. A target
//! that is down loses its writes in progress: servers send these again later, direct writers wait.

use crate::targets::Owner;
use crate::world::World;
use forebay_model::ServerId;
use forebay_policy::device::ModelledTarget;
use forebay_policy::drain::TargetId;

impl World {
    pub(crate) fn server_fails(&mut self, server: u16) {
        self.servers[usize::from(server)].up = false;
        for i in 0..self.servers[usize::from(server)].drain_queues.len() {
            let drain_queue = self.servers[usize::from(server)].drain_queues[i].drain_queue;
            self.forget_grants(drain_queue);
        }
        if let Some(arbiter) = &mut self.arbiter {
            let grants = arbiter.leave(self.now, ServerId(server));
            self.granted(grants);
        }
    }

    pub(crate) fn server_is_back(&mut self, server: u16) {
        let server = usize::from(server);
        self.servers[server].up = true;
        self.serve(server);
        self.drain_server(server);
    }

    pub(crate) fn target_fails(&mut self, target: u32) {
        let fresh = ModelledTarget::new(self.plan_of(target));
        let target_state = &mut self.target_states[target as usize];
        target_state.up = false;
        target_state.seeks += target_state.target.seeks();
        target_state.target = fresh;
        target_state.plan += 1;
        target_state.forget_due();
        let mut lost: Vec<u32> = target_state.works.drain(..).map(|(_, number)| number).collect();
        lost.sort_unstable();
        (0..self.drain_queues.len() as u32)
            .for_each(|drain_queue| self.postpone(drain_queue, TargetId(target)));
        lost.into_iter().for_each(|number| self.refuse(number));
    }

    fn plan_of(&self, target: u32) -> forebay_policy::device::Device {
        let mut left = target;
        for group in &self.plan.targets {
            if left < group.count {
                return group.device.clone();
            }
            left -= group.count;
        }
        unreachable!("target numbers run through all groups")
    }

    /// A write cannot be done because its target is down.
    pub(crate) fn refuse(&mut self, number: u32) {
        let write = *self.writes.get(number);
        match write.owner {
            Owner::Request(_) => self.target_states[write.target.0 as usize].stalled.push(number),
            Owner::Drain(drain_queue, batch) => {
                self.writes.take(number);
                self.undrained(drain_queue, batch, write.target, write.span.len());
            }
        }
    }

    pub(crate) fn target_is_back(&mut self, target: u32) {
        let target_state = &mut self.target_states[target as usize];
        target_state.up = true;
        let stalled = std::mem::take(&mut target_state.stalled);
        stalled.into_iter().for_each(|number| self.reach(number));
        (0..self.drain_queues.len() as u32)
            .for_each(|drain_queue| self.restore_postponed(drain_queue, TargetId(target)));
        (0..self.servers.len()).for_each(|server| self.drain_server(server));
    }
}
