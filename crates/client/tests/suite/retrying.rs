//! Broken connections, silence, restarts: what is asked again, and what is said when it is not.

use crate::fake::{Act, Fake, World, attr};
use forebay_client::{Client, ClientConfig, OpenOptions};
use forebay_model::{Error, ErrorKind};
use forebay_wire::{Channel, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Does something else with the first `times` requests that match.
fn first(
    times: usize,
    matching: fn(&Request) -> bool,
    act: fn() -> Act,
) -> impl Fn(Channel, &Request) -> Act + Send + Sync + 'static {
    let seen = AtomicUsize::new(0);
    move |_, request| {
        if matching(request) && seen.fetch_add(1, Ordering::Relaxed) < times { act() } else { Act::Serve }
    }
}

async fn start(world: World) -> (tempfile::TempDir, Fake, Client) {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), Arc::new(world));
    let client = Client::connect(fake.config()).await.unwrap();
    (dir, fake, client)
}

#[tokio::test]
async fn answers_find_their_callers_in_any_order() {
    let script = |_: Channel, request: &Request| match request {
        Request::Walk { path, .. } => {
            let number = path.len() as u64;
            Act::Later(60 - number, Ok(Reply::Found(forebay_model::Attr { size: number, ..attr() })))
        }
        _ => Act::Serve,
    };
    let (_dir, _fake, client) = start(World::new(script)).await;
    let mut tasks = Vec::new();
    for number in 1..50_usize {
        let client = client.clone();
        tasks
            .push(tokio::spawn(async move { (number, client.stat("x".repeat(number)).await.unwrap().size) }));
    }
    for task in tasks {
        let (asked, got) = task.await.unwrap();
        assert_eq!(asked as u64, got);
    }
}

#[tokio::test]
async fn what_is_safe_is_asked_again_after_a_break() {
    let world = World::new(first(3, |request| matches!(request, Request::Walk { .. }), || Act::Close));
    let (_dir, fake, client) = start(world).await;
    client.stat("/x").await.unwrap();
    assert_eq!(fake.world.count("Walk"), 4);
    assert_eq!(fake.world.count("hello Control"), 4);
}

#[tokio::test]
async fn what_was_given_up_is_told_before_it_is_asked_again() {
    let world = World::new(first(2, |request| matches!(request, Request::Write { .. }), || Act::Close));
    let (_dir, fake, client) = start(world).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    file.pwrite(0, b"x").await.unwrap();
    let mut log = fake.world.log();
    log.retain(|entry| entry == "Write" || entry == "Abandon");
    assert_eq!(log, ["Write", "Abandon", "Write", "Abandon", "Write"]);
    // A transfer that its caller gave up is no better.
    let silent = |request: &Request| matches!(request, Request::Write { .. });
    let (_dir, fake, client) = start(World::new(first(1, silent, || Act::Silence))).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    tokio::select! {
        _ = file.pwrite(0, b"x") => panic!("nobody answers"),
        () = fake.world.asked("Write", 1) => {}
    }
    file.pwrite(0, b"y").await.unwrap();
    let mut log = fake.world.log();
    log.retain(|entry| entry == "Write" || entry == "Abandon");
    assert_eq!(log, ["Write", "Abandon", "Write"]);
}

#[tokio::test]
async fn what_must_happen_once_is_not_asked_again() {
    let world =
        World::new(first(1, |request| matches!(request, Request::MakeDir { .. }), || Act::ServeAndClose));
    let (_dir, fake, client) = start(world).await;
    let error = client.mkdir("/d", 0o755).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = error.to_string();
    assert!(text.starts_with("cannot make directory /d: ") && text.contains("nobody knows"), "{text}");
    assert_eq!(fake.world.count("MakeDir"), 1);
    client.mkdir("/e", 0o755).await.unwrap();
}

#[tokio::test]
async fn what_was_certainly_not_sent_is_sent_later() {
    let (dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    fake.stop().await;
    let world = Arc::new(World::new(|_, _| Act::Serve));
    // The client's reader learns of the end before it asks.
    tokio::time::sleep(Duration::from_millis(20)).await;
    let restart = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        Fake::unix(dir.path(), world.clone())
    };
    let (fake, made) = tokio::join!(restart, client.mkdir("/d", 0o755));
    made.unwrap();
    assert_eq!(fake.world.count("MakeDir"), 1);
}

#[tokio::test]
async fn busy_is_asked_again_whatever_it_is() {
    let busy = || Act::Answer(Err(ErrorKind::Busy.into()));
    let world = World::new(first(3, |request| matches!(request, Request::MakeDir { .. }), busy));
    let (_dir, fake, client) = start(world).await;
    client.mkdir("/d", 0o755).await.unwrap();
    assert_eq!(fake.world.count("MakeDir"), 4);
}

