//! The key file: a client that holds the key acts as the owner of the file.

use forebay_model::{Error, ErrorKind, Gid, Identity, Result, Uid};
use forebay_wire::Key;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Maximum length of a key file: a key and line ends.
const LONGEST: u64 = 256;

/// A key, and the user as which its holder acts.
pub(crate) struct KeyHolder {
    pub(crate) key: Key,
    pub(crate) identity: Identity,
}

/// Reads the key file, or creates it, readable by its owner only. A file of another user is refused: its owner could act as
/// the service, and derive every user's key.
pub(crate) fn open_or_create(path: &Path) -> Result<KeyHolder> {
    let about = |error: std::io::Error| {
        let text = format!("cannot use the key file {}: {error}", path.display());
        Error::new(
            if error.kind() == IoKind::PermissionDenied { ErrorKind::AccessDenied } else { ErrorKind::Io },
            text,
        )
    };
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Ok(file) => create(file).map_err(about)?,
        Err(error) if error.kind() == IoKind::AlreadyExists => {}
        Err(error) => return Err(about(error)),
    }
    // A pipe in its place is refused below, and not waited for.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("a flag of open");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(about)?;
    let meta = file.metadata().map_err(about)?;
    if !meta.is_file() {
        return Err(Error::new(ErrorKind::Invalid, format!("the key {} is not a file", path.display())));
    }
    let me = rustix::process::geteuid().as_raw();
    if meta.uid() != me {
        let text = format!(
            "the key file {} belongs to user {}, not to user {me} who runs the service: find out who made it, then remove it \
             to get a new key",
            path.display(),
            meta.uid()
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    if meta.mode() & 0o077 != 0 {
        let text = format!(
            "the key file {} is accessible to users other than its owner (mode {:03o}): run \"chmod 600 {0}\", or remove it \
             to get a new key if another user may have read it",
            path.display(),
            meta.mode() & 0o777
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(about)?;
    let key = Key::from_text(&text).map_err(|error| {
        let advice = "remove the file to get a new key";
        Error::new(
            ErrorKind::Invalid,
            format!("the key file {} is damaged: {error}: {advice}", path.display()),
        )
    })?;
    // The key stands for one user without groups: those may have changed since the key was created.
    let identity = Identity { uid: Uid(meta.uid()), gid: Gid(meta.gid()), groups: Vec::new() };
    Ok(KeyHolder { key, identity })
}

fn create(mut file: File) -> std::io::Result<()> {
    let key = Key::new(random().map_err(std::io::Error::other)?);
    file.write_all(key.to_text().as_bytes())?;
    file.sync_all()
}

/// Thirty-two bytes from a cryptographic random number generator.
pub(crate) fn random() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::new(ErrorKind::Io, format!("the system gives no random numbers: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn key_file_is_created_once_and_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let first = open_or_create(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let again = open_or_create(&path).unwrap();
        assert_eq!(first.key.as_bytes(), again.key.as_bytes());
        assert_eq!(again.identity.uid, Uid(path.metadata().unwrap().uid()));
    }

    #[test]
    fn key_file_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return forebay_testkit::skip("a key file of another user", "it needs root");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        open_or_create(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(4711), None).unwrap();
        let error = open_or_create(&path).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::NotPermitted);
        assert!(error.to_string().contains("belongs to user 4711"), "{error}");
    }

    #[test]
    fn readable_or_damaged_key_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        open_or_create(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o777] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = open_or_create(&path).err().expect("refused");
            assert_eq!(error.kind(), ErrorKind::NotPermitted);
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        write(&path, "not a key").unwrap();
        assert!(open_or_create(&path).err().expect("refused").to_string().contains("damaged"));
        assert_eq!(open_or_create(dir.path()).err().expect("refused").kind(), ErrorKind::Invalid);
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(open_or_create(&pipe).err().expect("refused").kind(), ErrorKind::Invalid);
    }
}
