//! Several servers: routing of requests, path lookup, and servers that are down or send invalid replies.

use crate::fake::{Act, Fake, World, attr, token};
use forebay_client::{Client, ClientConfig, Listing, OpenOptions, RenameMode};
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Layout, Member, Members, Name, ServerId};
use forebay_wire::{Answer, Channel, Entry, Reply, Request, Token};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The namespace that all servers share: `(directory, name)` → file.
type Tree = Arc<Mutex<BTreeMap<(FileId, String), (FileId, FileKind)>>>;

/// A service of fake servers 1 to 3, each of which answers only the requests that belong to it.
pub(crate) struct Trio {
    dir: tempfile::TempDir,
    pub(crate) members: Members,
    pub(crate) tree: Tree,
    pub(crate) fakes: Vec<Option<Fake>>,
    worlds: Vec<Arc<World>>,
}

/// Returns an invalid reaction to a request, or `None` for the valid one.
pub(crate) type Instead = Arc<dyn Fn(ServerId, Channel, &Request) -> Option<Act> + Send + Sync>;

pub(crate) fn id(server: u16, count: u64) -> FileId {
    FileId::made_by(ServerId(server), count)
}

impl Trio {
    pub(crate) fn new(
        instead: impl Fn(ServerId, Channel, &Request) -> Option<Act> + Send + Sync + 'static,
    ) -> Trio {
        let dir = tempfile::tempdir().unwrap();
        let member = |n: u16| Member {
            server: ServerId(n),
            address: "tcp:127.0.0.1:9".to_owned(),
            socket: Some(dir.path().join(format!("{n}.sock")).display().to_string()),
        };
        let members = Members::new(1, (1..=3).map(member).collect()).unwrap();
        let (tree, instead): (Tree, Instead) = (Tree::default(), Arc::new(instead));
        let worlds = (1..=3).map(|n| world(ServerId(n), &members, &tree, &instead));
        let worlds: Vec<Arc<World>> = worlds.map(Arc::new).collect();
        let mut trio = Trio { dir, members, tree, fakes: Vec::new(), worlds };
        for n in 1..=3 {
            let fake = trio.fake(n);
            trio.fakes.push(Some(fake));
        }
        trio
    }

    fn fake(&self, n: u16) -> Fake {
        let socket = self.dir.path().join(format!("{n}.sock"));
        Fake::at(socket, self.worlds[usize::from(n) - 1].clone())
    }

    pub(crate) fn world(&self, n: u16) -> &World {
        &self.worlds[usize::from(n) - 1]
    }

    async fn stop(&mut self, n: u16) {
        self.fakes[usize::from(n) - 1].take().unwrap().stop().await;
    }

    fn start(&mut self, n: u16) {
        self.fakes[usize::from(n) - 1] = Some(self.fake(n));
    }

    pub(crate) fn config(&self) -> ClientConfig {
        ClientConfig {
            request_timeout: Duration::from_secs(5),
            ..self.fakes.iter().flatten().next().unwrap().config()
        }
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect(self.config()).await.unwrap()
    }

    pub(crate) fn put(&self, dir: FileId, name: &str, file: FileId, kind: FileKind) {
        self.tree.lock().unwrap().insert((dir, name.to_owned()), (file, kind));
    }

    fn home(&self, dir: FileId, name: &str) -> u16 {
        self.members.home(dir, &Name::new(name).unwrap()).0
    }

    /// A name in a directory whose home is the given server.
    fn name_at(&self, dir: FileId, server: u16) -> String {
        (0..).map(|n| format!("n{n}")).find(|name| self.home(dir, name) == server).unwrap()
    }

    fn request_count(&self) -> usize {
        let quiet =
            |word: &&String| !word.starts_with("hello") && !word.starts_with("end") && *word != "Ping";
        self.worlds.iter().map(|world| world.log().iter().filter(quiet).count()).sum()
    }
}

