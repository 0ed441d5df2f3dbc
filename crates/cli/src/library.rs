//! `libforebay.so` travels in this binary, and is laid down where programs can load it.

use crate::failure::{Failure, Outcome};
use rustix::fs::StatVfsMountFlags;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libforebay.so"));

/// What programs include that call the library by name.
pub(crate) const HEADER: &str = include_str!("../../preload/include/forebay.h");

/// The library as a file, named by its content.
pub(crate) fn lay_down() -> Outcome<PathBuf> {
    if LIBRARY.is_empty() {
        let text = "this binary was made without libforebay.so: build it with \"cargo build\"";
        return Err(Failure::Failed(text.to_owned()));
    }
    let uid = rustix::process::geteuid().as_raw();
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // A home is often shared between the nodes of a job, so that one path serves them all.
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    let places = [
        cache.map(|dir| dir.join("forebay")),
        var("XDG_RUNTIME_DIR").map(|dir| dir.join("forebay")),
        Some(format!("/tmp/.forebay-{uid}").into()),
    ];
    let mut trouble = Vec::new();
    for dir in places.into_iter().flatten() {
        match lay_down_in(&dir, uid) {
            Ok(path) => return Ok(path),
            Err(error) => trouble.push(format!("{}: {error}", dir.display())),
        }
    }
    Err(Failure::Failed(format!(
        "cannot lay down libforebay.so ({}): set XDG_CACHE_HOME to a directory of yours",
        trouble.join("; ")
    )))
}

fn lay_down_in(dir: &Path, uid: u32) -> io::Result<PathBuf> {
    if dir.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(io::Error::other("LD_PRELOAD takes no path with blanks or colons"));
    }
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let meta = dir.symlink_metadata()?;
    // Whoever can write here decides what runs in the programs of this user.
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a directory that only you can write to"));
    }
    if rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("nothing can be run from there"));
    }
    let path = dir.join(concat!("libforebay-", env!("FOREBAY_LIBRARY"), ".so"));
    let whole = path
        .symlink_metadata()
        .is_ok_and(|found| found.is_file() && found.uid() == uid && found.len() == LIBRARY.len() as u64);
    // A machine that died at the wrong moment leaves the name with other bytes behind it.
    if !whole || std::fs::read(&path)? != LIBRARY {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(LIBRARY)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o755))?;
        file.persist(&path)?;
    }
    Ok(path)
}
