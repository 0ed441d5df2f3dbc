//! Connecting a session to its server: tries every address until the expected server answers.
//!
//! **Invariant**: a session talks to one server for its whole lifetime. An address at which another server answers is
//! skipped: hosts may have their sockets at the same path, and a list of addresses may name several servers.

use crate::Address;
use crate::handshake::{ConnectionRequest, connect_authenticated};
use crate::session::Session;
use crate::transport::Pipe;
use forebay_model::{Error, ErrorKind, Incarnation, Result, lock};
use forebay_wire::{Channel, Roster, Welcome};

/// Where the addresses of a session's server come from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ServerLocation {
    /// From the configuration.
    Given,
    /// From the server list.
    Listed,
}

/// The address at which a server answered, and the incarnation of its store.
pub(crate) struct Reached {
    address: Address,
    incarnation: Incarnation,
    /// The user who runs the server, if it was reached by a Unix socket.
    user: Option<u32>,
}

/// Why an address did not lead to the expected server.
struct FailedAddress {
    error: Error,
    /// Whether another server answered.
    is_other_server: bool,
}

impl From<Error> for FailedAddress {
    fn from(error: Error) -> FailedAddress {
        FailedAddress { error, is_other_server: false }
    }
}

impl FailedAddress {
    fn other_server(text: String) -> FailedAddress {
        FailedAddress { error: Error::new(ErrorKind::Protocol, text), is_other_server: true }
    }
}

impl Session {
    /// Opens a connection and verifies that it leads to the expected server.
    pub(crate) async fn open_connection(&self, channel: Channel) -> Result<(Pipe, Welcome)> {
        let addresses = self
            .demand_open()
            .and_then(|()| self.candidate_addresses(channel))
            .map_err(|error| self.at_service(error))?;
        let mut failed = Vec::new();
        for address in addresses {
            match Box::pin(self.open_connection_at(&address, channel)).await {
                Ok(entered) => return Ok(entered),
                Err(one) => failed.push(FailedAddress { error: self.at(&address, one.error), ..one }),
            }
        }
        Err(self.combined_error(&failed))
    }

    /// The addresses to try. Data connections use the address of the control connection.
    fn candidate_addresses(&self, channel: Channel) -> Result<Vec<Address>> {
        if let (Channel::Data, Some(address)) = (channel, self.reached_at()) {
            return Ok(vec![address]);
        }
        match (self.location, self.server()) {
            (ServerLocation::Listed, Some(server)) => self.server_list.addresses_of(server),
            _ => Ok(self.config.addresses.iter().cloned().collect()),
        }
    }

    /// The address at which the server last answered.
    pub(crate) fn reached_at(&self) -> Option<Address> {
        let reached = lock(&self.reached);
        reached.as_ref().map(|reached| reached.address.clone())
    }