fn world(me: ServerId, members: &Members, tree: &Tree, instead: &Instead) -> World {
    let (list, tree, instead) = (members.clone(), tree.clone(), instead.clone());
    let script = move |channel: Channel, request: &Request| {
        if let Some(act) = instead(me, channel, request) {
            return act;
        }
        match answer(&list, me, &tree, request) {
            Some(answer) => Act::Answer(answer),
            None => Act::Serve,
        }
    };
    World { server: me, members: members.clone(), ..World::new(script) }
}

fn misdirected(me: ServerId, request: &Request) -> Answer {
    Err(Error::new(ErrorKind::Io, format!("server {me} must not receive {request:?}")))
}

fn opened(me: ServerId, file: FileId) -> Answer {
    let token = Token { file, ..token() };
    let (attr, layout) = (Attr { id: file, ..attr() }, Layout::whole(me, 4096));
    Ok(Reply::Opened { token, attr, layout, created: false })
}

fn answer(members: &Members, me: ServerId, tree: &Tree, request: &Request) -> Option<Answer> {
    let tree = tree.lock().unwrap();
    let find =
        |dir: FileId, name: &[u8]| tree.get(&(dir, String::from_utf8(name.to_vec()).unwrap())).copied();
    Some(match request {
        Request::Walk { dir, path, .. } => walk(members, me, find, *dir, path, request),
        Request::Jump { path, known, .. } => {
            let (prefix, rest) = path.split_at(usize::from(known.len));
            let mut dir = FileId::ROOT;
            for name in prefix.split(|&byte| byte == b'/') {
                dir = find(dir, name).map_or(FileId(0), |(file, _)| file);
            }
            if dir != known.dir {
                return Some(Ok(Reply::Elsewhere { dir: FileId::ROOT, rest: path.clone() }));
            }
            match rest {
                b"" => Ok(Reply::Elsewhere { dir, rest: Vec::new() }),
                rest => walk(members, me, find, dir, rest, request),
            }
        }
        Request::GetAttr { file } | Request::Open { file, .. } if members.authority(*file) != me => {
            misdirected(me, request)
        }
        Request::GetAttr { file } => {
            let kind = tree.values().find(|(found, _)| found == file).map(|(_, kind)| *kind);
            match kind {
                Some(kind) => Ok(Reply::Attr(Attr { id: *file, kind, ..attr() })),
                None => Err(ErrorKind::Stale.into()),
            }
        }
        Request::Open { file, .. } => opened(me, *file),
        Request::Create { dir, name, .. }
        | Request::MakeDir { dir, name, .. }
        | Request::Rename { dir, name, .. }
            if members.home(*dir, name) != me =>
        {
            misdirected(me, request)
        }
        Request::Create { dir, name, .. } => match find(*dir, name.as_bytes()) {
            Some((file, _)) if file.maker() != me => Ok(Reply::At { dir: *dir, file, rest: Vec::new() }),
            Some((file, _)) => opened(me, file),
            None => opened(me, FileId::made_by(me, 99)),
        },
        Request::ReadDir { dir, .. } => {
            let entries = tree.iter().filter_map(|((of, name), (file, kind))| {
                let name = Name::new(name.as_str()).unwrap();
                (of == dir && members.home(*dir, &name) == me).then(|| Entry {
                    cookie: 1 + name.as_bytes()[1..]
                        .iter()
                        .fold(0, |sum, digit| 10 * sum + u64::from(*digit)),
                    name,
                    file: *file,
                    kind: *kind,
                    attr: None,
                })
            });
            let mut entries: Vec<Entry> = entries.collect();
            entries.sort_by_key(|entry| entry.cookie);
            Ok(Reply::Entries { entries, next: None })
        }
        _ => return None,
    })
}

