//! The daemon: sockets, turns, sessions, and the introduction of policy to store
