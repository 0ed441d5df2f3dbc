//! Turns global shares into shares of every server.

use super::super::matrix::shares;
use super::super::policy::Policy;
use super::flow::Flow;
use super::table::Presence;
use forebay_model::{Job, JobId, ServerId};
use std::collections::{BTreeMap, HashMap};

/// Shares of all jobs on all servers.
#[derive(Clone, PartialEq, Debug)]
pub struct Allotment {
    /// Every job's part of the total capacity, in the given order.
    pub jobs: Vec<(JobId, f64)>,
    /// For every server with jobs, its jobs' parts of it; they sum to one.
    pub servers: BTreeMap<ServerId, Vec<(JobId, f64)>>,
}

/// Divides servers between jobs so that the jobs' totals follow the policy as closely as possible.
///
/// A job's *level* is its total over all its servers divided by its share under the policy. Levels are
/// max-min fair: raising one job's level would lower the level of a job that is no higher. The global shares
/// hold where they can. A job with too few servers for its share gets all capacity that is available to it,
/// and the other jobs divide the rest.
///
/// Every server is then split as evenly as those totals allow, so that no single server holds up a job with
/// files on several. The result omits servers that are not in `capacities`, and jobs that are on none of
/// these.
#[must_use]
pub fn divide(policy: &Policy, capacities: &[(ServerId, f64)], jobs: &[Presence]) -> Allotment {
    let number: HashMap<ServerId, usize> =
        capacities.iter().enumerate().map(|(i, (server, _))| (*server, i)).collect();
    let present: Vec<(&Presence, Vec<usize>)> = jobs
        .iter()
        .filter_map(|presence| {
            let mut list: Vec<usize> =
                presence.servers.iter().filter_map(|server| number.get(server).copied()).collect();
            list.sort_unstable();
            list.dedup();
            (!list.is_empty()).then_some((presence, list))
        })
        .collect();
    let described: Vec<Job> = present.iter().map(|(presence, _)| presence.job.clone()).collect();
    let weights = shares(policy, &described);
    // Jobs with the same servers have the same level, so one class represents all of them.
    let mut classes: BTreeMap<&[usize], (f64, Vec<usize>)> = BTreeMap::new();
    for (i, (_, list)) in present.iter().enumerate() {
        let class = classes.entry(list).or_default();
        class.0 += weights[i];
        class.1.push(i);
    }
    let capacity: Vec<f64> = capacities.iter().map(|(_, capacity)| *capacity).collect();
    let total: f64 = capacity.iter().sum();
    let demands: Vec<Class> =
        classes.iter().map(|(list, (weight, _))| Class { weight: *weight, servers: list.to_vec() }).collect();
    let amounts = fill(&capacity, &demands);
    let mut parts = vec![0.0; present.len()];
    let mut servers: BTreeMap<ServerId, Vec<(JobId, f64)>> = BTreeMap::new();
    for (((list, (weight, members)), _), amounts) in classes.iter().zip(&demands).zip(&amounts) {
        for &i in members {
            let own = weights[i] / weight;
            for (&server, amount) in list.iter().zip(amounts) {
                parts[i] += own * amount / total;
                let share = own * amount / capacity[server];
                servers.entry(capacities[server].0).or_default().push((present[i].0.job.id(), share));
            }
        }
    }
    for list in servers.values_mut() {
        list.sort_by_key(|(job, _)| *job);
    }
    let jobs = present.iter().zip(parts).map(|((presence, _), part)| (presence.job.id(), part)).collect();
    Allotment { jobs, servers }
}

/// Jobs with the same servers.
#[derive(Clone, Debug)]
struct Class {
    weight: f64,
    servers: Vec<usize>,
}

