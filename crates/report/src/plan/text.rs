//! The answer as text: a few lines, and a sketch on a terminal.

use super::answer::{Answer, Point, QUANTILES};
use super::input::Plan;
use crate::quantity::{show, show_bytes, show_share};
use forebay_planner::{Cost, Estimate, Units, expected_load, mean_idle};
use std::fmt::Write;

/// Lines of a name and a text.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, name: &str, text: impl Into<String>) {
        let text: String = text.into();
        let _ = writeln!(self.0, "  {name:<16} {text}");
    }
}

/// The answer as text, with a sketch of idle time by capacity if points are given.
pub fn render(plan: &Plan, answer: &Answer, sketch: Option<&[Point]>) -> String {
    let mut lines = Lines::default();
    machine(&mut lines, plan, answer);
    behaviour(&mut lines, answer);
    variants(&mut lines, answer);
    recommended(&mut lines, plan, answer);
    tables(&mut lines, answer);
    for note in &plan.notes {
        lines.add("note", note);
    }
    if let Some(points) = sketch {
        lines.0.push_str(&draw(points));
    }
    lines.0
}

/// What was given: applications, bandwidth, capacity, and the load that follows.
fn machine(lines: &mut Lines, plan: &Plan, answer: &Answer) {
    let load = expected_load(&plan.apps);
    let bandwidth = plan.platform.bandwidth;
    lines.add("applications", plan.apps.len().to_string());
    lines.add("bandwidth", amount(plan, bandwidth));
    lines.add("capacity", amount(plan, plan.platform.capacity));
    lines.add("threshold", show_share(plan.platform.threshold.get()));
    let share = show_share(load / bandwidth.0 as f64);
    lines.add("expected load", format!("{} units per time unit, {share} of the bandwidth", show(load)));
    lines.add("over bandwidth", format!("{} of time units", show_share(answer.over_bandwidth)));
    if let (Some(p), Some(most)) = (answer.over_buffer, plan.buffer_bandwidth) {
        let text = format!("{} of time units need more than {}", show_share(p), amount(plan, most));
        lines.add("over buffer", text);
    }
}

/// How the buffer behaves.
fn behaviour(lines: &mut Lines, answer: &Answer) {
    let (m, simulated) = (&answer.metrics, answer.simulated.as_ref());
    let idle = range(simulated.map(|observed| &observed.idle));
    lines.add("idle", format!("{} of the time applications are blocked{idle}", show_share(m.idle)));
    let quiet = range(simulated.map(|observed| &observed.quiet));
    lines.add("quiet", format!("{} of the time the buffer does not drain{quiet}", show_share(m.quiet)));
    lines.add("overflow", format!("{} of time units begin one", show_share(m.overflow)));
    let quantiles: Vec<String> =
        QUANTILES.iter().map(|q| format!("{} {}", show_share(*q), m.quantile(*q))).collect();
    lines.add("occupancy", format!("mean {}; {}", show(m.mean_occupancy), quantiles.join(", ")));
    if m.direct_wait > 0.0 {
        lines.add("direct", format!("direct traffic waits {} of the time", show_share(m.direct_wait)));
    }
}

/// The same with data that is dropped, with separate buffers, and what it costs.
fn variants(lines: &mut Lines, answer: &Answer) {
    let dropping = answer.monte_carlo.as_ref().filter(|monte_carlo| monte_carlo.dropped.mean > 0.0);
    if let Some(monte_carlo) = dropping {
        let idle = &monte_carlo.observed.idle;
        let text = format!(
            "{} of stored data is dropped before it drains; idle then {} ± {}",
            show_share(monte_carlo.dropped.mean),
            show_share(idle.mean),
            show_share(idle.half_width)
        );
        lines.add("superseded", text);
    }
    if let Some(parts) = &answer.parts {
        let text = format!(
            "{} separate ones: {} idle on average, against {} with one",
            parts.len(),
            show_share(mean_idle(parts)),
            show_share(answer.metrics.idle)
        );
        lines.add("buffers", text);
    }
    if let Some(cost) = &answer.cost {
        lines.add("cost", bill(cost));
    }
}

