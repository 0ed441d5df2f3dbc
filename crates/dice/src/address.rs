//! Where a server of a test listens.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};

/// An address on loopback that nobody else listens on, now or later, and that no client meets itself on.
///
/// Every process has a host of its own in 127.64.0.0/10, so that nobody can take the port between its choice and its
/// use; the ports are below those that the kernel gives to outgoing connections.
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
    fn every_address_is_another_and_can_be_listened_on() {
        let (one, two) = (address(), address());
        assert_ne!(one, two);
        let _both = (TcpListener::bind(one).unwrap(), TcpListener::bind(two).unwrap());
    }
}
