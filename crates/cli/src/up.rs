//! `up`: runs a server in this process, or in a background process.

use crate::failure::{Failure, Outcome};
use crate::places::Surroundings;
use crate::settings::Settings;
use crate::shard::refuse_servers;
use crate::view::Started;
use crate::{detach, output, place, policy, signals};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use forebay_model::{Bytes, ServerId};
use forebay_policy::share::Discipline;
use forebay_server::{Config, Medium, Running, Server, Stopper, parse_rate};
use forebay_store::available_memory;
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// Default capacity of a server.
const USUAL: Bytes = Bytes::mib(4096);
const LEAST: Bytes = Bytes::mib(64);
/// OOM score of the server: the kernel kills 1000 first and -1000 never.
const OOM_SCORE: &str = "-500";

#[derive(Args, Clone)]
pub(crate) struct Up {
    /// The directory of the store; created if missing
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Capacity on this machine, such as 4GiB, divided between its servers; an existing store keeps its
    /// capacity
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<Bytes>,
    /// Keep data in memory: fastest, lost with the machine (the default)
    #[arg(long, conflicts_with = "disk")]
    pub(crate) memory: bool,
    /// Keep data on the disk of the store's directory
    #[arg(long)]
    pub(crate) disk: bool,
    /// Back end: dir:PATH, stripes:PATH,PATH,…, s3:BUCKET or model:DEVICE:BACKEND; its files are visible in the
    /// buffer, and changes are drained to it
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// The Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on TCP too, such as 127.0.0.1:7411
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// The key file for TCP; the first server creates it if it is missing
    #[arg(long, value_name = "FILE", env = "FOREBAY_KEY", hide_env_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// Sharing policy for jobs, such as user-then-size-fair
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// Scheduler that enforces the policy: stride, tokens, fifo, gift, tbf
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler: Option<Discipline>,
    /// Limit the throughput to that of a device, such as 400MiB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) device_rate: Option<Bytes>,
    /// Run N shards of one service in this process, each with its own store, socket and port beside the
    /// first's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), conflicts_with = "server")]
    pub(crate) shards: Option<u16>,
    #[arg(long = "servers", value_name = "N", hide = true, value_parser = refuse_servers)]
    #[allow(dead_code, reason = "it cannot be given")]
    retired: Option<Infallible>,
    /// The number of this process's shard in the list in forebay.toml
    #[arg(long = "shard", alias = "server", value_name = "N")]
    pub(crate) server: Option<u16>,
    /// Another server of the service, as tcp:host:port; may be given several times
    #[arg(long = "peer", value_name = "ADDR")]
    pub(crate) peers: Vec<String>,
    /// How often servers exchange their job tables, in milliseconds
    #[arg(long, value_name = "MS")]
    pub(crate) lambda: Option<u64>,
    /// Settings to use instead of the forebay.toml in this directory, ~/.config/forebay or /etc/forebay
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Run in the background; return when the server is ready
    #[arg(long)]
    pub(crate) detach: bool,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Internal: this is the background process
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// Stop gracefully when the parent process exits
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
    /// Also listen on this socket, which admits every user who can reach it: the programs of a run
    #[arg(long, hide = true)]
    pub(crate) programs_socket: Option<PathBuf>,
}

impl Up {
    pub(crate) fn run(self) -> Outcome {
        let settings = Settings::load(self.config.as_deref())?;
        let config = self.merge(&settings, &Surroundings::here())?;
        require_key(&config)?;
        if self.detach {
            let started = detach::start(&config, self.shards, settings.path.as_deref())?;
            return output::show(&started, self.json);
        }
        if self.background {
            // Fails only for the leader of a process group, which needs no new session.
            let _ = setsid();
            std::env::set_current_dir("/")
                .map_err(|error| Failure::local("enter", Path::new("/"), &error))?;
        }
        if self.with_parent {
            set_parent_process_death_signal(Some(Signal::TERM))
                .map_err(|error| Failure::Failed(format!("cannot watch the parent process: {error}")))?;
        }
        self.serve(&config)
    }

