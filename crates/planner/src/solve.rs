//! The stationary distribution of a chain.
//!
//! Small chains are eliminated directly. Large ones are solved block by block (Koury, McAllister, Stewart):
//! the chain of blocks is eliminated exactly and gives each block its weight, then each block is solved
//! exactly against the flow from all others. The result is accepted by its residual, never by a number of
//! rounds; where the rounds do not converge, the chain is eliminated directly.

use crate::gth::Band;
use crate::{Chain, Error};

/// The total absolute imbalance ‖πP − π‖₁ up to which an iterated result is accepted.
pub const RESIDUAL: f64 = 1e-13;
/// Work (multiply-adds) up to which elimination of the whole chain is faster.
const DIRECT: usize = 20_000_000;
/// Estimated error of an iterated result at which the rounds end.
const AHEAD: f64 = 1e-13;
const BLOCK: usize = 64;
/// Rounds before the estimate is trusted: fast initial progress can hide a slow component.
const FEWEST: usize = 6;
const ROUNDS: usize = 200;
/// When iterating, loads whose total probability is below this are merged into the largest load kept.
const NEGLIGIBLE: f64 = 1e-17;
/// Blocks lighter than this keep the shape of the first rounds; the effect is not measurable.
const FAINT: f64 = 1e-20;

/// A stationary distribution and how it was computed.
#[derive(Clone, PartialEq, Debug)]
pub struct Stationary {
    /// Probability of each state, normal and overflow.
    pub pi: Vec<f64>,
    /// ‖πP − π‖₁ over the normal states, measured.
    pub residual: f64,
    /// Rounds of the iteration; 0 for direct elimination.
    pub rounds: usize,
}

/// Solves π = πP for `chain`.
pub fn stationary(chain: &Chain) -> Result<Stationary, Error> {
    let n = chain.capacity() + 1;
    let below = chain.bandwidth().min(n);
    let above = chain.steps().reach().min(n);
    let work = n.saturating_mul(below).saturating_mul(above);
    if chain.steps().reach() == 0 {
        // The load never exceeds the bandwidth: the buffer stays empty.
        let mut pi = vec![0.0; n];
        pi[0] = 1.0;
        return Ok(Stationary { pi, residual: 0.0, rounds: 0 });
    }
    let iterated = if work <= DIRECT || n <= 2 * BLOCK { None } else { blocks(chain)? };
    let (normal, rounds) = match iterated {
        Some(found) => found,
        None => (direct(chain)?, 0),
    };
    let residual = imbalance(chain, &normal);
    if residual.is_nan() || residual > RESIDUAL {
        return Err(Error::NotConverged { residual });
    }
    Ok(Stationary { pi: with_overflows(chain, normal), residual, rounds })
}

fn direct(chain: &Chain) -> Result<Vec<f64>, Error> {
    let n = chain.capacity() + 1;
    let mut band = Band::new(n, chain.bandwidth(), chain.steps().reach());
    for from in 0..n {
        let (low, high) = chain.span(from);
        chain.fill(from, low, high, band.run(from, low, high));
    }
    band.stationary()
}

/// ‖πP − π‖₁ over the normal states.
fn imbalance(chain: &Chain, pi: &[f64]) -> f64 {
    let mut next = vec![0.0; pi.len()];
    chain.scatter(0, pi, 0, &mut next, &mut Vec::new());
    next.iter().zip(pi).map(|(a, b)| (a - b).abs()).sum()
}

/// Adds the overflow states: each is entered from a normal state or from the overflow state above it.
fn with_overflows(chain: &Chain, mut pi: Vec<f64>) -> Vec<f64> {
    let (s, b) = (chain.capacity(), chain.bandwidth());
    pi.resize(chain.states(), 0.0);
    let (normal, over) = pi.split_at_mut(s + 1);
    let first = s.saturating_sub(chain.steps().reach());
    for (from, weight) in normal.iter().enumerate().skip(first) {
        let moves = chain.law(from).mass.iter().skip(s + 1 + b - from);
        for (to, m) in over.iter_mut().zip(moves) {
            *to += weight * m;
        }
    }
    for above in (b..over.len()).rev() {
        over[above - b] += over[above];
    }
    let total: f64 = pi.iter().sum();
    pi.iter_mut().for_each(|x| *x /= total);
    pi
}

