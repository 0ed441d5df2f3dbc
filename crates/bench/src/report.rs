//! The results of a run as text and as JSON, compared with an earlier run.

use crate::bars::{Reference, Verdict, bars, ratio, references};
use crate::plan::{Party, Plan};
use crate::results::{Line, Results};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// All figures of a run.
#[derive(Serialize, Deserialize)]
pub struct Report {
    /// Seconds since 1970 when it ended.
    pub(crate) when: u64,
    pub(crate) machine: Machine,
    pub(crate) rounds: usize,
    /// Time until the server was ready, with all regions allocated and touched.
    pub(crate) set_up_seconds: f64,
    pub(crate) figures: Vec<Figure>,
    /// Of each work that every deployment does, the deployment that is slowest.
    pub(crate) worst: Vec<Figure>,
    pub(crate) bars: Vec<Judged>,
}

/// The machine of a run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) cores: usize,
    pub(crate) kernel: String,
    /// Load of the last minute at the end of the run: the part above one is other work.
    pub(crate) load: String,
}

/// The figures of one party at one work.
#[derive(Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) work: String,
    pub(crate) party: String,
    pub(crate) unit: String,
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    /// Ratios of its median to others.
    pub(crate) ratios: BTreeMap<String, f64>,
}

/// A target ratio beside the measured one.
#[derive(Serialize, Deserialize)]
pub(crate) struct Judged {
    pub(crate) work: String,
    pub(crate) party: String,
    pub(crate) against: String,
    pub(crate) bar: f64,
    pub(crate) ratio: f64,
    pub(crate) ratio_of_best: f64,
    pub(crate) verdict: Verdict,
}

impl Report {
    pub(crate) fn of(plan: &Plan, results: &Results, set_up: Duration) -> Report {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Report {
            when: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            machine: Machine {
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
                load: read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned(),
            },
            rounds: plan.rounds,
            set_up_seconds: set_up.as_secs_f64(),
            figures: results
                .works()
                .into_iter()
                .flat_map(|work| results.lines(work))
                .map(|line| figure(results, line))
                .collect(),
            worst: worst(results),
            bars: judged(results),
        }
    }

    /// Ratios that changed by more than a tenth since an earlier run: work, party, reference, before, now.
    pub(crate) fn moved(&self, before: &Report) -> Vec<(&Figure, &str, f64, f64)> {
        let mut moved = Vec::new();
        for figure in &self.figures {
            let same = |old: &&Figure| old.work == figure.work && old.party == figure.party;
            let Some(old) = before.figures.iter().find(same) else { continue };
            for (word, &now) in &figure.ratios {
                match old.ratios.get(word) {
                    Some(&was) if (now / was - 1.0).abs() > 0.1 => {
                        moved.push((figure, word.as_str(), was, now));
                    }
                    _ => {}
                }
            }
        }
        moved
    }

    /// The report as text, compared with an earlier run if given.
    #[must_use]
    pub fn text(&self, before: Option<&Report>) -> String {
        let mut text = self.to_string();
        if let Some(before) = before {
            let moved = self.moved(before);
            text.push_str("\nratios that moved by more than a tenth since the last run:");
            text.push_str(if moved.is_empty() { " none\n" } else { "\n" });
            for (figure, word, was, now) in moved {
                let line = format!("  {}, {}: {was:.2} → {now:.2} × {word}\n", figure.work, figure.party);
                text.push_str(&line);
            }
        }
        text
    }

    /// The figures, grouped by work.
    pub(crate) fn works(&self) -> Vec<&[Figure]> {
        self.figures.chunk_by(|one, other| one.work == other.work).collect()
    }
}

fn figure(results: &Results, line: &Line) -> Figure {
    let against = |(word, reference): (&str, Reference)| {
        Some((word.to_owned(), ratio(results, line.work, line.party, reference, Line::median)?))
    };
    Figure {
        work: line.work.to_string(),
        party: line.party.to_string(),
        unit: line.work.unit().to_owned(),
        median: line.median(),
        lowest: line.lowest(),
        highest: line.highest(),
        ratios: references(line).into_iter().filter_map(against).collect(),
    }
}

fn worst(results: &Results) -> Vec<Figure> {
    let slowest = |work| {
        let deployed = results.lines(work).filter(|line| matches!(line.party, Party::Deployed(_)));
        deployed.min_by(|one, other| one.median().total_cmp(&other.median()))
    };
    results.works().into_iter().filter_map(slowest).map(|line| figure(results, line)).collect()
}

