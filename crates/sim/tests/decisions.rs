//! The simulator decides as the daemon does: who gets space in a full buffer, when writes that bypass the buffer get
//! their turn, when a buffer drains, and how many targets a server writes to at once.

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::{LULL, Order, Pipeline, Trigger};
use forebay_policy::route::{Full, Mode, Settings};
use forebay_policy::share::{Discipline, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, JobPlan, LayoutPlan, Pattern, Phase, Report, Scenario, Servers, TargetGroup, simulate,
};

const MB: u64 = 1_000_000;

fn server(policy: &str, discipline: Discipline, capacity: Bytes) -> Servers {
    Servers {
        count: 1,
        rate: Rate(1000 * MB),
        turns: 4,
        capacity,
        policy: policy.parse().expect("a policy"),
        discipline,
        lambda: None,
        via: None,
        drain: Some(DrainPlan {
            order: Order::Trio,
            region: None,
            largest: Bytes(MB),
            streams: None,
            per_server: None,
            trigger: Trigger { threshold: 0.0, ..Trigger::default() },
            pipeline: Pipeline::On,
            shares_processors: false,
            lag: Tick(0),
            pause: Tick(0),
            rules: Rules::default(),
        }),
        full: Full::Wait,
        mode: Mode::Buffer,
        streams: Settings::default(),
    }
}

/// A job of a user with this many nodes; its processes write requests of 1 MB without a pause.
fn job(number: u32, nodes: u32, processes: u32, bytes: u64) -> JobPlan {
    let user = format!("u{number}");
    let job = Job { label: number.to_string(), user, group: "g".into(), nodes, priority: 1 };
    JobPlan {
        pattern: Pattern::Own,
        together: false,
        layout: LayoutPlan { stripes: 1, stripe: Bytes(MB), choose: Choose::Round },
        ..JobPlan::new(job, processes, vec![Phase::Write(Bytes(bytes), Bytes(MB))])
    }
}

fn run(servers: Servers, targets: u32, rate: u64, jobs: Vec<JobPlan>) -> Report {
    let curve = Curve::new(&[(1, Bytes(rate))]).expect("a curve");
    let device = Device { curve, seek: Tick(0), streams: 64, queue: 0 };
    let targets = vec![TargetGroup { count: targets, device, via: None }];
    let plan = Scenario { servers: Some(servers), targets, jobs, ..Scenario::default() };
    simulate(&plan, 1).expect("a scenario that works")
}

/// How much more the first of two jobs has written when both are stopped.
fn ratio(servers: Servers, rate: u64, jobs: [JobPlan; 2]) -> f64 {
    let stopped = jobs.map(|job| JobPlan { stop: Some(Tick::ms(20_000)), ..job });
    let report = run(servers, 1, rate, stopped.to_vec());
    report.jobs[0].written as f64 / report.jobs[1].written as f64
}

fn is_about(found: f64, wanted: f64) -> bool {
    (found / wanted - 1.0).abs() < 0.1
}

#[test]
fn full_buffer_is_shared_by_policy_and_not_first_come_first_served() {
    let jobs = || [job(1, 1, 8, 1 << 40), job(2, 1, 1, 1 << 40)];
    let equal = ratio(server("fifo", Discipline::Fifo, Bytes(50 * MB)), 100 * MB, jobs());
    assert!(is_about(equal, 1.0), "{equal} times as much with eight times as many writers");
    let jobs = [job(1, 3, 2, 1 << 40), job(2, 1, 8, 1 << 40)];
    let sized = ratio(server("size-fair", Discipline::Stride, Bytes(50 * MB)), 100 * MB, jobs);
    assert!(is_about(sized, 3.0), "{sized} times as much with three times as many nodes");
}

#[test]
fn writes_that_bypass_the_buffer_take_their_turns() {
    let direct = Servers { mode: Mode::Direct, ..server("size-fair", Discipline::Stride, Bytes(50 * MB)) };
    let full = Servers { full: Full::Bypass, ..server("size-fair", Discipline::Stride, Bytes(1)) };
    for servers in [direct, full] {
        let jobs = [job(1, 3, 32, 1 << 40), job(2, 1, 32, 1 << 40)];
        let found = ratio(servers, 100_000 * MB, jobs);
        assert!(is_about(found, 3.0), "{found} times as much with three times as many nodes");
    }
}

#[test]
fn lone_server_drains_to_all_targets_at_once() {
    let drained = |per_server| {
        let mut servers = server("fifo", Discipline::Fifo, Bytes(1 << 40));
        let drain = servers.drain.as_mut().expect("it drains");
        drain.per_server = per_server;
        drain.pipeline = Pipeline::Off;
        let report = run(servers, 4, 100 * MB, vec![job(1, 1, 8, 100 * MB)]);
        report.jobs[0].settled.expect("all is drained") - report.jobs[0].ended.expect("it ended")
    };
    let (usual, one) = (drained(None), drained(Some(1)));
    assert!(is_about(usual, 2.0), "{usual} s for 800 MB to four targets of 100 MB/s");
    assert!(is_about(one, 8.0), "{one} s for the same to one target after the other");
}

#[test]
fn buffer_without_a_pipeline_drains_when_the_burst_is_over() {
    let most_held = |pause: Tick| {
        let mut servers = server("fifo", Discipline::Fifo, Bytes(1 << 40));
        servers.drain.as_mut().expect("it drains").pipeline = Pipeline::Off;
        let burst = job(1, 1, 1, 100 * MB);
        let phases = vec![burst.phases[0], Phase::Compute(pause, 0.0)];
        run(servers, 1, 1000 * MB, vec![JobPlan { phases, rounds: 3, ..burst }]).ledger.most_held
    };
    assert_eq!(most_held(Tick(LULL.0 / 2)), 300 * MB, "pauses within a burst");
    assert_eq!(most_held(Tick(LULL.0 * 4)), 100 * MB, "pauses between bursts");
}

#[test]
fn data_below_the_threshold_is_drained_when_it_is_old() {
    let drained_before_the_end = |age: Tick| {
        let mut servers = server("fifo", Discipline::Fifo, Bytes(1 << 40));
        servers.drain.as_mut().expect("it drains").trigger = Trigger { age, ..Trigger::default() };
        let burst = job(1, 1, 1, 100 * MB);
        let phases = vec![burst.phases[0], Phase::Compute(Tick::ms(10_000), 0.0)];
        let report = run(servers, 1, 1000 * MB, vec![JobPlan { phases, rounds: 2, ..burst }]);
        report.ledger.most_held == 100 * MB
    };
    assert!(drained_before_the_end(Tick::ms(5_000)));
    assert!(!drained_before_the_end(Tick::ms(60_000)));
}

#[test]
fn burst_keeps_the_drain_from_shared_processors() {
    let most_held = |shares_processors| {
        let mut servers = server("fifo", Discipline::Fifo, Bytes(400 * MB));
        servers.drain.as_mut().expect("it drains").shares_processors = shares_processors;
        run(servers, 1, 1000 * MB, vec![job(1, 1, 1, 200 * MB)]).ledger.most_held
    };
    let (shared, own) = (most_held(true), most_held(false));
    assert!(shared > 150 * MB && own < 50 * MB, "{shared} and {own} bytes held");
}
