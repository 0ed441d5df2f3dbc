//! Connecting to the expected server over several addresses.

use crate::fake::{Act, Fake, Greet, World, attr};
use forebay_client::{Address, Addresses, Client, ClientConfig, Credential, OpenOptions};
use forebay_model::{Attr, Error, ErrorKind, FileId, Member, Members, Name, ServerId};
use forebay_wire::{Channel, Key, Reply, Request};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

fn member(server: u16, address: &str, socket: Option<&Path>) -> Member {
    let socket = socket.map(|path| path.display().to_string());
    Member { server: ServerId(server), address: address.to_owned(), socket }
}

/// A server whose files have its id as their size.
fn numbered(server: u16, members: &Members) -> World {
    let script = move |_: Channel, request: &Request| match request {
        Request::Walk { .. } => Act::Answer(Ok(Reply::Found(Attr { size: server.into(), ..attr() }))),
        _ => Act::Serve,
    };
    World { server: ServerId(server), members: members.clone(), ..World::new(script) }
}

/// A name in the root directory whose home is the given server.
fn name_at(members: &Members, server: u16) -> String {
    let is_home = |name: &String| members.home(FileId::ROOT, &Name::new(name.as_str()).unwrap()).0 == server;
    (0..).map(|n| format!("n{n}")).find(is_home).unwrap()
}

/// Two servers on two hosts with their sockets at the same path: only the socket of server 1 is on this host.
struct Pair {
    _dir: TempDir,
    local: Fake,
    remote: Option<Fake>,
    members: Members,
    key: Key,
}

impl Pair {
    /// `listed` computes the address of server 2 from its TCP address and the socket path.
    async fn new(listed: impl Fn(&Address, &Path) -> String) -> Pair {
        let (dir, key) = (tempfile::tempdir().unwrap(), Key::new([4; 32]));
        let socket = dir.path().join("forebay.sock");
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let there = Address::Tcp { host: "127.0.0.1".into(), port };
        let list = vec![
            member(1, "tcp:127.0.0.1:9", Some(&socket)),
            member(2, &listed(&there, &socket), Some(&socket)),
        ];
        let members = Members::new(1, list).unwrap();
        let local = Fake::at(socket, Arc::new(numbered(1, &members)));
        let greet = Greet::Challenge { key: key.clone(), honest: true };
        let remote = Fake::tcp_at(port, Arc::new(World { greet, ..numbered(2, &members) })).await;
        Pair { _dir: dir, local, remote: Some(remote), members, key }
    }

    async fn client(&self) -> Client {
        let config = ClientConfig {
            credential: Credential::Key(self.key.clone()),
            request_timeout: Duration::from_secs(3),
            ..self.local.config()
        };
        Client::connect(config).await.unwrap()
    }

    async fn stat(&self, client: &Client, server: u16) -> Result<u64, Error> {
        client.stat(name_at(&self.members, server)).await.map(|attr| attr.size)
    }
}

#[tokio::test]
async fn shared_socket_path_leads_only_to_the_local_server() {
    let pair = Pair::new(|there, _| there.to_string()).await;
    let client = pair.client().await;
    assert_eq!(pair.stat(&client, 1).await.unwrap(), 1);
    assert_eq!(pair.stat(&client, 2).await.unwrap(), 2);
    let remote = pair.remote.as_ref().unwrap();
    assert_eq!(remote.world.count("Walk"), 1);
    // Data connections use the address of the control connection.
    let before = pair.local.world.count("hello Data");
    let path = name_at(&pair.members, 2);
    let file = client.open(&path, OpenOptions::CREATE).await.unwrap();
    drop(file);
    assert_eq!(pair.local.world.count("hello Data"), before);
}

#[tokio::test]
async fn unreachable_server_is_retried_and_every_address_is_named() {
    let mut pair = Pair::new(|there, _| there.to_string()).await;
    pair.remote.take().unwrap().stop().await;
    let client = pair.client().await;
    let error = pair.stat(&client, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    let text = error.to_string();
    assert!(text.contains("server 1 of this service answers at this address"), "{text}");
    assert!(text.contains("server 2 (unix:") && text.contains("server 2 (tcp:127.0.0.1:"), "{text}");
    assert_eq!(pair.stat(&client, 1).await.unwrap(), 1);
}

#[tokio::test]
async fn wrong_server_at_the_only_address_is_refused() {
    let pair = Pair::new(|_, socket| format!("unix:{}", socket.display())).await;
    let client = pair.client().await;
    let error = pair.stat(&client, 2).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("server 1 of this service answers at this address"), "{error}");
}

