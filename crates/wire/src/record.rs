//! Authenticated or encrypted frames and payloads of a connection.
//!
//! Each direction has its own key and counter. Every sealed record takes the next number, so that no record can be
//! dropped, repeated, reordered or reflected: the receiver expects exactly one number, and the tag matches no other.
//!
//! A frame is sealed as header, tag, body. Its payload follows in chunks, each with its length and a tag. A tag
//! precedes the bytes it covers, so that the receiver reads a chunk directly into its destination and decrypts it in
//! place.

use crate::frame::{HEADER, Header, lay, protocol};
use crate::noise::{key, nonce};
use crate::seal::same_proof;
use crate::{FrameKind, Security};
use forebay_model::{Error, Result};
use ring::aead::{Aad, LessSafeKey, Tag};
use serde::Serialize;
use std::fmt;

/// Size of a tag in bytes.
pub const TAG: usize = crate::noise::TAG;
/// Maximum number of payload bytes in one chunk.
pub const CHUNK: usize = 64 << 10;
/// Size of a chunk header in bytes: length and tag.
pub const CHUNK_HEAD: usize = 4 + TAG;

/// Bytes encrypted with one key before it is replaced: 2^32 blocks are far below the limits of AES-GCM.
const REKEY: u64 = 64 << 30;
const MAC_KEY: &str = "forebay 2026-11 key for the authentication of frames";
/// Associated data of a chunk's tag. For a frame it is the header.
const CHUNK_WORD: &[u8] = b"chunk";

/// Seals outgoing records.
pub struct Sealer(Direction);

/// Opens incoming records.
pub struct Opener(Direction);

/// One direction of a connection.
struct Direction {
    secret: [u8; 32],
    suite: Suite,
    /// Number of the next record.
    next: u64,
    /// Bytes encrypted with the current key.
    used: u64,
    /// Number of bytes after which the key is replaced.
    rekey: u64,
}

enum Suite {
    Authenticate([u8; 32]),
    Encrypt(Box<LessSafeKey>),
}

/// A sealer with the key of this direction; encrypts until [`Sealer::agreed`].
pub(crate) fn sealer(secret: [u8; 32]) -> Sealer {
    Sealer(Direction::new(secret))
}

/// An opener with the key of this direction; expects encryption until [`Opener::agreed`].
pub(crate) fn opener(secret: [u8; 32]) -> Opener {
    Opener(Direction::new(secret))
}

impl Direction {
    fn new(secret: [u8; 32]) -> Direction {
        Direction { secret, suite: Suite::Encrypt(Box::new(key(&secret))), next: 0, used: 0, rekey: REKEY }
    }

    /// Switches to the agreed security after the handshake. Numbering continues, so that no number is used twice.
    fn become_level(mut self, level: Security) -> Option<Direction> {
        match level {
            Security::None => return None,
            Security::Authenticate => {
                self.suite = Suite::Authenticate(blake3::derive_key(MAC_KEY, &self.secret));
            }
            Security::Encrypt => {}
        }
        Some(self)
    }

    /// Takes the number of the next record.
    fn number(&mut self, len: usize) -> u64 {
        if self.used >= self.rekey
            && let Suite::Encrypt(cipher) = &mut self.suite
        {
            // Noise's REKEY: the encryption of zeros under the highest number, which no record uses.
            let mut fresh = [0; 32];
            let tag = cipher.seal_in_place_separate_tag(nonce(u64::MAX), Aad::empty(), &mut fresh);
            assert!(tag.is_ok(), "32 bytes can be encrypted");
            (self.secret, self.used) = (fresh, 0);
            **cipher = key(&fresh);
        }
        self.used += len as u64;
        let number = self.next;
        assert!(number < u64::MAX, "a connection never uses up all record numbers");
        self.next += 1;
        number
    }

    fn seal(&mut self, about: &[u8], bytes: &mut [u8]) -> [u8; TAG] {
        let number = self.number(bytes.len());
        match &self.suite {
            Suite::Authenticate(key) => mac(key, number, about, bytes),
            Suite::Encrypt(cipher) => {
                let tag = cipher.seal_in_place_separate_tag(nonce(number), Aad::from(about), bytes);
                let tag = tag.expect("a frame is below the encryption limit");
                tag.as_ref().try_into().expect("a tag has 16 bytes")
            }
        }
    }

    fn open(&mut self, about: &[u8], tag: &[u8; TAG], bytes: &mut [u8]) -> Result<()> {
        let number = self.number(bytes.len());
        let opened = match &self.suite {
            Suite::Authenticate(key) => same_tag(tag, &mac(key, number, about, bytes)),
            Suite::Encrypt(cipher) => {
                let (nonce, about, tag) = (nonce(number), Aad::from(about), Tag::from(*tag));
                cipher.open_in_place_separate_tag(nonce, about, tag, bytes, 0..).is_ok()
            }
        };
        if opened { Ok(()) } else { Err(tampered()) }
    }
}

