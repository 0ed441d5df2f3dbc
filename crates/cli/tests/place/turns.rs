//! Turns that a running Forebay assigns to processes without a rank, on any machine.

use crate::programs::{alone, planned};
use crate::world::{World, forebay, well};
use forebay_testkit::until;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server that is killed at the end of the test.
struct Up {
    server: Child,
    tcp: SocketAddr,
}

impl Up {
    fn start(world: &World) -> Up {
        let (socket, tcp) = (world.path("sock"), forebay_testkit::address());
        let mut command = forebay(world.dir());
        command.args(["up", "--disk", "--capacity", "64MiB", "--store"]).arg(world.path("store"));
        command.args(["--listen", &tcp.to_string(), "--key"]).arg(world.path("key"));
        let server = command.arg("--socket").arg(&socket).stdout(Stdio::null()).spawn().expect("it runs");
        let up = Up { server, tcp };
        let serves = |service: &str, key: bool| {
            let mut command = forebay(world.dir());
            command.args(["status", "--service", service]);
            if key {
                command.arg("--key").arg(world.path("key"));
            }
            command.output().is_ok_and(|output| output.status.success())
        };
        until("the server serves", || serves(&up.unix(world), false) && serves(&up.tcp(), true));
        up
    }

    fn unix(&self, world: &World) -> String {
        format!("unix:{}", world.path("sock").display())
    }

    fn tcp(&self) -> String {
        format!("tcp:{}", self.tcp)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Creates four files by a shell with this home. A machine's turns are kept in its home, so another home stands
/// for another machine.
fn make(world: &World, home: &Path, like: &str, options: &[&str]) {
    let line = format!("for n in 0 1 2 3; do echo x > pfs/{like}$n; done");
    let mut command: Command = world.placed(options);
    well(&command.env("HOME", home).args(["sh", "-c", &line]).output().expect("a shell"));
}

#[test]
fn processes_of_several_machines_take_turns_through_a_running_forebay() {
    let Some(world) = World::new(&[]) else { return };
    let up = Up::start(&world);
    let [other, third] = ["other", "third"].map(|name| world.path(name));
    std::fs::create_dir(&other).and_then(|()| std::fs::create_dir(&third)).expect("directories");
    let key = world.path("key");
    let over_tcp = ["--service", &up.tcp(), "--key", key.to_str().expect("a path")];
    make(&world, world.dir(), "a", &["--service", &up.unix(&world)]);
    make(&world, &other, "b", &over_tcp);
    let names = ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"];
    assert_eq!(alone(&world, &names), planned(8), "{}", world.log());
    assert!(!world.log().contains("using the turns of this machine only"), "{}", world.log());
    // A program without the right key gets an error and counts its turns alone.
    let wrong = world.path("wrong");
    std::fs::write(&wrong, format!("{}\n", "5a".repeat(32))).expect("a file");
    make(&world, &third, "c", &["--service", &up.tcp()]);
    assert!(world.log().contains("the service requires a key"), "{}", world.log());
    make(&world, &third, "d", &["--service", &up.tcp(), "--key", wrong.to_str().expect("a path")]);
    assert_eq!(alone(&world, &["c0", "c1", "c2", "c3", "d0", "d1", "d2", "d3"]), planned(8));
    drop(up);
    // Without the service each machine has turns of its own, from the first on.
    make(&world, &other, "e", &over_tcp);
    assert_eq!(alone(&world, &["e0", "e1", "e2", "e3"]), planned(4));
    assert!(
        world.log().contains("using the turns of this machine only: cannot reach tcp:"),
        "{}",
        world.log()
    );
}
