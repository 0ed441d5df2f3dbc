//! A scripted server. It speaks the real protocol over a real socket and has one file in memory; a script may answer
//! any request first.

use forebay_client::{Address, ClientConfig};
use forebay_model::{
    Access, Attr, Error, FileId, FileKind, Gid, Incarnation, Job, Layout, Member, Members, ServerId, Time,
    Uid,
};
use forebay_testkit::until_async;
use forebay_wire::{
    Agreed, Answer, Answered, At, Call, Channel, FrameKind, Greeting, HEADER, Header, Hello, Key, Opening,
    Reply, Request, Security, TAG, Token, Welcome, answer_opening, body, frame,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

/// How the server reacts to a request.
pub(crate) enum Act {
    /// The valid reply.
    Serve,
    /// This answer.
    Answer(Answer),
    /// This answer after the given number of milliseconds; other requests are answered meanwhile.
    Later(u64, Answer),
    /// No answer.
    Silence,
    /// Closes the connection.
    Close,
    /// Serves the request and closes the connection without answering.
    ServeAndClose,
    /// These bytes.
    Raw(Vec<u8>),
}

/// How the server answers the hello.
#[derive(Clone)]
pub(crate) enum Greet {
    Welcome,
    Challenge { key: Key, honest: bool },
    Refuse(Error),
    Raw(Vec<u8>),
    Silence,
}

pub(crate) type Script = Arc<dyn Fn(Channel, &Request) -> Act + Send + Sync>;

pub(crate) struct World {
    pub(crate) server: ServerId,
    pub(crate) members: Members,
    pub(crate) greet: Greet,
    pub(crate) script: Script,
    pub(crate) max_payload: u32,
    pub(crate) session_millis: u64,
    /// The incarnation of its store.
    pub(crate) incarnation: u128,
    pub(crate) file: Mutex<Vec<u8>>,
    /// Number of the next connection.
    pub(crate) connections: AtomicU64,
    /// Log of requests: the channel and the first word of each.
    pub(crate) log: Mutex<Vec<String>>,
}

impl World {
    pub(crate) fn new(script: impl Fn(Channel, &Request) -> Act + Send + Sync + 'static) -> World {
        let member = Member { server: ServerId(0), address: "tcp:fake:1".to_owned(), socket: None };
        World {
            server: ServerId(0),
            members: Members::new(1, vec![member]).unwrap(),
            greet: Greet::Welcome,
            script: Arc::new(script),
            max_payload: 64 << 10,
            session_millis: 600_000,
            incarnation: 1,
            file: Mutex::new(Vec::new()),
            connections: AtomicU64::new(1),
            log: Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn count(&self, word: &str) -> usize {
        self.log().iter().filter(|entry| *entry == word).count()
    }

    /// Waits until a request has been received the given number of times.
    pub(crate) async fn wait_for_request(&self, word: &str, times: usize) {
        until_async("the request arrives", async || self.count(word) >= times).await;
    }

    fn note(&self, entry: String) {
        self.log.lock().unwrap().push(entry);
    }
}

pub(crate) fn attr() -> Attr {
    Attr {
        id: FileId(7),
        kind: FileKind::File,
        mode: 0o644,
        links: 1,
        uid: Uid(0),
        gid: Gid(0),
        size: 0,
        buffered: 0,
        atime: Time::default(),
        mtime: Time::default(),
        ctime: Time::default(),
    }
}

pub(crate) fn token() -> Token {
    Token { file: FileId(7), access: Access::BOTH, uid: Uid(0), serial: 1, seal: [1; 16] }
}

/// A running server. Dropping it closes everything, like a crash.
pub(crate) struct Fake {
    pub(crate) world: Arc<World>,
    pub(crate) address: Address,
    task: JoinHandle<()>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) fn socket(dir: &Path) -> PathBuf {
    dir.join("fake.sock")
}

impl Fake {
    pub(crate) fn unix(dir: &Path, world: Arc<World>) -> Fake {
        Fake::at(socket(dir), world)
    }

    pub(crate) fn at(path: PathBuf, world: Arc<World>) -> Fake {
        // Left by the previous server.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let shared = world.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (reader, writer) = stream.into_split();
                connections.spawn(serve(shared.clone(), reader, writer));
            }
        });
        Fake { world, address: Address::Unix(path), task }
    }

    pub(crate) async fn tcp(world: Arc<World>) -> Fake {
        Fake::tcp_at(0, world).await
    }

    pub(crate) async fn tcp_at(port: u16, world: Arc<World>) -> Fake {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = world.clone();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (reader, writer) = stream.into_split();
                connections.spawn(serve(shared.clone(), reader, writer));
            }
        });
        Fake { world, address: Address::Tcp { host: "127.0.0.1".into(), port }, task }
    }

    /// Stops the server and waits until all its connections are closed.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let job = Job { label: "1".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
        ClientConfig {
            job,
            request_timeout: Duration::from_secs(20),
            security: Some(Security::None),
            ..ClientConfig::new(self.address.clone())
        }
    }
}

