//! A mount that only the programs which need it and their children see: in a mount namespace of their own, and for users
//! other than root also in a user namespace, which allows them to mount.
//!
//! If the prefix is not a directory of this machine, a new root directory is built in memory: everything in the old root
//! is bound into it, and a directory for the prefix is added. The new root is read-only in the end, since files that a
//! program created in it would be lost silently. A prefix further down is made on the disk while the mount exists.

use super::shared::Registry;
use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use rustix::fs::Mode;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    mount_remount, unmount,
};
use rustix::process::{Gid, Uid, getegid, geteuid, pivot_root};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, capabilities, clear_ambient_capability_set,
    configure_capability_in_ambient_set, move_into_link_name_space, set_capabilities,
};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::Command;

/// Environment variable that holds the mount's path, for programs inside the private view.
pub(crate) const MOUNTED_VARIABLE: &str = "FOREBAY_MOUNTED";

const DEVICE: &str = "/dev/fuse";
/// Where the new root is built; what is below it stays visible in the end.
const SCAFFOLD: &str = "/tmp";

/// Names the failed step in an error.
fn step<T>(what: &str, done: Result<T, impl Into<io::Error>>) -> Result<T, String> {
    done.map_err(|error| format!("{what}: {}", error.into()))
}

/// New namespaces of this process, in which nothing is mounted yet.
pub(crate) struct PrivateView {
    /// The user outside the namespace; inside, the user is unmapped until the maps are written.
    user: Uid,
    group: Gid,
}

impl PrivateView {
    /// Creates the namespaces. A failure leaves this process unchanged and names the missing feature.
    pub(crate) fn begin() -> Result<PrivateView, String> {
        let device = step(DEVICE, std::fs::OpenOptions::new().read(true).write(true).open(DEVICE))?;
        if !step(DEVICE, device.metadata())?.file_type().is_char_device() {
            return Err(format!("{DEVICE} is not a device"));
        }
        let (user, group) = (geteuid(), getegid());
        let mut flags = UnshareFlags::NEWNS;
        if !user.is_root() {
            flags |= UnshareFlags::NEWUSER;
        }
        #[expect(deprecated, reason = "it is unsound only with CLONE_FILES, which is not passed")]
        let unshared = rustix::thread::unshare(flags);
        step("namespaces", unshared)?;
        Ok(PrivateView { user, group })
    }

    /// Enters the view that another process has made, and a directory of it.
    pub(crate) fn join(process: i32, dir: &Path) -> Result<(), String> {
        let namespace = |kind: &str| step("its namespaces", File::open(format!("/proc/{process}/ns/{kind}")));
        let (mounts, users) = (namespace("mnt")?, namespace("user")?);
        let enter = |file: &File, kind| move_into_link_name_space(file.as_fd(), Some(kind));
        if !geteuid().is_root() {
            step("its users", enter(&users, LinkNameSpaceType::User))?;
        }
        step("its mounts", enter(&mounts, LinkNameSpaceType::Mount))?;
        step(&dir.display().to_string(), std::env::set_current_dir(dir))
    }

    /// Mounts the service at the prefix, and enters a directory of this view.
    pub(crate) fn enter(self, service: &Service, prefix: &Path, dir: &Path, registry: &Registry) -> Outcome {
        let program = std::env::current_exe()
            .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
        let failed =
            |why| Failure::Failed(format!("cannot make a private mount at {} ({why})", prefix.display()));
        // Before the directory of this process changes: settings are looked for there.
        let mut command = mount_command(&program, service, registry)?;
        let root = self.prepare(prefix).map_err(failed)?;
        let made = if let Root::Same { made } = root { made } else { 0 };
        command.arg("--made").arg(made.to_string()).arg("--").arg(prefix);
        mount_service(command)?;
        // The kernel refuses writes to a directory whose owner is not mapped. It takes root for the owner of
        // this mount until it has fetched the attributes.
        step("its owner", std::fs::metadata(prefix)).map_err(failed)?;
        finish(root, dir).map_err(failed)
    }
}

/// Whether the root directory was rebuilt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    Same {
        /// How many directories were made for the prefix.
        made: usize,
    },
    New,
}

