//! A server in a process of its own, which tests start, kill and restart.

use crate::meter::Meter;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Credential};
use forebay_model::{Bytes, Job, Member, ServerId};
use forebay_server::{Config, Full, Medium, Mode, Pipeline, Routing, Verify};
use forebay_store::Store;
use rustix::process::{Pid, Resource, Rlimit, Signal};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Parameters of a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Capacity for file data.
    pub capacity: Bytes,
    /// Size of one region.
    pub region: Bytes,
    /// Medium of the regions.
    pub medium: Medium,
    /// A client that is silent for longer has lost its session.
    pub session: Duration,
    /// Time limit for a reserved write.
    pub reservation: Duration,
    /// Time limit for a handshake.
    pub handshake: Duration,
    /// TCP address.
    pub listen: SocketAddr,
    /// Whether it has a back-end directory.
    pub has_backend: bool,
    /// How it drains to that directory.
    pub drain: Drains,
    /// Whether clients of its user write through shared memory.
    pub rings: bool,
    /// Which writes bypass the buffer; in `Traffic` mode streams are short and their route changes often.
    pub route: Mode,
    /// Whether bytes drain while more arrive, and what happens to a write that finds no space.
    pub flow: (Pipeline, Full),
}

/// How long a write waits for space where it could bypass a full buffer.
const SOON: Duration = Duration::from_millis(100);

/// The flow when the buffer is full, by its command-line suffix.
const FLOWS: [(&str, (Pipeline, Full)); 4] = [
    ("", (Pipeline::On, Full::Wait)),
    ("+bypass", (Pipeline::On, Full::Bypass)),
    ("+off+wait", (Pipeline::Off, Full::Wait)),
    ("+off", (Pipeline::Off, Full::Bypass)),
];

/// How a server drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drains {
    /// On request, and when the buffer is rather full.
    Lazily,
    /// At once, in small writes, with read-back.
    Eagerly,
    /// As `Eagerly`, to a directory with injected faults.
    WithFaults,
    /// On request, and when the buffer is nearly full, to a directory that does not answer while [`Plan::stall_file`] exists.
    Stalling,
}

impl Drains {
    const ALL: [(&'static str, Drains); 4] = [
        ("lazily", Drains::Lazily),
        ("eagerly", Drains::Eagerly),
        ("with-faults", Drains::WithFaults),
        ("stalling", Drains::Stalling),
    ];

    fn word(self) -> String {
        let (word, _) = Drains::ALL.iter().find(|(_, drains)| *drains == self).expect("known value");
        (*word).to_owned()
    }

    fn from_word(word: &str) -> Option<Drains> {
        Drains::ALL.iter().find(|(known, _)| *known == word).map(|&(_, drains)| drains)
    }
}

impl Plan {
    /// A plan with the default times.
    #[must_use]
    pub fn new(medium: Medium, capacity: Bytes, region: Bytes) -> Plan {
        let usual = Config::default().times;
        let (session, reservation, handshake) = (usual.session, usual.reservation, usual.handshake);
        Plan {
            capacity,
            region,
            medium,
            session,
            reservation,
            handshake,
            listen: forebay_testkit::address(),
            has_backend: false,
            drain: Drains::Lazily,
            rings: true,
            route: Mode::Buffer,
            flow: FLOWS[0].1,
        }
    }

    /// Without shared memory, so that all clients use sockets.
    #[must_use]
    pub fn without_rings(self) -> Plan {
        Plan { rings: false, ..self }
    }

    /// Number of command-line arguments for the plan.
    pub const WORDS: usize = 12;

    fn words(&self, store: &Path) -> [String; Plan::WORDS] {
        let millis = |time: Duration| time.as_millis().to_string();
        [
            store.display().to_string(),
            self.capacity.0.to_string(),
            self.region.0.to_string(),
            if self.medium == Medium::Memory { "memory" } else { "disk" }.to_owned(),
            millis(self.session),
            millis(self.reservation),
            millis(self.handshake),
            self.listen.to_string(),
            self.has_backend.to_string(),
            self.drain.word(),
            self.rings.to_string(),
            format!(
                "{}{}",
                self.route.name(),
                FLOWS.iter().find(|(_, flow)| *flow == self.flow).expect("known value").0
            ),
        ]
    }

