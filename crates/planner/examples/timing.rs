//! How long the planner needs: `cargo run --release -p forebay-planner --example timing`.
#![allow(clippy::print_stdout, reason = "a table for a person")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "measures time around the pure code")]

use forebay_planner::{App, Chain, Fraction, Metrics, Platform, Recipe, Rng, Units};
use std::time::Instant;

fn set(p_max: f64, alpha: f64) -> Vec<App> {
    let recipe = Recipe { count: 20, p_max, load: alpha * 100.0, burst: 1.0, jitter: 0.1 };
    recipe.generate(&mut Rng::new(7)).expect("a valid recipe")
}

fn main() {
    println!("one solution: S = 10,000, 20 applications, bandwidth 100");
    println!(
        "{:>6} {:>6} {:>6} {:>6} {:>10} {:>7} {:>10} {:>10}",
        "p_max", "alpha", "thresh", "Σb", "ms", "rounds", "residual", "idle"
    );
    for p_max in [0.05, 0.1, 0.3, 1.0] {
        for alpha in [0.5, 0.9, 1.0, 1.2] {
            for threshold in [0.0, 0.2] {
                let apps = set(p_max, alpha);
                let platform = Platform {
                    bandwidth: Units(100),
                    capacity: Units(10_000),
                    threshold: Fraction::new(threshold).expect("a fraction"),
                };
                let start = Instant::now();
                let metrics = Metrics::of(&Chain::of(&apps, &platform).expect("a chain"));
                let ms = start.elapsed().as_secs_f64() * 1e3;
                let sum: usize = apps.iter().map(|a| a.b.0).sum();
                match metrics {
                    Ok(m) => println!(
                        "{p_max:>6} {alpha:>6} {threshold:>6} {sum:>6} {ms:>10.1} {:>7} {:>10.1e} {:>10.2e}",
                        m.stationary.rounds, m.stationary.residual, m.idle
                    ),
                    Err(e) => println!("{p_max:>6} {alpha:>6} {threshold:>6} {sum:>6} {ms:>10.1} {e}"),
                }
            }
        }
    }
}
