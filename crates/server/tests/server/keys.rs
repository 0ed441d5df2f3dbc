//! User keys: which user they authenticate, their permissions, and their expiry.

use crate::cluster::Fleet;
use crate::drain::until;
use crate::raw::{ALICE, BOB, Raw, World, hello, person, refused};
use forebay_model::{Error, ErrorKind, FileId, Gid, Identity, ServerId, Uid};
use forebay_testkit::address;
use forebay_wire::{
    At, Channel, ConnectionKey, Key, KeyCall, KeyId, KeyReply, Reply, Request, Security, UserKey, Welcome,
};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

const ROOT: FileId = FileId::ROOT;

fn key_call(raw: &mut Raw, call: KeyCall) -> Result<KeyReply, Error> {
    match raw.call(Request::Keys(call))? {
        Reply::Keys(reply) => Ok(*reply),
        other => panic!("unexpected reply: {other:?}"),
    }
}

pub(crate) fn grant(raw: &mut Raw, uid: u32, expires: Option<u64>) -> (UserKey, ConnectionKey) {
    match key_call(raw, KeyCall::Grant { user: uid.to_string(), expires }) {
        Ok(KeyReply::Granted { key, secret, .. }) => {
            let connection = ConnectionKey { id: key.id, secret: Key::new(secret) };
            (key, connection)
        }
        other => panic!("not granted: {other:?}"),
    }
}

fn revoke(raw: &mut Raw, id: KeyId) -> Vec<ServerId> {
    match key_call(raw, KeyCall::Revoke { id }) {
        Ok(KeyReply::Revoked { missing, .. }) => missing,
        other => panic!("not revoked: {other:?}"),
    }
}

pub(crate) fn connect(
    address: SocketAddr,
    channel: Channel,
    key: &ConnectionKey,
) -> Result<(Raw, Welcome), Error> {
    let mut raw = Raw::bare(TcpStream::connect(address).expect("TCP connection"));
    let welcome = raw.prove(&hello(channel, 3), key, Security::Encrypt)?;
    Ok((raw, welcome))
}

fn refusal(address: SocketAddr, key: &ConnectionKey) -> Error {
    connect(address, Channel::Control, key).map(drop).expect_err("refused")
}

#[test]
fn key_authenticates_its_user_only() {
    let world = World::new();
    let (_, key) = grant(&mut world.control(), ALICE, None);
    let (mut raw, welcome) = connect(world.tcp(), Channel::Control, &key).expect("connected");
    assert_eq!(welcome.uid, Uid(ALICE));
    let token = raw.create(ROOT, "hers", 0o600);
    assert_eq!((token.uid, raw.walk("hers").unwrap().uid), (Uid(ALICE), Uid(ALICE)));
    let (mut data, _) = connect(world.tcp(), Channel::Data, &key).expect("connected");
    assert_eq!(data.write(token, At::Offset(0), b"bytes").unwrap(), 0);
    for call in [
        KeyCall::List,
        KeyCall::Grant { user: BOB.to_string(), expires: None },
        KeyCall::Revoke { id: key.id },
    ] {
        refused(key_call(&mut raw, call), ErrorKind::NotPermitted);
    }
    refused(raw.call(Request::Shutdown), ErrorKind::NotPermitted);
    refused(raw.call(Request::SetPolicy { policy: "fifo".into() }), ErrorKind::NotPermitted);
    // A client may name its own user; the server ignores groups that the client sends.
    let claims = Identity { groups: vec![Gid(0)], ..person(ALICE) };
    for (who, allowed) in [(person(ALICE), true), (claims, true), (person(BOB), false), (person(0), false)] {
        raw.set_identity(Some(who.clone()));
        assert_eq!(raw.call(Request::Ping).is_ok(), allowed, "{who:?}");
    }
}

