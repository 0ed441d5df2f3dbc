//! fjall
