//! Random events on every scheduler: no request is lost, none is served twice, nothing panics.

use forebay_model::JobId;
use forebay_policy::share::{Cost, Discipline, MAX_JOBS, Next, Rate, Rng, Tick, Ticket};
use std::collections::HashMap;

mod common;
use common::{job, random_policy, seed};

fn random_cost(rng: &mut Rng) -> Cost {
    match rng.below(20) {
        0 => Cost(0),
        1 => Cost(u64::MAX >> rng.below(30)),
        _ => Cost(rng.below(4 << 20)),
    }
}

fn random_share(rng: &mut Rng) -> f64 {
    match rng.below(12) {
        0 => 0.0,
        1 => -1.0,
        2 => f64::NAN,
        3 => f64::INFINITY,
        4 => f64::MAX,
        5 => f64::MIN_POSITIVE,
        _ => rng.unit(),
    }
}

#[test]
fn random_events_lose_no_request_and_serve_none_twice() {
    let seed = seed(401);
    for (i, discipline) in Discipline::ALL.into_iter().enumerate() {
        let mut rng = Rng::new(seed + i as u64);
        let mut scheduler =
            discipline.scheduler(&random_policy(&mut rng), seed, Rate((1 << 24) + rng.below(1 << 32)));
        let mut waiting: HashMap<Ticket, (JobId, Cost)> = HashMap::new();
        let mut running: Vec<(JobId, Cost)> = Vec::new();
        let (mut now, mut tickets) = (Tick(0), 0);
        for step in 0..30_000 {
            let story = format!("{discipline}, seed {seed}, step {step}");
            now = now.after(Tick(rng.below(5_000_000)));
            let id = rng.below(40);
            match rng.below(16) {
                0 => {
                    let (user, group, nodes) = (rng.below(5), rng.below(3), rng.below(100));
                    scheduler.join(&job(&format!("{id} u{user} g{group} {nodes} {nodes}"))).expect(&story);
                }
                1 => scheduler.leave(JobId(id)),
                2 if rng.below(10) == 0 => scheduler.set_policy(&random_policy(&mut rng)),
                3 if rng.below(10) == 0 => {
                    let count = rng.below(30);
                    let shares: Vec<_> =
                        (0..count).map(|_| (JobId(rng.below(50)), random_share(&mut rng))).collect();
                    scheduler.assign(&shares);
                }
                4 if rng.below(200) == 0 => {
                    let all = scheduler.take_all();
                    assert_eq!(all.len(), waiting.len(), "{story}");
                    assert!(all.iter().all(|one| waiting[&one.ticket] == (one.job, one.cost)), "{story}");
                    all.iter().for_each(|one| scheduler.arrive(one.job, one.cost, one.ticket));
                }
                2..=8 => {
                    tickets += 1;
                    let cost = random_cost(&mut rng);
                    scheduler.arrive(JobId(id), cost, Ticket(tickets));
                    waiting.insert(Ticket(tickets), (JobId(id), cost));
                }
                9..=12 => match scheduler.next(now) {
                    Next::Turn(ticket) => running.push(waiting.remove(&ticket).expect(&story)),
                    Next::NotBefore(then) => assert!(then > now && !waiting.is_empty(), "{story}"),
                    Next::Idle => assert!(waiting.is_empty(), "{story}"),
                },
                _ if !running.is_empty() => {
                    let (job, asked) = running.swap_remove(rng.below(running.len() as u64) as usize);
                    let actual = [asked, Cost(0), random_cost(&mut rng)][rng.below(3) as usize];
                    scheduler.done(job, asked, actual);
                }
                _ => scheduler.done(JobId(id), Cost(5), Cost(7)),
            }
            assert_eq!(scheduler.waiting(), waiting.len(), "{story}");
        }
        // In the end all requests are served.
        for _ in 0..1_000_000 {
            match scheduler.next(now) {
                Next::Turn(ticket) => drop(waiting.remove(&ticket).expect("served once")),
                Next::NotBefore(then) => now = then.max(now.after(Tick::ms(100_000_000_000))),
                Next::Idle => break,
            }
        }
        assert!(waiting.is_empty(), "{discipline}, seed {seed}: {} requests are left", waiting.len());
    }
}

#[test]
fn full_job_table_refuses_jobs_and_still_serves() {
    let policy = "group-user-size-fair".parse().expect("a policy");
    for discipline in [Discipline::Stride, Discipline::Tokens, Discipline::Gift, Discipline::Tbf] {
        let mut scheduler = discipline.scheduler(&policy, 1, Rate(1 << 30));
        for i in 0..MAX_JOBS {
            scheduler.join(&job(&format!("{i} u{} g 1 1", i % 1_000))).expect("space for a job");
        }
        let one_more = job(&format!("{MAX_JOBS} u g 1 1"));
        let error = scheduler.join(&one_more).expect_err("table is full").to_string();
        assert!(error.contains("the most jobs it can schedule, 65536"), "{error}");
        scheduler.arrive(one_more.id(), Cost(1), Ticket(1));
        let next = match scheduler.next(Tick(0)) {
            Next::NotBefore(then) => scheduler.next(then),
            next => next,
        };
        assert_eq!(next, Next::Turn(Ticket(1)), "{discipline}: it shares with other unannounced jobs");
        scheduler.leave(JobId(7));
        scheduler.join(&one_more).expect("space after a leave");
    }
}
