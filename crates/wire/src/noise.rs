//! The primitives of the handshake's Noise pattern, from `ring`.

use forebay_model::lock;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use ring::digest::{self, SHA256};
use ring::rand::{SecureRandom, SystemRandom};
use snow::Error;
use snow::params::{CipherChoice, DHChoice, HashChoice};
use snow::resolvers::CryptoResolver;
use snow::types::{Cipher, Dh, Hash, Random};
use std::sync::Mutex;

/// The pattern: both sides hold a pre-shared secret, and ephemeral Diffie-Hellman gives each connection its own keys.
pub(crate) const PATTERN: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";

/// Size of an authentication tag in bytes.
pub(crate) const TAG: usize = 16;

/// Provides the primitives of [`PATTERN`] only.
pub(crate) struct Ring;

impl CryptoResolver for Ring {
    fn resolve_rng(&self) -> Option<Box<dyn Random>> {
        Some(Box::new(System))
    }

    fn resolve_dh(&self, choice: &DHChoice) -> Option<Box<dyn Dh>> {
        matches!(choice, DHChoice::Curve25519).then(|| Box::new(Ephemeral::default()) as Box<dyn Dh>)
    }

    fn resolve_hash(&self, choice: &HashChoice) -> Option<Box<dyn Hash>> {
        matches!(choice, HashChoice::SHA256).then(|| Box::new(Sha256::default()) as Box<dyn Hash>)
    }

    fn resolve_cipher(&self, choice: &CipherChoice) -> Option<Box<dyn Cipher>> {
        matches!(choice, CipherChoice::AESGCM).then(|| Box::new(AesGcm(key(&[0; 32]))) as Box<dyn Cipher>)
    }
}

struct System;

impl Random for System {
    fn try_fill_bytes(&mut self, dest: &mut [u8]) -> Result<(), Error> {
        SystemRandom::new().fill(dest).map_err(|_| Error::Rng)
    }
}

/// A key pair for one exchange: a private key of `ring` can be used once and never read.
#[derive(Default)]
struct Ephemeral {
    private: Mutex<Option<EphemeralPrivateKey>>,
    public: [u8; 32],
}

impl Dh for Ephemeral {
    fn name(&self) -> &'static str {
        "25519"
    }

    fn pub_len(&self) -> usize {
        32
    }

    fn priv_len(&self) -> usize {
        32
    }

    fn set(&mut self, _: &[u8]) {
        unreachable!("the pattern has no static keys");
    }

    fn generate(&mut self, _: &mut dyn Random) -> Result<(), Error> {
        let private = EphemeralPrivateKey::generate(&X25519, &SystemRandom::new()).map_err(|_| Error::Rng)?;
        let public = private.compute_public_key().map_err(|_| Error::Dh)?;
        self.public.copy_from_slice(public.as_ref());
        *lock(&self.private) = Some(private);
        Ok(())
    }

    fn pubkey(&self) -> &[u8] {
        &self.public
    }

    fn privkey(&self) -> &[u8] {
        unreachable!("the pattern has no static keys");
    }

    fn dh(&self, pubkey: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let private = lock(&self.private).take().ok_or(Error::Dh)?;
        let peer = UnparsedPublicKey::new(&X25519, pubkey.get(..32).ok_or(Error::Dh)?);
        agree_ephemeral(private, &peer, |shared| out[..32].copy_from_slice(shared)).map_err(|_| Error::Dh)
    }
}

struct Sha256(digest::Context);

impl Default for Sha256 {
    fn default() -> Sha256 {
        Sha256(digest::Context::new(&SHA256))
    }
}

impl Hash for Sha256 {
    fn name(&self) -> &'static str {
        "SHA256"
    }

    fn block_len(&self) -> usize {
        64
    }

    fn hash_len(&self) -> usize {
        32
    }

    fn reset(&mut self) {
        *self = Sha256::default();
    }

    fn input(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    fn result(&mut self, out: &mut [u8]) {
        out[..32].copy_from_slice(self.0.clone().finish().as_ref());
    }
}

struct AesGcm(LessSafeKey);

impl Cipher for AesGcm {
    fn name(&self) -> &'static str {
        "AESGCM"
    }

    fn set(&mut self, bytes: &[u8; 32]) {
        self.0 = key(bytes);
    }

    fn encrypt(&self, counter: u64, authtext: &[u8], plaintext: &[u8], out: &mut [u8]) -> usize {
        let (text, rest) = out.split_at_mut(plaintext.len());
        text.copy_from_slice(plaintext);
        let sealed = self.0.seal_in_place_separate_tag(nonce(counter), Aad::from(authtext), text);
        rest[..TAG].copy_from_slice(sealed.expect("a message of the handshake is short").as_ref());
        plaintext.len() + TAG
    }

    fn decrypt(
        &self,
        counter: u64,
        authtext: &[u8],
        ciphertext: &[u8],
        out: &mut [u8],
    ) -> Result<usize, Error> {
        let mut text = ciphertext.to_vec();
        let opened = self.0.open_in_place(nonce(counter), Aad::from(authtext), &mut text);
        let opened = opened.map_err(|_| Error::Decrypt)?;
        out.get_mut(..opened.len()).ok_or(Error::Decrypt)?.copy_from_slice(opened);
        Ok(opened.len())
    }
}

/// A key for AES-256-GCM.
pub(crate) fn key(bytes: &[u8; 32]) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, bytes).expect("a key of 32 bytes"))
}

/// The nonce of a counter as Noise defines it for AES-GCM: four zero bytes, then the counter in big-endian order.
pub(crate) fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}
