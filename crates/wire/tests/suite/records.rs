//! The TCP handshake and the protection of frames, against an attacker who controls the network but does not hold the
//! key.

use crate::samples::{hello, opening};
use forebay_model::{ErrorKind, Result};
use forebay_wire::{
    Agreed, Answer, Answered, CHUNK, CHUNK_HEAD, ConnectionKey, FrameKind, HEADER, Header, Hello, Initiator,
    Key, KeyId, Opener, Opening, Proof, Reply, Sealer, Security, TAG, VERSION, answer_opening, body, frame,
};

const LEVELS: [Security; 3] = [Security::None, Security::Authenticate, Security::Encrypt];

fn key() -> ConnectionKey {
    ConnectionKey::from(Key::new([1; 32]))
}

/// The client's and the server's side of a connection after the handshake.
fn connect(clients: Security, servers: Security) -> (Agreed, Agreed) {
    let (initiator, opening) = Initiator::open(&key(), clients, &hello()).unwrap();
    let Answered { hello: received, challenge, agreed } = answer_opening(&opening, &key(), servers).unwrap();
    assert_eq!(received, hello());
    (initiator.finish(&challenge).unwrap(), agreed)
}

fn seal_frame(sealer: &mut Sealer, id: u64) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.frame(&mut out, FrameKind::Answer, id, &Answer::Ok(Reply::Number(id)), 0).unwrap();
    out
}

/// Opens a frame and returns its id and content.
fn open_frame(opener: &mut Opener, bytes: &[u8]) -> Result<(u64, Answer)> {
    let mut bytes = bytes.to_vec();
    let header = Header::decode(bytes.first_chunk().unwrap())?;
    opener.frame(&header, &mut bytes[HEADER..])?;
    Ok((header.id, body(&bytes[HEADER + TAG..])?))
}

fn seal_chunk(sealer: &mut Sealer, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    sealer.chunk(&mut out, bytes);
    out
}

fn open_chunk(opener: &mut Opener, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = bytes.to_vec();
    let (len, tag) = Opener::chunk_head(bytes.first_chunk().unwrap(), CHUNK as u32)?;
    let text = bytes.get_mut(CHUNK_HEAD..CHUNK_HEAD + len).unwrap_or_default();
    opener.chunk(&tag, text)?;
    Ok(text.to_vec())
}

#[test]
fn the_stronger_minimum_holds() {
    for clients in LEVELS {
        for servers in LEVELS {
            let (client, server) = connect(clients, servers);
            assert_eq!((client.level, server.level), (clients.max(servers), clients.max(servers)));
        }
    }
}

#[test]
fn sealed_frames_and_chunks_are_opened_in_order() {
    for level in [Security::Authenticate, Security::Encrypt] {
        let (client, server) = connect(level, level);
        let mut proof = Vec::new();
        let (mut sealer, mut opener) = (client.sealer, server.opener);
        sealer.frame(&mut proof, FrameKind::Proof, 0, &Proof {}, 0).unwrap();
        let header = Header::decode(proof.first_chunk().unwrap()).unwrap();
        opener.frame(&header, &mut proof[HEADER..]).unwrap();
        let (mut sealer, mut opener) = (sealer.agreed(level).unwrap(), opener.agreed(level).unwrap());
        for id in 0..3 {
            let sealed = seal_frame(&mut sealer, id);
            assert_eq!(open_frame(&mut opener, &sealed).unwrap(), (id, Ok(Reply::Number(id))));
            let payload = vec![id as u8 ^ 0x55; 1 << (8 * id)];
            let payload = &payload[..payload.len().min(CHUNK)];
            let sealed = seal_chunk(&mut sealer, payload);
            assert_eq!(sealed[CHUNK_HEAD..] == *payload, level == Security::Authenticate);
            assert_eq!(open_chunk(&mut opener, &sealed).unwrap(), payload);
        }
    }
    assert!(connect(Security::None, Security::None).0.sealer.agreed(Security::None).is_none());
}

