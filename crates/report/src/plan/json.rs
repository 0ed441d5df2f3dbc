//! The answer as JSON.

use super::answer::{Answer, Point, QUANTILES, Recommended};
use super::input::Plan;
use super::sweep::Key;
use forebay_planner::{
    App, Content, Cost, Estimate, Influence, Observed, Part, Route, expected_load, mean_idle,
};
use serde_json::{Map, Value, json};

/// The answer as JSON.
pub fn render(plan: &Plan, answer: &Answer) -> Value {
    let m = &answer.metrics;
    let quantiles: Map<String, Value> =
        QUANTILES.iter().map(|q| (q.to_string(), json!(m.quantile(*q)))).collect();
    let mut out = json!({
        "bandwidth": plan.platform.bandwidth.0,
        "capacity": plan.platform.capacity.0,
        "threshold": plan.platform.threshold.get(),
        "unit": { "seconds": plan.scale.seconds, "mb": plan.scale.bytes / 1e6 },
        "apps": plan.apps.iter().map(app).collect::<Vec<_>>(),
        "expected_load": expected_load(&plan.apps),
        "over_bandwidth": answer.over_bandwidth,
        "idle": m.idle,
        "quiet": m.quiet,
        "overflow": m.overflow,
        "mean_occupancy": m.mean_occupancy,
        "mean_stored": m.mean_stored,
        "written_per_unit": m.written,
        "direct_wait": m.direct_wait,
        "unavoidable_idle": answer.unavoidable,
        "quantiles": quantiles,
        "distribution": answer.load.mass(),
        "occupancy": m.stationary.pi,
        "solver": { "residual": m.stationary.residual, "rounds": m.stationary.rounds },
        "recommended": recommended(plan, &answer.recommended),
        "notes": plan.notes,
    });
    let fields = out.as_object_mut().expect("an object was built");
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(key.to_owned(), value);
        }
    };
    put("over_buffer_bandwidth", answer.over_buffer.map(|p| json!(p)));
    put("sweep", answer.sweep.as_ref().map(|(key, points)| points.iter().map(|p| point(*key, p)).collect()));
    put("simulation", answer.simulated.as_ref().map(observed));
    put(
        "monte_carlo",
        answer.monte_carlo.as_ref().map(|monte_carlo| {
            let mut value = observed(&monte_carlo.observed);
            value["dropped"] = estimate(&monte_carlo.dropped);
            value
        }),
    );
    put("buffers", answer.parts.as_ref().map(|parts| buffers(plan, parts)));
    put("cost", answer.cost.as_ref().map(cost));
    put("sensitivity", answer.influences.as_ref().map(|list| list.iter().map(influence).collect()));
    out
}

fn point(key: Key, p: &Point) -> Value {
    json!({
        key.name(): p.at,
        "idle": p.idle,
        "quiet": p.quiet,
        "overflow": p.overflow,
        "mean_occupancy": p.mean_occupancy,
    })
}

fn influence(i: &Influence) -> Value {
    json!({
        "name": i.name,
        "load_share": i.load_share,
        "idle_without": i.idle_without,
        "idle_more": i.idle_more,
    })
}

/// Separate buffers, each for some of the applications.
fn buffers(plan: &Plan, parts: &[Part]) -> Value {
    let each: Vec<Value> = parts
        .iter()
        .map(|part| {
            json!({
                "apps": part.members.iter().map(|i| &plan.apps[*i].name).collect::<Vec<_>>(),
                "bandwidth": part.platform.bandwidth.0,
                "capacity": part.platform.capacity.0,
                "idle": part.metrics.as_ref().map_or(0.0, |m| m.idle),
            })
        })
        .collect();
    json!({ "mean_idle": mean_idle(parts), "each": each })
}

fn app(app: &App) -> Value {
    let route = match app.route {
        Route::Overflow => "overflow",
        Route::Buffer => "buffer",
        Route::Direct => "direct",
    };
    let content = match app.content {
        Content::Write => "write",
        Content::Checkpoint => "checkpoint",
        Content::Read | Content::PrefetchedRead => "read",
    };
    json!({
        "name": app.name,
        "p": app.p.get(),
        "b": app.b.0,
        "period": app.period,
        "jitter": app.jitter,
        "route": route,
        "content": content,
        "prefetch": app.content == Content::PrefetchedRead,
    })
}

fn recommended(plan: &Plan, found: &Recommended) -> Value {
    json!({
        "capacity": found.capacity.map(|c| c.0),
        "capacity_bytes": found.capacity.map(|c| c.0 as f64 * plan.scale.bytes),
        "threshold": found.choice.threshold.get(),
        "idle": found.choice.metrics.idle,
        "quiet": found.choice.metrics.quiet,
        "target_idle": plan.target_idle,
        "cost": found.cost.as_ref().map(cost),
    })
}

fn cost(cost: &Cost) -> Value {
    json!({
        "terabytes": cost.terabytes,
        "price": cost.price,
        "written_tb_per_day": cost.written_per_day,
        "drive_writes_per_day": cost.drive_writes_per_day,
        "years": cost.years,
    })
}

fn observed(seen: &Observed) -> Value {
    json!({ "idle": estimate(&seen.idle), "quiet": estimate(&seen.quiet), "occupancy": estimate(&seen.occupancy) })
}

fn estimate(e: &Estimate) -> Value {
    json!({ "mean": e.mean, "low": e.mean - e.half_width, "high": e.mean + e.half_width })
}
