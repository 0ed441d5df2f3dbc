//! Connects to another server, with the part of the client protocol that servers need.

use crate::config::{Place, TransportSettings};
use crate::framing::{FrameReader, SendQueue, gone, message};
use crate::key::random;
use crate::transport::Transport;
use forebay_model::{Error, ErrorKind, Job, Result, ServerId};
use forebay_wire::{
    Agreed, Channel, FrameKind, Greeting, Hello, Initiator, Key, Proof, Security, VERSION, Welcome, body,
};
use std::time::Duration;
use tokio::net::{TcpStream, UnixStream};

/// Both directions of a connection, and the server at the other end.
pub(crate) struct PeerConnection {
    pub(crate) frame_reader: FrameReader,
    pub(crate) send_queue: SendQueue,
    pub(crate) server: ServerId,
}

/// Connects to a server. Over TCP both sides prove that they hold the key. On this machine the kernel authenticates
/// this server, and the socket's path identifies the other.
pub(crate) async fn connect_peer(
    address: &str,
    key: &Key,
    settings: TransportSettings,
    own: ServerId,
    patience: Duration,
) -> Result<PeerConnection> {
    let refused = |error: std::io::Error| {
        Error::new(ErrorKind::Unreachable, format!("cannot connect to {address}: {error}"))
    };
    let (transport, least): (Box<dyn Transport>, _) = match Place::of(address) {
        Some(Place::Tcp(place)) => {
            let stream = TcpStream::connect(place).await.map_err(refused)?;
            stream.set_nodelay(true).map_err(|error| gone(&error))?;
            let least = settings.least(stream.peer_addr().map_err(|error| gone(&error))?.ip());
            (Box::new(stream), Some(least))
        }
        Some(Place::Unix(path)) => (Box::new(UnixStream::connect(path).await.map_err(refused)?), None),
        None => return Err(Error::new(ErrorKind::Invalid, format!("\"{address}\" is not an address"))),
    };
    let (reading, writing) = transport.split();
    let (mut frame_reader, mut send_queue) = (FrameReader::new(reading), SendQueue::new(writing, patience));
    let hello = hello(own)?;
    let welcome = match least {
        Some(least) => prove(address, key, least, &hello, &mut frame_reader, &mut send_queue).await?,
        None => {
            send_queue.say(FrameKind::Hello, 0, &hello)?;
            send_queue.flush().await.map_err(|error| gone(&error))?;
            let Greeting::Welcome(welcome) = greeting(&mut frame_reader).await? else {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("{address} requests a key on a Unix socket"),
                ));
            };
            welcome
        }
    };
    Ok(PeerConnection { frame_reader, send_queue, server: welcome.server })
}

async fn prove(
    address: &str,
    key: &Key,
    least: Security,
    hello: &Hello,
    frame_reader: &mut FrameReader,
    send_queue: &mut SendQueue,
) -> Result<Welcome> {
    let (initiator, opening) = Initiator::open(&key.clone().into(), least, hello)?;
    send_queue.say(FrameKind::Hello, 0, &opening)?;
    send_queue.flush().await.map_err(|error| gone(&error))?;
    let Greeting::Challenge { noise } = greeting(frame_reader).await? else {
        let text = format!("{address} did not prove that it holds the key");
        return Err(Error::new(ErrorKind::Unauthenticated, text));
    };
    let Agreed { level, sealer, opener } = initiator.finish(&noise)?;
    send_queue.seal(sealer);
    frame_reader.seal(opener);
    send_queue.say(FrameKind::Proof, 0, &Proof {})?;
    send_queue.flush().await.map_err(|error| gone(&error))?;
    let Greeting::Welcome(welcome) = greeting(frame_reader).await? else {
        return Err(Error::new(ErrorKind::Protocol, format!("{address} challenged a second time")));
    };
    send_queue.agree(level);
    frame_reader.agree(level);
    Ok(welcome)
}

async fn greeting(frame_reader: &mut FrameReader) -> Result<Greeting> {
    match body(&message(frame_reader, FrameKind::Greeting).await?)? {
        Greeting::Refusal(error) => Err(error),
        greeting => Ok(greeting),
    }
}

fn hello(own: ServerId) -> Result<Hello> {
    let bytes = random()?;
    let (client, _) = bytes.split_first_chunk::<16>().expect("32 bytes");
    let job = Job {
        label: format!("server-{own}"),
        user: "forebay".to_owned(),
        group: "forebay".to_owned(),
        nodes: 1,
        priority: 1,
    };
    let client = u128::from_le_bytes(*client);
    // Servers compare their lists when they join.
    Ok(Hello { version: VERSION, channel: Channel::Control, client, job, roster: None })
}
