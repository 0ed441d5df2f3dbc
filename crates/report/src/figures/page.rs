//! The summary page: each figure with the paper's numbers, its claims, and whether they hold.

use super::{Made, chart};
use crate::draw::svg::{self, escape};
use crate::quantity::show;
use forebay_sim::figures::{Drawn, Number, Paper, Settings};
use std::fmt::Write;

const STYLE: &str = "\
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--text);font:16px/1.5 system-ui,-apple-system,'Segoe UI',\
Roboto,'DejaVu Sans',sans-serif}main{max-width:1160px;margin:0 auto;padding:28px 16px 56px}h1{font-size:1.6rem;line-height:1.2;margin:0 0 8px}\
h2{font-size:1.25rem;margin:44px 0 10px}h3{font-size:1.05rem;margin:0 0 8px}p{margin:4px 0}.faint{color:var(--faint);font-size:.9rem}\
section{background:var(--card);border:1px solid var(--grid);border-radius:12px;padding:16px;margin:14px 0}\
.plots{display:grid;gap:8px;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr))}svg{display:block;width:100%;height:auto;max-width:560px}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.92rem;margin:8px 0}\
th,td{text-align:right;padding:4px 10px;border-bottom:1px solid var(--grid)}th:first-child,td:first-child{text-align:left}\
th{color:var(--faint);font-weight:500}tr:last-child td{border-bottom:0}ul{padding:0;margin:8px 0;list-style:none}li{margin:4px 0}\
.holds::before,.fails::before{display:inline-block;min-width:7.5em;margin-right:.6em;padding:0 .5em;border-radius:6px;font-size:.85rem;text-align:center}\
.holds::before{content:'holds';background:#0d948833}.fails::before{content:'does not hold';background:#e11d4833}\
nav a,li a{color:inherit}nav>span{display:inline-block;margin:0 1.1em .2em 0}.scroll{overflow-x:auto}";

/// The whole page.
pub fn render(all: &[Made], settings: &Settings) -> String {
    let mut out = String::new();
    let claims = || all.iter().filter_map(|made| made.drawn.as_ref().ok()).flat_map(|drawn| &drawn.claims);
    let (held, total) = (claims().filter(|claim| claim.holds).count(), claims().count());
    let effort = if settings.quick { "quick: less data, fewer repetitions" } else { "in full" };
    let _ = write!(
        out,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width,initial-scale=1\"><title>The papers' figures – Forebay</title><style>{}{STYLE}</style></head>\
         <body><main><h1>The papers' figures, made by Forebay's own policies</h1>\
         <p>Forebay is built from five papers. Here their figures are made anew in a simulator that runs the code of the daemon: who is \
         served next, what leaves the buffer next, who may write to which target. Beside each are the numbers that the paper's text gives, \
         ours, and what the paper claims about the figure, with whether ours confirms it. <b>{held} of {total} claims hold.</b></p>\
         <p class=\"faint\">Made {effort}, seed {}. Storage targets are those of <code>scenarios/devices.toml</code>, fitted to TRIO's Fig. 1 \
         and SSDUP's Fig. 2 and to nothing else. The same command gives the same page, to the last byte, but for ssdup-t2, which measures a machine.</p>",
        svg::STYLE,
        settings.seed
    );
    failures(all, &mut out);
    for paper in Paper::ALL {
        let of = || all.iter().filter(move |made| made.figure.paper == paper);
        if of().next().is_none() {
            continue;
        }
        let _ = write!(out, "<h2>{}</h2><nav>", escape(paper.title()));
        of().for_each(|made| {
            let claims = made.drawn.as_ref().map_or(&[][..], |drawn| &drawn.claims);
            let held = claims.iter().filter(|claim| claim.holds).count();
            let _ = write!(
                out,
                "<span><a href=\"#{0}\">{0}</a> <span class=\"faint\">{held} of {1}</span></span>",
                made.figure.id,
                claims.len()
            );
        });
        out.push_str("</nav>");
        of().for_each(|made| figure(made, &mut out));
    }
    out.push_str("</main></body></html>\n");
    out
}