/// Amounts that every class gets from each of its servers.
///
/// Water-filling by decomposition: if all classes could have one level, they would fill all their servers. A
/// maximum flow decides whether they can. If not, the classes that the flow leaves stuck have too few
/// servers: they and their servers form one subproblem, the remaining classes and servers another, and the
/// two are independent.
fn fill(capacity: &[f64], classes: &[Class]) -> Vec<Vec<f64>> {
    let mut amounts: Vec<Vec<f64>> = classes.iter().map(|class| vec![0.0; class.servers.len()]).collect();
    let mut problems = vec![((0..classes.len()).collect::<Vec<usize>>(), vec![true; capacity.len()])];
    while let Some((members, open)) = problems.pop() {
        if members.is_empty() {
            continue;
        }
        let problem = Problem::new(capacity, classes, &members, &open);
        let mut flow = Flow::new(&problem.supply, &problem.room, &problem.edges);
        flow.run();
        let stuck = flow.stuck();
        let split = stuck.contains(&true) && stuck.contains(&false);
        if !split {
            let balanced = problem.balance(classes, &members);
            for (i, &member) in members.iter().enumerate() {
                for (&place, amount) in problem.places[i].iter().zip(&balanced[i]) {
                    amounts[member][place] = *amount;
                }
            }
            continue;
        }
        let mut theirs = vec![false; capacity.len()];
        let (mut poor, mut rich) = (Vec::new(), Vec::new());
        for (&member, stuck) in members.iter().zip(stuck) {
            if stuck {
                poor.push(member);
                classes[member].servers.iter().for_each(|&server| theirs[server] = open[server]);
            } else {
                rich.push(member);
            }
        }
        let others = open.iter().zip(&theirs).map(|(open, theirs)| *open && !theirs).collect();
        problems.push((poor, theirs));
        problems.push((rich, others));
    }
    amounts
}

/// Some classes and the servers they may use, all at one level.
struct Problem {
    supply: Vec<f64>,
    room: Vec<f64>,
    /// Per class: its open servers, as indices of this problem, and their positions in the class's own list.
    edges: Vec<Vec<usize>>,
    places: Vec<Vec<usize>>,
}

impl Problem {
    fn new(capacity: &[f64], classes: &[Class], members: &[usize], open: &[bool]) -> Problem {
        let mut number: HashMap<usize, usize> = HashMap::new();
        let (mut room, mut edges, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for &member in members {
            let (mut list, mut place) = (Vec::new(), Vec::new());
            for (at, &server) in
                classes[member].servers.iter().enumerate().filter(|(_, server)| open[**server])
            {
                list.push(*number.entry(server).or_insert_with(|| {
                    room.push(capacity[server]);
                    room.len() - 1
                }));
                place.push(at);
            }
            edges.push(list);
            places.push(place);
        }
        let weight: f64 = members.iter().map(|&member| classes[member].weight).sum();
        let total: f64 = room.iter().sum();
        let supply = members.iter().map(|&member| classes[member].weight / weight * total).collect();
        Problem { supply, room, edges, places }
    }

    /// The flow that sends all supply and splits each server as evenly by weight as possible: scales rows and
    /// columns alternately towards their sums, then routes the remainder as a flow.
    fn balance(&self, classes: &[Class], members: &[usize]) -> Vec<Vec<f64>> {
        const ROUNDS: usize = 64;
        let mut amounts: Vec<Vec<f64>> = members
            .iter()
            .zip(&self.edges)
            .map(|(&member, list)| vec![classes[member].weight.max(f64::MIN_POSITIVE); list.len()])
            .collect();
        for _ in 0..ROUNDS {
            self.scale_rows(&mut amounts, false);
            if self.scale_columns(&mut amounts, false) < 1e-12 {
                break;
            }
        }
        self.scale_rows(&mut amounts, true);
        self.scale_columns(&mut amounts, true);
        let mut flow = Flow::new(&self.supply, &self.room, &self.edges);
        flow.preload(&amounts);
        flow.run();
        debug_assert!(flow.unsent().iter().sum::<f64>() <= 1e-9 * self.room.iter().sum::<f64>());
        flow.amounts()
    }

    /// Scales each class's row to its supply; with `down`, only downwards.
    fn scale_rows(&self, amounts: &mut [Vec<f64>], down: bool) {
        for (list, supply) in amounts.iter_mut().zip(&self.supply) {
            let factor = supply / list.iter().sum::<f64>();
            if !down || factor < 1.0 {
                list.iter_mut().for_each(|amount| *amount *= factor);
            }
        }
    }

    /// Scales each server's column to its capacity. Returns the largest change.
    fn scale_columns(&self, amounts: &mut [Vec<f64>], down: bool) -> f64 {
        let mut sums = vec![0.0; self.room.len()];
        for (list, edges) in amounts.iter().zip(&self.edges) {
            list.iter().zip(edges).for_each(|(amount, &server)| sums[server] += amount);
        }
        let mut largest = 0.0_f64;
        for (list, edges) in amounts.iter_mut().zip(&self.edges) {
            for (amount, &server) in list.iter_mut().zip(edges) {
                let factor = self.room[server] / sums[server];
                if !down || factor < 1.0 {
                    *amount *= factor;
                    largest = largest.max((factor - 1.0).abs());
                }
            }
        }
        largest
    }
}
