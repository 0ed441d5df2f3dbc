//! Placement on random topologies, compared with independent computations on the same description.

use forebay_policy::Tick;
use forebay_policy::place::{
    Client, Description, FilePlan, HALF_LIFE, Job, Ledger, Limits, Part, Pattern, Plan, Router, Routers,
    Server, Shape, State, Stripes, Target, Topology, Trouble, Weights, Writer, imbalance, place,
};
use forebay_testkit::{Rng, Seeded, rounds};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn router(name: &str, leads_to: Option<&[&str]>) -> Router {
    let leads_to = leads_to.map(|names| names.iter().map(|&name| name.to_owned()).collect());
    Router { name: name.to_owned(), capacity: 1.0, leads_to }
}

fn server(name: &str) -> Server {
    Server { name: name.to_owned(), capacity: None }
}

fn target(index: u32, server: &str) -> Target {
    Target {
        name: format!("t{index}"),
        server: server.to_owned(),
        index,
        capacity: 1.0,
        free: None,
        state: State::Active,
    }
}

fn client(name: &str, routers: Routers) -> Client {
    Client { name: name.to_owned(), routers }
}

/// Two servers with two targets each, each reached through its own router; a client near each router.
fn two_sides() -> Description {
    Description {
        routers: vec![router("r0", Some(&["s0"])), router("r1", Some(&["s1"]))],
        servers: vec![server("s0"), server("s1")],
        targets: (0..4).map(|i| target(i, if i < 2 { "s0" } else { "s1" })).collect(),
        clients: vec![
            client("left", Routers::Near(vec![("r0".into(), 0)])),
            client("right", Routers::Near(vec![("r1".into(), 0)])),
            client("both", Routers::Any),
        ],
    }
}

fn job<'a>(writers: &'a [Writer], pattern: Pattern) -> Job<'a> {
    let limits = &Limits::LUSTRE;
    Job { writers, pattern, file_size: None, stripe_count: None, stripe_size: None, limits }
}

fn writers(count: usize, client: Option<u32>, bytes: Option<u64>) -> Vec<Writer> {
    vec![Writer { client, bytes }; count]
}

fn stripes(file: &FilePlan) -> &Stripes {
    match &file.shape {
        Shape::Striped(stripes) => stripes,
        other => panic!("not striped: {other:?}"),
    }
}

fn fresh(description: &Description, weights: Weights, job: u64) -> Ledger {
    Ledger::new(Arc::new(Topology::new(description.clone()).expect("valid topology")), weights, job)
}

#[test]
fn clients_use_reachable_targets_and_share_common_ones() {
    let description = two_sides();
    let mut ledger = fresh(&description, Weights::default(), 1);
    // Files of clients that reach all targets move away for clients that do not.
    let all = [writers(4, Some(2), Some(MIB)), writers(8, Some(0), Some(MIB))].concat();
    let plan = place(&mut ledger, &job(&all, Pattern::PerProcess)).expect("placement fits");
    assert_eq!(plan.load.target, [4, 4, 2, 2]);
    assert_eq!(plan.load.server, [8, 4]);
    assert_eq!(plan.load.router, [8, 4]);
    assert!((imbalance(&plan.load.target, &[1.0; 4]) - 1.0 / 3.0).abs() < 1e-12);
}

#[test]
fn jobs_start_on_different_targets_deterministically() {
    let topology = Arc::new(Topology::flat(64));
    let first = |job_number| {
        let mut ledger = Ledger::new(topology.clone(), Weights::default(), job_number);
        let plan = place(&mut ledger, &job(&writers(8, None, None), Pattern::PerProcess)).expect("room");
        plan.files.iter().map(|file| stripes(file).targets[0]).collect::<Vec<u32>>()
    };
    let starts: BTreeSet<Vec<u32>> = (0..100).map(first).collect();
    assert!(starts.len() > 95, "of a hundred jobs {} differ", starts.len());
    assert_eq!(first(7), first(7));
}

#[test]
fn past_load_decays() {
    let mut ledger = fresh(&two_sides(), Weights::default(), 3);
    place(&mut ledger, &job(&writers(1, Some(0), Some(64 * MIB)), Pattern::PerProcess)).expect("room");
    let used = (0..2)
        .find(|&target| ledger.cost(&[0], target) > ledger.cost(&[0], 1 - target))
        .expect("one is used");
    let before = ledger.cost(&[0], used);
    ledger.advance(Tick(HALF_LIFE.0));
    let after = ledger.cost(&[0], used);
    assert!((after - before / 2.0).abs() < 1e-9 * before, "{before} became {after}");
}

