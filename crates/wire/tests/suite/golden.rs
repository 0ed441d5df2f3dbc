//! Bytes that must not change by accident: peers of the same version, tokens held by clients, and the handshake between
//! peers of different versions depend on them. A change requires a new `VERSION`; the handshake's own bytes may not
//! change even then (`docs/wire.md`, "Versions").

use crate::samples::{hello, token};
use forebay_model::{Error, ErrorKind};
use forebay_wire::{Call, FrameKind, Greeting, Header, Key, Request, frame};
use std::fmt::Write;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes everything");
        text
    })
}

#[test]
fn a_header() {
    let header =
        Header { kind: FrameKind::Call, id: 0x0102_0304_0506_0708, body: 0x1234, payload: 0x0010_0000 };
    assert_eq!(hex(&header.encode()), "464259043412000008070605040302010000100006579395");
}

#[test]
fn a_hello() {
    let mut out = Vec::new();
    frame(&mut out, FrameKind::Hello, 0, &hello(), 0).unwrap();
    assert_eq!(
        hex(&out),
        "464259012200000000000000000000000000000000dbda910601f8acd19101043437313105616c6963650770687973696373400301040201ac02"
    );
}

#[test]
fn a_refusal() {
    let mut out = Vec::new();
    let refusal = Greeting::Refusal(Error::new(ErrorKind::Protocol, "no"));
    frame(&mut out, FrameKind::Greeting, 0, &refusal, 0).unwrap();
    assert_eq!(hex(&out), "4642590205000000000000000000000000000000872247880214026e6f");
}

#[test]
fn a_call() {
    let mut out = Vec::new();
    let call = Call { identity: None, request: Request::Read { token: token(), offset: 300, len: 4096 } };
    frame(&mut out, FrameKind::Call, 1, &call, 0).unwrap();
    assert_eq!(
        hex(&out),
        "464259041d0000000100000000000000000000001c4e43e3001d4d010100e8070509090909090909090909090909090909ac028020"
    );
}

#[test]
fn seals() {
    let key = Key::new([1; 32]);
    assert_eq!(hex(&token().seal(&key).seal), "59fdf022e2915181f87c6ec6dc7f692a");
}
