//! Shares, compared with independent computations.

use forebay_model::{Job, ServerId};
use forebay_policy::share::{Policy, Presence, Rng, divide, outline, shares, transitions};

mod common;
use common::{job, random_jobs, random_policy, seed};

/// `policy | id user group nodes priority; … | share …`
fn check(line: &str) {
    let mut parts = line.split('|').map(str::trim);
    let policy: Policy = parts.next().expect("a policy").parse().expect("a good policy");
    let jobs: Vec<Job> = parts.next().expect("jobs").split(';').map(|words| job(words.trim())).collect();
    let wanted: Vec<f64> = parts
        .next()
        .expect("shares")
        .split_whitespace()
        .map(|word| match word.split_once('/') {
            Some((up, down)) => up.parse::<f64>().expect("a number") / down.parse::<f64>().expect("a number"),
            None => word.parse().expect("a number"),
        })
        .collect();
    let got = shares(&policy, &jobs);
    assert_eq!(got.len(), wanted.len(), "{line}");
    for (got, wanted) in got.iter().zip(&wanted) {
        assert!((got - wanted).abs() < 1e-12, "{line}: {got} instead of {wanted}");
    }
}

#[test]
fn shares_match_the_published_examples() {
    // Fig. 3 (a), and Figs 3 (b) and 4.
    check("job-fair | 1 a g 1 1; 2 b g 1 1 | 0.5 0.5");
    let two_and_four = "1 a g 1 1; 2 a g 1 1; 3 b g 1 1; 4 b g 1 1; 5 b g 1 1; 6 b g 1 1";
    check(&format!("user-then-job-fair | {two_and_four} | 0.25 0.25 0.125 0.125 0.125 0.125"));
    // Fig. 5, each server for itself.
    check("size-fair | 1 a g 16 1; 2 b g 8 1 | 2/3 1/3");
    // Fig. 8 (a), (b), (c).
    check("size-fair | 1 a g 4 1; 2 b g 1 1 | 0.8 0.2");
    check("job-fair | 1 a g 4 1; 2 b g 1 1 | 0.5 0.5");
    check("user-fair | 1 a g 2 1; 2 a g 2 1; 3 b g 1 1 | 0.25 0.25 0.5");
    // Fig. 9.
    check("user-then-size-fair | 1 a g 1 1; 2 a g 2 1; 3 b g 4 1; 4 b g 6 1 | 1/6 1/3 0.2 0.3");
    // Figs 10 and 11: one user in the first group, three in the second, one of them with 2 : 3 : 2 nodes.
    let tree = "1 u1 g1 1 1; 2 u1 g1 2 1; 3 u2 g2 2 1; 4 u2 g2 3 1; 5 u2 g2 2 1; 6 u3 g2 1 1; 7 u3 g2 3 1; 8 u4 g2 5 1";
    let wanted = "1/6 1/3 2/42 3/42 2/42 1/24 1/8 1/6";
    check(&format!("group-user-size-fair | {tree} | {wanted}"));
    check(&format!("group-user-then-size-fair | {tree} | {wanted}"));
}

#[test]
fn shares_of_other_policies_and_odd_jobs() {
    check("priority-fair | 1 a g 1 1; 2 b g 1 3 | 0.25 0.75");
    check("group-fair | 1 a g 1 1; 2 b g 1 1; 3 b h 1 1 | 0.25 0.25 0.5");
    check("group-then-user-fair | 1 a g 1 1; 2 b g 1 1; 3 b g 1 1; 4 b h 1 1 | 0.25 0.125 0.125 0.5");
    // One user in two groups is two users there.
    check("group-user-job-fair | 1 a g 1 1; 2 a h 1 1; 3 b h 1 1 | 0.5 0.25 0.25");
    // Zero counts as one, so no division by zero occurs.
    check("size-fair | 1 a g 0 1; 2 b g 1 1 | 0.5 0.5");
    check("priority-fair | 1 a g 1 0; 2 b g 1 0 | 0.5 0.5");
    check("size-fair | 1 a g 4294967295 1; 2 b g 1 1 | 4294967295/4294967296 1/4294967296");
    // `fifo` defines no shares; the dry run shows jobs as equals.
    check("fifo | 1 a g 9 9; 2 b h 1 1 | 0.5 0.5");
    assert!(shares(&"size-fair".parse().expect("a policy"), &[]).is_empty());
    let nameless = Job { user: String::new(), group: String::new(), ..job("1 a g 1 1") };
    assert_eq!(
        shares(&"group-user-fair".parse().expect("a policy"), &[nameless.clone(), nameless]),
        [0.5, 0.5]
    );
}

