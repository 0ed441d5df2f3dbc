//! What can be set, and what is taken when it is not.

use crate::drain::{Described, Draining};
use crate::human;
use crate::route::Routing;
use forebay_model::{Bytes, Error, ErrorKind, Homes, Member, Members, Result, ServerId};
use forebay_policy::OPERATION;
use forebay_policy::share::{Discipline, Policy, Trust};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the regions of a store live on.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Memory: as fast as it gets, gone with the machine.
    #[default]
    Memory,
    /// Whatever disk the store's directory is on.
    Disk,
}

/// Everything a server needs to know. Tables of `forebay.toml` have the names of these fields.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The directory of the store.
    pub store: PathBuf,
    /// Bytes that files can fill.
    #[serde(with = "human::size")]
    pub capacity: Bytes,
    /// Bytes in one region; chosen by the store if not given.
    #[serde(with = "human::maybe_size", skip_serializing_if = "Option::is_none")]
    pub region: Option<Bytes>,
    /// What the regions live on.
    pub medium: Medium,
    /// What stands behind the buffer, as `dir:PATH`, `stripes:PATH,PATH,…`, `s3:BUCKET` or `model:DEVICE:BACKEND`;
    /// nothing if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Permission bits of the root directory of a new store: everybody may make files, and only the owner of one
    /// may remove it.
    pub root_mode: u16,
    /// This server's number in its cluster.
    pub server: ServerId,
    /// The Unix socket to listen on; `STORE.sock` beside the store if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Whether programs of the server's own user on its machine write by shared memory.
    pub shared_memory: bool,
    /// Whether to listen on TCP at all.
    pub tcp: bool,
    /// Where to listen on TCP: only this machine unless told otherwise.
    pub listen: SocketAddr,
    /// The key that TCP clients prove to hold, made if missing; `STORE.key` beside the store if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// How the server is shared between jobs.
    pub policy: Policy,
    /// What enforces the policy.
    pub scheduler: Discipline,
    /// What an operation costs a job besides its bytes.
    #[serde(with = "human::size")]
    pub operation_cost: Bytes,
    /// Serve no more than this a second, as a device would: for demonstrations and tests of sharing.
    #[serde(with = "human::rate", skip_serializing_if = "Option::is_none")]
    pub device_rate: Option<Bytes>,
    /// Servers of other services that share jobs with this one, as `tcp:host:port`; all have the same key.
    pub peers: Vec<String>,
    /// All servers of the service, this one among them; without a list it is the only one. All have the same list,
    /// and the same key.
    pub servers: Vec<Member>,
    /// Grows whenever the list changes.
    pub epoch: u64,
    /// How often servers tell each other of their jobs.
    #[serde(with = "human::time")]
    pub lambda: Duration,
    /// What is believed of jobs that nobody vouches for.
    pub trust: Belief,
    /// How data leaves for the back end.
    pub drain: Draining,
    /// What the file says that `drain.topology` names, once somebody has read it.
    #[serde(skip)]
    pub topology: Option<Described>,
    /// Which writes go past the buffer.
    pub route: Routing,
    /// How much is allowed.
    pub limits: Limits,
    /// How long things may take.
    pub times: Times,
}

/// What is believed of jobs that neither root nor the service's owner vouches for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Belief {
    /// Most nodes.
    pub nodes: u32,
    /// Highest priority.
    pub priority: u32,
}

impl Default for Belief {
    fn default() -> Belief {
        Belief { nodes: 1024, priority: 1 }
    }
}

impl Belief {
    pub(crate) fn trust(self) -> Trust {
        Trust { most_nodes: self.nodes.max(1), most_priority: self.priority }
    }
}

/// How much is allowed: at each bound the caller is told, and nothing grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Connections of clients that have proved who they are: one for control and up to four for payload each, and a
    /// descriptor of the server's for every one.
    pub connections: usize,
    /// Connections that are in their handshake, of one user at most a quarter of them; more wait.
    pub handshakes: usize,
    /// Clients with a session: every process of an unmodified program is one, also for a while after it was killed.
    /// A session costs memory only, some hundred bytes beside its open files.
    pub sessions: usize,
    /// Open files of one session.
    pub session_opens: usize,
    /// Open files of all sessions.
    pub opens: usize,
    /// Requests of one control connection that are being worked on.
    pub in_flight: usize,
    /// Requests that have their turn at the same time.
    pub turns: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Jobs that are remembered.
    pub jobs: usize,
}

