//! The session with the kernel.

use crate::dispatcher::{Dispatcher, MOST_THREADS, READERS};
use crate::options::Options;
use crate::pages::answer_all;
use crate::speaker::Speaker;
use crate::unmount::unmount;
use crate::work::Serve;
use forebay_client::{Client, ClientConfig};
use forebay_model::{Error, ErrorKind, Result};
use fuser::{Config, Session, SessionACL};
use rustix::thread::{CapabilitySet, capabilities};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

const DEVICE: &str = "/dev/fuse";

/// A service to be mounted.
pub struct Mount {
    /// The service.
    pub service: ClientConfig,
    /// The mount point.
    pub dir: PathBuf,
    /// The mount options.
    pub options: Options,
    /// Called once, before the kernel learns of anything below the mount point.
    pub on_first_use: Option<FirstUse>,
}

/// What is done when a mount is used for the first time.
pub type FirstUse = Box<dyn Fn() + Send + Sync>;

/// A mounted service. Dropping it unmounts it.
pub struct Mounted {
    session: Session<Dispatcher>,
    place: Place,
    /// Runs the client; dropped after the session.
    runtime: Runtime,
}

/// A mount point; unmounts the service when dropped.
struct Place(Option<PathBuf>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            // It may be unmounted already.
            let _ = unmount(&dir, true);
        }
    }
}

/// Unmounts from any thread.
#[derive(Clone, Debug)]
pub struct Stopper {
    dir: PathBuf,
}

impl Mount {
    /// Connects to the service and mounts it. The kernel's requests wait until [`Mounted::serve`] serves them.
    pub fn start(self) -> Result<Mounted> {
        let dir = checked(&self.dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("mount")
            .max_blocking_threads(MOST_THREADS)
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start threads: {error}")))?;
        let source = self.service.addresses.to_string();
        let speaker = runtime.block_on(async {
            let client = Box::pin(Client::connect(self.service)).await?;
            Speaker::new(client).await
        })?;
        if self.options.allow_other && !speaker.is_for_all() {
            let text = "allow_other: only root and the owner of the service may mount it for others";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let specials = self.options.has_special_files();
        let (answers, receiver) = std::sync::mpsc::channel();
        let serve = Serve::new(speaker, specials, answers, runtime.handle().clone(), self.on_first_use);
        let session = session(Dispatcher::new(serve), &source, &dir, &self.options);
        let session = session.map_err(|error| cannot_mount(&dir, &error))?;
        let kernel = session.notifier();
        // Ends with the session, which owns the sender.
        let builder = std::thread::Builder::new().name("mount-pages".to_owned());
        builder
            .spawn(move || answer_all(&receiver, &kernel))
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start threads: {error}")))?;
        Ok(Mounted { session, place: Place(Some(dir)), runtime })
    }
}

/// Mounts, and negotiates with the kernel.
fn session(
    serve: Dispatcher,
    source: &str,
    dir: &Path,
    options: &Options,
) -> io::Result<Session<Dispatcher>> {
    let mut config = Config::default();
    config.mount_options = options.for_helper(source);
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(READERS);
    config.clone_fd = true;
    if !may_mount() {
        return Session::new(serve, dir, &config);
    }
    let device = mount_directly(source, dir, options)?;
    Session::from_fd(serve, device.into(), config.acl, config)
}

/// Whether the kernel lets this process mount: as root, or in a user namespace.
fn may_mount() -> bool {
    rustix::process::geteuid().is_root()
        || capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Mounts without the helper, which also allows to set the type of the file system.
fn mount_directly(source: &str, dir: &Path, options: &Options) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let others = if options.allow_other { ",allow_other" } else { "" };
    let checked = if options.default_permissions { ",default_permissions" } else { "" };
    let device_number = device.as_raw_fd();
    let data = format!("fd={device_number},rootmode=40000,user_id={uid},group_id={gid}{others}{checked}\0");
    let data = std::ffi::CStr::from_bytes_with_nul(data.as_bytes()).map_err(io::Error::other)?;
    rustix::mount::mount(source, dir, "fuse.forebay", options.flags(), data)?;
    Ok(device)
}

impl Mounted {
    /// A handle that ends [`Mounted::serve`] from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { dir: self.place.0.clone().unwrap_or_default() }
    }

    /// Serves the kernel until the service is unmounted, by any process.
    pub fn serve(self) -> Result<()> {
        let Mounted { session, mut place, runtime } = self;
        let served = session.run();
        drop(runtime);
        match served {
            Ok(()) => {
                place.0 = None;
                Ok(())
            }
            Err(error) => Err(Error::new(ErrorKind::Io, format!("the FUSE session failed: {error}"))),
        }
    }
}

impl Stopper {
    /// Unmounts the service. If it is in use, detaches it, and the mount ends with its last user; returns whether that
    /// is the case.
    pub fn stop(&self) -> Result<bool> {
        match unmount(&self.dir, false) {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Busy => unmount(&self.dir, true).map(|()| true),
            Err(error) => Err(error),
        }
    }
}

/// The canonical path of the directory, if it can be a mount point.
fn checked(dir: &Path) -> Result<PathBuf> {
    let failed = |error: io::Error| {
        let kind = match error.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, format!("cannot mount at {}: {error}", dir.display()))
    };
    let dir = dir.canonicalize().map_err(failed)?;
    match dir.is_dir() {
        true => Ok(dir),
        false => Err(Error::new(
            ErrorKind::NotDirectory,
            format!("cannot mount at {}: it is not a directory", dir.display()),
        )),
    }
}

fn cannot_mount(dir: &Path, error: &io::Error) -> Error {
    let advice = match error.kind() {
        io::ErrorKind::NotFound => ": is the kernel's fuse module loaded (/dev/fuse), and fuse3 installed?",
        io::ErrorKind::PermissionDenied => {
            ": do it as root, or install fuse3 (allow_other also needs user_allow_other in /etc/fuse.conf)"
        }
        _ => "",
    };
    Error::new(ErrorKind::Io, format!("cannot mount at {}: {error}{advice}", dir.display()))
}
