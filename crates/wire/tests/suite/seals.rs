//! Proofs hold for what they were made for, and for nothing else.

use crate::samples::{hello, token};
use forebay_model::{Access, FileId, Uid};
use forebay_wire::{Channel, Hello, Key, Token, client_proof, same_proof, server_proof};
use std::collections::HashSet;

#[test]
fn a_proof_depends_on_every_word_of_the_handshake() {
    let key = Key::new([1; 32]);
    let mut job = hello().job;
    job.label = "4712".into();
    let hellos = [
        hello(),
        Hello { version: 9, ..hello() },
        Hello { channel: Channel::Control, ..hello() },
        Hello { client: 1, ..hello() },
        Hello { nonce: [8; 32], ..hello() },
        Hello { job, ..hello() },
        Hello { roster: None, ..hello() },
    ];
    let mut seen = HashSet::new();
    for hello in &hellos {
        for challenge in [[0; 32], [1; 32]] {
            for key in [&key, &Key::new([2; 32])] {
                assert!(seen.insert(client_proof(key, hello, &challenge)));
                assert!(seen.insert(server_proof(key, hello, &challenge)));
            }
        }
    }
    let proof = client_proof(&key, &hello(), &[0; 32]);
    assert!(same_proof(&proof, &client_proof(&key, &hello(), &[0; 32])));
    assert!(!same_proof(&proof, &server_proof(&key, &hello(), &[0; 32])));
}

#[test]
fn a_token_that_was_touched_is_not_sealed() {
    let key = Key::new([1; 32]);
    let good = token().seal(&key);
    assert!(good.is_sealed_by(&key));
    assert!(!good.is_sealed_by(&key.for_tokens()), "the key that proves a peer seals no tokens");
    assert!(token().seal(&key.for_tokens()).is_sealed_by(&Key::new([1; 32]).for_tokens()));
    assert!(!good.is_sealed_by(&Key::new([2; 32])));
    assert!(!token().is_sealed_by(&key));
    let mut seal = good.seal;
    seal[15] ^= 1;
    for bad in [
        Token { file: FileId(78), ..good },
        Token { access: Access::EXECUTE, ..good },
        Token { access: Access::READ, ..good },
        Token { uid: Uid(0), ..good },
        Token { serial: 6, ..good },
        Token { seal, ..good },
    ] {
        assert!(!bad.is_sealed_by(&key), "{bad:?}");
    }
}

#[test]
fn a_key_is_read_from_text_and_never_shown() {
    let key = Key::new(std::array::from_fn(|i| i as u8 * 7));
    assert_eq!(Key::from_text(&key.to_text()).unwrap().as_bytes(), key.as_bytes());
    assert_eq!(format!("{key:?}"), "Key(secret)");
    let secret = "deadbeef".repeat(7) + "deadbeeg";
    for bad in ["", "00", &secret, &"0".repeat(65), &"é".repeat(32)] {
        let error = Key::from_text(bad).unwrap_err().to_string();
        assert_eq!(error, "a key is 64 hexadecimal digits");
    }
}
