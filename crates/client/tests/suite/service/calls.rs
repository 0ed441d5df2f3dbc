//! Every client call, over both kinds of socket.

use super::world::{By, World, pattern};
use forebay_client::{Client, Listing, OpenOptions};
use forebay_model::{ErrorKind, FileKind, SetTime, Time};
use forebay_wire::{RenameMode, XattrMode};

fn kind<T>(result: forebay_model::Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.kind(),
    }
}

async fn bytes_of_a_file(client: &Client) {
    let file = client.open("/f", OpenOptions::CREATE_NEW).await.unwrap();
    assert_eq!(kind(client.open("/f", OpenOptions::CREATE_NEW).await), ErrorKind::Exists);
    for (offset, len) in [(0, 1), (1, 4095), (4096, 1 << 20), (2 << 20, (4 << 20) + 17), (7 << 20, 9 << 20)] {
        let data = pattern(offset, len);
        file.pwrite(offset, &data).await.unwrap();
        let mut back = vec![0; len];
        assert_eq!(file.pread(offset, &mut back).await.unwrap(), len);
        assert!(back == data, "{len} bytes at {offset}");
    }
    assert_eq!(file.stat().await.unwrap().size, 16 << 20);
    let mut hole = vec![1; 1000];
    assert_eq!(file.pread((1 << 20) + 4096, &mut hole).await.unwrap(), 1000);
    assert!(hole.iter().all(|&byte| byte == 0));
    file.punch(0, 100).await.unwrap();
    file.truncate(150).await.unwrap();
    file.truncate(200).await.unwrap();
    let mut back = vec![1; 300];
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 200);
    assert!(back[..100].iter().all(|&byte| byte == 0) && back[150..200].iter().all(|&byte| byte == 0));
    assert!(back[100..150] == pattern(1, 4095)[99..149]);
    file.sync().await.unwrap();
    assert_eq!(file.append(b"end").await.unwrap(), 200);
    client.truncate("/f", 1).await.unwrap();
    assert_eq!(file.append(&[]).await.unwrap(), 1);
    file.close().await.unwrap();
    let file = client.open("/f", OpenOptions::READ).await.unwrap();
    assert_eq!(kind(file.pwrite(0, b"x").await), ErrorKind::BadHandle);
    client.unlink("/f").await.unwrap();
    assert_eq!(file.pread(0, &mut back).await.unwrap(), 1, "an open file outlives its name");
}

async fn names(client: &Client) {
    client.mkdir("/d", 0o755).await.unwrap();
    client.mkdir("d/e/", 0o755).await.unwrap();
    assert_eq!(kind(client.mkdir("/d", 0o755).await), ErrorKind::Exists);
    for name in ["a", "b", "c"] {
        client.open(format!("/d/{name}"), OpenOptions::CREATE).await.unwrap().close().await.unwrap();
    }
    client.rename("/d/a", "/d/e/a", RenameMode::Replace).await.unwrap();
    assert_eq!(kind(client.rename("/d/b", "/d/c", RenameMode::NoReplace).await), ErrorKind::Exists);
    client.rename("/d/b", "/d/e", RenameMode::Exchange).await.unwrap();
    assert_eq!(client.stat("/d/b").await.unwrap().kind, FileKind::Directory);
    assert_eq!(kind(client.rename("/d", "/d/b/x", RenameMode::Replace).await), ErrorKind::Invalid);
    let linked = client.link("/d/c", "/d/hard").await.unwrap();
    assert_eq!(linked.links, 2);
    let mut all = client.read_dir("/d", Listing::Attributes).await.unwrap().all().await.unwrap();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    let seen: Vec<_> = all.iter().map(|entry| (entry.name.to_string(), entry.kind)).collect();
    let expected =
        [("b", FileKind::Directory), ("c", FileKind::File), ("e", FileKind::File), ("hard", FileKind::File)];
    assert_eq!(seen, expected.map(|(name, kind)| (name.to_owned(), kind)));
    assert!(all.iter().all(|entry| entry.attr.as_ref().is_some_and(|attr| attr.id == entry.file)));
    assert_eq!(kind(client.rmdir("/d").await), ErrorKind::NotEmpty);
    assert_eq!(kind(client.unlink("/d/b").await), ErrorKind::IsDirectory);
    assert_eq!(kind(client.rmdir("/d/c").await), ErrorKind::NotDirectory);
    for name in ["/d/b/a", "/d/c", "/d/e", "/d/hard"] {
        client.unlink(name).await.unwrap();
    }
    client.rmdir("/d/b").await.unwrap();
    client.rmdir("/d").await.unwrap();
    assert_eq!(kind(client.stat("/d").await), ErrorKind::NotFound);
}

