//! `run`: exit codes, the final drain, and where the data is if the drain fails.

use crate::support::{Ran, World, end, ran, run, skip};
use forebay_testkit::until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(240);

/// A directory to run in; prints a note if `/dev/shm` is missing.
fn world() -> Option<World> {
    if !Path::new("/dev/shm").is_dir() {
        skip("there is no /dev/shm, so \"forebay run\" was not tested");
        return None;
    }
    Some(World::empty())
}

fn command(world: &World, options: &[&str], script: &str) -> Command {
    let mut command = world.command(&["run", "--capacity", "64MiB"]);
    command.args(options).args(["--", "bash", "-c", script]);
    command
}

/// The directory of the buffer, from a run's output.
fn buffer(output: &str) -> PathBuf {
    let (_, rest) = output.split_once("kept in ").expect("it says where");
    PathBuf::from(rest.split([';', '\n']).next().expect("a path"))
}

/// The summary, which is the last line.
fn summary(ran: &Ran) -> Value {
    let line = ran.err.lines().find(|line| line.starts_with('{')).expect("a line of JSON");
    serde_json::from_str(line).expect("JSON")
}

fn finished(child: Child) -> Ran {
    ran(child.wait_with_output().expect("it ends"))
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary runs")
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).expect("it is there");
}

#[test]
fn run_drains_files_with_their_attributes() {
    const SCRIPT: &str = "cd $D; umask 027; mkdir -p a/b/c empty; seq 100000 > a/text; head -c 9000000 /dev/urandom > a/b/large
        ln a/text a/b/hard; ln -s ../text a/b/soft; ln -s /nowhere a/broken; : > a/none; chmod 000 a/none; chmod 4711 a/text
        truncate -s 20000000 a/holes; printf end >> a/holes; touch -d @1000000000.5 a/b/large a/b; touch -h -d @1111111111 a/broken
        python3 -c 'import os; [os.setxattr(f, \"user.kind\", b\"checkpoint\") for f in (\"a/text\", \"a/b\")]' || true; touch -d @1000000000.5 a/b; for i in $(seq 200); do echo $i > a/b/c/$i; done
        [ $(id -u) != 0 ] || chown 12:34 a/b/hard; chmod 750 a/b; printf x > $'a/odd\\n name'; cp a/b/large $R";
    const LOOK: &str = "cd $D; find . -mindepth 1 -printf '%P %y %m %n %U %G %l ' -a ! -type d -printf '%s ' , -mindepth 1 -printf '\\n' | sort
        find . -name large -o -name b -o -name broken | xargs stat -c '%n %.9Y'; find . -type f ! -name large | sort -z | xargs -d '\\n' cat 2>&1 | md5sum
        python3 -c 'import os; print([os.getxattr(f, \"user.kind\") for f in (\"a/text\", \"a/b\")])' || true; cmp a/b/large $R; stat -c %b a/holes | awk '{print $1 < 1000}'; ls";
    let Some(world) = world() else { return };
    let (local, reference) = (world.path("local"), world.path("reference"));
    std::fs::create_dir(&local).unwrap();
    let shell = |script: &str, dir: &Path, wrapped: bool| {
        let mut command = match wrapped {
            true => command(&world, &["--json", "--pfs", "pfs"], script),
            false => {
                let mut command = Command::new("bash");
                command.args(["-c", script]);
                command
            }
        };
        let files = world.path(if wrapped { "random" } else { "reference" });
        command.env("D", dir).env("R", &files);
        let ran = run(command);
        assert_eq!(ran.code, 0, "{}", ran.err);
        ran
    };
    shell(SCRIPT, &local, false);
    let ran = shell(SCRIPT, Path::new("/fb"), true);
    let expected = shell(LOOK, &local, false).out;
    std::fs::copy(world.path("random"), &reference).unwrap();
    let found = shell(LOOK, &world.path("pfs"), false).out;
    assert_eq!(found, expected);
    assert!(!buffer(&ran.err).exists(), "the buffer is removed");
    let summary = summary(&ran);
    assert_eq!((&summary["drained"]["failed"], &summary["program"]["code"]), (&0.into(), &0.into()));
    assert!(summary["drained"]["bytes"].as_u64() > Some(9_000_000), "{summary}");
    assert!(summary["counts"]["io"].as_f64() > Some(0.0), "{summary}");
    assert!(summary["counts"]["longest_io"].as_f64() <= summary["counts"]["io"].as_f64(), "{summary}");
    assert!(summary["counts"]["processes"].as_u64() > Some(2), "{summary}");
}

