//! Users other than root.

use crate::support::{Ran, World, end, run, skip, text};
use forebay_testkit::until;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

const OTHER_UID: u32 = 65_534;

/// Runs the binary as an ordinary user with this home.
fn as_other_user(world: &World, home: &Path, args: &[&str]) -> Ran {
    run(as_other_user_command(world, home, args))
}

/// The binary as an ordinary user with this home.
pub(crate) fn as_other_user_command(world: &World, home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    let user = OTHER_UID.to_string();
    command
        .args(["--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(world.path("forebay"))
        .args(args);
    command.current_dir(home).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).stdin(Stdio::null());
    command
}

/// A home for an ordinary user with a copy of the binary; `None` if this process cannot change users.
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
    chown(&home, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_forebay"), world.path("forebay")).unwrap();
    open(&world.path("forebay"), 0o755);
    Some(home)
}

/// Kills the server if a failed assertion left it running.
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
    let started = as_other_user(&world, &home, &["up", "--detach", "--json", "--capacity", "64MiB"]).well();
    let started: serde_json::Value = serde_json::from_str(&started.out).unwrap();
    let guard = Guard(started["pid"].as_u64().unwrap() as u32);
    assert_eq!(started["store"], state.join("store").to_str().unwrap());
    assert_eq!(started["socket"], state.join("store.sock").to_str().unwrap());
    std::fs::write(home.join("f"), "mine").unwrap();
    as_other_user(&world, &home, &["put", "f", "/"]).well();
    assert_eq!(as_other_user(&world, &home, &["cat", "/f"]).well().out, "mine");
    let facts = as_other_user(&world, &home, &["stat", "--json", "/f"]).well().out;
    assert!(facts.contains("\"uid\": 65534"), "{facts}");
    as_other_user(&world, &home, &["down"]).well();
    drop(guard);
    let store = state.join("store");
    as_other_user(&world, &home, &["store", "remove", store.to_str().unwrap(), "--yes"]).well();
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
        as_other_user(&world, &home, &args).failed(1, parts);
    }
    assert_eq!(world.well(&["cat", "/secret"]), "secret");
}

/// A run in the background, which is killed at the end of the test.
struct Background(std::process::Child);

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn run_is_closed_to_other_users() {
    let world = World::empty();
    let Some(home) = home(&world) else { return };
    let (secret, ready, go) = (world.path("secret"), world.path("ready"), world.path("go"));
    std::fs::create_dir(&secret).unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(secret.join("diary"), "private").unwrap();
    let script = format!(
        "stat -c %a /fb; touch {}; until [ -e {} ]; do sleep 0.05; done",
        ready.display(),
        go.display()
    );
    let mut run = world.command(&["run", "--capacity", "32MiB", "--pfs", secret.to_str().unwrap()]);
    run.args(["--", "bash", "-c", &script]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = Background(run.spawn().unwrap());
    until("the program runs", || {
        assert!(run.0.try_wait().unwrap().is_none(), "the run ended");
        ready.exists()
    });
    let dir = run_directory(run.0.id());
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode(&dir), mode(&dir.join("sock"))), (0o700, 0o600));
    // Refused also where the file system lets another user connect.
    for (path, mode) in [(dir.clone(), 0o755), (dir.join("sock"), 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let service = format!("unix:{}", dir.join("sock").display());
    for (command, rest) in
        [("ls", &["/"][..]), ("cat", &["/diary"]), ("mkdir", &["/planted"]), ("status", &[])]
    {
        let args = [&[command, "--service", &service], rest].concat();
        as_other_user(&world, &home, &args).failed(1, &["user 65534 is refused"]);
    }
    world.well(&["ls", "--service", &service, "/"]);
    std::fs::write(&go, "").unwrap();
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut run.0.stdout.take().unwrap(), &mut printed).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0));
    assert_eq!(printed, "700\n", "the root of the buffer has the mode of the target directory");
    let names: Vec<_> = std::fs::read_dir(&secret).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["diary"]);
}

