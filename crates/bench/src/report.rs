//! Figures for people and for machines.

use crate::board::{Board, Line};
use crate::plan::{Party, Socket, Style, Work};
use serde_json::{Value, json};
use std::fmt::Write;

/// A ratio that is promised.
struct Bar {
    work: Work,
    party: Party,
    against: Reference,
    least: f64,
    /// Whether it is to be reached by the whole project, not yet by this part of it.
    later: bool,
}

/// Other work on the machine slows one party more than another, and most in the medians: only where medians and best
/// rounds agree is anything known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verdict {
    Met,
    Missed,
    Unclear,
}

impl Verdict {
    fn of(bar: &Bar, median: f64, highest: f64) -> Verdict {
        match (median >= bar.least, highest >= bar.least) {
            (true, true) => Verdict::Met,
            (false, false) => Verdict::Missed,
            _ => Verdict::Unclear,
        }
    }
}

/// What a figure is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reference {
    Party(Party),
    /// The same party at another work.
    Work(Work),
}

const MIB: usize = 1 << 20;
const PIPELINED: Style = Style::Async(4);

fn bars() -> Vec<Bar> {
    let tcp = |style, least, later| Bar {
        work: Work::Write(MIB),
        party: Party::Forebay(Socket::Tcp, style),
        against: Reference::Party(Party::Stream(Socket::Tcp)),
        least,
        later,
    };
    let names = |work| Bar {
        work,
        party: Party::Forebay(Socket::Unix, Style::Blocking),
        against: Reference::Party(Party::Tmpfs),
        least: 0.5,
        later: true,
    };
    vec![
        tcp(Style::Blocking, 0.6, false),
        tcp(PIPELINED, 0.6, false),
        tcp(Style::Blocking, 0.85, true),
        tcp(PIPELINED, 0.85, true),
        names(Work::Create),
        names(Work::Stat),
        names(Work::Unlink),
    ]
}

/// What a line is compared with, and the word for it.
fn references(line: &Line) -> Vec<(&'static str, Reference)> {
    let socket = match line.party {
        Party::Forebay(socket, _) => socket,
        Party::Servers(_) => return vec![("one server", Reference::Party(Party::Servers(1)))],
        Party::Library | Party::Mount => {
            return vec![
                ("tmpfs", Reference::Party(Party::Tmpfs)),
                ("disk", Reference::Party(Party::Disk)),
                ("pass-through", Reference::Party(Party::PassThrough)),
            ];
        }
        Party::Stream(_) | Party::Turns(_) | Party::PassThrough | Party::Tmpfs | Party::Disk => {
            return Vec::new();
        }
    };
    match line.work {
        Work::Write(_) | Work::Read(_) => vec![
            ("stream", Reference::Party(Party::Stream(socket))),
            ("req/ack", Reference::Party(Party::Turns(socket))),
            ("tmpfs", Reference::Party(Party::Tmpfs)),
            ("disk", Reference::Party(Party::Disk)),
        ],
        Work::Create | Work::Stat | Work::Unlink => vec![("tmpfs", Reference::Party(Party::Tmpfs))],
        Work::OneFile(writers) => vec![("file each", Reference::Work(Work::FileEach(writers)))],
        Work::FileEach(_) | Work::FioWrite(_) | Work::FioRead(_) => Vec::new(),
    }
}

/// A ratio of medians, or of whatever else a line is summed up by.
fn ratio(board: &Board, work: Work, party: Party, against: Reference, sum: fn(&Line) -> f64) -> Option<f64> {
    let (other_work, other_party) = match against {
        Reference::Party(other) => (work, other),
        Reference::Work(other) => (other, party),
    };
    Some(sum(board.line(work, party)?) / sum(board.line(other_work, other_party)?))
}

/// A table for each kind of work, then the bars.
pub(crate) fn text(board: &Board) -> String {
    let mut out = String::new();
    for work in board.works() {
        let _ = writeln!(out, "\n{work}, {} (median, lowest–highest), ratios of medians", work.unit());
        for line in board.lines(work) {
            let range = format!("{:.0}–{:.0}", line.lowest(), line.highest());
            let _ = write!(out, "  {:<30} {:>8.0}  {range:<15}", line.party.to_string(), line.median());
            for (word, reference) in references(line) {
                if let Some(ratio) = ratio(board, work, line.party, reference, Line::median) {
                    let _ = write!(out, "  {ratio:>5.2} × {word}");
                }
            }
            let _ = writeln!(out);
        }
    }
    let _ = writeln!(out);
    for (bar, median, highest) in judged(board) {
        let verdict = match Verdict::of(&bar, median, highest) {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Unclear => "UNCLEAR",
        };
        let when = if bar.later { "final bar" } else { "bar" };
        let of = match bar.against {
            Reference::Party(party) => party.to_string(),
            Reference::Work(work) => work.to_string(),
        };
        let _ = writeln!(
            out,
            "{verdict:<7} {when} {:.2}: {}, {}: {median:.2} of {of} ({highest:.2} between the best rounds)",
            bar.least, bar.work, bar.party
        );
    }
    out
}

/// The bars whose parties were measured, with their ratios of medians and of the best rounds.
fn judged(board: &Board) -> Vec<(Bar, f64, f64)> {
    let judge = |bar: Bar| {
        let of = |sum| ratio(board, bar.work, bar.party, bar.against, sum);
        Some((of(Line::median)?, of(Line::highest)?)).map(|(median, highest)| (bar, median, highest))
    };
    bars().into_iter().filter_map(judge).collect()
}

/// The same as one JSON object.
pub(crate) fn json(board: &Board) -> Value {
    let figures: Vec<Value> = board
        .works()
        .into_iter()
        .flat_map(|work| board.lines(work))
        .map(|line| {
            let ratios: serde_json::Map<String, Value> = references(line)
                .into_iter()
                .filter_map(|(word, reference)| {
                    Some((
                        word.to_owned(),
                        json!(ratio(board, line.work, line.party, reference, Line::median)?),
                    ))
                })
                .collect();
            json!({
                "work": line.work.to_string(),
                "party": line.party.to_string(),
                "unit": line.work.unit(),
                "median": line.median(),
                "lowest": line.lowest(),
                "highest": line.highest(),
                "ratios": ratios,
            })
        })
        .collect();
    let bars: Vec<Value> = judged(board)
        .into_iter()
        .map(|(bar, median, highest)| {
            json!({
                "work": bar.work.to_string(),
                "party": bar.party.to_string(),
                "bar": bar.least,
                "final": bar.later,
                "ratio": median,
                "ratio_of_best": highest,
                "met": Verdict::of(&bar, median, highest) == Verdict::Met,
            })
        })
        .collect();
    json!({ "figures": figures, "bars": bars })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_met_or_missed_only_where_medians_and_best_rounds_agree() {
        for (median, highest, verdict) in [
            (0.6, 0.7, Verdict::Met),
            (0.5, 0.59, Verdict::Missed),
            (1.5, 0.5, Verdict::Unclear),
            (0.5, 0.7, Verdict::Unclear),
        ] {
            assert_eq!(Verdict::of(&bars()[0], median, highest), verdict, "{median} {highest}");
        }
    }
}
