//! Seals and keys are valid for their exact content and use only.

use crate::samples::{token, user_key};
use forebay_model::{Access, FileId, Gid, Uid};
use forebay_wire::{ConnectionKey, Key, KeyId, Token, UserKey};
use std::collections::HashSet;

#[test]
fn modified_token_fails_verification() {
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
fn user_key_depends_on_its_user_and_expiry() {
    let service = Key::new([1; 32]);
    let key = user_key();
    let mut seen = HashSet::from([*service.as_bytes(), *service.for_tokens().as_bytes()]);
    for (service, key) in [
        (&service, key.clone()),
        (&Key::new([2; 32]), key.clone()),
        (&service, UserKey { id: KeyId([6; 16]), ..key.clone() }),
        (&service, UserKey { uid: Uid(0), ..key.clone() }),
        (&service, UserKey { gid: Gid(0), ..key.clone() }),
        (&service, UserKey { expires: Some(0), ..key.clone() }),
        (&service, UserKey { expires: None, ..key.clone() }),
    ] {
        assert!(seen.insert(*service.for_user(&key).as_bytes()), "{key:?}");
    }
    let later = UserKey { user: "renamed".into(), made: 9, revoked: Some(8), ..key.clone() };
    assert_eq!(service.for_user(&later).as_bytes(), service.for_user(&key).as_bytes());
}

#[test]
fn key_files_of_the_service_and_of_users_are_read() {
    let secret = Key::new(std::array::from_fn(|i| i as u8));
    for key in [secret.clone().into(), ConnectionKey { id: KeyId([0xa7; 16]), secret }] {
        let text = format!("# a remark: 1 2 3\n{}\n", key.to_text());
        let read = ConnectionKey::from_text(&text).unwrap();
        assert_eq!((read.id, read.secret.as_bytes()), (key.id, key.secret.as_bytes()));
        for wrong in [text.replace("1d1e1f", "1d1e1g"), text.replace("1d1e1f", "1d1e"), text + "more"] {
            assert!(ConnectionKey::from_text(&wrong).is_err(), "{wrong}");
        }
    }
    assert!(ConnectionKey::from_text("").is_err());
}

#[test]
fn key_file_with_wrong_mode_or_owner_is_refused() {
    for (mode, owner, user, good) in [
        (0o100_600, 7, 7, true),
        (0o100_400, 7, 7, true),
        (0o100_600, 7, 0, true),
        (0o100_600, 7, 8, false),
        (0o100_600, 0, 8, false),
        (0o100_640, 7, 7, false),
        (0o100_604, 7, 7, false),
        (0o100_602, 7, 0, false),
    ] {
        let checked = ConnectionKey::check_file(mode, owner, user);
        assert_eq!(checked.is_ok(), good, "mode {mode:o}, owner {owner}, user {user}");
    }
}

#[test]
fn key_is_parsed_from_text_and_never_displayed() {
    let key = Key::new(std::array::from_fn(|i| i as u8 * 7));
    assert_eq!(Key::from_text(&key.to_text()).unwrap().as_bytes(), key.as_bytes());
    assert_eq!(format!("{key:?}"), "Key(secret)");
    let secret = "deadbeef".repeat(7) + "deadbeeg";
    for bad in ["", "00", &secret, &"0".repeat(65), &"é".repeat(32)] {
        let error = Key::from_text(bad).unwrap_err().to_string();
        assert_eq!(error, "a key is 64 hexadecimal digits");
    }
}
