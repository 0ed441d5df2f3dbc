//! SSDUP: which writes are buffered, on two I/O nodes with a disk and an SSD each, connected by Gigabit
//! Ethernet.

use super::{Drawn, Panel, Result, Settings, Style, each, mean, percents, row, rows};
use crate::scenario::{
    Choose, DrainPlan, HopGroup, JobPlan, LayoutPlan, Pattern, Phase, Scenario, Servers, Spread, TargetGroup,
};
use crate::{Report, simulate};
use forebay_model::{Bytes, FileId, Job};
use forebay_policy::arbiter::Rules;
use forebay_policy::drain::{Order, Pipeline, Trigger};
use forebay_policy::route::{self, Detector, Full, Marks, Mode, Write};
use forebay_policy::share::{Discipline, Policy, Rate, Rng, Tick};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Request size of a process; each of the two nodes gets one half.
const REQUEST: u64 = 256 * KIB;
const HALF: Bytes = Bytes(128 * KIB);
/// Gigabit Ethernet to each node: 235 MB/s to both.
const LINK: f64 = 117.5e6;
/// Rate of a node's SSD, from its data sheet.
const SSD: Rate = Rate(205_000_000);
/// Bytes per second that a node without an SSD takes into memory.
const MEMORY: Rate = Rate(10_000_000_000);
/// Mean random delay of a process before each request: few processes do not fill the network (Fig. 2).
const PAUSE: Tick = Tick::ms(10);

/// Divisor of the paper's amount of data.
fn scale(settings: &Settings) -> u64 {
    settings.pick(16, 4)
}

/// How the I/O nodes handle writes.
#[derive(Clone, Copy)]
enum Kind {
    /// OrangeFS without a buffer.
    Plain,
    /// Buffers writes while there is space, and forwards the rest.
    Buffer,
    /// Buffers random streams, and forwards them when there is no space.
    Single,
    /// Buffers random streams in two regions; one is drained while the other is filled.
    Double,
}

/// Both nodes, with the given total SSD capacity.
fn nodes(kind: Kind, capacity: u64, stream: usize) -> std::result::Result<Servers, String> {
    let each = Bytes((capacity / 2).max(REQUEST));
    let region = matches!(kind, Kind::Double).then_some(Bytes((each.0 / 2).max(HALF.0)));
    Ok(Servers {
        count: 2,
        rate: if matches!(kind, Kind::Plain) { MEMORY } else { SSD },
        turns: 1,
        capacity: each,
        policy: Policy::FIFO,
        discipline: Discipline::Fifo,
        lambda: None,
        via: Some(0),
        drain: Some(DrainPlan {
            order: Order::Offset,
            region,
            largest: Bytes(MIB),
            streams: Some(64),
            per_server: None,
            trigger: Trigger { threshold: 0.0, ..Trigger::default() },
            // With a single region, the buffer is drained only when the work is done.
            pipeline: if region.is_some() { Pipeline::On } else { Pipeline::Off },
            shares_processors: false,
            lag: Tick(0),
            pause: Tick(0),
            rules: Rules::default(),
        }),
        full: if region.is_some() { Full::Wait } else { Full::Bypass },
        mode: match kind {
            Kind::Plain => Mode::Direct,
            Kind::Buffer => Mode::Buffer,
            Kind::Single | Kind::Double => Mode::Traffic,
        },
        streams: route::Settings::new(stream, Marks::default()).map_err(|error| error.to_string())?,
    })
}

/// IOR: the given number of processes write the given bytes in a pattern.
fn ior(label: u32, processes: u32, bytes: u64, pattern: Pattern) -> JobPlan {
    let job = Job { label: label.to_string(), user: "u".into(), group: "g".into(), nodes: 8, priority: 1 };
    let each = (bytes / u64::from(processes) / REQUEST).max(1) * REQUEST;
    JobPlan {
        pattern,
        pause: PAUSE,
        together: false,
        layout: LayoutPlan { stripes: 2, stripe: HALF, choose: Choose::First },
        spread: Spread::Stripes(HALF),
        ..JobPlan::new(job, processes, vec![Phase::Write(Bytes(each), Bytes(REQUEST))])
    }
}

