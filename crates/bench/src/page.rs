//! The HTML page of a run: self-contained, bars for every party, the target ratios on top.

use crate::bars::Verdict;
use crate::report::{Figure, Machine, Report};
use std::fmt::Write;

const STYLE: &str = "
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1d2a33; }
h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; } table { border-collapse: collapse; }
td, th { padding: .15rem .8rem .15rem 0; text-align: left; font-variant-numeric: tabular-nums; }
.row { display: grid; grid-template-columns: 15rem 1fr 18rem; gap: .8rem; align-items: center; }
.track { position: relative; height: 1rem; background: #eef2f4; } .track i { position: absolute; display: block; height: 100%; }
.bar { background: #8aa3b1; } .ours .bar { background: #0b7285; } .span { background: #1d2a33; opacity: .35; height: 2px !important; top: 7px; }
.met { color: #2b8a3e; } .missed { color: #c92a2a; } .unclear { color: #b35c00; } small { color: #5b6b75; }
@media (prefers-color-scheme: dark) { body { background: #14191d; color: #e3e9ed; } .track { background: #232b31; } .span { background: #fff; } small { color: #9fb0bb; } }
";

/// The page of a run, compared with an earlier one if given.
#[must_use]
pub fn page(report: &Report, before: Option<&Report>) -> String {
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width\">\
         <title>Forebay: benchmark</title><style>{STYLE}</style><h1>Forebay, side by side</h1>"
    );
    let Machine { cores, kernel, load } = &report.machine;
    let _ = write!(
        out,
        "<p>{cores} cores, Linux {kernel}, load {load} at the end. {} rounds, every party in turn; bars are medians, thin \
         lines go from the lowest to the highest figure. Files on tmpfs and disk are fresh and stay in the page cache. \
         The server served after {:.2} s, with all its regions allocated and touched.</p>",
        report.rounds, report.set_up_seconds
    );
    worst(&mut out, report);
    bars(&mut out, report);
    if let Some(before) = before {
        changes(&mut out, report, before);
    }
    for work in report.works() {
        let _ = write!(out, "<h2>{} <small>{}</small></h2>", work[0].work, work[0].unit);
        let most = work.iter().map(|figure| figure.highest).fold(f64::MIN_POSITIVE, f64::max);
        work.iter().for_each(|figure| row(&mut out, figure, most));
    }
    out.push_str("</html>\n");
    out
}

fn worst(out: &mut String, report: &Report) {
    if report.worst.is_empty() {
        return;
    }
    out.push_str("<h2>The worst deployment at each work</h2><table><tr><th>work<th>deployment<th>median<th>ratios of medians");
    for figure in &report.worst {
        let ratios = figure.ratios.iter().map(|(word, ratio)| format!("{ratio:.2} × {word}"));
        let ratios = ratios.collect::<Vec<_>>().join(", ");
        let Figure { work, party, median, unit, .. } = figure;
        let _ = write!(out, "<tr><td>{work}<td>{party}<td>{median:.0} {unit}<td>{ratios}");
    }
    out.push_str("</table>");
}

fn bars(out: &mut String, report: &Report) {
    out.push_str(
        "<h2>Bars</h2><table><tr><th><th>work<th>who<th>against<th>bar<th>ratio of medians<th>of best rounds",
    );
    for bar in &report.bars {
        let class = match bar.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "missed",
            Verdict::Unclear => "unclear",
        };
        let _ = write!(
            out,
            "<tr><td class={class}>{class}<td>{}<td>{}<td>{}<td>{:.2}<td>{:.2}<td>{:.2}",
            bar.work, bar.party, bar.against, bar.bar, bar.ratio, bar.ratio_of_best
        );
    }
    out.push_str("</table>");
}

fn changes(out: &mut String, report: &Report, before: &Report) {
    out.push_str("<h2>Since the last run</h2>");
    let moved = report.moved(before);
    if moved.is_empty() {
        out.push_str("<p>No ratio moved by more than a tenth.</p>");
        return;
    }
    out.push_str("<table><tr><th>work<th>who<th>against<th>before<th>now");
    for (figure, word, was, now) in moved {
        let _ = write!(out, "<tr><td>{}<td>{}<td>{word}<td>{was:.2}<td>{now:.2}", figure.work, figure.party);
    }
    out.push_str("</table>");
}

fn row(out: &mut String, figure: &Figure, most: f64) {
    let part = |value: f64| value / most * 100.0;
    let ours = if figure.party.starts_with("forebay") { " ours" } else { "" };
    let (low, wide) = (part(figure.lowest), part(figure.highest - figure.lowest));
    let ratios: Vec<String> =
        figure.ratios.iter().map(|(word, ratio)| format!("{ratio:.2} × {word}")).collect();
    let _ = write!(
        out,
        "<div class=\"row{ours}\"><span>{}</span><span class=track><i class=bar style=\"width:{:.1}%\"></i>\
         <i class=span style=\"left:{low:.1}%;width:{wide:.1}%\"></i></span><span>{:.0} <small>{}</small></span></div>",
        figure.party,
        part(figure.median),
        figure.median,
        ratios.join(", ")
    );
}
