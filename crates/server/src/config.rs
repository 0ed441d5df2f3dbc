//! The server's configuration and its defaults.

use crate::direct::Routing;
use crate::drain::{Described, Draining};
use crate::human;
use forebay_model::{Bytes, Error, ErrorKind, Homes, Member, Members, Result, ServerId, shown_time};
use forebay_policy::OPERATION;
use forebay_policy::share::{Discipline, Policy, Trust};
use forebay_wire::Security;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The medium that holds the regions of a store.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Memory: fastest; lost when the machine fails.
    #[default]
    Memory,
    /// The disk of the store's directory.
    Disk,
}

/// The configuration of a server. Tables of `forebay.toml` have the names of these fields.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The directory of the store.
    pub store: PathBuf,
    /// Bytes of file data that the buffer can hold.
    #[serde(with = "human::size")]
    pub capacity: Bytes,
    /// Bytes per region; the store chooses if not given.
    #[serde(with = "human::maybe_size", skip_serializing_if = "Option::is_none")]
    pub region: Option<Bytes>,
    /// The medium that holds the regions.
    pub medium: Medium,
    /// The back end, as `dir:PATH`, `stripes:PATH,PATH,…`, `s3:BUCKET` or `model:DEVICE:BACKEND`; none if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<String>,
    /// Permission bits of the root directory of a new store. By default every user may create files, and only a file's
    /// owner may remove it. If the back end has a root directory, its mode and owner apply instead.
    pub root_mode: u16,
    /// Whether only the server's own user and root are admitted, whatever the mode of the socket. For the server of a
    /// single run.
    pub owner_only: bool,
    /// A second Unix socket, which admits every user whom its directory lets through, even if `owner_only` is set. For
    /// programs of a root's run that have switched to other users.
    #[serde(skip)]
    pub programs_socket: Option<PathBuf>,
    /// This server's number in its cluster.
    pub server: ServerId,
    /// The Unix socket to listen on; `STORE.sock` beside the store if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
    /// Whether programs of the server's own user on its machine write through shared memory.
    pub shared_memory: bool,
    /// Whether to listen on TCP.
    pub tcp: bool,
    /// The TCP address to listen on; by default only local clients can connect.
    pub listen: SocketAddr,
    /// The key that TCP clients must hold, created if missing; `STORE.key` beside the store if not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<PathBuf>,
    /// Security of TCP connections.
    pub transport: TransportSettings,
    /// How jobs share the server.
    pub policy: Policy,
    /// The scheduler that enforces the policy.
    pub scheduler: Discipline,
    /// The cost of an operation for a job, in addition to its bytes.
    #[serde(with = "human::size")]
    pub operation_cost: Bytes,
    /// Serve at most this many bytes per second, like a device of that speed; for demonstrations and tests of sharing.
    #[serde(with = "human::rate", skip_serializing_if = "Option::is_none")]
    pub device_rate: Option<Bytes>,
    /// Servers of other services that share jobs with this one, as `tcp:host:port`; all have the same key.
    pub peers: Vec<String>,
    /// All servers of the service, including this one; if empty, it is the only one. All have the same list and the
    /// same key.
    pub servers: Vec<Member>,
    /// Increases whenever the list changes.
    pub epoch: u64,
    /// How often servers exchange their job tables.
    #[serde(with = "human::time")]
    pub lambda: Duration,
    /// Limits on the claims of unprivileged jobs.
    pub trust: Belief,
    /// How data is drained to the back end.
    pub drain: Draining,
    /// The contents of the file that `drain.topology` names, once it has been read.
    #[serde(skip)]
    pub topology: Option<Described>,
    /// Which writes bypass the buffer.
    pub route: Routing,
    /// Limits on counts and sizes.
    pub limits: Limits,
    /// Timeouts.
    pub times: Times,
}

/// Security of TCP connections, from clients and to other servers.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportSettings {
    /// The minimum that is accepted: `encrypt`, `authenticate` or `none`. A peer that requests more gets more. Defaults
    /// to `authenticate` on this machine and `encrypt` beyond it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security: Option<Security>,
}