/// Walks for as long as this server is the home of the next name.
fn walk(
    members: &Members,
    me: ServerId,
    find: impl Fn(FileId, &[u8]) -> Option<(FileId, FileKind)>,
    mut dir: FileId,
    path: &[u8],
    request: &Request,
) -> Answer {
    let mut parts: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|part| !part.is_empty()).collect();
    parts.reverse();
    let first = parts.len();
    while let Some(part) = parts.pop() {
        let rest: Vec<u8> = parts.iter().rev().copied().collect::<Vec<_>>().join(&b'/');
        if members.home(dir, &Name::new(part).unwrap()) != me {
            if parts.len() + 1 == first {
                return misdirected(me, request);
            }
            parts.push(part);
            let rest = parts.iter().rev().copied().collect::<Vec<_>>().join(&b'/');
            return Ok(Reply::Elsewhere { dir, rest });
        }
        match find(dir, part) {
            None => return Err(ErrorKind::NotFound.into()),
            Some((file, FileKind::Directory)) if !parts.is_empty() => dir = file,
            Some((file, _)) if members.authority(file) != me => return Ok(Reply::At { dir, file, rest }),
            Some((file, kind)) => return Ok(Reply::Found(Attr { id: file, kind, ..attr() })),
        }
    }
    match members.authority(dir) == me {
        true => Ok(Reply::Found(Attr { id: dir, kind: FileKind::Directory, ..attr() })),
        false => misdirected(me, request),
    }
}

/// Directories `a/b/c` with a file in each, with inodes on all servers.
fn populate(trio: &Trio) -> Vec<String> {
    let mut paths = Vec::new();
    let (mut dir, mut prefix) = (FileId::ROOT, String::new());
    for (depth, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        for n in 0..6_u16 {
            let file = format!("f{n}");
            trio.put(dir, &file, id(1 + n % 3, 100 * depth as u64 + u64::from(n)), FileKind::File);
            paths.push(format!("{prefix}/{file}"));
        }
        let below = id(1 + depth as u16 % 3, 1000 + depth as u64);
        trio.put(dir, name, below, FileKind::Directory);
        prefix = format!("{prefix}/{name}");
        paths.push(prefix.clone());
        dir = below;
    }
    paths
}

