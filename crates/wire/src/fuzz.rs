//! The way in for fuzzers, and for the suite's own random drivers.

use crate::{Answer, Call, FrameKind, Greeting, HEADER, Header, Hello, Proof, body, frame};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// Decodes whatever `bytes` are, as a peer would, and says whether they were a frame. What decodes must come
/// back the same after it was encoded again.
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
        FrameKind::Hello => Hello::read(bytes).is_ok() && again::<Hello>(header, bytes),
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
    frame(&mut out, header.kind, header.id, &value, header.payload).expect("what was decoded fits a frame");
    assert_eq!(body::<T>(&out[HEADER..]).as_ref(), Ok(&value), "a message changed on its way");
    true
}