/// The target ratios whose parties were measured, with their ratios of medians and of the best rounds.
fn judged(results: &Results) -> Vec<Judged> {
    let judge = |bar: crate::bars::Bar| {
        let of = |sum| ratio(results, bar.work, bar.party, Reference::Party(bar.against), sum);
        let (median, highest) = (of(Line::median)?, of(Line::highest)?);
        Some(Judged {
            work: bar.work.to_string(),
            party: bar.party.to_string(),
            against: bar.against.to_string(),
            bar: bar.least,
            ratio: median,
            ratio_of_best: highest,
            verdict: Verdict::of(bar.least, median, highest),
        })
    };
    bars().into_iter().filter_map(judge).collect()
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::Unclear => "UNCLEAR",
        })
    }
}

/// A table for each kind of work, then the bars.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cores, kernel, load } = &self.machine;
        writeln!(f, "{cores} cores, Linux {kernel}, load {load} at the end; {} rounds", self.rounds)?;
        writeln!(
            f,
            "set-up: {:.2} s until the server served with all its memory touched",
            self.set_up_seconds
        )?;
        for work in self.works() {
            writeln!(f, "\n{}, {} (median, lowest–highest), ratios of medians", work[0].work, work[0].unit)?;
            for figure in work {
                let range = format!("{:.0}–{:.0}", figure.lowest, figure.highest);
                write!(f, "  {:<30} {:>8.0}  {range:<15}", figure.party, figure.median)?;
                for (word, ratio) in &figure.ratios {
                    write!(f, "  {ratio:>5.2} × {word}")?;
                }
                writeln!(f)?;
            }
        }
        if !self.worst.is_empty() {
            writeln!(f, "\nthe worst deployment at each work (median), ratios of medians")?;
        }
        for figure in &self.worst {
            write!(f, "  {:<42} {:<36}", figure.work, figure.party)?;
            write!(f, " {:>8.0} {:<7}", figure.median, figure.unit)?;
            for (word, ratio) in &figure.ratios {
                write!(f, "  {ratio:>5.2} × {word}")?;
            }
            writeln!(f)?;
        }
        writeln!(f)?;
        for judged in &self.bars {
            let Judged { work, party, against, bar, ratio, ratio_of_best, verdict } = judged;
            writeln!(
                f,
                "{verdict:<7} bar {bar:.2}: {work}, {party}: {ratio:.2} of {against} ({ratio_of_best:.2} between the best rounds)",
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crowd::Part;
    use crate::deployments::Deployment;
    use crate::plan::{MIB, Party, Size, Socket, Style, Work};

    fn report(tcp: u64) -> Report {
        let mut results = Results::default();
        let size = Size::of(MIB, 8 * MIB);
        for (party, millis) in
            [(Party::Stream(Socket::Tcp), 10), (Party::Forebay(Socket::Tcp, Style::Blocking), tcp)]
        {
            results.moved(Work::Write(MIB), party, size, Duration::from_millis(millis));
        }
        Report::of(&Plan::new(true, Vec::new(), "/".into(), |_| {}), &results, Duration::from_secs(1))
    }

    #[test]
    fn report_round_trips_and_lists_changed_ratios() {
        let (before, now) = (report(10), report(20));
        let kept: Report =
            serde_json::from_str(&serde_json::to_string(&before).expect("JSON")).expect("a report");
        let moved = now.moved(&kept);
        assert_eq!(moved.len(), 1);
        let (figure, word, was, now_is) = &moved[0];
        assert_eq!((figure.party.as_str(), *word), ("forebay tcp, blocking", "stream"));
        assert!((was - 1.0).abs() < 1e-9 && (now_is - 0.5).abs() < 1e-9, "{was} → {now_is}");
        assert_eq!(kept.bars[0].verdict, Verdict::Met);
        assert_eq!(now.bars[0].verdict, Verdict::Missed);
        assert!(now.text(Some(&kept)).contains("1.00 → 0.50 × stream"));
    }

    #[test]
    fn worst_deployment_of_each_work_is_reported() {
        let mut results = Results::default();
        let (create, stat) = (Part::Create, Part::Stat);
        for (part, party, millis) in [
            (create, Party::Tmpfs, 10),
            (create, Party::Deployed(Deployment::Alone), 20),
            (create, Party::Deployed(Deployment::Before), 100),
            (stat, Party::Tmpfs, 10),
            (stat, Party::Deployed(Deployment::Alone), 40),
            (stat, Party::Deployed(Deployment::Before), 5),
        ] {
            results.done(Work::Crowd { part, processes: 1 }, party, 100, Duration::from_millis(millis));
        }
        let plan = Plan::new(true, Vec::new(), "/".into(), |_| {});
        let report = Report::of(&plan, &results, Duration::from_secs(1));
        let worst: Vec<_> =
            report.worst.iter().map(|figure| (figure.work.as_str(), figure.party.as_str())).collect();
        let (before, alone) = ("forebay, service before a directory", "forebay, service");
        assert_eq!(worst, [("create, one process", before), ("stat, one process", alone)]);
        assert!((report.worst[0].ratios["tmpfs"] - 0.1).abs() < 1e-9);
        assert!(report.to_string().contains("the worst deployment at each work"));
    }
}