#[test]
fn key_of_the_service_owner_grants_no_administration() {
    let world = World::new();
    let owner = world.config.key_path().metadata().unwrap().uid();
    if owner == 0 {
        let error =
            key_call(&mut world.control(), KeyCall::Grant { user: "0".into(), expires: None }).unwrap_err();
        assert!(error.kind() == ErrorKind::NotPermitted && error.to_string().contains("root"), "{error}");
        return;
    }
    let (_, key) = grant(&mut world.control(), owner, None);
    let (mut raw, _) = connect(world.tcp(), Channel::Control, &key).expect("connected");
    refused(raw.call(Request::Shutdown), ErrorKind::NotPermitted);
    raw.set_identity(Some(person(BOB)));
    refused(raw.call(Request::Ping), ErrorKind::NotPermitted);
}

#[test]
fn altered_key_is_refused() {
    let world = World::new();
    let (_, key) = grant(&mut world.control(), ALICE, None);
    let (_, other) = grant(&mut world.control(), BOB, None);
    let service = world.key();
    for wrong in [
        ConnectionKey { id: other.id, ..key.clone() },
        ConnectionKey { id: KeyId::SERVICE, ..key.clone() },
        ConnectionKey { id: KeyId([7; 16]), ..key.clone() },
        ConnectionKey { id: key.id, secret: service },
    ] {
        assert_eq!(refusal(world.tcp(), &wrong).kind(), ErrorKind::Unauthenticated, "{}", wrong.id);
    }
}

#[test]
fn revoked_key_ends_live_sessions() {
    let mut world = World::new();
    let mut control = world.control();
    let (_, key) = grant(&mut control, ALICE, None);
    let (_, other) = grant(&mut control, ALICE, None);
    let (mut raw, _) = connect(world.tcp(), Channel::Control, &key).expect("connected");
    let (mut data, _) = connect(world.tcp(), Channel::Data, &key).expect("connected");
    let (mut stays, _) = connect(world.tcp(), Channel::Control, &other).expect("connected");
    let token = raw.create(ROOT, "hers", 0o600);
    data.write(token, At::Offset(0), b"before").unwrap();
    assert_eq!(revoke(&mut control, key.id), []);
    assert!(raw.is_closed() && data.is_closed(), "connections close at once");
    assert!(
        stays.call(Request::Ping).is_ok() && control.call(Request::Ping).is_ok(),
        "other connections stay"
    );
    let is_revoked = |error: Error| {
        assert!(
            error.kind() == ErrorKind::Unauthenticated && error.to_string().contains("revoked"),
            "{error}"
        );
    };
    is_revoked(refusal(world.tcp(), &key));
    assert_eq!(revoke(&mut control, key.id), [], "revoking twice is harmless");
    refused(key_call(&mut control, KeyCall::Revoke { id: KeyId([9; 16]) }), ErrorKind::NotFound);
    drop((control, stays));
    world.restart();
    is_revoked(refusal(world.tcp(), &key));
    let (mut stays, _) = connect(world.tcp(), Channel::Control, &other).expect("connected after the restart");
    assert!(stays.call(Request::Ping).is_ok());
    let listed = match key_call(&mut world.control(), KeyCall::List) {
        Ok(KeyReply::Keys(keys)) => keys,
        other => panic!("no list: {other:?}"),
    };
    let states: Vec<bool> = listed.iter().map(|listed| listed.revoked.is_some()).collect();
    assert_eq!(states, listed.iter().map(|listed| listed.id == key.id).collect::<Vec<_>>());
}

#[test]
fn revocation_holds_while_the_list_of_keys_cannot_be_written() {
    let mut world = World::new();
    let mut control = world.control();
    let (_, key) = grant(&mut control, ALICE, None);
    let (mut raw, _) = connect(world.tcp(), Channel::Control, &key).expect("connected");
    // A directory is where the server writes the next list.
    let mut obstacle = world.config.keys_path().into_os_string();
    obstacle.push(".new");
    std::fs::create_dir(&obstacle).unwrap();
    let error = key_call(&mut control, KeyCall::Revoke { id: key.id }).expect_err("the list is not written");
    let text = error.to_string();
    assert!(error.kind() == ErrorKind::Io && text.contains("revoked") && text.contains("restart"), "{text}");
    assert!(raw.is_closed(), "its connections are closed");
    assert_eq!(refusal(world.tcp(), &key).kind(), ErrorKind::Unauthenticated);
    refused(key_call(&mut control, KeyCall::Grant { user: BOB.to_string(), expires: None }), ErrorKind::Io);
    std::fs::remove_dir(&obstacle).unwrap();
    let list = world.config.keys_path();
    until("the server writes the list by itself", || {
        let text = std::fs::read_to_string(&list).unwrap();
        text.lines().any(|line| line.starts_with(&key.id.to_string()) && line.split(' ').nth(5) != Some("-"))
    });
    drop(control);
    world.restart();
    assert_eq!(refusal(world.tcp(), &key).kind(), ErrorKind::Unauthenticated);
}

