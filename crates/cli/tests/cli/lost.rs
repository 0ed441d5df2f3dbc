//! A service that loses the store of one of its servers: it continues without the store, reports the losses,
//! and accepts an empty store only after `shard replace`.

use crate::support::{Ran, World, pattern, run};
use forebay_model::{FileId, Member, Members, Name, ServerId};
use forebay_testkit::{until_equal, until_some};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

const STRIPE: usize = 64 << 10;
const FILES: u8 = 9;

/// How the three servers of a service run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deployment {
    OneProcess,
    ProcessEach,
}

/// Which Unix sockets the list of servers names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sockets {
    /// Each server's own.
    Own,
    /// That of the first server for all, as on hosts that have their sockets at one path.
    OnePath,
    /// None, as of servers on other hosts.
    Unlisted,
}

/// Three servers, with numbers from 0.
pub(crate) struct Trio {
    pub(crate) world: World,
    deployment: Deployment,
}

impl Trio {
    pub(crate) fn up(deployment: Deployment) -> Trio {
        Trio::listed(deployment, Sockets::Own)
    }

    pub(crate) fn listed(deployment: Deployment, sockets: Sockets) -> Trio {
        let world = World::empty();
        if deployment == Deployment::ProcessEach {
            let mut list = format!("[server]\ntcp = true\nkey = '{}'\n", world.path("key").display());
            for number in 0..3 {
                let address = address_of(number);
                list += &format!("[[server.servers]]\nserver = {number}\naddress = 'tcp:{address}'\n");
                let socket = match sockets {
                    Sockets::Own => Some(world.path(&name("sock", number))),
                    Sockets::OnePath => Some(world.path("sock")),
                    Sockets::Unlisted => None,
                };
                list += &socket.map_or_else(String::new, |path| format!("socket = '{}'\n", path.display()));
            }
            world.write("forebay.toml", list);
        }
        let mut trio = Trio { world, deployment };
        trio.start();
        trio
    }

    /// Starts all servers and returns their output.
    pub(crate) fn start(&mut self) -> Vec<Value> {
        match self.deployment {
            Deployment::OneProcess => vec![self.world.start(&["--shards", "3"])],
            Deployment::ProcessEach => (0..3).map(|number| self.start_one(number)).collect(),
        }
    }

    /// Starts one server in its own process.
    pub(crate) fn start_one(&mut self, number: usize) -> Value {
        let (store, socket) = (self.store(number), self.world.path(&name("sock", number)));
        let mut command = self.world.command(&["up", "--detach", "--json", "--disk", "--capacity", "128MiB"]);
        command.arg("--store").arg(store).arg("--socket").arg(socket);
        command.arg("--server").arg(number.to_string());
        let started: Value = serde_json::from_str(&run(command).well().out).expect("JSON");
        self.world.watch(started["pid"].as_u64().expect("a process"));
        started
    }

    pub(crate) fn stop(&mut self) {
        let printed = self.world.well(&["down"]);
        assert_eq!(printed.is_empty(), self.deployment == Deployment::OneProcess, "{printed}");
    }

    pub(crate) fn store(&self, number: usize) -> PathBuf {
        self.world.path(&name("store", number))
    }

    /// The status of a server.
    fn status(&self, server: usize) -> Value {
        self.world.json(&["status", "--json"])["servers"][server]["status"].clone()
    }

    fn await_standing(&self, server: usize, holds: impl Fn(&Value) -> bool) -> Value {
        until_some("the standing of the server", || {
            let standing = self.status(server)["standing"].clone();
            holds(&standing).then_some(standing)
        })
    }

    /// Waits until the servers list exactly these files, with these numbers of lost bytes, and these other
    /// losses.
    fn await_lost(&self, expected: &BTreeMap<String, u64>, besides: &[String]) {
        until_equal("what is lost", &(expected.clone(), besides.to_vec()), || {
            let all = self.world.json(&["status", "--json"]);
            let mut listed = (BTreeMap::new(), Vec::new());
            for (number, server) in all["servers"].as_array().expect("a list").iter().enumerate() {
                for one in server["status"]["lost"].as_array().expect("a list") {
                    assert_eq!(one["server"], 1, "{one}");
                    let path = || one["path"].as_str().expect("a path").to_owned();
                    match one["lost"].as_str().expect("a word") {
                        "bytes" => drop(listed.0.insert(path(), one["bytes"].as_u64().expect("a number"))),
                        "rest" => listed.1.push(format!("{} bytes on {number}", one["bytes"])),
                        "name" => listed.1.push(format!("{} bytes in {}", one["size"], one["inside"])),
                        other => panic!("{other}: {one}"),
                    }
                }
            }
            listed.1.sort();
            listed
        });
    }

