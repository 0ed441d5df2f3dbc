//! Frames: a small fixed header, a body and an optional payload.
//!
//! The receiver reads the header first. It states the sizes of body and payload, and an invalid header is refused
//! before any allocation. The codec handles headers and bodies; the payload does not pass through it.

use forebay_model::{Error, ErrorKind, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Size of a header in bytes.
pub const HEADER: usize = 24;
/// Maximum size of a body in bytes.
pub const MAX_BODY: u32 = 512 << 10;
/// Maximum size of the body of a client's handshake messages, which are not authenticated yet.
pub const MAX_HANDSHAKE: u32 = 8 << 10;
/// Maximum size of a payload in bytes.
pub const MAX_PAYLOAD: u32 = 4 << 20;

const MAGIC: [u8; 3] = *b"FBY";
const CHECKED: usize = HEADER - 4;

/// The content of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FrameKind {
    /// A [`Hello`](crate::Hello), from the client.
    Hello,
    /// A [`Greeting`](crate::Greeting), from the server.
    Greeting,
    /// A [`Proof`](crate::Proof), from the client.
    Proof,
    /// A [`Call`](crate::Call), from the client.
    Call,
    /// An [`Answer`](crate::Answer), from the server.
    Answer,
}

impl FrameKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [FrameKind; 5] =
        [FrameKind::Hello, FrameKind::Greeting, FrameKind::Proof, FrameKind::Call, FrameKind::Answer];

    fn number(self) -> u8 {
        match self {
            FrameKind::Hello => 1,
            FrameKind::Greeting => 2,
            FrameKind::Proof => 3,
            FrameKind::Call => 4,
            FrameKind::Answer => 5,
        }
    }

    fn from_number(number: u8) -> Option<FrameKind> {
        FrameKind::ALL.into_iter().find(|kind| kind.number() == number)
    }

    fn limits(self) -> (u32, u32) {
        match self {
            FrameKind::Hello | FrameKind::Proof => (MAX_HANDSHAKE, 0),
            FrameKind::Greeting => (MAX_BODY, 0),
            FrameKind::Call | FrameKind::Answer => (MAX_BODY, MAX_PAYLOAD),
        }
    }
}

impl fmt::Display for FrameKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FrameKind::Hello => "hello",
            FrameKind::Greeting => "greeting",
            FrameKind::Proof => "proof",
            FrameKind::Call => "call",
            FrameKind::Answer => "answer",
        })
    }
}

/// The content of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Kind of the body.
    pub kind: FrameKind,
    /// Chosen by the caller and repeated in the reply; 0 in the handshake.
    pub id: u64,
    /// Size of the body in bytes.
    pub body: u32,
    /// Size of the payload after the body, in bytes.
    pub payload: u32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 3],
    kind: u8,
    body: U32,
    id: U64,
    payload: U32,
    crc: U32,
}

impl Header {
    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut raw = Raw {
            magic: MAGIC,
            kind: self.kind.number(),
            body: U32::new(self.body),
            id: U64::new(self.id),
            payload: U32::new(self.payload),
            crc: U32::new(0),
        };
        raw.crc = U32::new(crc32c::crc32c(&raw.as_bytes()[..CHECKED]));
        zerocopy::transmute!(raw)
    }

    /// Decodes a header and refuses sizes above the limits.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Header> {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        if raw.magic != MAGIC {
            let seen = bytes[..8].escape_ascii();
            return Err(protocol(format!(
                "\"{seen}…\" is not the start of a Forebay frame: check the address"
            )));
        }
        let crc = crc32c::crc32c(&bytes[..CHECKED]);
        if raw.crc.get() != crc {
            let text = format!("a frame header is corrupted (checksum {:08x}, expected {crc:08x})", raw.crc);
            return Err(protocol(text));
        }
        let Some(kind) = FrameKind::from_number(raw.kind) else {
            return Err(protocol(format!("unknown frame kind {}", raw.kind)));
        };
        let header = Header { kind, id: raw.id.get(), body: raw.body.get(), payload: raw.payload.get() };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<()> {
        let (body, payload) = self.kind.limits();
        for (what, len, limit) in [("body", self.body, body), ("payload", self.payload, payload)] {
            if len > limit {
                let kind = self.kind;
                return Err(protocol(format!(
                    "a {kind} frame has at most {limit} bytes of {what}, this one {len}"
                )));
            }
        }
        Ok(())
    }
}

/// Appends the header and body of a frame; the caller sends the payload after them. Previous content of `out` is kept,
/// and an error leaves `out` unchanged.
pub fn frame<T: Serialize>(
    out: &mut Vec<u8>,
    kind: FrameKind,
    id: u64,
    body: &T,
    payload: u32,
) -> Result<()> {
    lay(out, kind, id, body, payload, 0)
}

/// Appends a frame with a gap of `gap` bytes between header and body.
pub(crate) fn lay<T: Serialize>(
    out: &mut Vec<u8>,
    kind: FrameKind,
    id: u64,
    body: &T,
    payload: u32,
    gap: usize,
) -> Result<()> {
    let start = out.len();
    out.resize(start + HEADER + gap, 0);
    let written = encode(out, body).and_then(|()| {
        let body = u32::try_from(out.len() - start - HEADER - gap)
            .map_err(|_| protocol("a body of 4 GiB or more".to_owned()))?;
        let header = Header { kind, id, body, payload };
        header.check()?;
        out[start..start + HEADER].copy_from_slice(&header.encode());
        Ok(())
    });
    if written.is_err() {
        out.truncate(start);
    }
    written
}

fn encode<T: Serialize>(out: &mut Vec<u8>, body: &T) -> Result<()> {
    // Postcard takes ownership of the buffer it extends; this wrapper keeps the caller's bytes if it fails.
    struct Tail<'a>(&'a mut Vec<u8>);
    impl Extend<u8> for Tail<'_> {
        fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
            self.0.extend(bytes);
        }
    }
    match postcard::to_extend(body, Tail(out)) {
        Ok(_) => Ok(()),
        Err(error) => Err(protocol(format!("cannot encode a message: {error}"))),
    }
}

/// Decodes a body. No byte may be left over.
pub fn body<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let what = std::any::type_name::<T>();
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(protocol(format!("{} excess bytes after a message ({what})", rest.len()))),
        Err(error) => {
            Err(protocol(format!("cannot decode a message of {} bytes ({what}): {error}", bytes.len())))
        }
    }
}

pub(crate) fn protocol(text: String) -> Error {
    Error::new(ErrorKind::Protocol, text)
}
