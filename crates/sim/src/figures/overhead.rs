//! SSDUP's Table 2: the cost of the stream detector and of the index. The only figure that measures this
//! machine.

use super::{Drawn, Panel, Result, Settings, Style, row};
use forebay_model::{Bytes, FileId, Span, Stamp};
use forebay_policy::drain::{Drain, Layout, Order, Pick, TargetId};
use forebay_policy::route::{self, Mode, Write, WriteRouter};
use forebay_policy::share::{Rng, Tick};

const KIB: u64 = 1 << 10;
/// The paper's amount of data.
const TOTAL: u64 = 2 << 30;
/// Both I/O nodes' Gigabit Ethernet, in bytes per second.
const NETWORK: f64 = 235e6;
/// Request sizes in KiB, with the paper's total time in seconds, and grouping and index times in
/// milliseconds.
const PAPER: [(u64, f64, f64, f64); 5] = [
    (32, 12.7, 184.0, 60.2),
    (64, 11.6, 126.0, 32.8),
    (128, 12.8, 135.0, 35.3),
    (256, 11.8, 68.0, 17.4),
    (512, 11.7, 41.0, 7.9),
];

/// Milliseconds that routing and indexing of random writes of a size take.
fn costs(settings: &Settings, size: u64) -> (f64, f64) {
    let count = TOTAL / size;
    let mut places: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(settings.seed);
    for last in (1..places.len()).rev() {
        places.swap(last, rng.below(last as u64 + 1) as usize);
    }
    let start = (settings.clock)();
    let mut router = WriteRouter::new(Mode::Traffic, route::Settings::default());
    for &place in &places {
        let write = Write { file: FileId(1), offset: place * size, len: Bytes(size), sync: false };
        router.route(Tick(0), &write);
    }
    let grouped = (settings.clock)();
    let (mut drain, layout) = (Drain::new(Order::Offset, Bytes(size)), Layout::whole(TargetId(0)));
    for (number, &place) in places.iter().enumerate() {
        let span = Span::new(place * size, (place + 1) * size);
        drain.insert(FileId(1), &layout, span, Stamp(number as u64));
    }
    while let Some((id, _)) = drain.next(Pick::Any(0)) {
        drain.done(id);
    }
    let kept = (settings.clock)();
    ((grouped - start) * 1e3, (kept - grouped) * 1e3)
}

pub(super) fn table_two(settings: &Settings) -> Result {
    let mut drawn = Drawn::default();
    let total = TOTAL as f64 / NETWORK;
    let (mut ours, mut papers) = (Vec::new(), Vec::new());
    for (kib, time, group, index) in PAPER {
        let (grouping, keeping) = costs(settings, kib * KIB);
        drawn.number(format!("{kib} KiB: looking at streams"), group, grouping, "ms");
        drawn.number(format!("{kib} KiB: the index"), index, keeping, "ms");
        ours.push((grouping + keeping) / 1e3 / total);
        papers.push((group + index) / 1e3 / time);
    }
    drawn.number("largest part of the run time", 0.019, ours.iter().copied().fold(0.0, f64::max), "share");
    drawn.claim(
        "both together cost less than 2 % of the run time",
        ours.iter().all(|part| *part < 0.02),
        format!(
            "{} %, the larger the requests",
            row(&ours.iter().map(|part| part * 100.0).collect::<Vec<_>>(), 2)
        ),
    );
    drawn.claim("small requests cost most", ours[0] > ours[4], "they are the most");
    let panel = Panel::new("Part of the run time", "KiB a request", "share")
        .in_percent()
        .named(PAPER.map(|line| line.0));
    drawn.panels.push(panel.values("paper", Style::Bars, &papers).values("ours", Style::Bars, &ours));
    drawn.note("Measured on the machine that made this page, so not the same on another. The run time is what 2 GB take through the network.");
    Ok(drawn)
}
