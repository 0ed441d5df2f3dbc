//! Which claims about a job are believed.
//!
//! | claim | accepted from |
//! | --- | --- |
//! | user | no claim: always the authenticated caller |
//! | group | the caller, if the authenticated user is a member; else the user's first group is used |
//! | job id | the caller, unless another user's job has it: then the job becomes `ID@USER` |
//! | nodes, priority | a privileged caller (root or the owner of the service, such as a batch system's prologue); else the caller, up to the site's limits and never more than it claimed first |
//!
//! A false claim costs other *users* nothing under any policy that shares between users or groups first,
//! whatever the limits. Under `size-fair` or `priority-fair` alone it gains at most the site's limits; a site
//! whose batch system describes its jobs sets these to one. Servers believe each other, but only what is
//! possible: see [`Peers`](super::Peers).

use forebay_model::{Job, MAX_LABEL};

/// The site's limits for jobs that no privileged caller has described.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust {
    /// Most nodes that are accepted.
    pub most_nodes: u32,
    /// Highest priority that is accepted.
    pub most_priority: u32,
}

/// The authenticated process that describes a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The names of the user's groups, the primary group first.
    pub groups: Vec<String>,
    /// Whether this caller may describe jobs without limits: root, or the owner of the service.
    pub vouches: bool,
}

/// A rejected claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// The caller is another user.
    User,
    /// The user is not in that group.
    Group,
    /// Another user has a job of that name.
    Name,
    /// The job has fewer nodes.
    Nodes,
    /// The job has a lower priority.
    Priority,
}

impl Trust {
    /// The accepted description, and the rejected claims. `known` is the recorded job of that name.
    #[must_use]
    pub fn believe(&self, claim: &Job, caller: &Caller, known: Option<&Job>) -> (Job, Vec<Doubt>) {
        let mut job = claim.clone();
        if caller.vouches {
            return (at_least_one(job), Vec::new());
        }
        let mut doubts = Vec::new();
        if job.user != caller.user {
            job.user.clone_from(&caller.user);
            doubts.push(Doubt::User);
        }
        if !caller.groups.contains(&job.group) {
            job.group = caller.groups.first().unwrap_or(&caller.user).clone();
            doubts.push(Doubt::Group);
        }
        let own = known.filter(|known| known.user == caller.user);
        if known.is_some() && own.is_none() {
            job.label = other_name(&claim.label, &caller.user);
            doubts.push(Doubt::Name);
        }
        let most_nodes = own.map_or(self.most_nodes, |own| own.nodes);
        if job.nodes > most_nodes {
            job.nodes = most_nodes;
            doubts.push(Doubt::Nodes);
        }
        let most_priority = own.map_or(self.most_priority, |own| own.priority);
        if job.priority > most_priority {
            job.priority = most_priority;
            doubts.push(Doubt::Priority);
        }
        (at_least_one(job), doubts)
    }
}

fn at_least_one(job: Job) -> Job {
    Job { nodes: job.nodes.max(1), ..job }
}

/// `LABEL@USER`, shortened to the longest label; keeps the end, which distinguishes users.
fn other_name(label: &str, user: &str) -> String {
    let mut name = label.to_owned();
    let tail = format!("@{user}");
    while name.len() + tail.len() > MAX_LABEL && name.pop().is_some() {}
    name.push_str(&tail);
    while name.len() > MAX_LABEL {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(words: &str) -> Job {
        let words: Vec<&str> = words.split_whitespace().collect();
        let number = |i: usize| words[i].parse().expect("a number");
        let word = |i: usize| words[i].to_owned();
        Job { label: word(0), user: word(1), group: word(2), nodes: number(3), priority: number(4) }
    }

    #[test]
    fn false_job_claims_gain_nothing() {
        let trust = Trust { most_nodes: 100, most_priority: 5 };
        let ada = Caller { user: "ada".into(), groups: vec!["astro".into(), "ml".into()], vouches: false };
        let root = Caller { user: "root".into(), groups: vec![], vouches: true };
        use Doubt::{Group, Name, Nodes, Priority, User};
        for (caller, claim, known, believed, doubts) in [
            (&ada, "7 ada astro 4 1", None, "7 ada astro 4 1", vec![]),
            (&ada, "7 ada ml 4 1", None, "7 ada ml 4 1", vec![]),
            (&ada, "7 bob astro 4 1", None, "7 ada astro 4 1", vec![User]),
            (&ada, "7 ada navy 4 1", None, "7 ada astro 4 1", vec![Group]),
            (&ada, "7 ada astro 4000000000 9", None, "7 ada astro 100 5", vec![Nodes, Priority]),
            (&ada, "7 ada astro 0 0", None, "7 ada astro 1 0", vec![]),
            (&ada, "7 ada astro 50 2", Some("7 ada astro 4 1"), "7 ada astro 4 1", vec![Nodes, Priority]),
            (&ada, "7 ada astro 900 9", Some("7 ada astro 512 9"), "7 ada astro 512 9", vec![Nodes]),
            (&ada, "7 ada astro 4 1", Some("7 bob bio 64 1"), "7@ada ada astro 4 1", vec![Name]),
            (&root, "7 ada astro 512 9", None, "7 ada astro 512 9", vec![]),
        ] {
            let known = known.map(job);
            assert_eq!(
                trust.believe(&job(claim), caller, known.as_ref()),
                (job(believed), doubts),
                "{claim}"
            );
        }
        let long = "x".repeat(MAX_LABEL);
        assert_eq!(other_name(&long, "ada").len(), MAX_LABEL);
        assert!(other_name(&long, "ada").ends_with("x@ada"));
        assert_eq!(other_name("7", &long).len(), MAX_LABEL);
    }
}
