//! What is believed of a job's own words.
//!
//! | what | who is believed |
//! |---|---|
//! | user | nobody's words: the authenticated caller, always |
//! | group | the caller, if the authenticated user is a member of it; else the user's first group |
//! | job id | the caller, unless another user's job has it: then it is a job of its own, `ID@USER` |
//! | nodes, priority | whoever vouches for the job (an authenticated root or owner of the service, such as a batch system's prologue); else the caller, up to the site's limits, and never more than was said first |
//!
//! So a lie costs other *users* nothing under any policy that shares between users or groups first, whatever the
//! limits; under `size-fair` or `priority-fair` alone it gains at most the site's limits, which a site that
//! vouches for its jobs sets to one. Servers believe each other, but only what could be true: see
//! [`Peers`](super::Peers).

use forebay_model::{Job, MAX_LABEL};

/// The site's limits for jobs that nobody vouches for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust {
    /// Most nodes that are believed.
    pub most_nodes: u32,
    /// Highest priority that is believed.
    pub most_priority: u32,
}

/// Who describes a job, as authenticated.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user's name.
    pub user: String,
    /// The names of the user's groups, the first one first.
    pub groups: Vec<String>,
    /// Whether this caller may vouch for jobs: root, or the owner of the service.
    pub vouches: bool,
}

/// What was not believed.
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
    /// The job as it is believed to be, and what was not believed. `known` is what is on record under its name.
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

/// `LABEL@USER`, cut to what a label may have; the user's end, which tells them apart, is kept.
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
    fn a_lie_gains_nothing() {
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