    /// Parses the arguments of the server process.
    #[must_use]
    pub fn from_words(words: &[String]) -> Option<(PathBuf, Plan)> {
        let [
            store,
            capacity,
            region,
            medium,
            session,
            reservation,
            handshake,
            listen,
            has_backend,
            drain,
            rings,
            route,
        ] = words
        else {
            return None;
        };
        let bytes = |word: &String| word.parse().ok().map(Bytes);
        let time = |word: &String| word.parse().ok().map(Duration::from_millis);
        let (mode, flow) = route.split_at(route.find('+').unwrap_or(route.len()));
        let plan = Plan {
            capacity: bytes(capacity)?,
            region: bytes(region)?,
            medium: if medium == "memory" { Medium::Memory } else { Medium::Disk },
            session: time(session)?,
            reservation: time(reservation)?,
            handshake: time(handshake)?,
            listen: listen.parse().ok()?,
            has_backend: has_backend.parse().ok()?,
            drain: Drains::from_word(drain)?,
            rings: rings.parse().ok()?,
            route: mode.parse().ok()?,
            flow: FLOWS.iter().find(|(word, _)| *word == flow).map(|&(_, flow)| flow)?,
        };
        Some((PathBuf::from(store), plan))
    }

    /// The file beside a store that suspends injected faults while it exists.
    #[must_use]
    pub fn fault_pause_file(store: &Path) -> PathBuf {
        store.with_file_name("calm")
    }

    /// The file beside a store of which the back end does not answer while it exists.
    #[must_use]
    pub fn stall_file(store: &Path) -> PathBuf {
        store.with_file_name("stall")
    }

    /// The server's configuration.
    #[must_use]
    pub fn config(&self, store: &Path) -> Config {
        let mut config = Config::for_store(store);
        config.capacity = self.capacity;
        config.region = Some(self.region);
        config.medium = self.medium;
        config.listen = self.listen;
        config.backend = self.has_backend.then(|| format!("dir:{}", backing_dir(store).display()));
        if matches!(self.drain, Drains::Eagerly | Drains::WithFaults) {
            config.drain.threshold = 0;
            config.drain.age = Duration::ZERO;
            config.drain.write = Bytes(64 << 10);
            config.drain.verify = Verify::ReadBack;
        }
        if self.drain == Drains::Stalling {
            config.drain.threshold = 99;
            config.drain.age = Duration::from_secs(3600);
        }
        config.shared_memory = self.rings;
        let (pipeline, full) = self.flow;
        if full == Full::Bypass {
            // A write that can neither bypass a full buffer nor find space fails soon.
            config.drain.patience = SOON;
        }
        config.route =
            Routing { mode: self.route, stream: 3, pipeline, full: Some(full), ..Routing::default() };
        config.times.session = self.session;
        config.times.reservation = self.reservation;
        config.times.handshake = self.handshake;
        config
    }
}

/// The back-end directory of a store.
fn backing_dir(store: &Path) -> PathBuf {
    store.with_file_name("backend")
}

/// Configuration of a server in a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterConfig {
    /// Its id.
    pub server: ServerId,
    /// All servers of the cluster.
    pub servers: Vec<Member>,
    /// Increases with every change of the list.
    pub epoch: u64,
    /// The key that all servers share.
    pub key: PathBuf,
    /// Lifetime of cached directories of other servers.
    pub lease: Duration,
    /// Time limit for answers of other servers.
    pub peer: Duration,
    /// The back-end directory of the cluster, if any.
    pub backing_dir: Option<PathBuf>,
}

impl ClusterConfig {
    fn words(&self) -> Vec<String> {
        let member = |member: &Member| {
            let socket = member.socket.as_deref().unwrap_or_default();
            format!("{}|{}|{socket}", member.server, member.address)
        };
        vec![
            self.server.to_string(),
            self.servers.iter().map(member).collect::<Vec<_>>().join(","),
            self.epoch.to_string(),
            self.key.display().to_string(),
            self.lease.as_millis().to_string(),
            self.peer.as_millis().to_string(),
            self.backing_dir
                .as_ref()
                .map_or_else(String::new, |backing_dir| backing_dir.display().to_string()),
        ]
    }