#[test]
fn expired_key_is_refused_and_ends_its_connections() {
    let world = World::new();
    let mut control = world.control();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let call = KeyCall::Grant { user: ALICE.to_string(), expires: Some(now) };
    refused(key_call(&mut control, call), ErrorKind::Invalid);
    // Long enough to connect on a busy machine.
    let (_, key) = grant(&mut control, ALICE, Some(now + 8));
    let (mut raw, _) = connect(world.tcp(), Channel::Control, &key).expect("connected");
    assert!(raw.is_closed(), "the connection closes when its key expires");
    let error = refusal(world.tcp(), &key);
    assert!(error.kind() == ErrorKind::Unauthenticated && error.to_string().contains("expired"), "{error}");
}

#[test]
fn keys_are_granted_only_by_the_owner_on_the_local_host() {
    let world = World::new();
    let grant = || KeyCall::Grant { user: ALICE.to_string(), expires: None };
    let mut alice = world.control().acting(ALICE);
    for call in [grant(), KeyCall::List, KeyCall::Revoke { id: KeyId([1; 16]) }] {
        refused(key_call(&mut alice, call), ErrorKind::NotPermitted);
    }
    let (mut far, _) = Raw::tcp(world.tcp(), Channel::Control, &world.key()).unwrap();
    refused(key_call(&mut far, grant()), ErrorKind::NotPermitted);
    assert_eq!(key_call(&mut far, KeyCall::List), Ok(KeyReply::Keys(Vec::new())));
    let mut control = world.control();
    for user in ["no such user", "4294967295", "-1", ""] {
        refused(
            key_call(&mut control, KeyCall::Grant { user: user.into(), expires: None }),
            ErrorKind::Invalid,
        );
    }
}

/// Servers that also accept TCP connections.
fn fleet(count: u16) -> (Fleet, Vec<SocketAddr>) {
    let mut fleet = Fleet::plan(count, |_| {});
    let addresses: Vec<SocketAddr> = (0..count).map(|_| address()).collect();
    for (config, address) in fleet.configs.iter_mut().zip(&addresses) {
        (config.tcp, config.listen) = (true, *address);
    }
    (0..usize::from(count)).for_each(|index| fleet.start(index));
    fleet.joined();
    (fleet, addresses)
}

#[test]
fn revocation_reaches_all_servers() {
    let (mut fleet, addresses) = fleet(2);
    let (_, key) = grant(&mut fleet.control(0), ALICE, None);
    let mut live: Vec<Raw> = addresses
        .iter()
        .map(|&address| connect(address, Channel::Control, &key).expect("connected").0)
        .collect();
    assert_eq!(revoke(&mut fleet.control(1), key.id), []);
    assert!(live.iter_mut().all(Raw::is_closed));
    for &address in &addresses {
        assert_eq!(refusal(address, &key).kind(), ErrorKind::Unauthenticated);
    }
    // A server that was down learns of the revocation before it accepts a client.
    let (_, key) = grant(&mut fleet.control(0), BOB, None);
    connect(addresses[1], Channel::Control, &key).expect("connected");
    fleet.stop(1);
    assert_eq!(revoke(&mut fleet.control(0), key.id), [ServerId(1)]);
    fleet.start(1);
    loop {
        let error = refusal(addresses[1], &key);
        match error.kind() {
            ErrorKind::Busy => std::thread::yield_now(),
            ErrorKind::Unauthenticated => break assert!(error.to_string().contains("revoked"), "{error}"),
            _ => panic!("{error}"),
        }
    }
}