    /// The servers that hold a file's data.
    fn servers(&self, path: &str) -> Vec<u64> {
        let shown = self.world.json(&["layout", "show", path, "--json"]);
        let servers = shown["layout"]["servers"].as_array().expect("a list");
        servers.iter().map(|server| server.as_u64().expect("a number")).collect()
    }

    fn read(&self, path: &str) -> Ran {
        self.world.run(&["cat", path])
    }
}

/// The address of a server: each has its own loopback address.
fn address_of(number: usize) -> SocketAddr {
    let mut address = forebay_testkit::address();
    if let IpAddr::V4(host) = address.ip() {
        let [_, _, middle, low] = host.octets();
        address.set_ip(Ipv4Addr::new(127, 128 + number as u8, middle, low).into());
    }
    address
}

/// A name in the root directory that a server is responsible for.
pub(crate) fn name_on(server: u16, like: &str) -> String {
    let member = |n| Member { server: ServerId(n), address: String::new(), socket: None };
    let members = Members::new(1, (0..3).map(member).collect()).expect("a list");
    let is_there = |text: &String| {
        members.home(FileId::ROOT, &Name::new(text.as_str()).expect("a name")) == ServerId(server)
    };
    (0..).map(|number| format!("{like}{number}")).find(is_there).expect("there are enough names")
}

fn name(of: &str, number: usize) -> String {
    if number == 0 { of.to_owned() } else { format!("{of}.{number}") }
}

/// The number of a file's bytes on a server.
fn share(len: usize, servers: &[u64], of: u64) -> u64 {
    let stripes = (0..len).step_by(STRIPE).zip(servers.iter().cycle());
    stripes.filter(|(_, server)| **server == of).map(|(from, _)| (len - from).min(STRIPE) as u64).sum()
}

/// Creates files in `/plain`, each on one server, and in `/striped`, over all; returns them with their servers.
fn populate(trio: &Trio) -> Vec<(String, Vec<u8>, Vec<u64>)> {
    let mut files = Vec::new();
    for (like, servers) in [("plain", "1"), ("striped", "0")] {
        // The directory itself must not be lost.
        let dir = &format!("/{}", name_on(0, like));
        trio.world.well(&["mkdir", dir]);
        trio.world.well(&["layout", "set", dir, "--shards", servers, "--stripe", "64KiB"]);
        for number in 0..FILES {
            let (path, bytes) = (format!("{dir}/f{number}"), pattern(5 * STRIPE + 100, number));
            trio.world.write("file", &bytes);
            trio.world.well(&["put", "file", &path]);
            let servers = trio.servers(&path);
            files.push((path, bytes, servers));
        }
    }
    files
}

#[test]
fn lost_store_is_replaced_in_one_process() {
    lose_and_replace(Deployment::OneProcess);
}

#[test]
fn lost_store_is_replaced_in_separate_processes() {
    lose_and_replace(Deployment::ProcessEach);
}