#[test]
fn shared_file_has_a_stripe_for_each_writer() {
    let description = two_sides();
    // writers, bytes, limits → targets, stripe size
    for (count, bytes, count_of_stripes, size) in
        [(4, 4 * MIB, 4, MIB), (2, 5 * MIB, 2, 40 * 65_536), (6, 6 * MIB, 3, 2 * MIB), (1, 1, 1, 65_536)]
    {
        let mut ledger = fresh(&description, Weights::default(), 5);
        let all = writers(count, Some(2), None);
        let asked = Job { file_size: Some(bytes), ..job(&all, Pattern::Shared) };
        let plan = place(&mut ledger, &asked).expect("placement fits");
        let found = stripes(&plan.files[0]);
        assert_eq!(
            (found.targets.len(), found.size),
            (count_of_stripes, size),
            "{count} writers, {bytes} bytes"
        );
    }
}

#[test]
fn stripes_move_for_writers_that_reach_fewer_targets() {
    // For some jobs the first stripes would take targets that only later stripes reach.
    for number in 0..50 {
        let mut ledger = fresh(&two_sides(), Weights::default(), number);
        let all = [writers(2, Some(2), Some(MIB)), writers(2, Some(0), Some(MIB))].concat();
        let plan = place(&mut ledger, &job(&all, Pattern::Shared)).expect("placement fits");
        let found = stripes(&plan.files[0]);
        assert_eq!((found.targets.len(), found.size), (4, MIB), "job {number}");
        assert!(found.targets[2..].iter().all(|&target| target < 2), "job {number}: {found:?}");
        assert_eq!(plan.load.target, [1; 4], "job {number}");
        assert_eq!(plan.load.router, [2; 2], "job {number}");
    }
}

#[test]
fn file_of_unknown_size_grows_over_more_targets() {
    let topology = Arc::new(Topology::flat(32));
    let all = writers(16, None, None);
    let mut ledger = Ledger::new(topology.clone(), Weights::default(), 5);
    let plan = place(&mut ledger, &job(&all, Pattern::Shared)).expect("placement fits");
    let Shape::Progressive(parts) = &plan.files[0].shape else { panic!("{plan:?}") };
    let widths: Vec<usize> = parts.iter().map(|part| part.stripes.targets.len()).collect();
    assert_eq!(widths, [1, 4, 16]);
    assert_eq!(parts.last().expect("parts").end, None);
    let plain = Job { limits: &Limits::STRIPES, ..job(&all, Pattern::Shared) };
    let plan = place(&mut ledger, &plain).expect("placement fits");
    assert_eq!((&plan.files[0].shape, plan.notes.len()), (&Shape::Usual, 1));
    let asked = Job { stripe_count: Some(3), stripe_size: Some(100_000), ..job(&all, Pattern::Shared) };
    let plan = place(&mut ledger, &asked).expect("placement fits");
    assert_eq!((stripes(&plan.files[0]).targets.len(), stripes(&plan.files[0]).size), (3, 131_072));
}

#[test]
fn impossible_placement_is_refused_and_not_charged() {
    let mut description = two_sides();
    description.targets[0].state = State::Inactive;
    description.targets[1].free = Some(3 * MIB);
    let mut ledger = fresh(&description, Weights::default(), 1);
    let none = Trouble::NoTarget { writer: 3, bytes: MIB };
    assert_eq!(place(&mut ledger, &job(&writers(4, Some(0), Some(MIB)), Pattern::PerProcess)), Err(none));
    // The failed attempt left no charge: three files fit.
    let plan = place(&mut ledger, &job(&writers(3, Some(0), Some(MIB)), Pattern::PerProcess));
    assert_eq!(plan.expect("three fit").load.target, [0, 3, 0, 0]);
    assert_eq!(place(&mut ledger, &job(&[], Pattern::Shared)), Err(Trouble::Writers(0)));
    let all = writers(4, Some(2), Some(MIB));
    let wide = Job { stripe_count: Some(2001), ..job(&all, Pattern::Shared) };
    let trouble = place(&mut ledger, &wide).expect_err("too wide");
    assert_eq!(trouble, Trouble::TooWide { wanted: 2001, most: 2000 });
    assert!(trouble.to_string().contains("more than the back end allows"), "{trouble}");
}