#[tokio::test]
async fn silence_ends_in_an_error() {
    let silent = |request: &Request| matches!(request, Request::Walk { .. } | Request::MakeDir { .. });
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(first(usize::MAX, silent, || Act::Silence));
    let fake = Fake::unix(dir.path(), Arc::new(world));
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let error = client.stat("/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("no answer within 2s"), "{error}");
    let error = client.mkdir("/d", 0o755).await.unwrap_err();
    assert!(error.to_string().contains("nobody knows"), "{error}");
    client.ping().await.expect("others are answered");
}

#[tokio::test]
async fn nothing_is_retried_for_ever() {
    let (_dir, fake, _) = start(World::new(|_, _| Act::Serve)).await;
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    fake.stop().await;
    for error in [
        client.stat("/x").await.unwrap_err(),
        file.pwrite(0, b"x").await.unwrap_err(),
        file.pread(0, &mut [0]).await.unwrap_err(),
        file.append(b"x").await.unwrap_err(),
        file.sync().await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(error.to_string().contains("/x: service unix:"), "{error}");
    }
}

#[tokio::test]
async fn open_files_are_re_established_before_anything_else() {
    let (dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    let other = client.open("/y", OpenOptions::WRITE).await.unwrap();
    file.pwrite(0, b"before").await.unwrap();
    other.close().await.unwrap();
    fake.stop().await;
    let fake = Fake::unix(dir.path(), Arc::new(World::new(|_, _| Act::Serve)));
    file.pwrite(0, b"after").await.unwrap();
    let log = fake.world.log();
    let position = |word: &str| log.iter().position(|entry| entry == word).unwrap();
    let between = &log[position("hello Control") + 1..position("Reopen")];
    assert!(between.iter().all(|entry| entry == "Abandon"), "{log:?}");
    assert!(position("Reopen") < position("Write"), "{log:?}");
    assert_eq!(fake.world.count("Reopen"), 1, "a closed file is not opened again: {log:?}");
    assert_eq!(*fake.world.file.lock().unwrap(), b"after");
    file.sync().await.unwrap();
}

#[tokio::test]
async fn a_file_that_the_server_lost_is_lost_alone() {
    let (dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    fake.stop().await;
    let stale = || Act::Answer(Err(Error::new(ErrorKind::Stale, "the open file is gone")));
    let gone = |request: &Request| matches!(request, Request::Reopen { .. } | Request::Sync { .. });
    let fake = Fake::unix(dir.path(), Arc::new(World::new(first(usize::MAX, gone, stale))));
    assert_eq!(file.sync().await.unwrap_err().to_string(), "cannot sync /x: the open file is gone");
    client.stat("/x").await.unwrap();
    assert_eq!(fake.world.count("Reopen"), 1);
}

#[tokio::test]
async fn the_session_is_kept_alive_and_brought_back() {
    let dir = tempfile::tempdir().unwrap();
    let fake =
        Fake::unix(dir.path(), Arc::new(World { session_millis: 60, ..World::new(|_, _| Act::Serve) }));
    let client = Client::connect(fake.config()).await.unwrap();
    let _file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    let until = async |fake: &Fake, word: &str, count: usize| {
        while fake.world.count(word) < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    until(&fake, "Ping", 3).await;
    fake.stop().await;
    // One that takes connections but never answers a ping is given up, again and again.
    let deaf = |_: Channel, request: &Request| match request {
        Request::Ping => Act::Silence,
        _ => Act::Serve,
    };
    let fake = Fake::unix(dir.path(), Arc::new(World { session_millis: 60, ..World::new(deaf) }));
    until(&fake, "Reopen", 3).await;
}

#[tokio::test]
async fn an_open_that_nobody_waits_for_is_closed() {
    let slow = |_: Channel, request: &Request| match request {
        Request::Open { .. } => {
            let (token, attr) = (crate::fake::token(), attr());
            Act::Later(
                1000,
                Ok(Reply::Opened {
                    token,
                    attr,
                    layout: forebay_model::Layout::whole(forebay_model::ServerId(1), 4 << 20),
                    created: false,
                }),
            )
        }
        _ => Act::Serve,
    };
    let (_dir, fake, client) = start(World::new(slow)).await;
    tokio::select! {
        _ = client.open("/x", OpenOptions::READ) => panic!("it is answered later"),
        () = fake.world.asked("Open", 1) => {}
    }
    while fake.world.count("Close") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_dropped_file_is_closed() {
    let (_dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    drop(client.open("/x", OpenOptions::READ).await.unwrap());
    while fake.world.count("Close") == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
