//! The mount options (`-o`).

use forebay_model::{Error, ErrorKind, Result};
use fuser::MountOption;
use rustix::mount::MountFlags;

/// Mount options of a service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Whether users other than the mounting one have access.
    pub allow_other: bool,
    /// Whether the kernel also checks permissions, which is needed for special files of several users.
    pub default_permissions: bool,
    /// Flags that the kernel handles.
    flags: MountFlags,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            allow_other: false,
            default_permissions: false,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
        }
    }
}

/// Options that the kernel handles as flags.
const FLAGS: &[(&str, MountFlags, bool)] = &[
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("sync", MountFlags::SYNCHRONOUS, true),
    ("async", MountFlags::SYNCHRONOUS, false),
    ("dirsync", MountFlags::DIRSYNC, true),
];

/// Options of fstab that are for `mount` itself, or that have no effect on this file system.
const IGNORED: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "noatime",
    "nodiratime",
    "relatime",
    "atime",
    "strictatime",
    "silent",
    "loud",
];

impl Options {
    /// Parses a comma-separated list of options, as in fstab.
    pub fn add(&mut self, list: &str) -> Result<()> {
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match FLAGS.iter().find(|(known, ..)| *known == word) {
                Some(&(_, flag, on)) => self.flags.set(flag, on),
                None if word == "allow_other" => self.allow_other = true,
                None if word == "default_permissions" => self.default_permissions = true,
                None if IGNORED.contains(&word) => {}
                None if word.starts_with("x-") || word.starts_with("comment=") => {}
                None => return Err(unknown(word)),
            }
        }
        Ok(())
    }

    /// Whether special files are available. The kernel opens them itself without a request to the mount, so either
    /// there is only one user, or the kernel has to check their modes.
    pub(crate) fn has_special_files(&self) -> bool {
        !self.allow_other || self.default_permissions
    }

    pub(crate) fn flags(&self) -> MountFlags {
        self.flags
    }

    /// The options for the helper that mounts for ordinary users.
    pub(crate) fn for_helper(&self, source: &str) -> Vec<MountOption> {
        let names =
            [MountOption::FSName(source.replace(',', "_")), MountOption::Subtype("forebay".to_owned())];
        let flags = FLAGS.iter().filter(|(_, flag, on)| *on && self.flags.contains(*flag));
        let checked = self.default_permissions.then_some(MountOption::DefaultPermissions);
        names.into_iter().chain(checked).chain(flags.map(|(word, ..)| helper_word(word))).collect()
    }
}

fn helper_word(word: &str) -> MountOption {
    match word {
        "ro" => MountOption::RO,
        "noexec" => MountOption::NoExec,
        "nosuid" => MountOption::NoSuid,
        "nodev" => MountOption::NoDev,
        "sync" => MountOption::Sync,
        "dirsync" => MountOption::DirSync,
        other => MountOption::CUSTOM(other.to_owned()),
    }
}

fn unknown(word: &str) -> Error {
    let text = format!(
        "\"{word}\" is not an option of the mount: use allow_other, default_permissions, ro, noexec, nosuid, nodev, sync or dirsync"
    );
    Error::new(ErrorKind::Invalid, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_lists_are_parsed() {
        let usual = Options::default().flags;
        for (list, allow_other, flags) in [
            ("", false, usual),
            ("allow_other", true, usual),
            ("rw,noauto,_netdev,x-systemd.automount, allow_other ,ro", true, usual | MountFlags::RDONLY),
            ("noexec,suid", false, MountFlags::NODEV | MountFlags::NOEXEC),
            ("ro,rw", false, usual),
        ] {
            let mut options = Options::default();
            options.add(list).unwrap();
            assert_eq!(options, Options { allow_other, flags, default_permissions: false }, "{list}");
        }
        let error = Options::default().add("rw,magic").unwrap_err();
        assert!(error.to_string().starts_with("\"magic\" is not an option"), "{error}");
    }
}
