//! Real users of this machine, made for a test and removed after it.

use crate::raw::{Raw, Relay, hello};
use forebay_model::{Error, Identity};
use forebay_wire::{Channel, Welcome};
use std::io::Read;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A user of this machine with a group of the same name.
pub struct Person {
    name: String,
    /// Its number.
    pub uid: u32,
    /// Its group's number.
    pub gid: u32,
}

/// How often the user database is tried that another test has locked.
const TRIES: u32 = 100;

fn run(program: &str, words: &[&str]) -> Output {
    let mut said = String::new();
    for _ in 0..TRIES {
        let output = Command::new(program).args(words).output();
        let output = output.unwrap_or_else(|error| panic!("{program} does not run: {error}"));
        if output.status.success() {
            return output;
        }
        said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        if !said.contains("lock") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{program} {words:?}: {said}");
}

fn number(name: &str, what: &str) -> u32 {
    let output = run("id", &[what, name]);
    String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
}

impl Person {
    /// Makes one; only root may.
    #[must_use]
    pub fn new() -> Person {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("fbproof{}x{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        run("useradd", &["--no-create-home", "--user-group", "--shell", "/usr/sbin/nologin", &name]);
        let (uid, gid) = (number(&name, "-u"), number(&name, "-g"));
        Person { name, uid, gid }
    }

    /// Puts it into the other's group too.
    pub fn join(&self, other: &Person) {
        run("usermod", &["--append", "--groups", &other.name, &self.name]);
    }

    /// As the server should see it, with its primary group alone.
    #[must_use]
    pub fn identity(&self) -> Identity {
        let (uid, gid) = (forebay_model::Uid(self.uid), forebay_model::Gid(self.gid));
        Identity { uid, gid, groups: Vec::new() }
    }

    /// A command that runs as this user, with the groups that the machine knows of; the program is its first
    /// argument.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
        command.args(["--init-groups", "--"]);
        command
    }

    /// Connections of this user on which nothing is said, held until the relay is dropped.
    #[must_use]
    pub fn knock(&self, relay: &str, socket: &Path, count: usize) -> Relay {
        let mut command = self.command();
        command.arg(relay).arg(socket).arg(count.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut relay = Relay::new(command.spawn().expect("setpriv runs"));
        let mut said = [0; 5];
        relay.read_exact(&mut said).expect("it connects");
        assert_eq!(&said, b"held\n");
        relay
    }

    /// A connection of this user that was let in. `relay` is the path of `forebay-proof-relay`.
    pub fn connect(
        &self,
        relay: &str,
        socket: &Path,
        channel: Channel,
        client: u128,
    ) -> Result<(Raw, Welcome), Error> {
        let mut command = self.command();
        command.arg(relay).arg(socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut raw = Raw::over(Box::new(Relay::new(command.spawn().expect("setpriv runs"))));
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
        // A test that fails has more important things to say.
        for _ in 0..TRIES {
            let gone = Command::new("userdel").arg(&self.name).stderr(Stdio::null()).status();
            if gone.is_ok_and(|status| status.success()) {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
