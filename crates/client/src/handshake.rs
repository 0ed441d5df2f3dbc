//! The first words on a connection.

use crate::transport::{Pipe, connect, send};
use crate::{Address, ClientConfig};
use forebay_model::{Error, ErrorKind, Members, Result};
use forebay_wire::{
    Channel, FrameKind, Greeting, Hello, Key, MAX_PAYLOAD, Proof, Roster, VERSION, Welcome, client_proof,
    frame, same_proof, server_proof,
};
use serde::Serialize;

/// Connects, says hello, proves what has to be proved, and insists on the server's proof in turn.
pub(crate) async fn enter(
    config: &ClientConfig,
    address: &Address,
    client: u128,
    channel: Channel,
    roster: Option<Roster>,
) -> Result<(Pipe, Welcome)> {
    let attempt = async {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|error| {
            Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))
        })?;
        let hello = Hello { version: VERSION, channel, client, job: config.job.clone(), nonce, roster };
        let key = config.credential.key()?;
        let mut pipe = connect(address).await?;
        let welcome = greet(&mut pipe, &hello, key.as_ref(), address).await?;
        Ok((pipe, welcome))
    };
    match tokio::time::timeout(config.connect_timeout, Box::pin(attempt)).await {
        Ok(result) => result,
        Err(_) => {
            let text = format!("no welcome within {:?}", config.connect_timeout);
            Err(Error::new(ErrorKind::Unreachable, text))
        }
    }
}

async fn greet(pipe: &mut Pipe, hello: &Hello, key: Option<&Key>, address: &Address) -> Result<Welcome> {
    say(pipe, FrameKind::Hello, hello).await?;
    match hear(pipe).await? {
        Greeting::Refusal(error) => Err(error),
        // Over TCP anybody can listen on a port: a server that skips the challenge has proved nothing.
        Greeting::Welcome(_) if key.is_some() && matches!(address, Address::Tcp { .. }) => {
            Err(unproved("the service did not ask for the key"))
        }
        Greeting::Welcome(welcome) => sensible(welcome),
        Greeting::Challenge { nonce } => {
            let Some(key) = key else {
                return Err(unproved("the service asks for a key: name its key file"));
            };
            say(pipe, FrameKind::Proof, &Proof { seal: client_proof(key, hello, &nonce) }).await?;
            match hear(pipe).await? {
                Greeting::Refusal(error) => Err(error),
                Greeting::Challenge { .. } => {
                    Err(Error::new(ErrorKind::Protocol, "the service challenged a second time"))
                }
                Greeting::Welcome(welcome) => {
                    let expected = server_proof(key, hello, &nonce);
                    match welcome.seal {
                        Some(seal) if same_proof(&seal, &expected) => sensible(welcome),
                        _ => Err(unproved("the service does not hold the same key: check the address")),
                    }
                }
            }
        }
    }
}

fn unproved(text: &str) -> Error {
    Error::new(ErrorKind::Unauthenticated, text)
}

fn sensible(welcome: Welcome) -> Result<Welcome> {
    if !(1..=MAX_PAYLOAD).contains(&welcome.max_payload) || welcome.session_millis == 0 {
        let text = format!(
            "the service's limits make no sense (payload {}, session {} ms)",
            welcome.max_payload, welcome.session_millis
        );
        return Err(Error::new(ErrorKind::Protocol, text));
    }
    let list = &welcome.members;
    let sorted = Members::new(list.epoch(), list.all().to_vec());
    let fault = match sorted.map(|sorted| sorted.with_names(list.homes())) {
        Err(fault) => Some(fault),
        Ok(sorted) if sorted != *list => Some("it is not in order".to_owned()),
        Ok(_) if !list.contains(welcome.server) => Some(format!("server {} is missing", welcome.server)),
        Ok(_) => None,
    };
    match fault {
        Some(fault) => {
            Err(Error::new(ErrorKind::Protocol, format!("its list of servers makes no sense: {fault}")))
        }
        None => Ok(welcome),
    }
}

async fn say<T: Serialize>(pipe: &mut Pipe, kind: FrameKind, message: &T) -> Result<()> {
    let mut bytes = Vec::new();
    frame(&mut bytes, kind, 0, message, 0)?;
    send(&mut pipe.writer, &bytes, &[], &mut false).await
}

async fn hear(pipe: &mut Pipe) -> Result<Greeting> {
    Ok(pipe.inbox.frame(FrameKind::Greeting, 0).await?.1)
}
