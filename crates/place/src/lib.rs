//! `libforebay_place.so` and `libforebay_place.a`: files that a program creates on a parallel file system get the layout
//! that is planned for them, before the program sees them.
//!
//! ```text
//! setting    what the command line hands over: topology, weights, the prefix
//! crew       which of how many processes this is, and where the others run
//! decide     the layout of the next file
//! create     a file made with that layout
//! layout     a layout set, read back and compared
//! posix      open, openat, creat, fopen: what most languages come to
//! mpi        MPI_Init, MPI_File_open, from C and from Fortran
//! hdf5       H5Fcreate: what its property lists tell
//! api        forebay_place_create
//! real       the functions behind ours
//! turns      whose turn it is, where there are no ranks; how many runs there were
//! service    a running Forebay, which hands out turns
//! report     what was done, for those who ask
//! ```
//!
//! **Invariant**: a program gets what it would have got without this library, but for where its bytes lie: the same
//! descriptors, modes and errors. Whatever goes wrong here is told and the file is created as usual.
//!
//! **Deliberately absent**: everything but creation; files that exist; directories with a layout of their own;
//! communication between processes other than MPI's own when a shared file is opened and when MPI is set up, and a running
//! Forebay's for those without a rank.

#![cfg_attr(
    test,
    allow(dead_code, non_snake_case, reason = "what programs call by name is not called by tests")
)]

mod api;
mod create;
mod crew;
mod decide;
mod hdf5;
mod layout;
#[cfg(not(feature = "wrap"))]
mod mpi;
mod posix;
mod real;
mod report;
mod service;
mod setting;
mod turns;
