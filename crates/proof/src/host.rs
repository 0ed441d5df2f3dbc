//! A server in a process of its own: started, killed, started again where it was.

use crate::meter::Meter;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Credential};
use forebay_model::{Bytes, Job, Member, ServerId};
use forebay_server::{Config, Full, Medium, Mode, Pipeline, Routing, Verify};
use forebay_store::Store;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// What a server is started with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Bytes that files can fill.
    pub capacity: Bytes,
    /// Bytes in one region.
    pub region: Bytes,
    /// What the regions live on.
    pub medium: Medium,
    /// After so long without a word a client is gone.
    pub session: Duration,
    /// The time to fill a reservation.
    pub reservation: Duration,
    /// The time of a handshake.
    pub handshake: Duration,
    /// Its address on TCP.
    pub listen: SocketAddr,
    /// Whether it stands before a directory.
    pub before: bool,
    /// How it drains to that directory.
    pub drain: Drains,
    /// Whether clients of its user write by shared memory.
    pub rings: bool,
    /// Which writes go past the buffer; by traffic, streams are short and change their way often.
    pub route: Mode,
    /// Whether bytes leave while more come, and what becomes of a write that finds no room.
    pub flow: (Pipeline, Full),
}

/// How long a write waits for room where it could go past a full buffer.
const SOON: Duration = Duration::from_millis(100);

/// How bytes flow when a buffer is full, by what it is called on a command line.
const FLOWS: [(&str, (Pipeline, Full)); 4] = [
    ("", (Pipeline::On, Full::Wait)),
    ("+bypass", (Pipeline::On, Full::Bypass)),
    ("+off+wait", (Pipeline::Off, Full::Wait)),
    ("+off", (Pipeline::Off, Full::Bypass)),
];

/// How a server drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drains {
    /// When it is asked, and when it is rather full.
    Lazily,
    /// At once, in small pieces, reading everything back.
    Eagerly,
    /// The same, to a directory that fails now and then.
    WithFaults,
}

impl Drains {
    const ALL: [(&'static str, Drains); 3] =
        [("lazily", Drains::Lazily), ("eagerly", Drains::Eagerly), ("with-faults", Drains::WithFaults)];

    fn word(self) -> String {
        let (word, _) = Drains::ALL.iter().find(|(_, drains)| *drains == self).expect("all are listed");
        (*word).to_owned()
    }

    fn from_word(word: &str) -> Option<Drains> {
        Drains::ALL.iter().find(|(known, _)| *known == word).map(|&(_, drains)| drains)
    }
}

impl Plan {
    /// The usual times.
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
            listen: forebay_dice::address(),
            before: false,
            drain: Drains::Lazily,
            rings: true,
            route: Mode::Buffer,
            flow: FLOWS[0].1,
        }
    }

    /// The same, with clients that always ask, also those of its user.
    #[must_use]
    pub fn without_rings(self) -> Plan {
        Plan { rings: false, ..self }
    }

    /// How many words on the command line of the server process are the plan's.
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
            self.before.to_string(),
            self.drain.word(),
            self.rings.to_string(),
            format!(
                "{}{}",
                self.route.name(),
                FLOWS.iter().find(|(_, flow)| *flow == self.flow).expect("all are listed").0
            ),
        ]
    }

    /// What the words on the command line of the server process mean.
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
            before,
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
            before: before.parse().ok()?,
            drain: Drains::from_word(drain)?,
            rings: rings.parse().ok()?,
            route: mode.parse().ok()?,
            flow: FLOWS.iter().find(|(word, _)| *word == flow).map(|&(_, flow)| flow)?,
        };
        Some((PathBuf::from(store), plan))
    }

    /// Where a file is, beside a store, as long as the directory behind it is not to fail.
    #[must_use]
    pub fn calm(store: &Path) -> PathBuf {
        store.with_file_name("calm")
    }

    /// The server's configuration.
    #[must_use]
    pub fn config(&self, store: &Path) -> Config {
        let mut config = Config::for_store(store);
        config.capacity = self.capacity;
        config.region = Some(self.region);
        config.medium = self.medium;
        config.listen = self.listen;
        config.backend = self.before.then(|| format!("dir:{}", behind(store).display()));
        if self.drain != Drains::Lazily {
            config.drain.threshold = 0;
            config.drain.age = Duration::ZERO;
            config.drain.write = Bytes(64 << 10);
            config.drain.verify = Verify::ReadBack;
        }
        config.shared_memory = self.rings;
        let (pipeline, full) = self.flow;
        if full == Full::Bypass {
            // Who can neither go past a full buffer nor find room is told soon.
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

/// The directory behind a store.
fn behind(store: &Path) -> PathBuf {
    store.with_file_name("behind")
}

/// The place of a server among several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// Its number.
    pub server: ServerId,
    /// All servers of the service.
    pub servers: Vec<Member>,
    /// Grows whenever the list changes.
    pub epoch: u64,
    /// The key that all of them have.
    pub key: PathBuf,
    /// How long what a server knows of others' directories counts.
    pub lease: Duration,
    /// How long another server may take to answer.
    pub peer: Duration,
    /// The directory that all of them stand before, if any.
    pub behind: Option<PathBuf>,
}

impl Seat {
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
            self.behind.as_ref().map_or_else(String::new, |behind| behind.display().to_string()),
        ]
    }

    /// What the words on the command line of the server process mean.
    #[must_use]
    pub fn from_words(words: &[String]) -> Option<Seat> {
        let [server, list, epoch, key, lease, peer, behind] = words else {
            return None;
        };
        let member = |text: &str| {
            let mut parts = text.split('|');
            let server = ServerId(parts.next()?.parse().ok()?);
            let (address, socket) = (parts.next()?.to_owned(), parts.next().map(str::to_owned));
            Some(Member { server, address, socket })
        };
        let time = |word: &String| word.parse().ok().map(Duration::from_millis);
        Some(Seat {
            server: ServerId(server.parse().ok()?),
            servers: list.split(',').map(member).collect::<Option<Vec<_>>>()?,
            epoch: epoch.parse().ok()?,
            key: PathBuf::from(key),
            lease: time(lease)?,
            peer: time(peer)?,
            behind: (!behind.is_empty()).then(|| PathBuf::from(behind)),
        })
    }

    /// Tells a server's configuration of the others.
    pub fn apply(&self, config: &mut Config) {
        config.server = self.server;
        config.servers = self.servers.clone();
        config.epoch = self.epoch;
        config.key = Some(self.key.clone());
        config.times.lease = self.lease;
        config.times.peer = self.peer;
        config.backend = self.behind.as_ref().map(|behind| format!("dir:{}", behind.display()));
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
    /// Both, in turns.
    #[must_use]
    pub fn turn(number: u64) -> By {
        if number.is_multiple_of(2) { By::Unix } else { By::Tcp }
    }
}

