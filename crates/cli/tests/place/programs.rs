//! Programs without knowledge of placement.

use crate::lustre::{Layout, Mood};
use crate::world::{JOB, TARGETS, World, forebay, heights, skip, well};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The first target of each of these files, after checking that each has one stripe of one MiB.
pub(crate) fn alone(world: &World, names: &[&str]) -> Vec<u32> {
    let first = |name: &&str| {
        let stripes = world.stripes(name);
        assert_eq!((stripes.targets.len(), stripes.size), (1, 1 << 20), "{name}");
        stripes.targets[0]
    };
    names.iter().map(first).collect()
}

/// The targets that a dry run plans for a number of files, one after the other.
pub(crate) fn planned(count: usize) -> Vec<u32> {
    use forebay_policy::place::{Job, Ledger, Limits, Pattern, Shape, Topology, Weights, Writer, place};
    let mut ledger = Ledger::new(std::sync::Arc::new(Topology::flat(TARGETS)), Weights::default(), JOB);
    let writer = [Writer { client: None, bytes: None }];
    let job = Job {
        writers: &writer,
        pattern: Pattern::PerProcess,
        file_size: None,
        stripe_count: None,
        stripe_size: None,
        limits: &Limits::LUSTRE,
    };
    let mut next = || match &place(&mut ledger, &job).expect("targets have space").files[0].shape {
        Shape::Striped(stripes) => stripes.targets[0],
        other => panic!("{other:?}"),
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn c_fortran_python_and_shell_programs_are_placed_as_planned() {
    let Some(world) = World::new(&[]) else { return };
    let Some(program) = world.compiled("files.c", "cc", &["-O1", "-Wno-unused-result"]) else { return };
    let ran = world.placed(&["--counts", "counts"]).arg(program).arg("pfs").output().expect("it runs");
    assert_eq!(well(&ran), "all is well\n");
    let mut names = FILES.to_vec();
    let counts = std::fs::read_to_string(world.path("counts")).expect("counters");
    assert!(counts.contains("\"placed\": 7, \"refused\": 0"), "{counts}");

    world.shell("dd if=/dev/zero of=pfs/dd bs=64k count=3 2>/dev/null && echo text > pfs/echo");
    names.extend(["dd", "echo"]);
    assert_eq!(world.fs.lock().length("dd"), 3 << 16);
    let python = std::env::var("FOREBAY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let script = "import os\nopen('pfs/py','w').write('x')\nopen('pfs/pyx','xb').write(b'y')\n\
                  os.close(os.open('pfs/pyos', os.O_CREAT|os.O_EXCL|os.O_WRONLY))";
    match world.placed(&[]).args([python.as_str(), "-c", script]).output() {
        Ok(output) if output.status.success() => names.extend(["py", "pyx", "pyos"]),
        other => skip(&format!("{python} did not run ({other:?}), so its files were not placed")),
    }
    if let Some(program) = world.compiled("units.f90", "gfortran", &[]) {
        well(&world.placed(&[]).arg(program).arg(world.path("pfs")).output().expect("it runs"));
        names.extend(["formatted", "unformatted"]);
    }
    let firsts = alone(&world, &names);
    assert_eq!(firsts, planned(names.len()), "{}", world.log());
    let heights = heights(&firsts);
    assert!(heights.iter().max().expect("some") - heights.iter().min().expect("some") <= 1, "{heights:?}");
    assert!(world.fs.lock().created.iter().all(|(_, later)| *later), "none had the usual layout before");
}

/// The files that `files.c` creates.
const FILES: [&str; 7] = ["opened", "exclusive", "openat", "creat", "fopen", "fopenx", "appended"];

/// `open64`, `openat64`, `creat64`, `fopen64`.
#[test]
fn programs_with_large_files_are_placed() {
    let Some(world) = World::new(&[]) else { return };
    let options = ["-O1", "-Wno-unused-result", "-D_FILE_OFFSET_BITS=64", "-D_LARGEFILE64_SOURCE"];
    let Some(program) = world.compiled("files.c", "cc", &options) else { return };
    let called = well(&Command::new("nm").args(["-u"]).arg(&program).output().expect("nm"));
    for name in ["open64", "openat64", "creat64", "fopen64"] {
        assert!(called.contains(&format!(" {name}")), "{name}: {called}");
    }
    assert_eq!(well(&world.placed(&[]).arg(program).arg("pfs").output().expect("it runs")), "all is well\n");
    assert_eq!(alone(&world, &FILES), planned(7), "{}", world.log());
}

#[test]
fn ranks_of_a_launcher_get_a_target_each() {
    let Some(world) = World::new(&[]) else { return };
    for (rank, size) in [("PMI_RANK", "PMI_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS")] {
        for number in [2, 0, 3, 1] {
            let mut command = world.placed(&[]);
            command.env(rank, number.to_string()).env(size, "4");
            let line = format!("echo x > pfs/{rank}{number}");
            well(&command.args(["sh", "-c", &line]).output().expect("a shell"));
        }
        let names: Vec<String> = (0..4).map(|number| format!("{rank}{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(alone(&world, &names), planned(4), "in whatever order they came: {}", world.log());
    }
}

#[test]
fn excluded_and_full_targets_are_avoided() {
    let Some(world) = World::new(&[]) else { return };
    let many = |like: &str, count: u32| {
        format!("n=0; while [ $n -lt {count} ]; do echo x > pfs/{like}$n; n=$((n+1)); done")
    };
    let names =
        |like: &str, count: u32| (0..count).map(|number| format!("{like}{number}")).collect::<Vec<_>>();
    let firsts =
        |names: Vec<String>| names.iter().map(|name| world.stripes(name).targets[0]).collect::<Vec<_>>();
    let options = ["--exclude", "target5", "--exclude", "target0"];
    well(&world.placed(&options).args(["sh", "-c", &many("a", 12)]).output().expect("a shell"));
    assert_eq!(heights(&firsts(names("a", 12))), [0, 2, 2, 2, 2, 0, 2, 2], "{}", world.log());
    let mut text = "[weights]\nspace = 1.0\n[[server]]\nname = 's'\n".to_owned();
    for number in 0..TARGETS {
        let free = if number < 4 { "3TiB" } else { "1TiB" };
        text += &format!("[[target]]\nname = 't{number}'\nserver = 's'\nfree = '{free}'\n");
    }
    std::fs::write(world.path("topology.toml"), text).expect("a file");
    let mut command = forebay(world.dir());
    command.args(["place", "exec", "--pfs", "pfs", "--topology", "topology.toml", "--log", "log", "--"]);
    // One process, so that its counters are kept.
    let script = "import sys\nfor n in range(16): open(f'pfs/b{n}', 'w').write('x')";
    command.env("PMI_RANK", "0").env("PMI_SIZE", "1").args(["python3", "-c", script]);
    match command.output() {
        Ok(output) => drop(well(&output)),
        Err(error) => return skip(&format!("python3 cannot be run ({error}), so free space was not tested")),
    }
    assert_eq!(heights(&firsts(names("b", 16))), [3, 3, 3, 3, 1, 1, 1, 1], "{}", world.log());
    let refused = world.placed(&["--exclude", "t9"]).arg("true").output().expect("it runs");
    let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && printed.contains("--exclude: there is no target \"t9\""),
        "{printed}"
    );
}

/// On an old Lustre the attribute cannot be set, but its own call works; it is not tried elsewhere.
#[test]
fn layouts_are_set_by_ioctl_where_the_attribute_is_unknown() {
    let Some(world) = World::new(&[]) else { return };
    let Some(old) = world.compiled("ioctl.c", "cc", &["-shared", "-fPIC"]) else { return };
    let library = extracted(&world, "so");
    let options = ["-Wl,--allow-shlib-undefined", library.to_str().expect("a path")];
    let Some(program) = world.compiled("call.c", "cc", &options) else { return };
    world.fs.lock().mood = Mood::Old;
    let run = |program: &Path, name: &str, preload: Option<&Path>| {
        let mut command = world.placed(&[]);
        if let Some(preload) = preload {
            command.env("LD_PRELOAD", preload);
        }
        well(&command.arg(program).arg(name).output().expect("it runs"));
    };
    run(&program, "pfs/without", None);
    assert_eq!(world.stripes("without").targets.len(), 4, "the usual layout: {}", world.log());
    assert!(!world.log().contains("bytes on"), "{}", world.log());
    run(&program, "pfs/with", Some(&old));
    let stripes = world.stripes("with");
    assert_eq!((stripes.targets.len(), stripes.size), (4, 1 << 20));
    assert!(world.log().contains("pfs/with: 4 × 1048576 bytes on "), "{}", world.log());
}

#[test]
fn existing_files_and_layouts_are_not_changed() {
    let Some(world) = World::new(&[]) else { return };
    std::fs::write(world.path("pfs/old"), "old").expect("a file");
    let usual = world.stripes("old");
    std::fs::create_dir(world.path("pfs/mine")).expect("a directory");
    let lov = forebay_policy::place::lov::Lov::specific(&[0], 1 << 20).encode();
    let dir = world.path("pfs/mine");
    rustix::fs::setxattr(&dir, "lustre.lov", &lov, rustix::fs::XattrFlags::empty()).expect("a layout");
    world.shell("echo new > pfs/old; echo x > pfs/mine/file; echo y > outside");
    assert_eq!(world.stripes("old"), usual);
    assert_eq!(world.stripes("mine/file").targets, [0]);
    assert!(world.log().contains("not placed: its directory has its own layout"), "{}", world.log());
    assert_eq!(std::fs::read(world.path("pfs/old")).expect("a file"), b"new\n");
}

#[test]
fn ignored_layout_is_reported_and_the_program_continues() {
    for (mood, expected) in [
        (Mood::Silent, "the layout was not set: it was accepted and silently not set"),
        (Mood::Strict, "the layout was not set: Operation not permitted"),
    ] {
        let Some(world) = World::new(&[]) else { return };
        world.fs.lock().mood = mood;
        world.shell("echo text > pfs/file");
        assert!(world.log().contains(expected), "{mood:?}: {}", world.log());
        assert_eq!(std::fs::read(world.path("pfs/file")).expect("a file"), b"text\n");
        assert_eq!(world.stripes("file").targets.len(), 4, "the usual layout");
        // Without a log the message goes to standard error, once.
        let mut command = forebay(world.dir());
        command.args([
            "place",
            "exec",
            "--pfs",
            "pfs",
            "--targets",
            "8",
            "--",
            "sh",
            "-c",
            "echo x > pfs/a; echo x > pfs/b",
        ]);
        let printed = String::from_utf8_lossy(&command.output().expect("it runs").stderr).into_owned();
        assert_eq!(printed.matches("forebay place: ").count(), 1, "{printed}");
        assert!(printed.contains(expected), "{printed}");
    }
    let Some(world) = World::new(&(0..TARGETS).collect::<Vec<_>>()) else { return };
    world.shell("echo text > pfs/file");
    assert!(world.log().contains("a target is not active: exclude it"), "{}", world.log());
    let Some(world) = World::new(&[]) else { return };
    world.fs.lock().mood = Mood::Ignorant;
    world.shell("echo text > pfs/file; echo text > pfs/other");
    assert_eq!((world.log().as_str(), world.fs.lock().layout("file")), ("", Layout::None));
}

#[test]
fn drained_files_get_the_requested_layout() {
    use forebay_backend::{Backend, Creation, Dir, Layout};
    use forebay_model::{Gid, Name, Uid};
    let Some(world) = World::new(&[]) else { return };
    let described = forebay_policy::place::Topology::flat(TARGETS).description().clone();
    let backend = Dir::on_lustre(world.path("pfs"), described).expect("a directory");
    assert_eq!(backend.targets().len(), TARGETS as usize);
    let owner = (Uid(rustix::process::getuid().as_raw()), Gid(rustix::process::getgid().as_raw()));
    let creation = Creation { owner, mode: 0o640, stripes: None };
    let requested = Layout { targets: vec![5, 1], stripe: 1 << 16 };
    let path = |name: &str| vec![Name::new(name.as_bytes()).expect("a name")];
    let object = backend.create_on(&path("placed"), &creation, &requested).expect("a file");
    object.write_at(0, &[b"text"]).expect("it is written");
    assert_eq!(backend.layout(&path("placed")).expect("a layout"), requested);
    assert_eq!(world.stripes("placed").targets, [5, 1]);
    // A layout that did not take effect is not reported as the file's layout.
    world.fs.lock().mood = Mood::Silent;
    let object =
        backend.create_on(&path("refused"), &creation, &requested).expect("the file is created anyway");
    object.write_at(0, &[b"text"]).expect("it is written");
    assert_ne!(backend.layout(&path("refused")).expect("a layout"), requested);
}

#[test]
fn program_can_call_the_placement_library() {
    let Some(world) = World::new(&[]) else { return };
    let library = extracted(&world, "so");
    let options = ["-Wl,--allow-shlib-undefined", library.to_str().expect("a path")];
    let Some(program) = world.compiled("call.c", "cc", &options) else { return };
    well(&world.placed(&[]).arg(program).arg("pfs/requested").output().expect("it runs"));
    let stripes = world.stripes("requested");
    assert_eq!((stripes.targets.len(), stripes.size), (4, 1 << 20));
}

#[test]
fn statically_linked_program_is_placed() {
    let Some(world) = World::new(&[]) else { return };
    let flags = well(&forebay(world.dir()).args(["place", "ldflags"]).output().expect("it runs"));
    let mut options = vec!["-static", "-O1", "-Wno-unused-result"];
    options.extend(flags.split_whitespace());
    let Some(program) = world.compiled("files.c", "cc", &options) else { return };
    let kind = well(
        &Command::new("sh")
            .arg("-c")
            .arg(format!("file {0} || ldd {0} || true", program.display()))
            .output()
            .expect("sh"),
    );
    assert!(!kind.contains("=>"), "{kind}");
    let ran = world.placed(&[]).arg(program).arg("pfs").output().expect("it runs");
    assert_eq!(well(&ran), "all is well\n");
    assert_eq!(alone(&world, &FILES), planned(7), "{}", world.log());
}

/// The path of the library that `place exec` has extracted.
fn extracted(world: &World, end: &str) -> PathBuf {
    world.shell("true");
    let list = std::fs::read_dir(world.path(".cache/forebay")).expect("a directory");
    let mut paths = list.map(|entry| entry.expect("an entry").path());
    let is = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libforebay_place") && Path::new(&name).extension().is_some_and(|found| found == end)
    };
    paths.find(is).expect("a library")
}
