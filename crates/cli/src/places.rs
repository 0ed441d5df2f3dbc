//! Default paths.

use forebay_server::beside;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The socket of a service that root runs for all users.
const SYSTEM_SOCKET: &str = "/run/forebay.sock";
const SYSTEM_STORE: &str = "/var/lib/forebay/store";

/// The environment that the defaults depend on.
pub(crate) struct Surroundings {
    is_root: bool,
    uid: u32,
    home: Option<PathBuf>,
    state: Option<PathBuf>,
    settings: Option<PathBuf>,
    runtime: Option<PathBuf>,
}

impl Surroundings {
    /// The environment of this process.
    pub(crate) fn here() -> Surroundings {
        let user = rustix::process::geteuid();
        Surroundings::new(user.as_raw(), |name| std::env::var_os(name))
    }

    fn new(uid: u32, get: impl Fn(&str) -> Option<OsString>) -> Surroundings {
        // The XDG specification requires relative paths to be ignored.
        let dir = |name| get(name).map(PathBuf::from).filter(|path| path.is_absolute());
        Surroundings {
            is_root: uid == 0,
            uid,
            home: dir("HOME"),
            state: dir("XDG_STATE_HOME"),
            settings: dir("XDG_CONFIG_HOME"),
            runtime: dir("XDG_RUNTIME_DIR"),
        }
    }

    /// The store of a server; `None` if no home directory is known.
    pub(crate) fn store(&self) -> Option<PathBuf> {
        if self.is_root {
            return Some(SYSTEM_STORE.into());
        }
        let state = self.state.clone().or_else(|| Some(self.home.as_ref()?.join(".local/state")));
        Some(state?.join("forebay/store"))
    }

    /// The socket of a server with this store.
    pub(crate) fn socket(&self, store: &Path) -> PathBuf {
        if self.is_root {
            return SYSTEM_SOCKET.into();
        }
        match &self.runtime {
            Some(dir) if dir.is_dir() => dir.join("forebay.sock"),
            _ => beside(store, "sock"),
        }
    }

    /// Candidate sockets of a service, best first: the user's own (this session, then other sessions), then the
    /// machine's.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let mut places = Vec::new();
        if !self.is_root {
            places.extend(self.runtime.as_ref().map(|dir| dir.join("forebay.sock")));
            places.push(format!("/run/user/{}/forebay.sock", self.uid).into());
            places.extend(self.store().map(|store| beside(&store, "sock")));
        }
        places.push(SYSTEM_SOCKET.into());
        places
    }

    /// Candidate paths of forebay.toml, best first.
    pub(crate) fn settings(&self) -> Vec<PathBuf> {
        let own = self.settings.clone().or_else(|| Some(self.home.as_ref()?.join(".config")));
        let dirs = own.into_iter().chain([PathBuf::from("/etc")]);
        dirs.map(|dir| dir.join("forebay/forebay.toml")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn surroundings(uid: u32, environment: &str) -> Surroundings {
        Surroundings::new(uid, |name| {
            let mut pairs = environment.split(' ').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value.into())
        })
    }

    #[test]
    fn defaults() {
        for (uid, environment, store, socket, settings) in [
            (
                0,
                "HOME=/superuser XDG_RUNTIME_DIR=/",
                "/var/lib/forebay/store",
                "/run/forebay.sock",
                "/superuser/.config/forebay/forebay.toml",
            ),
            (
                7,
                "HOME=/home/a",
                "/home/a/.local/state/forebay/store",
                "/home/a/.local/state/forebay/store.sock",
                "/home/a/.config/forebay/forebay.toml",
            ),
            (
                7,
                "HOME=/home/a XDG_STATE_HOME=/s XDG_CONFIG_HOME=/c XDG_RUNTIME_DIR=/",
                "/s/forebay/store",
                "/forebay.sock",
                "/c/forebay/forebay.toml",
            ),
            (
                7,
                "HOME=/home/a XDG_STATE_HOME=s XDG_RUNTIME_DIR=/nowhere/at/all",
                "/home/a/.local/state/forebay/store",
                "/home/a/.local/state/forebay/store.sock",
                "/home/a/.config/forebay/forebay.toml",
            ),
        ] {
            let here = surroundings(uid, environment);
            let found = here.store().unwrap();
            assert_eq!(found, Path::new(store), "{environment}");
            assert_eq!(here.socket(&found), Path::new(socket), "{environment}");
            assert_eq!(here.settings()[0], Path::new(settings), "{environment}");
            assert!(
                here.sockets().contains(&here.socket(&found)),
                "clients look for the socket where servers create it"
            );
            assert_eq!(here.sockets().last().unwrap(), Path::new("/run/forebay.sock"));
        }
        assert_eq!(surroundings(7, "").store(), None);
    }
}