#[test]
fn invalid_topology_descriptions_are_refused() {
    type Spoil = fn(&mut Description);
    let cases: [(Spoil, Part, &str, &str); 9] = [
        (|d| d.routers[0].leads_to = Some(vec!["s9".into()]), Part::Router(0), "leads_to", "\"s9\""),
        (
            |d| {
                d.routers[0].leads_to = Some(vec!["r1".into()]);
                d.routers[1].leads_to = Some(vec!["r0".into()]);
            },
            Part::Router(0),
            "leads_to",
            "in a circle: r0 → r1 → r0",
        ),
        (|d| d.targets[3].server = "s7".into(), Part::Target(3), "server", "no server \"s7\""),
        (|d| d.targets[3].index = 1, Part::Target(3), "index", "\"t1\" already has the index 1"),
        (|d| d.targets[2].name = "t1".into(), Part::Target(2), "name", "\"t1\" occurs twice"),
        (|d| d.clients[1].routers = Routers::Preferred("r5".into()), Part::Client(1), "router", "\"r5\""),
        (|d| d.servers[1].capacity = Some(0.0), Part::Server(1), "capacity", "0 is not a capacity"),
        (|d| d.routers[1].name = "s0".into(), Part::Router(1), "name", "a router and a server"),
        (|d| d.targets.clear(), Part::Whole, "target", "no targets"),
    ];
    for (spoil, part, key, says) in cases {
        let mut description = two_sides();
        spoil(&mut description);
        let flaw = Topology::new(description).expect_err(says);
        assert_eq!((flaw.part, flaw.key), (part, key), "{flaw}");
        assert!(flaw.what.contains(says), "{flaw}");
    }
}

/// A random file system, and whether its targets are equal with enough space for all files.
fn random_description(rng: &mut Rng) -> (Description, bool) {
    let servers = 1 + rng.index(6);
    let even = !rng.one_in(3);
    let mut targets = Vec::new();
    for server in 0..servers {
        for _ in 0..=rng.index(5) {
            let mut one = target(targets.len() as u32, &format!("s{server}"));
            if !even {
                one.capacity = 1.0 + rng.below(4) as f64;
                one.free = (!rng.one_in(3)).then(|| rng.below(40) * MIB);
            }
            if rng.one_in(8) && !targets.is_empty() {
                one.state = *rng.pick(&[State::Inactive, State::Excluded]);
            }
            targets.push(one);
        }
    }
    let routers = rng.index(6);
    let routers: Vec<Router> = (0..routers)
        .map(|number| {
            let mut to: Vec<String> =
                (0..servers).filter(|_| rng.one_in(2)).map(|i| format!("s{i}")).collect();
            to.extend((number + 1..routers).filter(|_| rng.one_in(4)).map(|i| format!("r{i}")));
            let leads_to = (!rng.one_in(3)).then_some(to);
            let capacity = if even { 1.0 } else { 1.0 + rng.below(3) as f64 };
            Router { name: format!("r{number}"), capacity, leads_to }
        })
        .collect();
    let clients = (0..1 + rng.index(5))
        .map(|number| {
            let name = |rng: &mut Rng| format!("r{}", rng.index(routers.len()));
            let near = match rng.below(3) {
                1 if !routers.is_empty() => Routers::Preferred(name(rng)),
                2 if !routers.is_empty() => {
                    Routers::Near((0..1 + rng.index(3)).map(|_| (name(rng), rng.below(3) as u32)).collect())
                }
                _ => Routers::Any,
            };
            client(&format!("c{number}"), near)
        })
        .collect();
    let servers = (0..servers).map(|number| server(&format!("s{number}"))).collect();
    (Description { routers, servers, targets, clients }, even)
}

/// The servers that a router leads to, found by a walk.
fn servers_of(description: &Description, router: &str, into: &mut BTreeSet<String>) {
    let Some(found) = description.routers.iter().find(|one| one.name == router) else {
        into.insert(router.to_owned());
        return;
    };
    match &found.leads_to {
        None => into.extend(description.servers.iter().map(|server| server.name.clone())),
        Some(next) => next.iter().for_each(|next| servers_of(description, next, into)),
    }
}

/// The targets that a client may use.
fn usable(description: &Description, client: &Client) -> BTreeSet<usize> {
    let mut servers = BTreeSet::new();
    let all = || description.routers.iter().map(|router| &router.name);
    match &client.routers {
        _ if description.routers.is_empty() => {
            servers.extend(description.servers.iter().map(|server| server.name.clone()));
        }
        Routers::Any | Routers::Preferred(_) => {
            all().for_each(|name| servers_of(description, name, &mut servers));
        }
        Routers::Near(near) => near.iter().for_each(|(name, _)| servers_of(description, name, &mut servers)),
    }
    let targets = description.targets.iter().enumerate();
    let may = targets.filter(|(_, target)| target.state == State::Active && servers.contains(&target.server));
    may.map(|(number, _)| number).collect()
}

