//! The storage targets that a job's files would use.

use forebay_model::Bytes;
use forebay_policy::place::{FilePlan, Plan, Shape, Stripes, Topology, imbalance};
use serde::{Serialize, Serializer};
use std::fmt;

/// Files and resources shown in a table; the rest is summed up.
const SHOWN: usize = 32;
/// Width of the longest bar in characters.
const BAR: usize = 40;

/// A job's files and the balance of the load.
#[derive(Serialize)]
pub(crate) struct Placed {
    files: Vec<File>,
    load: Loads,
    imbalance: Imbalance,
}

#[derive(Serialize)]
struct File {
    /// The first writer of the file.
    writer: usize,
    targets: Vec<String>,
    stripe_size: u64,
    stripe_count: usize,
    #[serde(skip_serializing_if = "is_alone")]
    writers: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    components: Vec<Component>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_alone(writers: &usize) -> bool {
    *writers == 1
}

#[derive(Serialize)]
struct Component {
    end: Option<u64>,
    targets: Vec<String>,
    stripe_size: u64,
    stripe_count: usize,
}

/// Stripe counts by name.
type Named = Vec<(String, u64)>;

#[derive(Serialize)]
struct Loads {
    #[serde(serialize_with = "as_map")]
    target: Named,
    #[serde(serialize_with = "as_map")]
    server: Named,
    #[serde(serialize_with = "as_map")]
    router: Named,
}

fn as_map<S: Serializer>(loads: &Named, out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(loads.iter().map(|(name, load)| (name, load)))
}

#[derive(Serialize)]
struct Imbalance {
    target: f64,
    server: f64,
    router: f64,
}

impl Placed {
    pub(crate) fn new(topology: &Topology, plan: &Plan) -> Placed {
        let of = topology.description();
        let names = |stripes: &Stripes| {
            stripes.targets.iter().map(|&target| of.targets[target as usize].name.clone()).collect()
        };
        let file = |file: &FilePlan| {
            let none = Stripes { targets: Vec::new(), size: 0 };
            let (whole, components) = match &file.shape {
                Shape::Striped(stripes) => (stripes, Vec::new()),
                Shape::Progressive(parts) => {
                    let component = |part: &forebay_policy::place::Component| Component {
                        end: part.end,
                        targets: names(&part.stripes),
                        stripe_size: part.stripes.size,
                        stripe_count: part.stripes.targets.len(),
                    };
                    let last = parts.last().map_or(&none, |part| &part.stripes);
                    (last, parts.iter().map(component).collect())
                }
                Shape::Usual => (&none, Vec::new()),
            };
            File {
                writer: file.writers.start,
                targets: names(whole),
                stripe_size: whole.size,
                stripe_count: whole.targets.len(),
                writers: file.writers.len(),
                components,
            }
        };
        let named = |names: Vec<&String>, load: &[u64]| {
            names.into_iter().cloned().zip(load.iter().copied()).collect::<Named>()
        };
        let capacity = topology.capacities();
        Placed {
            files: plan.files.iter().map(file).collect(),
            load: Loads {
                target: named(of.targets.iter().map(|target| &target.name).collect(), &plan.load.target),
                server: named(of.servers.iter().map(|server| &server.name).collect(), &plan.load.server),
                router: named(of.routers.iter().map(|router| &router.name).collect(), &plan.load.router),
            },
            imbalance: Imbalance {
                target: imbalance(&plan.load.target, &capacity.target),
                server: imbalance(&plan.load.server, &capacity.server),
                router: imbalance(&plan.load.router, &capacity.router),
            },
        }
    }
}

fn lies(targets: &[String], size: u64) -> String {
    let shown: Vec<&str> = targets.iter().take(8).map(String::as_str).collect();
    let more = targets.len() - shown.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{} × {} on {}{more}", targets.len(), Bytes(size), shown.join(", "))
}

fn bars(f: &mut fmt::Formatter<'_>, kind: &str, loads: &Named, imbalance: f64) -> fmt::Result {
    if loads.is_empty() {
        return Ok(());
    }
    let most = loads.iter().map(|(_, load)| *load).max().unwrap_or(0);
    let least = loads.iter().map(|(_, load)| *load).min().unwrap_or(0);
    write!(f, "\n\n{kind}s: {least} to {most} stripes, the busiest {:.1} % above even", imbalance * 100.0)?;
    let width = loads.iter().take(SHOWN).map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, load) in loads.iter().take(SHOWN) {
        let length = (*load as usize * BAR).div_ceil(most.max(1) as usize);
        write!(f, "\n  {name:<width$} {load:>7} {}", "█".repeat(length))?;
    }
    match loads.len().saturating_sub(SHOWN) {
        0 => Ok(()),
        more => write!(f, "\n  and {more} more"),
    }
}

impl fmt::Display for Placed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8}  stripes", "writer")?;
        for file in self.files.iter().take(SHOWN) {
            let who = match file.writers {
                1 => file.writer.to_string(),
                more => format!("{}–{}", file.writer, file.writer + more - 1),
            };
            if file.components.is_empty() {
                write!(f, "\n{who:>8}  {}", lies(&file.targets, file.stripe_size))?;
            }
            for (number, part) in file.components.iter().enumerate() {
                let who = if number == 0 { who.as_str() } else { "" };
                let end = part.end.map_or("the end".to_owned(), |end| Bytes(end).to_string());
                write!(f, "\n{who:>8}  {} up to {end}", lies(&part.targets, part.stripe_size))?;
            }
        }
        if self.files.len() > SHOWN {
            write!(f, "\n{:>8}  and {} files more", "", self.files.len() - SHOWN)?;
        }
        bars(f, "target", &self.load.target, self.imbalance.target)?;
        bars(f, "server", &self.load.server, self.imbalance.server)?;
        bars(f, "router", &self.load.router, self.imbalance.router)
    }
}
