//! The session with the kernel.

use crate::options::Options;
use crate::speaker::Speaker;
use crate::unmount::unmount;
use crate::work::Serve;
use forebay_client::{Client, ClientConfig};
use forebay_model::{Error, ErrorKind, Result};
use fuser::{Config, Session, SessionACL};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// Requests of the kernel that are served at the same time.
const THREADS: usize = 8;
const DEVICE: &str = "/dev/fuse";

/// A service that is about to be mounted.
pub struct Mount {
    /// The service.
    pub service: ClientConfig,
    /// Where it is to appear.
    pub dir: PathBuf,
    /// How.
    pub options: Options,
}

/// A mounted service. Dropping it unmounts it.
pub struct Mounted {
    session: Session<Serve>,
    place: Place,
    /// Carries the client; ends after the session.
    runtime: Runtime,
}

/// Where a service is mounted; unmounts it when dropped.
struct Place(Option<PathBuf>);

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            // Whoever unmounted it before us did what we wanted.
            let _ = unmount(&dir, true);
        }
    }
}

/// Unmounts from anywhere.
#[derive(Clone, Debug)]
pub struct Stopper {
    dir: PathBuf,
}

impl Mount {
    /// Connects to the service and mounts it. From then on the kernel's requests wait to be served by
    /// [`Mounted::serve`].
    pub fn start(self) -> Result<Mounted> {
        let dir = checked(&self.dir)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("mount")
            .enable_all()
            .build()
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot start threads: {error}")))?;
        let source = self.service.address.to_string();
        let speaker = runtime.block_on(async {
            let client = Box::pin(Client::connect(self.service)).await?;
            Speaker::new(client).await
        })?;
        if self.options.allow_other && !speaker.is_for_all() {
            let text = "allow_other: only root and the owner of the service may mount it for others";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let specials = self.options.has_special_files();
        let serve = Serve::new(speaker, specials, runtime.handle().clone());
        let session = session(serve, &source, &dir, &self.options);
        let session = session.map_err(|error| cannot_mount(&dir, &error))?;
        Ok(Mounted { session, place: Place(Some(dir)), runtime })
    }
}

/// Mounts, and greets the kernel.
fn session(serve: Serve, source: &str, dir: &Path, options: &Options) -> io::Result<Session<Serve>> {
    let mut config = Config::default();
    config.mount_options = options.for_helper(source);
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    if !rustix::process::geteuid().is_root() {
        return Session::new(serve, dir, &config);
    }
    let device = mount_as_root(source, dir, options)?;
    Session::from_fd(serve, device.into(), config.acl, config)
}

/// Root needs no helper, and can say what kind of file system this is.
fn mount_as_root(source: &str, dir: &Path, options: &Options) -> io::Result<File> {
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
    /// Something that ends [`Mounted::serve`] from another thread.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper { dir: self.place.0.clone().unwrap_or_default() }
    }

    /// Serves the kernel until the service is unmounted, by whomever.
    pub fn serve(self) -> Result<()> {
        let Mounted { session, mut place, runtime } = self;
        let served = session.run();
        drop(runtime);
        match served {
            Ok(()) => {
                place.0 = None;
                Ok(())
            }
            Err(error) => Err(Error::new(ErrorKind::Io, format!("the mount broke: {error}"))),
        }
    }
}

impl Stopper {
    /// Takes the service out of the tree of directories. If it is in use, it goes when its last user has gone; says
    /// whether that is so.
    pub fn stop(&self) -> Result<bool> {
        match unmount(&self.dir, false) {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Busy => unmount(&self.dir, true).map(|()| true),
            Err(error) => Err(error),
        }
    }
}

/// The directory, if something can be mounted there.
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
