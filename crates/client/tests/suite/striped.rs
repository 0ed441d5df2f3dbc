//! Files that are striped over several servers.

use crate::cluster::{Trio, id};
use crate::fake::{Act, attr, token};
use forebay_client::{File, OpenOptions};
use forebay_model::{Attr, ErrorKind, FileId, FileKind, Layout, ServerId};
use forebay_wire::{Reply, Request, Token};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const STRIPE: u64 = 1000;

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8 | 1).collect()
}

/// A file of server 2 that is striped over servers 2, 3 and 1; the test sets its size.
fn striped(layout: Layout, size: Arc<AtomicU64>) -> Trio {
    let file = id(2, 7);
    let trio = Trio::new(move |me, _, request| {
        let attr = Attr { id: file, size: size.load(Ordering::Relaxed), ..attr() };
        let reply = match request {
            Request::Open { .. } => {
                let token = Token { file, ..token() };
                Reply::Opened { token, attr, layout: layout.clone(), created: false }
            }
            Request::GetAttr { file: FileId(asked) } if *asked == file.0 && me == ServerId(2) => {
                Reply::Attr(attr)
            }
            _ => return None,
        };
        Some(Act::Answer(Ok(reply)))
    });
    trio.put(FileId::ROOT, "x", file, FileKind::File);
    trio
}

fn three() -> Layout {
    Layout { servers: [2, 3, 1].map(ServerId).to_vec(), stripe: STRIPE }
}

async fn open(trio: &Trio) -> File {
    trio.client().await.open("/x", OpenOptions::WRITE).await.unwrap()
}

/// The bytes of the file that belong on a server.
fn held(trio: &Trio, server: u16) -> Vec<u8> {
    trio.world(server).file.lock().unwrap().clone()
}

#[tokio::test]
async fn striped_data_goes_to_the_servers_of_the_layout() {
    for (offset, len) in [(0, 1), (0, 1000), (999, 2), (123, 10_007), (2999, 1), (5000, 3000), (1500, 64_000)]
    {
        let size = Arc::new(AtomicU64::new(0));
        let trio = striped(three(), size.clone());
        let file = open(&trio).await;
        let data = pattern(len);
        file.pwrite(offset, &data).await.unwrap();
        let end = offset + len as u64;
        size.store(end, Ordering::Relaxed);
        for at in 0..end {
            let owner = three().server_at(at).0;
            for server in 1..=3 {
                let byte = held(&trio, server).get(at as usize).copied().unwrap_or_default();
                let expected = if server == owner && at >= offset { data[(at - offset) as usize] } else { 0 };
                assert_eq!(byte, expected, "byte {at} on server {server}");
            }
        }
        let mut back = vec![0xee; end as usize + 5000];
        assert_eq!(file.pread(0, &mut back).await.unwrap(), end as usize);
        assert!(back[..offset as usize].iter().all(|byte| *byte == 0), "nothing was written there");
        assert!(back[offset as usize..end as usize] == data);
        assert_eq!(file.pread(end, &mut back).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn missing_bytes_before_the_end_read_as_zeros() {
    let size = Arc::new(AtomicU64::new(10_500));
    let trio = striped(three(), size.clone());
    let file = open(&trio).await;
    file.pwrite(4500, &pattern(100)).await.unwrap();
    let mut back = vec![0xee; 20_000];
    for (offset, expected) in [(0, 10_500), (4500, 6000), (9999, 501), (10_500, 0), (15_000, 0)] {
        assert_eq!(file.pread(offset, &mut back).await.unwrap(), expected, "{offset}");
        for (index, byte) in back[..expected].iter().enumerate() {
            let at = offset as usize + index;
            let written = if (4500..4600).contains(&at) { pattern(100)[at - 4500] } else { 0 };
            assert_eq!(*byte, written, "{at}");
        }
    }
}

#[tokio::test]
async fn errors_after_the_end_of_the_file_are_ignored() {
    let size = Arc::new(AtomicU64::new(500));
    let lost = Arc::new(Mutex::new(true));
    let (counted, broken) = (size.clone(), lost.clone());
    let file = id(2, 7);
    let trio = Trio::new(move |me, _, request| match request {
        Request::Open { .. } => {
            let token = Token { file, ..token() };
            let reply = Reply::Opened { token, attr: attr(), layout: three(), created: false };
            Some(Act::Answer(Ok(reply)))
        }
        Request::GetAttr { .. } => Some(Act::Answer(Ok(Reply::Attr(Attr {
            id: file,
            size: counted.load(Ordering::Relaxed),
            ..attr()
        })))),
        Request::Read { .. } if me == ServerId(3) && *broken.lock().unwrap() => {
            Some(Act::Answer(Err(ErrorKind::Io.into())))
        }
        _ => None,
    });
    trio.put(FileId::ROOT, "x", file, FileKind::File);
    let file = open(&trio).await;
    file.pwrite(0, &pattern(500)).await.unwrap();
    let mut back = vec![0; 2500];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 500, "server 3 has nothing of it");
    size.store(1500, Ordering::Relaxed);
    assert_eq!(file.pread(0, &mut back).await.unwrap_err().kind(), ErrorKind::Io);
    *lost.lock().unwrap() = false;
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 1500);
}

#[tokio::test]
async fn authority_orders_changes_of_the_file_length() {
    let trio = striped(three(), Arc::default());
    let file = open(&trio).await;
    assert_eq!(file.append(&pattern(1200)).await.unwrap(), 0);
    assert_eq!(held(&trio, 2), pattern(1200), "the authority knows where it goes");
    file.truncate(10).await.unwrap();
    file.extend(20).await.unwrap();
    file.punch(0, 5).await.unwrap();
    let count = |word: &str| [1, 2, 3].map(|server| trio.world(server).count(word));
    for word in ["Write", "Truncate", "Extend", "Punch"] {
        assert_eq!(count(word), [0, 1, 0], "{word}");
    }
    file.sync().await.unwrap();
    assert_eq!(count("Sync"), [1, 1, 1]);
    file.close().await.unwrap();
    assert_eq!(count("Close"), [1, 1, 1]);
}

#[tokio::test]
async fn file_with_all_data_on_another_server_is_used_there() {
    let trio = striped(Layout::whole(ServerId(3), STRIPE), Arc::default());
    let file = open(&trio).await;
    file.pwrite(500, &pattern(5000)).await.unwrap();
    let mut back = vec![0; 5500];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 5500);
    assert!(back[500..5500] == pattern(5000));
    file.append(b"xy").await.unwrap();
    file.truncate(6000).await.unwrap();
    file.close().await.unwrap();
    let count = |word: &str| [1, 2, 3].map(|server| trio.world(server).count(word));
    assert_eq!(count("Write"), [0, 1, 1], "the server with the inode appends");
    assert_eq!(count("Truncate"), [0, 1, 0]);
    assert_eq!(count("Close"), [0, 1, 1]);
}

