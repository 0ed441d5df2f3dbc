//! Parallel programs with MPICH and Open MPI, four ranks each.

use crate::lustre::{Layout, Stripes};
use crate::world::{JOB, TARGETS, World, heights, skip, well};
use forebay_policy::place::{Job, Ledger, Limits, Pattern, Shape, Topology, Weights, Writer, place};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

/// The launcher of an MPI implementation, with options for four ranks on a small machine and as root.
fn launched(world: &World, family: &str, program: &std::path::Path, arguments: &[&str]) -> String {
    let mut command = world.placed(&[]);
    command.arg(format!("mpiexec.{family}")).args(["-n", "4"]).arg(program).args(arguments);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("OMPI_MCA_rmaps_base_oversubscribe", "1");
    well(&command.output().expect("it runs"))
}

fn is_here(family: &str) -> bool {
    let tools = ["mpiexec", "mpicc", "mpif90", "h5pcc"].map(|tool| format!("{tool}.{family}"));
    let missing = tools.iter().find(|tool| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !found.is_ok_and(|output| output.status.success())
    });
    if let Some(tool) = missing {
        skip(&format!("{tool} is not installed, so programs of {family} were not placed"));
    }
    missing.is_none()
}

/// What is known of a file: its size, and the requested number and size of stripes.
type Known = (Option<u64>, Option<(u32, u64)>);

/// The planned layouts of files with a number of writers each, for a job of four ranks, one after the other.
fn planned(writers_of_each: u32, files: &[Known]) -> Vec<Vec<Stripes>> {
    let mut ledger = Ledger::new(Arc::new(Topology::flat(TARGETS)), Weights::default(), JOB);
    let all = vec![Writer { client: None, bytes: None }; 4];
    let pattern = if writers_of_each > 1 { Pattern::Grouped(writers_of_each) } else { Pattern::PerProcess };
    let mut plan = |&(file_size, stripes): &Known| {
        let (stripe_count, stripe_size) = stripes.unzip();
        let job =
            Job { writers: &all, pattern, file_size, stripe_count, stripe_size, limits: &Limits::LUSTRE };
        let plan = place(&mut ledger, &job).expect("targets have space");
        let stripes = |shape: &Shape| match shape {
            Shape::Striped(stripes) => {
                Some(Stripes { targets: stripes.targets.clone(), size: stripes.size as u32 })
            }
            _ => None,
        };
        plan.files.iter().filter_map(|file| stripes(&file.shape)).collect()
    };
    files.iter().map(&mut plan).collect()
}

fn different(targets: &[u32]) -> bool {
    targets.iter().collect::<BTreeSet<_>>().len() == targets.len()
}

fn placed(family: &str) {
    if !is_here(family) {
        return;
    }
    let Some(world) = World::new(&[]) else { return };
    let Some(program) = world.compiled("shared.c", &format!("mpicc.{family}"), &["-O1"]) else { return };
    assert_eq!(launched(&world, family, &program, &["pfs"]), "all is well\n", "{}", world.log());
    let log = world.log();
    const MIB: u64 = 1 << 20;
    let sized = (Some(4 * MIB), None);
    // The program creates them in this order; the size of the last is that of the one before it.
    let four =
        planned(4, &[sized, sized, (Some(4 * MIB), Some((2, MIB / 8))), (None, None), (Some(4000), None)]);
    let names = [(0, "sized", MIB), (1, "exclusive", MIB), (2, "asked", MIB / 8), (4, "unknown.2", MIB / 16)];
    for (number, name, size) in names {
        let found = world.stripes(name);
        assert_eq!(vec![found.clone()], four[number], "{name}: {log}");
        assert!(u64::from(found.size) == size && different(&found.targets), "{name}: {found:?}");
    }
    let Layout::Parts(parts, first) = world.fs.lock().layout("unknown.1") else { panic!("{log}") };
    assert_eq!((parts, first.len()), (vec![(4 << 20, 1, 1 << 20), (u64::MAX, 4, 1 << 20)], 1), "{log}");
    let own: Vec<Stripes> = (0..4).map(|rank| world.stripes(&format!("own.{rank}"))).collect();
    // Open MPI creates further files beside them, to test locking.
    let first = planned(1, &[(None, None)]).concat();
    let targets: Vec<u32> = own.iter().map(|stripes| stripes.targets[0]).collect();
    assert!(different(&targets) && (family != "mpich" || own == first), "{own:?}, not {first:?}: {log}");
    // Processes that write two at a time are counted together, whichever process reports it.
    let pairs = (Some(2 * MIB), None);
    let two = planned(2, &[pairs, pairs]);
    assert_eq!(world.stripes("pair"), two[0][0], "{log}");
    assert_eq!(world.stripes("half.0"), two[1][0], "{log}");
    // The leader of the second half was no leader before.
    assert_eq!(world.stripes("half.1"), two[0][1], "{log}");
    let halves = [world.stripes("half.0").targets, world.stripes("half.1").targets].concat();
    assert!(halves.len() == 4 && different(&halves), "{halves:?}: {log}");
    for expected in [
        "4 writers, from its communicator",
        "2 writers, from its info",
        "4000 bytes, as in the previous file",
    ] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    assert!(log.contains("unknown.1: the file size is unknown: the layout uses more targets"), "{log}");
    let all: Vec<u32> = [world.stripes("sized").targets, world.stripes("exclusive").targets].concat();
    assert_eq!(heights(&all), [1; 8], "two shared files take all targets: {log}");
    let created = world.fs.lock().created.clone();
    let early = created.iter().find(|(name, later)| !later && !name.starts_with('.'));
    assert_eq!(early, None, "no file was opened before its layout was set: {log}");
}

