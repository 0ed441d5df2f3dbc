//! The job of this process, from the environment that the batch system sets.

use forebay_model::{Gid, Job, MAX_LABEL, Uid};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

/// The environment variables of one batch system. Alternative names are tried in order.
struct Batch {
    label: &'static [&'static str],
    /// The index in a job array, if the job id does not include it.
    member: Option<&'static str>,
    user: &'static [&'static str],
    group: &'static [&'static str],
    nodes: &'static [Nodes],
}

/// Where a batch system reports the number of nodes.
enum Nodes {
    /// A number.
    Count(&'static str),
    /// Hosts with their slots: `node1 16 node2 16`.
    Slots(&'static str),
    /// Hosts, repeated for each slot: `node1 node1 node2`.
    Hosts(&'static str),
    /// Path of a file with one host per line, repeated for each slot.
    File(&'static str),
}

const OVERRIDE: Batch = Batch {
    label: &["FOREBAY_JOB_ID"],
    member: None,
    user: &["FOREBAY_JOB_USER"],
    group: &["FOREBAY_JOB_GROUP"],
    nodes: &[Nodes::Count("FOREBAY_JOB_NODES")],
};

const PRIORITY: &str = "FOREBAY_JOB_PRIORITY";

/// PALS and ALPS start applications within PBS or Slurm jobs, whose job id is preferred; so they come last.
const SYSTEMS: [Batch; 6] = [
    Batch {
        label: &["SLURM_JOB_ID", "SLURM_JOBID"],
        member: None,
        user: &["SLURM_JOB_USER"],
        group: &["SLURM_JOB_ACCOUNT"],
        nodes: &[Nodes::Count("SLURM_JOB_NUM_NODES"), Nodes::Count("SLURM_NNODES")],
    },
    Batch {
        label: &["PBS_JOBID"],
        member: None,
        user: &["PBS_O_LOGNAME"],
        group: &["PBS_ACCOUNT"],
        nodes: &[Nodes::Count("PBS_NUM_NODES"), Nodes::Count("PBS_NNODES"), Nodes::File("PBS_NODEFILE")],
    },
    Batch {
        label: &["LSB_JOBID"],
        member: Some("LSB_JOBINDEX"),
        user: &["LSFUSER"],
        group: &["LSB_PROJECT_NAME"],
        nodes: &[Nodes::Slots("LSB_MCPU_HOSTS"), Nodes::Hosts("LSB_HOSTS"), Nodes::File("LSB_DJOB_HOSTFILE")],
    },
    Batch {
        label: &["FLUX_JOB_ID"],
        member: None,
        user: &[],
        group: &[],
        nodes: &[Nodes::Count("FLUX_JOB_NNODES")],
    },
    Batch { label: &["PALS_APID"], member: None, user: &[], group: &[], nodes: &[] },
    Batch {
        label: &["ALPS_APP_ID", "BASIL_RESERVATION_ID"],
        member: None,
        user: &[],
        group: &[],
        nodes: &[],
    },
];

/// The job of a process with this environment, user and group; `read` returns the content of a file.
///
/// `FOREBAY_JOB_ID`, `_USER`, `_GROUP`, `_NODES` and `_PRIORITY` take precedence over the variables of Slurm, PBS, LSF,
/// Flux, PALS and ALPS. Without a batch system the job is the user's interactive work: `interactive-1000`. Invalid
/// values are ignored, so the result is always a valid identity.
pub fn job_from_environment(
    get: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> Option<String>,
    user: Uid,
    group: Gid,
) -> Job {
    let text = |names: &[&str]| names.iter().find_map(|name| get(name).and_then(|text| label(&text)));
    let batch = SYSTEMS.iter().find(|batch| text(batch.label).is_some());
    let choose = |field: fn(&Batch) -> &'static [&'static str]| {
        text(field(&OVERRIDE)).or_else(|| batch.and_then(|batch| text(field(batch))))
    };
    let from_batch = |batch: &Batch| match text(batch.label)? {
        // The rest of the id is the server's name.
        id if batch.label == ["PBS_JOBID"] => Some(id.split('.').next().unwrap_or(&id).to_owned()),
        id => Some(array_member(id, batch.member.and_then(&get).as_deref())),
    };
    let count = |batch: &Batch| batch.nodes.iter().find_map(|nodes| nodes.count(&get, &read));
    Job {
        label: text(OVERRIDE.label)
            .or_else(|| batch.and_then(from_batch).and_then(|id| label(&id)))
            .unwrap_or_else(|| format!("interactive-{user}")),
        user: choose(|batch| batch.user)
            .or_else(|| text(&["LOGNAME", "USER"]))
            .unwrap_or_else(|| user.to_string()),
        group: choose(|batch| batch.group).unwrap_or_else(|| group.to_string()),
        nodes: count(&OVERRIDE).or_else(|| batch.and_then(count)).unwrap_or(1),
        priority: text(&[PRIORITY]).and_then(|text| text.parse().ok()).unwrap_or(1),
    }
}

impl Nodes {
    fn count(
        &self,
        get: impl Fn(&str) -> Option<String>,
        read: impl Fn(&str) -> Option<String>,
    ) -> Option<u32> {
        let different = |text: String| text.split_whitespace().collect::<BTreeSet<_>>().len();
        let count = match self {
            Nodes::Count(name) => get(name)?.trim().parse().ok()?,
            Nodes::Slots(name) => get(name)?.split_whitespace().step_by(2).collect::<BTreeSet<_>>().len(),
            Nodes::Hosts(name) => different(get(name)?),
            Nodes::File(name) => different(read(&get(name)?)?),
        };
        u32::try_from(count).ok().filter(|&count| count > 0)
    }
}

/// The job of this process.
#[must_use]
pub fn job_of_this_process() -> Job {
    let get = |name: &str| std::env::var(name).ok();
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    job_from_environment(get, hosts, Uid(user.as_raw()), Gid(group.as_raw()))
}

/// Reads a host file. A file beyond the size limit is no host file.
fn hosts(path: &str) -> Option<String> {
    const MOST: u64 = 16 << 20;
    let mut text = String::new();
    File::open(path).ok()?.take(MOST).read_to_string(&mut text).ok()?;
    Some(text)
}

fn label(text: &str) -> Option<String> {
    let text = text.trim();
    let end = (0..=text.len().min(MAX_LABEL)).rev().find(|&end| text.is_char_boundary(end))?;
    (end > 0).then(|| text[..end].to_owned())
}

/// Appends the array index to an LSF job id, which all members of an array share; 0 means no array.
fn array_member(id: String, index: Option<&str>) -> String {
    match index {
        None | Some("" | "0") => id,
        Some(index) => format!("{id}[{index}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environment: &str, expected: &str) {
        let get = |name: &str| {
            let mut pairs = environment.split("; ").filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let read = |path: &str| (path == "/hosts").then(|| "n1\nn1\nn2\n\nn3\n".to_owned());
        let job = job_from_environment(get, read, Uid(1000), Gid(100));
        assert_eq!(job.fault(), None, "{environment}");
        let Job { label, user, group, nodes, priority } = job;
        assert_eq!(format!("{label} {user} {group} {nodes} {priority}"), expected, "{environment}");
    }

    #[test]
    fn job_is_read_from_batch_systems_and_overrides() {
        for (environment, expected) in [
            ("", "interactive-1000 1000 100 1 1"),
            ("USER=alice", "interactive-1000 alice 100 1 1"),
            ("LOGNAME=al; USER=bob", "interactive-1000 al 100 1 1"),
            (
                "SLURM_JOB_ID=4711; SLURM_JOB_NUM_NODES=64; SLURM_JOB_ACCOUNT=phys; SLURM_JOB_USER=eve",
                "4711 eve phys 64 1",
            ),
            ("SLURM_JOBID=12; SLURM_NNODES=2", "12 1000 100 2 1"),
            ("SLURM_JOB_ID=; SLURM_JOBID=12", "12 1000 100 1 1"),
            ("SLURM_JOB_ID=12; SLURM_NNODES=many", "12 1000 100 1 1"),
            ("SLURM_JOB_ID=12; SLURM_NNODES=0", "12 1000 100 1 1"),
            ("SLURM_JOB_ID=12; FOREBAY_JOB_NODES=7; FOREBAY_JOB_PRIORITY=9", "12 1000 100 7 9"),
            ("SLURM_JOB_ID=12; FOREBAY_JOB_ID=mine; FOREBAY_JOB_USER=u; FOREBAY_JOB_GROUP=g", "mine u g 1 1"),
            ("FOREBAY_JOB_PRIORITY=-3", "interactive-1000 1000 100 1 1"),
            ("PBS_JOBID=99.pbs01.site; PBS_O_LOGNAME=pat; PBS_NUM_NODES=4", "99 pat 100 4 1"),
            ("PBS_JOBID=99[7].pbs01; PBS_ACCOUNT=bio", "99[7] 1000 bio 1 1"),
            ("LSB_JOBID=5; LSB_JOBINDEX=0; LSB_MCPU_HOSTS=a 16 b 16 c 8", "5 1000 100 3 1"),
            ("LSB_JOBID=5; LSB_JOBINDEX=3; LSB_PROJECT_NAME=fusion", "5[3] 1000 fusion 1 1"),
            ("LSB_JOBID=5; LSB_HOSTS=a a b b; USER=u", "5 u 100 2 1"),
            ("LSB_JOBID=5; LSB_DJOB_HOSTFILE=/hosts; LSFUSER=lu", "5 lu 100 3 1"),
            ("PBS_JOBID=99.pbs; PBS_NODEFILE=/hosts", "99 1000 100 3 1"),
            ("PBS_JOBID=99.pbs; PBS_NODEFILE=/gone", "99 1000 100 1 1"),
            ("PBS_JOBID=99.pbs; PALS_APID=0f3e", "99 1000 100 1 1"),
            ("PALS_APID=0f3e-11; USER=u", "0f3e-11 u 100 1 1"),
            ("ALPS_APP_ID=71; LOGNAME=a", "71 a 100 1 1"),
            ("BASIL_RESERVATION_ID=8; FOREBAY_JOB_NODES=16", "8 1000 100 16 1"),
            ("FOREBAY_JOB_NODES=-1; FOREBAY_JOB_ID= ", "interactive-1000 1000 100 1 1"),
            ("FLUX_JOB_ID=ƒ2Xy; FLUX_JOB_NNODES=8", "ƒ2Xy 1000 100 8 1"),
        ] {
            check(environment, expected);
        }
    }

    #[test]
    fn long_labels_are_cut_at_a_character() {
        let long = format!("x{}", "é".repeat(40));
        let job = job_from_environment(
            |name| (name == "FOREBAY_JOB_ID").then(|| long.clone()),
            |_| None,
            Uid(1),
            Gid(1),
        );
        assert_eq!(job.label.len(), 63);
        assert_eq!(job.fault(), None);
    }
}
