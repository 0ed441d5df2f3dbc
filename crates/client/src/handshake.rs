//! The handshake of a connection.

use crate::transport::{Pipe, connect, not_acting, send};
use crate::{Address, ClientConfig};
use forebay_model::{Error, ErrorKind, Members, Result, shown_time};
use forebay_wire::{
    Agreed, Channel, ConnectionKey, FrameKind, Greeting, Hello, Initiator, MAX_PAYLOAD, Proof, Roster,
    Security, VERSION, Welcome, frame_with,
};
use serde::Serialize;

/// The client and the kind of connection.
#[derive(Clone, Copy)]
pub(crate) struct ConnectionRequest {
    pub(crate) client: u128,
    pub(crate) channel: Channel,
    /// Whether the service has accepted this client before, and so authenticated itself.
    pub(crate) is_known: bool,
}

/// Connects, sends the hello, authenticates the client and verifies the server.
pub(crate) async fn connect_authenticated(
    config: &ClientConfig,
    address: &Address,
    ConnectionRequest { client, channel, is_known }: ConnectionRequest,
    roster: Option<Roster>,
) -> Result<(Pipe, Welcome)> {
    let attempt = async {
        let hello = Hello { version: VERSION, channel, client, job: config.job.clone(), roster };
        let mut pipe = connect(config, address).await?;
        let welcome = match pipe.peer {
            None => handshake_unix(&mut pipe, &hello).await?,
            Some(peer) => {
                let least = config.security.unwrap_or_else(|| Security::default_for(peer));
                let key = config.act(|| config.credential.key()).map_err(|error| not_acting(&error))??;
                handshake_tcp(&mut pipe, &hello, key.as_ref(), (least, is_known)).await?
            }
        };
        Ok((pipe, welcome))
    };
    match tokio::time::timeout(config.connect_timeout, Box::pin(attempt)).await {
        Ok(result) => result,
        Err(_) => {
            let text = format!("no welcome within {}", shown_time(config.connect_timeout));
            Err(Error::new(ErrorKind::Unreachable, text))
        }
    }
}

/// Handshake on a Unix socket: the kernel identifies the client, and the path identifies the service.
async fn handshake_unix(pipe: &mut Pipe, hello: &Hello) -> Result<Welcome> {
    send_message(pipe, FrameKind::Hello, hello).await?;
    match receive_greeting(pipe).await? {
        Greeting::Refusal(error) => Err(error),
        Greeting::Welcome(welcome) => validate(welcome),
        Greeting::Challenge { .. } => {
            Err(Error::new(ErrorKind::Protocol, "the service requires a key on a Unix socket"))
        }
    }
}

/// Handshake over TCP, where any process can listen on a port and relay: both sides prove that they hold the key, and
/// agree on keys for the connection.
async fn handshake_tcp(
    pipe: &mut Pipe,
    hello: &Hello,
    key: Option<&ConnectionKey>,
    (least, is_known): (Security, bool),
) -> Result<Welcome> {
    let Some(key) = key else {
        return Err(unauthenticated("the service requires a key: name its key file"));
    };
    let (initiator, opening) = Initiator::open(key, least, hello)?;
    send_message(pipe, FrameKind::Hello, &opening).await?;
    let noise = match receive_greeting(pipe).await? {
        Greeting::Challenge { noise } => noise,
        Greeting::Refusal(error) => return Err(unsealed(&error, is_known)),
        Greeting::Welcome(_) => return Err(unauthenticated("the service did not authenticate itself")),
    };
    let Agreed { level, sealer, opener } = initiator.finish(&noise)?;
    pipe.sealer = Some(sealer);
    pipe.frame_reader.opener = Some(opener);
    send_message(pipe, FrameKind::Proof, &Proof {}).await?;
    let welcome = match receive_greeting(pipe).await? {
        Greeting::Welcome(welcome) => validate(welcome)?,
        Greeting::Refusal(error) => return Err(error),
        Greeting::Challenge { .. } => {
            return Err(Error::new(ErrorKind::Protocol, "the service challenged a second time"));
        }
    };
    pipe.sealer = pipe.sealer.take().and_then(|sealer| sealer.agreed(level));
    pipe.frame_reader.opener = pipe.frame_reader.opener.take().and_then(|opener| opener.agreed(level));
    Ok(welcome)
}

/// Converts a refusal that was not authenticated, and may come from any process: it ends the attempt, but is no
/// statement about files. A client that the service has accepted before tries again: the service refuses such a client
/// in a sealed frame unless it has lost the key, and one forged frame must not end the client's open files.
fn unsealed(error: &Error, is_known: bool) -> Error {
    let kind = match error.kind() {
        _ if is_known => ErrorKind::Unreachable,
        kind @ (ErrorKind::Unauthenticated | ErrorKind::Busy | ErrorKind::Unreachable) => kind,
        _ => ErrorKind::Protocol,
    };
    let text = if is_known { "refused by an unauthenticated peer: " } else { "" };
    Error::new(kind, format!("{text}{error}"))
}

fn unauthenticated(text: &str) -> Error {
    Error::new(ErrorKind::Unauthenticated, text)
}

fn validate(welcome: Welcome) -> Result<Welcome> {
    if !(1..=MAX_PAYLOAD).contains(&welcome.max_payload) || welcome.session_millis == 0 {
        let text = format!(
            "the service sent invalid limits (payload {}, session {} ms)",
            welcome.max_payload, welcome.session_millis
        );
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    let list = &welcome.members;
    let sorted = Members::new(list.epoch(), list.all().to_vec());
    let fault = match sorted.map(|sorted| sorted.with_names(list.homes())) {
        Err(fault) => Some(fault),
        Ok(sorted) if sorted != *list => Some("it is not sorted".to_owned()),
        Ok(_) if !list.contains(welcome.server) => Some(format!("server {} is missing", welcome.server)),
        Ok(_) => None,
    };
    match fault {
        Some(fault) => {
            Err(Error::new(ErrorKind::Protocol, format!("the service sent an invalid server list: {fault}")))
        }
        None => Ok(welcome),
    }
}

async fn send_message<T: Serialize>(pipe: &mut Pipe, kind: FrameKind, message: &T) -> Result<()> {
    let mut bytes = Vec::new();
    frame_with(pipe.sealer.as_mut(), &mut bytes, kind, 0, message, 0)?;
    send(&mut pipe.writer, &bytes, &[], &mut false).await
}

async fn receive_greeting(pipe: &mut Pipe) -> Result<Greeting> {
    Ok(pipe.frame_reader.frame(FrameKind::Greeting, 0).await?.1)
}