/// The share of one job, directly from the definition: descend, and at each level divide by the number of
/// siblings.
fn by_counting(policy: &Policy, jobs: &[Job], me: &Job) -> f64 {
    let mut share = 1.0;
    let mut peers: Vec<&Job> = jobs.iter().collect();
    let mut leaf = "job";
    for level in policy.levels() {
        let key: fn(&Job) -> &str = match level.word() {
            "group" => |job| &job.group,
            "user" => |job| &job.user,
            word => {
                leaf = word;
                continue;
            }
        };
        let mut names: Vec<&str> = peers.iter().map(|job| key(job)).collect();
        names.sort_unstable();
        names.dedup();
        share /= names.len() as f64;
        peers.retain(|job| key(job) == key(me));
    }
    let weight = |job: &Job| match leaf {
        "size" => u64::from(job.nodes.max(1)),
        "priority" => u64::from(job.priority.max(1)),
        _ => 1,
    };
    share * weight(me) as f64 / peers.iter().map(|job| weight(job)).sum::<u64>() as f64
}

#[test]
fn random_hierarchies_equal_an_independent_computation() {
    let seed = seed(101);
    let mut rng = Rng::new(seed);
    for round in 0..5_000 {
        let policy = random_policy(&mut rng);
        let count = 1 + rng.below(40) as usize;
        let jobs = random_jobs(&mut rng, count);
        let got = shares(&policy, &jobs);
        assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        for (job, got) in jobs.iter().zip(&got) {
            let wanted = by_counting(&policy, &jobs, job);
            assert!((got - wanted).abs() < 1e-12, "seed {seed} round {round} {policy}: {got} for {wanted}");
        }
    }
}

#[test]
fn random_dense_matrices_have_the_same_product() {
    let mut rng = Rng::new(seed(102));
    for _ in 0..500 {
        let policy = random_policy(&mut rng);
        let count = 1 + rng.below(30) as usize;
        let jobs = random_jobs(&mut rng, count);
        let mut product = vec![vec![1.0]];
        for matrix in transitions(&policy, &jobs) {
            let dense = matrix.dense();
            for row in &dense {
                assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12, "every row sums to one");
            }
            for column in 0..dense[0].len() {
                assert_eq!(dense.iter().filter(|row| row[column] != 0.0).count(), 1, "one entry a column");
            }
            product = product
                .iter()
                .map(|row: &Vec<f64>| {
                    (0..dense[0].len())
                        .map(|column| row.iter().zip(&dense).map(|(a, line)| a * line[column]).sum())
                        .collect()
                })
                .collect();
        }
        for (dense, factored) in product[0].iter().zip(shares(&policy, &jobs)) {
            assert!((dense - factored).abs() < 1e-12);
        }
    }
}

#[test]
fn outline_prints_shares_as_a_tree() {
    let policy: Policy = "user-size-fair".parse().expect("a policy");
    let jobs = [job("1 ada g 1 1"), job("2 bob g 4 1"), job("3 ada g 3 1")];
    let lines: Vec<String> = outline(&policy, &jobs)
        .iter()
        .map(|line| format!("{}{} {:.3}", " ".repeat(line.depth), line.name, line.share))
        .collect();
    assert_eq!(lines, ["user ada 0.500", " job 1 0.125", " job 3 0.375", "user bob 0.500", " job 2 0.500"]);
}

fn presence(words: &str, servers: &[u16]) -> Presence {
    Presence { job: job(words), servers: servers.iter().copied().map(ServerId).collect() }
}

#[test]
fn global_shares_hold_over_two_servers() {
    let equal = [(ServerId(1), 1.0), (ServerId(2), 1.0)];
    let size: Policy = "size-fair".parse().expect("a policy");
    // Fig. 5: 50/25/25.
    let fig5 = [presence("1 a g 16 1", &[1, 2]), presence("2 b g 8 1", &[1]), presence("3 c g 8 1", &[2])];
    let allotment = divide(&size, &equal, &fig5);
    let parts: Vec<f64> = allotment.jobs.iter().map(|(_, part)| *part).collect();
    for (got, wanted) in parts.iter().zip([0.5, 0.25, 0.25]) {
        assert!((got - wanted).abs() < 1e-12, "{parts:?}");
    }
    for list in allotment.servers.values() {
        assert!(list.iter().all(|(_, share)| (share - 0.5).abs() < 1e-9), "{list:?}");
    }
    // A on both, B on one: one server's worth each.
    let job_fair: Policy = "job-fair".parse().expect("a policy");
    let jobs = [presence("1 a g 1 1", &[1, 2]), presence("2 b g 1 1", &[1])];
    let allotment = divide(&job_fair, &equal, &jobs);
    assert!(allotment.jobs.iter().all(|(_, part)| (part - 0.5).abs() < 1e-12), "{allotment:?}");
    // Two jobs on both servers: half of each, not one server apiece.
    let jobs = [presence("1 a g 1 1", &[1, 2]), presence("2 b g 1 1", &[2, 1])];
    for list in divide(&job_fair, &equal, &jobs).servers.values() {
        assert!(list.iter().all(|(_, share)| (share - 0.5).abs() < 1e-12), "{list:?}");
    }
    // Unknown servers and jobs without servers are omitted.
    let jobs = [presence("1 a g 1 1", &[1, 9]), presence("2 b g 1 1", &[9]), presence("3 c g 1 1", &[])];
    let allotment = divide(&job_fair, &equal, &jobs);
    assert_eq!(allotment.jobs.len(), 1);
    assert!(divide(&job_fair, &equal, &[]).jobs.is_empty());
}

