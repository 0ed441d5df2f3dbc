//! The way to the service.

use crate::failure::{Failure, Outcome, without_numbers};
use crate::places::Surroundings;
use crate::settings::Settings;
use clap::Args;
use forebay_client::blocking::Client;
use forebay_client::{Address, ClientConfig, Credential};
use forebay_model::{Error, ErrorKind, Member};
use forebay_server::beside;
use std::path::{Path, PathBuf};

/// Which service is meant. Without a word: the one of `forebay.toml`, or the one that runs on this machine.
#[derive(Args, Clone, Default)]
#[command(next_help_heading = "Service")]
pub(crate) struct Service {
    /// Where it listens: unix:/path or tcp:host:port
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
    /// Connects.
    pub(crate) fn connect(&self) -> Outcome<Client> {
        self.connect_with(|_| {})
    }

    /// Connects with something else than the defaults.
    pub(crate) fn connect_with(&self, change: impl FnOnce(&mut ClientConfig)) -> Outcome<Client> {
        let mut config = self.resolve()?;
        change(&mut config);
        let address = config.address.clone();
        Client::connect(config).map_err(|error| unreached(&address, &error))
    }

    /// Connects to one server of the service, as its list names it: by its socket where that is on this machine.
    pub(crate) fn connect_member(&self, member: &Member) -> Outcome<Client> {
        let socket = member
            .socket
            .as_ref()
            .filter(|path| self.is_local().unwrap_or(false) && Path::new(path).exists());
        let named = socket.map_or_else(|| member.address.clone(), |path| format!("unix:{path}"));
        Service { service: Some(named), ..self.clone() }.connect()
    }

    /// Whether the service can only be on this machine.
    pub(crate) fn is_local(&self) -> Outcome<bool> {
        Ok(matches!(self.resolve()?.address, Address::Unix(_)))
    }

    /// Decides where to connect, and with which key.
    pub(crate) fn resolve(&self) -> Outcome<ClientConfig> {
        let settings = Settings::load(self.config.as_deref())?;
        let here = Surroundings::here();
        let named =
            self.service.as_ref().filter(|name| !name.is_empty()).or(settings.client.service.as_ref());
        let address = match named {
            Some(name) => name.parse().map_err(|error: Error| Failure::Usage(error.to_string()))?,
            None => Address::Unix(default_socket(&here)),
        };
        let mut config = ClientConfig::new(address);
        if matches!(config.address, Address::Tcp { .. }) {
            let own = || here.store().map(|store| beside(&store, "key")).filter(|key| key.is_file());
            let named = self.key.clone().filter(|path| !path.as_os_str().is_empty());
            config.credential =
                named.or(settings.client.key).or_else(own).map_or(Credential::None, Credential::File);
        }
        Ok(config)
    }
}

/// The first place where a socket is, or else where one would be expected.
fn default_socket(here: &Surroundings) -> PathBuf {
    let places = here.sockets();
    let expected = places.first().cloned();
    places
        .into_iter()
        .find(|path| path.exists())
        .or(expected)
        .expect("the machine's socket is always a place")
}

fn unreached(address: &Address, error: &Error) -> Failure {
    let text = error.to_string();
    let text = text.strip_prefix(&format!("service {address}: ")).unwrap_or(&text);
    let text = text.strip_prefix("cannot connect: ").unwrap_or(text);
    let text = text.strip_suffix("; is the service up?").unwrap_or(text);
    let text = match text.contains(" (os error ") {
        true => without_numbers(text).to_lowercase(),
        false => text.to_owned(),
    };
    let advice = match error.kind() {
        ErrorKind::Unreachable => ": start one with \"forebay up\", or name another with --service",
        ErrorKind::Unauthenticated => ": name the service's key file with --key",
        _ => "",
    };
    Failure::Failed(format!("cannot reach the service at {address}: {text}{advice}"))
}
