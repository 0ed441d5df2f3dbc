//! Broken connections, missing answers and restarts: which requests are retried, and which errors are reported.

use crate::fake::{Act, Fake, World, attr};
use forebay_client::{Client, ClientConfig, OpenOptions};
use forebay_model::{Error, ErrorKind};
use forebay_wire::{Channel, Reply, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Reacts differently to the first `times` matching requests.
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
async fn answers_reach_their_callers_in_any_order() {
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
async fn idempotent_requests_are_retried_after_a_break() {
    let world = World::new(first(3, |request| matches!(request, Request::Walk { .. }), || Act::Close));
    let (_dir, fake, client) = start(world).await;
    client.stat("/x").await.unwrap();
    assert_eq!(fake.world.count("Walk"), 4);
    assert_eq!(fake.world.count("hello Control"), 4);
}

#[tokio::test]
async fn abandoned_connections_are_reported_before_a_retry() {
    let world = World::new(first(2, |request| matches!(request, Request::Write { .. }), || Act::Close));
    let (_dir, fake, client) = start(world).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    file.pwrite(0, b"x").await.unwrap();
    let mut log = fake.world.log();
    log.retain(|entry| entry == "Write" || entry == "Abandon");
    assert_eq!(log, ["Write", "Abandon", "Write", "Abandon", "Write"]);
    // The same holds for a transfer that its caller cancelled.
    let silent = |request: &Request| matches!(request, Request::Write { .. });
    let (_dir, fake, client) = start(World::new(first(1, silent, || Act::Silence))).await;
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    tokio::select! {
        _ = file.pwrite(0, b"x") => panic!("the server does not answer"),
        () = fake.world.wait_for_request("Write", 1) => {}
    }
    file.pwrite(0, b"y").await.unwrap();
    let mut log = fake.world.log();
    log.retain(|entry| entry == "Write" || entry == "Abandon");
    assert_eq!(log, ["Write", "Abandon", "Write"]);
}

#[tokio::test]
async fn non_idempotent_requests_are_not_retried() {
    let world =
        World::new(first(1, |request| matches!(request, Request::MakeDir { .. }), || Act::ServeAndClose));
    let (_dir, fake, client) = start(world).await;
    let error = client.mkdir("/d", 0o755).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    let text = error.to_string();
    assert!(text.starts_with("cannot make directory /d: ") && text.contains("outcome is unknown"), "{text}");
    assert_eq!(fake.world.count("MakeDir"), 1);
    client.mkdir("/e", 0o755).await.unwrap();
}

#[tokio::test]
async fn unsent_requests_are_sent_after_a_reconnect() {
    let (dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    fake.stop().await;
    let world = Arc::new(World::new(|_, _| Act::Serve));
    // Lets the client's reader notice the end of the connection first.
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
async fn busy_answers_are_retried_for_any_request() {
    let busy = || Act::Answer(Err(ErrorKind::Busy.into()));
    let world = World::new(first(3, |request| matches!(request, Request::MakeDir { .. }), busy));
    let (_dir, fake, client) = start(world).await;
    client.mkdir("/d", 0o755).await.unwrap();
    assert_eq!(fake.world.count("MakeDir"), 4);
}

#[tokio::test]
async fn missing_answer_ends_in_a_timeout() {
    let silent = |request: &Request| matches!(request, Request::Walk { .. } | Request::MakeDir { .. });
    let dir = tempfile::tempdir().unwrap();
    let world = World::new(first(usize::MAX, silent, || Act::Silence));
    let fake = Fake::unix(dir.path(), Arc::new(world));
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let error = client.stat("/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("no answer within 2s"), "{error}");
    let error = client.mkdir("/d", 0o755).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("outcome is unknown"), "{error}");
    client.ping().await.expect("other requests are answered");
}

#[tokio::test]
async fn retries_end_with_the_request_timeout() {
    let (_dir, fake, _) = start(World::new(|_, _| Act::Serve)).await;
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    fake.stop().await;
    // The request may have been sent before the client noticed that the server had stopped; later ones are not.
    let error = client.stat("/x").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut), "{error}");
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
async fn open_files_are_reopened_before_other_requests() {
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
async fn file_lost_by_the_server_does_not_affect_others() {
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
async fn session_sends_heartbeats_and_reconnects() {
    let dir = tempfile::tempdir().unwrap();
    let fake =
        Fake::unix(dir.path(), Arc::new(World { session_millis: 60, ..World::new(|_, _| Act::Serve) }));
    let client = Client::connect(fake.config()).await.unwrap();
    let _file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    fake.world.wait_for_request("Ping", 3).await;
    fake.stop().await;
    // A server that accepts connections but never answers a ping is abandoned each time.
    let ignores_pings = |_: Channel, request: &Request| match request {
        Request::Ping => Act::Silence,
        _ => Act::Serve,
    };
    let fake = Fake::unix(dir.path(), Arc::new(World { session_millis: 60, ..World::new(ignores_pings) }));
    fake.world.wait_for_request("Reopen", 3).await;
}

#[tokio::test]
async fn cancelled_open_is_closed() {
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
        () = fake.world.wait_for_request("Open", 1) => {}
    }
    fake.world.wait_for_request("Close", 1).await;
}

#[tokio::test]
async fn dropped_file_is_closed() {
    let (_dir, fake, client) = start(World::new(|_, _| Act::Serve)).await;
    drop(client.open("/x", OpenOptions::READ).await.unwrap());
    fake.world.wait_for_request("Close", 1).await;
}
