//! The handshake messages.
//!
//! ```text
//! Unix socket: the kernel identifies the client, the path identifies the server
//! client → Hello      version, channel, batch job, list of servers
//! server → Welcome    identity and limits; or Refusal
//!
//! TCP: both prove that they hold the key, and derive keys for the connection
//! client → Opening    version, key id, minimum security; Noise's first message, which contains the Hello
//! server → Challenge  Noise's second message, which contains the server's minimum security
//! client → Proof      sealed: the client has the connection's keys
//! server → Welcome    sealed; or Refusal
//! ```

use crate::frame::{body, protocol};
use forebay_model::{Error, Incarnation, Job, Members, Result, ServerId, Uid};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Protocol version of this build. A peer of another version is refused with a message that names both.
pub const VERSION: u32 = 6;

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Channel {
    /// Requests without payload; many at once.
    Control,
    /// Reads and writes of one job, in order.
    Data,
}

/// The client's first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The purpose of the connection.
    pub channel: Channel,
    /// Id of the client process, the same on all its connections.
    pub client: u128,
    /// The job of the client.
    pub job: Job,
    /// The client's list of servers, if it has connected to the service before.
    pub roster: Option<Roster>,
}

/// The servers that a client believes to form the service. The list determines where it looks up names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Roster {
    /// Increases with every change of the list.
    pub epoch: u64,
    /// Their ids, in order.
    pub servers: Vec<ServerId>,
}

impl From<&Members> for Roster {
    fn from(members: &Members) -> Roster {
        Roster { epoch: members.epoch(), servers: members.servers().collect() }
    }
}

/// For display: `epoch 3: servers 1, 2`.
impl fmt::Display for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.servers.iter().map(ServerId::to_string).collect();
        write!(f, "epoch {}: servers {}", self.epoch, numbers.join(", "))
    }
}

impl Hello {
    /// Decodes the body of a hello. The version comes first and is checked first, so that a peer of another version
    /// always receives an error about versions. The job is validated too.
    pub fn read(bytes: &[u8]) -> Result<Hello> {
        Hello::check_version(bytes)?;
        let hello: Hello = body(bytes)?;
        match hello.job.fault() {
            Some(fault) => Err(protocol(fault)),
            None => Ok(hello),
        }
    }

    /// Checks the version at the start of a first message.
    pub(crate) fn check_version(bytes: &[u8]) -> Result<()> {
        let Ok((version, _)) = postcard::take_from_bytes::<u32>(bytes) else {
            return Err(protocol("a hello without a version".to_owned()));
        };
        if version != VERSION {
            return Err(protocol(format!(
                "the client speaks version {version} of the protocol, this server version {VERSION}: use the \
                 same release of Forebay on both sides"
            )));
        }
        Ok(())
    }
}

/// The server's reply to every handshake message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Greeting {
    /// The client must prove that it holds the key.
    Challenge {
        /// Noise's second message: see [`Opening`](crate::Opening).
        noise: Vec<u8>,
    },
    /// The client is accepted.
    Welcome(Welcome),
    /// The client is refused, with the reason.
    Refusal(Error),
}

/// The client's reply to a challenge. The proof is that its frame can be decrypted with the connection's keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proof {}

/// What a client learns about a server when it is accepted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// The server.
    pub server: ServerId,
    /// Incarnation of its store.
    pub incarnation: Incarnation,
    /// The user that the server authenticated.
    pub uid: Uid,
    /// Maximum size of a payload in bytes.
    pub max_payload: u32,
    /// All servers of the service.
    pub members: Members,
    /// Session timeout: milliseconds without a message on the control connection after which the client counts as gone.
    pub session_millis: u64,
    /// Id of the connection, for [`Request::Abandon`](crate::Request::Abandon).
    pub connection: u64,
}