fn run(
    settings: &Settings,
    servers: Servers,
    queue: usize,
    jobs: Vec<JobPlan>,
) -> std::result::Result<Report, String> {
    let mut device = settings.hdd.clone();
    device.queue = queue;
    let plan = Scenario {
        hops: vec![HopGroup { count: 2, rate: LINK, latency: Tick(0), unrest: 1.0, to: None }],
        servers: Some(servers),
        targets: vec![TargetGroup { count: 2, device, via: None }],
        jobs,
        ..Scenario::default()
    };
    simulate(&plan, settings.seed).map_err(|fault| fault.to_string())
}

/// MB/s of all jobs while they wrote, and the buffered share of their data.
fn measured(report: &Report) -> (f64, f64) {
    let time: f64 = report.jobs.iter().map(|job| job.ended.unwrap_or(0.0) - job.started.unwrap_or(0.0)).sum();
    let written: u64 = report.jobs.iter().map(|job| job.written).sum();
    (written as f64 / time / 1e6, 1.0 - report.ledger.direct as f64 / written as f64)
}

const PATTERNS: [(&str, Pattern); 3] =
    [("contiguous", Pattern::Segmented), ("strided", Pattern::Strided), ("random", Pattern::Random)];

pub(super) fn two(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let counts = [4_u32, 8, 16, 32, 64, 128];
    let bytes = (16 << 30) / scale(settings);
    let mut lines = Vec::new();
    for (_, pattern) in PATTERNS {
        let mut line = Vec::new();
        for processes in counts {
            let report =
                run(settings, nodes(Kind::Plain, 0, 128)?, 128, vec![ior(1, processes, bytes, pattern)])?;
            line.push(measured(&report).0);
        }
        lines.push(line);
    }
    for (what, paper, line, at) in [
        ("contiguous, 32 processes", 218.0, 0, 3),
        ("contiguous, 128 processes", 150.0, 0, 5),
        ("strided, 16 processes", 164.0, 1, 2),
        ("strided, 128 processes", 107.0, 1, 5),
        ("random, 32 processes", 95.0, 2, 3),
    ] {
        drawn.number(what, paper, lines[line][at], "MB/s");
    }
    let order = (3..6).all(|at| lines[0][at] > lines[1][at] && lines[1][at] > lines[2][at] * 0.98);
    drawn.claim_or(
        "contiguous is faster than strided, strided than random, from 32 processes on",
        order,
        &format!("{} MB/s", rows(PATTERNS.map(|one| one.0), &lines, 0)),
        "with 128 processes every queue of 128 holds about one request of each, and contiguous segments are as far apart as random \
         places; the device was fitted to arrivals in any order, of which some follow each other",
    );
    let falls = lines[0][5] < 0.85 * lines[0][3] && lines[1][5] < 0.85 * lines[1][2];
    drawn.claim(
        "contiguous and strided fall with many processes",
        falls,
        format!("{} MB/s", rows(PATTERNS.map(|one| one.0), &lines[..2], 0)),
    );
    let flat = lines[2][1..].iter().all(|rate| (rate / lines[2][3] - 1.0).abs() < 0.15);
    drawn.claim("random stays where it is, from 8 processes on", flat, format!("{} MB/s", row(&lines[2], 0)));
    let panel = Panel::new("Two I/O nodes as they are", "processes", "MB/s").named(counts);
    let panel = PATTERNS
        .iter()
        .zip(&lines)
        .fold(panel, |panel, (pattern, line)| panel.values(pattern.0, Style::Line, line));
    let paper = vec![(3.0, 218.0), (5.0, 150.0), (2.0, 164.0), (5.0, 107.0), (3.0, 95.0)];
    drawn.panels.push(panel.with("paper", Style::Dots, paper));
    drawn.note("This figure is one of the two that the device file was fitted to.");
    drawn.note(ASSUMED);
    Ok(drawn)
}

