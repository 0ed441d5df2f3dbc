//! `mount`, `umount`: the service as a mounted directory.
//!
//! `mount -t forebay ADDR DIR` and fstab work too, when a link named `mount.forebay` in `/sbin` points to this
//! program;
//! a link named `mount.fuse.forebay` serves the type that the kernel shows.

use crate::connect::Service;
use crate::exec::mark_mounted;
use crate::failure::{Failure, Outcome};
use crate::intercept::{Scaffold, announce, wait_until_unused};
use crate::places::Surroundings;
use crate::{detach, output, signals, up};
use clap::Args;
use forebay_fuse::{FirstUse, Mounted, Options, Stopper, unmount};
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
    /// The directory, optionally preceded by the service's address, as in fstab
    #[arg(value_name = "[ADDR] DIR", required = true, num_args = 1..=2)]
    place: Vec<OsString>,
    /// Comma-separated options: allow_other, default_permissions, ro, noexec, suid, dev, sync, dirsync
    #[arg(short = 'o', value_name = "LIST")]
    options: Vec<String>,
    /// Stay in the foreground
    #[arg(short, long)]
    foreground: bool,
    /// Internal: this is the background process
    #[arg(long, hide = true)]
    background: bool,
    /// Internal: unmount when no program in this registry uses the mount
    #[arg(long, value_name = "FILE", hide = true)]
    shared: Option<PathBuf>,
    /// Internal: how many directories were made for the mount, and are removed after it
    #[arg(long, value_name = "N", hide = true, default_value_t = 0)]
    made: usize,
    #[command(flatten)]
    service: Service,
}

/// Unmount a service.
#[derive(Args, Clone)]
pub(crate) struct Umount {
    /// Mount point
    dir: PathBuf,
    /// Unmount even if in use: the mount disappears now and ends with its last user
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
            true => self.serve(&dir, options),
            false => self.detach(&dir),
        }
    }

    /// Mounts in this process, until it is unmounted or the process is signaled.
    fn serve(&self, dir: &Path, options: Options) -> Outcome {
        if self.background {
            // Fails only for the leader of a process group, which needs no new session.
            let _ = setsid();
            std::env::set_current_dir("/")
                .map_err(|error| Failure::local("enter", Path::new("/"), &error))?;
        }
        up::keep_log(self.background);
        let used = |error| Failure::local("use", dir, &error);
        let scaffold =
            self.shared.as_ref().map(|_| Scaffold::hold(dir, self.made)).transpose().map_err(used)?;
        let (service, dir) = (self.service.resolve()?, dir.to_owned());
        let on_first_use = self.shared.as_ref().map(|_| Box::new(mark_mounted) as FirstUse);
        let mounted = forebay_fuse::Mount { service, dir, options, on_first_use }.start()?;
        unmount_on_signal(&mounted)?;
        if let Some(registry) = &self.shared {
            announce(registry).map_err(|error| Failure::local("write", registry, &error))?;
            unmount_unused(registry.clone(), mounted.stopper());
        }
        if self.background {
            output::text(READY)?;
        }
        let served = mounted.serve();
        scaffold.into_iter().for_each(Scaffold::remove);
        Ok(served?)
    }

    /// Mounts in a background process and waits until the mount is ready.
    fn detach(&self, dir: &Path) -> Outcome {
        let state = Surroundings::here().store().unwrap_or_else(|| std::env::temp_dir().join("forebay"));
        let path = state.with_file_name("mount.log");
        let mut log = detach::open_log(&path)?;
        let begin = log.seek(SeekFrom::End(0)).map_err(|error| Failure::local("read", &path, &error))?;
        let mut child = self
            .again(dir)?
            .stderr(log)
            .spawn()
            .map_err(|error| Failure::Failed(format!("cannot start the background process: {error}")))?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            // A process that fails prints nothing to standard output; its log has the reason.
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
        let service = self.service.resolve()?.addresses;
        let mut command = Command::new(program);
        command.arg("mount").arg("--background").arg("--service").arg(service.to_string());
        self.service.pass_on(&mut command)?;
        for list in &self.options {
            command.arg("-o").arg(list);
        }
        if let Some(registry) = &self.shared {
            command.arg("--shared").arg(registry).arg("--made").arg(self.made.to_string());
        }
        command.arg("--").arg(dir).stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }
}

fn unmount_on_signal(mounted: &Mounted) -> Outcome {
    let (stopper, mut signaled) = (mounted.stopper(), false);
    signals::on_stop(move || {
        if signaled {
            // Acknowledged data is safe; files that are still open on the mount return errors from now on.
            std::process::exit(130);
        }
        signaled = true;
        match stopper.stop() {
            Ok(false) => {}
            Ok(true) => output::note(format_args!(
                "the mount is in use: it is detached now and ends with its last user (or with a second signal)"
            )),
            Err(error) => output::note(format_args!("{error}")),
        }
    })
}

/// Unmounts when no program uses the mount any more.
fn unmount_unused(registry: PathBuf, stopper: Stopper) {
    std::thread::spawn(move || {
        let stop = || match stopper.stop() {
            Ok(_) => {}
            Err(error) => output::note(format_args!("{error}")),
        };
        if let Err(error) = wait_until_unused(&registry, stop) {
            output::note(format_args!("cannot watch the programs of this mount: {error}"));
        }
    });
}

/// The arguments of this program. Translates a call by the mount helper's name, `mount.forebay ADDR DIR -o
/// LIST`, and drops flags that are meant for other helpers.
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
    fn mount_helper_arguments_are_translated() {
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
