//! Keys for TCP connections.

use crate::Key;
use crate::frame::protocol;
use forebay_model::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Id of a client's key. It is sent in the clear and is not a secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct KeyId(pub [u8; 16]);

impl KeyId {
    /// The service's own key.
    pub const SERVICE: KeyId = KeyId([0; 16]);
}

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for KeyId {
    type Err = Error;

    fn from_str(text: &str) -> Result<KeyId> {
        let wrong = || {
            protocol(format!("\"{}\" is not a key id: expected 32 hexadecimal digits", text.escape_debug()))
        };
        let digits = text.as_bytes();
        if digits.len() != 32 {
            return Err(wrong());
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |d: u8| char::from(d).to_digit(16).ok_or_else(wrong);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        Ok(KeyId(bytes))
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyId({self})")
    }
}

/// A key with its secret, as the connecting side holds it.
#[derive(Clone, Debug)]
pub struct ConnectionKey {
    /// The id.
    pub id: KeyId,
    /// The secret.
    pub secret: Key,
}

impl From<Key> for ConnectionKey {
    /// The service's own key.
    fn from(secret: Key) -> ConnectionKey {
        ConnectionKey { id: KeyId::SERVICE, secret }
    }
}