const ASSUMED: &str = "Two nodes behind 117.5 MB/s each; every request of 256 KiB is halved between them. SSDs of 205 MB/s. A process needs 10 ms \
    before each request on average, by chance, and requests come in any order: each takes up to twice as long through the network as its turn would. Less data than the paper's 16 + 16 + 8 GB, capacities in proportion.";

/// The first requests of 16 processes in a pattern at one node, in order of arrival.
fn arrivals(pattern: Pattern, count: usize, seed: u64) -> Vec<u64> {
    let (mut rng, processes, segment) = (Rng::new(seed), 16_u64, 4096_u64);
    let mut next = [0_u64; 16];
    let mut seen = Vec::new();
    // Skip the first thousand, which arrive while all processes are still in step.
    while seen.len() < 1000 + count {
        let process = rng.below(processes);
        // No process is far ahead: its requests in flight must complete before it continues.
        if next[process as usize] > next.iter().min().copied().unwrap_or(0) + 8 {
            continue;
        }
        let number = next[process as usize];
        next[process as usize] += 1;
        seen.push(match pattern {
            Pattern::Segmented => process * segment + number,
            Pattern::Random => process * segment + rng.below(segment),
            _ => number * processes + process,
        });
    }
    seen.split_off(1000)
}

/// The random factor of 128 requests, from the policy's detector.
fn factor(places: &[u64]) -> std::result::Result<f64, String> {
    let settings = route::Settings::new(places.len(), Marks::default()).map_err(|error| error.to_string())?;
    let mut detector = Detector::new(settings);
    let seen = places.iter().filter_map(|&place| {
        let write = Write { file: FileId(1), offset: place * HALF.0, len: HALF, sync: false };
        detector.see(&write)
    });
    Ok(seen.last().map_or(0.0, route::Seen::percent))
}

fn offsets(settings: &Settings, sorted: bool) -> Result {
    let mut drawn = Drawn::default();
    for ((name, pattern), paper) in PATTERNS.into_iter().zip([0.118, 0.449, 1.0]) {
        let mut places = arrivals(pattern, 128, settings.seed);
        let found = factor(&places)?;
        if sorted {
            places.sort_unstable();
            drawn.number(format!("{name}: random factor"), paper, found, "share");
        }
        let points =
            places.iter().enumerate().map(|(at, place)| (at as f64, (place * HALF.0) as f64 / 1e6)).collect();
        let order = if sorted { "sorted" } else { "as they come" };
        drawn.panels.push(Panel::new(format!("{name}, {order}"), "request", "offset in MB").with(
            name,
            Style::Dots,
            points,
        ));
    }
    let factors: Vec<f64> = PATTERNS
        .iter()
        .map(|(_, pattern)| factor(&arrivals(*pattern, 128, settings.seed)))
        .collect::<std::result::Result<_, _>>()?;
    let detail = format!("random factor: {}", each(PATTERNS.map(|one| one.0), &factors, 3));
    drawn.claim(
        "contiguous is far below both marks, random above",
        factors[0] < 0.3 && factors[2] > 0.9,
        &*detail,
    );
    drawn.claim("strided is between", (0.2..0.7).contains(&factors[1]), &*detail);
    drawn.note("16 processes come in any order, none more than 8 requests ahead of the slowest.");
    Ok(drawn)
}

pub(super) fn three(settings: &Settings) -> Result {
    offsets(settings, false)
}

pub(super) fn five(settings: &Settings) -> Result {
    offsets(settings, true)
}

/// The paper's three series one after the other: contiguous, strided, random.
fn series(settings: &Settings, processes: u32) -> Vec<JobPlan> {
    let bytes = [16, 16, 8].map(|gib: u64| (gib << 30) / scale(settings));
    PATTERNS
        .iter()
        .enumerate()
        .map(|(number, (_, pattern))| JobPlan {
            after: number.checked_sub(1),
            ..ior(number as u32 + 1, processes, bytes[number], *pattern)
        })
        .collect()
}

/// Space for all data and more.
fn plenty(settings: &Settings) -> u64 {
    (200 << 30) / scale(settings)
}

