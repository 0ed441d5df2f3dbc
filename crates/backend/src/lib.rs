//! The world behind the buffer
