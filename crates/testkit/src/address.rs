//! Addresses for test servers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// A loopback address with a port that no other process uses, now or later, and to which no client connects
/// by chance from the same port.
///
/// Every process has its own host in 127.64.0.0/10, so that no other process can take the port between its
/// choice and its use. The ports are below the kernel's range for outgoing connections.
#[must_use]
pub fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 64 | (high & 0x3f), middle, low);
    SocketAddr::from((host, 20_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 12_000))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn addresses_are_unique_and_can_be_bound() {
        let (one, two) = (address(), address());
        assert_ne!(one, two);
        let _both = (TcpListener::bind(one).unwrap(), TcpListener::bind(two).unwrap());
    }
}