impl PrivateView {
    fn prepare(&self, prefix: &Path) -> Result<Root, String> {
        if !self.user.is_root() {
            let (user, group) = (self.user.as_raw(), self.group.as_raw());
            step("groups", std::fs::write("/proc/self/setgroups", "deny"))?;
            step("users", std::fs::write("/proc/self/uid_map", format!("{user} {user} 1")))?;
            step("groups", std::fs::write("/proc/self/gid_map", format!("{group} {group} 1")))?;
            step("capabilities", keep_mount_capability())?;
        }
        // Mounts made outside still appear inside, but not the other way.
        let down = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        step("propagation", mount_change("/", down))?;
        if prefix.is_dir() {
            return Ok(Root::Same { made: 0 });
        }
        if prefix.parent() == Some(Path::new("/")) {
            new_root(prefix)?;
            return Ok(Root::New);
        }
        let made = prefix.ancestors().take_while(|dir| !dir.exists()).count();
        step("the directory", std::fs::create_dir_all(prefix))?;
        Ok(Root::Same { made })
    }
}

/// Passes the capability to mount on to the mount process, which is started as this user and would lose it.
fn keep_mount_capability() -> rustix::io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.inheritable |= CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets)?;
    configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true)
}

fn new_root(prefix: &Path) -> Result<(), String> {
    let owner = Mode::from_raw_mode(0o755);
    let make = |path: &Path| step("a directory", rustix::fs::mkdir(path, owner));
    step("memory", mount("forebay", SCAFFOLD, "tmpfs", MountFlags::empty(), c"mode=755,size=1m"))?;
    let scaffold = Path::new(SCAFFOLD);
    make(&scaffold.join("new"))?;
    make(&scaffold.join("old"))?;
    step("the scaffold", pivot_root(scaffold, scaffold.join("old")))?;
    step("the scaffold", std::env::set_current_dir("/"))?;
    step("the new root", mount_bind("/new", "/new"))?;
    for entry in step("the root directory", std::fs::read_dir("/old"))? {
        let entry = step("the root directory", entry)?;
        let (from, to) = (entry.path(), Path::new("/new").join(entry.file_name()));
        let kind = step("the root directory", entry.file_type())?;
        if kind.is_symlink() {
            let target = step("a link", std::fs::read_link(&from))?;
            step("a link", std::os::unix::fs::symlink(target, &to))?;
            continue;
        }
        match kind.is_dir() {
            true => make(&to)?,
            false => drop(step("a file", File::create(&to))?),
        }
        step(&from.display().to_string(), mount_bind_recursive(&from, &to))?;
    }
    make(&Path::new("/new").join(prefix.strip_prefix("/").unwrap_or(prefix)))?;
    step("the new root", std::env::set_current_dir("/new"))?;
    step("the new root", pivot_root(".", "."))?;
    step("the old root", unmount(".", UnmountFlags::DETACH))?;
    step("the new root", std::env::set_current_dir("/"))
}

/// A command that mounts the service in another process.
fn mount_command(program: &Path, service: &Service, registry: &Registry) -> Outcome<Command> {
    let mut command = Command::new(program);
    command.arg("mount").arg("--shared").arg(registry.path());
    command.arg("--service").arg(service.resolve()?.addresses.to_string());
    service.pass_on(&mut command)?;
    command.env_remove("LD_PRELOAD");
    Ok(command)
}

/// Mounts in another process, which runs as long as a program uses the mount.
fn mount_service(mut command: Command) -> Outcome {
    let started = command.output();
    let output = started.map_err(|error| Failure::local("start", command.get_program().as_ref(), &error))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let text = String::from_utf8_lossy(&output.stderr);
            Err(Failure::Failed(text.trim().trim_start_matches("forebay: ").to_owned()))
        }
    }
}

fn finish(root: Root, dir: &Path) -> Result<(), String> {
    if root == Root::New {
        let flags = MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        step("the new root", mount_remount("/", flags, c""))?;
    }
    if !geteuid().is_root() {
        step("capabilities", clear_ambient_capability_set())?;
    }
    step(&dir.display().to_string(), std::env::set_current_dir(dir))
}