#[test]
fn mpich_files_are_placed() {
    placed("mpich");
}

#[test]
fn open_mpi_files_are_placed() {
    placed("openmpi");
}

/// Flags that link HDF5 as a shared library.
const SHARED: [&str; 2] = ["-O1", "-shlib"];

fn one_file(family: &str, source: &str, compiler: &str) -> Option<World> {
    if !is_here(family) {
        return None;
    }
    let world = World::new(&[])?;
    let options: &[&str] = if compiler == "h5pcc" { &SHARED } else { &["-O1"] };
    let program = world.compiled(source, &format!("{compiler}.{family}"), options)?;
    assert_eq!(launched(&world, family, &program, &["pfs/file"]), "all is well\n", "{}", world.log());
    let stripes = world.stripes("file");
    let planned = planned(4, &[(Some(4 << 20), None)]);
    assert_eq!(vec![stripes], planned[0], "{family}: {}", world.log());
    Some(world)
}

#[test]
fn parallel_hdf5_is_placed_by_its_property_lists() {
    for family in ["mpich", "openmpi"] {
        let Some(world) = one_file(family, "parallel.c", "h5pcc") else { continue };
        let log = world.log();
        let Layout::Parts(parts, _) = world.fs.lock().layout("filealigned") else { panic!("{log}") };
        assert_eq!(parts, [(4 << 20, 1, 2 << 20), (u64::MAX, 4, 2 << 20)], "{family}: {log}");
        assert!(log.contains("filealigned: stripes of 2097152 bytes, from the HDF5 alignment"), "{log}");
    }
}

#[test]
fn shared_files_of_fortran_are_placed() {
    for family in ["mpich", "openmpi"] {
        one_file(family, "shared.f90", "mpif90");
    }
}

/// A job script runs programs one after the other: each begins at another target than the one before.
#[test]
fn programs_of_one_job_begin_at_different_targets() {
    for family in ["mpich", "openmpi"] {
        if !is_here(family) {
            continue;
        }
        let Some(world) = World::new(&[]) else { return };
        let Some(program) = world.compiled("wave.c", &format!("mpicc.{family}"), &["-O1"]) else { return };
        for first in ["pfs/a", "pfs/b"] {
            assert_eq!(launched(&world, family, &program, &[first]), "all is well\n", "{}", world.log());
        }
        let names = ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"];
        let targets: Vec<u32> = names.iter().map(|name| world.stripes(name).targets[0]).collect();
        assert_eq!(heights(&targets), [1; 8], "{targets:?}: {}", world.log());
    }
}

#[test]
fn hdf5_of_one_process_is_placed() {
    if !is_here("mpich") {
        return;
    }
    let Some(world) = World::new(&[]) else { return };
    let Some(program) = world.compiled("family.c", "h5pcc.mpich", &SHARED) else { return };
    let ran = world.placed(&[]).arg(program).arg("pfs").output().expect("it runs");
    assert_eq!(well(&ran), "all is well\n", "{}", world.log());
    check_family(&world);
}

/// A file and a family of files, each on a target of its own.
fn check_family(world: &World) {
    let names = ["single.h5", "family0.h5", "family1.h5", "family2.h5", "family3.h5"];
    let found: Vec<Stripes> = names.iter().map(|name| world.stripes(name)).collect();
    assert!(found.iter().all(|stripes| (stripes.targets.len(), stripes.size) == (1, 1 << 20)), "{found:?}");
    let targets: Vec<u32> = found.iter().map(|stripes| stripes.targets[0]).collect();
    let log = world.log();
    assert!(different(&targets), "{targets:?}: {log}");
    assert!(log.contains("family0.h5: 1048576 bytes, member of an HDF5 family"), "{log}");
}

/// Python loads modules with RTLD_LOCAL, which hides their dependencies.
#[test]
fn dependencies_of_loaded_modules_are_found() {
    for (family, source, compiler, more) in [
        ("mpich", "family.c", "h5pcc", "-shlib"),
        ("mpich", "module.c", "mpicc", "-O1"),
        ("openmpi", "module.c", "mpicc", "-O1"),
    ] {
        if !is_here(family) {
            continue;
        }
        let Some(world) = World::new(&[]) else { return };
        let options = [more, "-shared", "-fPIC", "-DMODULE"];
        let Some(module) = world.compiled(source, &format!("{compiler}.{family}"), &options) else { return };
        let Some(loader) = world.compiled("loader.c", "cc", &["-ldl"]) else { return };
        let mut command = world.placed(&[]);
        command.arg(loader).arg(module).arg("pfs");
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        assert_eq!(well(&command.output().expect("it runs")), "all is well\n", "{source}: {}", world.log());
        match source {
            "family.c" => check_family(&world),
            _ => assert_eq!(world.stripes("module").targets.len(), 1, "{family}: {}", world.log()),
        }
    }
}
