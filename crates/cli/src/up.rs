//! `up`: a server in this process, or in one of its own.

use crate::failure::{Failure, Outcome};
use crate::places::Surroundings;
use crate::settings::Settings;
use crate::view::Started;
use crate::{detach, output, place, policy, signals};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig};
use forebay_model::{Bytes, ServerId};
use forebay_policy::share::Discipline;
use forebay_server::{Config, Medium, Running, Server, Stopper, parse_rate};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use std::net::SocketAddr;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;

/// What a server takes when nobody says how much it may.
const USUAL: Bytes = Bytes::mib(4096);
const LEAST: Bytes = Bytes::mib(64);

#[derive(Args, Clone)]
pub(crate) struct Up {
    /// The directory of the store; made if it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Bytes that files can fill, such as 4GiB; a store keeps what it was made with
    #[arg(long, value_name = "SIZE")]
    pub(crate) capacity: Option<Bytes>,
    /// Keep data in memory: fastest, lost with the machine (the default)
    #[arg(long, conflicts_with = "disk")]
    pub(crate) memory: bool,
    /// Keep data on the disk of the store's directory
    #[arg(long)]
    pub(crate) disk: bool,
    /// What stands behind the buffer, as dir:PATH, stripes:PATH,PATH,…, s3:BUCKET or model:DEVICE:BACKEND: its files appear here, and are changed there too
    #[arg(long, value_name = "BACKEND")]
    pub(crate) backend: Option<String>,
    /// The Unix socket to listen on
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on TCP too, such as 127.0.0.1:7411
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// The key file for TCP; made if it is not there
    #[arg(long, value_name = "FILE", env = "FOREBAY_KEY", hide_env_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// How jobs share the server, such as user-then-size-fair
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<String>,
    /// What enforces the policy: stride, tokens, fifo, gift, tbf
    #[arg(long, value_name = "NAME")]
    pub(crate) scheduler: Option<Discipline>,
    /// Serve no more than this, as a device would, such as 400MiB/s
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub(crate) device_rate: Option<Bytes>,
    /// Run so many servers of one service in this process, each with a store, socket and port beside the first's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64), conflicts_with = "server")]
    pub(crate) servers: Option<u16>,
    /// This server's number in the list of servers in forebay.toml
    #[arg(long, value_name = "N")]
    pub(crate) server: Option<u16>,
    /// Another server of the service, as tcp:host:port; may be given several times
    #[arg(long = "peer", value_name = "ADDR")]
    pub(crate) peers: Vec<String>,
    /// How often servers tell each other of their jobs, in milliseconds
    #[arg(long, value_name = "MS")]
    pub(crate) lambda: Option<u64>,
    /// Settings to use instead of the forebay.toml in this directory, ~/.config/forebay or /etc/forebay
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Run in the background; return when the server answers
    #[arg(long)]
    pub(crate) detach: bool,
    /// Print as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    pub(crate) background: bool,
    /// End, in order, when the process that started this one ends
    #[arg(long, hide = true)]
    pub(crate) with_parent: bool,
}

