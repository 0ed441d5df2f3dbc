//! Processes of a test's own: this program run once more, as a server or as a mount, so that they can be killed.

use forebay_client::{Address, ClientConfig};
use forebay_fuse::{Mount, Options};
use forebay_model::{Bytes, Job};
use forebay_server::{Config, Medium, Server};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const ROLE: &str = "FOREBAY_TEST_ROLE";
const STORE: &str = "FOREBAY_TEST_STORE";
const DIR: &str = "FOREBAY_TEST_DIR";
const OPTIONS: &str = "FOREBAY_TEST_OPTIONS";
const SERVERS: &str = "FOREBAY_TEST_SERVERS";

/// Bytes that a test's service can hold.
pub(crate) const CAPACITY: Bytes = Bytes::mib(256);

fn config(store: &Path) -> Config {
    Config {
        capacity: CAPACITY,
        region: Some(Bytes::mib(8)),
        medium: Medium::Disk,
        tcp: false,
        ..Config::for_store(store.to_owned())
    }
}

pub(crate) fn socket(store: &Path) -> PathBuf {
    config(store).socket_path()
}

pub(crate) fn client_config(store: &Path) -> ClientConfig {
    let job = Job { label: "mount".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
    let address = Address::Unix(socket(store));
    ClientConfig { job, request_timeout: Duration::from_secs(60), ..ClientConfig::new(address) }
}

fn again(role: &str, store: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
    command.args(["--exact", "helper::plays_its_role", "--nocapture"]);
    command.env(ROLE, role).env(STORE, store).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

pub(crate) fn server(store: &Path, servers: u16) -> Child {
    let mut command = again("server", store);
    command.env(SERVERS, servers.to_string()).spawn().expect("a server can be started")
}

pub(crate) fn mount(store: &Path, dir: &Path, options: &str) -> Child {
    let mut command = again("mount", store);
    command.env(DIR, dir).env(OPTIONS, options);
    command.spawn().expect("a mount can be started")
}

/// Does this when somebody wants the process to end.
fn on_signal(act: impl FnOnce() + Send + 'static) {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut terminate, mut interrupt) = {
        let _within = runtime.enter();
        (signal(SignalKind::terminate()).unwrap(), signal(SignalKind::interrupt()).unwrap())
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        });
        act();
    });
}

/// Does nothing unless another test has started this program to play a part.
#[test]
fn plays_its_role() {
    let var = |name| std::env::var(name).unwrap_or_default();
    let store = PathBuf::from(var(STORE));
    if !var(ROLE).is_empty() {
        // Whatever happens to the test, nothing of it stays behind.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).unwrap();
    }
    match var(ROLE).as_str() {
        "server" => {
            let running = Server::start_several(&config(&store), var(SERVERS).parse().unwrap()).unwrap();
            running.into_iter().for_each(|server| server.wait().unwrap());
        }
        "mount" => {
            let mut options = Options::default();
            options.add(&var(OPTIONS)).unwrap();
            let mount = Mount { service: client_config(&store), dir: var(DIR).into(), options };
            let mounted = mount.start().unwrap();
            let stopper = mounted.stopper();
            on_signal(move || drop(stopper.stop()));
            mounted.serve().unwrap();
        }
        _ => {}
    }
}
