//! A server in the background: its own process and session, with a log beside its store.

use crate::failure::{Failure, Outcome};
use crate::view::Started;
use forebay_server::{Config, Medium, beside};
use rustix::fs::OFlags;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A log larger than this is rotated at the next start.
const LONG_LOG: u64 = 16 << 20;

/// Starts a server and waits until it serves.
pub(crate) fn start(config: &Config, servers: Option<u16>, settings: Option<&Path>) -> Outcome<Started> {
    let path = beside(&config.store, "log");
    let mut log = open_log(&path)?;
    let begin = log.seek(SeekFrom::End(0)).map_err(|error| Failure::local("read", &path, &error))?;
    let mut child = spawn(config, servers, settings, log)?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        // A process that fails prints nothing to standard output; its log has the reason.
        let _ = BufReader::new(stdout).read_line(&mut line);
    }
    match serde_json::from_str::<Started>(&line) {
        Ok(started) => Ok(started.with_log(path)),
        Err(_) => Err(died(&mut child, &path, begin)),
    }
}

/// Opens a log for appending.
pub(crate) fn open_log(path: &Path) -> Outcome<File> {
    let failed = |error| Failure::local("open", path, &error);
    if let Some(dir) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.map_err(|error| Failure::local("make", dir, &error))?;
    }
    if path.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() > LONG_LOG) {
        std::fs::rename(path, path.with_added_extension("old")).map_err(failed)?;
    }
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("flags of open");
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600).custom_flags(flags);
    let log = match options.open(path) {
        Err(error) if path.is_symlink() => return Err(planted(path, &error.to_string())),
        log => log.map_err(failed)?,
    };
    let (found, me) = (log.metadata().map_err(failed)?, rustix::process::geteuid().as_raw());
    match found.is_file() && found.uid() == me && found.nlink() == 1 {
        true => Ok(log),
        false => Err(planted(path, &format!("it is not a file of user {me} alone"))),
    }
}

/// Another user may have put this file where the log should be, to have something else written to.
fn planted(path: &Path, why: &str) -> Failure {
    Failure::Failed(format!("cannot write the log to {}: {why}: remove it", path.display()))
}

fn spawn(config: &Config, servers: Option<u16>, settings: Option<&Path>, log: File) -> Outcome<Child> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    let mut command = Command::new(&program);
    command.arg("up").arg("--background").arg("--store").arg(&config.store);
    command.arg("--socket").arg(config.socket_path()).arg("--key").arg(config.key_path());
    // The new process divides the capacity between its servers again.
    let capacity = config.capacity.0 * u64::from(servers.unwrap_or(1));
    command.arg("--capacity").arg(capacity.to_string());
    command.arg(if config.medium == Medium::Disk { "--disk" } else { "--memory" });
    if let Some(backend) = &config.backend {
        command.arg("--backend").arg(backend);
    }
    if config.tcp {
        command.arg("--listen").arg(config.listen.to_string());
    }
    command.arg("--policy").arg(config.policy.to_string()).arg("--scheduler").arg(config.scheduler.name());
    command.arg("--lambda").arg(config.lambda.as_millis().to_string());
    match servers {
        Some(servers) => command.arg("--shards").arg(servers.to_string()),
        None => command.arg("--server").arg(config.server.0.to_string()),
    };
    if let Some(rate) = config.device_rate {
        command.arg("--device-rate").arg(rate.0.to_string());
    }
    for peer in &config.peers {
        command.arg("--peer").arg(peer);
    }
    if let Some(settings) = settings {
        command.arg("--config").arg(settings);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
    command.spawn().map_err(|error| Failure::local("start", &program, &error))
}

/// The reason why a background process ended, from its log.
pub(crate) fn died(child: &mut Child, log: &Path, begin: u64) -> Failure {
    let end = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    let why = last_error(log, begin).unwrap_or_else(|| format!("the process ended ({end})"));
    Failure::Failed(format!("{why} (its log is {})", log.display()))
}

/// The last error in the log beyond offset `begin`.
fn last_error(log: &Path, begin: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(begin)).ok()?;
    let mut text = String::new();
    file.take(1 << 20).read_to_string(&mut text).ok()?;
    text.lines().rev().find_map(|line| line.strip_prefix("forebay: ")).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{chown, symlink};

    #[test]
    fn log_is_appended_to_no_file_that_another_user_planted() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        for text in ["one", "two"] {
            open_log(&at("log")).expect("a log").write_all(text.as_bytes()).expect("written");
        }
        assert_eq!(std::fs::read(at("log")).expect("the log"), b"onetwo");
        std::fs::write(at("precious"), "x").expect("a file");
        symlink(at("precious"), at("link")).expect("a link");
        symlink(at("nothing"), at("dangling")).expect("a link");
        std::fs::hard_link(at("precious"), at("hard")).expect("a link");
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .expect("a pipe");
        for name in ["link", "dangling", "hard", "pipe"] {
            assert!(open_log(&at(name)).is_err(), "{name}");
        }
        assert!(!at("nothing").exists());
        if rustix::process::geteuid().is_root() {
            chown(at("log"), Some(4711), None).expect("another owner");
            assert!(open_log(&at("log")).is_err(), "a file of another user");
        }
    }
}
