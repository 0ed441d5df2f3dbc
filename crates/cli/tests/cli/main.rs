//! The command line from outside: the real binary, real servers, real files.

mod checking;
mod crowd;
mod demo;
mod errors;
mod files;
mod lost;
mod mount;
mod mpi;
mod names;
mod planning;
mod run;
mod server;
mod settings;
mod several;
mod sharing;
mod support;
mod union;
mod users;
