//! Calls whose answers are lost.

use crate::world::World;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::spawn;

/// Passes bytes between programs and the server at a socket until `made` exists there, and closes the connections then:
/// the answer to the request that made it is lost.
fn relay_until(world: &World, made: &'static str) -> PathBuf {
    let path = world.path("relay");
    let listener = UnixListener::bind(&path).expect("a socket");
    let server = PathBuf::from(world.service().trim_start_matches("unix:"));
    spawn(move || {
        for program in listener.incoming() {
            let (Ok(program), Ok(to)) = (program, UnixStream::connect(&server)) else { return };
            let (from_program, to_server) = (copy(&program), copy(&to));
            spawn(move || pass(from_program, to_server, || true));
            let config = ClientConfig::new(Address::Unix(server.clone()));
            let watch = Client::connect(config).expect("the server answers");
            spawn(move || pass(to, program, || watch.stat(made).is_err()));
        }
    });
    path
}

fn copy(stream: &UnixStream) -> UnixStream {
    stream.try_clone().expect("a descriptor")
}

/// Passes bytes on while `may` allows it, then ends both connections.
fn pass(mut from: UnixStream, mut to: UnixStream, may: impl Fn() -> bool) {
    let mut buffer = [0; 4096];
    while let Ok(len) = from.read(&mut buffer)
        && len > 0
        && may()
        && to.write_all(&buffer[..len]).is_ok()
    {}
    for end in [from, to] {
        // It may be closed already.
        let _ = end.shutdown(Shutdown::Both);
    }
}

/// Neither "exists" nor "not connected": the directory may have been made.
#[test]
fn call_whose_answer_is_lost_fails_with_an_input_output_error() {
    let world = World::new();
    let relay = relay_until(&world, "/made");
    let mut command = world.command("mkdir");
    command.arg("/fb/made").env("FOREBAY_SERVICE", format!("unix:{}", relay.display())).env("LC_ALL", "C");
    let output = command.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), text.ends_with(": Input/output error\n")), (Some(1), true), "{text}");
    assert!(world.client().stat("/made").is_ok() && Path::new(&relay).exists());
}