#[tokio::test]
async fn server_of_another_service_at_the_socket_is_skipped() {
    let dir = tempfile::tempdir().unwrap();
    let key = Key::new([4; 32]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let (own, shared) = (dir.path().join("own"), dir.path().join("shared"));
    let list = vec![
        member(1, "tcp:127.0.0.1:9", Some(&own)),
        member(2, &format!("tcp:127.0.0.1:{port}"), Some(&shared)),
    ];
    let members = Members::new(1, list).unwrap();
    // The same number of servers, with the same ids and epoch: only the addresses distinguish the services.
    let others =
        Members::new(1, vec![member(1, "tcp:x:1", None), member(2, "tcp:y:1", Some(&shared))]).unwrap();
    let local = Fake::at(own, Arc::new(numbered(1, &members)));
    let other_service = Fake::at(shared, Arc::new(numbered(2, &others)));
    let greet = Greet::Challenge { key: key.clone(), honest: true };
    let remote = Fake::tcp_at(port, Arc::new(World { greet, ..numbered(2, &members) })).await;
    let config = ClientConfig { credential: Credential::Key(key), ..local.config() };
    let client = Client::connect(config).await.unwrap();
    client.stat(name_at(&members, 2)).await.unwrap();
    assert_eq!((remote.world.count("Walk"), other_service.world.count("Walk")), (1, 0));
}

/// Paths of Unix sockets, on some of which a server listens.
struct Places(TempDir);

impl Places {
    fn path(&self, n: usize) -> PathBuf {
        self.0.path().join(format!("{n}.sock"))
    }

    fn listen(&self, n: usize, world: World) -> Fake {
        Fake::at(self.path(n), Arc::new(world))
    }

    fn addresses(&self, count: usize) -> Addresses {
        let all: Vec<String> = (0..count).map(|n| format!("unix:{}", self.path(n).display())).collect();
        all.join(",").parse().unwrap()
    }
}

fn alone() -> World {
    World::new(|_, _| Act::Serve)
}

#[tokio::test]
async fn addresses_are_tried_in_order_and_all_named_on_failure() {
    let places = Places(tempfile::tempdir().unwrap());
    let silent = places.listen(1, World { greet: Greet::Silence, ..alone() });
    let fake = places.listen(2, alone());
    let base = ClientConfig { connect_timeout: Duration::from_secs(1), ..fake.config() };
    let config = ClientConfig { addresses: places.addresses(4), ..base };
    let client = Client::connect(config.clone()).await.unwrap();
    client.ping().await.unwrap();
    assert_eq!(client.reached_at(), Some(Address::Unix(places.path(2))));
    assert_eq!(silent.world.count("hello Control"), 1);
    fake.stop().await;
    let error = Client::connect(config).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    for n in 0..4 {
        let named = format!("service unix:{}: ", places.path(n).display());
        assert!(error.to_string().contains(&named), "{error}: expected {named}");
    }
    assert!(error.to_string().contains("no welcome within 1s"), "{error}");
}

#[tokio::test]
async fn refusal_takes_precedence_over_unreachable_addresses() {
    let places = Places(tempfile::tempdir().unwrap());
    let refusal = Error::new(ErrorKind::Protocol, "the client speaks version 1, this server version 2");
    let fake = places.listen(1, World { greet: Greet::Refuse(refusal), ..alone() });
    let config = ClientConfig { addresses: places.addresses(3), ..fake.config() };
    let error = Client::connect(config).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    assert!(error.to_string().contains("this server version 2"), "{error}");
}

#[tokio::test]
async fn reconnect_starts_with_the_first_address() {
    let places = Places(tempfile::tempdir().unwrap());
    let second = places.listen(1, alone());
    let config = ClientConfig { addresses: places.addresses(2), ..second.config() };
    let client = Client::connect(config).await.unwrap();
    let first = places.listen(0, alone());
    second.stop().await;
    let again = places.listen(1, alone());
    client.stat("/x").await.unwrap();
    assert_eq!(client.reached_at(), Some(Address::Unix(places.path(0))));
    assert_eq!((first.world.count("Walk"), again.world.count("Walk")), (1, 0));
}

#[tokio::test]
async fn reconnect_skips_other_servers_and_other_stores() {
    let places = Places(tempfile::tempdir().unwrap());
    let list = vec![member(1, "tcp:127.0.0.1:9", None), member(2, "tcp:127.0.0.1:9", None)];
    let members = Members::new(1, list).unwrap();
    let third = places.listen(2, numbered(1, &members));
    let config = ClientConfig { addresses: places.addresses(3), ..third.config() };
    let client = Client::connect(config).await.unwrap();
    let other_number = places.listen(0, numbered(2, &members));
    let other_store = places.listen(1, World { incarnation: 2, ..numbered(1, &members) });
    third.stop().await;
    let third = places.listen(2, numbered(1, &members));
    assert_eq!(client.stat(name_at(&members, 1)).await.unwrap().size, 1);
    assert_eq!(client.reached_at(), Some(Address::Unix(places.path(2))));
    assert_eq!(third.world.count("Walk"), 1);
    assert_eq!(other_number.world.count("Walk") + other_store.world.count("Walk"), 0);
}

#[tokio::test]
async fn client_configured_for_one_server_accepts_no_other() {
    let places = Places(tempfile::tempdir().unwrap());
    let list = vec![member(1, "tcp:a:1", None), member(2, "tcp:b:1", None)];
    let members = Members::new(1, list.clone()).unwrap();
    let one = places.listen(0, numbered(1, &members));
    let two = places.listen(1, numbered(2, &members));
    let config = ClientConfig { addresses: places.addresses(2), ..one.config() };
    let config_for = |member: Member| ClientConfig { server: Some(member), ..config.clone() };
    let client = Client::connect(config_for(list[1].clone())).await.unwrap();
    assert_eq!(client.welcome().await.unwrap().server, ServerId(2));
    assert_eq!(two.world.count("hello Control"), 1);
    for absent in [member(3, "tcp:c:1", None), member(2, "tcp:of another service:1", None)] {
        let error = Client::connect(config_for(absent)).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
    }
}
