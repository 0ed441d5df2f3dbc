//! Figures collected over the rounds.

use crate::plan::{Party, Size, Work};
use std::time::{Duration, Instant};

/// All figures of a run, in the order of their first occurrence.
#[derive(Default)]
pub(crate) struct Results {
    lines: Vec<Line>,
}

/// The figures of one party at one work.
pub(crate) struct Line {
    pub(crate) work: Work,
    pub(crate) party: Party,
    figures: Vec<f64>,
}

impl Results {
    /// Records the duration of a transfer.
    pub(crate) fn moved(&mut self, work: Work, party: Party, size: Size, took: Duration) {
        self.note(work, party, size.bytes() as f64 / 1e6 / took.as_secs_f64());
    }

    /// Records the duration of the given number of operations.
    pub(crate) fn done(&mut self, work: Work, party: Party, count: usize, took: Duration) {
        self.note(work, party, count as f64 / took.as_secs_f64());
    }

    /// Records what one operation costs, in the unit of the work.
    pub(crate) fn cost(&mut self, work: Work, party: Party, cost: f64) {
        self.note(work, party, cost);
    }

    fn note(&mut self, work: Work, party: Party, figure: f64) {
        let found = self.lines.iter_mut().find(|line| line.work == work && line.party == party);
        match found {
            Some(line) => line.figures.push(figure),
            None => self.lines.push(Line { work, party, figures: vec![figure] }),
        }
    }

    /// Every kind of work, once.
    pub(crate) fn works(&self) -> Vec<Work> {
        let mut works = Vec::new();
        for line in &self.lines {
            if !works.contains(&line.work) {
                works.push(line.work);
            }
        }
        works
    }

    pub(crate) fn lines(&self, work: Work) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(move |line| line.work == work)
    }

    pub(crate) fn line(&self, work: Work, party: Party) -> Option<&Line> {
        self.lines(work).find(|line| line.party == party)
    }
}

impl Line {
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.figures.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
    }

    pub(crate) fn lowest(&self) -> f64 {
        self.figures.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn highest(&self) -> f64 {
        self.figures.iter().copied().fold(0.0, f64::max)
    }
}

/// The duration of a closure.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_figures() {
        for (figures, median) in [(&[3.0, 1.0, 2.0][..], 2.0), (&[4.0, 1.0][..], 2.5), (&[7.0][..], 7.0)] {
            let mut results = Results::default();
            for &figure in figures {
                results.note(Work::Stat, Party::Tmpfs, figure);
            }
            assert_eq!(results.line(Work::Stat, Party::Tmpfs).map(Line::median), Some(median), "{figures:?}");
        }
    }
}
