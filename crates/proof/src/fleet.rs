//! A cluster of servers, each in a process of its own.

use crate::host::{By, ClusterConfig, Host, Plan};
use forebay_client::blocking::Client;
use forebay_model::{Bytes, Homes, Member, Members, ServerId};
use forebay_store::{AtRest, FjallKv, Kv, Store, check_all, check_stores};
use forebay_testkit::{Rng, until};
use forebay_wire::Standing;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Short, so that tests do not wait long for the lease of a dead server.
const LEASE: Duration = Duration::from_millis(300);
/// How long a server waits for another one.
const PEER: Duration = Duration::from_secs(2);

/// For the metadata of one store.
const CACHE: Bytes = Bytes::mib(8);

/// The servers of a cluster, with ids from 1.
pub struct Fleet {
    /// The server processes.
    pub hosts: Vec<Host>,
    dir: TempDir,
}

impl Fleet {
    /// A running cluster. `program` is the path of `forebay-proof-server`; each server follows the plan.
    #[must_use]
    pub fn new(program: &'static str, count: u16, plan: Plan) -> Fleet {
        let mut fleet = Fleet::prepare(program, count, plan);
        fleet.start_all();
        fleet
    }

    /// The back-end directory of the cluster.
    #[must_use]
    pub fn backing_dir(&self) -> PathBuf {
        self.dir.path().join("backend")
    }

    /// A cluster that is not yet started.
    #[must_use]
    pub fn prepare(program: &'static str, count: u16, plan: Plan) -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let backing_dir = plan.has_backend.then(|| dir.path().join("backend"));
        backing_dir
            .iter()
            .for_each(|backing_dir| std::fs::create_dir(backing_dir).expect("directory created"));
        let key = dir.path().join("key");
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
        writeln!(file.expect("a key file"), "{}", "5a".repeat(32)).expect("a key");
        let hosts =
            (0..count).map(|_| Host::prepare(program, Plan { listen: forebay_testkit::address(), ..plan }));
        let mut hosts: Vec<Host> = hosts.collect();
        let servers: Vec<Member> = hosts
            .iter()
            .zip(1..)
            .map(|(host, number)| Member {
                server: ServerId(number),
                address: format!("tcp:{}", host.tcp()),
                socket: Some(host.socket().display().to_string()),
            })
            .collect();
        for (host, number) in hosts.iter_mut().zip(1..) {
            let (server, servers, key) = (ServerId(number), servers.clone(), key.clone());
            let backing_dir = backing_dir.clone();
            host.cluster =
                Some(ClusterConfig { server, servers, epoch: 1, key, lease: LEASE, peer: PEER, backing_dir });
        }
        Fleet { hosts, dir }
    }

    /// One server by its id.
    pub fn host(&mut self, server: u16) -> &mut Host {
        &mut self.hosts[usize::from(server) - 1]
    }

    /// A random server.
    pub fn any(&mut self, rng: &mut Rng) -> &mut Host {
        let index = rng.below(self.hosts.len() as u64) as usize;
        &mut self.hosts[index]
    }

    /// Starts all servers that are down, concurrently, and waits until all serve.
    pub fn start_all(&mut self) {
        let mut down: Vec<&mut Host> = self.hosts.iter_mut().filter(|host| !host.is_up()).collect();
        down.iter_mut().for_each(|host| host.begin());
        for host in down {
            host.await_ready().unwrap_or_else(|why| panic!("a server does not start: {why}"));
        }
    }

    /// Shuts all down.
    pub fn stop_all(&mut self) {
        self.hosts.iter_mut().filter(|host| host.is_up()).for_each(Host::stop);
    }

    /// Stops all servers, and checks that their stores form one consistent namespace. The next start resolves
    /// operations that were incomplete when they stopped.
    pub fn check(&mut self) {
        self.stop_all();
        if !self.findings().is_empty() {
            self.start_all();
            // Every server answers this, and only after it has resolved incomplete operations.
            self.client(0, By::Unix).statfs().expect("answers of all servers");
            self.stop_all();
        }
        assert_eq!(self.findings(), Vec::<String>::new(), "the namespace");
    }

    /// Stops all servers, and checks their stores as `forebay check` does.
    pub fn check_stores(&mut self) {
        self.stop_all();
        let open = |host: &Host| AtRest::open(&host.store()).expect("unused store");
        let stores: Vec<AtRest> = self.hosts.iter().map(open).collect();
        let flaws = check_stores(&stores).expect("readable stores");
        let findings: Vec<String> = flaws.into_iter().map(|flaw| flaw.what).collect();
        assert_eq!(findings, Vec::<String>::new(), "inconsistencies in the stores");
    }

    fn findings(&self) -> Vec<String> {
        let cluster = self.hosts[0].cluster.clone().expect("cluster");
        let homes = if cluster.backing_dir.is_some() { Homes::First } else { Homes::Spread };
        let members =
            Members::new(cluster.epoch, cluster.servers).expect("a list of servers").with_names(homes);
        let open = |host: &Host| FjallKv::open(&host.store().join("meta"), CACHE).expect("unused store");
        let stores: Vec<FjallKv> = self.hosts.iter().map(open).collect();
        let stores: Vec<&dyn Kv> = stores.iter().map(|store| -> &dyn Kv { store }).collect();
        check_all(&members, &stores)
    }

    /// Kills a server and removes its store.
    pub fn lose_store(&mut self, server: ServerId) {
        self.host(server.0).kill();
        Store::remove(&self.host(server.0).store()).expect("store removed");
    }

    /// Lets a server whose store is lost join with an empty one.
    pub fn replace(&mut self, server: ServerId) -> Client {
        for number in (0..self.hosts.len() as u64).filter(|number| number + 1 != u64::from(server.0)) {
            self.client(number, By::Unix).replace_server(server).expect("replacement accepted");
        }
        if !self.host(server.0).is_up() {
            self.host(server.0).start();
        }
        let client = self.client(0, By::Unix);
        await_joined(&client, server);
        client
    }

    /// A client that connects to one of the servers.
    #[must_use]
    pub fn client(&self, number: u64, by: By) -> Client {
        self.hosts[(number % self.hosts.len() as u64) as usize].client(by)
    }
}

/// Waits until a server has joined again.
fn await_joined(client: &Client, server: ServerId) {
    until("the server joins", || {
        let statuses = client.statuses().expect("status");
        let found = statuses.into_iter().find(|(found, _)| *found == server).expect("listed server").1;
        found.is_ok_and(|status| status.standing == Standing::Joined)
    });
}