/// The least possible maximum number of files per target, by matching writers to places one at a time.
fn least_height(reach: &[BTreeSet<usize>], targets: usize) -> usize {
    (1..)
        .find(|&height| matched(reach, targets, height))
        .expect("one place each is enough for all at some height")
}

fn matched(reach: &[BTreeSet<usize>], targets: usize, height: usize) -> bool {
    fn augment(
        writer: usize,
        reach: &[BTreeSet<usize>],
        at: &mut Vec<Vec<usize>>,
        height: usize,
        seen: &mut BTreeSet<usize>,
    ) -> bool {
        for &target in &reach[writer] {
            if !seen.insert(target) {
                continue;
            }
            if at[target].len() < height {
                at[target].push(writer);
                return true;
            }
            for place in 0..height {
                if augment(at[target][place], reach, at, height, seen) {
                    at[target][place] = writer;
                    return true;
                }
            }
        }
        false
    }
    let mut at = vec![Vec::new(); targets];
    (0..reach.len()).all(|writer| augment(writer, reach, &mut at, height, &mut BTreeSet::new()))
}

/// Σ wᵢ·Rᵢ from the description and the counted load, with files of one MiB.
fn expected_cost(
    description: &Description,
    weights: Weights,
    plan: &Plan,
    routers: &[u32],
    target: usize,
) -> f64 {
    let relative = |load: u64, capacity: f64, all: f64| load as f64 / (capacity / all);
    let sum = |all: &[f64]| all.iter().sum::<f64>();
    let active = |target: &&Target| target.state == State::Active;
    let takes = |target: &Target| if active(&target) { target.capacity } else { 0.0 };
    let targets: Vec<f64> = description.targets.iter().map(takes).collect();
    let of = |name: &str| description.targets.iter().filter(|target| target.server == name).map(takes).sum();
    let servers: Vec<f64> = description.servers.iter().map(|server| of(&server.name)).collect();
    let ways: Vec<f64> = description.routers.iter().map(|router| router.capacity).collect();
    let name = &description.targets[target].server;
    let server = description.servers.iter().position(|server| server.name == *name).expect("a server");
    let busiest = routers
        .iter()
        .map(|&router| relative(plan.load.router[router as usize], ways[router as usize], sum(&ways)));
    let room: Option<Vec<f64>> =
        description.targets.iter().map(|target| target.free.map(|free| free as f64)).collect();
    let room = room.unwrap_or_else(|| targets.clone());
    weights.router * busiest.fold(0.0, f64::max)
        + weights.server * relative(plan.load.server[server], servers[server], sum(&servers))
        + weights.target * relative(plan.load.target[target], targets[target], sum(&targets))
        + weights.space * relative(plan.load.target[target], room[target], sum(&room))
}

/// Checks a plan against the description.
fn check_files(description: &Description, all: &[Writer], plan: &Plan, asked: &Job<'_>, context: &str) {
    let reach: Vec<BTreeSet<usize>> =
        description.clients.iter().map(|client| usable(description, client)).collect();
    let mut filled: BTreeMap<u32, u64> = BTreeMap::new();
    let mut next = 0;
    for file in &plan.files {
        assert_eq!(file.writers.start, next, "{context}: every writer has one file");
        next = file.writers.end;
        let found = stripes(file);
        let bytes: u64 = all[file.writers.clone()].iter().map(|writer| writer.bytes.expect("known")).sum();
        let count = found.targets.len();
        let different: BTreeSet<&u32> = found.targets.iter().collect();
        assert_eq!(different.len(), count, "{context}: a target twice: {file:?}");
        assert_eq!(found.size % asked.limits.unit, 0, "{context}");
        assert!(
            asked.pattern == Pattern::PerProcess || count as u64 * found.size >= bytes,
            "{context}: {file:?}"
        );
        let together = file.writers.len().div_ceil(count);
        for (stripe, &target) in found.targets.iter().enumerate() {
            *filled.entry(target).or_default() += bytes.div_ceil(count as u64);
            for writer in (file.writers.start + stripe * together..file.writers.end).take(together) {
                let client = all[writer].client.expect("described") as usize;
                assert!(
                    reach[client].contains(&(target as usize)),
                    "{context}: {target} for writer {writer}"
                );
            }
        }
    }
    assert_eq!(next, all.len(), "{context}");
    for (target, bytes) in filled {
        let free = description.targets[target as usize].free.unwrap_or(u64::MAX);
        assert!(bytes <= free, "{context}: target {target} has too little space for {bytes} bytes");
    }
}