/// How long things may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Times {
    /// For the whole handshake.
    #[serde(with = "human::time")]
    pub handshake: Duration,
    /// To fill a reservation; after that it is voided and its connection closed.
    #[serde(with = "human::time")]
    pub reservation: Duration,
    /// For a client to take its answers; after that its connection is closed.
    #[serde(with = "human::time")]
    pub answer: Duration,
    /// Without a word from a client; after that its session is over and its files are closed.
    #[serde(with = "human::time")]
    pub session: Duration,
    /// A transfer that stands still for so long gives its turn back, and goes on without.
    #[serde(with = "human::time")]
    pub stall: Duration,
    /// For requests in progress when the server stops.
    #[serde(with = "human::time")]
    pub farewell: Duration,
    /// For another server to answer; after that whatever needs it fails, and says which one it was.
    #[serde(with = "human::time")]
    pub peer: Duration,
    /// So long a server believes what it knows of the directories of one that is not heard of any more.
    #[serde(with = "human::time")]
    pub lease: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            store: PathBuf::from("forebay-store"),
            capacity: Bytes::mib(1024),
            region: None,
            medium: Medium::default(),
            backend: None,
            root_mode: 0o1777,
            server: ServerId(0),
            socket: None,
            shared_memory: true,
            tcp: true,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7411)),
            key: None,
            policy: "user-then-size-fair".parse().expect("a policy"),
            scheduler: Discipline::default(),
            operation_cost: Bytes(OPERATION.0),
            device_rate: None,
            peers: Vec::new(),
            servers: Vec::new(),
            epoch: 1,
            lambda: Duration::from_millis(500),
            trust: Belief::default(),
            drain: Draining::default(),
            topology: None,
            route: Routing::default(),
            limits: Limits::default(),
            times: Times::default(),
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 8192,
            handshakes: 128,
            sessions: 16_384,
            session_opens: 1 << 16,
            opens: 1 << 20,
            in_flight: 64,
            turns: 16,
            waiting: 4096,
            jobs: 16_384,
        }
    }
}

impl Default for Times {
    fn default() -> Times {
        Times {
            handshake: Duration::from_secs(10),
            reservation: Duration::from_secs(30),
            answer: Duration::from_secs(30),
            session: Duration::from_secs(60),
            stall: Duration::from_millis(20),
            farewell: Duration::from_secs(10),
            peer: Duration::from_secs(5),
            lease: Duration::from_secs(4),
        }
    }
}

impl Config {
    /// The defaults for a store in this directory.
    #[must_use]
    pub fn for_store(store: impl Into<PathBuf>) -> Config {
        Config { store: store.into(), ..Config::default() }
    }

    /// Where the Unix socket is.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| beside(&self.store, "sock"))
    }

    /// Where the key is.
    #[must_use]
    pub fn key_path(&self) -> PathBuf {
        self.key.clone().unwrap_or_else(|| beside(&self.store, "key"))
    }

    /// The configurations of so many servers of one service, all on this machine: the first has the store, socket and
    /// port of this one, the others have theirs beside it; all have its key.
    #[must_use]
    pub fn several(&self, count: u16) -> Vec<Config> {
        let key = self.key_path();
        let one = |index: u16| {
            let (mut store, mut socket) = (self.store.clone(), self.socket_path());
            let mut listen = self.listen;
            if index > 0 {
                (store, socket) = (beside(&store, &index.to_string()), beside(&socket, &index.to_string()));
                listen.set_port(if listen.port() == 0 { 0 } else { listen.port().wrapping_add(index) });
            }
            let server = ServerId(self.server.0.wrapping_add(index));
            Config { server, store, socket: Some(socket), listen, key: Some(key.clone()), ..self.clone() }
        };
        let mut all: Vec<Config> = (0..count).map(one).collect();
        if count > 1 {
            let list: Vec<Member> = all.iter().map(Config::member).collect();
            all.iter_mut().for_each(|config| config.servers.clone_from(&list));
        }
        all
    }

    /// This server, as a list names it.
    #[must_use]
    pub fn member(&self) -> Member {
        let socket = self.socket_path().display().to_string();
        let address = if self.tcp { format!("tcp:{}", self.listen) } else { format!("unix:{socket}") };
        Member { server: self.server, address, socket: Some(socket) }
    }

    /// All servers of the service.
    pub fn members(&self) -> Result<Members> {
        let invalid = |text| Error::new(ErrorKind::Invalid, text);
        if self.servers.is_empty() {
            return Members::new(self.epoch, vec![self.member()]).map_err(invalid);
        }
        let members = Members::new(self.epoch, self.servers.clone())
            .map_err(|why| invalid(format!("servers: {why}: correct the list")))?;
        if !members.contains(self.server) {
            let text = format!("servers: server {} is not in its own list ({members})", self.server);
            return Err(invalid(text));
        }
        match members.all().iter().find(|member| Place::of(&member.address).is_none()) {
            Some(Member { address, .. }) => Err(invalid(format!(
                "servers: \"{address}\" is no address: write tcp:host:port or unix:/path"
            ))),
            // One server alone says what becomes of names behind.
            None if self.backend.is_some() && !members.is_single() => Ok(members.with_names(Homes::First)),
            None => Ok(members),
        }
    }

    /// Refuses what cannot work.
    pub fn check(&self) -> Result<()> {
        let limits = &self.limits;
        let counts = [
            ("connections", limits.connections),
            ("handshakes", limits.handshakes),
            ("sessions", limits.sessions),
            ("session_opens", limits.session_opens),
            ("opens", limits.opens),
            ("in_flight", limits.in_flight),
            ("turns", limits.turns),
            ("waiting", limits.waiting),
            ("jobs", limits.jobs),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::new(
                ErrorKind::Invalid,
                format!("limits.{name} is 0: nothing could ever be done"),
            ));
        }
        let times = &self.times;
        let spans = [
            ("handshake", times.handshake),
            ("reservation", times.reservation),
            ("answer", times.answer),
            ("session", times.session),
            ("stall", times.stall),
            ("peer", times.peer),
            ("lease", times.lease),
        ];
        self.check_sharing()?;
        self.drain.check()?;
        self.route.check()?;
        self.members()?;
        match spans.iter().find(|(_, span)| span.is_zero()) {
            Some((name, _)) => {
                Err(Error::new(ErrorKind::Invalid, format!("times.{name} is 0: nothing could ever be done")))
            }
            None => Ok(()),
        }
    }
}

