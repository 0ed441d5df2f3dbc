//! Real users of this host, created for a test and removed after it.

use crate::relay::Relay;
use forebay_model::{Error, Identity};
use forebay_testkit::{Raw, hello};
use forebay_wire::{Channel, Welcome};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A user of this host with a group of the same name.
pub struct Person {
    name: String,
    /// Its uid.
    pub uid: u32,
    /// Its gid.
    pub gid: u32,
}

/// How often a command is retried while another test has locked the user database.
const TRIES: u32 = 100;

fn run(program: &str, words: &[&str]) -> Output {
    let mut output_text = String::new();
    for _ in 0..TRIES {
        let output = Command::new(program).args(words).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
        if output.status.success() {
            return output;
        }
        output_text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !output_text.contains("lock") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{program} {words:?}: {output_text}");
}

fn number(name: &str, what: &str) -> u32 {
    let output = run("id", &[what, name]);
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

impl Person {
    /// Creates a user; needs root.
    #[must_use]
    pub fn new() -> Person {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fbproof{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("useradd", &["--no-create-home", "--user-group", "--shell", "/usr/sbin/nologin", &name]);
        let (uid, gid) = (number(&name, "-u"), number(&name, "-g"));
        Person { name, uid, gid }
    }

    /// Adds the user to the other user's group.
    pub fn join(&self, other: &Person) {
        run("usermod", &["--append", "--groups", &other.name, &self.name]);
    }

    /// The identity that the server should see, with the primary group only.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let (uid, gid) = (forebay_model::Uid(self.uid), forebay_model::Gid(self.gid));
        Identity { uid, gid, groups: Vec::new() }
    }

    /// A command that runs as this user, with the groups of the user database; the program is its first argument.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
        command.args(["--init-groups", "--"]);
        command
    }

    /// Opens silent connections of this user, held until the relay is dropped.
    #[must_use]
    pub fn hold_connections(&self, relay: &str, socket: &Path, count: usize) -> Relay {
        let mut command = self.command();
        command.arg(relay).arg(socket).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut relay = Relay::new(command.spawn().expect("setpriv runs"));
        let mut output_text = [0; 5];
        relay.read_exact(&mut output_text).expect("connections");
        assert_eq!(&output_text, b"held\n");
        relay
    }

    /// A connection of this user after the handshake. `relay` is the path of `forebay-proof-relay`.
    pub fn connect(
        &self,
        relay: &str,
        socket: &Path,
        channel: Channel,
        client: u128,
    ) -> Result<(Raw, Welcome), Error> {
        let mut command = self.command();
        command.arg(relay).arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut raw = Raw::bare(Relay::new(command.spawn().expect("setpriv runs")));
        let welcome = raw.greet(&hello(channel, client), None)?;
        Ok((raw, welcome))
    }
}

impl Default for Person {
    fn default() -> Person {
        Person::new()
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        // A failing test must not fail again during cleanup.
        for _ in 0..TRIES {
            let gone = Command::new("userdel").arg(&self.name).stderr(Stdio::null()).status();
            if gone.is_ok_and(|status| status.success()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