#[test]
fn run_exits_with_the_code_of_the_program() {
    let Some(world) = world() else { return };
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137), ("kill -SEGV $$", 139)] {
        let ran = run(command(&world, &["--pfs", "pfs"], &format!("echo {code} > /fb/{code}; {script}")));
        assert_eq!(ran.code, code, "{script}: {}", ran.err);
        assert!(ran.err.contains(&format!("ended with code {code} after ")), "{}", ran.err);
        let kept = std::fs::read_to_string(world.path("pfs").join(code.to_string())).unwrap();
        assert_eq!(kept, format!("{code}\n"), "its data is drained however it ended");
        assert!(!buffer(&ran.err).exists());
    }
    let ran = run(command(&world, &["--pfs", "pfs"], "echo out; cat; echo err >&2; cat /fb/none"));
    assert_eq!((ran.code, ran.out.as_str()), (1, "out\n"), "standard output is the program's alone");
    assert!(ran.err.contains("err\ncat: /fb/none: No such file or directory\n"), "{}", ran.err);
}

#[test]
fn burst_larger_than_the_buffer_is_drained_meanwhile() {
    let Some(world) = world() else { return };
    let script = "head -c 200000000 /dev/urandom | tee /fb/x | md5sum > sum; md5sum < /fb/x | cmp - sum";
    let ran = run(command(&world, &["--pfs", "pfs"], script));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(!ran.err.contains("found no space"), "{}", ran.err);
    let mut check = Command::new("bash");
    check.args(["-c", "md5sum < pfs/x | cmp - sum"]).current_dir(world.dir());
    assert_eq!(run(check).code, 0, "the target has the written data");
    // Without a target the buffer cannot drain.
    let ran = run(command(
        &world,
        &[],
        "dd if=/dev/zero of=/fb/x bs=1M count=99 2>&1 | grep -o 'No space.*'; rm /fb/x",
    ));
    assert_eq!((ran.code, ran.out.as_str()), (0, "No space left on device\n"), "{}", ran.err);
    let reported = "1 call found no space: a buffer of 64 MiB was too small, set a larger --capacity";
    assert!(ran.err.contains(reported), "{}", ran.err);
}

#[test]
fn invalid_arguments_are_refused() {
    let Some(world) = world() else { return };
    world.write("file", "x");
    for (code, args, parts) in [
        (2, &["run"][..], &["required", "forebay run --help"][..]),
        (2, &["run", "--prefix", "fb", "true"], &["prefix fb cannot be used"]),
        (2, &["run", "--pfs", "/fb/x", "true"], &["in the buffer itself"]),
        (1, &["run", "--pfs", "file", "true"], &["cannot make", "file"]),
        (1, &["run", "--capacity", "99999GiB", "true"], &["/dev/shm has no space", "--capacity"]),
        (1, &["run", "--resume", "nowhere"], &["cannot use", "nowhere: no such file or directory"]),
    ] {
        world.run(args).failed(code, parts);
    }
    let unfair = world.run(&["run", "--policy", "unfair", "true"]);
    assert!(unfair.code == 2 && unfair.err.contains("\"unfair\" is not a policy"), "{}", unfair.err);
    let missing = world.run(&["run", "--capacity", "64MiB", "--", "no-such-program"]);
    assert_eq!(missing.code, 127, "the code that shells use");
    assert!(missing.err.contains("cannot run no-such-program"), "{}", missing.err);
    assert!(!buffer(&missing.err).exists());
    let mut many = world.command(&["run", "--", "true"]);
    many.env("PMI_RANK", "0").env("PMI_SIZE", "4");
    run(many).failed(2, &["each of 4 ranks", "forebay run -- mpiexec -n 4 CMD"]);
}

