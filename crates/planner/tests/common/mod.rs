//! An independent reference: matrices from their definition, and a dense solve with pivoting.
#![allow(dead_code, reason = "each test program uses its part")]

use forebay_planner::{App, Fraction, Metrics, Platform, Rng, Units};

pub(crate) fn apps(list: &[(f64, usize)]) -> Vec<App> {
    list.iter().enumerate().map(|(i, (p, b))| App::new(format!("a{i}"), *p, *b).unwrap()).collect()
}

pub(crate) fn platform(bandwidth: usize, capacity: usize, threshold: f64) -> Platform {
    Platform {
        bandwidth: Units(bandwidth),
        capacity: Units(capacity),
        threshold: Fraction::new(threshold).unwrap(),
    }
}

/// A random small system: up to six applications, bandwidth up to 12, capacity up to 40.
pub(crate) fn random_system(seed: u64) -> (Vec<App>, Platform) {
    let mut rng = Rng::new(seed);
    let count = 1 + (rng.bits() % 6) as usize;
    let list: Vec<(f64, usize)> = (0..count)
        .map(|_| {
            let p = if rng.chance(0.1) { 0.0 } else { rng.unit().powi(1 + (rng.bits() % 3) as i32) };
            (p, (rng.bits() % 20) as usize)
        })
        .collect();
    let bandwidth = 1 + (rng.bits() % 12) as usize;
    let capacity = if rng.chance(0.1) { 0 } else { (rng.bits() % 41) as usize };
    let threshold = [0.0, 0.0, 0.2, 0.5, 1.0, 0.37][(rng.bits() % 6) as usize];
    (apps(&list), platform(bandwidth, capacity, threshold))
}

/// The load's distribution by enumeration of all subsets.
pub(crate) fn subsets(apps: &[App]) -> Vec<f64> {
    let total: usize = apps.iter().map(|a| a.b.0).sum();
    let mut mass = vec![0.0; total + 1];
    for set in 0..1u32 << apps.len() {
        let (mut p, mut k) = (1.0, 0);
        for (i, app) in apps.iter().enumerate() {
            if set >> i & 1 == 1 {
                p *= app.p.get();
                k += app.b.0;
            } else {
                p *= 1.0 - app.p.get();
            }
        }
        mass[k] += p;
    }
    mass
}

/// The transition matrix over 0 … S + Σb, entry by entry, for applications that overflow into the buffer.
pub(crate) fn matrix(apps: &[App], platform: &Platform) -> Vec<Vec<f64>> {
    let mass = subsets(apps);
    let (b, s) = (platform.bandwidth.0, platform.capacity.0);
    let threshold = (platform.threshold.get() * s as f64 + 1e-9).floor() as usize;
    let n = s + mass.len();
    let mut rows = vec![vec![0.0; n]; n];
    for (j, row) in rows.iter_mut().enumerate() {
        if j > s {
            row[j.saturating_sub(b)] = 1.0;
            continue;
        }
        for (k, m) in mass.iter().enumerate() {
            let to = (j + k).saturating_sub(b);
            if k < b && j < threshold {
                row[to] += 0.01 * m;
                row[j] += 0.99 * m;
            } else {
                row[to] += m;
            }
        }
    }
    rows
}

/// The states reachable from the empty buffer. The others have probability 0, and including them can make the
/// system singular to working precision: a set of states that is left only once in 10¹⁵ steps looks closed.
fn reachable(rows: &[Vec<f64>]) -> Vec<usize> {
    let mut seen = vec![false; rows.len()];
    let mut open = vec![0];
    seen[0] = true;
    while let Some(state) = open.pop() {
        for (to, p) in rows[state].iter().enumerate() {
            if *p > 0.0 && !seen[to] {
                seen[to] = true;
                open.push(to);
            }
        }
    }
    (0..rows.len()).filter(|state| seen[*state]).collect()
}

/// Solves π = πP, Σπ = 1 by Gaussian elimination with partial pivoting.
#[allow(clippy::needless_range_loop, reason = "matrix code reads best with its indices")]
pub(crate) fn dense(rows: &[Vec<f64>]) -> Vec<f64> {
    let states = reachable(rows);
    let n = states.len();
    let mut a = vec![vec![0.0; n + 1]; n];
    for i in 0..n {
        for j in 0..n {
            a[j][i] = rows[states[i]][states[j]] - f64::from(u8::from(i == j));
        }
    }
    a[n - 1] = vec![1.0; n + 1];
    for c in 0..n {
        let pivot = (c..n).max_by(|x, y| a[*x][c].abs().total_cmp(&a[*y][c].abs())).unwrap();
        a.swap(c, pivot);
        for r in c + 1..n {
            let f = a[r][c] / a[c][c];
            if f != 0.0 {
                for k in c..=n {
                    a[r][k] -= f * a[c][k];
                }
            }
        }
    }
    let mut x = vec![0.0; n];
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|j| a[i][j] * x[j]).sum();
        x[i] = (a[i][n] - known) / a[i][i];
    }
    let mut pi = vec![0.0; rows.len()];
    for (state, x) in states.iter().zip(x) {
        pi[*state] = x;
    }
    pi
}

/// Idle, quiet, overflow and mean occupancy from a matrix and its stationary distribution, by their definitions.
pub(crate) fn by_definition(rows: &[Vec<f64>], pi: &[f64], s: usize) -> [f64; 4] {
    let idle = pi[s + 1..].iter().sum();
    let quiet = (0..=s).map(|k| pi[k] * rows[k][k..].iter().sum::<f64>()).sum();
    let overflow = (0..=s).map(|k| pi[k] * rows[k][s + 1..].iter().sum::<f64>()).sum();
    let mean = pi.iter().enumerate().map(|(k, x)| k as f64 * x).sum();
    [idle, quiet, overflow, mean]
}

pub(crate) fn answers(m: &Metrics) -> [f64; 4] {
    [m.idle, m.quiet, m.overflow, m.mean_occupancy]
}

pub(crate) fn close(a: f64, b: f64, tolerance: f64, what: &str) {
    assert!((a - b).abs() <= tolerance, "{what}: {a} is not {b} within {tolerance}");
}