impl TransportSettings {
    /// The minimum that is accepted from a peer at this address.
    #[must_use]
    pub fn least(&self, peer: IpAddr) -> Security {
        self.security.unwrap_or_else(|| Security::default_for(peer))
    }
}

/// Timeouts of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientTimes {
    /// For a request, including reconnects; after that the call fails. Each piece of a large transfer is a request.
    #[serde(with = "human::time")]
    pub request: Duration,
}

impl Default for ClientTimes {
    fn default() -> ClientTimes {
        ClientTimes { request: Duration::from_secs(60) }
    }
}

/// Limits on the claims of jobs that neither root nor the service's owner vouches for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Belief {
    /// Maximum number of nodes.
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

/// Limits on counts and sizes. At each limit the caller gets an error, and nothing grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Authenticated connections of clients. A client has one for control and up to four for payload; each takes a
    /// descriptor of the server.
    pub connections: usize,
    /// Connections of one user, of the above. This and every other per-user limit does not apply to root and the
    /// service's owner.
    pub user_connections: usize,
    /// Connections in their handshake, at most a quarter of them of one user or address; more wait.
    pub handshakes: usize,
    /// Unauthenticated TCP connections from one address. At the limit, the one that has been silent for longest is
    /// closed. Addresses of the service's other servers are counted separately.
    pub address_handshakes: usize,
    /// Clients with a session. Every process of an unmodified program is one, also for a while after it was killed. A
    /// session costs only memory: a few hundred bytes plus its open files.
    pub sessions: usize,
    /// Sessions of one user, of the above.
    pub user_sessions: usize,
    /// Open files of one user in one session. A mount is one session for all its users.
    pub session_opens: usize,
    /// Open files of all sessions.
    pub opens: usize,
    /// Open files of one user, of the above.
    pub user_opens: usize,
    /// Concurrent requests of one control connection.
    pub in_flight: usize,
    /// Bytes of answers that the client of one connection has not read yet.
    #[serde(with = "human::size")]
    pub connection_answers: Bytes,
    /// Bytes of answers that the clients of one user have not read yet.
    #[serde(with = "human::size")]
    pub user_answers: Bytes,
    /// Requests that wait for the back end at the same time.
    pub backend_places: usize,
    /// Requests of one user, of the above. As many of the user's requests that need other servers, such as renames between
    /// servers and appends to striped files, are served at the same time.
    pub user_backend_places: usize,
    /// Concurrent flushes to the device.
    pub syncs: usize,
    /// Flushes for one user, of the above.
    pub user_syncs: usize,
    /// Concurrent requests of one user, including each piece of a listing; requests that wait for the back end or are
    /// served inline do not count. Defaults to half of the machine's cores.
    pub user_working: usize,
    /// Mappings of one user that were granted and are not yet fetched, or are being fetched.
    pub user_mappings: usize,
    /// Maximum share of the buffer's capacity for the memory of files that one user maps, in per cent.
    pub user_mapped: u8,
    /// Drain requests of one user that run at the same time; all users together have 1,024.
    pub user_drains: usize,
    /// Requests that have their turn at the same time.
    pub turns: usize,
    /// Requests that wait for their turn.
    pub waiting: usize,
    /// Requests on connections of one user, of the above.
    pub user_waiting: usize,
    /// Maximum share of the buffer for one user's bytes, in per cent. The rest stays for all others together: where one
    /// user's jobs are most of the work, raise it.
    pub user_space: u8,
    /// Maximum number of remembered jobs.
    pub jobs: usize,
    /// Log lines about peers per second; the number of suppressed lines is logged as one line.
    pub log_lines: usize,
}

/// Timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Times {
    /// For the whole handshake.
    #[serde(with = "human::time")]
    pub handshake: Duration,
    /// To fill a reservation; after that it is voided and its connection closed.
    #[serde(with = "human::time")]
    pub reservation: Duration,
    /// For a client to read its answers; after that its connection is closed.
    #[serde(with = "human::time")]
    pub answer: Duration,
    /// Without a message from a client; after that its session ends and its files are closed.
    #[serde(with = "human::time")]
    pub session: Duration,
    /// A transfer that makes no progress for this long gives its turn back and continues without it.
    #[serde(with = "human::time")]
    pub stall: Duration,
    /// For requests in progress when the server stops.
    #[serde(with = "human::time")]
    pub farewell: Duration,
    /// For another server to answer; after that requests that need it fail, and the error names the server.
    #[serde(with = "human::time")]
    pub peer: Duration,
    /// How long a server trusts its cached directories of another server that no longer responds.
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
            owner_only: false,
            programs_socket: None,
            server: ServerId(0),
            socket: None,
            shared_memory: true,
            tcp: true,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7411)),
            key: None,
            transport: TransportSettings::default(),
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
            user_connections: 2048,
            handshakes: 128,
            address_handshakes: 1024,
            sessions: 16_384,
            user_sessions: 4096,
            session_opens: 1 << 16,
            opens: 1 << 20,
            user_opens: 1 << 18,
            in_flight: 64,
            connection_answers: Bytes::mib(4),
            user_answers: Bytes::mib(64),
            backend_places: 32,
            user_backend_places: 8,
            syncs: 8,
            user_syncs: 2,
            user_working: (std::thread::available_parallelism().map_or(1, usize::from) / 2).max(1),
            user_mappings: 64,
            user_mapped: 50,
            user_drains: 16,
            turns: 16,
            waiting: 4096,
            user_waiting: 1024,
            user_space: 75,
            jobs: 16_384,
            log_lines: 20,
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

    /// The path of the Unix socket.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| beside(&self.store, "sock"))
    }

    pub(crate) fn socket_mode(&self) -> u32 {
        if self.owner_only { 0o600 } else { 0o666 }
    }

    /// The path of the service's key.
    #[must_use]
    pub fn key_path(&self) -> PathBuf {
        self.key.clone().unwrap_or_else(|| beside(&self.store, "key"))
    }

    /// The path of the list of users' keys.
    #[must_use]
    pub fn keys_path(&self) -> PathBuf {
        beside(&self.store, "keys")
    }

    /// Configurations of `count` servers of one service on this machine. The first has the store, socket and port of
    /// this configuration, the others have theirs beside it; all share its key.
    #[must_use]
    pub fn cluster(&self, count: u16) -> Vec<Config> {
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

    /// This server as an entry of the list of servers.
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
        match members.all().iter().find(|member| ServerAddress::of(&member.address).is_none()) {
            Some(Member { address, .. }) => Err(invalid(format!(
                "servers: \"{address}\" is no address: write tcp:host:port or unix:/path"
            ))),
            // With a back end, one server owns all names.
            None if self.backend.is_some() && !members.is_single() => Ok(members.with_names(Homes::First)),
            None => Ok(members),
        }
    }

    /// Addresses of the other servers that it reaches by TCP, as `host:port`.
    pub(crate) fn other_hosts(&self) -> Vec<String> {
        let members = self.servers.iter().filter(|member| member.server != self.server);
        let all = members.map(|member| &member.address).chain(&self.peers);
        all.filter_map(|address| match ServerAddress::of(address) {
            Some(ServerAddress::Tcp(place)) => Some(place.to_owned()),
            _ => None,
        })
        .collect()
    }

    /// Rejects invalid settings.
    pub fn check(&self) -> Result<()> {
        let limits = &self.limits;
        let counts = [
            ("connections", limits.connections),
            ("user_connections", limits.user_connections),
            ("handshakes", limits.handshakes),
            ("address_handshakes", limits.address_handshakes),
            ("sessions", limits.sessions),
            ("user_sessions", limits.user_sessions),
            ("session_opens", limits.session_opens),
            ("opens", limits.opens),
            ("user_opens", limits.user_opens),
            ("in_flight", limits.in_flight),
            ("connection_answers", usize::try_from(limits.connection_answers.0).unwrap_or(usize::MAX)),
            ("user_answers", usize::try_from(limits.user_answers.0).unwrap_or(usize::MAX)),
            ("backend_places", limits.backend_places),
            ("user_backend_places", limits.user_backend_places),
            ("syncs", limits.syncs),
            ("user_syncs", limits.user_syncs),
            ("user_working", limits.user_working),
            ("user_mappings", limits.user_mappings),
            ("user_mapped", usize::from(limits.user_mapped)),
            ("user_drains", limits.user_drains),
            ("turns", limits.turns),
            ("waiting", limits.waiting),
            ("user_waiting", limits.user_waiting),
            ("user_space", usize::from(limits.user_space)),
            ("jobs", limits.jobs),
            ("log_lines", limits.log_lines),
        ];
        if let Some((name, _)) = counts.iter().find(|(_, count)| *count == 0) {
            return Err(Error::new(ErrorKind::Invalid, format!("limits.{name} must be greater than 0")));
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
                Err(Error::new(ErrorKind::Invalid, format!("times.{name} must be greater than 0")))
            }
            None => Ok(()),
        }
    }
}

