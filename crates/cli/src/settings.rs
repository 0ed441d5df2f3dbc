//! `forebay.toml`: the table `[server]` configures `up`, the table `[client]` all other commands.

use crate::failure::{Failure, Outcome};
use crate::places::Surroundings;
use forebay_server::{ClientTimes, Config, TransportSettings};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The contents of the file.
#[derive(Default)]
pub(crate) struct Settings {
    /// The path of the file, if there is one.
    pub(crate) path: Option<PathBuf>,
    pub(crate) client: ClientSettings,
    pub(crate) server: Config,
    /// Keys of `[server]` that the file sets.
    given: BTreeSet<String>,
}

/// How to reach the service.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ClientSettings {
    /// Addresses of the service, separated by commas and tried in turn: `unix:/path` or `tcp:host:port`. By default the
    /// service on this machine.
    pub(crate) service: Option<String>,
    /// The key file for TCP: the service's, or one that `forebay key grant` has written.
    pub(crate) key: Option<PathBuf>,
    /// Security of TCP connections.
    pub(crate) transport: TransportSettings,
    /// Timeouts.
    pub(crate) times: ClientTimes,
}

/// The tables of the file.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Tables {
    client: ClientSettings,
    server: Config,
}

impl Settings {
    /// Reads the named file, or else the first one in the default places, or else none.
    pub(crate) fn load(named: Option<&Path>) -> Outcome<Settings> {
        let path = match named {
            Some(path) => Some(path.to_owned()),
            None => find()?,
        };
        let Some(path) = path else {
            return Ok(Settings::default());
        };
        let text = std::fs::read_to_string(&path).map_err(|error| Failure::local("read", &path, &error))?;
        Settings::read(&path, &text)
    }

    fn read(path: &Path, text: &str) -> Outcome<Settings> {
        let wrong = |error: toml::de::Error| {
            let line = error.span().map_or(1, |span| text[..span.start].matches('\n').count() + 1);
            if error.message().contains("^") {
                return Failure::Pointed(format!("{} line {line}: {}", path.display(), error.message()));
            }
            let what = error.message().replace("unknown field", "unknown key").replace('\n', " ");
            Failure::Usage(format!("{} line {line}: {what}: correct it there", path.display()))
        };
        let Tables { client, server } = toml::from_str(text).map_err(wrong)?;
        if client.times.request.is_zero() {
            let text =
                format!("{}: client.times.request is zero: no request could be answered", path.display());
            return Err(Failure::Usage(text));
        }
        let raw: toml::Table = toml::from_str(text).map_err(wrong)?;
        let given = raw.get("server").and_then(toml::Value::as_table);
        let given = given.map(|table| table.keys().cloned().collect()).unwrap_or_default();
        let mut settings = Settings { path: Some(path.to_owned()), client, server, given };
        settings.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(settings)
    }

    /// Relative paths in the file are relative to the file's directory.
    fn resolve(&mut self, dir: &Path) {
        let server = &mut self.server;
        let paths = [
            Some(&mut server.store),
            server.socket.as_mut(),
            server.key.as_mut(),
            server.drain.topology.as_mut(),
            self.client.key.as_mut(),
        ];
        for path in paths.into_iter().flatten() {
            *path = dir.join(&path);
        }
    }

    /// Whether the file sets this key in `[server]`.
    pub(crate) fn gives(&self, key: &str) -> bool {
        self.given.contains(key)
    }
}

fn find() -> Outcome<Option<PathBuf>> {
    let here = PathBuf::from("forebay.toml");
    if let Ok(meta) = here.metadata() {
        let me = rustix::process::geteuid().as_raw();
        // Ignore a file of another user: it would send a user who works in that directory to the other user's
        // service.
        if meta.uid() != me && meta.uid() != 0 {
            return Err(Failure::Failed(format!(
                "forebay.toml in this directory belongs to user {}: name it with --config to use it anyway",
                meta.uid()
            )));
        }
        return Ok(Some(here));
    }
    Ok(Surroundings::here().settings().into_iter().find(|path| path.is_file()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_client::Security;
    use forebay_model::Bytes;

    #[test]
    fn settings_file_is_read() {
        let text = "[client]\nservice = \"unix:/run/x\"\nkey = \"k\"\n\n[server]\ncapacity = \"4GiB\"\nstore = \"s\"\n\
                    [server.limits]\nturns = 3\n[server.transport]\nsecurity = \"authenticate\"\n\
                    [client.transport]\nsecurity = \"encrypt\"\n[client.times]\nrequest = \"5s\"\n";
        let settings = Settings::read(Path::new("/etc/forebay/forebay.toml"), text).unwrap();
        assert_eq!(settings.client.service.as_deref(), Some("unix:/run/x"));
        assert_eq!(settings.client.key.as_deref(), Some(Path::new("/etc/forebay/k")));
        assert_eq!(settings.server.capacity, Bytes::mib(4096));
        assert_eq!(settings.server.store, Path::new("/etc/forebay/s"));
        assert_eq!(settings.server.limits.turns, 3);
        assert_eq!(settings.server.transport.security, Some(Security::Authenticate));
        assert_eq!(settings.client.transport.security, Some(Security::Encrypt));
        assert_eq!(settings.client.times.request.as_secs(), 5);
        assert!(settings.gives("capacity") && settings.gives("limits") && !settings.gives("socket"));
    }

    #[test]
    fn errors_name_file_line_and_key() {
        for (text, expected) in [
            ("[server]\n\ncapacty = 1\n", "f.toml line 3: unknown key `capacty`"),
            ("[sever]\n", "f.toml line 1: unknown key `sever`"),
            ("[server.limits]\nturn = 1\n", "f.toml line 2: unknown key `turn`"),
            ("[server]\ncapacity = \"much\"\n", "line 2: \"much\" is not a size"),
            (
                "[server.transport]\nsecurity = \"tls\"\n",
                "line 2: unknown variant `tls`, expected one of `none`",
            ),
            ("[server\n", "line 1: "),
            ("[client.times]\nrequest = 0\n", "f.toml: client.times.request is zero"),
            ("[client]\nservice = 3\n", "line 2: invalid type"),
        ] {
            let failure = Settings::read(Path::new("f.toml"), text).err().expect("refused");
            let shown = failure.text().unwrap();
            assert!(shown.contains(expected), "{shown}: expected {expected}");
        }
    }
}
