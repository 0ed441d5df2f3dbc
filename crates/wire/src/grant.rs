//! User keys, and the messages about them.

use crate::frame::protocol;
use crate::{ConnectionKey, Key, KeyId};
use forebay_model::{Error, ErrorKind, Gid, Result, ServerId, Uid};
use serde::{Deserialize, Serialize};

/// Maximum number of keys of a service, including revoked ones.
pub const MAX_KEYS: usize = 2048;

const WORD: &str = "forebay-user-key-1";

/// A key issued to one user. Its secret is derived from it and the service's key, and is not stored.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UserKey {
    /// The id.
    pub id: KeyId,
    /// The user that the holder acts as.
    pub uid: Uid,
    /// The user's group at the time of issue.
    pub gid: Gid,
    /// The user's name at the time of issue, for display.
    pub user: String,
    /// Time of issue, in seconds since 1970.
    pub made: u64,
    /// Expiry time, in seconds since 1970.
    pub expires: Option<u64>,
    /// Time of revocation, in seconds since 1970.
    pub revoked: Option<u64>,
}

impl UserKey {
    /// Fails if the key is invalid at this time, in seconds since 1970.
    pub fn check(&self, now: u64) -> Result<()> {
        let refused = |text: &str| {
            // The message does not name the user: the client is not authenticated yet.
            let text = format!("the key {} {text}", self.id);
            Err(Error::new(ErrorKind::Unauthenticated, text))
        };
        if self.uid.0 == 0 {
            return refused("is for uid 0: only the service's own key may act as root");
        }
        if self.revoked.is_some() {
            return refused("was revoked: request a new key");
        }
        match self.expires {
            Some(end) if now >= end => refused("has expired: request a new key"),
            _ => Ok(()),
        }
    }

    /// This key merged with another server's record of it: a key revoked on any server is revoked.
    #[must_use]
    pub fn merged(mut self, other: &UserKey) -> UserKey {
        self.revoked = match (self.revoked, other.revoked) {
            (Some(one), Some(two)) => Some(one.min(two)),
            (one, two) => one.or(two),
        };
        self
    }
}

/// Requests about keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyCall {
    /// Issue a key for a user.
    Grant {
        /// User name or uid.
        user: String,
        /// Expiry time, in seconds since 1970.
        expires: Option<u64>,
    },
    /// List all keys.
    List,
    /// Revoke a key.
    Revoke {
        /// The id.
        id: KeyId,
    },
}

/// Replies about keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyReply {
    /// A key was issued.
    Granted {
        /// The key.
        key: UserKey,
        /// Its secret, which only this reply contains.
        secret: [u8; 32],
        /// Servers that could not be notified.
        missing: Vec<ServerId>,
    },
    /// All keys.
    Keys(Vec<UserKey>),
    /// A key was revoked.
    Revoked {
        /// The key.
        key: UserKey,
        /// Servers that could not be notified.
        missing: Vec<ServerId>,
    },
}

impl ConnectionKey {
    /// The contents of a key file.
    #[must_use]
    pub fn to_text(&self) -> String {
        if self.id == KeyId::SERVICE {
            return self.secret.to_text();
        }
        format!("{WORD} {} {}", self.id, self.secret.to_text())
    }

    /// Parses a key file of the service or of a user. An error never contains the text.
    pub fn from_text(text: &str) -> Result<ConnectionKey> {
        let mut words = text.lines().filter(|line| !line.starts_with('#')).flat_map(str::split_whitespace);
        let found: [Option<&str>; 4] = std::array::from_fn(|_| words.next());
        match found {
            [Some(secret), None, ..] => Ok(Key::from_text(secret)?.into()),
            [Some(WORD), Some(id), Some(secret), None] => {
                Ok(ConnectionKey { id: id.parse()?, secret: Key::from_text(secret)? })
            }
            _ => {
                Err(protocol(format!("a key is 64 hexadecimal digits, or \"{WORD}\", an id and such a key")))
            }
        }
    }

    /// Fails if a key file with this mode and owner could be read by users other than `user`.
    pub fn check_file(mode: u32, owner: u32, user: u32) -> Result<()> {
        let refused = |text: String| Err(Error::new(ErrorKind::Unauthenticated, text));
        if mode & 0o077 != 0 {
            let mode = mode & 0o777;
            return refused(format!("other users can read it (mode {mode:03o}): run \"chmod 600\" on it"));
        }
        // Root can become any owner.
        if owner != user && user != 0 {
            return refused(format!(
                "it belongs to uid {owner}, but uid {user} uses it: a key file must belong to its user"
            ));
        }
        Ok(())
    }
}
