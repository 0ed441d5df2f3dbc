//! `libforebay_place.a`: the modules of `lib.rs` for programs that are linked statically, with the feature `wrap`.

mod api;
mod create;
mod crew;
mod decide;
mod hdf5;
mod layout;
mod posix;
mod real;
mod report;
mod service;
mod setting;
mod turns;
