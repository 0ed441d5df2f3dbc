//! Server and mount processes for tests: this program runs again in that role, so that tests can kill it.

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
const PATIENCE: &str = "FOREBAY_TEST_PATIENCE";

/// Capacity of a test's service.
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

pub(crate) fn client_config(store: &Path, patience: Duration) -> ClientConfig {
    let job = Job { label: "mount".into(), user: "u".into(), group: "g".into(), nodes: 1, priority: 1 };
    let address = Address::Unix(socket(store));
    ClientConfig { job, request_timeout: patience, ..ClientConfig::new(address) }
}

fn command_for(role: &str, store: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("path of this program"));
    command.args(["--exact", "helper::unknown_role_is_refused", "--nocapture"]);
    command.env(ROLE, role).env(STORE, store).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

pub(crate) fn server(store: &Path, servers: u16) -> Child {
    let mut command = command_for("server", store);
    command.env(SERVERS, servers.to_string()).spawn().expect("server process")
}

pub(crate) fn mount(store: &Path, dir: &Path, options: &str, patience: Duration) -> Child {
    let mut command = command_for("mount", store);
    command.env(DIR, dir).env(OPTIONS, options).env(PATIENCE, patience.as_secs().to_string());
    command.spawn().expect("mount process")
}

/// Calls `act` when the process gets SIGTERM or SIGINT.
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

/// Runs in the role that another test has started this program in. Otherwise starts itself in one that does not exist.
#[test]
fn unknown_role_is_refused() {
    if std::env::var_os(ROLE).is_none() {
        let refused = command_for("jester", Path::new("")).stderr(Stdio::null()).status().unwrap();
        return assert!(!refused.success(), "{refused}");
    }
    let var = |name| std::env::var(name).unwrap_or_default();
    let store = PathBuf::from(var(STORE));
    // The process ends with its test.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM)).unwrap();
    match var(ROLE).as_str() {
        "server" => {
            let running = Server::start_cluster(&config(&store), var(SERVERS).parse().unwrap()).unwrap();
            running.into_iter().for_each(|server| server.wait().unwrap());
        }
        "mount" => {
            let mut options = Options::default();
            options.add(&var(OPTIONS)).unwrap();
            let patience = Duration::from_secs(var(PATIENCE).parse().unwrap());
            let mount = Mount {
                service: client_config(&store, patience),
                dir: var(DIR).into(),
                options,
                on_first_use: None,
            };
            let mounted = mount.start().unwrap();
            let stopper = mounted.stopper();
            on_signal(move || drop(stopper.stop()));
            mounted.serve().unwrap();
        }
        role => panic!("there is no role \"{role}\""),
    }
}
