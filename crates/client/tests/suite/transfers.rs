//! Payload transfers: split, pipelined, retried, cancelled.

use crate::fake::{Act, Fake, World};
use forebay_client::{Client, ClientConfig, File, OpenOptions};
use forebay_model::{Error, ErrorKind};
use forebay_wire::{At, Channel, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

async fn start(world: World) -> (tempfile::TempDir, Fake, Client, File) {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), Arc::new(world));
    let client = Client::connect(fake.config()).await.unwrap();
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    (dir, fake, client, file)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// Reacts differently to the data request with this number, counted over all data connections.
fn at(number: usize, act: fn() -> Act) -> impl Fn(Channel, &Request) -> Act + Send + Sync + 'static {
    let seen = AtomicUsize::new(0);
    move |channel, _| match channel {
        Channel::Data if seen.fetch_add(1, Ordering::Relaxed) == number => act(),
        _ => Act::Serve,
    }
}

#[tokio::test]
async fn transfer_sizes_around_every_limit() {
    let (_dir, fake, _, file) = start(World::new(|_, _| Act::Serve)).await;
    let frame = 64 << 10;
    for len in [0, 1, 100, 4096, 8 << 10, (8 << 10) + 1, frame - 1, frame, frame + 1, 10 * frame + 7] {
        fake.world.file.lock().unwrap().clear();
        let data = pattern(len);
        file.pwrite(5, &data).await.unwrap();
        assert_eq!(fake.world.file.lock().unwrap().get(5..).unwrap_or_default(), data, "{len}");
        let mut back = vec![0xee; len + 10];
        assert_eq!(file.pread(5, &mut back).await.unwrap(), len);
        assert_eq!(back[..len], data);
        assert_eq!(back[len..], [0xee; 10], "bytes after the end are untouched");
        assert_eq!(file.pread(5 + len as u64, &mut back).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn large_transfers_use_several_connections() {
    let (_dir, fake, _, file) = start(World { max_payload: 1 << 20, ..World::new(|_, _| Act::Serve) }).await;
    let data = pattern((21 << 20) + 12345);
    file.pwrite(0, &data).await.unwrap();
    assert!(*fake.world.file.lock().unwrap() == data);
    let mut back = vec![0; data.len() + 1000];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), data.len());
    assert!(back[..data.len()] == data);
    let connections = fake.world.count("hello Data");
    assert!((2..=4).contains(&connections), "{connections} connections");
}

#[tokio::test]
async fn many_writers_share_one_file() {
    let (_dir, fake, _, file) = start(World::new(|_, _| Act::Serve)).await;
    let file = Arc::new(file);
    let data = Arc::new(pattern(40 * 3000));
    let mut tasks = Vec::new();
    for part in 0..40 {
        let (file, data) = (file.clone(), data.clone());
        tasks.push(tokio::spawn(async move {
            let start = part * 3000;
            file.pwrite(start as u64, &data[start..start + 3000]).await
        }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert!(*fake.world.file.lock().unwrap() == *data);
    assert!(fake.world.count("hello Data") <= 4);
}

#[tokio::test]
async fn transfer_survives_a_broken_connection() {
    for number in [0, 1, 5, 9] {
        for act in [|| Act::Close, || Act::ServeAndClose, || Act::Answer(Err(ErrorKind::Busy.into()))] {
            let (_dir, fake, _, file) = start(World::new(at(number, act))).await;
            let data = pattern(640 << 10);
            file.pwrite(0, &data).await.unwrap();
            assert!(*fake.world.file.lock().unwrap() == data);
            let (_dir, fake, _, file) = start(World::new(at(number, act))).await;
            fake.world.file.lock().unwrap().clone_from(&data);
            let mut back = vec![0; data.len() + 5];
            assert_eq!(file.pread(0, &mut back).await.unwrap(), data.len());
            assert!(back[..data.len()] == data);
        }
    }
}

#[tokio::test]
async fn append_with_unknown_outcome_is_not_retried() {
    let (_dir, fake, _, file) = start(World::new(at(0, || Act::ServeAndClose))).await;
    let error = file.append(b"once").await.unwrap_err();
    assert!(error.to_string().contains("outcome is unknown"), "{error}");
    assert_eq!(*fake.world.file.lock().unwrap(), b"once");
    assert_eq!(file.append(b"twice").await.unwrap(), 4);
    let error = file.append(&pattern((64 << 10) + 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("at most 65536 bytes"), "{error}");
    assert_eq!(fake.world.count("Write"), 2);
}

#[tokio::test]
async fn append_skips_a_dead_idle_connection() {
    let (dir, fake, _, file) = start(World::new(|_, _| Act::Serve)).await;
    file.append(b"one").await.unwrap();
    fake.stop().await;
    let fake = Fake::unix(dir.path(), Arc::new(World::new(|_, _| Act::Serve)));
    assert_eq!(file.append(b"two").await.unwrap(), 0);
    assert_eq!(*fake.world.file.lock().unwrap(), b"two");
}

#[tokio::test]
async fn server_error_leaves_the_connection_in_sync() {
    let full = || Act::Answer(Err(Error::new(ErrorKind::NoSpace, "the buffer is full")));
    let (_dir, fake, _, file) = start(World::new(at(2, full))).await;
    let error = file.pwrite(0, &pattern(640 << 10)).await.unwrap_err();
    assert_eq!(error.to_string(), "cannot write /x: the buffer is full");
    assert!(fake.world.count("Write") < 10, "the rest is not sent");
    file.pwrite(0, &pattern(640 << 10)).await.unwrap();
    assert!(*fake.world.file.lock().unwrap() == pattern(640 << 10));
    assert_eq!(fake.world.count("hello Data"), 1);
}

#[tokio::test]
async fn cancelled_transfer_closes_its_connection() {
    let (_dir, fake, _, file) = start(World::new(at(1, || Act::Silence))).await;
    file.pwrite(0, &pattern(1000)).await.unwrap();
    let mut back = vec![0; 1000];
    tokio::select! {
        _ = file.pread(0, &mut back) => panic!("the server does not answer"),
        () = fake.world.wait_for_request("Read", 1) => {}
    }
    fake.world.wait_for_request("end Data", 1).await;
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 1000);
    assert!(back == pattern(1000));
    assert_eq!(fake.world.count("hello Data"), 2);
}

#[tokio::test]
async fn transfer_to_a_silent_server_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        |channel: Channel, _: &Request| if channel == Channel::Data { Act::Silence } else { Act::Serve };
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let config = ClientConfig { request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    let error = file.pwrite(0, b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert_eq!(file.pread(0, &mut [0]).await.unwrap_err().kind(), ErrorKind::TimedOut);
    let error = file.append(b"x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.to_string().contains("outcome is unknown"), "{error}");
}

#[tokio::test]
async fn transfers_queued_at_a_silent_server_time_out_together() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        |channel: Channel, _: &Request| if channel == Channel::Data { Act::Silence } else { Act::Serve };
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let impatient = |seconds| ClientConfig {
        data_connections: 1,
        request_timeout: Duration::from_secs(seconds),
        ..fake.config()
    };
    let (client, patient) =
        (Client::connect(impatient(2)).await.unwrap(), Client::connect(impatient(6)).await.unwrap());
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    let other = patient.open("/x", OpenOptions::WRITE).await.unwrap();
    let all = async {
        tokio::join!(file.pwrite(0, b"a"), file.pwrite(1, b"b"), file.pwrite(2, b"c"), file.pwrite(3, b"d"))
    };
    let (a, b, c, d) = tokio::select! {
        biased;
        all = all => all,
        _ = other.pwrite(0, b"x") => panic!("a client that has three times the patience gave up before"),
    };
    for error in [a, b, c, d].map(Result::unwrap_err) {
        assert!(error.kind().is_no_answer() && error.to_string().contains("no answer within 2s"), "{error}");
    }
}

#[tokio::test]
async fn transfers_queued_at_a_slow_server_succeed() {
    let dir = tempfile::tempdir().unwrap();
    let script = |channel: Channel, request: &Request| match (channel, request) {
        (Channel::Data, Request::Write { at: At::Offset(offset), .. }) => {
            Act::Later(700, Ok(forebay_wire::Reply::Written { offset: *offset }))
        }
        _ => Act::Serve,
    };
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let config =
        ClientConfig { data_connections: 1, request_timeout: Duration::from_secs(2), ..fake.config() };
    let client = Client::connect(config).await.unwrap();
    let file = client.open("/x", OpenOptions::WRITE).await.unwrap();
    // Each write takes a third of the timeout; the last one waits longer than all of it.
    let (a, b, c, d, e) = tokio::join!(
        file.pwrite(0, b"a"),
        file.pwrite(1, b"b"),
        file.pwrite(2, b"c"),
        file.pwrite(3, b"d"),
        file.pwrite(4, b"e")
    );
    [a, b, c, d, e].into_iter().for_each(|written| written.unwrap());
}

#[tokio::test]
async fn offsets_beyond_the_maximum_file_size_are_refused() {
    let (_dir, fake, _, file) = start(World::new(|_, _| Act::Serve)).await;
    for offset in [i64::MAX as u64, u64::MAX] {
        assert_eq!(file.pwrite(offset, b"x").await.unwrap_err().kind(), ErrorKind::TooLarge);
        assert_eq!(file.pread(offset, &mut [0]).await.unwrap_err().kind(), ErrorKind::TooLarge);
    }
    assert_eq!(fake.world.count("Write") + fake.world.count("Read"), 0);
}

#[tokio::test]
async fn append_only_file_refuses_other_writes() {
    let ends = |_: Channel, request: &Request| match request {
        Request::Write { at: At::Offset(_), .. } => Act::Close,
        _ => Act::Serve,
    };
    let (_dir, _fake, client, _) = start(World::new(ends)).await;
    let file = client.open("/x", OpenOptions::APPEND).await.unwrap();
    assert_eq!(file.append(b"x").await.unwrap(), 0);
    assert_eq!(file.pwrite(0, b"x").await.unwrap_err().kind(), ErrorKind::BadHandle);
}
