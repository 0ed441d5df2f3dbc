//! The pipeline of regions in virtual time, compared with SSDUP's equations 2 to 4.

use forebay_model::{Bytes, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::device::{Curve, Device};
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{Full, Mode, Settings};
use forebay_policy::share::{Discipline, Policy, Rate, Tick};
use forebay_sim::{
    Choose, DrainPlan, JobPlan, LayoutPlan, Pattern, Phase, Scenario, Servers, Spread, TargetGroup, simulate,
};

const REQUEST: Bytes = Bytes::kib(256);
const STAGE: Bytes = Bytes::mib(32);
/// Number of stages that are written.
const ALL: u64 = 24;
const WRITERS: u32 = 32;

/// Seconds until the writers are done, and until all data is on the target.
fn seconds(mode: Mode, stages: u64, full: Full, regions: Option<u64>) -> (f64, f64) {
    let capacity = Bytes(stages * STAGE.0);
    let drain = DrainPlan {
        order: Order::Offset,
        region: regions.map(|count| Bytes(capacity.0 / count)),
        largest: Bytes::mib(1),
        streams: Some(1),
        per_server: None,
        trigger: Trigger { threshold: 0.0, ..Trigger::default() },
        pipeline: if regions.is_some() { Pipeline::On } else { Pipeline::Off },
        shares_processors: false,
        lag: Tick(0),
        pause: Tick(0),
        rules: Rules::default(),
    };
    let servers = Servers {
        count: 1,
        rate: Rate(400_000_000),
        turns: 1,
        capacity,
        policy: Policy::FIFO,
        discipline: Discipline::Fifo,
        lambda: None,
        via: None,
        drain: Some(drain),
        full,
        mode,
        streams: Settings::default(),
    };
    // A disk without sorting: interleaved writers make it seek every time.
    let curve = Curve::new(&[(1, Bytes(200_000_000))]).expect("a curve");
    let device = Device { curve, seek: Tick::ms(2), streams: 1, queue: 1 };
    let job = Job { label: "1".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
    let each = Bytes(ALL * STAGE.0 / u64::from(WRITERS));
    let job = JobPlan {
        pattern: Pattern::Segmented,
        together: false,
        layout: LayoutPlan { stripes: 1, stripe: Bytes::mib(1), choose: Choose::First },
        spread: Spread::Home,
        ..JobPlan::new(job, WRITERS, vec![Phase::Write(each, REQUEST)])
    };
    let plan = Scenario {
        servers: Some(servers),
        targets: vec![TargetGroup { count: 1, device, via: None }],
        jobs: vec![job],
        ..Scenario::default()
    };
    let report = simulate(&plan, 1).expect("a scenario that works");
    let job = &report.jobs[0];
    let (Some(started), Some(ended), Some(settled)) = (job.started, job.ended, job.settled) else {
        panic!("it never ended: {job:?}");
    };
    (ended - started, settled - started)
}

#[test]
fn times_with_and_without_a_pipeline_match_the_equations() {
    let all = ALL as f64;
    let (buffered, settled) = seconds(Mode::Buffer, ALL + 1, Full::Bypass, None);
    let (ssd, flush) = (buffered / all, (settled - buffered) / all);
    let disk = seconds(Mode::Direct, 1, Full::Bypass, None).0 / all;
    assert!(ssd < flush && flush < disk, "{ssd} {flush} {disk}: a stage in the buffer, flushed, and direct");
    for stages in [4, 8, 12, 16] {
        let held = stages as f64;
        let without = seconds(Mode::Buffer, stages, Full::Bypass, None).0;
        let expected = held * ssd + (all - held) * disk;
        assert!(
            (without / expected - 1.0).abs() < 0.05,
            "equation 2, {stages} stages: {without} for {expected}"
        );
        // A region consists of as many runs as there are writers, each of which begins with a seek.
        let seeks = f64::from(WRITERS) * 0.002 * 2.0 / held;
        let flush = STAGE.0 as f64 / 200e6 + seeks;
        let with = seconds(Mode::Buffer, stages, Full::Wait, Some(2)).0;
        let expected = held * ssd + (all - held) * flush.max(ssd);
        // The equations fill the last region after all others are flushed; the simulator overlaps the two.
        let overlapped = expected - held / 2.0 * ssd;
        assert!(
            with > overlapped * 0.95 && with < expected * 1.02,
            "equations 3 and 4, {stages} stages: {with} for {overlapped} to {expected}"
        );
        for regions in [2, 4, 8] {
            let with = seconds(Mode::Buffer, stages, Full::Wait, Some(regions)).0;
            assert!(
                with < without,
                "{stages} stages in {regions} regions: {with} with a pipeline, {without} without"
            );
        }
    }
}
