//! The handshake and its checks.

use crate::raw::{Raw, World, hello, refused};
use forebay_model::{ErrorKind, Job, Uid};
use forebay_server::Server;
use forebay_wire::{Channel, FrameKind, Greeting, Hello, Key, Request};
use std::fs::{Permissions, set_permissions};
use std::io::Write;
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[test]
fn tcp_authenticates_by_key_and_unix_sockets_by_credentials() {
    let world = World::new();
    let (mut raw, welcome) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).expect("connected");
    assert_eq!(welcome.uid, Uid(world.config.key_path().metadata().unwrap().uid()));
    assert!(raw.call(Request::Ping).is_ok());
    assert!(world.control().call(Request::Ping).is_ok());
}

#[test]
fn wrong_key_is_refused() {
    let world = World::new();
    let refusal = Raw::tcp(world.tcp(), Channel::Control, &Key::new([9; 32])).map(|_| ());
    refused(refusal, ErrorKind::Unauthenticated);
}

#[test]
fn client_of_another_version_gets_a_version_error() {
    let world = World::new();
    let mut raw = Raw::bare(UnixStream::connect(world.socket()).unwrap());
    let mut hello = hello(Channel::Control, 1);
    hello.version = 99;
    let error = raw.greet(&hello, None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol);
    assert!(error.to_string().contains("99"), "{error}");
    assert!(raw.is_closed());
}

#[test]
fn garbage_instead_of_a_hello_is_refused() {
    let world = World::new();
    let mut friend = world.control();
    for nonsense in [&b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..], &[0; 24], &[255; 4096]] {
        let mut tcp = TcpStream::connect(world.tcp()).unwrap();
        tcp.write_all(nonsense).unwrap();
        let mut raw = Raw::bare(tcp);
        let Greeting::Refusal(error) = raw.greeting() else { panic!("not refused") };
        assert_eq!(error.kind(), ErrorKind::Protocol);
    }
    let mut early = Raw::bare(UnixStream::connect(world.socket()).unwrap());
    early.send_frame(FrameKind::Proof, 0, &forebay_wire::Proof {}, &[]);
    assert!(matches!(early.greeting(), Greeting::Refusal(_)));
    assert!(friend.call(Request::Ping).is_ok());
}

#[test]
fn invalid_job_description_is_refused() {
    let world = World::new();
    let sane = hello(Channel::Data, 1).job;
    for (job, says) in [
        (Job { nodes: 0, ..sane.clone() }, "at least one node"),
        (Job { user: String::new(), ..sane.clone() }, "a job's user has 1 to 64 bytes, not 0"),
        (Job { group: String::new(), ..sane.clone() }, "a job's group has"),
        (Job { label: String::new(), ..sane.clone() }, "a job's label has"),
        (Job { user: "x".repeat(65), ..sane.clone() }, "not 65"),
    ] {
        let mut raw = Raw::bare(UnixStream::connect(world.socket()).unwrap());
        let error = raw.greet(&Hello { job, ..hello(Channel::Data, 1) }, None).unwrap_err();
        assert!(error.kind() == ErrorKind::Protocol && error.to_string().contains(says), "{says}: {error}");
    }
}

#[test]
fn silent_connection_times_out() {
    let world = World::with(|config| config.times.handshake = Duration::from_millis(50));
    let mut raw = Raw::bare(TcpStream::connect(world.tcp()).unwrap());
    assert!(raw.is_closed());
}

#[test]
fn limit_on_connections_is_enforced() {
    let world = World::with(|config| config.limits.connections = 3);
    let mut kept: Vec<Raw> = (0..3).map(|_| world.control()).collect();
    refused(Raw::unix(&world.socket(), Channel::Control, 1).map(|_| ()), ErrorKind::Busy);
    assert!(kept.iter_mut().all(|raw| raw.call(Request::Ping).is_ok()));
    drop(kept);
    // The server notices the end of a connection a moment later.
    while Raw::unix(&world.socket(), Channel::Control, 1).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn two_servers_do_not_share_a_store_or_a_socket() {
    let world = World::new();
    assert!(Server::start(world.config.clone()).is_err(), "the store is in use");
    let mut other = world.config.clone();
    other.store.set_file_name("other");
    other.socket = Some(world.socket());
    let error = Server::start(other.clone()).err().expect("refused");
    assert!(error.to_string().contains("another server"), "{error}");
    assert!(world.control().call(Request::Ping).is_ok());
}

#[test]
fn world_readable_key_file_is_refused() {
    let mut world = World::new();
    world.stop();
    set_permissions(world.config.key_path(), Permissions::from_mode(0o644)).unwrap();
    let error = Server::start(world.config.clone()).err().expect("refused");
    assert!(error.to_string().contains("chmod 600"), "{error}");
}

#[test]
fn server_removes_its_socket_on_shutdown() {
    let mut world = World::new();
    world.stop();
    assert!(!world.socket().exists());
}
