//! Parallel programs of both families of MPI, four ranks each.

use crate::lustre::Layout;
use crate::world::{World, heights, skip, well};
use std::collections::BTreeSet;
use std::process::Command;

/// The launcher of a family, with what lets it run four ranks on a small machine as whoever this is.
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
    for name in ["sized", "exclusive"] {
        let stripes = world.stripes(name);
        assert_eq!((stripes.targets.len(), stripes.size), (4, 1 << 20), "{name}: {log}");
        assert!(different(&stripes.targets), "{name}: {stripes:?}");
    }
    let asked = world.stripes("asked");
    assert_eq!((asked.targets.len(), asked.size), (2, 131_072), "{log}");
    let Layout::Parts(parts, first) = world.fs.lock().layout("unknown.1") else { panic!("{log}") };
    assert_eq!((parts, first.len()), (vec![(4 << 20, 1, 1 << 20), (u64::MAX, 4, 1 << 20)], 1), "{log}");
    // The one before tells how large it will be: 4000 bytes.
    let second = world.stripes("unknown.2");
    assert_eq!((second.targets.len(), second.size), (4, 65_536), "{log}");
    let own: Vec<u32> = (0..4).map(|rank| world.stripes(&format!("own.{rank}")).targets[0]).collect();
    assert!(different(&own), "{own:?}: {log}");
    let halves: Vec<u32> = (0..2).flat_map(|half| world.stripes(&format!("half.{half}")).targets).collect();
    assert!(halves.len() == 4 && different(&halves), "{halves:?}: {log}");
    let all: Vec<u32> = [world.stripes("sized").targets, world.stripes("exclusive").targets].concat();
    assert_eq!(heights(&all), [1; 8], "two shared files take all targets: {log}");
    let created = world.fs.lock().created.clone();
    let early = created.iter().find(|(name, later)| !later && !name.starts_with('.'));
    assert_eq!(early, None, "nobody opened a file before its layout was there: {log}");
}

#[test]
fn files_of_mpich_are_placed() {
    placed("mpich");
}

#[test]
fn files_of_open_mpi_are_placed() {
    placed("openmpi");
}

fn one_file(family: &str, source: &str, compiler: &str) {
    if !is_here(family) {
        return;
    }
    let Some(world) = World::new(&[]) else { return };
    let Some(program) = world.compiled(source, &format!("{compiler}.{family}"), &["-O1"]) else { return };
    assert_eq!(launched(&world, family, &program, &["pfs/file"]), "all is well\n", "{}", world.log());
    let stripes = world.stripes("file");
    assert_eq!((stripes.targets.len(), stripes.size), (4, 1 << 20), "{family}: {}", world.log());
    assert!(different(&stripes.targets));
}

#[test]
fn parallel_hdf5_is_placed() {
    for family in ["mpich", "openmpi"] {
        one_file(family, "parallel.c", "h5pcc");
    }
}

#[test]
fn shared_files_of_fortran_are_placed() {
    for family in ["mpich", "openmpi"] {
        one_file(family, "shared.f90", "mpif90");
    }
}
