//! Somebody who is not root.

use crate::support::{Ran, World, end, run, skip};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

const NOBODY: u32 = 65_534;

/// Runs the binary as an ordinary user with this home.
fn as_nobody(world: &World, home: &Path, args: &[&str]) -> Ran {
    run(as_nobody_command(world, home, args))
}

/// The binary as an ordinary user with this home.
pub(crate) fn as_nobody_command(world: &World, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let user = NOBODY.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(world.path("forebay"))
        .args(args);
    command.current_dir(home).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).stdin(Stdio::null());
    command
}

/// A home for an ordinary user, and a copy of the binary where that user can run it; none where we cannot be another.
pub(crate) fn home(world: &World) -> Option<std::path::PathBuf> {
    let able = Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !rustix::process::geteuid().is_root() || !able {
        skip("tests as another user: they need root and setpriv");
        return None;
    }
    let open = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    open(world.dir(), 0o755);
    let home = world.path("home");
    std::fs::create_dir(&home).unwrap();
    chown(&home, Some(NOBODY), Some(NOBODY)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), world.path("forebay")).unwrap();
    open(&world.path("forebay"), 0o755);
    Some(home)
}

/// Ends the server, if a failed assertion left it.
struct Guard(u32);

impl Drop for Guard {
    fn drop(&mut self) {
        end(self.0);
    }
}

#[test]
fn defaults_work_without_privileges() {
    let world = World::empty();
    let Some(home) = home(&world) else { return };
    let state = home.join(".local/state/forebay");
    let started = as_nobody(&world, &home, &["up", "--detach", "--json", "--capacity", "64MiB"]).well();
    let started: serde_json::Value = serde_json::from_str(&started.out).unwrap();
    let guard = Guard(started["pid"].as_u64().unwrap() as u32);
    assert_eq!(started["store"], state.join("store").to_str().unwrap());
    assert_eq!(started["socket"], state.join("store.sock").to_str().unwrap());
    std::fs::write(home.join("f"), "mine").unwrap();
    as_nobody(&world, &home, &["put", "f", "/"]).well();
    assert_eq!(as_nobody(&world, &home, &["cat", "/f"]).well().out, "mine");
    let facts = as_nobody(&world, &home, &["stat", "--json", "/f"]).well().out;
    assert!(facts.contains("\"uid\": 65534"), "{facts}");
    as_nobody(&world, &home, &["down"]).well();
    drop(guard);
    let store = state.join("store");
    as_nobody(&world, &home, &["store", "remove", store.to_str().unwrap(), "--yes"]).well();
}

#[test]
fn modes_bind_ordinary_users() {
    let world = World::up();
    let Some(home) = home(&world) else { return };
    let service = world.service();
    world.write("secret", "secret");
    std::fs::set_permissions(world.path("secret"), PermissionsExt::from_mode(0o600)).unwrap();
    world.well(&["put", "secret", "/secret"]);
    world.well(&["mkdir", "/roots"]);
    for (args, parts) in [
        (&["cat", "/secret"][..], &["cannot open /secret: ", "ermission"][..]),
        (&["put", "/etc/hostname", "/roots/x"], &["cannot open /roots/x: ", "ermission"]),
        (&["rm", "/secret"], &["/secret"]),
        (&["mv", "/secret", "/stolen"], &["cannot move /secret to /stolen"]),
        (&["down"], &["may not stop this server"]),
    ] {
        let args = [args, &["--service", &service]].concat();
        as_nobody(&world, &home, &args).failed(1, parts);
    }
    assert_eq!(world.well(&["cat", "/secret"]), "secret");
}

#[test]
fn a_run_needs_no_privileges_and_brings_out_what_nobody_may_read() {
    let world = World::empty();
    let Some(home) = home(&world) else { return };
    let script = "mkdir /fb/d; echo closed > /fb/d/f; chmod 000 /fb/d/f; chmod 500 /fb/d; exit 4";
    let args = ["run", "--capacity", "64MiB", "--pfs", "pfs", "--", "bash", "-c", script];
    let ran = as_nobody(&world, &home, &args);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("brought    2 entries, 7 B"), "{}", ran.err);
    let mode = |path: &str| home.join(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("pfs/d"), mode("pfs/d/f")), (0o500, 0));
    assert_eq!(std::fs::read_to_string(home.join("pfs/d/f")).unwrap(), "closed\n");
}
