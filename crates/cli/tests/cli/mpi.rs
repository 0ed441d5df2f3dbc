//! Parallel programs in C and Fortran with MPICH and Open MPI, four ranks each: their files through the library
//! and
//! through the mount.
//!
//! Every program compares each byte it reads with the data that some rank must have written.

use crate::support::{Ran, World, run, skip, text};
use std::path::{Path, PathBuf};
use std::process::Command;

const AGREED: &str = "4 ranks agree\n";

/// An implementation of MPI.
#[derive(Clone, Copy)]
struct Family(&'static str);

const MPICH: Family = Family("mpich");
const OPEN_MPI: Family = Family("openmpi");

/// A program beside these tests: its compiler, the compiler's options, and the files it must create.
struct Program {
    source: &'static str,
    compiler: &'static str,
    option: &'static str,
    writes: &'static [&'static str],
}

const PROGRAMS: [Program; 4] = [
    Program {
        source: "files.c",
        compiler: "mpicc",
        option: "-O1",
        writes: &[
            "independent",
            "collective",
            "sieved",
            "ordered",
            "pieces",
            "atomic",
            "shared",
            "own.3",
            "log",
        ],
    },
    // This interface is called with arguments of different types.
    Program {
        source: "mpif.f",
        compiler: "mpif77",
        option: "-fallow-argument-mismatch",
        writes: &["array77"],
    },
    Program {
        source: "f08.f90",
        compiler: "mpif90",
        option: "-O1",
        writes: &["array08", "text.0", "records.3", "stream.3"],
    },
    Program { source: "hdf5.c", compiler: "h5pcc", option: "-O1", writes: &["data.h5"] },
];

impl Family {
    /// Whether everything of this implementation is installed; prints what is missing.
    fn is_here(self) -> bool {
        let tools =
            ["mpiexec", "mpicc", "mpif77", "mpif90", "h5pcc"].map(|tool| format!("{tool}.{}", self.0));
        let missing = tools.iter().map(String::as_str).chain(["gfortran"]).find(|tool| {
            let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
            !found.is_ok_and(|output| output.status.success())
        });
        if let Some(tool) = missing {
            skip(&format!("{tool} is not installed, so programs of {} were not tested", self.0));
        }
        missing.is_none()
    }

    fn compile(self, world: &World, program: &Program) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/mpi").join(program.source);
        let path = world.path(&format!("{}.{}", program.source, self.0));
        let mut compiler = Command::new(format!("{}.{}", program.compiler, self.0));
        compiler.arg(program.option).arg("-o").arg(&path).arg(&source).current_dir(world.dir());
        let ran = run(compiler);
        assert_eq!(ran.code, 0, "{}: {}", program.source, ran.err);
        path
    }

    /// The command that starts four ranks.
    fn launcher(self) -> Vec<String> {
        let words = format!("mpiexec.{} -n 4", self.0);
        words.split(' ').map(str::to_owned).collect()
    }

    /// Lets a command's launcher run on a small machine and as root.
    fn configured(self, mut command: Command) -> Command {
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
        command
    }

    fn run(self, command: Command) -> Ran {
        run(self.configured(command))
    }
}

/// Checks that the program succeeded and its files exist.
fn check(ran: &Ran, family: Family, program: &Program, dir: &Path) {
    let what = format!("{} of {}", program.source, family.0);
    assert_eq!((ran.code, ran.out.as_str()), (0, AGREED), "{what}: {}", ran.err);
    for name in program.writes {
        let length = std::fs::metadata(dir.join(name)).map(|meta| meta.len());
        assert!(length.is_ok_and(|length| length > 0), "{what}: {name}");
    }
}

fn within_a_run(family: Family) {
    if !family.is_here() {
        return;
    }
    let world = World::empty();
    for program in &PROGRAMS {
        let path = family.compile(&world, program);
        let target = world.path(&format!("{}.out", program.source));
        let mut command =
            world.command(&["run", "--json", "--capacity", "128MiB", "--pfs", text(&target), "--"]);
        command.args(family.launcher()).arg(path).arg("/fb");
        let ran = family.run(command);
        check(&ran, family, program, &target);
        let summary = ran.err.lines().find(|line| line.starts_with('{')).expect("a summary");
        let summary: serde_json::Value = serde_json::from_str(summary).expect("JSON");
        assert_eq!(summary["counts"]["processes"], 4, "the launcher itself is not counted: {summary}");
    }
}

#[test]
fn mpich_programs_within_a_run() {
    within_a_run(MPICH);
}

#[test]
fn open_mpi_programs_within_a_run() {
    within_a_run(OPEN_MPI);
}

fn on_a_mount(family: Family) {
    if !family.is_here() {
        return;
    }
    if let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        skip(&format!("/dev/fuse cannot be opened ({error}), so programs of {} saw no mount", family.0));
        return;
    }
    let world = World::up();
    let mount = world.path("mnt");
    std::fs::create_dir(&mount).unwrap();
    world.well(&["mount", "mnt"]);
    for program in &PROGRAMS {
        let path = family.compile(&world, program);
        let launcher = family.launcher();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(path).arg(&mount).current_dir(world.dir());
        let ran = family.run(command);
        check(&ran, family, program, &mount);
    }
    world.well(&["umount", "mnt"]);
}

#[test]
fn mpich_programs_on_a_mount() {
    on_a_mount(MPICH);
}

#[test]
fn open_mpi_programs_on_a_mount() {
    on_a_mount(OPEN_MPI);
}

#[test]
fn ranks_that_load_the_library_themselves_share_a_service() {
    for (family, kind) in [(MPICH, "ufs:"), (OPEN_MPI, "")] {
        if !family.is_here() {
            return;
        }
        let world = World::up();
        let path = family.compile(&world, &PROGRAMS[0]);
        let launcher = family.launcher();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(env!("CARGO_BIN_EXE_forebay")).args(["exec", "--"]).arg(path);
        command.arg("/fb").arg(kind).env("FOREBAY_SERVICE", world.service()).env("HOME", world.dir());
        command.env("FOREBAY_JOB_ID", "parallel").current_dir(world.dir());
        let ran = family.run(command);
        assert_eq!((ran.code, ran.out.as_str()), (0, AGREED), "{}: {}", family.0, ran.err);
        let jobs = world.json(&["jobs", "--json"]);
        let labels = jobs["jobs"].as_array().expect("jobs").iter().map(|job| job["label"].as_str());
        assert_eq!(
            labels.filter(|label| *label == Some("parallel")).count(),
            1,
            "all ranks are one job: {jobs}"
        );
    }
}

#[test]
fn run_under_a_launcher_advises_to_swap_the_two() {
    for family in [MPICH, OPEN_MPI] {
        if !family.is_here() {
            return;
        }
        let world = World::empty();
        let launcher = family.launcher();
        let mut command = Command::new(&launcher[0]);
        command.args(&launcher[1..]).arg(env!("CARGO_BIN_EXE_forebay")).args(["run", "--", "true"]);
        command.env("HOME", world.dir()).current_dir(world.dir());
        let ran = family.run(command);
        assert_ne!(ran.code, 0);
        let printed = ran.err.matches("forebay run -- mpiexec -n 4 CMD").count()
            + ran.out.matches("forebay run -- mpiexec").count();
        assert_eq!(printed, 1, "{}{}", ran.out, ran.err);
    }
}
