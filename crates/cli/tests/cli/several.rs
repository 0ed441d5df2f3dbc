//! Several servers in one process.

use crate::support::{World, pattern, text};

#[test]
fn several_servers_are_one_service() {
    let mut world = World::empty();
    let started = world.start(&["--servers", "3"]);
    assert_eq!(started["servers"], 3);
    world.well(&["mkdir", "/d"]);
    world.well(&["layout", "set", "/d", "--stripe", "1MiB"]);
    assert!(world.well(&["layout", "show", "/d"]).contains("all servers, stripes of 1 MiB"));
    let bytes = pattern(5 << 20, 3);
    world.write("big", &bytes);
    world.well(&["put", "big", "/d"]);
    assert!(world.run(&["cat", "/d/big"]).well().bytes == bytes);
    let layout = world.json(&["layout", "show", "/d/big", "--json"]);
    assert_eq!(layout["layout"]["servers"].as_array().map(Vec::len), Some(3));
    let status = world.json(&["status", "--json"]);
    let servers = status["servers"].as_array().expect("a list");
    assert_eq!(servers.len(), 3);
    assert!(servers.iter().all(|server| server["status"]["standing"] == "Joined"), "{status}");
    assert!(world.well(&["status"]).contains("server 2 (forebay "));
    world.run(&["server", "replace", "7"]).failed(2, &["server 7 is not one of several servers"]);
    assert_eq!(world.well(&["down"]), "");
    let stores = ["store", "store.1", "store.2"].map(|name| text(&world.path(name)).to_owned());
    let check = ["check", &stores[0], &stores[1], &stores[2]];
    assert_eq!(world.well(&check), "nothing is wrong\n");
    world
        .run(&["up", "--detach", "--store", "store", "--disk"])
        .failed(1, &["belongs to a service of servers 0, 1, 2"]);
}