#[test]
fn every_changed_byte_of_the_handshake_is_detected() {
    let (initiator, opening) = Initiator::open(&key(), Security::Authenticate, &hello()).unwrap();
    let mut sent = Vec::new();
    frame(&mut sent, FrameKind::Hello, 0, &opening, 0).unwrap();
    let label = hello().job.label;
    assert!(!sent.windows(label.len()).any(|part| part == label.as_bytes()), "the hello is encrypted");
    let judge = |bytes: &[u8]| answer_opening(&Opening::read(bytes)?, &key(), Security::None);
    judge(&sent[HEADER..]).unwrap();
    for at in HEADER..sent.len() {
        for bit in [1, 0x80] {
            let mut changed = sent.clone();
            changed[at] ^= bit;
            let error = judge(&changed[HEADER..]).expect_err("refused");
            let known = [ErrorKind::Unauthenticated, ErrorKind::Protocol];
            assert!(known.contains(&error.kind()), "byte {at}: {error}");
        }
    }
    let challenge = answer_opening(&opening, &key(), Security::None).unwrap().challenge;
    for at in 0..challenge.len() {
        let (initiator, opening) = Initiator::open(&key(), Security::Encrypt, &hello()).unwrap();
        let mut changed = answer_opening(&opening, &key(), Security::None).unwrap().challenge;
        changed[at] ^= 1;
        assert_eq!(initiator.finish(&changed).unwrap_err().kind(), ErrorKind::Unauthenticated, "byte {at}");
    }
    initiator.finish(&challenge).unwrap();
}

