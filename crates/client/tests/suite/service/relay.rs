//! An attacker between client and server without the key: all bytes pass through a relay that may change, drop, repeat,
//! reorder, splice, inject, truncate or delay frames.

use super::world::{By, World};
use forebay_client::{Address, ClientConfig, OpenOptions, Security, blocking::Client};
use forebay_model::{Change, Error, ErrorKind, FileId};
use forebay_wire::{
    CHUNK_HEAD, Call, FrameKind, Greeting, HEADER, Header, Opener, Request, TAG, frame as plain_frame,
};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LEN: usize = 200_000;
/// Timeout for requests that end by themselves.
const LONG: Duration = Duration::from_secs(30);
/// Timeout for requests that end only because there is no answer, or because no attempt succeeds.
const SHORT: Duration = Duration::from_secs(2);

/// The attack on frames of one kind, in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attack {
    Nothing,
    FlipBody,
    FlipTag,
    FlipPayload,
    /// A changed header with a valid checksum.
    Relabel,
    ShortenPayload,
    Drop,
    Repeat,
    Swap,
    Splice,
    Inject,
    /// Replaces the client's minimum protection in the opening.
    Downgrade,
    /// Sends half of the frame and closes the connection.
    Truncate,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum To {
    Server,
    Client,
}

/// A frame as encoded on the wire.
#[derive(Clone)]
struct Frame {
    header: Header,
    /// The tag, if the frame is sealed, and the body.
    body: Vec<u8>,
    /// The chunks of the payload.
    payload: Vec<u8>,
}

impl Frame {
    fn bytes(&self) -> Vec<u8> {
        [&self.header.encode()[..], &self.body, &self.payload].concat()
    }
}

/// State shared by all connections through a relay.
struct Plan {
    attack: Attack,
    to: To,
    /// Whether only frames with a payload are attacked.
    payloads: bool,
    /// The bytes sent to the server on each connection.
    recorded: Mutex<Vec<Vec<u8>>>,
    /// A frame of an earlier connection.
    kept: Mutex<Option<Frame>>,
    sealed: bool,
}

/// A relay in front of a server.
struct Relay {
    address: SocketAddr,
    plan: Arc<Plan>,
}

