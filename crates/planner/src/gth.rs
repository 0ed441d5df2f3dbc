//! Direct solution of a banded chain by the elimination of Grassmann, Taksar and Heyman: states are removed
//! one after the other, only sums and products of non-negative numbers occur, and each stationary probability
//! has a small relative error however small it is.

use crate::Error;

/// A square matrix whose row `i` is non-zero only in columns `i − below ..= i + above`.
pub(crate) struct Band {
    size: usize,
    below: usize,
    above: usize,
    cells: Vec<f64>,
}

impl Band {
    pub(crate) fn new(size: usize, below: usize, above: usize) -> Band {
        let (below, above) = (below.min(size - 1), above.min(size - 1));
        Band { size, below, above, cells: vec![0.0; size * (below + above + 1)] }
    }

    /// The cells of `row` in columns `low..=high`.
    pub(crate) fn run(&mut self, row: usize, low: usize, high: usize) -> &mut [f64] {
        let start = row * (self.below + self.above + 1) + self.below;
        &mut self.cells[start + low - row..=start + high - row]
    }

    /// The index of column `column` of `row`.
    fn at(&self, row: usize, column: usize) -> usize {
        row * (self.below + self.above + 1) + self.below + column - row
    }

    /// The stationary distribution of the chain with these transition probabilities. Self-loops do not
    /// matter.
    pub(crate) fn stationary(mut self) -> Result<Vec<f64>, Error> {
        for gone in (1..self.size).rev() {
            let (from, to) = (gone.saturating_sub(self.below), gone);
            let (row, pivot) = (self.at(gone, from), self.at(gone, to));
            let leave: f64 = self.cells[row..pivot].iter().sum();
            for source in gone.saturating_sub(self.above)..gone {
                let cell = self.at(source, gone);
                if self.cells[cell] == 0.0 {
                    continue;
                }
                if leave <= 0.0 {
                    return Err(Error::NotConverged { residual: 1.0 });
                }
                let share = self.cells[cell] / leave;
                self.cells[cell] = share;
                let start = self.at(source, from);
                let (head, tail) = self.cells.split_at_mut(row);
                for (a, b) in head[start..start + to - from].iter_mut().zip(&tail[..to - from]) {
                    *a += share * b;
                }
            }
        }
        let mut pi = vec![0.0; self.size];
        pi[0] = 1.0;
        let mut total = 1.0;
        for state in 1..self.size {
            let low = state.saturating_sub(self.above);
            let inflow: f64 =
                (low..state).map(|source| pi[source] * self.cells[self.at(source, state)]).sum();
            pi[state] = inflow;
            total += inflow;
            if total > 1e200 {
                pi[..=state].iter_mut().for_each(|x| *x *= 1e-200);
                total *= 1e-200;
            }
        }
        pi.iter_mut().for_each(|x| *x /= total);
        Ok(pi)
    }
}