/// One block of consecutive states: the distribution within it, and its outgoing flow.
struct Block {
    first: usize,
    /// Distribution over its states, summing to one.
    inner: Vec<f64>,
    /// Factors of I − P within the block.
    factors: Vec<f64>,
    /// Flow of `inner`, to states `base` ….
    base: usize,
    flow: Vec<f64>,
}

impl Block {
    fn end(&self) -> usize {
        self.first + self.inner.len()
    }

    /// The part of the flow that enters states `low..high`.
    fn into(&self, low: usize, high: usize) -> (usize, &[f64]) {
        let from = low.clamp(self.base, self.base + self.flow.len());
        let to = high.clamp(from, self.base + self.flow.len());
        (from, &self.flow[from - self.base..to - self.base])
    }
}

/// The result and its rounds, or `None` if the rounds do not converge: with very few, very regular
/// applications the blocks can oscillate.
fn blocks(chain: &Chain) -> Result<Option<(Vec<f64>, usize)>, Error> {
    let chain = &chain.without(NEGLIGIBLE);
    let n = chain.capacity() + 1;
    let mut scratch = Vec::new();
    let mut blocks: Vec<Block> = (0..n)
        .step_by(BLOCK)
        .map(|first| block(chain, first, (first + BLOCK).min(n), &mut scratch))
        .collect();
    let mut pi = vec![0.0; n];
    let (mut last, mut rate, mut stalled) = (1.0, 1.0, 0);
    for round in 1..=ROUNDS {
        let mut weight = coarse(&blocks)?;
        for k in (0..blocks.len()).rev() {
            if round >= FEWEST && weight[k] < FAINT {
                continue;
            }
            let (first, end) = (blocks[k].first, blocks[k].end());
            let mut inflow = vec![0.0; end - first];
            for (other, w) in
                blocks.iter().zip(&weight).filter(|(other, w)| other.first != first && **w > 0.0)
            {
                let (from, part) = other.into(first, end);
                if !part.is_empty() {
                    inflow[from - first..].iter_mut().zip(part).for_each(|(i, x)| *i += w * x);
                }
            }
            let block = &mut blocks[k];
            solve_left(&block.factors, &mut inflow);
            let total: f64 = inflow.iter().sum();
            weight[k] = total;
            if total > 0.0 {
                inflow.iter_mut().for_each(|x| *x /= total);
                block.inner = inflow;
                block.flow.fill(0.0);
                chain.scatter(first, &block.inner, block.base, &mut block.flow, &mut scratch);
            }
        }
        let next = assemble(&blocks, &weight);
        let change: f64 = next.iter().zip(&pi).map(|(a, b)| (a - b).abs()).sum();
        pi = next;
        // The remaining change of further rounds, if they converge no faster than the last ones.
        rate = (change / last).max(rate * 0.9).min(0.9999);
        let ahead = change * rate / (1.0 - rate);
        stalled = if change < last { 0 } else { stalled + 1 };
        last = change;
        if round >= FEWEST && (ahead <= AHEAD || stalled > 3 && change <= RESIDUAL) {
            let converged = imbalance(chain, &pi) <= RESIDUAL;
            return Ok(converged.then_some((pi, round)));
        }
    }
    Ok(None)
}

fn block(chain: &Chain, first: usize, end: usize, scratch: &mut Vec<f64>) -> Block {
    let size = end - first;
    let mut factors = vec![0.0; size * size];
    for (row, from) in factors.chunks_exact_mut(size).zip(first..end) {
        chain.fill(from, first, end - 1, row);
    }
    let outside = (first..end).map(|from| chain.outside(from, first, end - 1)).collect();
    factor(&mut factors, outside);
    let base = (first..end).map(|from| chain.span(from).0).min().expect("a block has states");
    let top = chain.span(end - 1).1;
    let mut block =
        Block { first, inner: vec![1.0 / size as f64; size], factors, base, flow: vec![0.0; top + 1 - base] };
    chain.scatter(first, &block.inner, base, &mut block.flow, scratch);
    block
}

