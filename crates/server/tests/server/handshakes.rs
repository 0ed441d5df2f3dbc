//! Connections that have not authenticated: whatever they send, or leave out, others connect.

use crate::drain::until;
use crate::raw::{Raw, World, hello};
use forebay_wire::{
    Channel, ConnectionKey, FrameKind, Greeting, HEADER, Initiator, Reply, Request, Security, frame,
};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A server that closes no connection for being slow.
fn patient() -> World {
    World::with(|config| {
        (config.limits.handshakes, config.limits.address_handshakes) = (8, 16);
        config.times.handshake = Duration::from_secs(3600);
    })
}

/// The first message of a key holder.
fn opening(world: &World) -> Vec<u8> {
    let key = ConnectionKey::from(world.key());
    let (_, opening) = Initiator::open(&key, Security::None, &hello(Channel::Control, 7)).unwrap();
    let mut bytes = Vec::new();
    frame(&mut bytes, FrameKind::Hello, 0, &opening, 0).unwrap();
    bytes
}

/// Asserts that key holders connect from the address of the tests.
fn expect_key_holders_served(world: &World, beside: &str) {
    let key = world.key();
    for client in 0..10 {
        let (mut raw, _) = Raw::tcp(world.tcp(), Channel::Control, &key)
            .unwrap_or_else(|error| panic!("{beside}: key holder {client}: {error}"));
        assert_eq!(raw.call(Request::Ping), Ok(Reply::Done), "{beside}: key holder {client}");
    }
}

#[test]
fn silent_connections_of_one_address_do_not_block_key_holders() {
    let world = patient();
    // More than the limit on handshakes, and more than the limit of one address.
    let silent: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(world.tcp()).unwrap()).collect();
    expect_key_holders_served(&world, "silent peers");
    drop(silent);
}

/// Connects from an address of this machine.
fn connect_from(world: &World, host: u8) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, host], 0))).unwrap();
    connect(&socket, &world.tcp()).unwrap();
    TcpStream::from(socket)
}

#[test]
fn silent_connections_of_many_addresses_do_not_block_key_holders() {
    // 32 places, of which one address may have 16.
    let world = World::with(|config| {
        config.limits.connections = 16;
        config.times.handshake = Duration::from_secs(3600);
    });
    let silent: Vec<TcpStream> =
        (0..100).map(|number| connect_from(&world, 2 + u8::try_from(number % 10).unwrap())).collect();
    expect_key_holders_served(&world, "silent peers of ten addresses");
    drop(silent);
}

#[test]
fn unfinished_handshakes_of_one_address_do_not_block_key_holders() {
    let world = patient();
    let whole = opening(&world);
    // The last ones are answered with a challenge, and never prove that they hold the key.
    for sent in [1, HEADER - 1, HEADER, whole.len() - 1, whole.len()] {
        let unfinished: Vec<TcpStream> = (0..100)
            .map(|_| {
                let mut peer = TcpStream::connect(world.tcp()).unwrap();
                // The server may have closed it already, to make space.
                let _ = peer.write_all(&whole[..sent]);
                peer
            })
            .collect();
        expect_key_holders_served(&world, &format!("peers that sent {sent} bytes"));
        drop(unfinished);
    }
}

#[test]
fn handshake_may_arrive_byte_by_byte() {
    let world = patient();
    let mut peer = TcpStream::connect(world.tcp()).unwrap();
    peer.set_nodelay(true).unwrap();
    for byte in opening(&world) {
        peer.write_all(&[byte]).unwrap();
    }
    assert!(matches!(Raw::bare(peer).greeting(), Greeting::Challenge { .. }));
}

/// How many descriptors of this process lead to the server's end of this connection.
fn descriptors_of(client: &TcpStream) -> usize {
    let (own, peer) = (client.local_addr().unwrap().port(), client.peer_addr().unwrap().port());
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let is_end = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        let mut port =
            || words.next().and_then(|word| word.rsplit_once(':')).map(|(_, port)| port.to_owned());
        (port(), port()) == (Some(format!("{peer:04X}")), Some(format!("{own:04X}")))
    };
    let line = table.lines().find(is_end).expect("the connection is there");
    let socket = format!("socket:[{}]", line.split_whitespace().nth(9).expect("the number of the socket"));
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        // Other tests close theirs meanwhile.
        std::fs::read_link(entry.ok()?.path()).ok()
    });
    descriptors.filter(|target| target.to_str() == Some(&socket)).count()
}

#[test]
fn strangers_over_tcp_cost_one_descriptor_each() {
    let world = World::with(|config| config.times.handshake = Duration::from_secs(3600));
    let strangers: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stranger = TcpStream::connect(world.tcp()).unwrap();
            // Half of a header.
            stranger.write_all(b"forebay").unwrap();
            stranger
        })
        .collect();
    until("they are accepted", || strangers.iter().all(|stranger| descriptors_of(stranger) > 0));
    // Who comes after them is served.
    let (mut raw, _) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).expect("let in");
    assert_eq!(raw.call(Request::Ping), Ok(Reply::Done));
    for stranger in &strangers {
        assert_eq!(descriptors_of(stranger), 1);
    }
}
