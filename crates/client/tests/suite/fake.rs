//! A server that says what a test wants. It speaks the real protocol over a real socket; behind it is one file
//! in memory and a script that may answer anything else first.

use forebay_client::{Address, ClientConfig};
use forebay_model::{
    Access, Attr, Error, ErrorKind, FileId, FileKind, Gid, Incarnation, Job, Layout, Member, Members,
    ServerId, Time, Uid,
};
use forebay_wire::{
    Answer, At, Call, Channel, FrameKind, Greeting, HEADER, Header, Hello, Key, Proof, Reply, Request, Token,
    Welcome, body, client_proof, frame, server_proof,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

/// What the server does with one request.
pub(crate) enum Act {
    /// What a sensible server does.
    Serve,
    /// This answer.
    Answer(Answer),
    /// This answer, after so many milliseconds; others are answered meanwhile.
    Later(u64, Answer),
    /// Nothing.
    Silence,
    /// Closes the connection.
    Close,
    /// Closes it after serving the request, without answering.
    ServeAndClose,
    /// These bytes.
    Raw(Vec<u8>),
}

/// How the server greets.
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
    pub(crate) file: Mutex<Vec<u8>>,
    /// The next connection's name.
    pub(crate) connections: AtomicU64,
    /// What was asked: the channel and the first word of the request, payload or not.
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

    /// Waits until something was asked so often.
    pub(crate) async fn asked(&self, word: &str, times: usize) {
        while self.count(word) < times {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
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

/// A running server; dropping it closes everything, as a crash would.
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
        // Left behind by the server before this one.
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
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
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

    /// Waits until everything of this server is closed.
    pub(crate) async fn stop(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    pub(crate) fn config(&self) -> ClientConfig {
        let job = Job { label: "1".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
        ClientConfig {
            job,
            request_timeout: Duration::from_secs(20),
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
    hello: &Hello,
    reader: &mut (impl AsyncRead + Unpin),
    writer: &mut (impl AsyncWrite + Unpin),
) -> Option<()> {
    let mut welcome = Welcome {
        server: world.server,
        incarnation: Incarnation(1),
        uid: Uid(0),
        max_payload: world.max_payload,
        members: world.members.clone(),
        session_millis: world.session_millis,
        seal: None,
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
            let nonce = [9; 32];
            frame(&mut out, FrameKind::Greeting, 0, &Greeting::Challenge { nonce }, 0).unwrap();
            writer.write_all(&out).await.ok()?;
            let (_, bytes, _) = read_frame(reader).await?;
            let proof: Proof = body(&bytes).unwrap();
            out.clear();
            if *honest && proof.seal != client_proof(key, hello, &nonce) {
                let error = Error::new(ErrorKind::Unauthenticated, "that is not the key");
                frame(&mut out, FrameKind::Greeting, 0, &Greeting::Refusal(error), 0).unwrap();
                writer.write_all(&out).await.ok()?;
                return None;
            }
            welcome.seal = Some(server_proof(key, hello, &nonce));
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
    let hello = Hello::read(&bytes).expect("the client says a good hello");
    world.note(format!("hello {:?}", hello.channel));
    greet(&world, &hello, &mut reader, &mut writer).await?;
    let writer = Arc::new(tokio::sync::Mutex::new(writer));
    let mut later = JoinSet::new();
    while let Some((header, bytes, payload)) = read_frame(&mut reader).await {
        let call: Call = body(&bytes).unwrap();
        let word = format!("{:?}", call.request).split([' ', '(']).next().unwrap().to_owned();
        world.note(word);
        match (world.script)(hello.channel, &call.request) {
            Act::Serve => answer(&writer, header.id, sensible(&world, &call.request, &payload)).await?,
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
                drop(sensible(&world, &call.request, &payload));
                return None;
            }
            Act::Raw(bytes) => writer.lock().await.write_all(&bytes).await.ok()?,
        }
    }
    world.note(format!("end {:?}", hello.channel));
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

/// What a sensible server with one file would say.
fn sensible(world: &World, request: &Request, payload: &[u8]) -> (Answer, Vec<u8>) {
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
