#![allow(clippy::all, clippy::print_stdout, missing_docs)]
use forebay_model::Bytes;
use forebay_policy::device::{Curve, Device};
use forebay_policy::share::Tick;
use forebay_sim::figures::{FIGURES, Settings};
fn main() {
    let ost = Device { curve: Curve::trio(), seek: Tick(1_870_000), streams: 32, queue: 0 };
    let hdd = Device {
        curve: Curve::new(&[(1, Bytes(185_000_000))]).unwrap(),
        seek: Tick(1_870_000),
        streams: 1,
        queue: 128,
    };
    let quick = std::env::args().nth(2).is_none();
    let s = Settings { quick, seed: 1, ost, hdd };
    let which = std::env::args().nth(1).unwrap_or_default();
    for f in FIGURES.iter().filter(|f| f.id.starts_with(&which)) {
        let t = std::time::Instant::now();
        let d = match f.make(&s) {
            Ok(d) => d,
            Err(e) => {
                println!("{}: {e}", f.id);
                continue;
            }
        };
        println!("== {} {} ({:.1} s)", f.id, f.title, t.elapsed().as_secs_f64());
        for n in &d.numbers {
            println!(
                "   {:60} {:>10} {:>10.3} {}",
                n.what,
                n.paper.map_or("".into(), |p| format!("{p:.3}")),
                n.ours,
                n.unit
            );
        }
        for c in &d.claims {
            println!("   {} {}: {}", if c.holds { "HOLDS" } else { "FAILS" }, c.text, c.detail);
        }
    }
}