    /// The incarnation of the server's store, as of the last answer.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        let reached = lock(&self.reached);
        reached.as_ref().map(|reached| reached.incarnation)
    }

    /// The user who runs the server, as of the last answer, if it was reached by a Unix socket.
    pub(crate) fn server_user(&self) -> Option<u32> {
        let reached = lock(&self.reached);
        reached.as_ref().and_then(|reached| reached.user)
    }

    async fn open_connection_at(
        &self,
        address: &Address,
        channel: Channel,
    ) -> Result<(Pipe, Welcome), FailedAddress> {
        let (pipe, welcome) =
            self.handshake_at(address, channel).await.map_err(|error| self.starting(error))?;
        self.require_expected_server(address, &welcome)?;
        if *self.user.get_or_init(|| welcome.uid) != welcome.uid {
            let text = format!("the service now identifies this client as uid {}", welcome.uid);
            return Err(Error::new(ErrorKind::NotPermitted, text).into());
        }
        self.server_list.learn(&welcome.members)?;
        if self.location == ServerLocation::Given && matches!(address, Address::Unix(_)) {
            self.server_list.set_near();
        }
        let reached = Reached { address: address.clone(), incarnation: welcome.incarnation, user: pipe.user };
        *lock(&self.reached) = Some(reached);
        Ok((pipe, welcome))
    }

    /// Fails unless the expected server accepted the connection.
    fn require_expected_server(&self, address: &Address, welcome: &Welcome) -> Result<(), FailedAddress> {
        let expected = *self.server.get_or_init(|| welcome.server);
        if expected != welcome.server {
            let text = format!(
                "server {} of this service answers at this address: check the server list",
                welcome.server
            );
            return Err(FailedAddress::other_server(text));
        }
        let by_socket = matches!(address, Address::Unix(_));
        let is_it = match (self.location, &self.config.server) {
            // Over TCP, a listed server proves by its key that it belongs to this service.
            (ServerLocation::Listed, _) => {
                !by_socket || self.server_list.agrees_on(expected, &welcome.members)
            }
            (ServerLocation::Given, Some(member)) => {
                !by_socket || welcome.members.get(expected).is_some_and(|own| own.address == member.address)
            }
            (ServerLocation::Given, None) => !self.has_other_store(address, welcome),
        };
        match is_it {
            true => Ok(()),
            false => {
                let text = format!(
                    "server {expected} of another service answers at this address: check the server list"
                );
                Err(FailedAddress::other_server(text))
            }
        }
    }

    /// Whether the server at an address has another store than the server that answered at another address before. A
    /// server at the same address may have a new store.
    fn has_other_store(&self, address: &Address, welcome: &Welcome) -> bool {
        let reached = lock(&self.reached);
        reached
            .as_ref()
            .is_some_and(|reached| reached.address != *address && reached.incarnation != welcome.incarnation)
    }

    /// A restarting server creates its socket first and then grants access to it, so access may be denied temporarily.
    fn starting(&self, error: Error) -> Error {
        match error.kind() == ErrorKind::AccessDenied && self.user.get().is_some() {
            true => Error::new(ErrorKind::Unreachable, error.to_string()),
            false => error,
        }
    }

    /// Connects with the server list of this client. If the server refuses it as stale and has a newer list, connects
    /// with that.
    async fn handshake_at(&self, address: &Address, channel: Channel) -> Result<(Pipe, Welcome)> {
        let known = self.server_list.members();
        let roster = known.as_deref().map(Roster::from);
        let request = ConnectionRequest { client: self.client, channel, is_known: self.user.get().is_some() };
        match (connect_authenticated(&self.config, address, request, roster).await, known) {
            (Err(refusal), Some(known)) if refusal.kind() == ErrorKind::Stale => {
                let (pipe, welcome) = connect_authenticated(&self.config, address, request, None).await?;
                match welcome.members.epoch() > known.epoch() {
                    true => Ok((pipe, welcome)),
                    false => Err(Error::new(ErrorKind::Protocol, refusal.to_string())),
                }
            }
            (entered, _) => entered,
        }
    }

    /// Combines the errors of all addresses into one, of the kind that helps most. If a server that answered before, or
    /// that the list names, is unreachable, it may be starting: then an address that denies access to this user is not
    /// decisive.
    fn combined_error(&self, failed: &[FailedAddress]) -> Error {
        let is_away =
            |one: &&FailedAddress| !one.is_other_server && one.error.kind() == ErrorKind::Unreachable;
        let decides =
            |one: &&FailedAddress| !one.is_other_server && one.error.kind() != ErrorKind::Unreachable;
        let (away, decisive) = (failed.iter().find(is_away), failed.iter().find(decides));
        let may_start = self.location == ServerLocation::Listed || self.user.get().is_some();
        let is_closed = |one: &&FailedAddress| {
            matches!(one.error.kind(), ErrorKind::Unauthenticated | ErrorKind::AccessDenied)
        };
        let reported = match away {
            Some(_) if may_start => decisive.filter(|one| !is_closed(one)).or(away),
            _ => decisive.or(away),
        };
        let kind = reported.map_or(ErrorKind::Protocol, |one| one.error.kind());
        let texts: Vec<String> = failed.iter().map(|one| one.error.to_string()).collect();
        Error::new(kind, texts.join("; "))
    }

    /// Prefixes an error with the name of the service, or of the server if there are several.
    pub(crate) fn at_service(&self, error: Error) -> Error {
        let text = error.to_string();
        if text.starts_with("service ")
            || self.server().is_some_and(|server| text.starts_with(&format!("server {server} (")))
        {
            return error;
        }
        let listed = || self.candidate_addresses(Channel::Control).ok()?.into_iter().next();
        match self.reached_at().or_else(listed) {
            Some(address) => self.at(&address, error),
            None => error.within("service without a known address"),
        }
    }

    /// Prefixes an error with the name of the server at an address.
    fn at(&self, address: &Address, error: Error) -> Error {
        let cluster = self.server_list.members().is_some_and(|members| members.all().len() > 1);
        match self.server() {
            Some(server) if cluster => error.within(format_args!("server {server} ({address})")),
            _ => error.within(format_args!("service {address}")),
        }
    }
}
