//! Mapped region files and the ranges granted to writers