#[test]
fn attacker_cannot_weaken_the_clients_minimum_security() {
    for claimed in [Security::None, Security::Authenticate] {
        let (_, mut opening) = Initiator::open(&key(), Security::Encrypt, &hello()).unwrap();
        opening.least = claimed;
        let error = answer_opening(&opening, &key(), Security::None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    }
}

#[test]
fn only_the_named_key_opens_a_connection() {
    let (initiator, opening) = Initiator::open(&key(), Security::None, &hello()).unwrap();
    let other = ConnectionKey::from(Key::new([2; 32]));
    let renamed = ConnectionKey { id: KeyId([9; 16]), ..key() };
    for wrong in [&other, &renamed] {
        let error = answer_opening(&opening, wrong, Security::None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    }
    let moved = Opening { key: renamed.id, ..opening.clone() };
    assert!(
        answer_opening(&moved, &renamed, Security::None).is_err(),
        "a key is valid under its own id only"
    );
    // A server's reply to another client's opening is no reply to this one.
    let (_, theirs) = Initiator::open(&key(), Security::None, &hello()).unwrap();
    let crossed = answer_opening(&theirs, &key(), Security::None).unwrap();
    assert_eq!(initiator.finish(&crossed.challenge).unwrap_err().kind(), ErrorKind::Unauthenticated);
}

#[test]
fn a_recorded_session_cannot_be_replayed() {
    let (initiator, opening) = Initiator::open(&key(), Security::Encrypt, &hello()).unwrap();
    let first = answer_opening(&opening, &key(), Security::Encrypt).unwrap();
    let mut client = initiator.finish(&first.challenge).unwrap();
    let recorded = seal_frame(&mut client.sealer, 0);
    let mut server = first.agreed;
    drop(open_frame(&mut server.opener, &recorded).unwrap());
    let mut again = answer_opening(&opening, &key(), Security::Encrypt).unwrap();
    assert_ne!(again.challenge, first.challenge);
    assert_eq!(open_frame(&mut again.agreed.opener, &recorded).unwrap_err().kind(), ErrorKind::Protocol);
}

#[test]
fn changed_dropped_repeated_moved_spliced_and_reflected_records_are_refused() {
    for level in [Security::Authenticate, Security::Encrypt] {
        let pair = || {
            let (client, server) = connect(level, level);
            let sealer = client.sealer.agreed(level).unwrap();
            (sealer, server.opener.agreed(level).unwrap(), client.opener.agreed(level).unwrap())
        };
        let refused = |opened: Result<(u64, Answer)>, what: &str| {
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::Protocol, "{level}: {what}");
        };
        let len = seal_frame(&mut pair().0, 1).len();
        for at in HEADER..len {
            let (mut sealer, mut opener, _) = pair();
            let mut sealed = seal_frame(&mut sealer, 1);
            sealed[at] ^= 1;
            refused(open_frame(&mut opener, &sealed), "changed");
        }
        let (mut sealer, mut opener, _) = pair();
        let sealed = seal_frame(&mut sealer, 1);
        let header = Header { id: 2, ..Header::decode(sealed.first_chunk().unwrap()).unwrap() };
        let relabelled = [&header.encode()[..], &sealed[HEADER..]].concat();
        refused(open_frame(&mut opener, &relabelled), "a header with a good checksum");

        let (mut sealer, mut opener, mut back) = pair();
        let frames: Vec<_> = (0..4).map(|id| seal_frame(&mut sealer, id)).collect();
        drop(open_frame(&mut opener, &frames[0]).unwrap());
        refused(open_frame(&mut opener, &frames[0]), "repeated");
        refused(open_frame(&mut back, &frames[0]), "reflected");
        let (mut sealer, mut opener, _) = pair();
        let own = seal_frame(&mut sealer, 0);
        refused(open_frame(&mut opener, &frames[0]), "of another connection");
        let (_, mut opener, _) = pair();
        refused(open_frame(&mut opener, &own), "of another connection");
        let (mut sealer, mut opener, _) = pair();
        seal_frame(&mut sealer, 0);
        refused(open_frame(&mut opener, &seal_frame(&mut sealer, 1)), "after a dropped one");
    }
}

#[test]
fn chunks_cannot_be_changed_cut_or_used_as_frames() {
    for level in [Security::Authenticate, Security::Encrypt] {
        let pair = || {
            let (client, server) = connect(level, level);
            (client.sealer.agreed(level).unwrap(), server.opener.agreed(level).unwrap())
        };
        for at in 0..CHUNK_HEAD + 100 {
            let (mut sealer, mut opener) = pair();
            let mut sealed = seal_chunk(&mut sealer, &[7; 100]);
            sealed[at] ^= 1;
            assert_eq!(
                open_chunk(&mut opener, &sealed).unwrap_err().kind(),
                ErrorKind::Protocol,
                "byte {at}"
            );
        }
        let (mut sealer, mut opener) = pair();
        let (one, two) = (seal_chunk(&mut sealer, &[1; 50]), seal_chunk(&mut sealer, &[2; 50]));
        assert!(open_chunk(&mut opener, &two).is_err(), "moved");
        drop(one);
        let (mut sealer, mut opener) = pair();
        let sealed = seal_chunk(&mut sealer, &[3; HEADER + 40]);
        let mut text = sealed[4..].to_vec();
        let header = Header { kind: FrameKind::Answer, id: 1, body: HEADER as u32 + 40, payload: 0 };
        assert!(opener.frame(&header, &mut text).is_err(), "a chunk is not a frame");
    }
    for (len, left) in [(0, 10), (11, 10), (CHUNK as u32 + 1, u32::MAX), (u32::MAX, u32::MAX)] {
        let mut head = [0; CHUNK_HEAD];
        head[..4].copy_from_slice(&len.to_le_bytes());
        assert_eq!(Opener::chunk_head(&head, left).unwrap_err().kind(), ErrorKind::Protocol);
    }
}

#[test]
fn opening_of_another_version_is_refused_with_both_versions() {
    for version in [VERSION - 1, VERSION + 1] {
        let mut old = Vec::new();
        frame(&mut old, FrameKind::Hello, 0, &Opening { version, ..opening() }, 0).unwrap();
        let error = Opening::read(&old[HEADER..]).unwrap_err().to_string();
        assert!(error.contains(&format!("version {version}")), "{error}");
        old.clear();
        frame(&mut old, FrameKind::Hello, 0, &Hello { version, ..hello() }, 0).unwrap();
        let error = Opening::read(&old[HEADER..]).unwrap_err().to_string();
        assert!(error.contains(&format!("version {version}")), "{error}");
    }
}