#[test]
fn signals_reach_the_program_and_its_data_is_drained() {
    let Some(world) = world() else { return };
    for (which, trap, code) in
        [(Signal::INT, "INT", 5), (Signal::TERM, "TERM", 5), (Signal::TERM, "none", 143)]
    {
        let script = format!(
            "[ {trap} = none ] || trap 'echo trapped > /fb/trapped; exit 5' {trap}; echo data > /fb/{trap}; touch {trap}; while :; do sleep 0.01; done"
        );
        let child = spawn(command(&world, &["--pfs", "pfs"], &script));
        until("the file is there", || world.path(trap).exists());
        signal(&child, which);
        let ran = finished(child);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains("its data is drained then"), "{}", ran.err);
        assert_eq!(std::fs::read_to_string(world.path("pfs").join(trap)).unwrap(), "data\n");
        assert_eq!(world.path("pfs/trapped").exists(), trap != "none");
        let _ = std::fs::remove_file(world.path("pfs/trapped"));
        assert!(!buffer(&ran.err).exists());
    }
    let script = "trap '' INT TERM; echo deaf > /fb/deaf; touch deaf; while :; do sleep 0.01; done";
    let child = spawn(command(&world, &["--pfs", "pfs"], script));
    until("the file is there", || world.path("deaf").exists());
    for _ in 0..3 {
        signal(&child, Signal::INT);
        // Two signals that arrive before the first is noticed count as one.
        std::thread::sleep(Duration::from_secs(1));
    }
    let ran = finished(child);
    assert_eq!(ran.code, 137, "the third time it is killed: {}", ran.err);
    assert_eq!(std::fs::read_to_string(world.path("pfs/deaf")).unwrap(), "deaf\n");
}

