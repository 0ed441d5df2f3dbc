//! Paths, symbolic links and errors that name them.

use crate::fake::{Act, Fake, World};
use forebay_client::{Client, Listing, OpenOptions};
use forebay_model::{Error, ErrorKind, FileId, FileKind, Name};
use forebay_wire::{Channel, Entry, RenameMode, Reply, Request};
use std::sync::Arc;

async fn start(
    script: impl Fn(Channel, &Request) -> Act + Send + Sync + 'static,
) -> (tempfile::TempDir, Fake, Client) {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), Arc::new(World::new(script)));
    let client = Client::connect(fake.config()).await.unwrap();
    (dir, fake, client)
}

fn link(dir: u64, target: &str, rest: &str) -> Act {
    let (target, rest) = (target.as_bytes().to_vec(), rest.as_bytes().to_vec());
    Act::Answer(Ok(Reply::Link { dir: FileId(dir), target, rest }))
}

#[tokio::test]
async fn relative_symlinks_start_at_their_directory() {
    let script = |_: Channel, request: &Request| match request {
        Request::Walk { dir, path, .. } => match (dir.0, &path[..]) {
            (1, b"/a/l/z") => link(20, "../b", "z"),
            (20, b"../b/z") => link(30, "/c", ""),
            (1, b"/c") => Act::Serve,
            _ => Act::Answer(Err(ErrorKind::NotFound.into())),
        },
        _ => Act::Serve,
    };
    let (_dir, fake, client) = start(script).await;
    client.stat("/a/l/z").await.unwrap();
    assert_eq!(fake.world.count("Walk"), 3);
}

#[tokio::test]
async fn symlink_loops_fail() {
    let script = |_: Channel, request: &Request| match request {
        Request::Walk { .. } => link(1, "self", ""),
        Request::Create { .. } => Act::Answer(Err(ErrorKind::TooManyLinks.into())),
        _ => Act::Serve,
    };
    let (_dir, fake, client) = start(script).await;
    let error = client.stat("/self").await.unwrap_err();
    assert_eq!(error.to_string(), "cannot stat /self: too many levels of symbolic links");
    assert_eq!(fake.world.count("Walk"), 41);
    let error = client.open("/self", OpenOptions::CREATE).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooManyLinks);
    let long = "x/".repeat(1500);
    let script = move |_: Channel, request: &Request| match request {
        Request::Walk { path, .. } => link(1, &long, std::str::from_utf8(path).unwrap()),
        _ => Act::Serve,
    };
    let (_dir, _fake, client) = start(script).await;
    assert_eq!(client.stat("/long").await.unwrap_err().kind(), ErrorKind::NameTooLong);
}

#[tokio::test]
async fn create_follows_a_symlink_to_its_target() {
    let script = |_: Channel, request: &Request| match request {
        Request::Create { dir: FileId(1), name, .. } if name.as_bytes() == b"l" => {
            Act::Answer(Err(ErrorKind::TooManyLinks.into()))
        }
        Request::Walk { path, .. } if path == b"l" => link(1, "/d/new", ""),
        Request::Walk { path, .. } if path != b"/d/" => Act::Answer(Err(ErrorKind::NotFound.into())),
        Request::Create { dir: FileId(7), name, .. } if name.as_bytes() == b"new" => Act::Serve,
        Request::Create { .. } => Act::Answer(Err(ErrorKind::Io.into())),
        _ => Act::Serve,
    };
    let (_dir, _fake, client) = start(script).await;
    client.open("/l", OpenOptions::CREATE).await.unwrap();
    for options in [
        OpenOptions { nofollow: true, ..OpenOptions::CREATE },
        OpenOptions { nofollow: true, ..OpenOptions::CREATE_NEW },
    ] {
        let error = client.open("/l", options).await.map(drop).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /l: too many levels of symbolic links");
    }
}

