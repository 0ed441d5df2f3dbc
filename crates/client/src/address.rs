//! Addresses of a service.

use forebay_model::{Error, ErrorKind};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The address of a service: `unix:/path`, `/path`, `tcp:host:port` or `host:port`.
///
/// ```
/// use forebay_client::Address;
///
/// let address: Address = "tcp:node1:7411".parse()?;
/// assert_eq!(address, Address::Tcp { host: "node1".into(), port: 7411 });
/// assert!("node1".parse::<Address>().is_err());
/// # Ok::<(), forebay_model::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port.
    Tcp {
        /// Host name or IP address; an IPv6 address without its brackets.
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

/// Maximum number of addresses in a list.
const MOST: usize = 64;

/// One address of a service, or several that are tried in order. Written as a comma-separated list. An address after a
/// path must begin with `unix:` or `tcp:`, since paths may contain commas.
///
/// ```
/// use forebay_client::Addresses;
///
/// let addresses: Addresses = "unix:/run/forebay.sock,tcp:node1:7411".parse()?;
/// assert_eq!(addresses.first().to_string(), "unix:/run/forebay.sock");
/// assert_eq!(addresses.iter().count(), 2);
/// # Ok::<(), forebay_model::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Addresses {
    first: Address,
    rest: Vec<Address>,
}

impl Addresses {
    /// The address that is tried first.
    #[must_use]
    pub fn first(&self) -> &Address {
        &self.first
    }

    /// All addresses, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Address> {
        std::iter::once(&self.first).chain(&self.rest)
    }

    /// The same list with another address in front.
    #[must_use]
    pub fn after(self, before: Option<Address>) -> Addresses {
        match before.filter(|address| *address != self.first) {
            Some(address) => Addresses { first: address, rest: self.iter().cloned().collect() },
            None => self,
        }
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Addresses {
        Addresses { first: address, rest: Vec::new() }
    }
}

impl FromStr for Addresses {
    type Err = Error;

    fn from_str(text: &str) -> Result<Addresses, Error> {
        let (first, mut rest) = split_first(text);
        let mut list = Addresses { first: first.parse()?, rest: Vec::new() };
        while let Some(text) = rest {
            let (next, others) = split_first(text);
            list.rest.push(next.parse()?);
            rest = others;
        }
        match list.rest.len() < MOST {
            true => Ok(list),
            false => {
                let count = list.rest.len() + 1;
                let text = format!("a list of {count} addresses is too long: name at most {MOST}");
                Err(Error::new(ErrorKind::Invalid, text))
            }
        }
    }
}

/// The first address of a list, and the rest. A path may contain commas: it ends at a comma followed by `unix:` or
/// `tcp:`.
fn split_first(list: &str) -> (&str, Option<&str>) {
    let list = list.trim_start();
    let is_path = list.starts_with("unix:") || list.starts_with('/');
    let ends = |at: &usize| {
        let next = list[at + 1..].trim_start();
        !is_path || next.starts_with("unix:") || next.starts_with("tcp:")
    };
    match list.match_indices(',').map(|(at, _)| at).find(ends) {
        Some(at) => (list[..at].trim_end(), Some(&list[at + 1..])),
        None => (list, None),
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.rest.iter().try_for_each(|address| write!(f, ",{address}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_lists_are_parsed_and_printed() {
        for (text, printed) in [
            ("node3:7000", "tcp:node3:7000"),
            ("/run/fb.sock, tcp:node3:7000,[::1]:7", "unix:/run/fb.sock,tcp:node3:7000,tcp:[::1]:7"),
            ("h:1, /a, b/sock,unix:/c,d", "tcp:h:1,unix:/a, b/sock,unix:/c,d"),
            ("/a,node3:7000", "unix:/a,node3:7000"),
        ] {
            let list: Addresses = text.parse().unwrap();
            assert_eq!(list.to_string(), printed, "{list:?}");
            assert_eq!(printed.parse(), Ok(list));
        }
        let many = vec!["h:1"; MOST + 1].join(",");
        for (text, why) in [
            ("", "no port"),
            ("h:1,", "no port"),
            (",h:1", "no port"),
            ("h:1,,h:2", "no port"),
            (many.as_str(), "too long"),
        ] {
            let error = text.parse::<Addresses>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(why), "{error}: expected {why}");
        }
    }

    #[test]
    fn addresses_are_parsed_and_printed() {
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