/// A server process with a directory of its own.
pub struct Host {
    program: &'static str,
    /// What it is started with.
    pub plan: Plan,
    /// Its place among several.
    pub seat: Option<Seat>,
    dir: TempDir,
    child: Option<Child>,
}

impl Host {
    /// A server that runs. `program` is the path of `forebay-proof-server`.
    #[must_use]
    pub fn new(program: &'static str, plan: Plan) -> Host {
        let mut host = Host::prepare(program, plan);
        host.start();
        host
    }

    /// A server that was not started yet.
    #[must_use]
    pub fn prepare(program: &'static str, plan: Plan) -> Host {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let host = Host { program, plan, seat: None, dir, child: None };
        if plan.before {
            std::fs::create_dir(host.behind()).expect("a directory can be made");
            File::create(Plan::calm(&host.store())).expect("a file can be made");
        }
        host
    }

    /// The directory behind it.
    #[must_use]
    pub fn behind(&self) -> PathBuf {
        behind(&self.store())
    }

    /// The directory that all its files are in.
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

    /// Its address on TCP.
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
        if let Some(seat) = &self.seat {
            seat.apply(&mut config);
        }
        config
    }

    /// Starts it, and waits until it serves.
    pub fn start(&mut self) {
        if let Err(why) = self.try_start() {
            panic!("the server does not start: {why}");
        }
    }

    /// Starts it; the error is what it said when it gave up.
    pub fn try_start(&mut self) -> Result<(), String> {
        self.spawn(Command::new(self.program));
        self.await_ready()
    }

    /// Starts it by a command that runs programs as somebody else, from a copy of the program that he may run.
    pub fn start_as(&mut self, mut command: Command, program: &Path) -> Result<(), String> {
        command.arg(program);
        self.spawn(command);
        self.await_ready()
    }

    /// Starts it, and does not wait.
    pub fn begin(&mut self) {
        self.spawn(Command::new(self.program));
    }

    fn spawn(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options().append(true).create(true).open(self.log_path()).expect("a log");
        command.args(self.plan.words(&self.store()));
        command.args(self.seat.iter().flat_map(Seat::words));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        self.child = Some(child.expect("the server's program runs"));
    }

    /// Waits until it serves; the error is what it said when it gave up.
    pub fn await_ready(&mut self) -> Result<(), String> {
        let before = self.log().len();
        let child = self.child.as_mut().expect("it was started");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("its output was asked for");
        BufReader::new(output).read_line(&mut line).expect("its output can be read");
        if line == "ready\n" {
            return Ok(());
        }
        let status = self.child.take().expect("it was started").wait().expect("it can be waited for");
        let log = self.log();
        let said = log.get(before.min(log.len())..).filter(|said| !said.is_empty()).unwrap_or(&log);
        Err(format!("{status}: {}", said.trim()))
    }

    /// Whether it was started.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// What it uses.
    #[must_use]
    pub fn meter(&self) -> Meter {
        Meter::of(self.pid())
    }

    /// Kills it: `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it can be killed");
        child.wait().expect("it can be waited for");
    }

    /// Acts while the server is killed after a while, and started again.
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

    /// Stops it in order.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        drop(child.stdin.take());
        let status = child.wait().expect("it can be waited for");
        assert!(status.success(), "the server ended with {status}: {}", self.log());
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("log")
    }

    /// Everything it ever said on its standard error.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// How a client is to find it.
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

    /// A client of one of several jobs.
    #[must_use]
    pub fn client_of(&self, job: usize, by: By) -> Client {
        let mut config = self.client_config(by);
        config.job.label = format!("{job}");
        Client::connect(config).expect("the server lets its owner in")
    }

    /// A client of it.
    #[must_use]
    pub fn client(&self, by: By) -> Client {
        Client::connect(self.client_config(by)).expect("the server lets its owner in")
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
