//! The report: one self-contained HTML file, for phones and desktops, light and dark.

use super::answer::{Answer, QUANTILES, place, points};
use super::input::Plan;
use super::sweep::{Key, Sweep};
use crate::draw::chart::{Chart, Shape};
use crate::draw::svg::{self, escape};
use crate::quantity::{show, show_bytes, show_share};
use forebay_planner::{
    Content, Effort, Error, Influence, Metrics, Observed, Rng, Route, Steps, Units, expected_load, mean_idle,
    simulate,
};
use std::fmt::Write;

/// The charts of a plan, each with the name of its file.
pub fn charts(plan: &Plan, answer: &Answer, seed: u64) -> Result<Vec<(&'static str, Chart)>, Error> {
    let steps = Steps::of(&plan.apps, plan.platform.bandwidth)?;
    let reach = answer.recommended.capacity.map_or(0, |c| c.0).max(plan.platform.capacity.0);
    let top = (reach * 3 / 2).max(2 * plan.platform.bandwidth.0) as f64;
    Ok(vec![
        ("load", load(plan, answer)),
        ("idle-capacity", against_capacity(plan, answer, &steps, top)?),
        ("threshold", against_threshold(plan, &steps)?),
        ("simulation", against_simulation(plan, &steps, top, seed)?),
        ("occupancy", occupancy(plan, &answer.metrics)),
    ])
}

fn measure(plan: &Plan) -> String {
    if plan.scale.real { format!("in units of {}", show_bytes(plan.scale.bytes)) } else { "in units".into() }
}

fn load(plan: &Plan, answer: &Answer) -> Chart {
    let exact = answer.load.cumulative();
    // End the axis where the curve is close to 1.
    let end = exact
        .iter()
        .position(|c| *c > 0.9999)
        .unwrap_or(exact.len() - 1)
        .max(plan.platform.bandwidth.0 * 5 / 4);
    let every = (end / 300).max(1);
    let xs = || (0..=end).step_by(every);
    let at = |f: &dyn Fn(usize) -> f64| xs().map(|x| (x as f64, f(x))).collect::<Vec<_>>();
    let mut chart = Chart {
        title: "Load of a time unit".into(),
        x: format!("load x, {}", measure(plan)),
        y: "P(load ≤ x)".into(),
        y_top: Some(1.0),
        flags: vec![(plan.platform.bandwidth.0 as f64, "bandwidth".into())],
        ..Chart::default()
    };
    if let Some(most) = plan.buffer_bandwidth {
        chart.flags.push((most.0 as f64, "buffer's bandwidth".into()));
    }
    chart
        .with("P(load ≤ x), exact", 0, Shape::Filled, at(&|x| exact.get(x).copied().unwrap_or(1.0)))
        .with("lower bound", 1, Shape::Dashed, at(&|x| answer.bounds.lower(x as f64)))
        .with("upper bound", 2, Shape::Dashed, at(&|x| answer.bounds.upper(x as f64)))
}

fn against_capacity(plan: &Plan, answer: &Answer, steps: &Steps, top: f64) -> Result<Chart, Error> {
    let sweep = Sweep::even(Key::Capacity, top, (top / 40.0).ceil().max(1.0));
    let found = points(plan, steps, &sweep)?;
    let mut chart = Chart {
        title: "Idle time against size".into(),
        x: format!("capacity, {}", measure(plan)),
        y: "idle time".into(),
        flags: vec![(plan.platform.capacity.0 as f64, "planned".into())],
        ..Chart::default()
    };
    if let Some(capacity) = answer.recommended.capacity.filter(|c| *c != plan.platform.capacity) {
        chart.flags.push((capacity.0 as f64, "recommended".into()));
    }
    let threshold = show_share(plan.platform.threshold.get());
    Ok(chart.with(
        &format!("idle time, threshold {threshold}"),
        3,
        Shape::Filled,
        found.iter().map(|p| (p.at, p.idle)).collect(),
    ))
}

fn against_threshold(plan: &Plan, steps: &Steps) -> Result<Chart, Error> {
    let found = points(plan, steps, &Sweep::even(Key::Threshold, 1.0, 0.05))?;
    let chart = Chart {
        title: "Idle and quiet time against threshold".into(),
        x: "threshold, share of the capacity".into(),
        y: "share of time".into(),
        x_percent: true,
        y_top: Some(1.0),
        flags: vec![(plan.platform.threshold.get(), "planned".into())],
        ..Chart::default()
    };
    Ok(chart.with("quiet", 2, Shape::Line, found.iter().map(|p| (p.at, p.quiet)).collect()).with(
        "idle",
        3,
        Shape::Filled,
        found.iter().map(|p| (p.at, p.idle)).collect(),
    ))
}

