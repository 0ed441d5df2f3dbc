//! `key`: keys for users who connect over TCP.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::view::table;
use crate::{human, output};
use clap::{Args, Subcommand};
use forebay_client::{KeyCall, KeyReply, UserKey};
use forebay_model::{ServerId, Time, parse_time};
use forebay_wire::{ConnectionKey, Key};
use serde::Serialize;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Create a key with which one user may use the service over TCP, under that user's own identity
    Grant(Grant),
    /// Show the keys of users
    List(List),
    /// Revoke a key and disconnect the clients that use it
    Revoke(Revoke),
}

#[derive(Args)]
pub(crate) struct Grant {
    /// User name or uid, as known on the server's machine
    #[arg(value_name = "USER")]
    user: String,
    /// How long the key is valid: 90m, 12h, 30d or 4w; without this it does not expire
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// File to write the key to [default: USER.key]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct List {
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Revoke {
    /// Id of the key, or the beginning of the id
    #[arg(value_name = "KEY")]
    id: String,
    #[command(flatten)]
    service: Service,
}

impl Command {
    pub(crate) fn run(&self) -> Outcome {
        match self {
            Command::Grant(grant) => grant.run(),
            Command::List(list) => {
                let keys = known(&list.service)?;
                output::show(&Keys { keys: keys.iter().map(Row::new).collect() }, list.json)
            }
            Command::Revoke(revoke) => revoke.run(),
        }
    }
}

impl Grant {
    fn run(&self) -> Outcome {
        let validity = self.expires.as_deref().map(read_validity).transpose()?;
        let expires = validity.map(|validity| now().saturating_add(validity.as_secs()));
        let path = self.out.clone().unwrap_or_else(|| PathBuf::from(format!("{}.key", self.user)));
        // Create the file first: a key that cannot be stored is not created.
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|error| Failure::local("write the key to", &path, &error))?;
        let granted = self
            .service
            .connect()
            .and_then(|client| Ok(client.keys(KeyCall::Grant { user: self.user.clone(), expires })?));
        let (key, secret, missing) = match granted {
            Ok(KeyReply::Granted { key, secret, missing }) => (key, secret, missing),
            Ok(_) => return Err(discard_file(&path, unexpected_reply())),
            Err(failure) => return Err(discard_file(&path, failure)),
        };
        let text = ConnectionKey { id: key.id, secret: Key::new(secret) }.to_text();
        let about = format!("# Forebay: key of user {} (uid {}), {}\n", key.user, key.uid, ends(&key));
        let mut write = || {
            file.write_all(about.as_bytes())?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        };
        write().map_err(|error| Failure::local("write the key to", &path, &error))?;
        if rustix::process::geteuid().is_root() {
            // The key belongs to its user alone. fchown by descriptor: a writer of the directory may replace
            // the name.
            std::os::unix::fs::fchown(&file, Some(key.uid.0), Some(key.gid.0))
                .map_err(|error| Failure::local("give the user", &path, &error))?;
        }
        let (path, id) = (path.display(), key.id);
        output::text(format!("key {id} of user {} (uid {}), {}: {path}", key.user, key.uid, ends(&key)))?;
        unreached(&missing, "learn of the key")
    }
}

/// Removes the empty file of a key that was not created.
fn discard_file(path: &Path, failure: Failure) -> Failure {
    // The file is empty; a failure to remove it does not matter.
    let _ = std::fs::remove_file(path);
    failure
}

impl Revoke {
    fn run(&self) -> Outcome {
        let keys = known(&self.service)?;
        let mut found = keys.iter().filter(|key| key.id.to_string().starts_with(&self.id));
        let key = match (self.id.is_empty(), found.next(), found.next()) {
            (false, Some(key), None) => key,
            (false, Some(_), Some(_)) => {
                return Err(Failure::Usage(format!(
                    "several keys begin with \"{}\": write more of it",
                    self.id
                )));
            }
            _ => {
                let text = format!("no key begins with \"{}\": \"forebay key list\" shows all", self.id);
                return Err(Failure::Failed(text));
            }
        };
        match self.service.connect()?.keys(KeyCall::Revoke { id: key.id })? {
            KeyReply::Revoked { missing, .. } => unreached(&missing, "reject the key"),
            _ => Err(unexpected_reply()),
        }
    }
}

fn unreached(missing: &[ServerId], what: &str) -> Outcome {
    if missing.is_empty() {
        return Ok(());
    }
    let servers: Vec<String> = missing.iter().map(ServerId::to_string).collect();
    let servers = servers.join(", ");
    Err(Failure::Failed(format!(
        "servers {servers} do not answer: they {what} once the other servers reach them again"
    )))
}

fn unexpected_reply() -> Failure {
    Failure::Failed(
        "the service sent an unexpected reply: use the same version of forebay as its servers".to_owned(),
    )
}

fn known(service: &Service) -> Outcome<Vec<UserKey>> {
    match service.connect()?.keys(KeyCall::List)? {
        KeyReply::Keys(keys) => Ok(keys),
        _ => Err(unexpected_reply()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// How long a key is valid: `90m`, `12h`, `30d`, `4w`.
fn read_validity(text: &str) -> Outcome<Duration> {
    let wrong = || Failure::Usage(format!("\"{text}\" is no time: write 90m, 12h, 30d or 4w"));
    // A number without a unit may be meant in any.
    let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
    let validity = parse_time(text).ok().filter(|validity| has_unit && validity.as_secs() > 0);
    validity.ok_or_else(wrong)
}

fn date(seconds: u64) -> String {
    human::time(Time { secs: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 })
}

fn ends(key: &UserKey) -> String {
    key.expires
        .map_or_else(|| "good until it is revoked".to_owned(), |end| format!("good until {}", date(end)))
}

#[derive(Serialize)]
struct Keys {
    keys: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    id: String,
    user: String,
    uid: u32,
    made: String,
    expires: Option<String>,
    revoked: Option<String>,
}

impl Row {
    fn new(key: &UserKey) -> Row {
        Row {
            id: key.id.to_string(),
            user: key.user.clone(),
            uid: key.uid.0,
            made: date(key.made),
            expires: key.expires.map(date),
            revoked: key.revoked.map(date),
        }
    }
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.keys.is_empty() {
            return f.write_str("no keys of users: \"forebay key grant USER\" makes one");
        }
        let head = ["KEY", "USER", "UID", "MADE", "GOOD UNTIL"].map(str::to_owned);
        let rows = self.keys.iter().map(|row| {
            let end = match (&row.revoked, &row.expires) {
                (Some(when), _) => format!("revoked {when}"),
                (None, Some(end)) => end.clone(),
                (None, None) => "-".to_owned(),
            };
            [row.id.clone(), row.user.clone(), row.uid.to_string(), row.made.clone(), end]
        });
        table(f, "llrll", 0, &[head].into_iter().chain(rows).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in
            [("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("4w", 2_419_200), ("1s", 1)]
        {
            assert_eq!(read_validity(text).unwrap(), Duration::from_secs(seconds));
        }
        for wrong in ["", "d", "0d", "-1d", "12", "1y", "1.5h", "99999999999999999w", "é"] {
            assert!(read_validity(wrong).is_err(), "{wrong}");
        }
    }
}