async fn links(client: &Client) {
    client.mkdir("/dir", 0o755).await.unwrap();
    client.symlink("../dir/target", "/dir/l").await.unwrap();
    client.symlink("/dir", "/abs").await.unwrap();
    assert_eq!(client.read_link("/abs/l").await.unwrap(), b"../dir/target");
    assert_eq!(kind(client.stat("/abs/l").await), ErrorKind::NotFound);
    assert_eq!(client.lstat("/abs/l").await.unwrap().kind, FileKind::Symlink);
    let file = client.open("/abs/l", OpenOptions::CREATE).await.unwrap();
    file.pwrite(0, b"through").await.unwrap();
    assert_eq!(client.stat("/dir/target").await.unwrap().size, 7);
    let nofollow = OpenOptions { nofollow: true, ..OpenOptions::READ };
    assert_eq!(kind(client.open("/dir/l", nofollow).await), ErrorKind::TooManyLinks);
    assert_eq!(kind(client.open("/dir/l", OpenOptions::CREATE_NEW).await), ErrorKind::Exists);
    client.symlink("loop", "/loop").await.unwrap();
    assert_eq!(kind(client.stat("/loop").await), ErrorKind::TooManyLinks);
    assert_eq!(kind(client.open("/loop", OpenOptions::CREATE).await), ErrorKind::TooManyLinks);
    assert_eq!(client.lstat("/abs/").await.unwrap().kind, FileKind::Directory);
    for name in ["/dir/l", "/dir/target", "/abs", "/loop"] {
        client.unlink(name).await.unwrap();
    }
    client.rmdir("/dir").await.unwrap();
}

async fn attributes(client: &Client) {
    client.open("/x", OpenOptions::CREATE).await.unwrap().close().await.unwrap();
    assert_eq!(client.chmod("/x", 0o640).await.unwrap().mode, 0o640);
    let time = Time { secs: 1_000_000_000, nanos: 7 };
    let attr = client.utimens("/x", None, Some(SetTime::To(time))).await.unwrap();
    assert_eq!(attr.mtime, time);
    let owner = client.stat("/x").await.unwrap();
    let attr = client.chown("/x", Some(owner.uid), Some(owner.gid)).await.unwrap();
    assert_eq!((attr.uid, attr.gid), (owner.uid, owner.gid));
    client.set_xattr("/x", "user.a", b"1", XattrMode::Create).await.unwrap();
    assert_eq!(kind(client.set_xattr("/x", "user.a", b"2", XattrMode::Create).await), ErrorKind::Exists);
    client.set_xattr("/x", "user.a", b"22", XattrMode::Replace).await.unwrap();
    assert_eq!(client.get_xattr("/x", "user.a").await.unwrap(), b"22");
    let names = client.list_xattr("/x").await.unwrap();
    assert_eq!(names.iter().map(ToString::to_string).collect::<Vec<_>>(), ["user.a"]);
    client.remove_xattr("/x", "user.a").await.unwrap();
    assert_eq!(kind(client.get_xattr("/x", "user.a").await), ErrorKind::NoAttribute);
    client.unlink("/x").await.unwrap();
    let error = client.stat("/x").await.unwrap_err();
    assert!(error.to_string().starts_with("cannot stat /x: "), "{error}");
}

async fn the_service(client: &Client) {
    client.ping().await.unwrap();
    client.sync_all().await.unwrap();
    assert!(client.statfs().await.unwrap().capacity > 0);
    let status = client.status().await.unwrap();
    assert_eq!(status.sessions, 1);
    assert_eq!(status.jobs.iter().map(|job| &job.job.label[..]).collect::<Vec<_>>(), ["7"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_works_over_both_sockets() {
    for by in [By::Unix, By::Tcp] {
        let world = World::new(64);
        let client = world.client(by).await;
        bytes_of_a_file(&client).await;
        names(&client).await;
        links(&client).await;
        attributes(&client).await;
        the_service(&client).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_listings_and_names_work() {
    let world = World::new(32);
    let client = world.client(By::Unix).await;
    let name = |i: usize| format!("{}{i:04}", "n".repeat(251));
    let mut tasks = tokio::task::JoinSet::new();
    for i in 0..3000 {
        let client = client.clone();
        tasks.spawn(async move {
            client.open(format!("/{}", name(i)), OpenOptions::CREATE).await.unwrap().close().await
        });
    }
    while let Some(closed) = tasks.join_next().await {
        closed.unwrap().unwrap();
    }
    let all = client.read_dir("/", Listing::Attributes).await.unwrap().all().await.unwrap();
    let mut seen: Vec<_> = all.iter().map(|entry| entry.name.to_string()).collect();
    seen.sort();
    assert!(seen == (0..3000).map(name).collect::<Vec<_>>());
    assert_eq!(
        kind(client.open(format!("/{}", "x".repeat(256)), OpenOptions::CREATE).await),
        ErrorKind::NameTooLong
    );
    assert_eq!(kind(client.stat(format!("/{}", "y/".repeat(2048))).await), ErrorKind::NameTooLong);
}

#[test]
fn the_blocking_client_does_the_same() {
    let world = World::new(64);
    let client = forebay_client::blocking::Client::connect(world.client_config(By::Tcp)).unwrap();
    let data = pattern(3, 10 << 20);
    let file = client.open("/f", OpenOptions::CREATE).unwrap();
    std::thread::scope(|scope| {
        for (index, part) in data.chunks(1 << 20).enumerate() {
            let file = &file;
            scope.spawn(move || file.pwrite((index << 20) as u64, part).unwrap());
        }
    });
    let mut back = vec![0; data.len()];
    assert_eq!(file.pread(0, &mut back).unwrap(), data.len());
    assert!(back == data);
    file.close().unwrap();
    let names: Vec<_> =
        client.read_dir("/", Listing::Names).unwrap().map(|entry| entry.unwrap().name).collect();
    assert_eq!(names.len(), 1);
    assert_eq!(client.welcome().unwrap().uid, client.stat("/f").unwrap().uid);
    client.shutdown().unwrap();
}
