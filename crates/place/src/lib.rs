//! `libforebay_place.so` and, from `archive.rs`, `libforebay_place.a`: files that a program creates on a parallel file
//! system get a planned layout before the program sees them.
//!
//! ```text
//! setting    settings from the command line: topology, weights, the prefix
//! crew       rank and number of processes, and the nodes of all ranks
//! decide     the layout of the next file
//! create     creates a file with that layout
//! layout     sets a layout, reads it back and compares
//! posix      open, openat, creat, fopen: what most languages use
//! mpi        MPI_Init, MPI_File_open, from C and from Fortran
//! hdf5       H5Fcreate: reads its property lists
//! api        forebay_place_create
//! real       lookup of the interposed functions
//! turns      turn counters for processes without ranks; number of runs
//! service    connection to a running Forebay, which counts turns
//! report     log and counters
//! ```
//!
//! **Invariant**: apart from the layout a program gets what it would get without this library: the same
//! descriptors, modes and errors. On any error this library logs it and creates the file with the default
//! layout.
//!
//! **Deliberately absent**: everything except file creation; existing files; directories with their own
//! layout; communication between processes, except MPI's own when a shared file is opened and when MPI is
//! initialised, and a running Forebay for processes without a rank.

#![cfg_attr(test, allow(dead_code, non_snake_case, reason = "tests do not call the exported functions"))]

mod api;
mod create;
mod crew;
mod decide;
mod hdf5;
mod layout;
mod mpi;
mod posix;
mod real;
mod report;
mod service;
mod setting;
mod turns;
