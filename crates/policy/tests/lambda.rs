//! λ-delayed global fairness: two servers in virtual time that exchange their job tables every λ.

use forebay_model::{JobId, ServerId};
use forebay_policy::share::{Discipline, Peers, Policy, Rate, Rng, Table, Tick, divide};

mod common;
use common::{Load, World, seed};

const RATE: u64 = 400 << 20;
const SIZE: u64 = 64 << 10;

/// Servers that exchange tables every `lambda` until `end`, each with its own view of its peers.
struct Cluster {
    policy: Policy,
    lambda: Tick,
    servers: Vec<(World, Peers)>,
    version: u64,
}

impl Cluster {
    fn new(discipline: Discipline, name: &str, lambda: Tick, loads: &[Vec<Load>]) -> Cluster {
        let policy: Policy = name.parse().expect("a policy");
        let members = || (0..loads.len() as u16).map(ServerId);
        let servers = loads
            .iter()
            .enumerate()
            .map(|(i, loads)| {
                let scheduler = discipline.scheduler(&policy, seed(301) + i as u64, Rate(RATE));
                (World::new(scheduler, RATE, loads), Peers::new(members(), Tick(3 * lambda.0)))
            })
            .collect();
        Cluster { policy, lambda, servers, version: 0 }
    }

    fn run(&mut self, end: Tick) {
        let mut now = self.servers[0].0.now;
        while now < end {
            now = now.after(self.lambda).min(end);
            self.servers.iter_mut().for_each(|(world, _)| world.run(now));
            self.exchange(now);
        }
    }

    fn exchange(&mut self, now: Tick) {
        self.version += 1;
        let tables: Vec<Table> = self
            .servers
            .iter()
            .enumerate()
            .map(|(i, (world, _))| Table {
                server: ServerId(i as u16),
                version: self.version,
                capacity: 1.0,
                jobs: world.jobs(),
            })
            .collect();
        for (i, (world, peers)) in self.servers.iter_mut().enumerate() {
            for table in &tables {
                peers.offer(table.clone(), now).expect("a good table");
            }
            let allotment = divide(&self.policy, &peers.capacities(now), &peers.jobs(now));
            let own = allotment.servers.get(&ServerId(i as u16)).cloned().unwrap_or_default();
            world.scheduler.assign(&own);
        }
    }

    /// Jobs' parts of the total work of all servers.
    fn parts(&self, jobs: &[u64], from: Tick, to: Tick) -> Vec<f64> {
        let work: Vec<u64> = jobs
            .iter()
            .map(|&job| self.servers.iter().map(|(world, _)| world.work_of(JobId(job), from, to)).sum())
            .collect();
        let total: u64 = work.iter().sum();
        work.iter().map(|&work| work as f64 / total as f64).collect()
    }
}

fn check(parts: &[f64], wanted: &[f64], room: f64, story: &str) {
    for (part, wanted) in parts.iter().zip(wanted) {
        assert!((part - wanted).abs() <= room * wanted, "{story}: {parts:.4?} instead of {wanted}");
    }
}

fn fig5() -> Vec<Vec<Load>> {
    let load = |words| Load::new(words, SIZE).depth(32);
    vec![vec![load("1 a g 16 1"), load("2 b g 8 1")], vec![load("1 a g 16 1"), load("3 c g 8 1")]]
}

#[test]
fn two_servers_are_fair_by_the_second_interval() {
    for lambda in [10, 50, 200, 500] {
        let mut cluster = Cluster::new(Discipline::Stride, "size-fair", Tick::ms(lambda), &fig5());
        cluster.run(Tick::ms(5_000));
        let story = format!("λ = {lambda} ms");
        let unfair = cluster.parts(&[1, 2, 3], Tick(0), Tick::ms(lambda));
        assert!(unfair[0] > 0.6, "{story}: without exchange at first, {unfair:?}");
        // A window of one interval, or of enough intervals for a few hundred requests.
        let window = Tick::ms(lambda.max(50));
        let second = cluster.parts(&[1, 2, 3], Tick::ms(lambda), Tick::ms(lambda).after(window));
        check(&second, &[0.5, 0.25, 0.25], 0.02, &format!("{story}, second interval"));
        let steady = cluster.parts(&[1, 2, 3], Tick::ms(2 * lambda), Tick::ms(5_000));
        check(&steady, &[0.5, 0.25, 0.25], 0.01, &format!("{story}, steady"));
    }
}

