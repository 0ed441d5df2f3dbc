//! Target choices for the files of a job that are placed together.

use crate::scenario::{Choose, Fault, JobPlan, Pattern, Phase, Place, Scenario};
use forebay_policy::drain::{Layout, TargetId};
use forebay_policy::place::{
    Description, Job, Ledger, Limits, Router, Server, Shape, State, Target, Topology, Weights, Writer, place,
};
use forebay_policy::share::Rng;
use std::sync::Arc;

/// The layouts of a job's files, by rank or the only one; none where each file is placed by itself.
pub(crate) fn layouts(plan: &Scenario, number: usize, seed: u64) -> Result<Vec<Layout>, Fault> {
    let job = &plan.jobs[number];
    let files = if job.pattern == Pattern::Own { job.processes } else { 1 };
    match job.layout.choose {
        Choose::First | Choose::Round | Choose::Chance => Ok(Vec::new()),
        Choose::Crowded => Ok(crowded(job, files, plan.target_count(), seed ^ number as u64)),
        Choose::Balanced => balanced(plan, job, number),
    }
}

/// Round-robin, while other jobs create as many files at random moments.
fn crowded(job: &JobPlan, files: u32, count: u32, seed: u64) -> Vec<Layout> {
    let mut rng = Rng::new(seed);
    let mut next = rng.below(u64::from(count)) as u32;
    let mut take = || {
        while rng.below(2) == 0 {
            next += 1;
        }
        next += 1;
        TargetId(next % count)
    };
    let mut file = || {
        let mut targets: Vec<TargetId> = Vec::new();
        while targets.len() < job.layout.stripes.min(count) as usize {
            let target = take();
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        Layout::new(targets, job.layout.stripe.0)
    };
    (0..files).map(|_| file()).collect()
}

/// By the placement policy.
fn balanced(plan: &Scenario, job: &JobPlan, number: usize) -> Result<Vec<Layout>, Fault> {
    let wrong = |text: String| Fault { place: Place::Job(number), key: "choose", text };
    let topology = Topology::new(describe(plan)).map_err(|flaw| wrong(flaw.to_string()))?;
    let bytes = job.phases.iter().find_map(|phase| match phase {
        Phase::Write(bytes, _) => Some(bytes.0),
        Phase::Compute(..) | Phase::Read(..) => None,
    });
    let writers = vec![Writer { client: None, bytes }; job.processes as usize];
    let own = job.pattern == Pattern::Own;
    let placed = Job {
        writers: &writers,
        pattern: if own {
            forebay_policy::place::Pattern::PerProcess
        } else {
            forebay_policy::place::Pattern::Shared
        },
        file_size: None,
        stripe_count: Some(job.layout.stripes),
        stripe_size: own.then_some(job.layout.stripe.0),
        limits: &Limits::BACK_END,
    };
    let mut ledger = Ledger::new(Arc::new(topology), Weights::default(), job.job.id().0);
    let files = place(&mut ledger, &placed).map_err(|trouble| wrong(trouble.to_string()))?.files;
    let layout = |shape: Shape| match shape {
        Shape::Striped(stripes) => {
            Ok(Layout::new(stripes.targets.into_iter().map(TargetId).collect(), stripes.size))
        }
        Shape::Progressive(_) | Shape::Usual => {
            Err(wrong("the bytes of its write phases must be known".into()))
        }
    };
    files.into_iter().map(|file| layout(file.shape)).collect()
}

/// The machine as the placement policy sees it: the hop before the targets is their server, the hops before
/// that are routers.
fn describe(plan: &Scenario) -> Description {
    let mut seen = Description::default();
    let name = |group: usize, one: u64| format!("hop{group}-{one}");
    let mut index = 0;
    for (number, group) in plan.targets.iter().enumerate() {
        let before = |one: u32| {
            group
                .via
                .map(|via| (via, u64::from(one) * u64::from(plan.hops[via].count) / u64::from(group.count)))
        };
        for one in 0..group.count {
            let server = before(one).map_or(format!("group{number}"), |(via, at)| name(via, at));
            if !seen.servers.iter().any(|known| known.name == server) {
                seen.servers.push(Server { name: server.clone(), capacity: None });
            }
            let capacity = group.device.curve.best().1;
            seen.targets.push(Target {
                name: format!("target{index}"),
                server,
                index,
                capacity,
                free: None,
                state: State::Active,
            });
            index += 1;
        }
        let Some((via, to)) = group.via.and_then(|via| Some((via, plan.hops[via].to?))) else { continue };
        let (servers, routers) = (u64::from(plan.hops[via].count), u64::from(plan.hops[to].count));
        for router in 0..routers {
            let behind = (0..servers).filter(|server| server * routers / servers == router);
            let leads_to = behind
                .map(|server| name(via, server))
                .filter(|server| seen.servers.iter().any(|known| known.name == *server));
            let leads_to: Vec<String> = leads_to.collect();
            if !leads_to.is_empty() {
                seen.routers.push(Router {
                    name: name(to, router),
                    capacity: plan.hops[to].rate,
                    leads_to: Some(leads_to),
                });
            }
        }
    }
    seen
}
