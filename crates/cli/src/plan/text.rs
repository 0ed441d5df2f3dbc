//! The answer as text: a few lines, and a sketch on a terminal.

use super::answer::{Answer, Point, QUANTILES};
use super::input::Plan;
use super::quantity::{show, show_bytes, show_share};
use forebay_planner::{Cost, Estimate, Units, expected_load, mean_idle};
use std::fmt::Write;

pub(super) fn render(plan: &Plan, answer: &Answer, sketch: Option<&[Point]>) -> String {
    let (mut out, m) = (String::new(), &answer.metrics);
    let load = expected_load(&plan.apps);
    let bandwidth = plan.platform.bandwidth;
    let mut line = |name: &str, text: String| {
        let _ = writeln!(out, "  {name:<16} {text}");
    };
    line("applications", plan.apps.len().to_string());
    line("bandwidth", amount(plan, bandwidth));
    line("capacity", amount(plan, plan.platform.capacity));
    line("threshold", show_share(plan.platform.threshold.get()));
    let share = load / bandwidth.0 as f64;
    line(
        "expected load",
        format!("{} units per time unit, {} of the bandwidth", show(load), show_share(share)),
    );
    line("over bandwidth", format!("{} of time units", show_share(answer.over_bandwidth)));
    if let (Some(p), Some(most)) = (answer.over_buffer, plan.buffer_bandwidth) {
        line("over buffer", format!("{} of time units need more than {}", show_share(p), amount(plan, most)));
    }
    line(
        "idle",
        format!(
            "{} of the time applications are blocked{}",
            show_share(m.idle),
            range(answer.simulated.as_ref().map(|o| &o.idle))
        ),
    );
    line(
        "quiet",
        format!(
            "{} of the time the buffer does not drain{}",
            show_share(m.quiet),
            range(answer.simulated.as_ref().map(|o| &o.quiet))
        ),
    );
    line("overflow", format!("{} of time units begin one", show_share(m.overflow)));
    let quantiles: Vec<String> =
        QUANTILES.iter().map(|q| format!("{} {}", show_share(*q), m.quantile(*q))).collect();
    line("occupancy", format!("mean {}; {}", show(m.mean_occupancy), quantiles.join(", ")));
    if m.direct_wait > 0.0 {
        line("direct", format!("direct traffic waits {} of the time", show_share(m.direct_wait)));
    }
    if let Some(monte_carlo) =
        answer.monte_carlo.as_ref().filter(|monte_carlo| monte_carlo.dropped.mean > 0.0)
    {
        let idle = &monte_carlo.observed.idle;
        line(
            "superseded",
            format!(
                "{} of stored data is dropped before it drains; idle then {} ± {}",
                show_share(monte_carlo.dropped.mean),
                show_share(idle.mean),
                show_share(idle.half_width)
            ),
        );
    }
    if let Some(parts) = &answer.parts {
        line(
            "buffers",
            format!(
                "{} separate ones: {} idle on average, against {} with one",
                parts.len(),
                show_share(mean_idle(parts)),
                show_share(m.idle)
            ),
        );
    }
    if let Some(cost) = &answer.cost {
        line("cost", bill(cost));
    }
    let found = &answer.recommended;
    match found.capacity {
        Some(capacity) => {
            let threshold = show_share(found.choice.threshold.get());
            line(
                "recommended",
                format!(
                    "capacity {}, threshold {threshold}: idle {}, quiet {}",
                    amount(plan, capacity),
                    show_share(found.choice.metrics.idle),
                    show_share(found.choice.metrics.quiet)
                ),
            );
            if let Some(cost) = &found.cost {
                line("", bill(cost));
            }
        }
        None if answer.unavoidable > plan.target_idle => line(
            "recommended",
            format!(
                "no capacity keeps idle time within {}: the load exceeds the bandwidth, and {} remain",
                show_share(plan.target_idle),
                show_share(answer.unavoidable)
            ),
        ),
        None => line(
            "recommended",
            format!(
                "no capacity up to 100,000 units keeps idle time within {}",
                show_share(plan.target_idle)
            ),
        ),
    }
    if let Some(list) = &answer.influences {
        let mut order: Vec<_> = list.iter().collect();
        order.sort_by(|a, b| a.idle_without.total_cmp(&b.idle_without));
        line("sensitivity", "idle without it, and if it wrote 10 % more often".into());
        for i in order {
            line(
                "",
                format!("{:<20} {:>10} {:>10}", i.name, show_share(i.idle_without), show_share(i.idle_more)),
            );
        }
    }
    if let Some((key, points)) = &answer.sweep {
        line("sweep", format!("{:>10} {:>12} {:>12} {:>12}", key.name(), "idle", "quiet", "occupancy"));
        for p in points {
            line(
                "",
                format!(
                    "{:>10} {:>12} {:>12} {:>12}",
                    show(p.at),
                    show_share(p.idle),
                    show_share(p.quiet),
                    show(p.mean_occupancy)
                ),
            );
        }
    }
    for note in &plan.notes {
        line("note", note.clone());
    }
    if let Some(points) = sketch {
        out.push_str(&draw(points));
    }
    out
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
