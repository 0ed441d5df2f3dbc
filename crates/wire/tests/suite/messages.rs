//! Every message round-trips, and invalid messages are refused.

use crate::samples::{
    answers, calls, greetings, hello, opening, peer_replies, peer_requests, replies, requests,
};
use forebay_model::ErrorKind;
use forebay_wire::{
    FrameKind, Greeting, HEADER, Header, Hello, MAX_BODY, MAX_HANDSHAKE, MAX_PAYLOAD, PeerReply, PeerRequest,
    Proof, Reply, Request, body, frame,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use std::fmt::Debug;

fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(kind: FrameKind, message: &T) {
    let mut out = b"before".to_vec();
    frame(&mut out, kind, 42, message, 0).unwrap();
    let (before, rest) = out.split_at(6);
    assert_eq!(before, b"before");
    let (head, bytes) = rest.split_first_chunk::<HEADER>().unwrap();
    let expected = Header { kind, id: 42, body: bytes.len() as u32, payload: 0 };
    assert_eq!(Header::decode(head), Ok(expected), "{message:?}");
    assert_eq!(&body::<T>(bytes).unwrap(), message);
    let longer = [bytes, &[0]].concat();
    assert_eq!(body::<T>(&longer).unwrap_err().kind(), ErrorKind::Protocol, "a byte too many: {message:?}");
    for cut in 0..bytes.len() {
        assert!(body::<T>(&bytes[..cut]).is_err(), "cut at {cut}: {message:?}");
    }
}

#[test]
fn every_message_round_trips() {
    check(FrameKind::Hello, &hello());
    check(FrameKind::Proof, &Proof {});
    check(FrameKind::Hello, &opening());
    greetings().iter().for_each(|greeting| check(FrameKind::Greeting, greeting));
    calls().iter().for_each(|call| check(FrameKind::Call, call));
    answers().iter().for_each(|answer| check(FrameKind::Answer, answer));
}

/// The numbers of all variants, found by decoding each number alone: an unknown variant fails differently from a known
/// one with missing fields.
fn known<T: DeserializeOwned + Debug>() -> BTreeSet<u8> {
    let unknown = |number: u8| body::<T>(&[number]).is_err_and(|error| error.to_string().contains("Serde"));
    (0..128).filter(|&number| !unknown(number)).collect()
}

fn sampled<T: Serialize>(samples: &[T]) -> BTreeSet<u8> {
    let number = |sample: &T| {
        let mut out = Vec::new();
        frame(&mut out, FrameKind::Call, 0, sample, 0).unwrap();
        out[HEADER]
    };
    samples.iter().map(number).collect()
}

#[test]
fn samples_cover_every_message() {
    assert_eq!(sampled(&requests()), known::<Request>());
    assert_eq!(sampled(&replies()), known::<Reply>());
    assert_eq!(sampled(&greetings()), known::<Greeting>());
    assert_eq!(sampled(&peer_requests()), known::<PeerRequest>());
    assert_eq!(sampled(&peer_replies()), known::<PeerReply>());
}

/// Alters a valid header, and repairs its checksum if requested.
fn altered(at: usize, bytes: &[u8], repair: bool) -> [u8; HEADER] {
    let mut head = Header { kind: FrameKind::Call, id: 7, body: 10, payload: 20 }.encode();
    head[at..at + bytes.len()].copy_from_slice(bytes);
    if repair {
        let crc = crc32c::crc32c(&head[..20]);
        head[20..].copy_from_slice(&crc.to_le_bytes());
    }
    head
}

#[test]
fn invalid_header_is_refused_with_a_reason() {
    for (at, bytes, repair, reason) in [
        (0, &b"GET"[..], true, "not the start of a Forebay frame"),
        (0, &b"\0\0\0"[..], false, "not the start of a Forebay frame"),
        (3, &[0][..], true, "kind 0"),
        (3, &[6][..], true, "kind 6"),
        (3, &[5][..], false, "corrupted"),
        (8, &[1][..], false, "corrupted"),
        (20, &[0; 4][..], false, "corrupted"),
        (4, &(MAX_BODY + 1).to_le_bytes()[..], true, "at most 524288 bytes of body"),
        (4, &u32::MAX.to_le_bytes()[..], true, "this one 4294967295"),
        (16, &(MAX_PAYLOAD + 1).to_le_bytes()[..], true, "at most 4194304 bytes of payload"),
        (3, &[1][..], true, "a hello frame has at most 0 bytes of payload"),
    ] {
        let error = Header::decode(&altered(at, bytes, repair)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains(reason), "{error}: expected {reason}");
    }
    let largest = Header { kind: FrameKind::Answer, id: u64::MAX, body: MAX_BODY, payload: MAX_PAYLOAD };
    assert_eq!(Header::decode(&largest.encode()), Ok(largest));
}

#[test]
fn message_above_the_frame_limit_is_not_encoded() {
    for (kind, len) in [(FrameKind::Call, MAX_BODY), (FrameKind::Hello, MAX_HANDSHAKE)] {
        let mut out = b"kept".to_vec();
        let error = frame(&mut out, kind, 0, &vec![0_u8; len as usize], 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert_eq!(out, b"kept");
    }
    let mut out = Vec::new();
    assert!(frame(&mut out, FrameKind::Call, 0, &(), MAX_PAYLOAD + 1).is_err());
    assert!(frame(&mut out, FrameKind::Call, 0, &(), MAX_PAYLOAD).is_ok());
}

#[test]
fn hello_of_another_version_is_refused_whatever_follows() {
    let error = Hello::read(&[1, 0xff, 0xff]).unwrap_err();
    assert!(error.to_string().contains("version 1 of the protocol, this server version 6"), "{error}");
    assert_eq!(Hello::read(&[]).unwrap_err().kind(), ErrorKind::Protocol);
    let mut nameless = hello();
    nameless.job.user.clear();
    let mut out = Vec::new();
    frame(&mut out, FrameKind::Hello, 0, &nameless, 0).unwrap();
    assert!(Hello::read(&out[HEADER..]).unwrap_err().to_string().contains("a job's user has 1 to 64 bytes"));
}
