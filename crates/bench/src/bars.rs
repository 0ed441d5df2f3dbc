//! The target ratios, and the references of each figure.

use crate::crowd::Part;
use crate::deployments::{DEPLOYMENTS, Deployment};
use crate::plan::{Crew, Fio, How, KIB, MIB, Party, Socket, Style, Work};
use crate::results::{Line, Results};

/// A target ratio.
pub(crate) struct Bar {
    pub(crate) work: Work,
    pub(crate) party: Party,
    pub(crate) against: Party,
    pub(crate) least: f64,
}

/// Verdict on a target ratio. Other load slows one party more than another, and affects medians most: the
/// verdict is certain only where medians and best rounds agree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Met,
    Missed,
    Unclear,
}

impl Verdict {
    pub(crate) fn of(least: f64, median: f64, highest: f64) -> Verdict {
        match (median >= least, highest >= least) {
            (true, true) => Verdict::Met,
            (false, false) => Verdict::Missed,
            _ => Verdict::Unclear,
        }
    }
}

const fn fio(how: How, chunk: usize, crew: Crew) -> Work {
    Work::Fio(Fio { how, chunk, crew })
}

/// All target ratios of the design.
pub(crate) fn bars() -> Vec<Bar> {
    use Party::{Copy, Disk, Library, Mount, PassThrough, Tmpfs};
    let tcp = |style| Party::Forebay(Socket::Tcp, style);
    let stream = Party::Stream(Socket::Tcp);
    let (large, two) = (fio(How::Write, MIB, Crew::One), fio(How::Write, MIB, Crew::FileEach));
    let rows = [
        (large, Library, Tmpfs, 3.0),
        (fio(How::Write, 4 * KIB, Crew::One), Library, Tmpfs, 2.0),
        (two, Library, Copy, 0.7),
        (two, Library, Disk, 1.0),
        (fio(How::Read, MIB, Crew::One), Library, Tmpfs, 1.0),
        (fio(How::Read, MIB, Crew::One), Library, Disk, 0.8),
        (Work::ProgramCreate, Library, Tmpfs, 0.5),
        (Work::ProgramStat, Library, Tmpfs, 0.5),
        (Work::ProgramUnlink, Library, Tmpfs, 0.5),
        (Work::Write(MIB), tcp(Style::Blocking), stream, 0.85),
        (Work::Write(MIB), tcp(Style::Async(4)), stream, 0.85),
        (Work::Read(MIB), tcp(Style::Blocking), stream, 0.85),
        (Work::Read(MIB), tcp(Style::Async(4)), stream, 0.85),
        (large, Mount, PassThrough, 0.9),
    ];
    let bars = rows.map(|(work, party, against, least)| Bar { work, party, against, least });
    bars.into_iter().chain(DEPLOYMENTS.into_iter().flat_map(bars_of)).collect()
}

/// The target ratios of a deployment, for one process.
fn bars_of(deployment: Deployment) -> impl Iterator<Item = Bar> {
    let (large, small) = match deployment {
        Deployment::RunAtOnce => (1.8, 1.0),
        _ => (2.5, 1.5),
    };
    let rows = [
        (Part::Large, large),
        (Part::Small, small),
        (Part::Create, 0.5),
        (Part::Stat, 1.0),
        (Part::Unlink, 0.5),
        (Part::WriteFiles, 0.4),
        (Part::ReadFiles, 0.4),
    ];
    rows.into_iter().map(move |(part, least)| Bar {
        work: Work::Crowd { part, processes: 1 },
        party: Party::Deployed(deployment),
        against: Party::Tmpfs,
        least,
    })
}

/// The denominator of a ratio.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reference {
    Party(Party),
    /// The same party at other work.
    Work(Work),
}

/// The references of a line, with their names.
pub(crate) fn references(line: &Line) -> Vec<(&'static str, Reference)> {
    let party = |word, party| (word, Reference::Party(party));
    let socket = match line.party {
        Party::Forebay(socket, _) => socket,
        Party::Deployed(_) => return vec![party("tmpfs", Party::Tmpfs), party("disk", Party::Disk)],
        Party::Dispatch => return vec![party("plain", Party::Plain)],
        Party::Library | Party::FirstSearch if line.work == Work::Start => {
            return vec![party("without search", Party::NoSearch)];
        }
        Party::Servers(_) => return vec![party("one server", Party::Servers(1))],
        Party::Library | Party::Mount => {
            return vec![
                party("tmpfs", Party::Tmpfs),
                party("disk", Party::Disk),
                party("pass-through", Party::PassThrough),
                party("copy", Party::Copy),
            ];
        }
        _ => return Vec::new(),
    };
    match line.work {
        Work::Write(_) | Work::Read(_) => vec![
            party("stream", Party::Stream(socket)),
            party("req/ack", Party::Turns(socket)),
            party("tmpfs", Party::Tmpfs),
            party("disk", Party::Disk),
        ],
        Work::Create | Work::Stat | Work::Unlink => vec![party("tmpfs", Party::Tmpfs)],
        Work::Beyond | Work::Drained => vec![party("disk", Party::Disk)],
        Work::OneFile(writers) => vec![("file each", Reference::Work(Work::FileEach(writers)))],
        _ => Vec::new(),
    }
}

/// A ratio of medians, or of another summary of a line.
pub(crate) fn ratio(
    results: &Results,
    work: Work,
    party: Party,
    against: Reference,
    sum: fn(&Line) -> f64,
) -> Option<f64> {
    let (other_work, other_party) = match against {
        Reference::Party(other) => (work, other),
        Reference::Work(other) => (other, party),
    };
    Some(sum(results.line(work, party)?) / sum(results.line(other_work, other_party)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_needs_medians_and_best_rounds_to_agree() {
        for (median, highest, verdict) in [
            (0.6, 0.7, Verdict::Met),
            (0.5, 0.59, Verdict::Missed),
            (1.5, 0.5, Verdict::Unclear),
            (0.5, 0.7, Verdict::Unclear),
        ] {
            assert_eq!(Verdict::of(0.6, median, highest), verdict, "{median} {highest}");
        }
    }
}
