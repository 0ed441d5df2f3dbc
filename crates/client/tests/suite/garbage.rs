//! Invalid replies of a server cause an error, never a panic or a hang.

use crate::cluster::Trio;
use crate::fake::{Act, Fake, World, attr, token};
use forebay_client::{Client, ClientConfig, Listing, OpenOptions, RenameMode};
use forebay_model::{Attr, ErrorKind, FileId, FileKind, Layout, Name, ServerId, Usage};
use forebay_testkit::{Rng, Seeded, rounds};
use forebay_wire::{Answer, Channel, Entry, FrameKind, Reply, Request, Token, frame};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CASES: u64 = 150;

/// A corrupted answer, or random bytes.
fn noise(rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::new();
    let answers: [Answer; 4] = [
        Ok(Reply::Done),
        Ok(Reply::Data),
        Ok(Reply::Written { offset: rng.next() }),
        Err(ErrorKind::NoSpace.into()),
    ];
    let (id, payload) = (rng.below(6), rng.below(3) as u32 * 700);
    frame(&mut out, FrameKind::Answer, id, &answers[rng.index(4)], payload).unwrap();
    out.resize(out.len() + payload as usize, 0x55);
    match rng.below(4) {
        0 => {}
        1 => {
            let at = rng.index(out.len());
            out[at] ^= 1 << rng.below(8);
        }
        2 => out.truncate(rng.index(out.len())),
        _ => out = (0..rng.below(200)).map(|_| rng.next() as u8).collect(),
    }
    out
}

#[tokio::test]
async fn wrong_kind_of_reply_is_reported() {
    let script = |channel: Channel, request: &Request| match (channel, request) {
        (Channel::Data, _) => Act::Answer(Ok(Reply::Done)),
        (_, Request::Walk { .. }) => Act::Answer(Ok(Reply::Written { offset: 0 })),
        _ => Act::Serve,
    };
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let client = Client::connect(fake.config()).await.unwrap();
    let error = client.stat("/x").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot stat /x: the service answered Written to Walk");
    let file = client.open("/x", OpenOptions::CREATE).await.unwrap();
    for error in [file.pwrite(0, b"x").await.unwrap_err(), file.pread(0, &mut [0]).await.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.to_string().contains("with the wrong kind of reply"), "{error}");
    }
}

#[tokio::test]
async fn answer_with_unknown_id_breaks_the_connection() {
    let mut stray = Vec::new();
    frame(&mut stray, FrameKind::Answer, 999, &Answer::Ok(Reply::Done), 0).unwrap();
    let script = move |_: Channel, request: &Request| match request {
        Request::StatFs => Act::Raw(stray.clone()),
        _ => Act::Serve,
    };
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let client = Client::connect(fake.config()).await.unwrap();
    let error = client.statfs().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("answered request 999, which is not outstanding"), "{error}");
    client.ping().await.expect("the new connection works");
}