fn lose_and_replace(deployment: Deployment) {
    let mut trio = Trio::up(deployment);
    let files = populate(&trio);
    // A file of server 0 whose name is on server 1.
    let (made, renamed) = (format!("/{}", name_on(0, "made")), format!("/{}", name_on(1, "renamed")));
    trio.world.write("file", "whole");
    trio.world.well(&["put", "file", &made]);
    trio.world.well(&["mv", &made, &renamed]);
    trio.stop();
    std::fs::remove_dir_all(trio.store(1)).expect("a store is lost");
    let started = trio.start();
    if deployment == Deployment::OneProcess {
        let refused = started[0]["refused"].as_array().expect("one is refused");
        assert!(refused.len() == 1 && refused[0].as_str().unwrap().contains("forebay shard replace 1"));
    }
    let refused = trio.await_standing(1, |standing| standing["Refused"].is_string());
    assert!(refused["Refused"].as_str().unwrap().contains("forebay shard replace 1"), "{refused}");
    assert!(trio.world.well(&["status"]).contains("REFUSED   server 1 comes with another store"));
    for (path, bytes, servers) in files.iter().filter(|(path, ..)| path.starts_with("/plain")) {
        match servers[..] == [1] {
            true => trio.read(path).failed(1, &["forebay shard replace 1"]),
            false => assert!(trio.read(path).well().bytes == *bytes, "{path}"),
        }
    }
    // An empty store is refused however often the server is started.
    trio.stop();
    trio.start();
    trio.await_standing(1, |standing| standing["Refused"].is_string());
    let printed = trio.world.well(&["shard", "replace", "1"]);
    assert!(printed.contains("shard 1 may join with a new store"), "{printed}");
    trio.await_standing(1, |standing| standing == "Joined");
    for (path, bytes, servers) in &files {
        match servers.contains(&1) {
            true => trio.read(path).failed(1, &["lost"]),
            false => assert!(trio.read(path).well().bytes == *bytes, "{path}"),
        }
    }
    let harmed = files.iter().filter(|(_, _, servers)| servers[0] != 1 && servers.contains(&1));
    let mut expected: BTreeMap<String, u64> =
        harmed.map(|(path, bytes, servers)| (path.clone(), share(bytes.len(), servers, 1))).collect();
    assert!(expected.len() >= 3, "{expected:?}");
    let mut besides = vec!["5 bytes in \"/\"".to_owned()];
    for (_, bytes, servers) in files.iter().filter(|(_, _, servers)| servers[0] == 1) {
        let rest = servers.iter().filter(|server| **server != 1);
        besides
            .extend(rest.map(|&server| format!("{} bytes on {server}", share(bytes.len(), servers, server))));
    }
    besides.sort();
    assert!(besides.len() >= 3, "{besides:?}");
    trio.await_lost(&expected, &besides);
    trio.read(&renamed).failed(1, &["lost"]);
    let path = expected.last_key_value().expect("some are lost").0;
    let shown = trio.world.well(&["status"]);
    let line =
        shown.lines().find(|line| line.starts_with(&format!("  LOST      {path}: "))).expect("it is listed");
    assert!(line.ends_with("bytes were lost with the store of server 1"), "{line}");
    let printed = "(5 bytes) in /: its name was lost with the store of server 1, the rest was not";
    assert!(
        shown.lines().any(|line| line.starts_with("  LOST      a file ") && line.ends_with(printed)),
        "{shown}"
    );
    // Files that are written again or removed are not lost any more.
    let (again, removed) = (path.clone(), expected.first_key_value().expect("two").0.clone());
    trio.world.write("file", pattern(4 * STRIPE, 77));
    trio.world.well(&["put", "file", &again]);
    trio.world.well(&["rm", &removed]);
    expected.retain(|path, _| *path != again && *path != removed);
    trio.await_lost(&expected, &besides);
    assert!(trio.read(&again).well().bytes == pattern(4 * STRIPE, 77));
    // Until the losses are acknowledged, a name that is not found may have been lost.
    trio.stop();
    let stores = [0, 1, 2].map(|number| trio.store(number).display().to_string());
    let check = ["check", "--json", &stores[0], &stores[1], &stores[2], "--repair", "--drop-dangling"];
    let checked = trio.world.run(&check);
    let found: Value = serde_json::from_str(&checked.out).expect("JSON");
    assert_eq!(checked.code, 3, "losses stay listed: {found}");
    let found = found["found"].as_array().expect("a list");
    assert!(found.len() == expected.len() && found.iter().all(|flaw| flaw["kind"] == "lost"), "{found:?}");
    trio.start();
    trio.world.write("new", "new");
    for number in 0..6 {
        let path = format!("/new{number}");
        trio.world.well(&["put", "new", &path]);
        assert_eq!(trio.world.well(&["cat", &path]), "new");
    }
}
