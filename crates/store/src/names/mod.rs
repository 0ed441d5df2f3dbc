//! Names: the namespace of one server.