async fn read_frame(reader: &mut (impl AsyncRead + Unpin)) -> Option<(Header, Vec<u8>, Vec<u8>)> {
    let mut head = [0; HEADER];
    reader.read_exact(&mut head).await.ok()?;
    let header = Header::decode(&head).expect("the client sends good headers");
    let mut bytes = vec![0; header.body as usize];
    reader.read_exact(&mut bytes).await.ok()?;
    let mut payload = vec![0; header.payload as usize];
    reader.read_exact(&mut payload).await.ok()?;
    Some((header, bytes, payload))
}

async fn greet(
    world: &World,
    first: &[u8],
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Option<()> {
    let welcome = Welcome {
        server: world.server,
        incarnation: Incarnation(world.incarnation),
        uid: Uid(0),
        max_payload: world.max_payload,
        members: world.members.clone(),
        session_millis: world.session_millis,
        connection: world.connections.fetch_add(1, Ordering::Relaxed),
    };
    let mut out = Vec::new();
    match &world.greet {
        Greet::Welcome => {}
        Greet::Refuse(error) => {
            frame(&mut out, FrameKind::Greeting, 0, &Greeting::Refusal(error.clone()), 0).unwrap();
            writer.write_all(&out).await.ok()?;
            return None;
        }
        Greet::Raw(bytes) => {
            writer.write_all(bytes).await.ok()?;
            return None;
        }
        Greet::Silence => std::future::pending().await,
        Greet::Challenge { key, honest } => {
            let opening = Opening::read(first).expect("the client opens well");
            // Frames after the handshake are not protected.
            let (noise, agreed) = match answer_opening(&opening, &key.clone().into(), Security::None) {
                Ok(Answered { challenge, agreed, .. }) => (challenge, Some(agreed)),
                Err(_) if !*honest => (vec![9; 49], None),
                Err(error) => {
                    frame(&mut out, FrameKind::Greeting, 0, &Greeting::Refusal(error), 0).unwrap();
                    writer.write_all(&out).await.ok()?;
                    return None;
                }
            };
            frame(&mut out, FrameKind::Greeting, 0, &Greeting::Challenge { noise }, 0).unwrap();
            writer.write_all(&out).await.ok()?;
            out.clear();
            let Agreed { mut sealer, mut opener, .. } = agreed?;
            let mut proof = [0; HEADER + TAG];
            reader.read_exact(&mut proof).await.ok()?;
            let header = Header::decode(proof.first_chunk().unwrap()).expect("a header");
            opener.frame(&header, &mut proof[HEADER..]).expect("the client proves that it has the keys");
            sealer.frame(&mut out, FrameKind::Greeting, 0, &Greeting::Welcome(welcome), 0).unwrap();
            return writer.write_all(&out).await.ok();
        }
    }
    frame(&mut out, FrameKind::Greeting, 0, &Greeting::Welcome(welcome), 0).unwrap();
    writer.write_all(&out).await.ok()
}

async fn serve(
    world: Arc<World>,
    mut reader: impl AsyncRead + Unpin,
    writer: impl AsyncWrite + Unpin + Send + 'static,
) -> Option<()> {
    let mut writer = writer;
    let (_, bytes, _) = read_frame(&mut reader).await?;
    let channel = match (&world.greet, Hello::read(&bytes)) {
        (_, Ok(hello)) => hello.channel,
        (Greet::Challenge { key, honest: true }, Err(_)) => {
            let opening = Opening::read(&bytes).expect("the client opens well");
            let opened = answer_opening(&opening, &key.clone().into(), Security::None);
            opened.map_or(Channel::Control, |opened| opened.hello.channel)
        }
        // Over TCP, this fake server cannot decrypt the hello.
        (_, Err(_)) => Channel::Control,
    };
    world.note(format!("hello {channel:?}"));
    greet(&world, &bytes, &mut reader, &mut writer).await?;
    let writer = Arc::new(tokio::sync::Mutex::new(writer));
    let mut later = JoinSet::new();
    while let Some((header, bytes, payload)) = read_frame(&mut reader).await {
        let call: Call = body(&bytes).unwrap();
        let word = format!("{:?}", call.request).split([' ', '(']).next().unwrap().to_owned();
        world.note(word);
        match (world.script)(channel, &call.request) {
            Act::Serve => answer(&writer, header.id, valid_reply(&world, &call.request, &payload)).await?,
            Act::Answer(result) => answer(&writer, header.id, (result, Vec::new())).await?,
            Act::Later(millis, result) => {
                let writer = writer.clone();
                later.spawn(async move {
                    tokio::time::sleep(Duration::from_millis(millis)).await;
                    answer(&writer, header.id, (result, Vec::new())).await
                });
            }
            Act::Silence => {}
            Act::Close => return None,
            Act::ServeAndClose => {
                drop(valid_reply(&world, &call.request, &payload));
                return None;
            }
            Act::Raw(bytes) => writer.lock().await.write_all(&bytes).await.ok()?,
        }
    }
    world.note(format!("end {channel:?}"));
    Some(())
}

async fn answer(
    writer: &tokio::sync::Mutex<impl AsyncWrite + Unpin>,
    id: u64,
    (answer, payload): (Answer, Vec<u8>),
) -> Option<()> {
    let mut out = Vec::new();
    frame(&mut out, FrameKind::Answer, id, &answer, payload.len() as u32).unwrap();
    out.extend(payload);
    writer.lock().await.write_all(&out).await.ok()
}

/// The valid reply of a server with one file.
fn valid_reply(world: &World, request: &Request, payload: &[u8]) -> (Answer, Vec<u8>) {
    let mut file = world.file.lock().unwrap();
    let size = file.len() as u64;
    let attr = Attr { size, ..attr() };
    let reply = match request {
        Request::Walk { path, .. } if path.iter().all(|&byte| byte == b'/') => {
            Reply::Found(Attr { id: FileId::ROOT, kind: FileKind::Directory, ..attr })
        }
        Request::Walk { .. } => Reply::Found(attr),
        Request::GetAttr { .. } | Request::MakeDir { .. } => Reply::Attr(attr),
        Request::Open { .. } | Request::Create { .. } | Request::Reopen { .. } => Reply::Opened {
            token: token(),
            attr,
            layout: Layout::whole(ServerId(1), 4 << 20),
            created: false,
        },
        Request::Write { at, .. } => {
            let offset = match at {
                At::Offset(offset) => *offset,
                At::End => size,
            };
            let (start, end) = (offset as usize, offset as usize + payload.len());
            if file.len() < end {
                file.resize(end, 0);
            }
            file[start..end].copy_from_slice(payload);
            Reply::Written { offset }
        }
        Request::Read { offset, len, .. } => {
            let start = file.len().min(*offset as usize);
            let end = file.len().min(start + *len as usize);
            return (Ok(Reply::Data), file[start..end].to_vec());
        }
        _ => Reply::Done,
    };
    (Ok(reply), Vec::new())
}