#[test]
fn random_topologies_are_used_evenly() {
    let seeded = Seeded::new();
    let (mut placed, mut perfect) = (0, 0);
    for round in rounds(4000) {
        let mut rng = seeded.rng(round);
        let (description, even) = random_description(&mut rng);
        let count = 1 + rng.index(40);
        let clients = description.clients.len() as u64;
        let all: Vec<Writer> = (0..count)
            .map(|_| Writer { client: Some(rng.below(clients) as u32), bytes: Some(MIB) })
            .collect();
        let pattern =
            *rng.pick(&[Pattern::PerProcess, Pattern::PerProcess, Pattern::Shared, Pattern::Grouped(3)]);
        let asked = job(&all, pattern);
        let context = format!("round {round}: {pattern:?}");
        let weights = *rng.pick(&[
            Weights::default(),
            Weights { router: 0.1, server: 0.1, target: 0.8, space: 0.0 },
            Weights { router: 0.2, server: 0.2, target: 0.2, space: 0.4 },
        ]);
        let number = rng.next();
        let mut ledger = fresh(&description, weights, number);
        let reach: Vec<BTreeSet<usize>> =
            description.clients.iter().map(|one| usable(&description, one)).collect();
        let of: Vec<BTreeSet<usize>> =
            all.iter().map(|w| reach[w.client.expect("one") as usize].clone()).collect();
        let plan = match place(&mut ledger, &asked) {
            Ok(plan) => plan,
            Err(trouble) => {
                let unreachable = of.iter().any(BTreeSet::is_empty);
                let apart = pattern != Pattern::PerProcess;
                assert!(unreachable || !even || apart, "{context}: {trouble}");
                continue;
            }
        };
        placed += 1;
        assert_eq!(Ok(&plan), place(&mut fresh(&description, weights, number), &asked).as_ref(), "{context}");
        check_files(&description, &all, &plan, &asked, &context);
        if pattern != Pattern::PerProcess {
            continue;
        }
        let active = |&target: &usize| description.targets[target].state == State::Active;
        for target in (0..description.targets.len()).filter(active) {
            let routers: Vec<u32> = (0..description.routers.len() as u32).filter(|_| rng.one_in(2)).collect();
            let (found, own) = (
                ledger.cost(&routers, target),
                expected_cost(&description, weights, &plan, &routers, target),
            );
            let finite = description.targets.iter().all(|target| target.free != Some(0));
            assert!(!finite || (found - own).abs() <= 1e-9 * own.max(1.0), "{context}: {found} is not {own}");
        }
        if even && weights.space == 0.0 {
            perfect += 1;
            let height = *plan.load.target.iter().max().expect("targets") as usize;
            assert_eq!(
                height,
                least_height(&of, description.targets.len()),
                "{context}: {:?}",
                plan.load.target
            );
            let active = description.targets.iter().filter(|target| target.state == State::Active).count();
            if of.iter().all(|reach| reach.len() == active) {
                let least = description.targets.iter().zip(&plan.load.target);
                let least =
                    least.filter(|(target, _)| target.state == State::Active).map(|(_, &load)| load).min();
                assert!(height as u64 - least.expect("targets") <= 1, "{context}: {:?}", plan.load.target);
            }
        }
    }
    assert!(placed > 100 && perfect > 50, "only {placed} of the topologies could be used, {perfect} evenly");
}

#[test]
fn random_choices_are_the_cheapest() {
    let seeded = Seeded::new();
    for round in rounds(300) {
        let mut rng = seeded.rng(round ^ 0xc057);
        let (mut description, _) = random_description(&mut rng);
        description.targets.iter_mut().for_each(|target| target.free = None);
        let mut ledger = fresh(&description, Weights::default(), round);
        for step in 0..30 {
            let client = rng.index(description.clients.len());
            let reach = usable(&description, &description.clients[client]);
            let before = ledger.clone();
            let one = [Writer { client: Some(client as u32), bytes: Some((1 + rng.below(9)) * MIB) }];
            let Ok(plan) = place(&mut ledger, &job(&one, Pattern::PerProcess)) else {
                assert!(reach.is_empty(), "round {round}, step {step}");
                continue;
            };
            let chosen = stripes(&plan.files[0]).targets[0] as usize;
            assert!(reach.contains(&chosen), "round {round}, step {step}");
            // No reachable target is cheaper without any router than the chosen one with its routers.
            let used: Vec<u32> =
                (0..description.routers.len() as u32).filter(|&r| plan.load.router[r as usize] > 0).collect();
            let paid = before.cost(&used, chosen);
            let all: Vec<u32> = (0..description.routers.len() as u32).collect();
            for &other in &reach {
                assert!(
                    paid <= before.cost(&all, other) + 1e-9,
                    "round {round}, step {step}: {other} was cheaper"
                );
            }
        }
    }
}
