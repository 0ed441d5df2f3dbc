//! Where a service listens.

use forebay_model::{Error, ErrorKind};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a service: `unix:/path`, `/path`, `tcp:host:port` or `host:port`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Name or number of the machine; an IPv6 number without its brackets.
        host: String,
        /// The port.
        port: u16,
    },
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = |why: &str| {
            let text = format!(
                "\"{text}\" is not the address of a service ({why}): write unix:/path/to/socket or tcp:host:port"
            );
            Error::new(ErrorKind::Invalid, text)
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(wrong("no path")) } else { Ok(Address::Unix(path.into())) };
        }
        if text.starts_with('/') {
            return Ok(Address::Unix(text.into()));
        }
        let (host, port) =
            text.strip_prefix("tcp:").unwrap_or(text).rsplit_once(':').ok_or_else(|| wrong("no port"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(|| wrong("a bracket is missing"))?,
            None if host.contains(':') => return Err(wrong("put brackets around an IPv6 number")),
            None => host,
        };
        if host.is_empty() {
            return Err(wrong("no host"));
        }
        let port = port.parse().map_err(|_| wrong("the port is a number from 0 to 65535"))?;
        Ok(Address::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Address::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        for (text, printed) in [
            ("unix:/run/fb.sock", "unix:/run/fb.sock"),
            ("/run/fb.sock", "unix:/run/fb.sock"),
            ("unix:fb.sock", "unix:fb.sock"),
            ("tcp:node3:7000", "tcp:node3:7000"),
            ("node3:7000", "tcp:node3:7000"),
            ("127.0.0.1:0", "tcp:127.0.0.1:0"),
            ("[::1]:7000", "tcp:[::1]:7000"),
            ("tcp:[fe80::1]:7000", "tcp:[fe80::1]:7000"),
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), printed);
            assert_eq!(printed.parse(), Ok(address));
        }
        for (text, why) in [
            ("", "no port"),
            ("unix:", "no path"),
            ("node3", "no port"),
            ("node3:", "the port is a number"),
            ("node3:65536", "the port is a number"),
            (":7000", "no host"),
            ("::1:7000", "brackets"),
            ("[::1:7000", "bracket is missing"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}: expected {why}");
        }
    }
}
