//! The handshake: which clients and servers are accepted.

use crate::fake::{Act, Fake, Greet, World};
use forebay_client::{Client, ClientConfig, Credential};
use forebay_model::{Error, ErrorKind};
use forebay_wire::Key;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn world(greet: Greet) -> Arc<World> {
    Arc::new(World { greet, ..World::new(|_, _| Act::Serve) })
}

async fn refused(config: ClientConfig) -> Error {
    match Client::connect(config).await {
        Ok(_) => panic!("the client was accepted"),
        Err(error) => error,
    }
}

#[tokio::test]
async fn unix_socket_needs_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), world(Greet::Welcome));
    let client = Client::connect(fake.config()).await.unwrap();
    client.ping().await.unwrap();
    assert_eq!(client.welcome().await.unwrap().max_payload, 64 << 10);
    assert_eq!(fake.world.log(), ["hello Control", "Ping"]);
}

#[tokio::test]
async fn both_sides_prove_their_key_over_tcp() {
    let key = Key::new([4; 32]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    write_key(&file, &key.to_text(), 0o600);
    let fake = Fake::tcp(world(Greet::Challenge { key: key.clone(), honest: true })).await;
    for credential in [Credential::Key(key), Credential::File(file)] {
        let client = Client::connect(ClientConfig { credential, ..fake.config() }).await.unwrap();
        client.ping().await.unwrap();
    }
}

fn write_key(path: &Path, text: &str, mode: u32) {
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[tokio::test]
async fn key_file_accessible_to_others_is_refused() {
    let key = Key::new([4; 32]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("key");
    let fake = Fake::tcp(world(Greet::Challenge { key: key.clone(), honest: true })).await;
    for mode in [0o640, 0o604, 0o660, 0o622, 0o777] {
        write_key(&file, &key.to_text(), mode);
        let error =
            refused(ClientConfig { credential: Credential::File(file.clone()), ..fake.config() }).await;
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        let text = error.to_string();
        assert!(text.contains("chmod 600") && text.contains(&file.display().to_string()), "{text}");
    }
    assert_eq!(fake.world.log(), [""; 0], "the client sent nothing");
}

#[tokio::test]
async fn peers_without_the_key_are_refused() {
    let (key, other) = (Key::new([4; 32]), Key::new([5; 32]));
    let honest = Greet::Challenge { key: key.clone(), honest: true };
    let impostor = Greet::Challenge { key: key.clone(), honest: false };
    let missing = Credential::File("/nonexistent/key".into());
    for (greet, credential, reason) in [
        (honest.clone(), Credential::Key(other.clone()), "the client does not hold this server's key"),
        (honest.clone(), Credential::None, "the service requires a key"),
        (honest, missing, "cannot read the key file /nonexistent/key"),
        (impostor, Credential::Key(other.clone()), "the service does not hold the same key"),
        (Greet::Welcome, Credential::Key(other), "the service did not authenticate itself"),
    ] {
        let fake = Fake::tcp(world(greet)).await;
        let error = refused(ClientConfig { credential, ..fake.config() }).await;
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
        assert!(error.to_string().contains(reason), "{error}: expected {reason}");
        assert!(error.to_string().starts_with(&format!("service {}", fake.address)), "{error}");
    }
}

#[tokio::test]
async fn refusals_and_malformed_greetings_are_reported_at_once() {
    let version = Error::new(ErrorKind::Protocol, "the client speaks version 1, this server version 2");
    let http = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
    for (greet, kind, reason) in [
        (Greet::Refuse(version), ErrorKind::Protocol, "this server version 2"),
        (Greet::Raw(http), ErrorKind::Protocol, "not the start of a Forebay frame"),
        (Greet::Raw(Vec::new()), ErrorKind::Unreachable, "closed the connection"),
        (Greet::Raw(b"FBY".to_vec()), ErrorKind::Unreachable, "closed the connection"),
        (Greet::Silence, ErrorKind::Unreachable, "no welcome within 2s"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::unix(dir.path(), world(greet));
        let error = refused(ClientConfig { connect_timeout: Duration::from_secs(2), ..fake.config() }).await;
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(reason), "{error}: expected {reason}");
    }
}

#[tokio::test]
async fn missing_server_is_reported_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::unix(dir.path(), world(Greet::Welcome));
    let config = fake.config();
    fake.stop().await;
    let error = refused(config).await;
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("is the service up?"), "{error}");
}

#[tokio::test]
async fn invalid_limits_of_the_server_are_refused() {
    for (max_payload, session_millis) in [(0, 1000), (u32::MAX, 1000), (4096, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let world = World { max_payload, session_millis, ..World::new(|_, _| Act::Serve) };
        let fake = Fake::unix(dir.path(), Arc::new(world));
        assert_eq!(refused(fake.config()).await.kind(), ErrorKind::Protocol);
    }
}

#[test]
fn the_blocking_client_does_the_same() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let fake = runtime.block_on(async { Fake::unix(dir.path(), world(Greet::Welcome)) });
    let client = forebay_client::blocking::Client::connect(fake.config()).unwrap();
    let file = client.open("/x", forebay_client::OpenOptions::CREATE).unwrap();
    file.pwrite(3, b"hello").unwrap();
    let mut back = [0; 16];
    assert_eq!(file.pread(0, &mut back).unwrap(), 8);
    assert_eq!(&back[..8], b"\0\0\0hello");
    assert_eq!(file.append(b"!").unwrap(), 8);
    assert_eq!(file.stat().unwrap().size, 9);
    file.close().unwrap();
    assert_eq!(fake.world.count("Close"), 1);
}
