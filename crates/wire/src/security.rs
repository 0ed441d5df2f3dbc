//! Security levels of TCP connections.

use forebay_model::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// Protection of the frames of a connection after its handshake, from weakest to strongest. Each side states its
/// minimum, and the stronger one applies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Security {
    /// None: only the handshake is authenticated.
    None,
    /// Every frame is authenticated but readable in transit.
    Authenticate,
    /// Every frame is authenticated and encrypted.
    Encrypt,
}

impl Security {
    /// All levels, with their names in the configuration.
    pub const ALL: [(Security, &'static str); 3] =
        [(Security::None, "none"), (Security::Authenticate, "authenticate"), (Security::Encrypt, "encrypt")];

    /// The default minimum for a peer at this address. Only root can read traffic within a machine, but any user can
    /// open a port and relay traffic.
    #[must_use]
    pub fn default_for(peer: IpAddr) -> Security {
        if peer.to_canonical().is_loopback() { Security::Authenticate } else { Security::Encrypt }
    }
}

impl fmt::Display for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, name) = Security::ALL[*self as usize];
        f.write_str(name)
    }
}

impl FromStr for Security {
    type Err = Error;

    fn from_str(text: &str) -> Result<Security, Error> {
        let found = Security::ALL.into_iter().find(|(_, name)| *name == text);
        found.map(|(security, _)| security).ok_or_else(|| {
            let text = format!("\"{text}\" is not a transport security: use encrypt, authenticate or none");
            Error::new(ErrorKind::Invalid, text)
        })
    }
}