/// Maximum number of servers of a service.
const MOST_PEERS: usize = 1024;
/// Shortest and longest interval of the exchange between servers.
const LAMBDA: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(60);

impl Config {
    fn check_sharing(&self) -> Result<()> {
        let invalid = |text: String| Err(Error::new(ErrorKind::Invalid, text));
        if !LAMBDA.contains(&self.lambda) {
            return invalid(format!("lambda is {}: choose 10ms to 60s", shown_time(self.lambda)));
        }
        let bucket = |name: &str| name.starts_with("s3:") || name.contains(":s3:");
        if self.servers.len() > 1 && self.backend.as_deref().is_some_and(bucket) {
            let text = "an S3 back end supports one server only: each of several would see only the parts it wrote itself";
            return invalid(text.to_owned());
        }
        if self.peers.len() > MOST_PEERS {
            return invalid(format!("{} peers: a service has at most {MOST_PEERS}", self.peers.len()));
        }
        if let Some(peer) = self.peers.iter().find(|peer| host_and_port(peer).is_none()) {
            return invalid(format!("peers: \"{peer}\" is no address: write tcp:host:port"));
        }
        if self.device_rate == Some(Bytes(0)) {
            return invalid("device_rate must be greater than 0".to_owned());
        }
        Ok(())
    }
}

/// The address of a server.
pub(crate) enum ServerAddress<'a> {
    /// `host:port`.
    Tcp(&'a str),
    /// Path of a Unix socket.
    Unix(&'a Path),
}

impl ServerAddress<'_> {
    pub(crate) fn of(address: &str) -> Option<ServerAddress<'_>> {
        match address.strip_prefix("unix:") {
            Some(path) => path.starts_with('/').then(|| ServerAddress::Unix(Path::new(path))),
            None => host_and_port(address).map(ServerAddress::Tcp),
        }
    }
}

/// `tcp:host:port` without its `tcp:`.
fn host_and_port(peer: &str) -> Option<&str> {
    let place = peer.strip_prefix("tcp:").unwrap_or(peer);
    let (host, port) = place.rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(place)
}

/// `/data/store` → `/data/store.sock`. The store's own directory is private and contains nothing else.
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
    fn config_file_is_parsed_with_units_and_defaults() {
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
    fn sharing_settings_are_parsed_and_checked() {
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
    fn cluster_configs_place_stores_beside_the_first() {
        let all = Config { server: ServerId(4), ..Config::for_store("/data/fb") }.cluster(2);
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
        let local = Config { tcp: false, ..Config::for_store("/data/fb") }.cluster(3);
        assert_eq!(local[2].members().unwrap().all()[1].address, "unix:/data/fb.sock.1");
        assert!(Config::for_store("/data/fb").cluster(1)[0].servers.is_empty());
    }

    #[test]
    fn server_list_is_parsed_and_checked() {
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