    /// Merges the settings: flags override the file, the file overrides the defaults.
    fn merge(&self, settings: &Settings, here: &Surroundings) -> Outcome<Config> {
        let file_has = |key| settings.gives(key);
        let store = self.store_dir(settings, here)?;
        let medium = match (self.memory, self.disk) {
            (false, true) => Medium::Disk,
            (true, _) => Medium::Memory,
            _ => settings.server.medium,
        };
        let requested = self.capacity.or(file_has("capacity").then_some(settings.server.capacity));
        let each = |all: Bytes| Bytes(all.0 / u64::from(self.shards.unwrap_or(1)));
        let capacity = match requested {
            Some(capacity) => each(capacity),
            None => forebay_store::capacity_of(&store)?.unwrap_or_else(|| each(fitting(&store, medium))),
        };
        let server = self.server.map_or(settings.server.server, ServerId);
        let listed = settings.server.servers.iter().find(|member| member.server == server);
        let named = listed.and_then(|member| member.socket.clone()).map(PathBuf::from);
        let socket = self.socket.clone().or_else(|| settings.server.socket.clone()).or(named);
        let socket = absolute_path(&socket.unwrap_or_else(|| here.socket(&store)))?;
        let key = self.key.clone().filter(|path| !path.as_os_str().is_empty());
        let key = key.or_else(|| settings.server.key.clone()).map(|key| absolute_path(&key)).transpose()?;
        // TCP is off unless requested: otherwise two users of one machine could not both run a server.
        let in_list = listed.and_then(|member| member.address.trim_start_matches("tcp:").parse().ok());
        let requested = self.listen.or(in_list.filter(|_| !file_has("listen")));
        let tcp =
            requested.is_some() || if file_has("tcp") { settings.server.tcp } else { file_has("listen") };
        let listen = requested.unwrap_or(settings.server.listen);
        let (usual, policy) = (&settings.server, self.policy.as_deref());
        let policy = policy.map_or(Ok(usual.policy.clone()), |text| policy::read("--policy", text))?;
        let topology = settings.server.drain.topology.as_deref().map(place::described).transpose()?;
        Ok(Config {
            topology,
            policy,
            scheduler: self.scheduler.unwrap_or(usual.scheduler),
            device_rate: self.device_rate.or(usual.device_rate),
            server,
            peers: if self.peers.is_empty() { usual.peers.clone() } else { self.peers.clone() },
            lambda: self.lambda.map_or(usual.lambda, Duration::from_millis),
            store,
            capacity,
            medium,
            backend: self
                .backend
                .as_deref()
                .or(usual.backend.as_deref())
                .map(absolute_backend)
                .transpose()?,
            socket: Some(socket),
            programs_socket: self.programs_socket.clone(),
            tcp,
            listen,
            key,
            ..settings.server.clone()
        })
    }

    fn store_dir(&self, settings: &Settings, here: &Surroundings) -> Outcome<PathBuf> {
        let store = match &self.store {
            Some(store) => store.clone(),
            None if settings.gives("store") => settings.server.store.clone(),
            None => here
                .store()
                .ok_or_else(|| Failure::Usage("HOME is not set: name a directory with --store".to_owned()))?,
        };
        absolute_path(&store)
    }