fn mac(key: &[u8; 32], number: u64, about: &[u8], bytes: &[u8]) -> [u8; TAG] {
    let mut hash = blake3::Hasher::new_keyed(key);
    // Both lengths are covered: `about` has one of two lengths, and the contents are the rest.
    hash.update(&number.to_le_bytes()).update(&[about.len() as u8]).update(about).update(bytes);
    *hash.finalize().as_bytes().first_chunk().expect("a hash has 32 bytes")
}

fn same_tag(one: &[u8; TAG], other: &[u8; TAG]) -> bool {
    let widen = |tag: &[u8; TAG]| {
        let mut wide = [0; 32];
        wide[..TAG].copy_from_slice(tag);
        wide
    };
    same_proof(&widen(one), &widen(other))
}

fn tampered() -> Error {
    protocol(
        "a frame was changed, left out or repeated on its way (its authentication tag is wrong): the connection is \
         closed"
            .to_owned(),
    )
}

impl Sealer {
    /// Switches to the agreed security; `None` for [`Security::None`].
    #[must_use]
    pub fn agreed(self, level: Security) -> Option<Sealer> {
        self.0.become_level(level).map(Sealer)
    }

    /// Appends a frame; the caller adds its payload in [chunks](Sealer::chunk). An error leaves `out` unchanged.
    pub fn frame<T: Serialize>(
        &mut self,
        out: &mut Vec<u8>,
        kind: FrameKind,
        id: u64,
        body: &T,
        payload: u32,
    ) -> Result<()> {
        let start = out.len();
        lay(out, kind, id, body, payload, TAG)?;
        let (head, body) = out[start..].split_at_mut(HEADER + TAG);
        let (header, tag) = head.split_at_mut(HEADER);
        tag.copy_from_slice(&self.0.seal(header, body));
        Ok(())
    }

    /// Appends a piece of payload of 1 to [`CHUNK`] bytes.
    pub fn chunk(&mut self, out: &mut Vec<u8>, bytes: &[u8]) {
        assert!((1..=CHUNK).contains(&bytes.len()), "the caller splits the payload into chunks");
        let start = out.len();
        out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; TAG]);
        out.extend_from_slice(bytes);
        let tag = self.0.seal(CHUNK_WORD, &mut out[start + CHUNK_HEAD..]);
        out[start + 4..start + CHUNK_HEAD].copy_from_slice(&tag);
    }
}

impl Opener {
    /// Switches to the agreed security; `None` for [`Security::None`].
    #[must_use]
    pub fn agreed(self, level: Security) -> Option<Opener> {
        self.0.become_level(level).map(Opener)
    }

    /// Opens a frame in place: its tag, then its body. Its content must not be trusted before.
    pub fn frame(&mut self, header: &Header, sealed: &mut [u8]) -> Result<()> {
        let (tag, body) = sealed.split_first_chunk_mut::<TAG>().expect("the caller has read the tag");
        let tag = *tag;
        self.0.open(&header.encode(), &tag, body)
    }

    /// Decodes the header of a chunk, given the number of payload bytes left: returns its length and its tag.
    pub fn chunk_head(head: &[u8; CHUNK_HEAD], left: u32) -> Result<(usize, [u8; TAG])> {
        let (len, tag) = head.split_first_chunk::<4>().expect("a head has 20 bytes");
        let len = u32::from_le_bytes(*len);
        if len == 0 || len > left || len as usize > CHUNK {
            return Err(protocol(format!(
                "received a chunk of {len} bytes with {left} bytes of payload left"
            )));
        }
        Ok((len as usize, tag.try_into().expect("a tag has 16 bytes")))
    }

    /// Opens a chunk in place. Its bytes must not be used before.
    pub fn chunk(&mut self, tag: &[u8; TAG], bytes: &mut [u8]) -> Result<()> {
        self.0.open(CHUNK_WORD, tag, bytes)
    }
}

/// Appends a frame for a connection that may be sealed.
pub fn frame_with<T: Serialize>(
    sealer: Option<&mut Sealer>,
    out: &mut Vec<u8>,
    kind: FrameKind,
    id: u64,
    body: &T,
    payload: u32,
) -> Result<()> {
    match sealer {
        Some(sealer) => sealer.frame(out, kind, id, body, payload),
        None => crate::frame(out, kind, id, body, payload),
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(secret)")
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Opener(secret)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_replaced_on_both_sides_at_the_same_record() {
        let (mut sealer, mut opener) = (sealer([3; 32]), opener([3; 32]));
        (sealer.0.rekey, opener.0.rekey) = (1000, 1000);
        let mut secrets = std::collections::HashSet::new();
        for round in 0..20_u8 {
            let mut out = Vec::new();
            sealer.chunk(&mut out, &[round; 300]);
            assert_ne!(out[CHUNK_HEAD..], [round; 300], "the chunk is encrypted");
            let (len, tag) = Opener::chunk_head(out.first_chunk().unwrap(), 300).unwrap();
            opener.chunk(&tag, &mut out[CHUNK_HEAD..]).unwrap();
            assert_eq!((len, &out[CHUNK_HEAD..]), (300, &[round; 300][..]));
            assert_eq!(sealer.0.secret, opener.0.secret);
            secrets.insert(sealer.0.secret);
        }
        assert_eq!(secrets.len(), 5, "after every fourth chunk");
    }
}
