//! The socket by which programs of a run reach its service after they have switched to users whom the run's directory
//! does not admit.
//!
//! The programs inherit a descriptor of the directory with that socket, and connect by themselves.
//!
//! **Invariant**: every program connects by itself, so the kernel tells the service who the program is.

use std::os::fd::RawFd;
use std::path::PathBuf;

/// Environment variable with the number of the inherited descriptor and the run's service: `500 unix:/…`.
pub const RUN_SOCKET_VARIABLE: &str = "FOREBAY_RUN_SOCKET";

/// Name of the socket in its directory.
pub const RUN_SOCKET: &str = "sock";

/// The value of [`RUN_SOCKET_VARIABLE`].
#[must_use]
pub fn run_socket_value(directory: RawFd, service: &str) -> String {
    format!("{directory} {service}")
}

/// The inherited descriptor, if the value is about this service: a program of a run may use another one.
#[must_use]
pub fn run_socket_of(value: &str, service: &str) -> Option<RawFd> {
    let (directory, run) = value.split_once(' ')?;
    directory.parse().ok().filter(|_| run == service)
}

/// The path of the socket, for a process that has inherited this descriptor.
#[must_use]
pub fn run_socket(directory: RawFd) -> PathBuf {
    format!("/proc/self/fd/{directory}/{RUN_SOCKET}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_of_a_run_is_used_for_its_service_only() {
        let value = run_socket_value(500, "unix:/dev/shm/run a/sock");
        assert_eq!(run_socket_of(&value, "unix:/dev/shm/run a/sock"), Some(500));
        for other in ["unix:/run/forebay.sock", "unix:/dev/shm/run", ""] {
            assert_eq!(run_socket_of(&value, other), None, "{other}");
        }
        assert_eq!(run_socket_of("500", ""), None);
    }
}
