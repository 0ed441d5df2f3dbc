//! Who this process works for, as the batch system's environment tells it.

use forebay_model::{Gid, Job, MAX_LABEL, Uid};

/// The variables of one batch system. Several names for one thing are tried in order.
struct Batch {
    label: &'static [&'static str],
    user: &'static [&'static str],
    group: &'static [&'static str],
    nodes: &'static [&'static str],
}

const OVERRIDE: Batch = Batch {
    label: &["FOREBAY_JOB_ID"],
    user: &["FOREBAY_JOB_USER"],
    group: &["FOREBAY_JOB_GROUP"],
    nodes: &["FOREBAY_JOB_NODES"],
};

const PRIORITY: &str = "FOREBAY_JOB_PRIORITY";

const SYSTEMS: [Batch; 4] = [
    Batch {
        label: &["SLURM_JOB_ID", "SLURM_JOBID"],
        user: &["SLURM_JOB_USER"],
        group: &["SLURM_JOB_ACCOUNT"],
        nodes: &["SLURM_JOB_NUM_NODES", "SLURM_NNODES"],
    },
    Batch {
        label: &["PBS_JOBID"],
        user: &["PBS_O_LOGNAME"],
        group: &["PBS_ACCOUNT"],
        nodes: &["PBS_NUM_NODES", "PBS_NNODES"],
    },
    Batch {
        label: &["LSB_JOBID"],
        user: &["LSFUSER"],
        group: &["LSB_PROJECT_NAME"],
        nodes: &["LSB_MCPU_HOSTS"],
    },
    Batch { label: &["FLUX_JOB_ID"], user: &[], group: &[], nodes: &["FLUX_JOB_NNODES"] },
];

/// The job of a process with this environment, run by this user and group.
///
/// `FOREBAY_JOB_ID`, `_USER`, `_GROUP`, `_NODES` and `_PRIORITY` win over what Slurm, PBS, LSF or Flux say.
/// Without a batch system the job is the user's interactive work: `interactive-1000`. What makes no sense is
/// passed over, so the result is always a valid identity.
pub fn job_from_environment(get: impl Fn(&str) -> Option<String>, user: Uid, group: Gid) -> Job {
    let text = |names: &[&str]| names.iter().find_map(|name| get(name).and_then(|text| label(&text)));
    let batch = SYSTEMS.iter().find(|batch| text(batch.label).is_some());
    let choose = |field: fn(&Batch) -> &'static [&'static str]| {
        text(field(&OVERRIDE)).or_else(|| batch.and_then(|batch| text(field(batch))))
    };
    let from_batch = |batch: &Batch| match text(batch.label)? {
        id if batch.label == ["PBS_JOBID"] => Some(id.split('.').next().unwrap_or(&id).to_owned()),
        id if batch.label == ["LSB_JOBID"] => Some(array_member(id, get("LSB_JOBINDEX").as_deref())),
        id => Some(id),
    };
    Job {
        label: text(OVERRIDE.label)
            .or_else(|| batch.and_then(from_batch).and_then(|id| label(&id)))
            .unwrap_or_else(|| format!("interactive-{user}")),
        user: choose(|batch| batch.user)
            .or_else(|| text(&["LOGNAME", "USER"]))
            .unwrap_or_else(|| user.to_string()),
        group: choose(|batch| batch.group).unwrap_or_else(|| group.to_string()),
        nodes: choose(|batch| batch.nodes).and_then(|text| nodes(&text)).unwrap_or(1),
        priority: text(&[PRIORITY]).and_then(|text| text.parse().ok()).unwrap_or(1),
    }
}

/// The job of this process.
#[must_use]
pub fn job_of_this_process() -> Job {
    let get = |name: &str| std::env::var(name).ok();
    let (user, group) = (rustix::process::getuid(), rustix::process::getgid());
    job_from_environment(get, Uid(user.as_raw()), Gid(group.as_raw()))
}

fn label(text: &str) -> Option<String> {
    let text = text.trim();
    let end = (0..=text.len().min(MAX_LABEL)).rev().find(|&end| text.is_char_boundary(end))?;
    (end > 0).then(|| text[..end].to_owned())
}

/// Every member of an LSF array has the number of the array; 0 means there is no array.
fn array_member(id: String, index: Option<&str>) -> String {
    match index {
        None | Some("" | "0") => id,
        Some(index) => format!("{id}[{index}]"),
    }
}

/// A count, or LSF's list of hosts and their slots: `node1 16 node2 16`.
fn nodes(text: &str) -> Option<u32> {
    let words = text.split_whitespace().count();
    let count = if words > 1 { u32::try_from(words / 2).ok()? } else { text.parse().ok()? };
    (count > 0).then_some(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environment: &str, expected: &str) {
        let get = |name: &str| {
            let mut pairs = environment.split("; ").filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
        };
        let job = job_from_environment(get, Uid(1000), Gid(100));
        assert_eq!(job.fault(), None, "{environment}");
        let Job { label, user, group, nodes, priority } = job;
        assert_eq!(format!("{label} {user} {group} {nodes} {priority}"), expected, "{environment}");
    }

    #[test]
    fn batch_systems_and_overrides() {
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
            ("FLUX_JOB_ID=ƒ2Xy; FLUX_JOB_NNODES=8", "ƒ2Xy 1000 100 8 1"),
        ] {
            check(environment, expected);
        }
    }

    #[test]
    fn long_labels_are_cut_at_a_character() {
        let long = format!("x{}", "é".repeat(40));
        let job =
            job_from_environment(|name| (name == "FOREBAY_JOB_ID").then(|| long.clone()), Uid(1), Gid(1));
        assert_eq!(job.label.len(), 63);
        assert_eq!(job.fault(), None);
    }
}