/// MB/s without and with SSDUP, and the buffered share, by number of processes.
fn by_processes(settings: &Settings) -> std::result::Result<[Vec<f64>; 3], String> {
    let mut lines = [const { Vec::new() }; 3];
    for processes in [8, 16, 32, 64, 128] {
        let plain = run(settings, nodes(Kind::Plain, 0, 128)?, 128, series(settings, processes))?;
        let ssdup =
            run(settings, nodes(Kind::Double, plenty(settings), 128)?, 128, series(settings, processes))?;
        lines[0].push(measured(&plain).0);
        lines[1].push(measured(&ssdup).0);
        lines[2].push(measured(&ssdup).1);
    }
    Ok(lines)
}

pub(super) fn table_one(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let [_, _, shares] = by_processes(settings)?;
    let papers = [0.192, 0.231, 0.588, 0.789, 0.813];
    let counts = [8, 16, 32, 64, 128];
    for ((count, paper), ours) in counts.iter().zip(papers).zip(&shares) {
        drawn.number(format!("{count} processes"), paper, *ours, "share");
    }
    let rises = shares.windows(2).all(|pair| pair[1] >= pair[0] - 0.02);
    drawn.claim("the more processes, the more is buffered", rises, percents(&shares));
    let edges = shares[0] < 0.35 && shares[4] > 0.6;
    let why = "what is buffered of the strided series depends on how far processes drift apart, which the paper does not state; here \
        each needs 10 ms before a request, by chance, and few drift furthest. Without that a fifth is buffered by 8 to 32 of them \
        (docs/routing.md)";
    drawn.claim_or("about a fifth with few, most with many", edges, &percents(&shares), why);
    let panel = Panel::new("Data that is buffered", "processes", "share").in_percent().named(counts);
    drawn.panels.push(panel.values("paper", Style::Bars, &papers).values("ours", Style::Bars, &shares));
    drawn.note(ASSUMED);
    Ok(drawn)
}

pub(super) fn eight(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let [plain, ssdup, _] = by_processes(settings)?;
    let counts = [8, 16, 32, 64, 128];
    let gains: Vec<f64> = plain.iter().zip(&ssdup).map(|(plain, ssdup)| ssdup / plain - 1.0).collect();
    for ((count, paper), ours) in counts.iter().zip([0.18, 0.26, 0.48, 0.92, 0.99]).zip(&gains) {
        drawn.number(format!("gain with {count} processes"), paper, *ours, "share");
    }
    drawn.claim(
        "SSDUP is faster with every number of processes",
        gains.iter().all(|gain| *gain > 0.0),
        percents(&gains),
    );
    drawn.claim(
        "the more processes, the more it gains",
        gains[4] > gains[0] && gains[3] > gains[1],
        percents(&gains),
    );
    let panel = Panel::new("Three series one after the other", "processes", "MB/s").named(counts);
    drawn.panels.push(panel.values("OrangeFS", Style::Bars, &plain).values("SSDUP", Style::Bars, &ssdup));
    drawn.note(ASSUMED);
    Ok(drawn)
}

pub(super) fn nine(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let queues = [32_usize, 128, 512];
    let (mut plain, mut ssdup) = (Vec::new(), Vec::new());
    for queue in queues {
        plain.push(measured(&run(settings, nodes(Kind::Plain, 0, queue)?, queue, series(settings, 32))?).0);
        ssdup.push(
            measured(&run(
                settings,
                nodes(Kind::Double, plenty(settings), queue)?,
                queue,
                series(settings, 32),
            )?)
            .0,
        );
    }
    let gains: Vec<f64> = plain.iter().zip(&ssdup).map(|(plain, ssdup)| ssdup / plain - 1.0).collect();
    for ((queue, paper), ours) in queues.iter().zip([0.909, 0.48, 0.15]).zip(&gains) {
        drawn.number(format!("gain with a queue of {queue}"), paper, *ours, "share");
    }
    drawn.number("OrangeFS with a queue of 32", 113.0, plain[0], "MB/s");
    drawn.number("OrangeFS with a queue of 512", 164.0, plain[2], "MB/s");
    drawn.claim(
        "the smaller the disk's queue, the more SSDUP gains",
        gains[0] > gains[1] && gains[1] > gains[2],
        percents(&gains),
    );
    let panel = Panel::new("32 processes", "requests in the disk's queue", "MB/s").named(queues);
    drawn.panels.push(panel.values("OrangeFS", Style::Bars, &plain).values("SSDUP", Style::Bars, &ssdup));
    drawn.note(ASSUMED);
    Ok(drawn)
}

