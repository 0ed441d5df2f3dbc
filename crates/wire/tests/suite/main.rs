//! Integration tests of the protocol.

mod golden;
mod messages;
mod random;
mod records;
mod samples;
mod seals;
