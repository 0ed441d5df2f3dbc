//! A server that has lost its mind: an error, never a panic or a wait without end.

use crate::fake::{Act, Fake, World};
use forebay_client::{Client, ClientConfig, OpenOptions};
use forebay_dice::{Dice, Seeded, rounds};
use forebay_model::ErrorKind;
use forebay_wire::{Answer, Channel, FrameKind, Reply, Request, frame};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CASES: u64 = 150;

/// An answer to somebody, bent a little; or noise.
fn noise(dice: &mut Dice) -> Vec<u8> {
    let mut out = Vec::new();
    let answers: [Answer; 4] = [
        Ok(Reply::Done),
        Ok(Reply::Data),
        Ok(Reply::Written { offset: dice.next() }),
        Err(ErrorKind::NoSpace.into()),
    ];
    let (id, payload) = (dice.below(6), dice.below(3) as u32 * 700);
    frame(&mut out, FrameKind::Answer, id, &answers[dice.index(4)], payload).unwrap();
    out.resize(out.len() + payload as usize, 0x55);
    match dice.below(4) {
        0 => {}
        1 => {
            let at = dice.index(out.len());
            out[at] ^= 1 << dice.below(8);
        }
        2 => out.truncate(dice.index(out.len())),
        _ => out = (0..dice.below(200)).map(|_| dice.next() as u8).collect(),
    }
    out
}

#[tokio::test]
async fn a_wrong_answer_is_named() {
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
        assert!(error.to_string().contains("with something else"), "{error}");
    }
}

#[tokio::test]
async fn an_answer_to_nobody_breaks_the_connection() {
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
    assert!(error.to_string().contains("answered 999, which was not asked"), "{error}");
    client.ping().await.expect("a new connection serves");
}

#[tokio::test]
async fn random_bytes_from_the_server_never_panic() {
    let seeded = Seeded::new();
    for case in rounds(CASES) {
        let dice = Mutex::new(seeded.dice(case));
        let script = move |channel: Channel, request: &Request| {
            let mut dice = dice.lock().unwrap();
            match (channel, request) {
                (_, Request::Open { .. } | Request::Ping) => Act::Serve,
                _ if dice.below(3) == 0 => Act::Serve,
                _ => Act::Raw(noise(&mut dice)),
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
        let timeout = Duration::from_millis(30);
        let config = ClientConfig { request_timeout: timeout, connect_timeout: timeout, ..fake.config() };
        let work = tokio::spawn(async move {
            let client = Client::connect(config).await?;
            let _ = client.stat("/x").await;
            let file =
                client.by_id().open(forebay_model::FileId(7), forebay_model::Access::BOTH, false).await?;
            let _ = file.pwrite(0, &[1; 3000]).await;
            let _ = file.pread(0, &mut [0; 3000]).await;
            let _ = file.append(&[2; 10]).await;
            let _ = client.read_link("/x").await;
            Ok::<(), forebay_model::Error>(())
        });
        assert!(work.await.is_ok(), "case {case}");
    }
}