/// Most servers of a service.
const MOST_PEERS: usize = 1024;
/// Shortest and longest interval of the exchange between servers.
const LAMBDA: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

impl Config {
    fn check_sharing(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if !LAMBDA.contains(&self.lambda) {
            return invalid(format!("lambda is {:?}: choose 10ms to 60s", self.lambda));
        }
        let bucket = |name: &str| name.starts_with("s3:") || name.contains(":s3:");
        if self.servers.len() > 1 && self.backend.as_deref().is_some_and(bucket) {
            let text = "a bucket has one server: of several, each would see only the parts it wrote itself";
            return invalid(text.to_owned());
        }
        if self.peers.len() > MOST_PEERS {
            return invalid(format!("{} peers: a service has at most {MOST_PEERS}", self.peers.len()));
        }
        if let Some(peer) = self.peers.iter().find(|peer| host_and_port(peer).is_none()) {
            return invalid(format!("peers: \"{peer}\" is no address: write tcp:host:port"));
        }
        if self.device_rate == Some(Bytes(0)) {
            return invalid("device_rate is 0: nothing could ever be done".to_owned());
        }
        Ok(())
    }
}

/// Where a server listens.
pub(crate) enum Place<'a> {
    /// `host:port`.
    Tcp(&'a str),
    /// A path.
    Unix(&'a Path),
}

impl Place<'_> {
    pub(crate) fn of(address: &str) -> Option<Place<'_>> {
        match address.strip_prefix("unix:") {
            Some(path) => path.starts_with('/').then(|| Place::Unix(Path::new(path))),
            None => host_and_port(address).map(Place::Tcp),
        }
    }
}

/// `tcp:host:port` without its `tcp:`.
fn host_and_port(peer: &str) -> Option<&str> {
    let place = peer.strip_prefix("tcp:").unwrap_or(peer);
    let (host, port) = place.rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(place)
}

