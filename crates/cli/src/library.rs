//! Libraries travel in this binary, and are laid down where programs can load them.

use crate::failure::{Failure, Outcome};
use rustix::fs::StatVfsMountFlags;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A library that travels in this binary.
pub(crate) struct Library {
    bytes: &'static [u8],
    stem: &'static str,
    hash: &'static str,
    end: &'static str,
}

/// For programs that find Forebay's files under a prefix.
pub(crate) static FOREBAY: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay.so")),
    stem: "libforebay",
    hash: env!("HASH_LIBFOREBAY_SO"),
    end: "so",
};

/// For programs whose files are placed.
pub(crate) static PLACE: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay_place.so")),
    stem: "libforebay_place",
    hash: env!("HASH_LIBFOREBAY_PLACE_SO"),
    end: "so",
};

/// The same, for programs that are linked statically.
pub(crate) static PLACE_ARCHIVE: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay_place.a")),
    stem: "libforebay_place",
    hash: env!("HASH_LIBFOREBAY_PLACE_A"),
    end: "a",
};

/// What programs include that call the library by name.
pub(crate) const HEADER: &str = include_str!("../../preload/include/forebay.h");

/// What programs include that ask for placement by name.
pub(crate) const PLACE_HEADER: &str = include_str!("../../place/include/forebay_place.h");

/// What `LD_PRELOAD` is to be, with a library before all others.
pub(crate) fn before(library: PathBuf) -> OsString {
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// A library as a file, named by its content.
pub(crate) fn lay_down(library: &Library) -> Outcome<PathBuf> {
    if library.bytes.is_empty() {
        let text = format!("this binary was made without {}.{}", library.stem, library.end);
        return Err(Failure::Failed(format!("{text}: build it with \"cargo build\"")));
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
        match lay_down_in(&dir, uid, library) {
            Ok(path) => return Ok(path),
            Err(error) => trouble.push(format!("{}: {error}", dir.display())),
        }
    }
    Err(Failure::Failed(format!(
        "cannot lay down {}.{} ({}): set XDG_CACHE_HOME to a directory of yours",
        library.stem,
        library.end,
        trouble.join("; ")
    )))
}

fn lay_down_in(dir: &Path, uid: u32, library: &Library) -> io::Result<PathBuf> {
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
    let path = dir.join(format!("{}-{}.{}", library.stem, library.hash, library.end));
    let whole = path.symlink_metadata().is_ok_and(|found| {
        found.is_file() && found.uid() == uid && found.len() == library.bytes.len() as u64
    });
    // A machine that died at the wrong moment leaves the name with other bytes behind it.
    if !whole || std::fs::read(&path)? != library.bytes {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(library.bytes)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o755))?;
        file.persist(&path)?;
    }
    Ok(path)
}