/// Weighted max-min totals by progressive filling over all subsets of jobs, in exact fractions: a set of jobs
/// can never get more than the capacity of its servers, so the tightest remaining set is fixed next.
fn by_subsets(capacity: &[u64], jobs: &[(u64, u32)]) -> Vec<(u128, u128)> {
    let touched = |set: u32| -> u32 {
        jobs.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).fold(0, |mask, (_, job)| mask | job.1)
    };
    let room =
        |mask: u32| -> u64 { (0..capacity.len()).filter(|s| mask >> s & 1 == 1).map(|s| capacity[s]).sum() };
    let everyone = (1_u32 << jobs.len()) - 1;
    let mut fixed = 0_u32;
    let mut totals = vec![(0, 1); jobs.len()];
    while fixed != everyone {
        let mut tightest: Option<(u128, u128, u32)> = None;
        for set in 1..=everyone {
            if set & fixed != 0 {
                continue;
            }
            // Fixed jobs use all capacity of their servers.
            let up = u128::from(room(touched(set) & !touched(fixed)));
            let down: u128 =
                (0..jobs.len()).filter(|i| set >> i & 1 == 1).map(|i| u128::from(jobs[i].0)).sum();
            if tightest.is_none_or(|(u, d, s)| {
                (up * d, s.count_ones()) < (u * down, set.count_ones()) || up * d < u * down
            }) {
                tightest = Some((up, down, set));
            }
        }
        let (up, down, set) = tightest.expect("a set that is not fixed");
        for (i, total) in totals.iter_mut().enumerate().filter(|(i, _)| set >> i & 1 == 1) {
            *total = (up * u128::from(jobs[i].0), down);
        }
        fixed |= set;
    }
    totals
}

#[test]
fn random_global_shares_equal_an_exact_reference() {
    let seed = seed(103);
    let mut rng = Rng::new(seed);
    let policy: Policy = "size-fair".parse().expect("a policy");
    for round in 0..3_000 {
        let servers = 1 + rng.below(4) as usize;
        let count = 1 + rng.below(7) as usize;
        let same = rng.below(2) == 0;
        let capacity: Vec<u64> = (0..servers).map(|_| if same { 1 } else { 1 + rng.below(5) }).collect();
        let jobs: Vec<(u64, u32)> =
            (0..count).map(|_| (1 + rng.below(16), 1 + rng.below((1 << servers) - 1) as u32)).collect();
        let named: Vec<(ServerId, f64)> =
            capacity.iter().enumerate().map(|(i, &c)| (ServerId(i as u16), c as f64)).collect();
        let present: Vec<Presence> = jobs
            .iter()
            .enumerate()
            .map(|(i, &(nodes, mask))| {
                let list: Vec<u16> = (0..servers as u16).filter(|s| mask >> s & 1 == 1).collect();
                presence(&format!("{i} u{i} g {nodes} 1"), &list)
            })
            .collect();
        let allotment = divide(&policy, &named, &present);
        let total: u64 = capacity.iter().sum();
        let story = format!("seed {seed} round {round}: {capacity:?} {jobs:?} {allotment:?}");
        for ((_, part), (up, down)) in allotment.jobs.iter().zip(by_subsets(&capacity, &jobs)) {
            let wanted = up as f64 / down as f64 / total as f64;
            assert!((part - wanted).abs() < 1e-9, "{part} for {wanted}, {story}");
        }
        for (server, list) in &allotment.servers {
            assert!(
                (list.iter().map(|(_, share)| share).sum::<f64>() - 1.0).abs() < 1e-9,
                "{server}: {story}"
            );
            assert!(list.iter().all(|(_, share)| *share >= 0.0), "{story}");
        }
        // The totals match the capacity that the servers grant.
        for (i, (id, part)) in allotment.jobs.iter().enumerate() {
            let given: f64 = allotment
                .servers
                .iter()
                .flat_map(|(server, list)| list.iter().map(move |entry| (server, entry)))
                .filter(|(_, (job, _))| job == id)
                .map(|(server, (_, share))| share * capacity[usize::from(server.0)] as f64)
                .sum();
            assert!((given / total as f64 - part).abs() < 1e-9, "job {i}: {story}");
        }
    }
}