/// The directory of the run that this process has started.
fn run_directory(run: u32) -> std::path::PathBuf {
    let holder = format!("{run}\n");
    let all = std::fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().path());
    let held =
        |dir: &std::path::PathBuf| std::fs::read_to_string(dir.join("lock")).is_ok_and(|pid| pid == holder);
    all.filter(|dir| dir.file_name().unwrap().to_string_lossy().starts_with("forebay-run-0-"))
        .find(held)
        .unwrap()
}

#[test]
fn run_directory_of_another_user_is_not_resumed() {
    let world = World::empty();
    let Some(home) = home(&world) else { return };
    let planted = home.join("planted");
    std::fs::create_dir(&planted).unwrap();
    std::fs::write(planted.join("run.json"), r#"{"pfs":"/etc","command":"true"}"#).unwrap();
    chown(&planted, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    let resumed = world.run(&["run", "--resume", planted.to_str().unwrap()]);
    resumed.failed(1, &["belongs to user 65534"]);
    assert!(planted.join("run.json").exists());
}

#[test]
fn ordinary_users_connect_over_tcp_with_their_own_keys() {
    let mut world = World::empty();
    let Some(home) = home(&world) else { return };
    let started = world.start(&["--listen", "127.0.0.1:0"]);
    let address = format!("tcp:{}", started["tcp"].as_str().unwrap());
    world.run(&["key", "grant", "root"]).failed(1, &["no key is made for root"]);
    world.run(&["key", "grant", "nobody", "--expires", "soon"]).failed(2, &["\"soon\" is no time"]);
    assert!(!world.path("root.key").exists() && !world.path("nobody.key").exists());
    let key = home.join("own.key");
    let user = OTHER_UID.to_string();
    let granted = world.well(&["key", "grant", &user, "--expires", "30d", "--out", text(&key)]);
    let meta = key.metadata().unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777), (OTHER_UID, 0o600), "{granted}");
    std::fs::write(home.join("f"), "mine").unwrap();
    let remote = |args: &[&str]| {
        let args = [args, &["--service", &address, "--key", text(&key)]].concat();
        as_other_user(&world, &home, &args)
    };
    remote(&["put", "f", "/"]).well();
    assert!(remote(&["stat", "--json", "/f"]).well().out.contains("\"uid\": 65534"));
    remote(&["down"]).failed(1, &["may not stop this server"]);
    remote(&["key", "list"]).failed(1, &["may not manage the keys"]);
    // A copy made by root acts as the key's user only.
    std::fs::copy(&key, world.path("copy")).unwrap();
    world.well(&["put", "copy", "/copied", "--service", &address, "--key", "copy"]);
    let facts = world.well(&["stat", "--json", "/copied"]);
    assert!(facts.contains("\"uid\": 65534"), "{facts}");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o640)).unwrap();
    remote(&["ls", "/"]).failed(1, &["own.key", "mode 640", "chmod 600"]);
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o600)).unwrap();
    let list = world.json(&["key", "list", "--json"]);
    let id = list["keys"][0]["id"].as_str().unwrap().to_owned();
    assert!(list["keys"][0]["expires"].is_string() && list["keys"][0]["uid"] == OTHER_UID, "{list}");
    world.run(&["key", "revoke", "zzz"]).failed(1, &["no key begins with"]);
    world.well(&["key", "revoke", &id[..8]]);
    remote(&["ls", "/"]).failed(1, &["was revoked"]);
    assert!(world.well(&["key", "list"]).contains("revoked"));
}

#[test]
fn run_without_privileges_drains_unreadable_files() {
    let world = World::empty();
    let Some(home) = home(&world) else { return };
    let script = "mkdir /fb/d; echo closed > /fb/d/f; chmod 000 /fb/d/f; chmod 500 /fb/d; exit 4";
    let args = ["run", "--capacity", "64MiB", "--pfs", "pfs", "--", "bash", "-c", script];
    let ran = as_other_user(&world, &home, &args);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("drained    2 entries, 7 B"), "{}", ran.err);
    let mode = |path: &str| home.join(path).metadata().unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("pfs/d"), mode("pfs/d/f")), (0o500, 0));
    assert_eq!(std::fs::read_to_string(home.join("pfs/d/f")).unwrap(), "closed\n");
}
