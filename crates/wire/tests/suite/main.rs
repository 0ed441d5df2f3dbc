//! The protocol, from outside.

mod golden;
mod messages;
mod random;
mod samples;
mod seals;
