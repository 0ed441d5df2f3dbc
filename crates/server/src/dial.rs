//! A connection to another server: what a client would do, and no more than servers need of it.

use crate::config::Place;
use crate::handshake::message;
use crate::key::random;
use crate::link::{Inbox, Outbox, gone};
use crate::transport::Transport;
use forebay_model::{Error, ErrorKind, Job, Result, ServerId};
use forebay_wire::{
    Channel, FrameKind, Greeting, Hello, Key, Proof, VERSION, Welcome, body, client_proof, same_proof,
    server_proof,
};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Both directions of an open connection, and the server at the other end.
pub(crate) struct Dialled {
    pub(crate) inbox: Inbox,
    pub(crate) outbox: Outbox,
    pub(crate) server: ServerId,
}

/// Connects to a server. Over TCP both sides prove that they hold the key; on this machine the kernel vouches for this
/// one, and the path for the other.
pub(crate) async fn dial(address: &str, key: &Key, own: ServerId, patience: Duration) -> Result<Dialled> {
    let refused = |error: std::io::Error| {
        Error::new(ErrorKind::Unreachable, format!("cannot connect to {address}: {error}"))
    };
    let transport: Box<dyn Transport> = match Place::of(address) {
        Some(Place::Tcp(place)) => {
            let stream = TcpStream::connect(place).await.map_err(refused)?;
            stream.set_nodelay(true).map_err(|error| gone(&error))?;
            Box::new(stream)
        }
        Some(Place::Unix(path)) => Box::new(UnixStream::connect(path).await.map_err(refused)?),
        None => return Err(Error::new(ErrorKind::Invalid, format!("\"{address}\" is no address"))),
    };
    let proves = matches!(Place::of(address), Some(Place::Tcp(_)));
    let (reading, writing) = transport.split();
    let (mut inbox, mut outbox) = (Inbox::new(reading), Outbox::new(writing, patience));
    let hello = hello(own)?;
    outbox.say(FrameKind::Hello, 0, &hello)?;
    outbox.flush().await.map_err(|error| gone(&error))?;
    let welcome = match greeting(&mut inbox).await? {
        Greeting::Welcome(welcome) if !proves => welcome,
        Greeting::Challenge { nonce } if proves => {
            prove(address, key, &hello, &nonce, &mut inbox, &mut outbox).await?
        }
        _ => {
            let text = format!("{address} did not ask for the key");
            return Err(Error::new(ErrorKind::Unauthenticated, text));
        }
    };
    Ok(Dialled { inbox, outbox, server: welcome.server })
}

async fn prove(
    address: &str,
    key: &Key,
    hello: &Hello,
    nonce: &[u8; 32],
    inbox: &mut Inbox,
    outbox: &mut Outbox,
) -> Result<Welcome> {
    outbox.say(FrameKind::Proof, 0, &Proof { seal: client_proof(key, hello, nonce) })?;
    outbox.flush().await.map_err(|error| gone(&error))?;
    let Greeting::Welcome(welcome) = greeting(inbox).await? else {
        return Err(Error::new(ErrorKind::Protocol, format!("{address} challenged a second time")));
    };
    match welcome.seal {
        Some(seal) if same_proof(&seal, &server_proof(key, hello, nonce)) => Ok(welcome),
        _ => Err(Error::new(ErrorKind::Unauthenticated, format!("{address} does not hold the same key"))),
    }
}

async fn greeting(inbox: &mut Inbox) -> Result<Greeting> {
    match body(&message(inbox, FrameKind::Greeting).await?)? {
        Greeting::Refusal(error) => Err(error),
        greeting => Ok(greeting),
    }
}

fn hello(own: ServerId) -> Result<Hello> {
    let nonce = random()?;
    let (client, _) = nonce.split_first_chunk::<16>().expect("32 bytes");
    let job = Job {
        label: format!("server-{own}"),
        user: "forebay".to_owned(),
        group: "forebay".to_owned(),
        nodes: 1,
        priority: 1,
    };
    let client = u128::from_le_bytes(*client);
    // Servers compare their lists when they meet.
    Ok(Hello { version: VERSION, channel: Channel::Control, client, job, nonce, roster: None })
}