#[tokio::test]
async fn invalid_layouts_are_refused() {
    // A message with such a layout cannot be decoded, or the layout is refused after that.
    let invalid = ["cannot decode a message", "an invalid layout"];
    for (layout, messages) in [
        (Layout { servers: Vec::new(), stripe: 1 }, invalid),
        (Layout { servers: vec![ServerId(1), ServerId(2)], stripe: 0 }, invalid),
        (Layout::whole(ServerId(8), 1), ["server 8 is not one of this service"; 2]),
    ] {
        let trio = striped(layout, Arc::default());
        let error =
            trio.client().await.open("/x", OpenOptions::READ).await.map(drop).unwrap_err().to_string();
        assert!(messages.iter().any(|message| error.contains(message)), "{error}");
    }
}

#[tokio::test]
async fn striped_write_survives_a_broken_connection() {
    let broken = AtomicU64::new(0);
    let file = id(2, 7);
    let trio = Trio::new(move |me, _, request| match request {
        Request::Open { .. } => {
            let token = Token { file, ..token() };
            Some(Act::Answer(Ok(Reply::Opened { token, attr: attr(), layout: three(), created: false })))
        }
        Request::Write { .. } if me == ServerId(3) && broken.fetch_add(1, Ordering::Relaxed) == 2 => {
            Some(Act::ServeAndClose)
        }
        _ => None,
    });
    trio.put(FileId::ROOT, "x", file, FileKind::File);
    let file = open(&trio).await;
    let data = pattern(20_000);
    file.pwrite(0, &data).await.unwrap();
    let mut back = vec![0; data.len()];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), data.len());
    assert!(back == data);
}

#[tokio::test]
async fn file_rejected_by_a_server_is_reopened_at_its_authority() {
    let doubts = AtomicU64::new(0);
    let file = id(2, 7);
    let trio = Trio::new(move |me, _, request| match request {
        Request::Open { .. } => {
            let token = Token { file, ..token() };
            Some(Act::Answer(Ok(Reply::Opened { token, attr: attr(), layout: three(), created: false })))
        }
        Request::Write { .. } if me == ServerId(1) && doubts.fetch_add(1, Ordering::Relaxed) == 0 => {
            Some(Act::Answer(Err(ErrorKind::Stale.into())))
        }
        Request::Write { .. } if me == ServerId(2) => Some(Act::Answer(Err(ErrorKind::Stale.into()))),
        _ => None,
    });
    trio.put(FileId::ROOT, "x", file, FileKind::File);
    let file = open(&trio).await;
    file.pwrite(2000, &pattern(1000)).await.unwrap();
    assert_eq!([1, 2, 3].map(|server| trio.world(server).count("Reopen")), [0, 1, 0]);
    let lost = file.pwrite(0, b"x").await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Stale, "the authority itself has no doubts");
}
