//! The servers of a service, as the newest welcome lists them, and the addresses of each.

use crate::Address;
use forebay_model::{Error, ErrorKind, Members, Result, ServerId, lock_exclusive, lock_shared};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

/// The server list that all sessions of a client share.
pub(crate) struct ServerList {
    members: RwLock<Option<Arc<Members>>>,
    /// Whether the service was reached by a Unix socket. Then the other servers may have one on this machine too.
    is_near: AtomicBool,
}

impl ServerList {
    pub(crate) fn new() -> ServerList {
        ServerList { members: RwLock::new(None), is_near: AtomicBool::new(false) }
    }

    /// Records that the service was reached by a Unix socket.
    pub(crate) fn set_near(&self) {
        self.is_near.store(true, Ordering::Relaxed);
    }

    /// The list, once a server has sent it.
    pub(crate) fn members(&self) -> Option<Arc<Members>> {
        lock_shared(&self.members).clone()
    }

    /// Updates the list from a welcome. A newer list replaces the known one. A different list that is not newer is an
    /// error: its server would place names on other servers.
    pub(crate) fn learn(&self, list: &Members) -> Result<()> {
        let mut members = lock_exclusive(&self.members);
        if let Some(known) = &*members
            && known.epoch() >= list.epoch()
        {
            if known.servers().eq(list.servers()) && known.homes() == list.homes() {
                return Ok(());
            }
            let text = format!(
                "it lists {} (epoch {}), other servers list {} (epoch {}): start all servers with the same list",
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

    /// Whether `list` has the same address for a server as the known list, or is of another epoch. Any host may have a
    /// socket at the path that the list names for another host's server, even one of another service with the same
    /// server ids.
    pub(crate) fn agrees_on(&self, server: ServerId, list: &Members) -> bool {
        let Some(known) = self.members().filter(|known| known.epoch() == list.epoch()) else { return true };
        known.get(server).map(|member| &member.address) == list.get(server).map(|member| &member.address)
    }

    /// The addresses of a server, in the order in which they are tried.
    pub(crate) fn addresses_of(&self, server: ServerId) -> Result<Vec<Address>> {
        let members = self.members();
        let Some(member) = members.as_ref().and_then(|members| members.get(server)) else {
            return Err(not_a_member(server));
        };
        let socket = member
            .socket
            .as_ref()
            .filter(|path| self.is_near.load(Ordering::Relaxed) && Path::new(path.as_str()).exists());
        let listed: Address = member.address.parse()?;
        let near = socket.map(|path| Address::Unix(path.into())).filter(|near| *near != listed);
        Ok(near.into_iter().chain([listed]).collect())
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
    use forebay_model::Member;

    fn list(epoch: u64, servers: &[u16]) -> Members {
        let member = |n: &u16| Member {
            server: ServerId(*n),
            address: format!("tcp:host{n}:7"),
            socket: Some(format!("/nowhere/{n}.sock")),
        };
        Members::new(epoch, servers.iter().map(member).collect()).unwrap()
    }

    #[test]
    fn newest_server_list_wins_and_conflicting_ones_are_refused() {
        let server_list = ServerList::new();
        assert!(server_list.addresses_of(ServerId(1)).is_err());
        for (epoch, servers, fits, then) in [
            (2, &[1, 2, 3][..], true, 3),
            (2, &[1, 2, 3], true, 3),
            (1, &[1, 2, 3], true, 3),
            (2, &[1, 2], false, 3),
            (1, &[1, 2, 3, 4], false, 3),
            (3, &[1, 2, 3, 4], true, 4),
        ] {
            let learnt = server_list.learn(&list(epoch, servers));
            assert_eq!(learnt.is_ok(), fits, "{epoch} {servers:?}");
            assert_eq!(server_list.members().unwrap().all().len(), then, "{epoch} {servers:?}");
            if let Err(error) = learnt {
                assert!(error.to_string().contains("servers 1, 2, 3 (epoch 2)"), "{error}");
            }
        }
    }

    #[test]
    fn existing_unix_socket_is_tried_first() {
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
        let (both, one) = (vec![unix, tcp.clone()], vec![tcp]);
        for (near, path, expected) in
            [(true, &socket, &both), (false, &socket, &one), (true, &dir.path().join("none"), &one)]
        {
            let server_list = ServerList::new();
            if near {
                server_list.set_near();
            }
            server_list.learn(&Members::new(1, vec![member(path)]).unwrap()).unwrap();
            assert_eq!(server_list.addresses_of(ServerId(1)).unwrap(), *expected);
        }
    }

    #[test]
    fn same_epoch_with_another_address_is_another_service() {
        let server_list = ServerList::new();
        server_list.learn(&list(2, &[1, 2])).unwrap();
        let mut other = list(2, &[1, 2]).all().to_vec();
        other[1].address = "tcp:elsewhere:7".to_owned();
        let other = |epoch| Members::new(epoch, other.clone()).unwrap();
        assert!(server_list.agrees_on(ServerId(2), &list(2, &[1, 2])));
        assert!(server_list.agrees_on(ServerId(1), &other(2)));
        assert!(!server_list.agrees_on(ServerId(2), &other(2)));
        assert!(server_list.agrees_on(ServerId(2), &other(3)), "the list may have changed");
    }
}