pub(super) fn ten(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let sizes = [0_u64, 8, 16, 24, 32, 40];
    let plain = measured(&run(settings, nodes(Kind::Plain, 0, 128)?, 128, series(settings, 32))?).0;
    let mut lines = Vec::new();
    for kind in [Kind::Buffer, Kind::Single, Kind::Double] {
        let mut line = vec![plain];
        for size in &sizes[1..] {
            let capacity = (size << 30) / scale(settings);
            line.push(measured(&run(settings, nodes(kind, capacity, 128)?, 128, series(settings, 32))?).0);
        }
        lines.push(line);
    }
    let gain = |line: usize, at: usize| lines[line][at] / plain - 1.0;
    for (name, line, papers) in [
        ("BB", 0, [0.0, 0.0, 0.19, 0.29, 0.65]),
        ("SSDUP without pipeline", 1, [0.13, 0.31, 0.65, 0.66, 0.65]),
        ("SSDUP", 2, [0.25, 0.64, 0.64, 0.64, 0.64]),
    ] {
        for (at, paper) in papers.into_iter().enumerate() {
            drawn.number(format!("{name}, {} GB", sizes[at + 1]), paper, gain(line, at + 1), "share");
        }
    }
    let detail = format!("{:.2} SSDUP, {:.2} without pipeline, {:.2} BB", gain(2, 1), gain(1, 1), gain(0, 1));
    drawn.claim(
        "with 8 GB SSDUP is best, then SSDUP without pipeline, then BB",
        gain(2, 1) > gain(1, 1) && gain(1, 1) >= gain(0, 1) - 0.01,
        detail,
    );
    let peak = |line: usize| {
        (1..6)
            .find(|&at| lines[line][at] >= 0.97 * lines[line][5].max(lines[line][4]))
            .map_or(0, |at| sizes[at])
    };
    let peaks = [peak(2), peak(1), peak(0)];
    drawn.claim(
        "SSDUP reaches its peak with the least SSD, BB with the most",
        peaks[0] <= peaks[1] && peaks[1] <= peaks[2],
        format!("at {} GB for SSDUP, {} without pipeline, {} for BB", peaks[0], peaks[1], peaks[2]),
    );
    let panel = Panel::new("32 processes", "GB of SSD", "MB/s").named(sizes);
    drawn.panels.push(
        ["BB", "SSDUP without pipeline", "SSDUP"]
            .iter()
            .zip(&lines)
            .fold(panel, |panel, (name, line)| panel.values(*name, Style::Line, line)),
    );
    drawn.note(ASSUMED);
    Ok(drawn)
}