impl Up {
    pub(crate) fn run(self) -> Outcome {
        let settings = Settings::load(self.config.as_deref())?;
        let config = self.decide(&settings, &Surroundings::here())?;
        if self.detach {
            let started = detach::start(&config, self.servers, settings.path.as_deref())?;
            return output::show(&started, self.json);
        }
        if self.background {
            // Fails only for the leader of a group, who is in no need of a new session.
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

    /// Flags win over the file, the file over the defaults.
    fn decide(&self, settings: &Settings, here: &Surroundings) -> Outcome<Config> {
        let file_has = |key| settings.gives(key);
        let store = match &self.store {
            Some(store) => store.clone(),
            None if file_has("store") => settings.server.store.clone(),
            None => here
                .store()
                .ok_or_else(|| Failure::Usage("HOME is not set: name a directory with --store".to_owned()))?,
        };
        let store = whole(&store)?;
        let medium = match (self.memory, self.disk) {
            (false, true) => Medium::Disk,
            (true, _) => Medium::Memory,
            _ => settings.server.medium,
        };
        let asked = self.capacity.or(file_has("capacity").then_some(settings.server.capacity));
        let capacity = match asked {
            Some(capacity) => capacity,
            None => forebay_store::capacity_of(&store)?.unwrap_or_else(|| fitting(&store, medium)),
        };
        let server = self.server.map_or(settings.server.server, ServerId);
        let listed = settings.server.servers.iter().find(|member| member.server == server);
        let named = listed.and_then(|member| member.socket.clone()).map(PathBuf::from);
        let socket = self.socket.clone().or_else(|| settings.server.socket.clone()).or(named);
        let socket = whole(&socket.unwrap_or_else(|| here.socket(&store)))?;
        let key = self.key.clone().filter(|path| !path.as_os_str().is_empty());
        let key = key.or_else(|| settings.server.key.clone()).map(|key| whole(&key)).transpose()?;
        // Two users of one machine can both have a server only if none takes a port unasked.
        let in_list = listed.and_then(|member| member.address.trim_start_matches("tcp:").parse().ok());
        let asked = self.listen.or(in_list.filter(|_| !file_has("listen")));
        let tcp = asked.is_some() || if file_has("tcp") { settings.server.tcp } else { file_has("listen") };
        let listen = asked.unwrap_or(settings.server.listen);
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
            backend: self.backend.as_deref().or(usual.backend.as_deref()).map(whole_backend).transpose()?,
            socket: Some(socket),
            tcp,
            listen,
            key,
            ..settings.server.clone()
        })
    }

    fn serve(&self, config: &Config) -> Outcome {
        keep_log(self.background);
        let slot: Arc<OnceLock<Vec<Stopper>>> = Arc::default();
        let (stoppers, mut asked) = (slot.clone(), false);
        signals::on_stop(move || match stoppers.get() {
            Some(stoppers) if !asked => {
                asked = true;
                stoppers.iter().for_each(Stopper::stop);
            }
            // Still starting, or asked a second time: whatever was acknowledged is safe all the same.
            _ => std::process::exit(130),
        })?;
        let running = match self.servers {
            Some(count) => Server::start_several(config, count)?,
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

fn whole(path: &Path) -> Outcome<PathBuf> {
    absolute(path).map_err(|error| Failure::local("use", path, &error))
}

/// A back end by its whole path: the server may leave this directory.
fn whole_backend(name: &str) -> Outcome<String> {
    let Some((kind @ ("dir" | "stripes"), paths)) =
        name.split_once(':').filter(|(_, paths)| !paths.is_empty())
    else {
        return Ok(name.to_owned());
    };
    let one = |path: &str| Ok(whole(Path::new(path))?.display().to_string());
    let paths = match kind {
        "dir" => one(paths)?,
        _ => paths.split(',').map(one).collect::<Outcome<Vec<_>>>()?.join(","),
    };
    Ok(format!("{kind}:{paths}"))
}

/// What fits the machine without crowding out everybody else.
fn fitting(store: &Path, medium: Medium) -> Bytes {
    let spare = match medium {
        Medium::Memory => available_memory().map(|memory| memory.0 / 4),
        Medium::Disk => free_disk(store).map(|free| free.0 / 2),
    };
    let fits = spare.map_or(USUAL.0, |spare| spare.clamp(LEAST.0, USUAL.0));
    Bytes(fits >> 20 << 20)
}

/// A buffer in memory that fits the machine.
pub(crate) fn fitting_memory() -> Bytes {
    fitting(Path::new("/"), Medium::Memory)
}

/// Memory that can be had without swapping.
pub(crate) fn available_memory() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(Bytes::kib(line.split_whitespace().next()?.parse().ok()?))
}

fn free_disk(store: &Path) -> Option<Bytes> {
    let facts = store.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok())?;
    Some(Bytes(facts.f_bavail * facts.f_frsize))
}

/// Sends what the server has to say to standard error: everything worth knowing where that is a file, only trouble
/// where somebody sits in front of it.
pub(crate) fn keep_log(background: bool) {
    let level = match output::is_watched() && !background {
        true => LevelFilter::WARN,
        false => LevelFilter::INFO,
    };
    // Only one log can be set in a process, and this is the only place that does.
    let _ = tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).try_init();
}
