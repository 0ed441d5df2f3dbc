//! Hosts in network namespaces, connected by a bridge; one of them is disconnected and reconnected.
//!
//! The test runs itself a second time on the host of the clients; the environment variable tells it so.

use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Credential, OpenOptions};
use forebay_model::{Bytes, Error, ErrorKind, Member, ServerId};
use forebay_proof::{ClusterConfig, Host, Plan, is_root, pattern, skip};
use forebay_server::Medium;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_forebay-proof-server");
const TEST: &str = "disconnected_host_is_named_in_errors_and_used_again";
const INSIDE: &str = "FOREBAY_PROOF_NETWORKS";
const SERVERS: u16 = 3;
const PORT: u16 = 7411;
/// Request timeout of the clients.
const PATIENCE: Duration = Duration::from_secs(2);
/// Reached only if something hangs.
const LOST: Duration = Duration::from_secs(60);

/// Hosts in network namespaces. The last one is the clients'.
struct Networks {
    name: String,
}

impl Networks {
    fn host(&self, number: u16) -> String {
        format!("{}h{number}", self.name)
    }

    fn hub(&self) -> String {
        format!("{}hub", self.name)
    }

    /// Creates them; the error is what is not permitted on this host.
    fn make() -> Result<Networks, String> {
        let networks = Networks { name: format!("fb{}", std::process::id()) };
        let hub = networks.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "name", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
        for number in 1..=SERVERS + 1 {
            let (host, port) = (networks.host(number), format!("port{number}"));
            ip(&["netns", "add", &host])?;
            let pair = ["type", "veth", "peer", "name", "wire", "netns", &host];
            ip(&[&["-n", &hub, "link", "add", "name", &port][..], &pair].concat())?;
            ip(&["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
            ip(&["-n", &host, "addr", "add", &format!("10.77.0.{number}/24"), "dev", "wire"])?;
            ip(&["-n", &host, "link", "set", "wire", "up"])?;
            ip(&["-n", &host, "link", "set", "lo", "up"])?;
        }
        Ok(networks)
    }

    fn disconnect(&self, number: u16) {
        ip(&["-n", &self.hub(), "link", "set", &format!("port{number}"), "down"]).expect("link down");
    }

    fn reconnect(&self, number: u16) {
        ip(&["-n", &self.hub(), "link", "set", &format!("port{number}"), "up"]).expect("link up");
    }

    fn within(&self, number: u16) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(number)]);
        command
    }
}

impl Drop for Networks {
    fn drop(&mut self) {
        if std::env::var_os(INSIDE).is_some() {
            return;
        }
        for number in 1..=SERVERS + 1 {
            // It may never have been created.
            let _ = ip(&["netns", "del", &self.host(number)]);
        }
        let _ = ip(&["netns", "del", &self.hub()]);
    }
}

fn ip(words: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(words).output().map_err(|error| format!("ip: {error}"))?;
    match ran.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", words.join(" "), String::from_utf8_lossy(&ran.stderr).trim())),
    }
}

#[test]
fn disconnected_host_is_named_in_errors_and_used_again() {
    if let Ok(name) = std::env::var(INSIDE) {
        return inside(&Networks { name });
    }
    if !is_root() {
        return skip(TEST, "only root can create network namespaces");
    }
    let networks = match Networks::make() {
        Ok(networks) => networks,
        Err(why) => return skip(TEST, &format!("network namespaces are not permitted: {why}")),
    };
    let mut command = networks.within(SERVERS + 1);
    command.arg(std::env::current_exe().expect("this program")).args(["--exact", TEST, "--nocapture"]);
    let ran = command.env(INSIDE, &networks.name).output().expect("test process");
    let stderr = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{stderr}\n{}", String::from_utf8_lossy(&ran.stdout));
}

fn servers(networks: &Networks, key: &Path) -> Vec<Host> {
    let member = |number| Member {
        server: ServerId(number),
        address: format!("tcp:10.77.0.{number}:{PORT}"),
        socket: None,
    };
    let list: Vec<Member> = (1..=SERVERS).map(member).collect();
    let plan = Plan::new(Medium::Disk, Bytes::mib(64), Bytes::mib(4));
    let mut hosts = Vec::new();
    for number in 1..=SERVERS {
        let mut host = Host::prepare(PROGRAM, plan);
        let (server, servers, key) = (ServerId(number), list.clone(), key.to_owned());
        let (lease, peer) = (Duration::from_millis(500), Duration::from_secs(1));
        host.cluster = Some(ClusterConfig { server, servers, epoch: 1, key, lease, peer, backing_dir: None });
        let started = host.start_as(networks.within(number), Path::new(PROGRAM));
        started.expect("server started");
        hosts.push(host);
    }
    hosts
}

fn write(client: &Client, path: &str, seed: u64) -> Result<(), Error> {
    let file = client.open(path, OpenOptions::CREATE)?;
    file.pwrite(0, &pattern(seed, 300_000))?;
    file.close()
}

fn inside(networks: &Networks) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let key = dir.path().join("key");
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
    writeln!(file.expect("a key file"), "{}", "5a".repeat(32)).expect("a key");
    let _hosts = servers(networks, &key);
    let address = Address::Tcp { host: "10.77.0.1".to_owned(), port: PORT };
    let config = ClientConfig {
        credential: Credential::File(key),
        connect_timeout: Duration::from_secs(1),
        request_timeout: PATIENCE,
        ..ClientConfig::new(address)
    };
    let client = Client::connect(config).expect("client connected");
    let begin = Instant::now();
    // A request that timed out may have been executed.
    while client.mkdir("/d", 0o755).is_err_and(|error| error.kind() != ErrorKind::Exists) {
        assert!(begin.elapsed() < LOST, "the servers do not join");
    }
    let striping = forebay_model::Striping { width: 1, stripe: 64 << 10 };
    while let Err(error) = client.set_layout("/d", Some(striping)) {
        assert!(begin.elapsed() < LOST, "cannot set the layout: {error}");
    }
    let mut kept = Vec::new();
    for number in 0..12 {
        while let Err(error) = write(&client, &format!("/d/before{number}"), number) {
            assert!(begin.elapsed() < LOST, "write failed with all hosts connected: {error}");
        }
        kept.push((format!("/d/before{number}"), number));
    }
    networks.disconnect(3);
    let (mut done, mut named) = (0, 0);
    for number in 100..112 {
        let path = format!("/d/during{number}");
        match write(&client, &path, number) {
            Ok(()) => {
                done += 1;
                kept.push((path, number));
            }
            Err(error) => {
                assert!(error.kind().is_no_answer(), "{error}");
                named += u32::from(error.to_string().contains("10.77.0.3"));
            }
        }
    }
    assert!(done > 0, "files on the connected hosts can be written");
    assert!(named > 0, "errors name the server");
    networks.reconnect(3);
    for number in 200..212 {
        let path = format!("/d/after{number}");
        let begin = Instant::now();
        while let Err(error) = write(&client, &path, number) {
            assert!(begin.elapsed() < LOST, "the reconnected host is not used: {error}");
        }
        kept.push((path, number));
    }
    for (path, seed) in kept {
        let file = client.open(&path, OpenOptions::READ).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut bytes = vec![0; 300_001];
        let count = file.pread(0, &mut bytes).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(bytes[..count] == pattern(seed, 300_000), "{path}: acknowledged data differs");
    }
}
