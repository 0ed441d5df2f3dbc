//! A connection to another server: what a client would do, and no more than servers need of it.

use crate::handshake::message;
use crate::key::random;
use crate::link::{Inbox, Outbox, gone};
use crate::transport::Transport;
use forebay_model::{Error, ErrorKind, Job, Result, ServerId};
use forebay_wire::{
    Answer, Call, Channel, FrameKind, Greeting, Hello, Key, Proof, Request, VERSION, body, client_proof,
    same_proof, server_proof,
};
use std::time::Duration;
use tokio::net::TcpStream;

/// An open line to another server.
pub(crate) struct Line {
    inbox: Inbox,
    outbox: Outbox,
    calls: u64,
    /// The server at the other end.
    pub(crate) server: ServerId,
}

impl Line {
    /// Connects to `host:port`. Both sides prove that they hold the key.
    pub(crate) async fn open(place: &str, key: &Key, own: ServerId, patience: Duration) -> Result<Line> {
        let stream = TcpStream::connect(place).await.map_err(|error| {
            Error::new(ErrorKind::Unreachable, format!("cannot connect to {place}: {error}"))
        })?;
        stream.set_nodelay(true).map_err(|error| gone(&error))?;
        let transport: Box<dyn Transport> = Box::new(stream);
        let (reading, writing) = transport.split();
        let (mut inbox, mut outbox) = (Inbox::new(reading), Outbox::new(writing, patience));
        let hello = hello(own)?;
        outbox.say(FrameKind::Hello, 0, &hello)?;
        outbox.flush().await.map_err(|error| gone(&error))?;
        let Greeting::Challenge { nonce } = greeting(&mut inbox).await? else {
            return Err(Error::new(ErrorKind::Unauthenticated, format!("{place} did not ask for the key")));
        };
        outbox.say(FrameKind::Proof, 0, &Proof { seal: client_proof(key, &hello, &nonce) })?;
        outbox.flush().await.map_err(|error| gone(&error))?;
        let Greeting::Welcome(welcome) = greeting(&mut inbox).await? else {
            return Err(Error::new(ErrorKind::Protocol, format!("{place} challenged a second time")));
        };
        let expected = server_proof(key, &hello, &nonce);
        match welcome.seal {
            Some(seal) if same_proof(&seal, &expected) => {
                Ok(Line { inbox, outbox, calls: 0, server: welcome.server })
            }
            _ => Err(Error::new(ErrorKind::Unauthenticated, format!("{place} does not hold the same key"))),
        }
    }

    /// Asks, and waits for the answer.
    pub(crate) async fn ask(&mut self, request: Request) -> Answer {
        self.calls += 1;
        self.outbox.say(FrameKind::Call, self.calls, &Call { identity: None, request })?;
        self.outbox.flush().await.map_err(|error| gone(&error))?;
        body::<Answer>(&message(&mut self.inbox, FrameKind::Answer).await?)?
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
    Ok(Hello { version: VERSION, channel: Channel::Control, client, job, nonce })
}