#[test]
fn lottery_reaches_the_same_global_shares() {
    for lambda in [10, 50, 200, 500] {
        let mut cluster = Cluster::new(Discipline::Tokens, "size-fair", Tick::ms(lambda), &fig5());
        cluster.run(Tick::ms(120_000));
        let steady = cluster.parts(&[1, 2, 3], Tick::ms(2 * lambda), Tick::ms(120_000));
        check(&steady, &[0.5, 0.25, 0.25], 0.02, &format!("λ = {lambda} ms"));
    }
}

#[test]
fn job_on_two_servers_yields_one_to_a_job_with_only_that() {
    let load = |words| Load::new(words, SIZE).depth(32);
    let loads = vec![vec![load("1 a g 1 1"), load("2 b g 1 1")], vec![load("1 a g 1 1")]];
    let mut cluster = Cluster::new(Discipline::Stride, "job-fair", Tick::ms(100), &loads);
    cluster.run(Tick::ms(10_000));
    check(
        &cluster.parts(&[1, 2], Tick::ms(200), Tick::ms(10_000)),
        &[0.5, 0.5],
        0.01,
        "one server's worth each",
    );
}

#[test]
fn join_and_leave_are_fair_within_two_intervals() {
    let load = |words| Load::new(words, SIZE).depth(32);
    let loads = vec![
        vec![load("1 a g 16 1"), load("2 b g 8 1")],
        vec![load("1 a g 16 1"), load("3 c g 8 1").during(3_050, 6_050)],
    ];
    for lambda in [50, 200, 500] {
        let mut cluster = Cluster::new(Discipline::Stride, "size-fair", Tick::ms(lambda), &loads);
        cluster.run(Tick::ms(9_000));
        let parts = |from: u64, to: u64| cluster.parts(&[1, 2, 3], Tick::ms(from), Tick::ms(to));
        let story = format!("λ = {lambda} ms");
        // Two thirds of two servers for the first job: the whole second server and a third of the first.
        check(&parts(2 * lambda, 3_000), &[2.0 / 3.0, 1.0 / 3.0, 0.0], 0.01, &story);
        check(&parts(3_050 + 2 * lambda, 6_000), &[0.5, 0.25, 0.25], 0.01, &story);
        let after = parts(6_060 + 2 * lambda, 9_000);
        check(&after[..2], &[2.0 / 3.0, 1.0 / 3.0], 0.01, &story);
    }
}

#[test]
fn random_job_tables_never_break_a_server() {
    let seed = seed(302);
    let mut rng = Rng::new(seed);
    let mut peers = Peers::new((0..4).map(ServerId), Tick::ms(1_000));
    let policy: Policy = "group-user-size-fair".parse().expect("a policy");
    let mut taken = 0;
    for round in 0..2_000 {
        let now = Tick::ms(round * 10);
        let count = rng.below(20) as usize;
        let jobs = (0..count)
            .map(|_| {
                let nodes = [0, 1, 7, 1 << 20, u32::MAX][(rng.below(40) as usize).min(4)];
                let mut job =
                    common::job(&format!("{} u{} g{} 1 1", rng.below(500), rng.below(4), rng.below(3)));
                job.nodes = if nodes == u32::MAX && rng.below(20) > 0 { 3 } else { nodes };
                job
            })
            .collect();
        let capacity = [1.0, 2.5, 0.0, -3.0, f64::NAN, f64::INFINITY, 1e300][(rng.below(60) as usize).min(6)];
        let capacity = if capacity == 1e300 && rng.below(10) > 0 { 1.0 } else { capacity };
        let table =
            Table { server: ServerId(rng.below(5) as u16), version: rng.below(round + 2), capacity, jobs };
        taken += u32::from(peers.offer(table, now).is_ok());
        let allotment = divide(&policy, &peers.capacities(now), &peers.jobs(now));
        for (server, list) in &allotment.servers {
            let sum: f64 = list.iter().map(|(_, share)| share).sum();
            assert!((sum - 1.0).abs() < 1e-9, "seed {seed} round {round}: server {server} gives {sum}");
        }
    }
    assert!(taken > 50, "seed {seed}: some tables are good, {taken}");
}
