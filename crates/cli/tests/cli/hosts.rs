//! A service over several hosts: stopping hosts, unreachable hosts, the key file, and lost stores.

use crate::lost::{Deployment, Sockets, Trio, name_on};
use crate::support::{Ran, World, run, text};
use forebay_testkit::until;
use serde_json::Value;

/// The host of a server in the list of servers.
fn host(trio: &Trio, server: usize) -> String {
    let list = std::fs::read_to_string(trio.world.path("forebay.toml")).expect("a list of servers");
    let mut addresses = list.lines().filter_map(|line| line.strip_prefix("address = 'tcp:"));
    let address = addresses.nth(server).expect("one for each");
    address.rsplit_once(':').expect("a port").0.to_owned()
}

#[test]
fn down_stops_one_host_or_reports_that_it_stops_all() {
    let mut trio = Trio::up(Deployment::ProcessEach);
    let hosts = [0, 1, 2].map(|server| host(&trio, server));
    trio.world.run(&["down", "--host", "nowhere"]).failed(2, &["no shard of the service is on host nowhere"]);
    assert_eq!(trio.world.well(&["down", "--host", &hosts[1]]), "");
    let away = trio.world.run(&["status", "--json"]);
    let status: Value = serde_json::from_str(&away.out).expect("JSON");
    assert_eq!(status["totals"]["away"], 1, "{status}");
    assert!(status["servers"][1]["trouble"].is_string(), "{status}");
    trio.start_one(1);
    let printed = trio.world.well(&["down"]);
    assert!(printed.starts_with("stopped 3 shards on 3 hosts ("), "{printed}");
    assert!(
        hosts.iter().all(|host| printed.contains(host)) && printed.contains("forebay down --host HOST"),
        "{printed}"
    );
    trio.world.run(&["status"]).failed(1, &["cannot reach the service"]);
}

#[test]
fn unreachable_host_sets_exit_code_of_status_and_df() {
    let mut trio = Trio::up(Deployment::ProcessEach);
    trio.world.well(&["status"]);
    trio.world.well(&["df"]);
    trio.world.well(&["down", "--host", &host(&trio, 2)]);
    let is_reported = |ran: &Ran, shown: &str, reported: &str| {
        ran.failed(4, &["server 2", reported]);
        assert!(ran.out.contains(shown), "the other servers are shown: {}", ran.out);
    };
    is_reported(&trio.world.run(&["status"]), "AWAY", "does not answer");
    is_reported(&trio.world.run(&["status", "--long"]), "server 2 DOES NOT ANSWER", "does not answer");
    is_reported(&trio.world.run(&["status", "--json"]), "\"away\"", "does not answer");
    is_reported(&trio.world.run(&["df"]), "capacity", "is not counted");
    trio.start_one(2);
    trio.world.well(&["df"]);
}

#[test]
fn a_key_beside_a_unix_socket_opens_the_servers_of_other_hosts() {
    let trio = Trio::listed(Deployment::ProcessEach, Sockets::Unlisted);
    let key = trio.world.path("key");
    for server in 0..3 {
        let path = format!("/{}", name_on(server, "by-option"));
        trio.world.well(&["mkdir", "--key", text(&key), &path]);
        trio.world.well(&["stat", "--key", text(&key), &path]);
    }
    let path = format!("/{}", name_on(1, "by-nobody"));
    trio.world.run(&["mkdir", &path]).failed(1, &["server 1 (tcp:", "name its key file"]);
    // The same by the settings, and for a program.
    let settings = std::fs::read_to_string(trio.world.path("forebay.toml")).expect("settings");
    trio.world.write("forebay.toml", format!("{settings}[client]\nkey = '{}'\n", key.display()));
    for server in 0..3 {
        trio.world.well(&["mkdir", &format!("/{}", name_on(server, "by-settings"))]);
        let path = format!("/fb/{}", name_on(server, "by-program"));
        trio.world.well(&["exec", "--", "mkdir", &path]);
    }
}

#[test]
fn hosts_that_have_their_sockets_at_one_path_are_distinguished() {
    let trio = Trio::listed(Deployment::ProcessEach, Sockets::OnePath);
    let key = text(&trio.world.path("key")).to_owned();
    for server in 0..3 {
        let path = format!("/{}", name_on(server, "d"));
        trio.world.well(&["mkdir", "--key", &key, &path]);
        trio.world.well(&["exec", "--key", &key, "--", "touch", &format!("/fb{path}/file")]);
        assert!(trio.world.well(&["ls", "--key", &key, &path]).contains("file"));
    }
    // The server of this host answers at the socket of the one that is to stop.
    assert_eq!(trio.world.well(&["down", "--key", &key, "--host", &host(&trio, 1)]), "");
    let status = trio.world.run(&["status", "--json", "--key", &key]);
    let status: Value = serde_json::from_str(&status.out).expect("JSON");
    let is_away = |server: usize| status["servers"][server]["trouble"].is_string();
    assert_eq!([0, 1, 2].map(is_away), [false, true, false], "{status}");
}

