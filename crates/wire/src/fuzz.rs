//! Entry point for fuzzers and for the random tests of this crate.

use crate::{Answer, Call, FrameKind, Greeting, HEADER, Header, Hello, Opening, Proof, body, frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Decodes arbitrary bytes as a peer would and returns whether they were a frame. A decoded message must be unchanged
/// after encoding and decoding it again.
pub fn fuzz(bytes: &[u8]) -> bool {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else {
        return false;
    };
    let Ok(header) = Header::decode(header) else {
        return false;
    };
    let Some(bytes) = rest.get(..header.body as usize) else {
        return false;
    };
    match header.kind {
        FrameKind::Hello if Hello::read(bytes).is_ok() => again::<Hello>(header, bytes),
        FrameKind::Hello => Opening::read(bytes).is_ok() && again::<Opening>(header, bytes),
        FrameKind::Greeting => again::<Greeting>(header, bytes),
        FrameKind::Proof => again::<Proof>(header, bytes),
        FrameKind::Call => again::<Call>(header, bytes),
        FrameKind::Answer => again::<Answer>(header, bytes),
    }
}

fn again<T: Serialize + DeserializeOwned + PartialEq + Debug>(header: Header, bytes: &[u8]) -> bool {
    let Ok(value) = body::<T>(bytes) else {
        return false;
    };
    let mut out = Vec::new();
    frame(&mut out, header.kind, header.id, &value, header.payload).expect("a decoded message fits a frame");
    assert_eq!(body::<T>(&out[HEADER..]).as_ref(), Ok(&value), "the message changed in the round trip");
    true
}
