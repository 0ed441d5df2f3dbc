//! Local twins of named pipes: the service has the names, the kernel of this machine connects the processes.
//!
//! The twins are in one directory of root's that users cannot list. The name of a twin has a secret part, which the server
//! tells to users who can reach the pipe and may read or write it; owner, group and mode of the twin are those of the pipe, so
//! that the kernel checks each open.
//!
//! **Invariant**: a twin gives no right that the pipe does not give: it is created without any, and changed under the same
//! lock as the pipe's attributes are read for it.
//!
//! **Deliberately absent**: twins of a server that is not root's, which could not give them to their owners; its clients
//! have pipes for one user each.

use forebay_model::{Error, ErrorKind, FileId, FileKind, Result, Special};
use forebay_store::Inode;
use forebay_wire::Key;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, Stat, Uid};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

const DIR: &str = "/run/forebay-pipes";
const RIGHTS: u32 = 0o777;

pub(crate) const PIPE: FileKind = FileKind::Special(Special::Pipe);

#[derive(Default)]
pub(crate) struct Pipes {
    /// Orders changes of twins.
    changes: Mutex<()>,
}

fn failed(what: &str, path: &Path, error: Errno) -> Error {
    Error::new(ErrorKind::Unsupported, format!("cannot {what} {}: {error}", path.display()))
}

/// The directory of all twins, made if necessary.
fn directory() -> Result<&'static Path> {
    let dir = Path::new(DIR);
    if !rustix::process::geteuid().is_root() {
        let text = "the server is not root's: named pipes connect processes of one user only";
        return Err(Error::new(ErrorKind::Unsupported, text));
    }
    match rustix::fs::mkdir(dir, Mode::empty()) {
        Ok(()) => set_mode(dir, 0o711).map_err(|error| failed("make", dir, error))?,
        Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make", dir, error)),
    }
    let found = rustix::fs::lstat(dir).map_err(|error| failed("look at", dir, error))?;
    if found.st_uid != 0 || found.st_mode & (libc::S_IFMT | 0o066) != libc::S_IFDIR {
        return Err(Error::new(ErrorKind::Unsupported, format!("{DIR} is not a directory of root's alone")));
    }
    Ok(dir)
}

fn set_mode(path: &Path, mode: u32) -> rustix::io::Result<()> {
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty())
}

fn name(key: &Key, file: FileId) -> String {
    let secret: String = key.file_secret(file).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{:016x}-{secret}", file.0)
}

impl Pipes {
    /// The path of a pipe's twin, which is made if it does not exist. `inode` reads the pipe's attributes.
    pub(crate) fn twin(
        &self,
        key: &Key,
        file: FileId,
        inode: impl FnOnce() -> Result<Inode>,
    ) -> Result<PathBuf> {
        let path = directory()?.join(name(key, file));
        let _changes = self.changes.lock();
        let inode = inode()?;
        if inode.kind() != PIPE {
            return Err(Error::new(ErrorKind::Invalid, format!("file {file} is not a named pipe")));
        }
        match rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::empty(), 0) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", &path, error)),
        }
        align(&path, &inode).map_err(|error| failed("set the owner of", &path, error))?;
        Ok(path)
    }

    /// The attributes of a pipe have changed: its twin follows, if it has one.
    pub(crate) fn follow(&self, key: &Key, file: FileId, inode: impl FnOnce() -> Result<Inode>) {
        let _changes = self.changes.lock();
        let path = Path::new(DIR).join(name(key, file));
        let aligned = inode().map(|inode| align(&path, &inode));
        if !matches!(aligned, Ok(Ok(()) | Err(Errno::NOENT))) {
            // Without a twin the pipe has no rights that it should not have.
            let _ = rustix::fs::unlink(&path);
        }
    }

    /// A pipe is removed. Processes that have it open keep it.
    pub(crate) fn remove(&self, key: &Key, file: FileId) {
        let _changes = self.changes.lock();
        // Most pipes have no twin.
        let _ = rustix::fs::unlink(Path::new(DIR).join(name(key, file)));
    }

    /// Removes the twins of pipes that do not exist any more.
    pub(crate) fn tidy(&self, key: &Key, is_gone: impl Fn(FileId) -> bool) {
        let Ok(entries) = std::fs::read_dir(DIR) else { return };
        for entry in entries.flatten() {
            let text = entry.file_name().to_string_lossy().into_owned();
            let file = text.split('-').next().and_then(|id| u64::from_str_radix(id, 16).ok()).map(FileId);
            if let Some(file) = file.filter(|&file| name(key, file) == text && is_gone(file)) {
                self.remove(key, file);
            }
        }
    }
}

/// Gives a twin the owner, group and mode of its pipe.
fn align(path: &Path, inode: &Inode) -> rustix::io::Result<()> {
    let (uid, gid, mode) = (inode.uid.0, inode.gid.0, u32::from(inode.mode) & RIGHTS);
    let Stat { st_uid, st_gid, st_mode, .. } = rustix::fs::lstat(path)?;
    if st_mode & libc::S_IFMT != libc::S_IFIFO {
        return Err(Errno::NOENT);
    }
    if (st_uid, st_gid) != (uid, gid) {
        set_mode(path, 0)?;
        let owner = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        rustix::fs::chownat(CWD, path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
    }
    if (st_uid, st_gid, st_mode & RIGHTS) != (uid, gid, mode) {
        set_mode(path, mode)?;
    }
    Ok(())
}
