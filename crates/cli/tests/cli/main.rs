//! The command line from outside: the real binary, real servers, real files.

mod agreement;
mod calibrate;
mod checking;
mod crowd;
mod demo;
mod draining;
mod errors;
mod files;
mod lost;
mod mount;
mod mpi;
mod names;
mod planning;
mod route;
mod run;
mod server;
mod settings;
mod several;
mod sharing;
mod speed;
mod support;
mod union;
mod users;
