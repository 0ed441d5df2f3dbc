//! The TCP handshake: both sides prove that they hold the same key, and derive keys for this connection.
//!
//! It is Noise's pattern `NNpsk0`. The client's first message is encrypted with the shared key; the server's reply
//! contains the other half of an ephemeral Diffie-Hellman exchange. The cleartext fields form the prologue, which is
//! authenticated by all following messages, so that they cannot be modified in transit.
//!
//! An attacker can record and replay the first message, but cannot decrypt the reply and has no key for later messages.
//! The server therefore does no work for a client before it has received a sealed [`Proof`](crate::Proof).

use crate::frame::{body, protocol};
use crate::noise::{PATTERN, Ring, TAG};
use crate::record::{Opener, Sealer, opener, sealer};
use crate::{ConnectionKey, Hello, Key, KeyId, Security, VERSION};
use forebay_model::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use snow::{Builder, HandshakeState};

const PROLOGUE: &[u8] = b"forebay 1 connection\0";

/// The client's first message over TCP. It is sent in a frame of kind `Hello` and also starts with the version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Opening {
    /// The client's [`VERSION`].
    pub version: u32,
    /// The id of the client's key.
    pub key: KeyId,
    /// The minimum security that the client accepts.
    pub least: Security,
    /// Noise's first message, which contains the [`Hello`].
    pub noise: Vec<u8>,
}

impl Opening {
    /// Decodes the body of an opening; checks the version first, as [`Hello::read`] does.
    pub fn read(bytes: &[u8]) -> Result<Opening> {
        Hello::check_version(bytes)?;
        body(bytes)
    }

    fn prologue(&self) -> Vec<u8> {
        let clear = postcard::to_stdvec(&(self.version, self.key, self.least));
        [PROLOGUE, &clear.expect("three small values can be encoded")].concat()
    }
}

/// A connection after the key exchange.
#[derive(Debug)]
pub struct Agreed {
    /// The security of the frames after the handshake.
    pub level: Security,
    /// Seals outgoing frames. The handshake is encrypted to its end at every security level.
    pub sealer: Sealer,
    /// Opens incoming frames.
    pub opener: Opener,
}

/// The client side, between its first message and the server's reply.
pub struct Initiator {
    noise: HandshakeState,
    least: Security,
}

impl Initiator {
    /// Begins a handshake with a key, a minimum security and a hello.
    pub fn open(key: &ConnectionKey, least: Security, hello: &Hello) -> Result<(Initiator, Opening)> {
        let mut opening = Opening { version: VERSION, key: key.id, least, noise: Vec::new() };
        let secret = key.secret.for_connections(key.id);
        let prologue = opening.prologue();
        let mut noise = begin(&prologue, &secret)?.build_initiator().map_err(|error| failed(&error))?;
        let hello = postcard::to_stdvec(hello)
            .map_err(|error| protocol(format!("cannot encode the hello: {error}")))?;
        opening.noise = write(&mut noise, &hello)?;
        Ok((Initiator { noise, least }, opening))
    }

    /// Checks the server's reply. From then on, every frame that can be opened comes from a holder of the key.
    pub fn finish(mut self, challenge: &[u8]) -> Result<Agreed> {
        let unproved = || {
            let text = "the service does not hold the same key: check the address and the key file";
            Error::new(ErrorKind::Unauthenticated, text)
        };
        let servers: Security = body(&read(&mut self.noise, challenge).map_err(|_| unproved())?)?;
        let (out, back) = split(&mut self.noise)?;
        Ok(Agreed { level: self.least.max(servers), sealer: sealer(out), opener: opener(back) })
    }
}

/// The server's reply to an opening.
#[derive(Debug)]
pub struct Answered {
    /// The client's hello.
    pub hello: Hello,
    /// The content of the [`Challenge`](crate::Greeting::Challenge).
    pub challenge: Vec<u8>,
    /// The keys of the connection. The client is authenticated once its proof was opened.
    pub agreed: Agreed,
}

/// Replies to an opening with the key that it names. A client that does not hold the key is refused.
pub fn answer_opening(opening: &Opening, key: &ConnectionKey, least: Security) -> Result<Answered> {
    let refused = || {
        let text = "the client does not hold this server's key: use the key file that the server made";
        Error::new(ErrorKind::Unauthenticated, text)
    };
    if key.id != opening.key {
        return Err(refused());
    }
    let secret = key.secret.for_connections(key.id);
    let prologue = opening.prologue();
    let mut noise = begin(&prologue, &secret)?.build_responder().map_err(|error| failed(&error))?;
    let hello = Hello::read(&read(&mut noise, &opening.noise).map_err(|_| refused())?)?;
    let challenge = write(&mut noise, &postcard::to_stdvec(&least).expect("a level can be encoded"))?;
    let (from_client, from_server) = split(&mut noise)?;
    let level = least.max(opening.least);
    let agreed = Agreed { level, sealer: sealer(from_server), opener: opener(from_client) };
    Ok(Answered { hello, challenge, agreed })
}

fn begin<'a>(prologue: &'a [u8], secret: &'a Key) -> Result<Builder<'a>> {
    let pattern = PATTERN.parse().expect("Noise supports the pattern");
    let builder = Builder::with_resolver(pattern, Box::new(Ring));
    let begun = builder.prologue(prologue).and_then(|builder| builder.psk(0, secret.as_bytes()));
    begun.map_err(|error| failed(&error))
}

fn write(noise: &mut HandshakeState, payload: &[u8]) -> Result<Vec<u8>> {
    let mut message = vec![0; 32 + payload.len() + TAG];
    let len = noise.write_message(payload, &mut message).map_err(|error| failed(&error))?;
    message.truncate(len);
    Ok(message)
}

fn read(noise: &mut HandshakeState, message: &[u8]) -> std::result::Result<Vec<u8>, snow::Error> {
    let mut payload = vec![0; message.len()];
    let len = noise.read_message(message, &mut payload)?;
    payload.truncate(len);
    Ok(payload)
}

/// The keys of both directions: client to server, server to client.
fn split(noise: &mut HandshakeState) -> Result<([u8; 32], [u8; 32])> {
    if !noise.is_handshake_finished() {
        return Err(protocol("the handshake ended too early".to_owned()));
    }
    Ok(noise.dangerously_get_raw_split())
}

fn failed(error: &snow::Error) -> Error {
    protocol(format!("the handshake failed: {error}"))
}
