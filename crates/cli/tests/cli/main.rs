//! The command line from outside: the real binary, real servers, real files.

mod demo;
mod errors;
mod files;
mod mount;
mod names;
mod planning;
mod server;
mod settings;
mod several;
mod sharing;
mod support;
mod users;
