//! Clients that act for the calling processes.

use forebay_client::Client;
use forebay_model::{Gid, Identity, Result, Uid};
use fuser::Request;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the groups of a process are cached.
const FRESH: Duration = Duration::from_millis(100);
/// Maximum number of cached processes.
const MAX_CACHED: usize = 1024;

/// The process that made a request.
#[derive(Clone, Copy)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    gid: u32,
    pid: u32,
}

impl From<&Request> for Caller {
    fn from(request: &Request) -> Caller {
        Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
    }
}

/// Provides clients that act for the caller of a request.
pub(crate) enum Speaker {
    /// The service lets the mount act for any user.
    ForAll { client: Client, groups: Groups },
    /// The mount runs as an ordinary user, and serves only that user.
    ForMyself(Client),
}

impl Speaker {
    /// Probes whether the service lets the mount act for other users.
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

    /// Whether users other than the mount's own can be served.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self, Speaker::ForAll { .. })
    }

    /// The client that acts for the caller.
    pub(crate) fn of(&self, caller: Caller) -> Client {
        match self {
            Speaker::ForAll { client, groups } => client.as_identity(groups.identity(caller)),
            Speaker::ForMyself(client) => client.clone(),
        }
    }

    /// The identity of the caller.
    pub(crate) fn identity(&self, caller: Caller) -> Identity {
        match self {
            Speaker::ForAll { groups, .. } => groups.identity(caller),
            Speaker::ForMyself(_) => {
                let groups = groups_of(caller.pid);
                Identity { uid: Uid(caller.uid), gid: Gid(caller.gid), groups }
            }
        }
    }

    /// The client with the mount's highest privileges.
    pub(crate) fn trusted(&self) -> Client {
        match self {
            Speaker::ForAll { client, .. } => client.as_identity(Identity::root()),
            Speaker::ForMyself(client) => client.clone(),
        }
    }
}

/// A process as the kernel identifies it: pid, uid and gid.
type Process = (u32, u32, u32);

/// Supplementary groups. The kernel sends only the uid and gid of a request; the groups come from `/proc`.
#[derive(Default)]
pub(crate) struct Groups {
    seen: Mutex<HashMap<Process, Seen>>,
}

/// The groups of a process, and when they were read.
struct Seen {
    when: Instant,
    groups: Vec<Gid>,
}

impl Groups {
    fn identity(&self, caller: Caller) -> Identity {
        let Caller { uid, gid, pid } = caller;
        // Modes do not restrict root, whatever its groups.
        let groups = if uid == 0 { Vec::new() } else { self.groups((pid, uid, gid)) };
        Identity { uid: Uid(uid), gid: Gid(gid), groups }
    }

    fn groups(&self, process: Process) -> Vec<Gid> {
        let mut table = self.seen.lock();
        let now = Instant::now();
        let is_fresh = |seen: &Seen| now.duration_since(seen.when) < FRESH;
        if let Some(seen) = table.get(&process).filter(|seen| is_fresh(seen)) {
            return seen.groups.clone();
        }
        if table.len() >= MAX_CACHED {
            table.retain(|_, seen| is_fresh(seen));
        }
        if table.len() >= MAX_CACHED {
            table.clear();
        }
        let groups = groups_of(process.0);
        table.insert(process, Seen { when: now, groups: groups.clone() });
        groups
    }
}

/// The groups of a process; none if it is gone or not visible.
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