/// Prepares x·(I − P) = r for a block whose rows leave it with probability `outside`. As in the elimination
/// of a whole chain nothing is subtracted: the diagonal is the sum of all outgoing probabilities.
fn factor(cells: &mut [f64], mut outside: Vec<f64>) {
    let size = outside.len();
    for gone in (0..size).rev() {
        let (rows, rest) = cells.split_at_mut(gone * size);
        let row = &mut rest[..size];
        let leave = row[..gone].iter().sum::<f64>() + outside[gone];
        for source in 0..gone {
            let share = rows[source * size + gone] / leave;
            rows[source * size + gone] = share;
            if share > 0.0 {
                let into = &mut rows[source * size..source * size + gone];
                into.iter_mut().zip(&row[..gone]).for_each(|(a, b)| *a += share * b);
                outside[source] += share * outside[gone];
            }
        }
        row[..gone].iter_mut().for_each(|x| *x /= leave);
        row[gone] = leave;
    }
}

/// Replaces `r` by the x with x·(I − P) = r.
fn solve_left(factors: &[f64], r: &mut [f64]) {
    let size = r.len();
    for gone in (1..size).rev() {
        let (below, rest) = r.split_at_mut(gone);
        below.iter_mut().zip(&factors[gone * size..]).for_each(|(x, f)| *x += rest[0] * f);
    }
    for (k, row) in factors.chunks_exact(size).enumerate() {
        r[k] /= row[k];
    }
    for (k, row) in factors.chunks_exact(size).enumerate() {
        let (done, rest) = r.split_at_mut(k + 1);
        rest.iter_mut().zip(&row[k + 1..]).for_each(|(x, share)| *x += done[k] * share);
    }
}

/// The weights of the blocks: the stationary distribution of the chain between them.
fn coarse(blocks: &[Block]) -> Result<Vec<f64>, Error> {
    let last = |state: usize| state / BLOCK;
    let below = blocks.iter().enumerate().map(|(k, b)| k - last(b.base)).max().unwrap_or(0);
    let above =
        blocks.iter().enumerate().map(|(k, b)| last(b.base + b.flow.len() - 1) - k).max().unwrap_or(0);
    let mut band = Band::new(blocks.len(), below, above);
    for (k, block) in blocks.iter().enumerate() {
        let (low, high) = (last(block.base), last(block.base + block.flow.len() - 1));
        let row = band.run(k, low, high);
        for (cell, to) in row.iter_mut().zip(&blocks[low..=high]) {
            *cell = block.into(to.first, to.end()).1.iter().sum();
        }
    }
    band.stationary()
}

fn assemble(blocks: &[Block], weight: &[f64]) -> Vec<f64> {
    let total: f64 = weight.iter().sum();
    blocks.iter().zip(weight).flat_map(|(b, w)| b.inner.iter().map(move |x| x * w / total)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recipe, Rng, Steps, Units};

    #[test]
    fn direct_and_block_solutions_agree() {
        let mut converged = 0;
        for seed in 0..40 {
            let mut rng = Rng::new(seed);
            let recipe = Recipe {
                count: 1 + seed as usize % 20,
                p_max: [0.05, 0.2, 0.6, 1.0][seed as usize % 4],
                load: rng.between(5.0, 40.0),
                burst: 1.0,
                jitter: 0.0,
            };
            let apps = recipe.generate(&mut rng).unwrap();
            let capacity = 130 + (rng.bits() % 500) as usize;
            let threshold = capacity * (seed as usize % 3) / 3;
            let steps = Steps::of(&apps, Units(1 + (rng.bits() % 50) as usize)).unwrap();
            let chain = Chain::with(steps, Units(capacity), Units(threshold)).unwrap();
            if chain.steps().reach() == 0 {
                continue;
            }
            let Some((pieces, rounds)) = blocks(&chain).unwrap() else { continue };
            let whole = direct(&chain).unwrap();
            let apart: f64 = whole.iter().zip(&pieces).map(|(a, b)| (a - b).abs()).sum();
            assert!(apart < 1e-11, "seed {seed}: {apart:e} after {rounds} rounds");
            converged += 1;
        }
        assert!(converged >= 28, "only {converged} of 40 converged");
    }
}
