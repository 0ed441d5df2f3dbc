//! Connecting to the service.

use crate::failure::{Failure, Outcome, without_numbers};
use crate::places::Surroundings;
use crate::settings::Settings;
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, Addresses, ClientConfig, Credential};
use forebay_model::{Error, ErrorKind, Member};
use forebay_server::beside;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;
use std::time::Duration;

/// Which service to use. By default the one in `forebay.toml`, or the one that runs on this machine.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Service")]
pub(crate) struct Service {
    /// Address of the service: unix:/path or tcp:host:port
    #[arg(long, value_name = "ADDR", env = "FOREBAY_SERVICE", hide_env_values = true)]
    pub(crate) service: Option<String>,
    /// The key file for TCP
    #[arg(long, value_name = "FILE", env = "FOREBAY_KEY", hide_env_values = true)]
    pub(crate) key: Option<PathBuf>,
    /// Settings to use instead of the forebay.toml in this directory, ~/.config/forebay or /etc/forebay
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

impl Service {
    /// Connects with the default client configuration.
    pub(crate) fn connect(&self) -> Outcome<Client> {
        self.connect_with(|_| {})
    }

    /// Connects with a changed client configuration.
    pub(crate) fn connect_with(&self, change: impl FnOnce(&mut ClientConfig)) -> Outcome<Client> {
        let mut config = self.resolve()?;
        change(&mut config);
        let addresses = config.addresses.clone();
        Client::connect(config).map_err(|error| unreached(&addresses, &error))
    }

    /// Connects to one server of the service, by its Unix socket if it is on this machine.
    pub(crate) fn connect_member(&self, member: &Member) -> Outcome<Client> {
        let listed: Address =
            member.address.parse().map_err(|error: Error| Failure::Failed(error.to_string()))?;
        self.connect_with(|config| {
            let is_near = config.addresses.iter().any(|address| matches!(address, Address::Unix(_)));
            let socket = member.socket.as_ref().filter(|path| is_near && Path::new(path).exists());
            config.addresses = Addresses::from(listed).after(socket.map(|path| Address::Unix(path.into())));
            config.server = Some(member.clone());
        })
    }

    /// Names the key file and the settings of this process to a command that connects to the same service, maybe from
    /// another directory.
    pub(crate) fn pass_on(&self, command: &mut Command) -> Outcome {
        let settings = match &self.config {
            Some(path) => Some(path.clone()),
            None => Settings::load(None)?.path,
        };
        for (flag, path) in [("--key", &self.key), ("--config", &settings)] {
            if let Some(path) = path {
                command.arg(flag).arg(absolute(path).map_err(|error| Failure::local("use", path, &error))?);
            }
        }
        Ok(())
    }

    /// Determines the address and the key.
    pub(crate) fn resolve(&self) -> Outcome<ClientConfig> {
        let settings = Settings::load(self.config.as_deref())?;
        let here = Surroundings::here();
        let named =
            self.service.as_ref().filter(|name| !name.is_empty()).or(settings.client.service.as_ref());
        let addresses: Addresses = match named {
            Some(name) => name.parse().map_err(|error: Error| Failure::Usage(error.to_string()))?,
            None => Address::Unix(default_socket(&here)).into(),
        };
        let mut config = ClientConfig::new(addresses);
        config.security = settings.client.transport.security;
        config.request_timeout = settings.client.times.request;
        // Also where the first server is reached by a Unix socket: the others may be on other hosts.
        let own = || here.store().map(|store| beside(&store, "key")).filter(|key| key.is_file());
        let named = self.key.clone().filter(|path| !path.as_os_str().is_empty());
        config.credential =
            named.or(settings.client.key).or_else(own).map_or(Credential::None, Credential::File);
        Ok(config)
    }
}

/// Connect timeout.
const PATIENCE: Duration = Duration::from_secs(5);

/// Fails in one line unless something listens at one of the addresses: a program that is started there would only find errors.
pub(crate) fn require_listener(addresses: &Addresses) -> Outcome {
    let mut tried = Vec::new();
    for address in addresses.iter() {
        match listens(address) {
            Ok(()) => return Ok(()),
            Err(error) => {
                let why = without_numbers(&error.to_string()).to_lowercase();
                tried.push(format!("{address} ({why})"));
            }
        }
    }
    Err(Failure::Failed(format!(
        "no service at {}: start one with \"forebay up --detach\", or name another with --service",
        tried.join(" or ")
    )))
}

fn listens(address: &Address) -> io::Result<()> {
    match address {
        Address::Unix(path) => UnixStream::connect(path).map(drop),
        Address::Tcp { host, port } => {
            let mut found = (host.as_str(), *port).to_socket_addrs()?;
            let first = found.next().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
            TcpStream::connect_timeout(&first, PATIENCE).map(drop)
        }
    }
}

/// The first candidate path at which a socket exists, or else the first candidate.
fn default_socket(here: &Surroundings) -> PathBuf {
    let places = here.sockets();
    let expected = places.first().cloned();
    places
        .into_iter()
        .find(|path| path.exists())
        .or(expected)
        .expect("the machine's socket is always a candidate")
}

fn unreached(addresses: &Addresses, error: &Error) -> Failure {
    let text = error.to_string();
    // What was tried is named once.
    let text = text.strip_prefix(&format!("service {addresses}: ")).unwrap_or(&text);
    let text = text.strip_prefix("cannot connect: ").unwrap_or(text);
    let text = text.strip_suffix("; is the service up?").unwrap_or(text);
    let text = match (text.contains(" (os error "), addresses.iter().count()) {
        (true, 1) => without_numbers(text).to_lowercase(),
        (_, 1) => text.to_owned(),
        _ => without_numbers(text).replace("cannot connect: ", "").replace("; is the service up?", ""),
    };
    let advice = match error.kind() {
        ErrorKind::Unreachable => ": start one with \"forebay up\", or name another with --service",
        ErrorKind::Unauthenticated => ": name the service's key file with --key",
        _ => "",
    };
    Failure::Failed(format!("cannot reach the service at {addresses}: {text}{advice}"))
}
