//! Every command as another user: no command of the binary shows or changes the owner's files.
//!
//! The commands are those that the program has, also those that its help does not list: a command without a rule fails the
//! test.

use crate::support::{Ran, World, run, skip};
use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};

const OWNER: u32 = 4001;
const STRANGER: u32 = 4002;
const HIDDEN: &str = "HIDDEN";

/// The expected result of a command that another user runs on the owner's files.
enum Rule {
    /// It fails.
    Refused(&'static [&'static [&'static str]]),
    /// It works as for all users.
    EveryUser(&'static [&'static [&'static str]]),
    /// It may succeed or fail; it shows and changes nothing of the owner's.
    Harmless(&'static [&'static [&'static str]]),
    /// It uses neither a service nor a store.
    Alone,
    /// It starts a service or program of that user, which is tried on the owner's files.
    Own(&'static [&'static [&'static str]]),
}

use Rule::{Alone, EveryUser, Harmless, Own, Refused};

/// `$STORE`, `$BACKEND` and `$HOME` stand for paths.
const RULES: &[(&str, Rule)] = &[
    ("up", Own(&[&["up", "--store", "$STORE", "--socket", "$HOME/sock"]])),
    ("down", Refused(&[&["down"]])),
    ("status", EveryUser(&[&["status"], &["status", "--json"]])),
    ("jobs", EveryUser(&[&["jobs"]])),
    ("policy show", EveryUser(&[&["policy", "show"]])),
    ("policy set", Refused(&[&["policy", "set", "fifo"]])),
    ("policy route", Refused(&[&["policy", "route", "direct"]])),
    ("shares", Alone),
    ("put", Refused(&[&["put", "/etc/hostname", "/closed/x"], &["put", "/etc/hostname", "/outer"]])),
    ("get", Refused(&[&["get", "/closed/HIDDEN-name", "$HOME/x"], &["get", "/outer", "$HOME/y"]])),
    ("cat", Refused(&[&["cat", "/closed/HIDDEN-name"], &["cat", "/outer"]])),
    ("ls", Refused(&[&["ls", "/closed"], &["ls", "-l", "/closed"]])),
    ("stat", Refused(&[&["stat", "/closed/HIDDEN-name"]])),
    ("rm", Refused(&[&["rm", "/closed/HIDDEN-name"], &["rm", "/outer"], &["rm", "-r", "/closed"]])),
    ("mv", Refused(&[&["mv", "/outer", "/mine"], &["mv", "/closed", "/mine"]])),
    ("mkdir", Refused(&[&["mkdir", "/closed/new"]])),
    ("ln", Refused(&[&["ln", "/outer", "/linked"], &["ln", "-s", "x", "/closed/link"]])),
    ("df", EveryUser(&[&["df"]])),
    ("drain", Refused(&[&["drain", "/closed"], &["drain", "/"]])),
    ("stage in", Refused(&[&["stage", "in", "/closed/HIDDEN-name"]])),
    ("stage out", Refused(&[&["stage", "out", "/closed"]])),
    ("du", Refused(&[&["du", "/closed"]])),
    ("run", Own(&[&["run", "--capacity", "64MiB", "--pfs", "$BACKEND", "--", "sh", "-c", "echo x > /fb/x"]])),
    ("exec", Own(&[&["exec", "--", "cat", "/fb/closed/HIDDEN-name"], &["exec", "--", "rm", "/fb/outer"]])),
    ("library", Alone),
    ("mount", Own(&[&["mount", "$STORE"]])),
    ("umount", Own(&[&["umount", "$HOME"]])),
    ("layout set", Refused(&[&["layout", "set", "/closed", "--shards", "1"]])),
    ("layout show", Refused(&[&["layout", "show", "/closed/HIDDEN-name"]])),
    ("shard replace", Refused(&[&["shard", "replace", "0"]])),
    ("check", Own(&[&["check", "$STORE"], &["check", "--repair", "$STORE"]])),
    ("store inspect", Own(&[&["store", "inspect", "$STORE"]])),
    ("store replace", Own(&[&["store", "replace", "$STORE", "--yes"]])),
    ("store remove", Own(&[&["store", "remove", "$STORE", "--yes"]])),
    // Times and sizes of jobs' writes, which `jobs` and `status` show to all users as well.
    ("plan", Harmless(&[&["plan", "--from-service", "--bandwidth", "100"]])),
    ("plan figures", Alone),
    ("place", Alone),
    ("place exec", Own(&[&["place", "exec", "--", "true"]])),
    ("place ldflags", Alone),
    ("place header", Alone),
    ("sim", Alone),
    ("reproduce", Alone),
    ("calibrate", Own(&[&["calibrate", "dir:$BACKEND"]])),
    ("route", Alone),
    ("demo", Alone),
    ("bench share", Alone),
    ("bench io", Alone),
    ("bench place", Alone),
    ("bench route", Alone),
    ("bench drain", Alone),
    ("completions", Alone),
    ("key grant", Refused(&[&["key", "grant", "4002"], &["key", "grant", "4001"]])),
    ("key list", Refused(&[&["key", "list"]])),
    ("key revoke", Refused(&[&["key", "revoke", "05050505050505050505050505050505"]])),
    // What the program starts itself.
    ("reference commands", Alone),
    ("reference names", Alone),
    ("reference settings", Alone),
    ("reference lines", Alone),
    ("reference man", Own(&[&["reference", "man", "$BACKEND"]])),
    // It reports what went wrong to the demo, and succeeds.
    (
        "demo-job",
        Harmless(&[
            &["demo-job", "--label", "closed", "--shape", "shared", "--block", "16", "--share", "64"],
            &[
                "demo-job", "--label", "closed", "--shape", "own", "--block", "16", "--share", "64",
                "--verify",
            ],
        ]),
    ),
    (
        "bench-job",
        Refused(&[&[
            "bench-job",
            "--name",
            "closed/x",
            "--op",
            "write",
            "--request",
            "16",
            "--streams",
            "1",
            "--seconds",
            "1",
            "--amount",
            "16",
            "--pause-ms",
            "0",
        ]]),
    ),
    ("bench-far", Alone),
    ("bench-places", Alone),
    ("bench-step copy", Alone),
    ("bench-step raw-calls", Alone),
    ("reference check", Alone),
    ("server", Alone),
    ("bench-step names", Own(&[&["bench-step", "names", "$BACKEND", "1"]])),
    ("bench-step small", Own(&[&["bench-step", "small", "$BACKEND", "1", "1"]])),
    ("bench-step crowd", Own(&[&["bench-step", "crowd", "$BACKEND", "1", "1", "1", "1", "1"]])),
    ("bench-step member", Own(&[&["bench-step", "member", "$BACKEND", "1", "1", "1", "1", "1"]])),
];

/// All commands that can be run, also those that are hidden from the help.
fn commands(world: &World) -> BTreeSet<String> {
    let names: BTreeSet<String> = world.well(&["reference", "names"]).lines().map(str::to_owned).collect();
    assert!(names.contains("demo-job") && names.contains("plan figures"), "{names:?}");
    names
}

/// A service of root with a directory as back end, files of the owner, and homes for both users.
struct Town {
    world: World,
    homes: [PathBuf; 2],
}

impl Town {
    fn new() -> Option<Town> {
        let able = Command::new("setpriv").arg("--version").stdout(Stdio::null()).status().is_ok();
        if !rustix::process::geteuid().is_root() || !able {
            skip("every command as a stranger: it needs root and setpriv");
            return None;
        }
        let mut world = World::empty();
        let open = |path: &PathBuf, mode| {
            std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("a mode");
        };
        open(&world.dir().to_owned(), 0o755);
        std::fs::copy(env!("CARGO_BIN_EXE_forebay"), world.path("forebay")).expect("a copy");
        open(&world.path("forebay"), 0o755);
        std::fs::create_dir(world.path("backing")).expect("a directory");
        chown(world.path("backing"), Some(OWNER), Some(OWNER)).expect("its owner");
        let homes = [OWNER, STRANGER].map(|uid| {
            let home = world.path(&format!("home{uid}"));
            std::fs::create_dir(&home).expect("a home");
            chown(&home, Some(uid), Some(uid)).expect("its owner");
            home
        });
        world.start(&["--backend", &format!("dir:{}", world.path("backing").display())]);
        let town = Town { world, homes };
        std::fs::write(town.homes[0].join("secret"), "HIDDEN-bytes").expect("a file");
        for args in [
            &["mkdir", "/closed"][..],
            &["put", "secret", "/closed/HIDDEN-name"],
            &["put", "secret", "/outer"],
        ] {
            town.run_as(OWNER, args).well();
        }
        Some(town)
    }

    /// Runs the binary as a user whose umask hides new files from others.
    fn run_as(&self, uid: u32, args: &[&str]) -> Ran {
        let home = &self.homes[usize::from(uid == STRANGER)];
        let user = uid.to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c"]);
        command.args(["umask 077; exec \"$@\"", "sh"]).arg(self.world.path("forebay"));
        command.args(args.iter().map(|arg| self.filled_in(arg, home)));
        command.current_dir(home).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", home);
        command.env("FOREBAY_SERVICE", self.world.service()).stdin(Stdio::null());
        run(command)
    }

    fn filled_in(&self, arg: &str, home: &std::path::Path) -> String {
        let path = |path: &std::path::Path| path.to_str().expect("a name").to_owned();
        arg.replace("$STORE", &path(&self.world.path("store")))
            .replace("$BACKEND", &path(&self.world.path("backing")))
            .replace("$HOME", &path(home))
    }

    /// The owner's files and the state of the service, as root sees them.
    fn snapshot(&self) -> String {
        let mut all = String::new();
        for path in ["/closed", "/closed/HIDDEN-name", "/outer"] {
            let facts = self.world.json(&["stat", "--json", path]).to_string();
            // Draining is no change.
            let facts = facts.split(',').filter(|part| !part.contains("buffered") && !part.contains("atime"));
            all.extend(facts);
        }
        all += &self.world.well(&["cat", "/closed/HIDDEN-name"]);
        all += &self.world.well(&["ls", "/closed"]);
        all += &self.world.json(&["policy", "show", "--json"])["policy"].to_string();
        let mut backing: Vec<_> = std::fs::read_dir(self.world.path("backing"))
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
            .filter(|name| name == "x")
            .collect();
        backing.sort();
        all + &backing.concat()
    }

    /// Runs a command as the other user, and checks that nothing is shown or changed.
    fn try_as_stranger(&self, args: &[&str], before: &str) -> Ran {
        let ran = self.run_as(STRANGER, args);
        // The user's own arguments may be repeated in messages.
        let given = args.concat();
        let shown = [&ran.out, &ran.err].iter().any(|text| text.replace("HIDDEN-name", "").contains(HIDDEN));
        assert!(!shown, "{args:?} shows what is hidden: {}{}", ran.out, ran.err);
        let named = ran.out.contains("HIDDEN-name") && !given.contains("HIDDEN-name");
        assert!(!named, "{args:?} shows a hidden name: {}", ran.out);
        assert_eq!(self.snapshot(), before, "{args:?} of a stranger changed something");
        ran
    }
}

#[test]
fn every_command_keeps_its_rule_for_other_users() {
    let Some(town) = Town::new() else { return };
    let ruled: BTreeSet<String> = RULES.iter().map(|(command, _)| (*command).to_owned()).collect();
    let there = commands(&town.world);
    assert_eq!(there, ruled, "each command has a rule for strangers, and each rule a command");
    let before = town.snapshot();
    for (command, rule) in RULES {
        match rule {
            Refused(tries) | Own(tries) => {
                for args in *tries {
                    let ran = town.try_as_stranger(args, &before);
                    // The user's own program may succeed or fail; only its effect counts.
                    let may_succeed = matches!(rule, Own(_)) && matches!(args[0], "place" | "run");
                    assert!(ran.code != 0 || may_succeed, "{args:?} of a stranger succeeds: {}", ran.out);
                }
            }
            Harmless(tries) => {
                for args in *tries {
                    town.try_as_stranger(args, &before);
                }
            }
            EveryUser(tries) => {
                for args in *tries {
                    let ran = town.try_as_stranger(args, &before);
                    assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
                }
            }
            Alone => {
                let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
                let help = town.world.well(&words);
                assert!(!help.contains("--service"), "{command} uses a service: it needs another rule");
            }
        }
    }
}