    /// Parses the arguments of the server process.
    #[must_use]
    pub fn from_words(words: &[String]) -> Option<ClusterConfig> {
        let [server, list, epoch, key, lease, peer, backing_dir] = words else {
            return None;
        };
        let member = |text: &str| {
            let mut parts = text.split('|');
            let server = ServerId(parts.next()?.parse().ok()?);
            let (address, socket) = (parts.next()?.to_owned(), parts.next().map(str::to_owned));
            Some(Member { server, address, socket })
        };
        let time = |word: &String| word.parse().ok().map(Duration::from_millis);
        Some(ClusterConfig {
            server: ServerId(server.parse().ok()?),
            servers: list.split(',').map(member).collect::<Option<Vec<_>>>()?,
            epoch: epoch.parse().ok()?,
            key: PathBuf::from(key),
            lease: time(lease)?,
            peer: time(peer)?,
            backing_dir: (!backing_dir.is_empty()).then(|| PathBuf::from(backing_dir)),
        })
    }

    /// Adds the cluster to a server's configuration.
    pub fn apply(&self, config: &mut Config) {
        config.server = self.server;
        config.servers = self.servers.clone();
        config.epoch = self.epoch;
        config.key = Some(self.key.clone());
        config.times.lease = self.lease;
        config.times.peer = self.peer;
        config.backend =
            self.backing_dir.as_ref().map(|backing_dir| format!("dir:{}", backing_dir.display()));
        let own = self.servers.iter().find(|member| member.server == self.server);
        if let Some(listen) = own.and_then(|member| member.address.strip_prefix("tcp:")?.parse().ok()) {
            config.listen = listen;
        }
    }
}

/// How a client reaches the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// Over the Unix socket.
    Unix,
    /// Over TCP.
    Tcp,
}

impl By {
    /// Alternates between both.
    #[must_use]
    pub fn turn(number: u64) -> By {
        if number.is_multiple_of(2) { By::Unix } else { By::Tcp }
    }
}

/// A server process with a directory of its own.
pub struct Host {
    program: &'static str,
    /// Its parameters.
    pub plan: Plan,
    /// Its cluster, if any.
    pub cluster: Option<ClusterConfig>,
    dir: TempDir,
    child: Option<Child>,
}

impl Host {
    /// A running server. `program` is the path of `forebay-proof-server`.
    #[must_use]
    pub fn new(program: &'static str, plan: Plan) -> Host {
        let mut host = Host::prepare(program, plan);
        host.start();
        host
    }

    /// A server that is not yet started.
    #[must_use]
    pub fn prepare(program: &'static str, plan: Plan) -> Host {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host { program, plan, cluster: None, dir, child: None };
        if plan.has_backend {
            std::fs::create_dir(host.backing_dir()).expect("directory created");
            File::create(Plan::fault_pause_file(&host.store())).expect("file created");
        }
        host
    }

    /// Its back-end directory.
    #[must_use]
    pub fn backing_dir(&self) -> PathBuf {
        backing_dir(&self.store())
    }

