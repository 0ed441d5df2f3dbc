//! Bytes and names at rest.

#![forbid(unsafe_code)]

mod meta;
mod names;

pub use meta::{Batch, FjallKv, Kv, MemoryKv};