#[test]
fn killed_run_is_resumed() {
    let Some(world) = world() else { return };
    let script = "seq 1000 > /fb/first; head -c 5000000 /dev/zero > /fb/second; touch ready; sleep 60";
    let child = spawn(command(&world, &["--pfs", "pfs"], script));
    until("the file is there", || world.path("ready").exists());
    end(child.id());
    let ran = finished(child);
    let dir = buffer(&ran.err);
    assert!(dir.is_dir(), "the data is in the printed directory");
    assert!(!world.path("pfs/first").exists());
    let other = world.run(&["run", "--capacity", "64MiB", "--", "true"]);
    assert!(other.err.contains(&format!("forebay run --resume {}", dir.display())), "{}", other.err);
    let resumed = world.run(&["run", "--resume", dir.to_str().unwrap()]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    let first = std::fs::read_to_string(world.path("pfs/first")).unwrap();
    assert!(first.starts_with("1\n2\n") && first.ends_with("\n1000\n"));
    assert_eq!(std::fs::metadata(world.path("pfs/second")).unwrap().len(), 5_000_000);
    assert!(!dir.exists(), "and is removed after the resume");
    world.run(&["run", "--resume", dir.to_str().unwrap()]).failed(1, &["no such file or directory"]);
}

#[test]
fn interrupted_or_killed_drain_is_resumed() {
    let Some(world) = world() else { return };
    for (kill, pfs) in [(Signal::INT, "interrupted"), (Signal::KILL, "killed")] {
        let script = "for i in $(seq 40); do head -c 1000000 /dev/urandom > /fb/$i; done; cat /fb/* | md5sum > .sum; mv .sum sum";
        let child = spawn(command(&world, &["--pfs", pfs], script));
        until("the file is there", || world.path("sum").exists());
        let begin = Instant::now();
        while std::fs::read_dir(world.path(pfs)).unwrap().next().is_none() {
            assert!(begin.elapsed() < PATIENCE, "the drain does not begin");
        }
        signal(&child, kill);
        let ran = finished(child);
        let dir = buffer(&ran.err);
        if dir.exists() {
            let advice = format!("forebay run --resume {}", dir.display());
            assert!(
                kill == Signal::KILL || ran.code == 130 && ran.err.contains(&advice),
                "{} {}",
                ran.code,
                ran.err
            );
            let resumed = world.run(&["run", "--resume", dir.to_str().unwrap()]);
            assert_eq!(resumed.code, 0, "{}", resumed.err);
        }
        let mut check = Command::new("bash");
        check
            .args(["-c", &format!("cat {pfs}/* | md5sum | cmp - sum && ls -A {pfs} | wc -l && rm sum")])
            .current_dir(world.dir());
        let found = run(check);
        assert_eq!((found.code, found.out.as_str()), (0, "40\n"), "{}", found.err);
        assert!(!dir.exists());
    }
}

#[test]
fn data_that_cannot_be_drained_is_kept() {
    let Some(world) = world() else { return };
    let ran =
        run(command(&world, &["--pfs", "pfs"], "echo precious > /fb/f; rm -r pfs; echo in the way > pfs"));
    assert_eq!(ran.code, 1, "{}", ran.err);
    let dir = buffer(&ran.err);
    assert!(
        ran.err
            .contains(&format!("the data is kept; drain it with \"forebay run --resume {}\"", dir.display()))
    );
    let held = world.run(&["run", "--resume", dir.to_str().unwrap()]);
    assert_eq!(held.code, 1, "{}", held.err);
    let resumed = world.run(&["run", "--resume", dir.to_str().unwrap(), "--pfs", "elsewhere"]);
    assert_eq!(resumed.code, 0, "{}", resumed.err);
    assert_eq!(std::fs::read_to_string(world.path("elsewhere/f")).unwrap(), "precious\n");
    assert!(!dir.exists());

    let ran = run(command(&world, &[], "echo nowhere to go > /fb/f"));
    assert_eq!(ran.code, 0, "{}", ran.err);
    let dir = buffer(&ran.err);
    assert!(ran.err.contains(&format!("--resume {} --pfs DIR\"", dir.display())), "{}", ran.err);
    world.run(&["run", "--resume", dir.to_str().unwrap()]).failed(2, &["no target directory"]);
    assert_eq!(world.run(&["run", "--resume", dir.to_str().unwrap(), "--pfs", "pfs2"]).code, 0);
    assert_eq!(std::fs::read_to_string(world.path("pfs2/f")).unwrap(), "nowhere to go\n");
    let empty = run(command(&world, &[], "echo x > /fb/f; rm /fb/f"));
    assert!(!buffer(&empty.err).exists(), "an empty buffer is not kept: {}", empty.err);
    assert!(!empty.err.contains("still running"), "{}", empty.err);
}

#[test]
fn files_of_the_target_are_visible_in_the_buffer() {
    let Some(world) = world() else { return };
    let setup = "mkdir -p pfs/shared pfs/d; chmod 2770 pfs/shared; echo old > pfs/f; ln -s f pfs/link; echo stays > pfs/d/stays";
    let mut shell = Command::new("bash");
    shell.args(["-c", setup]).current_dir(world.dir());
    assert_eq!(run(shell).code, 0);
    let script = "cat /fb/f /fb/d/stays; ! mkdir /fb/d 2> /dev/null; echo new > /fb/f; echo in > /fb/shared/in; cat /fb/link
        mv /fb/d/stays /fb/d/moved; echo x > /fb/d/new; rm /fb/link; mkdir -m 700 /fb/made";
    let ran = run(command(&world, &["--pfs", "pfs"], script));
    assert_eq!((ran.code, ran.out.as_str()), (0, "old\nstays\nnew\n"), "{}", ran.err);
    let mut look = Command::new("bash");
    look.args(["-c", "cd pfs; ls -A; stat -c '%n %F %a %h' *; cat f d/* shared/in"]).current_dir(world.dir());
    assert_eq!(
        run(look).out,
        "d\nf\nmade\nshared\nd directory 755 2\nf regular file 644 1\nmade directory 700 2\nshared directory 2770 2\n\
         new\nstays\nx\nin\n"
    );
}

#[test]
fn process_that_outlives_the_program_is_reported() {
    let Some(world) = world() else { return };
    let script = "(exec 3> /fb/late; echo early >&3; touch late; for i in $(seq 20); do sleep 1; done) > /dev/null 2>&1 & while [ ! -e late ]; do sleep 0.01; done";
    let ran = run(command(&world, &["--pfs", "pfs"], script));
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("started by the program are still running"), "{}", ran.err);
    assert_eq!(std::fs::read_to_string(world.path("pfs/late")).unwrap(), "early\n");
}