    /// The directory of all its files.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The directory of its store.
    #[must_use]
    pub fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Its Unix socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.config().socket_path()
    }

    /// Its TCP address.
    #[must_use]
    pub fn tcp(&self) -> SocketAddr {
        self.plan.listen
    }

    /// Its key file.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.config().key_path()
    }

    fn config(&self) -> Config {
        let mut config = self.plan.config(&self.store());
        if let Some(cluster) = &self.cluster {
            cluster.apply(&mut config);
        }
        config
    }

    /// Starts it, and waits until it serves.
    pub fn start(&mut self) {
        if let Err(why) = self.try_start() {
            panic!("the server does not start: {why}");
        }
    }

    /// Starts it; the error is its log output.
    pub fn try_start(&mut self) -> Result<(), String> {
        self.spawn(Command::new(self.program));
        self.await_ready()
    }

    /// Starts it through a command that runs programs as another user, from a copy of the program which that user may
    /// execute.
    pub fn start_as(&mut self, mut command: Command, program: &Path) -> Result<(), String> {
        command.arg(program);
        self.spawn(command);
        self.await_ready()
    }

    /// Starts it without waiting.
    pub fn begin(&mut self) {
        self.spawn(Command::new(self.program));
    }

    fn spawn(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "the server runs already");
        let log = File::options().append(true).create(true).open(self.log_path()).expect("a log");
        command.args(self.plan.words(&self.store()));
        command.args(self.cluster.iter().flat_map(ClusterConfig::words));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        self.child = Some(child.expect("server process"));
    }

    /// Waits until it serves; the error is its log output.
    pub fn await_ready(&mut self) -> Result<(), String> {
        let before = self.log().len();
        let child = self.child.as_mut().expect("started server");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("piped output");
        BufReader::new(output).read_line(&mut line).expect("readable output");
        if line == "ready\n" {
            return Ok(());
        }
        let status = self.child.take().expect("started server").wait().expect("exit status");
        let log = self.log();
        let output = log.get(before.min(log.len())..).filter(|output| !output.is_empty()).unwrap_or(&log);
        Err(format!("{status}: {}", output.trim()))
    }

    /// Whether it was started.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running server").id()
    }

    /// The resources that it uses.
    #[must_use]
    pub fn meter(&self) -> Meter {
        Meter::of(self.pid())
    }

    /// Kills it with `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("running server");
        child.kill().expect("killed");
        child.wait().expect("exit status");
    }

    /// Stops its process for the given time (`SIGSTOP`, then `SIGCONT`), as a paused virtual machine.
    pub fn pause(&self, time: Duration) {
        self.signal(Signal::STOP);
        std::thread::sleep(time);
        self.signal(Signal::CONT);
    }

    /// Stops its process until it is killed.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    /// Makes its back end, which has to be [`Drains::Stalling`], stop answering or answer again.
    pub fn stall_backend(&self, stalls: bool) {
        let file = Plan::stall_file(&self.store());
        if stalls { File::create(file).map(drop) } else { std::fs::remove_file(file) }.expect("file changed");
    }

    /// Leaves it `spare` descriptors more than it has open; `None` restores the limit that it had.
    pub fn limit_descriptors(&self, spare: Option<u64>) {
        let pid = Pid::from_child(self.child.as_ref().expect("running server"));
        // The server has raised its limit to the maximum.
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        let current = spare.map_or(most, |spare| Some(self.meter().descriptors as u64 + spare));
        let limit = Rlimit { current, maximum: most };
        rustix::process::prlimit(Some(pid), Resource::Nofile, limit).expect("limit set");
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("running server");
        rustix::process::kill_process(Pid::from_child(child), signal).expect("signal sent");
    }

    /// Runs `act` while the server is killed after the given time, and restarted.
    pub fn killed_within<T>(&mut self, patience: Duration, act: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(patience);
                self.kill();
                self.start();
            });
            act()
        })
    }

    /// Shuts it down.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("running server");
        drop(child.stdin.take());
        let status = child.wait().expect("exit status");
        assert!(status.success(), "the server ended with {status}: {}", self.log());
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Everything it wrote to its standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Configuration of a client.
    #[must_use]
    pub fn client_config(&self, by: By) -> ClientConfig {
        let tcp = self.tcp();
        let address = match by {
            By::Unix => Address::Unix(self.socket()),
            By::Tcp => Address::Tcp { host: tcp.ip().to_string(), port: tcp.port() },
        };
        let (user, group) = ("prover".to_owned(), "provers".to_owned());
        ClientConfig {
            job: Job { label: "4711".to_owned(), user, group, nodes: 1, priority: 1 },
            credential: Credential::File(self.key()),
            ..ClientConfig::new(address)
        }
    }

    /// A client of the given job.
    #[must_use]
    pub fn client_of(&self, job: usize, by: By) -> Client {
        let mut config = self.client_config(by);
        config.job.label = format!("{job}");
        Client::connect(config).expect("client connected")
    }

    /// A connected client.
    #[must_use]
    pub fn client(&self, by: By) -> Client {
        Client::connect(self.client_config(by)).expect("client connected")
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        if self.store().join("store").exists()
            && let Err(error) = Store::remove(&self.store())
            && !std::thread::panicking()
        {
            panic!("the store cannot be removed: {error}");
        }
        let log = self.log();
        if log.contains("panicked") && !std::thread::panicking() {
            panic!("the server panicked: {log}");
        }
    }
}
