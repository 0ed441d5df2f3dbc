//! The input of a dry run: a topology, weights and a job.

use crate::failure::{Failure, Outcome};
use crate::keys::{File, Table, Value};
use forebay_model::{Error, JobId};
use forebay_policy::place::{Pattern, Topology, Weights, Writer};
use forebay_report::topology::{self, Written, bytes};
use std::path::{Path, PathBuf};

/// Maximum number of writers of one job.
const MOST_WRITERS: u32 = 1 << 24;

/// A job and the file system it writes to.
pub(super) struct Spec {
    pub(super) written: Written,
    pub(super) weights: Weights,
    pub(super) job: u64,
    pub(super) writers: Vec<Writer>,
    pub(super) pattern: Pattern,
    pub(super) file_size: Option<u64>,
    pub(super) stripe_count: Option<u32>,
    pub(super) stripe_size: Option<u64>,
}

/// Reads a topology without a job.
pub(super) fn topology(path: &Path, exclude: &[String]) -> Outcome<Written> {
    elsewhere(path, exclude)
}

impl Spec {
    pub(super) fn load(path: &Path) -> Outcome<Spec> {
        let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, &error))?;
        let name = path.display().to_string();
        let file = File { name: &name, text: &text };
        let mut top = Table::top(&file).map_err(Failure::misread)?;
        let exclude = top.take("exclude").map_or(Ok(Vec::new()), |value| value.texts());
        let exclude = exclude.map_err(Failure::misread)?;
        let written = match top.take("topology") {
            None => {
                let help = "write it as a table headed [topology], or name its file";
                return Err(Failure::misread(top.missing("topology", help)));
            }
            Some(value) => match value.text().map(|name| beside(path, name)) {
                Ok(other) => elsewhere(&other, &exclude)?,
                Err(_) => value
                    .table("topology: ")
                    .and_then(|table| topology::read(&file, table, &exclude))
                    .map_err(Failure::misread)?,
            },
        };
        spec(top, written).map_err(Failure::misread)
    }
}

fn beside(path: &Path, name: &str) -> PathBuf {
    path.parent().unwrap_or(Path::new(".")).join(name)
}

fn elsewhere(path: &Path, exclude: &[String]) -> Outcome<Written> {
    let text = std::fs::read_to_string(path).map_err(|error| Failure::local("read", path, &error))?;
    let name = path.display().to_string();
    let file = File { name: &name, text: &text };
    let read = || topology::read(&file, Table::top(&file)?, exclude);
    read().map_err(Failure::misread)
}

fn spec(mut top: Table<'_>, written: Written) -> Result<Spec, Error> {
    let weights = top.take("weights").map_or(Ok(written.weights), topology::weights)?;
    let lists = top.take("writer").map_or(Ok(Vec::new()), |value| value.tables("writer"))?;
    let mut job = top
        .take("job")
        .ok_or_else(|| top.missing("job", "write it as a table headed [job], with its pattern"))?
        .table("job: ")?;
    let id = job.take("id").map_or(Ok("1".to_owned()), |value| value.name().map(|name| name.to_string()))?;
    let each = job.take("size").map(|value| bytes(&value)).transpose()?.map(|bytes| bytes.0);
    let pattern = pattern(&mut job)?;
    let mut writers = Vec::new();
    for list in lists {
        repeated(list, &written.topology, each, &mut writers)?;
    }
    if let Some(value) = job.take("writers") {
        let count = value.whole(1..=MOST_WRITERS)?;
        if !writers.is_empty() {
            return Err(value.wrong("writers are listed as [[writer]] already"));
        }
        let clients = written.topology.description().clients.len() as u32;
        let client = |number: u32| (clients > 0).then(|| number % clients);
        writers.extend((0..count).map(|number| Writer { client: client(number), bytes: each }));
    }
    if writers.is_empty() {
        return Err(job.missing("writers", "how many write; or list them as tables headed [[writer]]"));
    }
    let size = |value: Option<Value<'_>>| value.map(|value| bytes(&value).map(|size| size.0)).transpose();
    let spec = Spec {
        weights,
        job: JobId::from_label(&id).0,
        pattern,
        file_size: size(job.take("file_size"))?,
        stripe_size: size(job.take("stripe_size"))?,
        stripe_count: stripe_count(&mut job, written.limits.stripes)?,
        writers,
        written,
    };
    job.finish("id, pattern, writers, writers_per_file, size, file_size, stripe_count, stripe_size")?;
    top.finish("topology, exclude, weights, job, writer")?;
    Ok(spec)
}

fn stripe_count(job: &mut Table<'_>, most: u32) -> Result<Option<u32>, Error> {
    let Some(value) = job.take("stripe_count") else { return Ok(None) };
    match value.whole(1..=u32::MAX)? {
        count if count <= most => Ok(Some(count)),
        count => Err(value.wrong(format!(
            "{count} targets for one file are more than the back end allows: at most {most}"
        ))),
    }
}

fn pattern(job: &mut Table<'_>) -> Result<Pattern, Error> {
    let together = job.take("writers_per_file");
    let value = job.take("pattern").ok_or_else(|| job.missing("pattern", "\"N:N\", \"N:1\" or \"N:M\""))?;
    match (value.text()?, together) {
        ("N:N", None) => Ok(Pattern::PerProcess),
        ("N:1", None) => Ok(Pattern::Shared),
        ("N:M", Some(count)) => Ok(Pattern::Grouped(count.whole(1..=MOST_WRITERS)?)),
        ("N:M", None) => Err(job.missing("writers_per_file", "the number of writers per file, for N:M")),
        ("N:N" | "N:1", Some(count)) => Err(count.wrong("only with the pattern N:M")),
        (other, _) => Err(value.wrong(format!("\"{other}\" is no pattern: write N:N, N:1 or N:M"))),
    }
}

fn repeated(
    mut list: Table<'_>,
    topology: &Topology,
    each: Option<u64>,
    writers: &mut Vec<Writer>,
) -> Result<(), Error> {
    let value = list.take("client").ok_or_else(|| list.missing("client", "where it runs"))?;
    let name = value.name()?.to_string();
    let client = topology.client(&name);
    let client =
        client.ok_or_else(|| value.wrong(format!("there is no client \"{name}\" in the topology")))?;
    let size = list.take("size").map(|value| bytes(&value)).transpose()?;
    let left = MOST_WRITERS - (writers.len() as u32).min(MOST_WRITERS - 1);
    let count = list.take("count").map_or(Ok(1), |value| value.whole(1..=left))?;
    list.finish("client, size, count")?;
    let writer = Writer { client: Some(client), bytes: size.map(|size| size.0).or(each) };
    writers.extend(std::iter::repeat_n(writer, count as usize));
    Ok(())
}
