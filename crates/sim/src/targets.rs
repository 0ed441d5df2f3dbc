//! Targets, and the writes on their way to them.

use crate::hops::Hops;
use crate::queue::Event;
use crate::scenario::Scenario;
use crate::world::World;
use forebay_model::{FileId, Span};
use forebay_policy::device::{ModelledTarget, Work};
use forebay_policy::drain::{BatchId, TargetId};
use forebay_policy::share::Tick;
use std::collections::VecDeque;
use std::hint::black_box;

/// The originator of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    /// A request that bypasses the buffer.
    Request(u32),
    /// A drain queue of a server.
    Drain(u32, BatchId),
}

/// A write on its way to a target or in progress there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub(crate) owner: Owner,
    pub(crate) target: TargetId,
    pub(crate) file: FileId,
    /// Within the target's part of the file.
    pub(crate) span: Span,
}

/// A target and its writes in progress.
pub(crate) struct TargetState {
    pub(crate) target: ModelledTarget,
    pub(crate) entry: u32,
    pub(crate) up: bool,
    /// By work; numbers increase.
    pub(crate) works: VecDeque<(Work, u32)>,
    /// Direct writes that arrived while it was down.
    pub(crate) stalled: Vec<u32>,
    /// When it completes the next write, and the number of that plan.
    due: Option<Tick>,
    pub(crate) plan: u32,
    pub(crate) bytes: u64,
    /// Seeks before it failed.
    pub(crate) seeks: u64,
}

impl TargetState {
    /// Prefetches the fields that every write uses.
    pub(crate) fn prefetch(&self) {
        black_box((self.works.front(), self.due, self.target.writers()));
    }

    pub(crate) fn forget_due(&mut self) {
        self.due = None;
    }
}

/// All targets, idle.
pub(crate) fn all(plan: &Scenario, hops: &Hops) -> Vec<TargetState> {
    let all = plan.targets.iter().flat_map(|group| (0..group.count).map(move |one| (group, one)));
    all.map(|(group, one)| TargetState {
        target: ModelledTarget::new(group.device.clone()),
        entry: hops.entry(group.via, one, group.count),
        up: true,
        works: VecDeque::new(),
        stalled: Vec::new(),
        due: None,
        plan: 0,
        bytes: 0,
        seeks: 0,
    })
    .collect()
}

impl World {
    /// Sends a write to its target at the given time.
    pub(crate) fn dispatch(&mut self, write: Write, at: Tick) {
        let number = self.writes.put(write);
        if at == self.now { self.depart(number) } else { self.queue.plan(at, Event::Depart(number)) }
    }

    /// A write leaves for its target.
    pub(crate) fn depart(&mut self, number: u32) {
        let write = *self.writes.get(number);
        let entry = self.target_states[write.target.0 as usize].entry;
        let at = self.hops.pass(entry, write.span.len(), self.now, &mut self.rng);
        if at == self.now { self.reach(number) } else { self.queue.plan(at, Event::Reach(number)) }
    }

    /// A request goes directly to targets.
    pub(crate) fn direct(&mut self, number: u32, at: Tick) {
        let request = *self.requests.get(number);
        let file = self.file(request.process);
        let layout = self.layout(file);
        let mut parts: Vec<(TargetId, Span)> = Vec::new();
        for (target, span) in layout.cut(request.span) {
            let start = layout.inside(span.start);
            let span = Span::new(start, start + span.len());
            match parts.iter_mut().find(|(one, part)| *one == target && part.end == span.start) {
                Some((_, part)) => part.end = span.end,
                None => parts.push((target, span)),
            }
        }
        self.requests.get_mut(number).parts = parts.len() as u32;
        for (target, span) in parts {
            self.dispatch(Write { owner: Owner::Request(number), target, file, span }, at);
        }
    }

    /// A write has arrived at its target.
    pub(crate) fn reach(&mut self, number: u32) {
        let write = *self.writes.get(number);
        let target_state = &mut self.target_states[write.target.0 as usize];
        if !target_state.up {
            return self.refuse(number);
        }
        let work = target_state.target.begin(self.now, write.file, write.span);
        if target_state.target.is_under_way(work) {
            target_state.works.push_back((work, number));
            self.plan_completion(write.target.0);
        } else {
            self.queue.plan(self.now, Event::Taken(number));
        }
    }

    /// Plans the next completion of a target.
    fn plan_completion(&mut self, target: u32) {
        let target_state = &mut self.target_states[target as usize];
        let Some(next) = target_state.target.next_end() else {
            target_state.due = None;
            return;
        };
        // More writers make completions later: then the earlier plan stays, and finds nothing to do.
        if target_state.due.is_none_or(|due| next < due) {
            target_state.due = Some(next);
            target_state.plan += 1;
            self.queue.plan(next, Event::End(target, target_state.plan));
        }
    }

    /// Completes the writes that have ended by now.
    pub(crate) fn end(&mut self, target: usize) {
        let target_state = &mut self.target_states[target];
        target_state.due = None;
        let works = &mut target_state.works;
        let number = |work| {
            let place = works.binary_search_by_key(&work, |one| one.0).ok()?;
            works.remove(place).map(|one| one.1)
        };
        let mut ended = std::mem::take(&mut self.ended);
        ended.extend(target_state.target.ended(self.now).filter_map(number));
        ended.drain(..).for_each(|number| self.finish(number));
        self.ended = ended;
        self.plan_completion(target as u32);
    }

    /// A write is on its target.
    pub(crate) fn finish(&mut self, number: u32) {
        let write = self.writes.take(number);
        self.target_states[write.target.0 as usize].bytes += write.span.len();
        match write.owner {
            Owner::Drain(drain_queue, batch) => self.drained(drain_queue, batch, write.target),
            Owner::Request(request) => self.part_done(request, write.span.len()),
        }
    }

    fn part_done(&mut self, number: u32, len: u64) {
        self.ledger.taken += len;
        self.ledger.direct += len;
        let request = self.requests.get_mut(number);
        request.parts -= 1;
        if request.parts == 0 {
            let request = self.requests.take(number);
            self.completed(request);
        }
    }
}
