//! Secrets, derived keys, and the seal of tokens.
//!
//! Everything is a keyed BLAKE3 hash. Each use has its own domain prefix, so that a value for one use is invalid for
//! any other.

use crate::frame::protocol;
use crate::{KeyId, Token, UserKey};
use forebay_model::{FileId, Result};
use std::fmt;

const USER_KEY: &[u8] = b"forebay 1 user key\0";
const CONNECTION_KEY: &[u8] = b"forebay 1 connection key\0";
const TOKEN_KEY: &[u8] = b"forebay 1 token key\0";
const TOKEN: &[u8] = b"forebay 1 token\0";
const FILE: &[u8] = b"forebay 1 file\0";

/// A secret. In a file it is 64 hexadecimal digits and a newline.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The bytes of this key, for storing it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that seals the tokens of a multi-server service, derived from the service's key.
    #[must_use]
    pub fn for_tokens(&self) -> Key {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        Key(*hash.update(TOKEN_KEY).finalize().as_bytes())
    }

    /// A number for a file that only a holder of this key can compute.
    #[must_use]
    pub fn file_secret(&self, file: FileId) -> [u8; 16] {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        let hash = *hash.update(FILE).update(&file.0.to_le_bytes()).finalize().as_bytes();
        *hash.first_chunk().expect("32 bytes")
    }

    /// The secret that both sides of a connection prove to hold, for the key with this id.
    #[must_use]
    pub(crate) fn for_connections(&self, id: KeyId) -> Key {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        Key(*hash.update(CONNECTION_KEY).update(&id.0).finalize().as_bytes())
    }

    /// The secret of a user key. It depends on the user and the expiry, so that only a holder of this key can change
    /// them.
    #[must_use]
    pub fn for_user(&self, key: &UserKey) -> Key {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        let end = key.expires.map_or([0; 9], |end| {
            let mut bytes = [1; 9];
            bytes[1..].copy_from_slice(&end.to_le_bytes());
            bytes
        });
        hash.update(USER_KEY)
            .update(&key.id.0)
            .update(&key.uid.0.to_le_bytes())
            .update(&key.gid.0.to_le_bytes());
        Key(*hash.update(&end).finalize().as_bytes())
    }

    /// The contents of a key file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push('\n');
        text
    }

    /// Parses a key file. An error never contains the text.
    pub fn from_text(text: &str) -> Result<Key> {
        let digits = text.trim().as_bytes();
        let wrong = || protocol("a key is 64 hexadecimal digits".to_owned());
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(wrong);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(Key(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// Compares two proofs in constant time.
pub(crate) fn same_proof(one: &[u8; 32], other: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

impl Token {
    /// This token with its seal.
    #[must_use]
    pub fn seal(self, key: &Key) -> Token {
        Token { seal: self.expected_seal(key), ..self }
    }

    /// Whether a holder of `key` issued exactly this token.
    #[must_use]
    pub fn is_sealed_by(&self, key: &Key) -> bool {
        let widen = |seal: [u8; 16]| {
            let mut wide = [0; 32];
            wide[..16].copy_from_slice(&seal);
            wide
        };
        same_proof(&widen(self.seal), &widen(self.expected_seal(key)))
    }

    fn expected_seal(&self, key: &Key) -> [u8; 16] {
        let access = self.access;
        let bits = u8::from(access.read) | u8::from(access.write) << 1 | u8::from(access.execute) << 2;
        let mut hash = blake3::Hasher::new_keyed(&key.0);
        hash.update(TOKEN)
            .update(&self.file.0.to_le_bytes())
            .update(&[bits])
            .update(&self.uid.0.to_le_bytes())
            .update(&self.serial.to_le_bytes());
        let mut seal = [0; 16];
        seal.copy_from_slice(&hash.finalize().as_bytes()[..16]);
        seal
    }
}