pub(super) fn eleven(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let waits = [0_u64, 2, 4, 6, 8, 10];
    let total = 4_u64 << 30;
    let mut lines = Vec::new();
    for percent in [25_u64, 50, 75, 100] {
        let mut line = Vec::new();
        for wait in waits {
            let first = ior(1, 32, total / 2, Pattern::Random);
            let second = JobPlan {
                after: Some(0),
                start: Tick::ms(wait * 1000),
                ..ior(2, 32, total / 2, Pattern::Random)
            };
            let report =
                run(settings, nodes(Kind::Double, total * percent / 100, 128)?, 128, vec![first, second])?;
            line.push(measured(&report).0);
        }
        lines.push(line);
    }
    let plain =
        run(settings, nodes(Kind::Plain, 0, 128)?, 128, vec![ior(1, 32, total / 2, Pattern::Random)])?;
    let base = measured(&plain).0;
    for (line, (percent, paper)) in lines.iter().zip([(25, 0.10), (50, 0.24), (75, 0.018), (100, 0.046)]) {
        drawn.number(
            format!("{percent} % of the data: 10 s of computing over none"),
            paper,
            line[5] / line[0] - 1.0,
            "share",
        );
    }
    let grows = (0..3).all(|at| mean(&lines[at + 1]) >= mean(&lines[at]) * 0.99);
    drawn.claim(
        "more SSD is faster",
        grows && mean(&lines[0]) > base,
        format!(
            "{} MB/s by rising size, {base:.0} without",
            row(&lines.iter().map(|line| mean(line)).collect::<Vec<_>>(), 0)
        ),
    );
    let little = lines.iter().all(|line| line[5] / line[0] - 1.0 < 0.35);
    drawn.claim(
        "computing between the bursts brings little",
        little,
        percents(&lines.iter().map(|line| line[5] / line[0] - 1.0).collect::<Vec<_>>()),
    );
    let panel = Panel::new("Two random bursts", "seconds of computing between them", "MB/s").named(waits);
    drawn.panels.push(
        ["25 %", "50 %", "75 %", "100 %"]
            .iter()
            .zip(&lines)
            .fold(panel, |panel, (name, line)| panel.values(*name, Style::Line, line)),
    );
    drawn.note(
        "Two bursts of 2 GB, as in the paper; the SSD as a share of both. Otherwise as in the other figures.",
    );
    Ok(drawn)
}

pub(super) fn twelve(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let counts = [16_u32, 32, 64, 128];
    let total = 2_u64 << 30;
    let hpio = |processes: u32, gap: u64| {
        let request = 64 * KIB;
        let each = (total / u64::from(processes) / request) * request;
        JobPlan {
            phases: vec![Phase::Write(Bytes(each), Bytes(request))],
            layout: LayoutPlan { stripes: 2, stripe: Bytes(64 * KIB), choose: Choose::First },
            spread: Spread::Stripes(Bytes(64 * KIB)),
            ..ior(1, processes, total, Pattern::Spaced(Bytes(gap)))
        }
    };
    for (gap, papers) in [(0_u64, [0.0, 0.18, 0.067, 0.28]), (512, [0.30, 0.43, 0.66, 0.65])] {
        let (mut plain, mut ssdup) = (Vec::new(), Vec::new());
        for processes in counts {
            plain.push(
                measured(&run(settings, nodes(Kind::Plain, 0, 128)?, 128, vec![hpio(processes, gap)])?).0,
            );
            ssdup.push(
                measured(&run(
                    settings,
                    nodes(Kind::Double, total / 2, 128)?,
                    128,
                    vec![hpio(processes, gap)],
                )?)
                .0,
            );
        }
        let gains: Vec<f64> = plain.iter().zip(&ssdup).map(|(plain, ssdup)| ssdup / plain - 1.0).collect();
        for ((count, paper), ours) in counts.iter().zip(papers).zip(&gains) {
            drawn.number(format!("spacing {gap} B, {count} processes"), paper, *ours, "share");
        }
        let never = gains.iter().all(|gain| *gain > -0.05);
        drawn.claim(format!("spacing {gap} B: SSDUP is never slower"), never, percents(&gains));
        if gap > 0 {
            drawn.claim(
                "with gaps OrangeFS is below 50 MB/s",
                plain.iter().all(|rate| *rate < 60.0),
                format!("{} MB/s", row(&plain, 0)),
            );
            drawn.claim(
                "with gaps SSDUP gains a third and more",
                gains.iter().all(|gain| *gain > 0.25),
                percents(&gains),
            );
        }
        let panel = Panel::new(format!("spacing {gap} B"), "processes", "MB/s").named(counts);
        drawn.panels.push(panel.values("OrangeFS", Style::Bars, &plain).values("SSDUP", Style::Bars, &ssdup));
    }
    drawn.note("2 GB in regions of 64 KiB, each to one of the two nodes; SSDs for half of the file.");
    Ok(drawn)
}
