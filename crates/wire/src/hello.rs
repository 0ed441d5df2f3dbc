//! The first words on a connection.
//!
//! ```text
//! client → Hello      version, channel, who it is in the batch system, a nonce, whom it takes for the service
//! server → Challenge  (TCP) a nonce of its own; or at once Welcome (Unix socket: the kernel vouches)
//! client → Proof      keyed hash over both nonces
//! server → Welcome    what it is, its limits, and its own proof; or Refusal
//! ```

use crate::frame::{body, protocol};
use forebay_model::{Error, Incarnation, Job, Members, Result, ServerId, Uid};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The protocol spoken by this build. Peers of another version are refused with a sentence that names both.
pub const VERSION: u32 = 4;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Channel {
    /// Everything but payload; many requests at once.
    Control,
    /// Reads and writes of one job, in order.
    Data,
}

/// The client's first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`] of the client.
    pub version: u32,
    /// What the connection is for.
    pub channel: Channel,
    /// The same on all connections of one client, for its life.
    pub client: u128,
    /// The job it runs for.
    pub job: Job,
    /// A number nobody has used before.
    pub nonce: [u8; 32],
    /// The list of servers that the client goes by, if it has met one of them before.
    pub roster: Option<Roster>,
}

/// Which servers a client takes for the service: what decides where it looks for names.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Roster {
    /// Grows whenever the list changes.
    pub epoch: u64,
    /// Their numbers, in order.
    pub servers: Vec<ServerId>,
}

impl From<&Members> for Roster {
    fn from(members: &Members) -> Roster {
        Roster { epoch: members.epoch(), servers: members.servers().collect() }
    }
}

/// For people: `epoch 3: servers 1, 2`.
impl fmt::Display for Roster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.servers.iter().map(ServerId::to_string).collect();
        write!(f, "epoch {}: servers {}", self.epoch, numbers.join(", "))
    }
}

impl Hello {
    /// Reads the body of a hello. The version comes first and is judged first, so that a peer of another
    /// version is told about versions, whatever else its hello says. What the job says is checked too.
    pub fn read(bytes: &[u8]) -> Result<Hello> {
        let Ok((version, _)) = postcard::take_from_bytes::<u32>(bytes) else {
            return Err(protocol("a hello without a version".to_owned()));
        };
        if version != VERSION {
            return Err(protocol(format!(
                "the client speaks version {version} of the protocol, this server version {VERSION}: use the \
                 same release of Forebay on both sides"
            )));
        }
        let hello: Hello = body(bytes)?;
        match hello.job.fault() {
            Some(fault) => Err(protocol(fault)),
            None => Ok(hello),
        }
    }
}

/// The server's answer to everything the client says in the handshake.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Greeting {
    /// Prove that you hold the key.
    Challenge {
        /// A number nobody has used before.
        nonce: [u8; 32],
    },
    /// Come in.
    Welcome(Welcome),
    /// Stay out, and why.
    Refusal(Error),
}

/// The client's answer to a challenge.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proof {
    /// See [`client_proof`](crate::client_proof).
    pub seal: [u8; 32],
}

/// What a client knows about a server once it is in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Welcome {
    /// Which server.
    pub server: ServerId,
    /// Which life of its store.
    pub incarnation: Incarnation,
    /// Who the server takes the peer for.
    pub uid: Uid,
    /// Most bytes in one payload.
    pub max_payload: u32,
    /// All servers of the service.
    pub members: Members,
    /// After so many milliseconds without a word on its control connection a client is gone.
    pub session_millis: u64,
    /// The server's own proof, where a challenge was made.
    pub seal: Option<[u8; 32]>,
    /// What the connection is called when it is given up: see [`Request::Abandon`](crate::Request::Abandon).
    pub connection: u64,
}