fn against_simulation(plan: &Plan, steps: &Steps, top: f64, seed: u64) -> Result<Chart, Error> {
    let sweep = Sweep::even(Key::Capacity, top, (top / 8.0).ceil().max(1.0));
    let chain = points(plan, steps, &sweep)?;
    let run = |at: &f64| -> Result<Observed, Error> {
        let platform = place(&plan.platform, Key::Capacity, *at)?;
        simulate(&plan.apps, &platform, &Effort::default(), &mut Rng::new(seed))
    };
    let seen: Vec<Observed> =
        super::answer::each(&sweep.values(), run).into_iter().collect::<Result<_, _>>()?;
    let means = sweep.values().into_iter().zip(&seen).map(|(at, o)| (at, o.idle.mean)).collect();
    let edges =
        seen.iter().map(|o| ((o.idle.mean - o.idle.half_width).max(0.0), o.idle.mean + o.idle.half_width));
    let chart = Chart {
        title: "Model against simulation".into(),
        x: format!("capacity, {}", measure(plan)),
        y: "idle time".into(),
        ..Chart::default()
    };
    Ok(chart.with("discrete events, 95 % interval", 1, Shape::Ribbon(edges.collect()), means).with(
        "Markov chain",
        0,
        Shape::Line,
        chain.iter().map(|p| (p.at, p.idle)).collect(),
    ))
}

fn occupancy(plan: &Plan, metrics: &Metrics) -> Chart {
    let pi = &metrics.stationary.pi;
    let end = metrics.quantile(0.9999).max(plan.platform.capacity.0);
    let mut above = 1.0;
    let tail: Vec<(f64, f64)> = (0..=end)
        .map(|k| {
            above -= pi.get(k).copied().unwrap_or(0.0);
            (k as f64, above.max(0.0))
        })
        .collect();
    let every = (tail.len() / 400).max(1);
    let chart = Chart {
        title: "How full the buffer is".into(),
        x: format!("occupancy x, {}", measure(plan)),
        y: "P(occupancy > x)".into(),
        flags: vec![(plan.platform.capacity.0 as f64, "capacity".into())],
        ..Chart::default()
    };
    chart.with("P(occupancy > x)", 4, Shape::Filled, tail.into_iter().step_by(every).collect())
}

const STYLE: &str = "\
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,'Segoe UI',\
Roboto,'DejaVu Sans',sans-serif}main{max-width:1120px;margin:0 auto;padding:28px 16px 56px}h1{font-size:1.6rem;line-height:1.2;margin:0 0 4px}\
h2{font-size:1.1rem;margin:32px 0 10px}p{margin:4px 0}.faint{color:var(--faint)}.lead{font-size:1.1rem;margin:14px 0 20px}\
.grid{display:grid;gap:14px}.keys{grid-template-columns:repeat(auto-fit,minmax(150px,1fr))}\
.plots{grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}.card{background:var(--card);border:1px solid var(--grid);\
border-radius:12px;padding:12px 14px;min-width:0}.plots .card{padding:4px}.card svg{display:block;width:100%;height:auto}\
.key b{display:block;font-size:1.45rem;line-height:1.25;font-weight:650}.key span{color:var(--faint);font-size:.86rem}\
.best{border-color:var(--s0);border-width:2px}.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;\
font-size:.92rem}th,td{text-align:right;padding:6px 10px;border-bottom:1px solid var(--grid);white-space:nowrap}\
th:first-child,td:first-child{text-align:left}table.wrap td{white-space:normal}th{color:var(--faint);font-weight:500}tr:last-child td{border-bottom:0}\
footer{margin-top:36px;font-size:.85rem}";

/// The whole page.
pub fn render(plan: &Plan, answer: &Answer, charts: &[(&str, Chart)]) -> String {
    let mut out = String::new();
    let title = escape(&plan.title);
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\"><title>{title} – Forebay plan</title>\
         <style>{}{STYLE}</style></head><body><main><p class=\"faint\">Forebay plan</p><h1>{title}</h1><p class=\"lead\">{}</p>",
        svg::STYLE,
        lead(plan, answer)
    );
    keys(plan, answer, &mut out);
    out.push_str("<h2>Pictures</h2><div class=\"grid plots\">");
    for (name, chart) in charts {
        let _ = write!(
            out,
            "<figure class=\"card\" style=\"margin:0\" id=\"{name}\">{}</figure>",
            svg::inline(&chart.scene())
        );
    }
    out.push_str("</div>");
    applications(plan, answer.influences.as_deref(), answer.metrics.idle, &mut out);
    details(plan, answer, &mut out);
    out.push_str("<footer class=\"faint\"><p>Idle: share of time in which every application is blocked because the buffer overflows. \
        Quiet: share of time in which the buffer does not drain. Numbers of the model are exact in whole units; simulations carry 95 % intervals.</p></footer>\
        </main></body></html>\n");
    out
}

fn units(plan: &Plan, units: Units) -> String {
    if plan.scale.real { show_bytes(units.0 as f64 * plan.scale.bytes) } else { format!("{} units", units.0) }
}

fn lead(plan: &Plan, answer: &Answer) -> String {
    let target = show_share(plan.target_idle);
    match answer.recommended.capacity {
        Some(capacity) => format!(
            "A buffer of <b>{}</b> keeps idle time within {target}. Start to drain it at <b>{}</b> of its capacity.",
            units(plan, capacity),
            show_share(answer.recommended.choice.threshold.get())
        ),
        None if answer.unavoidable > plan.target_idle => format!(
            "No buffer keeps idle time within {target}: the load exceeds the bandwidth, and {} of idle time remain however large it is.",
            show_share(answer.unavoidable)
        ),
        None => format!("No buffer of up to 100,000 units keeps idle time within {target}."),
    }
}

