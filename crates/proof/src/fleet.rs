//! Several servers of one service, each in a process of its own.

use crate::host::{By, Host, Plan, Seat};
use forebay_client::blocking::Client;
use forebay_dice::Dice;
use forebay_model::{Bytes, Homes, Member, Members, ServerId};
use forebay_store::{FjallKv, Kv, Store, check_all};
use forebay_wire::Standing;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Short, so that what has to wait for a dead server's lease does not wait long.
const LEASE: Duration = Duration::from_millis(300);
/// How long a server waits for another.
const PEER: Duration = Duration::from_secs(2);

/// For the metadata of one store.
const CACHE: Bytes = Bytes::mib(8);

/// The servers of a service, with numbers from 1.
pub struct Fleet {
    /// Each of them.
    pub hosts: Vec<Host>,
    dir: TempDir,
}

impl Fleet {
    /// A service that runs. `program` is the path of `forebay-proof-server`; each server has its part of the plan.
    #[must_use]
    pub fn new(program: &'static str, count: u16, plan: Plan) -> Fleet {
        let mut fleet = Fleet::prepare(program, count, plan);
        fleet.start_all();
        fleet
    }

    /// The directory behind all of them.
    #[must_use]
    pub fn behind(&self) -> PathBuf {
        self.dir.path().join("behind")
    }

    /// A service that was not started yet.
    #[must_use]
    pub fn prepare(program: &'static str, count: u16, plan: Plan) -> Fleet {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let behind = plan.before.then(|| dir.path().join("behind"));
        behind.iter().for_each(|behind| std::fs::create_dir(behind).expect("a directory can be made"));
        let key = dir.path().join("key");
        let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&key);
        writeln!(file.expect("a key file"), "{}", "5a".repeat(32)).expect("a key");
        let hosts =
            (0..count).map(|_| Host::prepare(program, Plan { listen: forebay_dice::address(), ..plan }));
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
            let behind = behind.clone();
            host.seat = Some(Seat { server, servers, epoch: 1, key, lease: LEASE, peer: PEER, behind });
        }
        Fleet { hosts, dir }
    }

    /// One of them, by its number.
    pub fn host(&mut self, server: u16) -> &mut Host {
        &mut self.hosts[usize::from(server) - 1]
    }

    /// Any of them.
    pub fn any(&mut self, dice: &mut Dice) -> &mut Host {
        let index = dice.below(self.hosts.len() as u64) as usize;
        &mut self.hosts[index]
    }

    /// Starts all that are down, at once, and waits until all serve.
    pub fn start_all(&mut self) {
        let mut down: Vec<&mut Host> = self.hosts.iter_mut().filter(|host| !host.is_up()).collect();
        down.iter_mut().for_each(|host| host.begin());
        for host in down {
            host.await_ready().unwrap_or_else(|why| panic!("a server does not start: {why}"));
        }
    }

    /// Stops all in order.
    pub fn stop_all(&mut self) {
        self.hosts.iter_mut().filter(|host| host.is_up()).for_each(Host::stop);
    }

    /// Stops all, and looks whether what they left is one sound namespace. What was left open when they were stopped is
    /// settled by their next start.
    pub fn check(&mut self) {
        self.stop_all();
        if !self.findings().is_empty() {
            self.start_all();
            // All of them answer that, and none before it has settled what was open.
            self.client(0, By::Unix).statfs().expect("all serve");
            self.stop_all();
        }
        assert_eq!(self.findings(), Vec::<String>::new(), "the namespace");
    }

    fn findings(&self) -> Vec<String> {
        let seat = self.hosts[0].seat.clone().expect("it is one of several");
        let homes = if seat.behind.is_some() { Homes::First } else { Homes::Spread };
        let members = Members::new(seat.epoch, seat.servers).expect("a list of servers").with_names(homes);
        let open =
            |host: &Host| FjallKv::open(&host.store().join("meta"), CACHE).expect("a store nobody uses");
        let stores: Vec<FjallKv> = self.hosts.iter().map(open).collect();
        let stores: Vec<&dyn Kv> = stores.iter().map(|store| -> &dyn Kv { store }).collect();
        check_all(&members, &stores)
    }

    /// A server is killed, and its store is gone.
    pub fn lose_store(&mut self, server: ServerId) {
        self.host(server.0).kill();
        Store::remove(&self.host(server.0).store()).expect("a store nobody uses is removed");
    }

    /// A server whose store is lost is let in with an empty one.
    pub fn replace(&mut self, server: ServerId) -> Client {
        for number in (0..self.hosts.len() as u64).filter(|number| number + 1 != u64::from(server.0)) {
            self.client(number, By::Unix).replace_server(server).expect("the others are told");
        }
        if !self.host(server.0).is_up() {
            self.host(server.0).start();
        }
        let client = self.client(0, By::Unix);
        await_joined(&client, server);
        client
    }

    /// A client that was pointed at one of them.
    #[must_use]
    pub fn client(&self, number: u64, by: By) -> Client {
        self.hosts[(number % self.hosts.len() as u64) as usize].client(by)
    }
}

/// Waits until a server has been let in again.
fn await_joined(client: &Client, server: ServerId) {
    for _ in 0..600 {
        let statuses = client.statuses().expect("somebody answers");
        let found = statuses.into_iter().find(|(found, _)| *found == server).expect("all are listed").1;
        if found.is_ok_and(|status| status.standing == Standing::Joined) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("server {server} never joined");
}