impl Relay {
    fn start(world: &World, attack: Attack, to: To, payloads: bool, level: Security) -> Relay {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let Address::Tcp { host, port } = world.client_config(By::Tcp).addresses.first().clone() else {
            panic!("not TCP")
        };
        let server: SocketAddr = format!("{host}:{port}").parse().unwrap();
        let (recorded, kept) = (Mutex::default(), Mutex::default());
        let sealed = level != Security::None;
        let plan = Arc::new(Plan { attack, to, payloads, recorded, kept, sealed });
        let shared = plan.clone();
        std::thread::spawn(move || {
            // The listener ends with the test process.
            while let Ok((client, _)) = listener.accept() {
                let Ok(server) = TcpStream::connect(server) else { continue };
                let number = {
                    let mut recorded = shared.recorded.lock().unwrap();
                    recorded.push(Vec::new());
                    recorded.len() - 1
                };
                for (to, from, into) in [(To::Server, &client, &server), (To::Client, &server, &client)] {
                    let (from, into) = (from.try_clone().unwrap(), into.try_clone().unwrap());
                    let plan = shared.clone();
                    std::thread::spawn(move || {
                        pass(&plan, to, number, &from, &into);
                        let _ = from.shutdown(Shutdown::Both);
                        let _ = into.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Relay { address, plan }
    }

    fn client(&self, world: &World, level: Security, patience: Duration) -> Result<Client, Error> {
        Client::connect(self.config(world, level, patience))
    }

    fn config(&self, world: &World, level: Security, patience: Duration) -> ClientConfig {
        ClientConfig {
            addresses: Address::Tcp { host: "127.0.0.1".into(), port: self.address.port() }.into(),
            security: Some(level),
            connect_timeout: Duration::from_secs(20),
            request_timeout: patience,
            data_connections: 1,
            ..world.client_config(By::Tcp)
        }
    }

    /// All bytes sent to the server.
    fn wire(&self) -> Vec<u8> {
        self.plan.recorded.lock().unwrap().concat()
    }
}

/// Forwards frames in one direction of one connection until either end closes it.
fn pass(plan: &Plan, to: To, number: usize, from: &TcpStream, mut into: &TcpStream) -> Option<()> {
    let mut held: Option<Frame> = None;
    let mut greeted = false;
    loop {
        let frame = read(plan, from, &mut greeted)?;
        if to == To::Server {
            plan.recorded.lock().unwrap()[number].extend(frame.bytes());
        }
        let (bytes, goes_on) = tamper(plan, to, number, frame, &mut held);
        into.write_all(&bytes).ok()?;
        if !goes_on {
            return None;
        }
    }
}

/// Reads a frame. The first greeting of a connection is a challenge or a refusal, and is not sealed.
fn read(plan: &Plan, mut from: &TcpStream, greeted: &mut bool) -> Option<Frame> {
    let mut take = |len: usize| {
        let mut bytes = vec![0; len];
        from.read_exact(&mut bytes).ok().map(|()| bytes)
    };
    let header = Header::decode(take(HEADER)?.first_chunk().unwrap()).unwrap();
    let sealed = match header.kind {
        FrameKind::Hello => false,
        FrameKind::Greeting => std::mem::replace(greeted, true),
        FrameKind::Proof => true,
        FrameKind::Call | FrameKind::Answer => plan.sealed,
    };
    let tag = if sealed { TAG } else { 0 };
    let body = take(tag + header.body as usize)?;
    let mut payload = Vec::new();
    let mut left = header.payload;
    while left > 0 && plan.sealed {
        let head = take(CHUNK_HEAD)?;
        let (len, _) = Opener::chunk_head(head.first_chunk().unwrap(), left).unwrap();
        payload.extend(head);
        payload.extend(take(len)?);
        left -= len as u32;
    }
    payload.extend(take(left as usize)?);
    Some(Frame { header, body, payload })
}

/// The bytes to send instead of a frame, and whether further frames follow.
fn tamper(plan: &Plan, to: To, number: usize, mut frame: Frame, held: &mut Option<Frame>) -> (Vec<u8>, bool) {
    let kind = match (plan.attack, plan.to) {
        (Attack::Downgrade, _) => FrameKind::Hello,
        (_, To::Server) => FrameKind::Call,
        (_, To::Client) => FrameKind::Answer,
    };
    let meant = to == plan.to && frame.header.kind == kind && (!plan.payloads || frame.header.payload > 0);
    if !meant {
        return (frame.bytes(), true);
    }
    let whole = frame.bytes();
    let bytes = match plan.attack {
        Attack::Nothing => whole,
        Attack::FlipTag => {
            frame.body[3] ^= 1;
            frame.bytes()
        }
        Attack::FlipBody => {
            *frame.body.last_mut().unwrap() ^= 1;
            frame.bytes()
        }
        Attack::FlipPayload => {
            *frame.payload.last_mut().unwrap() ^= 0x20;
            frame.bytes()
        }
        Attack::Relabel => {
            frame.header.id ^= 1;
            frame.bytes()
        }
        Attack::ShortenPayload => {
            frame.header.payload -= 1;
            frame.payload.pop();
            let last = frame.payload.len() - (frame.header.payload as usize % (64 << 10)) - CHUNK_HEAD;
            let len = u32::from_le_bytes(frame.payload[last..last + 4].try_into().unwrap()) - 1;
            frame.payload[last..last + 4].copy_from_slice(&len.to_le_bytes());
            frame.bytes()
        }
        Attack::Drop => Vec::new(),
        Attack::Repeat => [whole.clone(), whole].concat(),
        Attack::Swap => match held.take() {
            Some(first) => [whole, first.bytes()].concat(),
            None => {
                *held = Some(frame);
                Vec::new()
            }
        },
        Attack::Splice => {
            // The first connection of its kind is not attacked; its frame is used on all others.
            let mut kept = plan.kept.lock().unwrap();
            match &*kept {
                Some(other) if number > 1 => other.bytes(),
                _ => {
                    *kept = Some(frame);
                    whole
                }
            }
        }
        Attack::Inject => {
            let change = Change { mode: Some(0o4755), ..Change::default() };
            let call = Call { identity: None, request: Request::SetAttr { file: FileId::ROOT, change } };
            let mut forged = Vec::new();
            plain_frame(&mut forged, FrameKind::Call, 77, &call, 0).unwrap();
            [forged, whole].concat()
        }
        Attack::Downgrade => {
            // Version (one byte), key (16 bytes), then the minimum.
            frame.body[17] = 0;
            frame.bytes()
        }
        Attack::Truncate => return (whole[..whole.len() / 2].to_vec(), false),
    };
    (bytes, true)
}

/// A server with a file `/f` full of `A`.
fn world(level: Security) -> (World, Client) {
    let world = World::with(32, |_, config| config.transport.security = Some(level));
    let own = Client::connect(world.client_config(By::Unix)).unwrap();
    let file = own.open("/f", OpenOptions::CREATE).unwrap();
    file.pwrite(0, &[b'A'; LEN]).unwrap();
    file.close().unwrap();
    (world, own)
}

fn contents(own: &Client) -> Vec<u8> {
    let file = own.open("/f", OpenOptions::READ).unwrap();
    let mut bytes = vec![0; 6 << 20];
    let len = file.pread(0, &mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

const LEVELS: [Security; 2] = [Security::Authenticate, Security::Encrypt];

#[test]
fn relay_cannot_change_writes() {
    let attacks = [
        Attack::FlipBody,
        Attack::FlipTag,
        Attack::FlipPayload,
        Attack::Relabel,
        Attack::ShortenPayload,
        Attack::Drop,
        Attack::Truncate,
    ];
    for level in LEVELS {
        let (world, own) = world(level);
        for attack in attacks {
            let relay = Relay::start(&world, attack, To::Server, true, level);
            let patience = if attack == Attack::Drop { SHORT } else { LONG };
            let client = relay.client(&world, level, patience).unwrap();
            let file = client.open("/f", OpenOptions::WRITE).unwrap();
            // An append is not retried: it fails with its connection.
            file.append(&[b'B'; LEN]).expect_err("refused");
            assert!(contents(&own) == [b'A'; LEN], "{level} {attack:?}: nothing has changed");
        }
    }
}

#[test]
fn repeated_reordered_and_spliced_writes_fail() {
    for level in LEVELS {
        let (world, own) = world(level);
        // The first copy is valid; the server's answer may arrive before the server closes the connection.
        let relay = Relay::start(&world, Attack::Repeat, To::Server, true, level);
        let client = relay.client(&world, level, LONG).unwrap();
        let file = client.open("/f", OpenOptions::WRITE).unwrap();
        let append = file.append(&[b'C'; 1000]);
        let written = contents(&own);
        assert_eq!(written.len(), LEN + 1000, "{level}: appended once: {append:?}");

        // Two frames of one write, the second one first.
        let relay = Relay::start(&world, Attack::Swap, To::Server, true, level);
        let client = relay.client(&world, level, SHORT).unwrap();
        let file = client.open("/f", OpenOptions::WRITE).unwrap();
        file.pwrite(0, &vec![b'B'; 5 << 20]).expect_err("refused");
        assert!(contents(&own) == written, "{level}: nothing has changed");

        let relay = Relay::start(&world, Attack::Splice, To::Server, true, level);
        let first = relay.client(&world, level, LONG).unwrap();
        first.open("/f", OpenOptions::WRITE).unwrap().pwrite(0, b"first").unwrap();
        let second = relay.client(&world, level, SHORT).unwrap();
        let file = second.open("/f", OpenOptions::WRITE).unwrap();
        own.open("/f", OpenOptions::WRITE).unwrap().pwrite(0, b"later").unwrap();
        file.pwrite(100, b"second").expect_err("refused");
        assert_eq!(&contents(&own)[..5], b"later", "{level}: the first write did not come again");
        assert_eq!(&contents(&own)[100..106], b"AAAAAA", "{level}");
    }
}

#[test]
fn relay_cannot_change_reads() {
    let attacks = [
        Attack::FlipBody,
        Attack::FlipTag,
        Attack::FlipPayload,
        Attack::Relabel,
        Attack::ShortenPayload,
        Attack::Truncate,
        Attack::Drop,
    ];
    for level in LEVELS {
        let (world, _own) = world(level);
        for attack in attacks {
            let relay = Relay::start(&world, attack, To::Client, true, level);
            let silent = matches!(attack, Attack::Truncate | Attack::Drop);
            let client = relay.client(&world, level, if silent { SHORT } else { LONG }).unwrap();
            let file = client.open("/f", OpenOptions::READ).unwrap();
            let mut bytes = vec![0; LEN];
            let error = file.pread(0, &mut bytes).expect_err("refused");
            assert_eq!(is_tampering(&error), !silent, "{level} {attack:?}: {error}");
        }
        // The client detects a second copy at the next answer.
        let relay = Relay::start(&world, Attack::Repeat, To::Client, true, level);
        let client = relay.client(&world, level, LONG).unwrap();
        let file = client.open("/f", OpenOptions::READ).unwrap();
        let mut bytes = vec![0; LEN];
        for _ in 0..3 {
            match file.pread(0, &mut bytes) {
                Ok(len) => assert!(len == LEN && bytes == [b'A'; LEN], "{level}"),
                Err(error) => {
                    assert!(is_tampering(&error) || error.kind().is_no_answer(), "{error}");
                }
            }
        }
    }
}

fn is_tampering(error: &Error) -> bool {
    error.kind() == ErrorKind::Protocol && error.to_string().contains("changed, left out or repeated")
}

#[test]
fn relay_cannot_forge_requests() {
    for level in LEVELS {
        let (world, own) = world(level);
        let before = own.stat("/").unwrap();
        for attack in [Attack::Inject, Attack::FlipBody, Attack::Drop, Attack::Swap, Attack::Truncate] {
            let relay = Relay::start(&world, attack, To::Server, false, level);
            let name = format!("/{attack:?}");
            let result = relay.client(&world, level, SHORT).and_then(|client| client.mkdir(&name, 0o755));
            result.expect_err("refused");
            assert!(own.stat(&name).is_err(), "{level} {attack:?}: no directory was created");
            assert_eq!(own.stat("/").unwrap(), before, "{level} {attack:?}");
        }
    }
}

/// Shows that the relay of the other tests succeeds without protection.
#[test]
fn relay_changes_bytes_and_modes_without_protection() {
    let level = Security::None;
    let (world, own) = world(level);
    let relay = Relay::start(&world, Attack::FlipPayload, To::Server, true, level);
    let client = relay.client(&world, level, LONG).unwrap();
    client.open("/f", OpenOptions::WRITE).unwrap().append(&[b'B'; 100]).unwrap();
    assert_eq!(contents(&own).last(), Some(&b'b'), "the relay has changed a byte");
    let relay = Relay::start(&world, Attack::Inject, To::Server, false, level);
    let result = relay.client(&world, level, SHORT).and_then(|client| client.mkdir("/d", 0o755));
    result.expect_err("an unexpected answer");
    assert_eq!(own.stat("/").unwrap().mode, 0o4755, "the relay has set the set-uid bit");
}

#[test]
fn protection_downgrade_is_refused() {
    for level in LEVELS {
        // The server alone would accept any level.
        let (world, _own) = world(Security::None);
        let relay = Relay::start(&world, Attack::Downgrade, To::Server, false, level);
        let error = relay.client(&world, level, LONG).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
    }
}

/// A relay that forwards everything, but answers the given number of connections itself with a refusal, which needs no
/// key.
fn forger(server: SocketAddr, forged: Arc<Mutex<usize>>, live: Arc<Mutex<Vec<TcpStream>>>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        // The listener ends with the test process.
        while let Ok((mut client, _)) = listener.accept() {
            let mut left = forged.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                let refusal = Error::new(ErrorKind::NotPermitted, "go away");
                let mut bytes = Vec::new();
                plain_frame(&mut bytes, FrameKind::Greeting, 0, &Greeting::Refusal(refusal), 0).unwrap();
                let _ = client.read(&mut [0; 4096]).and_then(|_| client.write_all(&bytes));
                continue;
            }
            let server = TcpStream::connect(server).unwrap();
            for (mut from, mut into) in [(&client, &server), (&server, &client)]
                .map(|(from, into)| (from.try_clone().unwrap(), into.try_clone().unwrap()))
            {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(Shutdown::Both);
                });
            }
            live.lock().unwrap().push(client);
        }
    });
    address
}

#[test]
fn forged_refusals_do_not_end_a_live_session() {
    for level in LEVELS {
        let (world, _own) = world(level);
        let addresses = world.client_config(By::Tcp).addresses;
        let Some(Address::Tcp { host, port }) = addresses.iter().next() else { panic!("not TCP") };
        let server: SocketAddr = format!("{host}:{port}").parse().unwrap();
        let (forged, live) = (Arc::new(Mutex::new(0)), Arc::default());
        let address = forger(server, Arc::clone(&forged), Arc::clone(&live));
        let config = ClientConfig {
            addresses: Address::Tcp { host: "127.0.0.1".into(), port: address.port() }.into(),
            security: Some(level),
            request_timeout: LONG,
            ..world.client_config(By::Tcp)
        };
        let client = Client::connect(config.clone()).unwrap();
        let file = client.open("/f", OpenOptions::WRITE).unwrap();
        *forged.lock().unwrap() = 3;
        for socket in live.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
        file.pwrite(0, b"still open").unwrap();
        client.stat("/f").unwrap();
        assert_eq!(*forged.lock().unwrap(), 0, "not all forged refusals were sent");
        // A client that was never accepted gets the error at once; it is no statement about files.
        *forged.lock().unwrap() = 1;
        let error = Client::connect(config).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    }
}

#[test]
fn replayed_session_changes_nothing() {
    for level in LEVELS {
        let (world, own) = world(level);
        let relay = Relay::start(&world, Attack::Nothing, To::Server, false, level);
        let client = relay.client(&world, level, LONG).unwrap();
        let file = client.open("/r", OpenOptions::CREATE).unwrap();
        file.pwrite(0, &[b'R'; 5000]).unwrap();
        client.unlink("/f").unwrap();
        drop((file, client));
        own.rename("/r", "/f", forebay_client::RenameMode::Replace).unwrap();
        let recorded = std::mem::take(&mut *relay.plan.recorded.lock().unwrap());
        assert_eq!(recorded.len(), 2, "a control and a data connection");
        let Address::Tcp { host, port } = world.client_config(By::Tcp).addresses.first().clone() else {
            panic!("not TCP")
        };
        for session in recorded {
            let mut socket = TcpStream::connect((host.as_str(), port)).unwrap();
            // The server may close the connection before it has read everything.
            let _ = socket.write_all(&session);
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            assert_eq!(answer.get(3), Some(&2), "the server sent only a challenge");
        }
        assert!(own.stat("/r").is_err() && contents(&own) == [b'R'; 5000], "{level}");
    }
}

#[test]
fn traffic_is_encrypted_at_the_agreed_level() {
    let secret = b"a sentence that nobody has to read on the way";
    for (level, client_level, visible) in [
        (Security::None, Security::None, true),
        (Security::Authenticate, Security::None, true),
        (Security::None, Security::Authenticate, true),
        (Security::Encrypt, Security::None, false),
        (Security::None, Security::Encrypt, false),
    ] {
        let (world, own) = world(level);
        let relay = Relay::start(&world, Attack::Nothing, To::Server, false, level.max(client_level));
        let client = relay.client(&world, client_level, LONG).unwrap();
        client.open("/f", OpenOptions::WRITE).unwrap().pwrite(0, secret).unwrap();
        client.mkdir("/a-name-that-is-secret", 0o755).unwrap();
        assert_eq!(&contents(&own)[..secret.len()], secret);
        let wire = relay.wire();
        let seen = |what: &[u8]| wire.windows(what.len()).any(|part| part == what);
        assert_eq!(
            (seen(secret), seen(b"a-name-that-is-secret")),
            (visible, visible),
            "{level} {client_level}"
        );
    }
}
