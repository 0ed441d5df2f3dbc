//! Sizing.