#[tokio::test]
async fn known_paths_are_resolved_with_one_request() {
    let trio = Trio::new(|_, _, _| None);
    let client = trio.client().await;
    let paths = populate(&trio);
    for path in &paths {
        client.stat(path).await.unwrap();
        client.open(path, OpenOptions::READ).await.unwrap().close().await.unwrap();
    }
    for path in &paths {
        let before = trio.request_count();
        let attr = client.stat(path).await.unwrap();
        // Attributes of a file whose name moved to another server are requested from that server.
        let (dir, name) = path.rsplit_once('/').unwrap();
        let dir = if dir.is_empty() { FileId::ROOT } else { client.stat(dir).await.unwrap().id };
        let moved = trio.members.home(dir, &Name::new(name).unwrap()) != attr.id.maker();
        let after = trio.request_count();
        client.stat(path).await.unwrap();
        assert_eq!(trio.request_count() - after, if moved { 2 } else { 1 }, "{path}, {before}");
    }
    assert_eq!(client.stat("/a/b/none").await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(client.stat("/").await.unwrap().id, FileId::ROOT);
}

#[tokio::test]
async fn replaced_directories_are_walked_again() {
    let trio = Trio::new(|_, _, _| None);
    let client = trio.client().await;
    populate(&trio);
    client.mkdir("/a/b/c/x", 0o755).await.unwrap();
    let jumps = || (1..=3).map(|n| trio.world(n).count("Jump")).sum::<usize>();
    let walks = || (1..=3).map(|n| trio.world(n).count("Walk")).sum::<usize>();
    let before = (jumps(), walks());
    client.mkdir("/a/b/c/y", 0o755).await.unwrap();
    assert_eq!((jumps(), walks()), (before.0 + 1, before.1), "one check, and nothing walked");
    // Another client replaces the directory.
    let other = id(2, 5000);
    trio.put(FileId::ROOT, "a", other, FileKind::Directory);
    trio.put(other, "b", id(3, 5001), FileKind::Directory);
    trio.put(id(3, 5001), "c", id(1, 5002), FileKind::Directory);
    trio.put(id(1, 5002), "f0", id(2, 5003), FileKind::File);
    assert_eq!(client.stat("/a/b/c/f0").await.unwrap().id, id(2, 5003));
    assert_eq!(client.stat("/a/b/c/f1").await.unwrap_err().kind(), ErrorKind::NotFound);
    client.mkdir("/a/b/c/z", 0o755).await.unwrap();
    client.rename("/a/b/c/f0", "/a/b/c/g", RenameMode::Replace).await.unwrap();
}

#[tokio::test]
async fn name_may_refer_to_a_symlink_on_another_server() {
    let trio = Trio::new(|_, _, request| match request {
        Request::ReadLink { .. } => Some(Act::Answer(Ok(Reply::Target(b"/a/f0".to_vec())))),
        _ => None,
    });
    let client = trio.client().await;
    populate(&trio);
    let name = trio.name_at(FileId::ROOT, 1);
    trio.put(FileId::ROOT, &name, id(2, 7), FileKind::Symlink);
    assert_eq!(client.stat(&name).await.unwrap().kind, FileKind::File);
    assert_eq!(client.lstat(&name).await.unwrap().kind, FileKind::Symlink);
    assert_eq!(client.stat(format!("{name}/x")).await.unwrap_err().kind(), ErrorKind::NotDirectory);
}

#[tokio::test]
async fn lookup_restarts_when_the_file_was_removed_meanwhile() {
    for (kinds, expected) in [(1, Ok(())), (100, Err(ErrorKind::NotFound))] {
        let left = Arc::new(Mutex::new(kinds));
        let trio = Trio::new(move |_, _, request| match request {
            Request::GetAttr { .. } | Request::Open { .. } => {
                let mut left = left.lock().unwrap();
                *left -= 1;
                (*left >= 0).then(|| Act::Answer(Err(ErrorKind::Stale.into())))
            }
            _ => None,
        });
        let client = trio.client().await;
        let name = trio.name_at(FileId::ROOT, 1);
        trio.put(FileId::ROOT, &name, id(2, 7), FileKind::File);
        assert_eq!(client.stat(&name).await.map(drop).map_err(|error| error.kind()), expected);
    }
}

#[tokio::test]
async fn create_opens_an_existing_file_on_another_server() {
    let trio = Trio::new(|_, _, _| None);
    let client = trio.client().await;
    for n in 1..=3 {
        let name = trio.name_at(FileId::ROOT, n);
        let fresh = client.open(&name, OpenOptions::CREATE).await.unwrap();
        assert_eq!(fresh.id().maker(), ServerId(n));
        let file = id(1 + n % 3, 50);
        trio.put(FileId::ROOT, &name, file, FileKind::File);
        let met = client.open(&name, OpenOptions::CREATE).await.unwrap();
        assert_eq!(met.id(), file);
        met.close().await.unwrap();
        assert_eq!(trio.world(1 + n % 3).count("Open"), 1);
    }
}

#[tokio::test]
async fn listing_merges_entries_of_all_servers_in_order() {
    let trio = Trio::new(|_, _, _| None);
    let client = trio.client().await;
    for n in 0..30_u16 {
        trio.put(FileId::ROOT, &format!("n{n:02}"), id(1 + n % 3, u64::from(n) + 10), FileKind::File);
    }
    for listing in [Listing::Names, Listing::Attributes] {
        let all = client.read_dir("/", listing).await.unwrap().all().await.unwrap();
        let names: Vec<String> = all.iter().map(|entry| entry.name.to_string()).collect();
        assert_eq!(names, (0..30).map(|n| format!("n{n:02}")).collect::<Vec<_>>());
        let with = all.iter().filter(|entry| entry.attr.as_ref().is_some_and(|attr| attr.id == entry.file));
        assert_eq!(with.count(), if listing == Listing::Attributes { 30 } else { 0 });
    }
}

#[tokio::test]
async fn unreachable_server_is_named_and_others_still_answer() {
    let mut trio = Trio::new(|_, _, request| match request {
        Request::StatFs => {
            Some(Act::Answer(Ok(Reply::Usage(forebay_model::Usage { capacity: 10, ..Default::default() }))))
        }
        _ => None,
    });
    let config = ClientConfig {
        request_timeout: Duration::from_secs(2),
        connect_timeout: Duration::from_secs(2),
        ..trio.config()
    };
    let client = Client::connect(config).await.unwrap();
    let names: Vec<String> = (1..=3).map(|n| trio.name_at(FileId::ROOT, n)).collect();
    for (name, n) in names.iter().zip(1..) {
        trio.put(FileId::ROOT, name, id(n, 7), FileKind::File);
        client.stat(name).await.unwrap();
    }
    let file = client.open(&names[1], OpenOptions::WRITE).await.unwrap();
    assert_eq!(client.statfs().await.unwrap().capacity, 30);
    trio.stop(2).await;
    client.stat(&names[0]).await.unwrap();
    client.stat(&names[2]).await.unwrap();
    for error in [
        client.stat(&names[1]).await.map(drop).unwrap_err(),
        file.pwrite(0, b"x").await.unwrap_err(),
        client.read_dir("/", Listing::Names).await.unwrap().all().await.map(drop).unwrap_err(),
    ] {
        assert!(error.kind().is_no_answer(), "{error}");
        assert!(error.to_string().contains("server 2 ("), "{error}");
    }
    assert_eq!(client.statfs().await.unwrap().capacity, 20);
    let status = client.statuses().await;
    assert_eq!(status.iter().map(|(server, _)| server.0).collect::<Vec<_>>(), [1, 2, 3]);
    trio.start(2);
    client.stat(&names[1]).await.unwrap();
    file.pwrite(0, b"x").await.unwrap();
    assert_eq!(trio.world(2).count("Reopen"), 1, "open files are reopened where they were opened");
    assert_eq!(trio.world(1).count("Reopen") + trio.world(3).count("Reopen"), 0);
}

#[tokio::test]
async fn invalid_references_to_other_servers_are_errors() {
    let looping = Trio::new(|_, _, request| match request {
        Request::Walk { dir, path, .. } => {
            Some(Act::Answer(Ok(Reply::Elsewhere { dir: *dir, rest: path.clone() })))
        }
        _ => None,
    });
    let error = looping.client().await.stat("/x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");

    let unknown = Trio::new(|_, _, request| match request {
        Request::Walk { dir, .. } => {
            Some(Act::Answer(Ok(Reply::At { dir: *dir, file: id(9, 1), rest: Vec::new() })))
        }
        _ => None,
    });
    let error = unknown.client().await.stat("/x").await.unwrap_err();
    assert!(error.to_string().contains("server 9 is not one of this service"), "{error}");
}

#[tokio::test]
async fn server_with_wrong_id_or_list_is_refused() {
    let member = |n: u16, socket: &std::path::Path| Member {
        server: ServerId(n),
        address: "tcp:127.0.0.1:9".to_owned(),
        socket: Some(socket.display().to_string()),
    };
    let dir = tempfile::tempdir().unwrap();
    let sockets: Vec<_> = (0..4).map(|n| dir.path().join(n.to_string())).collect();
    let list = |servers: &[u16]| {
        Members::new(1, servers.iter().map(|n| member(*n, &sockets[usize::from(*n)])).collect()).unwrap()
    };
    let shorter = |_: Channel, request: &Request| match request {
        Request::GetAttr { .. } => Act::Answer(Err(ErrorKind::Stale.into())),
        _ => Act::Serve,
    };
    for (server, servers, kind, message) in [
        // The expected server may run on another host, and come back.
        (3, &[1, 2, 3][..], ErrorKind::Unreachable, "server 3 of this service answers at this address"),
        (2, &[1, 2], ErrorKind::Protocol, "it lists servers 1, 2 (epoch 1)"),
    ] {
        let first = World { server: ServerId(1), members: list(&[1, 2, 3]), ..World::new(shorter) };
        let other = World { server: ServerId(server), members: list(servers), ..World::new(shorter) };
        let first = Fake::at(sockets[1].clone(), Arc::new(first));
        let _other = Fake::at(sockets[2].clone(), Arc::new(other));
        let config = ClientConfig { request_timeout: Duration::from_secs(2), ..first.config() };
        let client = Client::connect(config).await.unwrap();
        let error = client.by_id().get_attr(id(2, 1)).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(message), "{error}");
    }
}