/// `/data/store` → `/data/store.sock`: the store's own directory holds nothing else, and is private.
#[must_use]
pub fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push(".");
    path.push(suffix);
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_and_key_lie_beside_the_store() {
        let config = Config::for_store("/data/fb");
        assert_eq!(config.socket_path(), Path::new("/data/fb.sock"));
        assert_eq!(config.key_path(), Path::new("/data/fb.key"));
        assert!(config.check().is_ok());
    }

    #[test]
    fn a_file_is_read_with_units_and_defaults() {
        let text = "store = '/fb'\ncapacity = '4GiB'\nregion = '64 MiB'\nmedium = 'disk'\nroot_mode = 0o755\n\
                    listen = '127.0.0.1:0'\nserver = 3\n[limits]\nturns = 4\n[times]\nstall = '5ms'\nsession = 90\n";
        let config: Config = toml::from_str(text).unwrap();
        let expected = Config {
            capacity: Bytes::mib(4096),
            region: Some(Bytes::mib(64)),
            medium: Medium::Disk,
            root_mode: 0o755,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            server: ServerId(3),
            limits: Limits { turns: 4, ..Limits::default() },
            times: Times {
                stall: Duration::from_millis(5),
                session: Duration::from_secs(90),
                ..Times::default()
            },
            ..Config::for_store("/fb")
        };
        assert_eq!(config, expected);
        assert_eq!(toml::from_str::<Config>("").unwrap(), Config::default());
        for bad in ["capaticy = 1", "capacity = 'much'", "[times]\nstall = 'soon'", "medium = 'paper'"] {
            assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sharing_is_read_and_checked() {
        let text = "policy = 'group-user-size-fair'\nscheduler = 'tokens'\ndevice_rate = '400MiB/s'\n\
                    lambda = '200ms'\npeers = ['tcp:b:7411']\noperation_cost = '8KiB'\n[trust]\nnodes = 1\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.policy.to_string(), "group-then-user-then-size-fair");
        assert_eq!((config.scheduler, config.device_rate), (Discipline::Tokens, Some(Bytes::mib(400))));
        assert_eq!((config.lambda, config.trust.nodes), (Duration::from_millis(200), 1));
        assert!(config.check().is_ok());
        for (bad, says) in [
            ("lambda = '1ms'", "lambda"),
            ("peers = ['nowhere']", "nowhere"),
            ("peers = ['tcp::7']", "tcp::7"),
            ("device_rate = 0", "device_rate"),
        ] {
            let config: Config = toml::from_str(bad).unwrap();
            assert!(config.check().unwrap_err().to_string().contains(says), "{bad}");
        }
        for bad in ["policy = 'sise-fair'", "scheduler = 'lottery'", "device_rate = 'fast'"] {
            assert!(toml::from_str::<Config>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn several_servers_lie_beside_the_first() {
        let all = Config { server: ServerId(4), ..Config::for_store("/data/fb") }.several(2);
        let paths =
            all.iter().map(|config| (config.store.as_path(), config.socket_path(), config.key_path()));
        let paths: Vec<_> = paths.collect();
        assert_eq!(paths[0], (Path::new("/data/fb"), "/data/fb.sock".into(), "/data/fb.key".into()));
        assert_eq!(paths[1], (Path::new("/data/fb.1"), "/data/fb.sock.1".into(), "/data/fb.key".into()));
        assert_eq!(
            all[1].members().unwrap().to_string(),
            "epoch 1: 4 tcp:127.0.0.1:7411, 5 tcp:127.0.0.1:7412"
        );
        assert_eq!(all[0].members(), all[1].members());
        let local = Config { tcp: false, ..Config::for_store("/data/fb") }.several(3);
        assert_eq!(local[2].members().unwrap().all()[1].address, "unix:/data/fb.sock.1");
        assert!(Config::for_store("/data/fb").several(1)[0].servers.is_empty());
    }

    #[test]
    fn the_list_of_servers_is_read_and_checked() {
        let text = "server = 2\nepoch = 3\n[[servers]]\nserver = 2\naddress = 'tcp:b:7411'\n\
                    [[servers]]\nserver = 1\naddress = 'tcp:a:7411'\nsocket = '/run/a'\n";
        let config: Config = toml::from_str(text).unwrap();
        assert_eq!(config.members().unwrap().to_string(), "epoch 3: 1 tcp:a:7411, 2 tcp:b:7411");
        assert!(config.check().is_ok());
        for (change, says) in [
            ((1, "tcp:c:1"), "both called server 1"),
            ((3, "tcp:c:1"), "server 2 is not in its own list"),
            ((2, "nowhere"), "\"nowhere\" is no address"),
        ] {
            let mut wrong = config.clone();
            (wrong.servers[0].server, wrong.servers[0].address) = (ServerId(change.0), change.1.to_owned());
            let error = wrong.check().unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        for (backend, fits) in [("s3:b", false), ("model:ost:s3:b", false), ("dir:/fs/s3", true)] {
            let before = Config { backend: Some(backend.to_owned()), ..config.clone() };
            assert_eq!(before.check().is_ok(), fits, "{backend}");
        }
        let alone = Config::for_store("/fb").members().unwrap();
        assert_eq!(alone.to_string(), "epoch 1: 0 tcp:127.0.0.1:7411");
    }

    #[test]
    fn limits_and_times_of_zero_are_refused_by_name() {
        let mut config = Config::default();
        config.limits.turns = 0;
        assert!(config.check().unwrap_err().to_string().contains("limits.turns"));
        let mut config = Config::default();
        config.times.session = Duration::ZERO;
        assert!(config.check().unwrap_err().to_string().contains("times.session"));
    }
}
