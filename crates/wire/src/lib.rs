//! The protocol: messages, framing, handshake.

#![forbid(unsafe_code)]

mod hello;
mod message;

pub use hello::{Channel, Greeting, Hello, Proof, VERSION, Welcome};
pub use message::{
    Answer, At, Call, Entry, IfExists, JobStatus, RecoverySummary, RegionCounts, RenameMode, Reply, Request, Status,
    Token, XattrMode,
};