#[tokio::test]
async fn random_bytes_from_the_server_never_panic() {
    let seeded = Seeded::new();
    for case in rounds(CASES) {
        let rng = Mutex::new(seeded.rng(case));
        let script = move |channel: Channel, request: &Request| {
            let mut rng = rng.lock().unwrap();
            match (channel, request) {
                (_, Request::Open { .. } | Request::Ping) => Act::Serve,
                _ if rng.below(3) == 0 => Act::Serve,
                _ => Act::Raw(noise(&mut rng)),
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
        let timeout = Duration::from_millis(30);
        let config = ClientConfig { request_timeout: timeout, connect_timeout: timeout, ..fake.config() };
        let work = tokio::spawn(async move {
            let client = Client::connect(config).await?;
            let _ = client.stat("/x").await;
            let file = client.by_id().open(FileId(7), forebay_model::Access::BOTH, false).await?;
            let _ = file.pwrite(0, &[1; 3000]).await;
            let _ = file.pread(0, &mut [0; 3000]).await;
            let _ = file.append(&[2; 10]).await;
            let _ = client.read_link("/x").await;
            Ok::<(), forebay_model::Error>(())
        });
        assert!(work.await.is_ok(), "case {case}");
    }
}

/// Numbers at which arithmetic overflows.
const EDGES: [u64; 7] = [0, 1, 2, 4096, i64::MAX as u64, u64::MAX - 1, u64::MAX];

fn any_attr(rng: &mut Rng) -> Attr {
    let kind = *rng.pick(&[FileKind::File, FileKind::Directory, FileKind::Symlink]);
    Attr { id: any_file(rng), kind, size: *rng.pick(&EDGES), ..attr() }
}

fn any_file(rng: &mut Rng) -> FileId {
    FileId::made_by(ServerId(rng.below(5) as u16), *rng.pick(&[1, 7, 1 << 40]))
}

fn any_layout(rng: &mut Rng) -> Layout {
    let servers = (0..=rng.below(4)).map(|_| ServerId(rng.below(5) as u16)).collect();
    Layout { servers, stripe: (*rng.pick(&EDGES)).max(64) }
}

fn any_entry(rng: &mut Rng) -> Entry {
    let (name, attr) = (Name::new("n").unwrap(), any_attr(rng));
    let attr = rng.one_in(2).then_some(attr);
    Entry { name, file: any_file(rng), kind: FileKind::File, cookie: *rng.pick(&EDGES), attr }
}

/// A well-formed reply with random contents.
fn any_reply(rng: &mut Rng) -> Reply {
    let (dir, bytes) = (any_file(rng), |rng: &mut Rng| rng.pick(&[&b""[..], b"/", b"a/b", b"//.."]).to_vec());
    match rng.below(14) {
        0 => Reply::Done,
        1 => Reply::Attr(any_attr(rng)),
        2 => Reply::Found(any_attr(rng)),
        3 => Reply::Link { dir, target: bytes(rng), rest: bytes(rng) },
        4 => Reply::Elsewhere { dir, rest: bytes(rng) },
        5 => Reply::At { dir, file: any_file(rng), rest: bytes(rng) },
        6 | 7 => {
            let (attr, layout) = (any_attr(rng), any_layout(rng));
            Reply::Opened { token: Token { file: attr.id, ..token() }, attr, layout, created: rng.one_in(2) }
        }
        8 => Reply::Target(bytes(rng)),
        9 => {
            let entries = (0..rng.below(5)).map(|_| any_entry(rng)).collect();
            Reply::Entries { entries, next: rng.one_in(2).then(|| *rng.pick(&EDGES)) }
        }
        10 => {
            let mut edge = || *rng.pick(&EDGES);
            Reply::Usage(Usage { capacity: edge(), used: edge(), live: edge(), files: edge() })
        }
        11 => Reply::Written { offset: *rng.pick(&EDGES) },
        12 => Reply::Number(*rng.pick(&EDGES)),
        _ => Reply::Layout { striping: None, layout: Some(any_layout(rng)) },
    }
}

/// Makes calls of every kind and ignores the results.
async fn use_all(client: Client) {
    let _ = client.stat("/a/b").await;
    let _ = client.statfs().await;
    if let Ok(listing) = client.read_dir("/", Listing::Attributes).await {
        let _ = listing.all().await;
    }
    for options in [OpenOptions::WRITE, OpenOptions::CREATE] {
        let Ok(file) = client.open("/a/x", options).await else { continue };
        let _ = file.pwrite(100, &[1; 3000]).await;
        let _ = file.pread(100, &mut [0; 3000]).await;
        let _ = file.append(&[2; 10]).await;
        let _ = file.truncate(u64::MAX).await;
        let _ = file.stat().await;
        let _ = file.sync().await;
    }
    let _ = client.layout("/a").await;
    let _ = client.read_link("/l").await;
    let _ = client.rename("/a", "/b/", RenameMode::Replace).await;
    let _ = client.link("/a", "/c").await;
    let _ = client.unlink("/a").await;
}

#[tokio::test]
async fn random_replies_of_several_servers_never_panic() {
    let seeded = Seeded::new();
    for case in rounds(CASES) {
        let rng = Mutex::new(seeded.rng(case));
        let trio = Trio::new(move |_, channel, request| {
            let mut rng = rng.lock().unwrap();
            match (channel, request) {
                (_, Request::Ping) | (Channel::Data, Request::Read { .. }) => None,
                _ if rng.one_in(4) => None,
                _ => Some(Act::Answer(Ok(any_reply(&mut rng)))),
            }
        });
        let timeout = Duration::from_millis(50);
        let config = ClientConfig { request_timeout: timeout, connect_timeout: timeout, ..trio.config() };
        let work = tokio::spawn(async move {
            // A machine under load may be too slow to connect within the timeout.
            if let Ok(client) = Client::connect(config).await {
                use_all(client).await;
            }
        });
        let ended = tokio::time::timeout(Duration::from_secs(120), work).await;
        ended
            .unwrap_or_else(|_| panic!("case {case} does not end"))
            .unwrap_or_else(|_| panic!("case {case}"));
    }
}
