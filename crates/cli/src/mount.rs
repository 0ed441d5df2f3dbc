//! `mount`, `umount`: the service as an ordinary directory.
//!
//! Also `mount -t forebay ADDR DIR` and fstab, when a link named `mount.forebay` in `/sbin` leads to this program; with one
//! named `mount.fuse.forebay`, for the type that the kernel shows too.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::places::Surroundings;
use crate::{detach, output, signals, up};
use clap::Args;
use forebay_fuse::{Mounted, Options, unmount};
use rustix::process::setsid;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::path::{Path, PathBuf, absolute};
use std::process::{Command, Stdio};

const READY: &str = "mounted";
const HELPERS: [&str; 2] = ["mount.forebay", "mount.fuse.forebay"];

/// Mount the service at a directory.
#[derive(Args, Clone)]
pub(crate) struct Mount {
    /// The directory; in front of it the service's address, as in fstab
    #[arg(value_name = "[ADDR] DIR", required = true, num_args = 1..=2)]
    place: Vec<OsString>,
    /// Options between commas: allow_other, default_permissions, ro, noexec, suid, dev, sync, dirsync
    #[arg(short = 'o', value_name = "LIST")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// This is the process in the background
    #[arg(long, hide = true)]
    background: bool,
    #[command(flatten)]
    service: Service,
}

/// Unmount a service.
#[derive(Args, Clone)]
pub(crate) struct Umount {
    /// Where it is mounted
    dir: PathBuf,
    /// Even if it is in use: it disappears now, and ends with its last user
    #[arg(short, long)]
    lazy: bool,
}

impl Umount {
    pub(crate) fn run(self) -> Outcome {
        Ok(unmount(&self.dir, self.lazy)?)
    }
}

impl Mount {
    pub(crate) fn run(mut self) -> Outcome {
        let dir = self.place.pop().unwrap_or_default();
        if let Some(address) = self.place.pop() {
            self.service.service = Some(address.to_string_lossy().into_owned());
        }
        let dir = absolute(&dir).map_err(|error| Failure::local("use", Path::new(&dir), &error))?;
        let mut options = Options::default();
        for list in &self.options {
            options.add(list).map_err(|error| Failure::Usage(error.to_string()))?;
        }
        match self.foreground || self.background {
            true => self.serve(dir, options),
            false => self.detach(&dir),
        }
    }

    /// Mounts in this process, until somebody unmounts it or wants the process to stop.
    fn serve(&self, dir: PathBuf, options: Options) -> Outcome {
        if self.background {
            // Fails only for the leader of a group, who is in no need of a new session.
            let _ = setsid();
            std::env::set_current_dir("/")
                .map_err(|error| Failure::local("enter", Path::new("/"), &error))?;
        }
        up::keep_log(self.background);
        let mount = forebay_fuse::Mount { service: self.service.resolve()?, dir, options };
        let mounted = mount.start()?;
        unmount_on_signal(&mounted)?;
        if self.background {
            output::text(READY)?;
        }
        Ok(mounted.serve()?)
    }

    /// Mounts in a process of its own, and waits until it is done.
    fn detach(&self, dir: &Path) -> Outcome {
        let state = Surroundings::here().store().unwrap_or_else(|| std::env::temp_dir().join("forebay"));
        let path = state.with_file_name("mount.log");
        let mut log = detach::open_log(&path)?;
        let begin = log.seek(SeekFrom::End(0)).map_err(|error| Failure::local("read", &path, &error))?;
        let mut child = self
            .again(dir)?
            .stderr(log)
            .spawn()
            .map_err(|error| Failure::Failed(format!("cannot start this program once more: {error}")))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // A process that ends instead says nothing here, and why in its log.
            let _ = BufReader::new(stdout).read_line(&mut line);
        }
        match line.trim_end() == READY {
            true => Ok(()),
            false => Err(detach::died(&mut child, &path, begin)),
        }
    }

    fn again(&self, dir: &Path) -> Outcome<Command> {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let service = self.service.resolve()?.address;
        let mut command = Command::new(program);
        command.arg("mount").arg("--background").arg("--service").arg(service.to_string());
        for (flag, path) in [("--key", &self.service.key), ("--config", &self.service.config)] {
            if let Some(path) = path {
                let path = absolute(path).map_err(|error| Failure::local("use", path, &error))?;
                command.arg(flag).arg(path);
            }
        }
        for list in &self.options {
            command.arg("-o").arg(list);
        }
        command.arg("--").arg(dir).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }
}

fn unmount_on_signal(mounted: &Mounted) -> Outcome {
    let (stopper, mut asked) = (mounted.stopper(), false);
    signals::on_stop(move || {
        if asked {
            // Whatever was acknowledged is safe; what is still open there gives errors from now on.
            std::process::exit(130);
        }
        asked = true;
        match stopper.stop() {
            Ok(false) => {}
            Ok(true) => output::note(format_args!(
                "the mount is in use: it is out of sight now, and ends with its last user (or with a second signal)"
            )),
            Err(error) => output::note(format_args!("{error}")),
        }
    })
}

/// The arguments of this program, also when `mount` has called it by the name of a helper: `mount.forebay ADDR DIR -o
/// LIST` with flags that mean something to other helpers.
pub(crate) fn arguments(given: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given = given.peekable();
    let name = given.peek().and_then(|name| Path::new(name).file_name());
    if !name.is_some_and(|name| HELPERS.iter().any(|helper| name == OsStr::new(helper))) {
        return given.collect();
    }
    let mut arguments: Vec<OsString> = vec!["forebay".into(), "mount".into()];
    given.next();
    while let Some(argument) = given.next() {
        match argument.to_str() {
            Some("-n" | "-s" | "-v" | "-sn" | "-nv" | "-vn") => {}
            Some("-t" | "-N") => drop(given.next()),
            _ => arguments.push(argument),
        }
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_of_mount_is_understood() {
        for (given, expected) in [
            ("forebay ls -l", "forebay ls -l"),
            (
                "/sbin/mount.forebay unix:/s /mnt -n -o rw,allow_other",
                "forebay mount unix:/s /mnt -o rw,allow_other",
            ),
            ("/sbin/mount.fuse.forebay h:1 /mnt -s -o rw", "forebay mount h:1 /mnt -o rw"),
            ("mount.forebay h:1 /mnt -v -t forebay -o ro", "forebay mount h:1 /mnt -o ro"),
        ] {
            let found = arguments(given.split(' ').map(OsString::from));
            let expected: Vec<OsString> = expected.split(' ').map(OsString::from).collect();
            assert_eq!(found, expected);
        }
    }
}