/// All claims that do not hold, in one section.
fn failures(all: &[Made], out: &mut String) {
    let drawn = all.iter().filter_map(|made| Some((made.figure.id, made.drawn.as_ref().ok()?)));
    let failed = drawn.flat_map(|(id, drawn)| drawn.claims.iter().map(move |claim| (id, claim)));
    let mut failed = failed.filter(|(_, claim)| !claim.holds).peekable();
    if failed.peek().is_none() {
        return;
    }
    out.push_str("<h2>What does not hold, and why</h2><section><ul>");
    for (id, claim) in failed {
        let (text, detail) = (escape(&claim.text), escape(&claim.detail));
        let _ = write!(
            out,
            "<li class=\"fails\"><a href=\"#{id}\">{id}</a> {text} <span class=\"faint\">{detail}</span></li>"
        );
    }
    out.push_str("</ul></section>");
}

fn figure(made: &Made, out: &mut String) {
    let (id, title) = (made.figure.id, escape(made.figure.title));
    let _ = write!(
        out,
        "<section id=\"{id}\"><h3>{}: {title} <span class=\"faint\">{id}</span></h3>",
        called(id)
    );
    match &made.drawn {
        Err(why) => {
            let _ = write!(out, "<p>Cannot be made: {}</p>", escape(why));
        }
        Ok(drawn) => body(drawn, out),
    }
    out.push_str("</section>");
}

/// The paper's name for it: `trio-3` is Fig. 3, `ssdup-t1` is Table 1.
fn called(id: &str) -> String {
    match id.rsplit_once('-').map(|(_, number)| number) {
        Some(number) if number.starts_with('t') => format!("Table {}", &number[1..]),
        Some(number) => format!("Fig. {number}"),
        None => id.to_owned(),
    }
}

fn body(drawn: &Drawn, out: &mut String) {
    out.push_str("<div class=\"plots\">");
    for panel in &drawn.panels {
        let _ = write!(out, "<figure style=\"margin:0\">{}</figure>", svg::inline(&chart(panel).scene()));
    }
    out.push_str("</div><ul>");
    for claim in &drawn.claims {
        let class = if claim.holds { "holds" } else { "fails" };
        let _ = write!(
            out,
            "<li class=\"{class}\">{} <span class=\"faint\">{}</span></li>",
            escape(&claim.text),
            escape(&claim.detail)
        );
    }
    out.push_str("</ul>");
    if !drawn.numbers.is_empty() {
        out.push_str("<div class=\"scroll\"><table><tr><th>number<th>paper<th>ours<th>difference</tr>");
        drawn.numbers.iter().for_each(|number| row(number, out));
        out.push_str("</table></div>");
    }
    if drawn.numbers.iter().all(|number| number.paper.is_none()) {
        out.push_str("<p class=\"faint\">The paper's text gives no numbers for this figure.</p>");
    }
    for note in &drawn.notes {
        let _ = write!(out, "<p class=\"faint\">{}</p>", escape(note));
    }
}

fn row(number: &Number, out: &mut String) {
    let value = |value: f64| match number.unit {
        "share" => format!("{:.1} %", value * 100.0),
        // A rounding error shown as 0.
        unit if value.abs() < 1e-9 => format!("0 {unit}"),
        unit => format!("{} {unit}", show(value)),
    };
    let paper = number.paper.map_or("–".to_owned(), value);
    let difference = match number.unit {
        "share" => number.paper.map(|paper| format!("{:+.1} points", (number.ours - paper) * 100.0)),
        _ => number.difference().map(|part| format!("{:+.1} %", part * 100.0)),
    };
    let difference = difference.unwrap_or_else(|| "–".to_owned());
    let _ = write!(
        out,
        "<tr><td>{}<td>{paper}<td>{}<td>{difference}</tr>",
        escape(&number.what),
        value(number.ours)
    );
}
