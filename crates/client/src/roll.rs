//! The servers of a service, as the newest welcome lists them, and how to reach each.

use crate::Address;
use forebay_model::{Error, ErrorKind, Member, Members, Result, ServerId};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

/// What all sessions of a client know about the service.
pub(crate) struct Roll {
    members: RwLock<Option<Arc<Members>>>,
    /// Whether the service was reached by a Unix socket: then the other servers may have one on this machine too.
    near: bool,
}

impl Roll {
    pub(crate) fn new(near: bool) -> Roll {
        Roll { members: RwLock::new(None), near }
    }

    /// The list, once a server has sent it.
    pub(crate) fn members(&self) -> Option<Arc<Members>> {
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes in the list of a welcome. A newer one counts from now on; one of other servers that is not newer comes
    /// from a server that would look for names elsewhere than the others do.
    pub(crate) fn learn(&self, list: &Members) -> Result<()> {
        let mut members = self.members.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*members
            && known.epoch() >= list.epoch()
        {
            if known.servers().eq(list.servers()) && known.homes() == list.homes() {
                return Ok(());
            }
            let text = format!(
                "it lists {} (epoch {}), and others of its service {} (epoch {}): start all servers with one list",
                numbers(list),
                list.epoch(),
                numbers(known),
                known.epoch()
            );
            return Err(Error::new(ErrorKind::Protocol, text));
        }
        *members = Some(Arc::new(list.clone()));
        Ok(())
    }

    /// Where a server is reached from here.
    pub(crate) fn address(&self, server: ServerId) -> Result<Address> {
        let members = self.members();
        match members.as_ref().and_then(|members| members.get(server)) {
            Some(member) => self.way_to(member),
            None => Err(not_a_member(server)),
        }
    }

    fn way_to(&self, member: &Member) -> Result<Address> {
        match &member.socket {
            Some(socket) if self.near && Path::new(socket).exists() => Ok(Address::Unix(socket.into())),
            _ => member.address.parse(),
        }
    }
}

pub(crate) fn not_a_member(server: ServerId) -> Error {
    Error::new(ErrorKind::Protocol, format!("server {server} is not one of this service"))
}

fn numbers(list: &Members) -> String {
    let numbers: Vec<String> = list.servers().map(|server| server.to_string()).collect();
    format!("server{} {}", if numbers.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(epoch: u64, servers: &[u16]) -> Members {
        let member = |n: &u16| Member {
            server: ServerId(*n),
            address: format!("tcp:host{n}:7"),
            socket: Some(format!("/nowhere/{n}.sock")),
        };
        Members::new(epoch, servers.iter().map(member).collect()).unwrap()
    }

    #[test]
    fn the_newest_list_counts_and_a_different_one_is_refused() {
        let roll = Roll::new(true);
        assert!(roll.address(ServerId(1)).is_err());
        for (epoch, servers, fits, then) in [
            (2, &[1, 2, 3][..], true, 3),
            (2, &[1, 2, 3], true, 3),
            (1, &[1, 2, 3], true, 3),
            (2, &[1, 2], false, 3),
            (1, &[1, 2, 3, 4], false, 3),
            (3, &[1, 2, 3, 4], true, 4),
        ] {
            let learnt = roll.learn(&list(epoch, servers));
            assert_eq!(learnt.is_ok(), fits, "{epoch} {servers:?}");
            assert_eq!(roll.members().unwrap().all().len(), then, "{epoch} {servers:?}");
            if let Err(error) = learnt {
                assert!(error.to_string().contains("servers 1, 2, 3 (epoch 2)"), "{error}");
            }
        }
    }

    #[test]
    fn a_socket_is_used_where_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        std::fs::write(&socket, "").unwrap();
        let member = |socket: &Path| Member {
            server: ServerId(1),
            address: "tcp:h:7".to_owned(),
            socket: Some(socket.display().to_string()),
        };
        let unix = Address::Unix(socket.clone());
        let tcp = Address::Tcp { host: "h".to_owned(), port: 7 };
        for (near, path, expected) in
            [(true, &socket, &unix), (false, &socket, &tcp), (true, &dir.path().join("none"), &tcp)]
        {
            let roll = Roll::new(near);
            roll.learn(&Members::new(1, vec![member(path)]).unwrap()).unwrap();
            assert_eq!(roll.address(ServerId(1)).unwrap(), *expected);
        }
    }
}