fn keys(plan: &Plan, answer: &Answer, out: &mut String) {
    let m = &answer.metrics;
    let key = |value: String, name: &str, best: bool| {
        let class = if best { "card key best" } else { "card key" };
        format!("<div class=\"{class}\"><b>{value}</b><span>{name}</span></div>")
    };
    let share = expected_load(&plan.apps) / plan.platform.bandwidth.0 as f64;
    out.push_str("<div class=\"grid keys\">");
    if let Some(capacity) = answer.recommended.capacity {
        out.push_str(&key(units(plan, capacity), "recommended capacity", true));
    }
    out.push_str(&key(units(plan, plan.platform.capacity), "planned capacity", false));
    out.push_str(&key(show_share(m.idle), "idle", false));
    out.push_str(&key(show_share(m.quiet), "quiet", false));
    out.push_str(&key(show_share(m.overflow), "of time units overflow", false));
    out.push_str(&key(show_share(share), "mean load of the bandwidth", false));
    if let Some(cost) = &answer.cost {
        out.push_str(&key(show(cost.price), "price as planned", false));
        if let Some(years) = cost.years {
            out.push_str(&key(format!("{} years", show(years)), "until worn out", false));
        }
    }
    out.push_str("</div>");
}

fn applications(plan: &Plan, influences: Option<&[Influence]>, idle: f64, out: &mut String) {
    out.push_str("<h2>Applications</h2><div class=\"card scroll\"><table><tr><th>name<th>p<th>b<th>share of load<th>way");
    out.push_str(if influences.is_some() {
        "<th>idle without it<th>idle with 10 % more</tr>"
    } else {
        "</tr>"
    });
    let total = expected_load(&plan.apps).max(f64::MIN_POSITIVE);
    for (i, app) in plan.apps.iter().enumerate() {
        let way = match (app.content, app.route) {
            (Content::Read, _) => "read on demand",
            (Content::PrefetchedRead, _) => "read ahead",
            (Content::Checkpoint, _) => "checkpoint",
            (_, Route::Overflow) => "overflow",
            (_, Route::Buffer) => "buffer",
            (_, Route::Direct) => "direct",
        };
        let share = show_share(app.load() / total);
        let _ = write!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{share}<td>{way}",
            escape(&app.name),
            show(app.p.get()),
            app.b.0
        );
        if let Some(influence) = influences.and_then(|list| list.get(i)) {
            let _ = write!(
                out,
                "<td>{}<td>{}",
                show_share(influence.idle_without),
                show_share(influence.idle_more)
            );
        }
        out.push_str("</tr>");
    }
    out.push_str("</table></div>");
    if influences.is_some() {
        let _ = write!(out, "<p class=\"faint\">As planned: {} idle.</p>", show_share(idle));
    }
}

fn details(plan: &Plan, answer: &Answer, out: &mut String) {
    let m = &answer.metrics;
    out.push_str("<h2>Details</h2><div class=\"card\"><table class=\"wrap\">");
    let mut row = |name: &str, value: String| {
        let _ = write!(out, "<tr><td>{name}<td>{value}</tr>");
    };
    row("bandwidth", units(plan, plan.platform.bandwidth) + " per time unit");
    if plan.scale.real {
        row("time unit", format!("{} s", show(plan.scale.seconds)));
        row("data unit", show_bytes(plan.scale.bytes));
    }
    row("threshold", show_share(plan.platform.threshold.get()));
    row("time units over the bandwidth", show_share(answer.over_bandwidth));
    if let Some(p) = answer.over_buffer {
        row("time units over the buffer's bandwidth", show_share(p));
    }
    row("mean occupancy", units(plan, Units(m.mean_occupancy.round() as usize)));
    for q in QUANTILES {
        row(&format!("occupancy at most, {} of the time", show_share(q)), units(plan, Units(m.quantile(q))));
    }
    if let Some(monte_carlo) =
        answer.monte_carlo.as_ref().filter(|monte_carlo| monte_carlo.dropped.mean > 0.0)
    {
        row(
            "stored data dropped because a newer checkpoint replaced it",
            show_share(monte_carlo.dropped.mean),
        );
        let idle = monte_carlo.observed.idle;
        row(
            "idle with superseded checkpoints dropped",
            format!("{} ± {}", show_share(idle.mean), show_share(idle.half_width)),
        );
    }
    if m.direct_wait > 0.0 {
        row("direct traffic waits", show_share(m.direct_wait));
    }
    if let Some(parts) = &answer.parts {
        row(&format!("idle with {} separate buffers", parts.len()), show_share(mean_idle(parts)));
    }
    if let Some(cost) = &answer.recommended.cost {
        row("price as recommended", show(cost.price));
    }
    for note in &plan.notes {
        row("note", escape(note));
    }
    out.push_str("</table></div>");
}
