//! The client: path walk, open files, transports, and a blocking façade
