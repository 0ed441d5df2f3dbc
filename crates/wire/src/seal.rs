//! Proofs: that a peer holds the key, and that a token was made by this service.
//!
//! Everything is a keyed BLAKE3 hash. Each use starts with words of its own, so that a proof made for one use
//! is worthless for another, and the client's cannot be sent back as the server's.

use crate::frame::protocol;
use crate::{Hello, Token};
use forebay_model::Result;
use std::fmt;

const CLIENT: &[u8] = b"forebay 1 client proof\0";
const SERVER: &[u8] = b"forebay 1 server proof\0";
const TOKEN_KEY: &[u8] = b"forebay 1 token key\0";
const TOKEN: &[u8] = b"forebay 1 token\0";

/// A secret. In a file it is 64 hexadecimal digits and a line end.
#[derive(Clone)]
pub struct Key([u8; 32]);

impl Key {
    /// A key of these bytes.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Key {
        Key(bytes)
    }

    /// The bytes of this key, for whoever stores it.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The key that seals the tokens of a service of several servers: all who hold this key have it.
    #[must_use]
    pub fn for_tokens(&self) -> Key {
        let mut hash = blake3::Hasher::new_keyed(&self.0);
        Key(*hash.update(TOKEN_KEY).finalize().as_bytes())
    }

    /// The contents of a key file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push('\n');
        text
    }

    /// Reads the contents of a key file. The text is never repeated in the error.
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

/// What a client answers to a challenge: it holds the key, and said just this hello.
#[must_use]
pub fn client_proof(key: &Key, hello: &Hello, challenge: &[u8; 32]) -> [u8; 32] {
    proof(CLIENT, key, hello, challenge)
}

/// What a server adds to its welcome: it holds the key, and heard just this hello.
#[must_use]
pub fn server_proof(key: &Key, hello: &Hello, challenge: &[u8; 32]) -> [u8; 32] {
    proof(SERVER, key, hello, challenge)
}

fn proof(words: &[u8], key: &Key, hello: &Hello, challenge: &[u8; 32]) -> [u8; 32] {
    // The encoding of a hello tells where each field ends: no two hellos have the same bytes.
    let hello = postcard::to_stdvec(hello).expect("a hello can always be encoded");
    let mut hash = blake3::Hasher::new_keyed(&key.0);
    hash.update(words).update(challenge).update(&hello);
    *hash.finalize().as_bytes()
}

/// Whether two proofs are the same, in a time that tells nothing about where they differ.
#[must_use]
pub fn same_proof(one: &[u8; 32], other: &[u8; 32]) -> bool {
    blake3::Hash::from_bytes(*one) == blake3::Hash::from_bytes(*other)
}

impl Token {
    /// This token with the seal that belongs to it.
    #[must_use]
    pub fn seal(self, key: &Key) -> Token {
        Token { seal: self.expected_seal(key), ..self }
    }

    /// Whether the holder of `key` made this token, just as it is.
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
