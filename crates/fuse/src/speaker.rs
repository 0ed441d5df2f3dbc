//! On whose behalf a request is made.

use forebay_client::Client;
use forebay_model::{Gid, Identity, Result, Uid};
use fuser::Request;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a process is taken to be in the groups it was in.
const FRESH: Duration = Duration::from_millis(100);
/// How many processes are remembered.
const REMEMBERED: usize = 1024;

/// Speaks to the service, for everybody or for its own user.
pub(crate) enum Speaker {
    /// The service lets us name the user of each request.
    ForAll { client: Client, groups: Groups },
    /// We are an ordinary user, and so are all who come in.
    ForMyself(Client),
}

impl Speaker {
    /// Finds out whether the service lets us speak for others.
    pub(crate) async fn new(client: Client) -> Result<Speaker> {
        let stranger = Identity { uid: Uid(65_534), gid: Gid(65_534), groups: Vec::new() };
        let tried = client.as_identity(stranger).by_id().get_attr(forebay_model::FileId::ROOT).await;
        match tried {
            Ok(_) => Ok(Speaker::ForAll { client, groups: Groups::default() }),
            Err(error) if error.kind() == forebay_model::ErrorKind::NotPermitted => {
                Ok(Speaker::ForMyself(client))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether users other than our own can be served.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self, Speaker::ForAll { .. })
    }

    /// The client that speaks for whoever made this request, and who that is, where we know.
    pub(crate) fn of(&self, request: &Request) -> Client {
        match self {
            Speaker::ForAll { client, groups } => client.as_identity(groups.identity(request)),
            Speaker::ForMyself(client) => client.clone(),
        }
    }

    /// Who made this request.
    pub(crate) fn identity(&self, request: &Request) -> Identity {
        match self {
            Speaker::ForAll { groups, .. } => groups.identity(request),
            Speaker::ForMyself(_) => {
                let groups = groups_of(request.pid());
                Identity { uid: Uid(request.uid()), gid: Gid(request.gid()), groups }
            }
        }
    }

    /// The client with the most rights we have.
    pub(crate) fn trusted(&self) -> Client {
        match self {
            Speaker::ForAll { client, .. } => client.as_identity(Identity::root()),
            Speaker::ForMyself(client) => client.clone(),
        }
    }
}

/// A process as the kernel names it: its number, user and group.
type Process = (u32, u32, u32);

/// The kernel names the user and one group of a request; the other groups are the process's.
#[derive(Default)]
pub(crate) struct Groups {
    seen: Mutex<HashMap<Process, Seen>>,
}

/// The groups of a process, and when it was in them.
struct Seen {
    when: Instant,
    groups: Vec<Gid>,
}

impl Groups {
    fn identity(&self, request: &Request) -> Identity {
        let (uid, gid, pid) = (request.uid(), request.gid(), request.pid());
        // The modes do not bind root, whatever its groups.
        let groups = if uid == 0 { Vec::new() } else { self.groups((pid, uid, gid)) };
        Identity { uid: Uid(uid), gid: Gid(gid), groups }
    }

    fn groups(&self, process: Process) -> Vec<Gid> {
        let mut table = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_fresh = |seen: &Seen| now.duration_since(seen.when) < FRESH;
        if let Some(seen) = table.get(&process).filter(|seen| is_fresh(seen)) {
            return seen.groups.clone();
        }
        if table.len() >= REMEMBERED {
            table.retain(|_, seen| is_fresh(seen));
        }
        if table.len() >= REMEMBERED {
            table.clear();
        }
        let groups = groups_of(process.0);
        table.insert(process, Seen { when: now, groups: groups.clone() });
        groups
    }
}

/// The groups of a process; none if it is gone, or not to be seen from here.
fn groups_of(pid: u32) -> Vec<Gid> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_groups(&status)
}

fn parse_groups(status: &str) -> Vec<Gid> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|word| word.parse().ok()).map(Gid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        for (status, expected) in [
            ("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n", vec![Gid(4), Gid(24), Gid(1000)]),
            ("Groups:\t\n", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(parse_groups(status), expected);
        }
    }
}
