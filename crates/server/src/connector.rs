//! Connects to another server, with the part of the client protocol that servers need.

use crate::config::{ServerAddress, TransportSettings};
use crate::framing::{FrameReader, SendQueue, gone, message};
use crate::key::random;
use crate::transport::Transport;
use forebay_model::{Error, ErrorKind, Job, Result, ServerId, Uid};
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

/// Connects to a server. Over TCP both sides prove that they hold the key. On this machine the kernel tells each side who
/// the other is.
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
    let (transport, least): (Box<dyn Transport>, _) = match ServerAddress::of(address) {
        Some(ServerAddress::Tcp(place)) => {
            let stream = TcpStream::connect(place).await.map_err(refused)?;
            stream.set_nodelay(true).map_err(|error| gone(&error))?;
            let least = settings.least(stream.peer_addr().map_err(|error| gone(&error))?.ip());
            (Box::new(stream), Some(least))
        }
        Some(ServerAddress::Unix(path)) => {
            let stream = UnixStream::connect(path).await.map_err(refused)?;
            demand_trusted(address, &stream)?;
            (Box::new(stream), None)
        }
        None => return Err(Error::new(ErrorKind::Invalid, format!("\"{address}\" is not an address"))),
    };
    let (reading, writing) = transport.split();
    let (mut frame_reader, mut send_queue) = (FrameReader::new(reading), SendQueue::new(writing, patience));
    let hello = hello(own)?;
    let welcome = match least {
        Some(least) => prove(address, key, least, &hello, &mut frame_reader, &mut send_queue).await?,
        None => {
            send_queue.queue(FrameKind::Hello, 0, &hello)?;
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

/// Refuses a socket of another user: a user who creates a file at the path first could otherwise answer as a server of this
/// service, and learn what servers tell each other.
fn demand_trusted(address: &str, stream: &UnixStream) -> Result<()> {
    let (peer, own) = (stream.peer_cred().map_err(|error| gone(&error))?.uid(), rustix::process::geteuid());
    if peer == own.as_raw() || peer == Uid::ROOT.0 {
        return Ok(());
    }
    let text = format!(
        "user {peer} listens at {address}, not the service's user {}: stop that process, and put the sockets into a \
         directory where only the service's user can create files",
        own.as_raw()
    );
    Err(Error::new(ErrorKind::NotPermitted, text))
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
    send_queue.queue(FrameKind::Hello, 0, &opening)?;
    send_queue.flush().await.map_err(|error| gone(&error))?;
    let Greeting::Challenge { noise } = greeting(frame_reader).await? else {
        let text = format!("{address} did not prove that it holds the key");
        return Err(Error::new(ErrorKind::Unauthenticated, text));
    };
    let Agreed { level, sealer, opener } = initiator.finish(&noise)?;
    send_queue.seal(sealer);
    frame_reader.seal(opener);
    send_queue.queue(FrameKind::Proof, 0, &Proof {})?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::{as_user, is_root, skip};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    #[tokio::test]
    async fn socket_of_another_user_is_not_taken_for_a_server() {
        if !is_root() {
            return skip(
                "socket_of_another_user_is_not_taken_for_a_server",
                "only root can act as another user",
            );
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).unwrap();
        let squatted = dir.path().join("squatted");
        let place = squatted.clone();
        let listener = as_user(4002, move || UnixListener::bind(place).unwrap());
        let key = Key::new([7; 32]);
        let patience = Duration::from_secs(5);
        let address = format!("unix:{}", squatted.display());
        let settings = TransportSettings::default();
        let refused = connect_peer(&address, &key, settings, ServerId(0), patience).await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::NotPermitted, "{refused}");
        assert!(refused.to_string().contains("user 4002 listens at"), "{refused}");
        // Nothing was said there.
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut listener.accept().unwrap().0, &mut bytes).unwrap();
        assert_eq!(bytes, b"");
        // A socket of this user's is asked.
        let own = dir.path().join("own");
        let listener = UnixListener::bind(&own).unwrap();
        let address = format!("unix:{}", own.display());
        let received = tokio::task::spawn_blocking(move || {
            std::io::Read::read_exact(&mut listener.accept().unwrap().0, &mut [0]).unwrap();
        });
        tokio::select! {
            received = received => received.unwrap(),
            done = connect_peer(&address, &key, settings, ServerId(0), patience) => {
                assert!(done.is_err(), "it closes the connection once it has received this server");
            }
        }
    }
}