#[test]
fn a_service_is_looked_for_at_every_address_of_a_list() {
    let world = World::up();
    let (nowhere, here) = (format!("unix:{}", world.path("Nowhere").display()), world.service());
    let list = format!("{nowhere},tcp:127.0.0.1:9,{here}");
    world.well(&["status", "--service", &list]);
    world.well(&["exec", "--service", &list, "--", "touch", "/fb/file"]);
    assert!(world.well(&["ls", "--service", &list, "/"]).contains("file"));
    let none = format!("{nowhere},tcp:127.0.0.1:9");
    let all = [nowhere.as_str(), "tcp:127.0.0.1:9", "forebay up"];
    world.run(&["ls", "--service", &none, "/"]).failed(1, &all);
    world.run(&["exec", "--service", &none, "--", "true"]).failed(1, &all);
    if crate::mount::can_mount() {
        std::fs::create_dir(world.path("mnt")).expect("a directory");
        world.well(&["mount", &list, "mnt"]);
        assert!(world.path("mnt/file").exists(), "it is the service's");
        world.well(&["umount", "mnt"]);
        world.run(&["mount", &none, "mnt"]).failed(1, &[nowhere.as_str(), "tcp:127.0.0.1:9"]);
    }
    // Turns are counted by one server, not by whichever answers.
    let place = ["place", "exec", "--pfs", ".", "--targets", "2", "--service", &list, "--", "true"];
    world.run(&place).failed(2, &["name one address"]);
    world.run(&["ls", "--service", "h:1,,unix:/b", "/"]).failed(2, &["is not the address of a service"]);
}

#[test]
fn joining_server_needs_the_key_of_the_others() {
    let mut trio = Trio::up(Deployment::ProcessEach);
    trio.stop();
    let start = |server: &str, key: &str| {
        let mut command =
            trio.world.command(&["up", "--detach", "--disk", "--capacity", "128MiB", "--key", key]);
        command.args([
            "--server",
            server,
            "--store",
            &format!("new{server}"),
            "--socket",
            &format!("s{server}"),
        ]);
        run(command)
    };
    start("1", "other").failed(1, &["other is missing", "copy it from server 0", "which makes it"]);
    assert!(!trio.world.path("other").exists(), "no key is created");
    // The first server created the key of the service; without it, its store does not fit the other servers.
    let mut again = trio.world.command(&["up", "--detach", "--disk", "--key", "other", "--shard", "0"]);
    again.arg("--store").arg(trio.store(0)).arg("--socket").arg(trio.world.path("sock"));
    run(again).failed(1, &["other is missing", "copy it from another server"]);
    assert!(!trio.world.path("other").exists(), "no key is created");
}

/// Starts three servers in one process, with this directory as back end if one is given.
fn start(world: &mut World, backing: Option<&str>) {
    let mut args = vec!["--shards".to_owned(), "3".to_owned()];
    if let Some(backing) = backing {
        std::fs::create_dir_all(world.path(backing)).expect("a directory");
        args.extend(["--backend".to_owned(), format!("dir:{}", world.path(backing).display())]);
    }
    world.start(&args.iter().map(String::as_str).collect::<Vec<_>>());
}

/// Loses the store of the first of three servers, and replaces it.
fn lose_first(world: &mut World, backing: Option<&str>) {
    world.well(&["down"]);
    std::fs::remove_dir_all(world.path("store")).expect("a store is lost");
    start(world, backing);
    // The client connects to the server whose store the others reject.
    world.run(&["ls", "/"]).failed(1, &["forebay shard replace 0"]);
    world.well(&["shard", "replace", "0"]);
    let joined =
        |world: &World| world.json(&["status", "--json"])["servers"][0]["status"]["standing"] == "Joined";
    until("the server joins", || joined(world));
}

#[test]
fn names_of_the_root_are_created_or_refused_between_a_loss_and_its_repair() {
    for backing in [None, Some("backing")] {
        let mut world = World::empty();
        start(&mut world, backing);
        world.write("file", "bytes");
        lose_first(&mut world, backing);
        // Names of every server. Of the one that lost its store, the root may have had such a name.
        let paths: Vec<String> = (0..12).map(|number| format!("/between{number}")).collect();
        let put = |path: &String| world.run(&["put", "file", path]);
        let (made, refused): (Vec<_>, Vec<_>) = paths.iter().partition(|path| {
            let ran = put(path);
            if ran.code != 0 {
                ran.failed(1, &["lost with an earlier store of server 0", "forebay check --repair"]);
            }
            ran.code == 0
        });
        assert!(!refused.is_empty() && made.is_empty() == backing.is_some(), "{made:?} {refused:?}");
        world.well(&["check", "--repair"]);
        for path in refused {
            put(path).well();
        }
        for path in &paths {
            assert_eq!(world.well(&["cat", path]), "bytes");
        }
        assert_eq!(world.well(&["check"]), "nothing is wrong\n");
        world.well(&["down"]);
    }
}

#[test]
fn service_with_a_back_end_is_repaired_while_running() {
    let (mut world, backing) = (World::empty(), Some("backing"));
    start(&mut world, backing);
    world.write("file", "bytes");
    world.well(&["put", "file", "/kept"]);
    world.well(&["drain", "--wait"]);
    assert_eq!(world.well(&["check"]), "nothing is wrong\n");
    lose_first(&mut world, backing);
    world
        .run(&["stat", "/none"])
        .failed(1, &["lost with an earlier store of server 0", "forebay check --repair"]);
    assert_eq!(world.well(&["cat", "/kept"]), "bytes");
    world.well(&["mkdir", "/new"]);
    world.run(&["stat", "/new/none"]).failed(1, &["no \"none\""]);
    let found = world.run(&["check"]);
    assert_eq!(found.code, 3, "{}{}", found.out, found.err);
    assert!(found.out.contains("an earlier store of server 0 was lost"), "{}", found.out);
    let printed = world.well(&["check", "--repair"]);
    assert!(printed.contains("server 0 goes on without what it had lost"), "{printed}");
    world.run(&["stat", "/none"]).failed(1, &["no \"none\": look for it"]);
    assert_eq!(world.well(&["check"]), "nothing is wrong\n");
    let name = name_on(0, "any");
    world.well(&["put", "file", &format!("/{name}")]);
}
