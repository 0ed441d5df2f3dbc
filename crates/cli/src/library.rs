//! Libraries that are embedded in this binary and extracted to where programs can load them.

use crate::failure::{Failure, Outcome};
use forebay_store::who_may_replace;
use rustix::fs::StatVfsMountFlags;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A library that is embedded in this binary.
pub(crate) struct Library {
    bytes: &'static [u8],
    stem: &'static str,
    hash: &'static str,
    end: &'static str,
}

/// For programs that see Forebay's files under a prefix.
pub(crate) static FOREBAY: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay.so")),
    stem: "libforebay",
    hash: env!("HASH_LIBFOREBAY_SO"),
    end: "so",
};

/// For programs whose files are placed on storage targets.
pub(crate) static PLACE: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay_place.so")),
    stem: "libforebay_place",
    hash: env!("HASH_LIBFOREBAY_PLACE_SO"),
    end: "so",
};

/// The same as a static archive.
pub(crate) static PLACE_ARCHIVE: Library = Library {
    bytes: include_bytes!(concat!(env!("OUT_DIR"), "/libforebay_place.a")),
    stem: "libforebay_place",
    hash: env!("HASH_LIBFOREBAY_PLACE_A"),
    end: "a",
};

/// The C header of the preload library.
pub(crate) const HEADER: &str = include_str!("../../preload/include/forebay.h");

/// The C header of the placement library.
pub(crate) const PLACE_HEADER: &str = include_str!("../../place/include/forebay_place.h");

/// `LD_PRELOAD` with a library in front of those already set.
pub(crate) fn prepend_preload(library: PathBuf) -> OsString {
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    preload
}

/// Extracts a library to a file named by its hash.
pub(crate) fn extract(library: &Library) -> Outcome<PathBuf> {
    if library.bytes.is_empty() {
        let text = format!("this binary was built without {}.{}", library.stem, library.end);
        let how = if library.end == "a" { "cargo build --release --features archive" } else { "cargo build" };
        return Err(Failure::Failed(format!("{text}: build it with \"{how}\"")));
    }
    let uid = rustix::process::geteuid().as_raw();
    let var = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    // The nodes of a job often share the home directory, so one path works on all of them.
    let cache = var("XDG_CACHE_HOME").or_else(|| Some(var("HOME")?.join(".cache")));
    let mut places = vec![
        cache.map(|dir| dir.join("forebay")),
        var("XDG_RUNTIME_DIR").map(|dir| dir.join("forebay")),
        Some(format!("/tmp/.forebay-{uid}").into()),
    ];
    if uid == 0 {
        // Programs that root starts may change their uid, and the new user must be able to read the library.
        places.retain(|dir| dir.as_deref().is_some_and(is_open_to_all));
        places.extend(COMMON.map(|dir| Some(PathBuf::from(dir))));
    }
    let mut trouble = Vec::new();
    for dir in places.into_iter().flatten() {
        match extract_in(&dir, uid, library) {
            Ok(path) => return Ok(path),
            Err(error) => trouble.push(format!("{}: {error}", dir.display())),
        }
    }
    Err(Failure::Failed(format!(
        "cannot extract {}.{} ({}): set XDG_CACHE_HOME to a directory that you own",
        library.stem,
        library.end,
        trouble.join("; ")
    )))
}

/// Where root extracts libraries for all users.
const COMMON: [&str; 3] = ["/var/cache/forebay", "/run/forebay-library", "/tmp/.forebay-library"];

/// Whether all users can reach a directory, which need not exist yet.
fn is_open_to_all(dir: &Path) -> bool {
    dir.ancestors().filter_map(|dir| dir.metadata().ok()).all(|found| found.mode() & 0o001 != 0)
}

/// Fails if a user other than this one and root may replace a directory.
fn demand_own_path(dir: &Path) -> io::Result<()> {
    match who_may_replace(dir)? {
        None => Ok(()),
        Some(who) => Err(io::Error::other(format!("{who}, may replace it"))),
    }
}

fn extract_in(dir: &Path, uid: u32, library: &Library) -> io::Result<PathBuf> {
    if dir.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(io::Error::other("LD_PRELOAD takes no path with spaces or colons"));
    }
    // Before anything is made there, and again afterwards: a user who can put another directory in the place of this one,
    // or write to it, decides what code runs in this user's programs.
    demand_own_path(dir)?;
    let mode = if uid == 0 { 0o755 } else { 0o700 };
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(dir)?;
    demand_own_path(dir)?;
    let meta = dir.symlink_metadata()?;
    if !meta.is_dir() || meta.uid() != uid || meta.mode() & 0o022 != 0 {
        return Err(io::Error::other("it is not a directory that only you can write to"));
    }
    if rustix::fs::statvfs(dir)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::Error::other("it is mounted noexec"));
    }
    let path = dir.join(format!("{}-{}.{}", library.stem, library.hash, library.end));
    let whole = path.symlink_metadata().is_ok_and(|found| {
        found.is_file() && found.uid() == uid && found.len() == library.bytes.len() as u64
    });
    // A crash of the machine can leave the name with other content.
    if !whole || std::fs::read(&path)? != library.bytes {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        file.write_all(library.bytes)?;
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o755))?;
        file.persist(&path)?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{chown, symlink};

    const LIBRARY: Library = Library { bytes: b"code", stem: "lib", hash: "0", end: "so" };

    #[test]
    fn library_is_extracted_only_below_directories_of_the_user_and_root() {
        let (room, me) = (tempfile::tempdir().expect("a directory"), rustix::process::geteuid().as_raw());
        let home = room.path().join("home");
        std::fs::create_dir(&home).expect("a home");
        let cache = home.join(".cache/forebay");
        let found = extract_in(&cache, me, &LIBRARY).expect("a home of this user");
        assert_eq!(std::fs::read(&found).expect("the library"), b"code");
        symlink(&cache, room.path().join("link")).expect("a link");
        assert!(extract_in(&room.path().join("link"), me, &LIBRARY).is_err(), "a link is no directory");
        std::fs::set_permissions(&home, PermissionsExt::from_mode(0o777)).expect("a mode");
        assert!(extract_in(&cache, me, &LIBRARY).is_err(), "every user can rename .cache");
        if me == 0 {
            std::fs::set_permissions(&home, PermissionsExt::from_mode(0o755)).expect("a mode");
            std::fs::remove_dir_all(home.join(".cache")).expect("removed");
            chown(&home, Some(4711), Some(4711)).expect("its owner");
            let refused = extract_in(&cache, me, &LIBRARY).expect_err("user 4711 can rename .cache");
            assert!(refused.to_string().contains("user 4711"), "{refused}");
            assert!(!home.join(".cache").exists(), "root made nothing in the home of another user");
        }
    }
}
