//! End-to-end tests in one binary: each needs the same client and server code, which is compiled once.

mod bounds;
mod cluster;
mod even;
mod hostile;
mod kill;
mod leftovers;
mod load;
mod lost;
mod model;
mod namespaces;
mod networks;
mod outages;
mod people;
mod remembered;
mod rings;
mod sectors;
mod space;
mod stopped;
mod store;
mod together;
mod union;
mod ways;