#[tokio::test]
async fn errors_name_the_path() {
    let denied = |_: Channel, _: &Request| Act::Answer(Err(ErrorKind::AccessDenied.into()));
    let (_dir, _fake, client) = start(denied).await;
    let text = |error: Error| error.to_string();
    let open = client.open("/run1/x", OpenOptions::READ).await.map(drop);
    for (error, expected) in [
        (text(open.unwrap_err()), "cannot open /run1/x: permission denied"),
        (text(client.stat("a").await.unwrap_err()), "cannot stat a: permission denied"),
        (text(client.mkdir("/d", 0).await.unwrap_err()), "cannot make directory /d: permission denied"),
        (
            text(client.rename("/a", "/b", RenameMode::Replace).await.unwrap_err()),
            "cannot move /a to /b: permission denied",
        ),
        (text(client.chmod("/x", 0).await.unwrap_err()), "cannot change /x: permission denied"),
        (text(client.unlink("/x").await.unwrap_err()), "cannot remove /x: permission denied"),
    ] {
        assert_eq!(error, expected);
    }
}

#[tokio::test]
async fn paths_without_a_last_name_are_refused() {
    let (_dir, fake, client) = start(|_, _| Act::Serve).await;
    let create = |path: &'static str| client.open(path, OpenOptions::CREATE);
    assert_eq!(client.mkdir("/", 0).await.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(client.mkdir("/a/..", 0).await.unwrap_err().kind(), ErrorKind::Exists);
    assert_eq!(client.rmdir("/a/.").await.unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(client.unlink("/a/..").await.unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(client.unlink("/a/").await.unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(create("/a/").await.map(drop).unwrap_err().kind(), ErrorKind::IsDirectory);
    assert_eq!(create("..").await.map(drop).unwrap_err().kind(), ErrorKind::IsDirectory);
    let moved = client.rename("/a", "/b/", RenameMode::Replace).await;
    assert_eq!(moved.unwrap_err().kind(), ErrorKind::NotDirectory);
    assert_eq!(client.stat("x".repeat(5000)).await.unwrap_err().kind(), ErrorKind::NameTooLong);
    assert_eq!(client.mkdir("/a\0b", 0).await.unwrap_err().kind(), ErrorKind::Invalid);
    let nothing = OpenOptions { read: false, ..OpenOptions::READ };
    let truncate = OpenOptions { truncate: true, ..OpenOptions::READ };
    for options in [nothing, truncate] {
        assert_eq!(client.open("/x", options).await.map(drop).unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(fake.world.count("Rename") + fake.world.count("Create") + fake.world.count("MakeDir"), 0);
}

#[tokio::test]
async fn listings_are_fetched_in_pages() {
    let script = |_: Channel, request: &Request| match request {
        Request::Walk { .. } => Act::Answer(Ok(Reply::Found(forebay_model::Attr {
            kind: FileKind::Directory,
            ..crate::fake::attr()
        }))),
        Request::ReadDir { cookie, .. } => {
            let entry = |cookie: u64| Entry {
                name: Name::new(format!("f{cookie}")).unwrap(),
                file: FileId(cookie),
                kind: FileKind::File,
                cookie,
                attr: None,
            };
            let entries = (cookie + 1..=cookie + 3).map(entry).collect();
            let next = (*cookie < 9).then_some(cookie + 3);
            Act::Answer(Ok(Reply::Entries { entries, next }))
        }
        _ => Act::Serve,
    };
    let (_dir, fake, client) = start(script).await;
    let all = client.read_dir("/d", Listing::Names).await.unwrap().all().await.unwrap();
    let names: Vec<_> = all.iter().map(|entry| entry.name.to_string()).collect();
    assert_eq!(names, (1..=12).map(|i| format!("f{i}")).collect::<Vec<_>>());
    assert_eq!(fake.world.count("ReadDir"), 4);

    let circle = |_: Channel, request: &Request| match request {
        Request::ReadDir { .. } => Act::Answer(Ok(Reply::Entries { entries: Vec::new(), next: Some(0) })),
        _ => Act::Serve,
    };
    let (_dir, _fake, client) = start(circle).await;
    let listed = client.read_dir("/", Listing::Attributes).await.unwrap().all().await;
    assert_eq!(listed.unwrap_err().kind(), ErrorKind::Protocol);
}
