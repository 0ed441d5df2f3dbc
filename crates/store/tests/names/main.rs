//! Tests of the namespace and its metadata store: tables, a reference model, crashes, threads, corruption.

mod clients;
mod cluster;
mod common;
mod corrupt;
mod crash;
mod disk;
mod leases;
mod mending;
mod model;
mod operations;
mod pairs;
mod permissions;
mod random;
mod shards;
mod threads;
mod walking;
mod xattrs;