    fn serve(&self, config: &Config) -> Outcome {
        keep_log(self.background);
        lower_oom_score();
        let slot: Arc<OnceLock<Vec<Stopper>>> = Arc::default();
        let (stoppers, mut signaled) = (slot.clone(), false);
        signals::on_stop(move || match stoppers.get() {
            Some(stoppers) if !signaled => {
                signaled = true;
                stoppers.iter().for_each(Stopper::stop);
            }
            // Still starting, or the second signal: acknowledged data is safe in either case.
            _ => std::process::exit(130),
        })?;
        let running = match self.shards {
            Some(count) => Server::start_cluster(config, count)?,
            None => vec![Server::start(config.clone())?],
        };
        let _ = slot.set(running.iter().map(Running::stopper).collect());
        let status = Client::connect(ClientConfig::new(Address::Unix(config.socket_path())))
            .and_then(|client| client.status())?;
        let refused = running.iter().filter_map(Running::refusal).collect();
        let started = Started::new(running[0].addresses(), &status, running.len(), refused);
        match self.background {
            true => output::message(&started)?,
            false => output::show(&started, self.json)?,
        }
        running.into_iter().try_for_each(Running::wait)?;
        Ok(())
    }
}

/// Requires the key file for servers on several hosts, which authenticate each other by one shared key. Only
/// the first server of a new service creates the key: the first would reject a server with another key.
fn require_key(config: &Config) -> Outcome {
    let key = config.key_path();
    let others = || config.servers.iter().filter(|member| member.server != config.server);
    if key.exists() || !others().any(|member| member.address.starts_with("tcp:")) {
        return Ok(());
    }
    let first = others().min_by_key(|member| member.server).filter(|first| first.server < config.server);
    let from = match first {
        Some(first) => format!("server {} ({}), which makes it", first.server, first.address),
        None if forebay_store::capacity_of(&config.store)?.is_some() => {
            "another server of the service".to_owned()
        }
        None => return Ok(()),
    };
    let text = format!(
        "the key file {} is missing, and a server that joins others needs their key: copy it from {from}",
        key.display()
    );
    Err(Failure::Failed(text))
}

fn absolute_path(path: &Path) -> Outcome<PathBuf> {
    absolute(path).map_err(|error| Failure::local("use", path, &error))
}

/// A back end with absolute paths: the server may change its working directory.
fn absolute_backend(name: &str) -> Outcome<String> {
    let Some((kind @ ("dir" | "stripes"), paths)) =
        name.split_once(':').filter(|(_, paths)| !paths.is_empty())
    else {
        return Ok(name.to_owned());
    };
    let one = |path: &str| Ok(absolute_path(Path::new(path))?.display().to_string());
    let paths = match kind {
        "dir" => one(paths)?,
        _ => paths.split(',').map(one).collect::<Outcome<Vec<_>>>()?.join(","),
    };
    Ok(format!("{kind}:{paths}"))
}

/// The default capacity: limited so that other users of the machine keep enough memory or disk space.
fn fitting(store: &Path, medium: Medium) -> Bytes {
    let spare = match medium {
        Medium::Memory => available_memory().map(|memory| memory.0 / 4),
        Medium::Disk => free_disk(store).map(|free| free.0 / 2),
    };
    let fits = spare.map_or(USUAL.0, |spare| spare.clamp(LEAST.0, USUAL.0));
    Bytes(fits >> 20 << 20)
}

/// The default capacity of a buffer in memory on this machine.
pub(crate) fn fitting_memory() -> Bytes {
    fitting(Path::new("/"), Medium::Memory)
}

/// Lowers the OOM score of this process, since the kernel does not reclaim a buffer's memory with its server.
/// Keeps a score that an administrator has set.
fn lower_oom_score() {
    let path = "/proc/self/oom_score_adj";
    if std::fs::read_to_string(path).is_ok_and(|score| score.trim() == "0") {
        // Needs a privilege that the process may lack.
        let _ = std::fs::write(path, OOM_SCORE);
    }
}

fn free_disk(store: &Path) -> Option<Bytes> {
    let facts = store.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok())?;
    Some(Bytes(facts.f_bavail * facts.f_frsize))
}

/// Logs to standard error: at info level in the background, where it is a file, and only warnings on a
/// terminal.
pub(crate) fn keep_log(background: bool) {
    let level = match output::is_watched() && !background {
        true => LevelFilter::WARN,
        false => LevelFilter::INFO,
    };
    // Fails only if a log is set already, and no other code sets one.
    let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init();
}
