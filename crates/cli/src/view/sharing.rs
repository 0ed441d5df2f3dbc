//! The sharing policy of the service.

use serde::Serialize;
use std::fmt;

/// The policy, and the servers that follow it.
#[derive(Serialize)]
pub(crate) struct Sharing {
    policy: String,
    scheduler: String,
    device_rate: Option<u64>,
    lambda_ms: u64,
    /// Nanoseconds since the Unix epoch; `None` if the policy comes from the settings.
    set: Option<u64>,
    peers: Vec<Peer>,
}

#[derive(Serialize)]
struct Peer {
    address: String,
    server: Option<u16>,
    agrees: bool,
    trouble: Option<String>,
}

impl From<forebay_wire::Sharing> for Sharing {
    fn from(sharing: forebay_wire::Sharing) -> Sharing {
        let peer = |peer: forebay_wire::PeerStatus| Peer {
            address: peer.address,
            server: peer.server.map(|server| server.0),
            agrees: peer.agrees,
            trouble: peer.trouble,
        };
        Sharing {
            policy: sharing.policy,
            scheduler: sharing.scheduler,
            device_rate: (sharing.device_rate > 0).then_some(sharing.device_rate),
            lambda_ms: sharing.lambda_millis,
            set: (sharing.policy_set.0 > 0).then_some(sharing.policy_set.0),
            peers: sharing.peers.into_iter().map(peer).collect(),
        }
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = if self.set.is_some() {
            "set while running: write it to forebay.toml to keep it"
        } else {
            "as configured"
        };
        write!(f, "{} ({until})\n  enforced by {}", self.policy, self.scheduler)?;
        if let Some(rate) = self.device_rate {
            write!(f, ", on a modelled device of {}/s", crate::human::size(rate))?;
        }
        for peer in &self.peers {
            let state = match (&peer.trouble, peer.agrees) {
                (Some(trouble), _) => format!("NOT REACHED: {trouble}"),
                (None, true) => "follows it".to_owned(),
                (None, false) => "follows another policy".to_owned(),
            };
            let name = peer.server.map_or_else(|| "server ?".to_owned(), |server| format!("server {server}"));
            write!(f, "\n  {name} at {}: {state}", peer.address)?;
        }
        Ok(())
    }
}