#[test]
fn killed_server_is_restarted_without_errors_in_the_program() {
    let Some(world) = world() else { return };
    let script = "exec 3> /fb/open; echo before >&3; echo one > /fb/one; touch ready; while [ ! -e go ]; do sleep 0.01; done
        echo after >&3; cat /fb/one; echo two > /fb/two";
    let mut command = command(&world, &["--pfs", "pfs"], script);
    let err = std::fs::File::create(world.path("err")).unwrap();
    let child = command.stdout(Stdio::piped()).stderr(err).spawn().expect("the binary runs");
    until("the file is there", || world.path("ready").exists());
    let stderr = || std::fs::read_to_string(world.path("err")).unwrap();
    let server = std::fs::read_to_string(buffer(&stderr()).join("store/lock")).unwrap();
    end(server.trim().parse().unwrap());
    world.write("go", "");
    let ran = finished(child);
    assert_eq!((ran.code, ran.out.as_str()), (0, "one\n"), "{}", stderr());
    assert!(stderr().contains("the server died (signal: 9 (SIGKILL)) and was restarted"), "{}", stderr());
    for (name, expected) in [("open", "before\nafter\n"), ("one", "one\n"), ("two", "two\n")] {
        assert_eq!(std::fs::read_to_string(world.path("pfs").join(name)).unwrap(), expected, "{name}");
    }
}

/// Runs a command on a terminal of its own, and sends Ctrl-C when a file exists.
const TERMINAL: &str = "import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0: os.execv(sys.argv[2], sys.argv[2:])
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
os.write(terminal, b'\\x03')
try:
    while data := os.read(terminal, 4096): sys.stdout.write(data.decode())
except OSError: pass
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";

#[test]
fn ctrl_c_on_a_terminal_ends_the_program_and_drains_its_data() {
    let Some(world) = world() else { return };
    // A shell continues after Ctrl-C if the program it waits for has just succeeded: it creates the marker
    // itself.
    let script = "echo typed > /fb/typed; : > ready; sleep 60";
    let program = command(&world, &["--pfs", "pfs"], script);
    let mut python = Command::new("python3");
    python.args(["-c", TERMINAL, "ready"]).arg(program.get_program()).args(program.get_args());
    python.current_dir(world.dir()).env("HOME", world.dir());
    if Command::new("python3").arg("--version").output().is_err() {
        return skip("python3 is not installed, so Ctrl-C on a terminal was not tested");
    }
    let ran = run(python);
    assert_eq!(ran.code, 130, "{}{}", ran.out, ran.err);
    assert_eq!(std::fs::read_to_string(world.path("pfs/typed")).unwrap(), "typed\n");
    assert!(!buffer(&ran.out).exists(), "{}", ran.out);
}

#[test]
fn setuid_processes_keep_their_buffer_through_a_server_restart() {
    let Some(world) = world() else { return };
    if !rustix::process::geteuid().is_root() {
        return skip("changing users needs root");
    }
    // Only root can reach the run's directory; the server is killed while a program of another user runs.
    let script = r#"
        set -e
        dir=$(dirname "${FOREBAY_SERVICE#unix:}"); chmod 700 "$dir"
        mkdir -m 777 /fb/w; cd /fb/w; echo secret > secret; chmod 600 secret
        setpriv --reuid 4001 --regid 4001 --clear-groups bash -c '
            set -e
            echo first > mine; exec 5<> mine; touch ready
            until [ -e killed ]; do sleep 0.01; done
            echo second >&5; echo third > another; stat -c %u mine another; cat mine
            cat secret 2> refused || echo refused
        ' > out & until [ -e ready ]; do sleep 0.01; done
        server=$(cat "$dir/store/lock"); kill -9 "$server"; touch killed
        wait $!; cat out
    "#;
    let pfs = world.path("pfs");
    let ran = run(command(&world, &["--pfs", pfs.to_str().expect("text")], script));
    assert_eq!(ran.out, "4001\n4001\nsecond\nrefused\n", "{}", ran.err);
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(pfs.join("w/another")).expect("it was drained").uid(), 4001);
}