fn recommended(lines: &mut Lines, plan: &Plan, answer: &Answer) {
    let (found, target) = (&answer.recommended, show_share(plan.target_idle));
    let text = match found.capacity {
        Some(capacity) => format!(
            "capacity {}, threshold {}: idle {}, quiet {}",
            amount(plan, capacity),
            show_share(found.choice.threshold.get()),
            show_share(found.choice.metrics.idle),
            show_share(found.choice.metrics.quiet)
        ),
        None if answer.unavoidable > plan.target_idle => format!(
            "no capacity keeps idle time within {target}: the load exceeds the bandwidth, and {} remain",
            show_share(answer.unavoidable)
        ),
        None => format!("no capacity up to 100,000 units keeps idle time within {target}"),
    };
    lines.add("recommended", text);
    if let (Some(_), Some(cost)) = (found.capacity, &found.cost) {
        lines.add("", bill(cost));
    }
}

/// The influence of each application, and the sweep.
fn tables(lines: &mut Lines, answer: &Answer) {
    if let Some(list) = &answer.influences {
        let mut order: Vec<_> = list.iter().collect();
        order.sort_by(|a, b| a.idle_without.total_cmp(&b.idle_without));
        lines.add("sensitivity", "idle without it, and if it wrote 10 % more often");
        for i in order {
            let (without, more) = (show_share(i.idle_without), show_share(i.idle_more));
            lines.add("", format!("{:<20} {without:>10} {more:>10}", i.name));
        }
    }
    if let Some((key, points)) = &answer.sweep {
        lines.add("sweep", format!("{:>10} {:>12} {:>12} {:>12}", key.name(), "idle", "quiet", "occupancy"));
        for p in points {
            let [idle, quiet] = [p.idle, p.quiet].map(show_share);
            let (at, occupancy) = (show(p.at), show(p.mean_occupancy));
            lines.add("", format!("{at:>10} {idle:>12} {quiet:>12} {occupancy:>12}"));
        }
    }
}

fn bill(cost: &Cost) -> String {
    let endurance =
        cost.years.map_or_else(String::new, |years| format!(", worn out after {} years", show(years)));
    format!(
        "{} for {} TB, written {} times a day{endurance}",
        show(cost.price),
        show(cost.terabytes),
        show(cost.drive_writes_per_day)
    )
}

fn range(estimate: Option<&Estimate>) -> String {
    estimate.map_or_else(String::new, |e| {
        format!(" (simulated {} ± {})", show_share(e.mean), show_share(e.half_width))
    })
}

fn amount(plan: &Plan, units: Units) -> String {
    match plan.scale.real {
        true => format!("{} units ({})", units.0, show_bytes(units.0 as f64 * plan.scale.bytes)),
        false => format!("{} units", units.0),
    }
}

/// Idle time against capacity, in eight rows of blocks.
fn draw(points: &[Point]) -> String {
    const ROWS: usize = 8;
    const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let top = points.iter().map(|p| p.idle).fold(0.0, f64::max);
    let mut out = String::from("\n  idle time against capacity\n");
    if top <= 0.0 {
        out.push_str("  none at any capacity\n");
        return out;
    }
    for row in (0..ROWS).rev() {
        let label = if row == ROWS - 1 { show_share(top) } else { String::new() };
        let _ = write!(out, "  {label:>10} │");
        for p in points {
            let eighths = (p.idle / top * (ROWS * 8) as f64).round() as usize;
            out.push(LEVELS[eighths.saturating_sub(row * 8).min(8)]);
        }
        out.push('\n');
    }
    let last = points.last().map_or_else(String::new, |p| show(p.at));
    let _ = writeln!(out, "  {:>10} └{}", "0 %", "─".repeat(points.len()));
    let _ = writeln!(out, "  {:>10}  0{last:>width$}", "", width = points.len().saturating_sub(1));
    out
}
