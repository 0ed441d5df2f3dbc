//! Users' keys: which are granted and revoked, and which connections use them.
//!
//! Each server keeps a list of all keys in a file, and sends every change to all other servers. A grant takes effect when
//! it is written, a revocation before that: a disk that is full must not keep a key alive. Servers compare their lists
//! when they join, so that a server that was away learns what it missed. Lists are only merged: a key that was revoked on
//! any server stays revoked.
//!
//! A key that is not in the list grants no access, even if its holder can compute it.
//!
//! **Locks**: `changes`, then `live`, then `table`. Every handshake takes `table`; the file is written under `changes` only.

use crate::connection_epoch::ConnectionEpoch;
use crate::session::{Owner, Sessions};
use forebay_model::{Error, ErrorKind, Gid, Result, Uid};
use forebay_wire::{KeyId, MAX_KEYS, UserKey};
use parking_lot::{Mutex, MutexGuard};
use rustix::net::Shutdown;
use std::collections::{BTreeMap, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const TITLE: &str = "forebay keys 1";
/// Maximum length of the file, for the maximum number of keys.
const LONGEST: u64 = 1 << 20;

/// All users' keys, and the connections that use them.
pub(crate) struct Keys {
    path: PathBuf,
    /// Held while the table changes and the file is written.
    changes: Mutex<Changes>,
    table: Mutex<BTreeMap<KeyId, UserKey>>,
    live: Mutex<HashMap<u64, Live>>,
    /// Whether another server has sent its keys since this one started.
    compared: AtomicBool,
}

#[derive(Default)]
struct Changes {
    /// The file does not have everything that is in the table.
    unsaved: bool,
}

/// A connection that authenticated with a user's key.
struct Live {
    id: KeyId,
    owner: Owner,
    connection_epoch: Arc<ConnectionEpoch>,
    socket: OwnedFd,
    ended: bool,
}

/// Keeps a connection registered while it is held.
pub(crate) struct Attached {
    keys: Arc<Keys>,
    number: u64,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.keys.lock_live().remove(&self.number);
    }
}

impl Keys {
    /// Reads the list, if it exists. `owner` is the user of this server.
    pub(crate) fn open(path: PathBuf, owner: Uid) -> Result<Keys> {
        let table = load(&path, owner).map_err(|error| error.within(format_args!("{}", path.display())))?;
        let (changes, live, compared) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        Ok(Keys { path, changes, table: Mutex::new(table), live, compared })
    }

    /// The key of this id, if it is valid now.
    pub(crate) fn find(&self, id: KeyId) -> Result<UserKey> {
        let key = self.known(id)?;
        key.check(now())?;
        Ok(key)
    }

    /// The key of this id, also one that was revoked or has expired.
    pub(crate) fn known(&self, id: KeyId) -> Result<UserKey> {
        let unknown = || {
            let text =
                "the server does not know the client's key: it belongs to another service, or was revoked";
            Error::new(ErrorKind::Unauthenticated, text)
        };
        self.lock().get(&id).cloned().ok_or_else(unknown)
    }

    pub(crate) fn all(&self) -> Vec<UserKey> {
        self.lock().values().cloned().collect()
    }

    pub(crate) fn grant(&self, key: UserKey) -> Result<()> {
        if key.uid.0 == 0 {
            let text = "no key is made for root: use the service's own key, or its socket";
            return Err(Error::new(ErrorKind::NotPermitted, text));
        }
        let mut changes = self.lock_changes();
        let (mut next, now) = (self.lock().clone(), now());
        next.retain(|_, key| key.expires.is_none_or(|end| now < end));
        if next.len() >= MAX_KEYS {
            let text =
                format!("all {MAX_KEYS} keys are in use, including revoked ones: grant keys with an expiry");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        next.insert(key.id, key);
        self.save(&mut changes, &next)?;
        *self.lock() = next;
        Ok(())
    }

    /// Revokes a key in memory; it is invalid when this returns. The caller must then close its connections with
    /// [`Keys::end`], and write the list with [`Keys::write`].
    pub(crate) fn revoke(&self, id: KeyId) -> Result<UserKey> {
        let mut changes = self.lock_changes();
        let mut table = self.lock();
        let Some(key) = table.get_mut(&id) else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no key {id}")));
        };
        key.revoked.get_or_insert(now());
        changes.unsaved = true;
        Ok(key.clone())
    }

    /// Merges the keys of another server in memory. What was revoked there is invalid when this returns, even if it
    /// fails. The caller must then close connections with [`Keys::end`], and write the list with [`Keys::write`].
    pub(crate) fn merge(&self, others: &[UserKey]) -> Result<()> {
        let mut changes = self.lock_changes();
        let mut table = self.lock();
        let (mut next, now) = (table.clone(), now());
        next.retain(|_, key| key.expires.is_none_or(|end| now < end));
        let mut left_out = false;
        for other in others.iter().filter(|key| key.expires.is_none_or(|end| now < end)) {
            match next.remove(&other.id) {
                Some(known) => drop(next.insert(other.id, known.merged(other))),
                None if next.len() < MAX_KEYS => drop(next.insert(other.id, other.clone())),
                None => left_out = true,
            }
        }
        if next != *table {
            *table = next;
            changes.unsaved = true;
        }
        if left_out {
            let text = format!("the servers together have more than {MAX_KEYS} keys");
            return Err(Error::new(ErrorKind::Busy, text));
        }
        self.compared.store(true, Ordering::Release);
        Ok(())
    }

    /// Writes what the file does not have yet. Blocks.
    pub(crate) fn write(&self) -> Result<()> {
        let mut changes = self.lock_changes();
        if !changes.unsaved {
            return Ok(());
        }
        let table = self.lock().clone();
        self.save(&mut changes, &table)
    }

    /// Whether another server has sent its keys since this one started.
    pub(crate) fn has_compared(&self) -> bool {
        self.compared.load(Ordering::Acquire)
    }

    /// Registers a connection of a key, unless the key was revoked meanwhile.
    pub(crate) fn attach(
        self: &Arc<Keys>,
        id: KeyId,
        owner: Owner,
        connection_epoch: &Arc<ConnectionEpoch>,
        socket: OwnedFd,
    ) -> Result<Attached> {
        let number = connection_epoch.number();
        let live = Live { id, owner, connection_epoch: connection_epoch.clone(), socket, ended: false };
        self.lock_live().insert(number, live);
        let attached = Attached { keys: self.clone(), number };
        // A revocation changes the list first and searches for connections afterwards.
        self.find(id)?;
        Ok(attached)
    }

    /// Merges the keys of another server and closes connections whose keys were revoked there. Blocks.
    pub(crate) fn join(&self, keys: &[UserKey], sessions: &Sessions) -> Result<()> {
        self.merge_and_end(keys, sessions)?;
        self.write()
    }

    /// The same in memory only.
    pub(crate) fn merge_and_end(&self, keys: &[UserKey], sessions: &Sessions) -> Result<()> {
        let merged = self.merge(keys);
        // Also of a merge that was incomplete.
        self.end_spent(sessions);
        merged
    }

    /// Closes connections whose keys are no longer valid. Blocks.
    pub(crate) fn end_spent(&self, sessions: &Sessions) {
        let ended = self.end(sessions);
        if ended > 0 {
            tracing::info!(ended, "closed connections whose keys were revoked or have expired");
        }
    }

    /// Closes the connections and sessions of invalid keys, and returns the number of connections. Requests in progress
    /// finish; other requests of these connections change nothing.
    pub(crate) fn end(&self, sessions: &Sessions) -> usize {
        let (mut live, table, now) = (self.lock_live(), self.lock(), now());
        let spent = |id: &KeyId| table.get(id).is_none_or(|key| key.check(now).is_err());
        let mut owners = Vec::new();
        for live in live.values_mut().filter(|live| !live.ended && spent(&live.id)) {
            live.ended = true;
            let _ = live.connection_epoch.shut();
            // Fails if the peer has disconnected already, which is fine.
            let _ = rustix::net::shutdown(&live.socket, Shutdown::Both);
            owners.push(live.owner);
        }
        drop((live, table));
        owners.iter().for_each(|owner| sessions.finish(*owner));
        owners.len()
    }

    /// Writes a list. A list that may have been written in part, or not durably, is written again.
    fn save(&self, changes: &mut Changes, list: &BTreeMap<KeyId, UserKey>) -> Result<()> {
        changes.unsaved = true;
        save(&self.path, list).map_err(|error| {
            let text = format!("cannot write the list of keys {}: {error}", self.path.display());
            Error::new(ErrorKind::Io, text)
        })?;
        changes.unsaved = false;
        Ok(())
    }

    fn lock_changes(&self) -> MutexGuard<'_, Changes> {
        self.changes.lock()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<KeyId, UserKey>> {
        self.table.lock()
    }

    fn lock_live(&self) -> MutexGuard<'_, HashMap<u64, Live>> {
        self.live.lock()
    }
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn load(path: &Path, owner: Uid) -> Result<BTreeMap<KeyId, UserKey>> {
    let about =
        |error: std::io::Error| Error::new(ErrorKind::Io, format!("cannot read the list of keys: {error}"));
    // A pipe in its place is refused below, and not waited for.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).expect("flags of open");
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == IoKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(about(error)),
    };
    let meta = file.metadata().map_err(about)?;
    if !meta.is_file() || meta.mode() & 0o077 != 0 || meta.uid() != owner.0 {
        let (mode, whose) = (meta.mode() & 0o7777, meta.uid());
        let text = format!(
            "the list of keys is not a private file of user {owner} (mode {mode:04o}, owner {whose}): find out who changed \
             it, then restore its mode and owner"
        );
        return Err(Error::new(ErrorKind::NotPermitted, text));
    }
    let mut text = String::new();
    file.take(LONGEST).read_to_string(&mut text).map_err(about)?;
    let damaged = |line: usize| {
        let text = format!(
            "the list of keys is damaged in line {}: restore it, or remove it with all keys",
            line + 1
        );
        Error::new(ErrorKind::Invalid, text)
    };
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(TITLE) {
        return Err(damaged(0));
    }
    lines.map(|(number, line)| parse(line).map(|key| (key.id, key)).ok_or_else(|| damaged(number))).collect()
}

fn parse(line: &str) -> Option<UserKey> {
    let mut words = line.splitn(7, ' ');
    let mut next = || words.next();
    let time = |word: &str| if word == "-" { Some(None) } else { word.parse().ok().map(Some) };
    Some(UserKey {
        id: next()?.parse().ok()?,
        uid: Uid(next()?.parse().ok()?),
        gid: Gid(next()?.parse().ok()?),
        made: next()?.parse().ok()?,
        expires: time(next()?)?,
        revoked: time(next()?)?,
        user: next()?.to_owned(),
    })
}

fn save(path: &Path, table: &BTreeMap<KeyId, UserKey>) -> std::io::Result<()> {
    let time = |time: Option<u64>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
    let mut text = format!("{TITLE}\n");
    for key in table.values() {
        let (expires, revoked) = (time(key.expires), time(key.revoked));
        text +=
            &format!("{} {} {} {} {expires} {revoked} {}\n", key.id, key.uid, key.gid, key.made, key.user);
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != IoKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&fresh, path)?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    fn key(number: u8, uid: u32) -> UserKey {
        let user = "alice with a space".to_owned();
        UserKey {
            id: KeyId([number; 16]),
            uid: Uid(uid),
            gid: Gid(uid),
            user,
            made: 5,
            expires: None,
            revoked: None,
        }
    }

    fn me() -> Uid {
        Uid(rustix::process::geteuid().as_raw())
    }

    #[test]
    fn grants_and_revocations_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let open = || Keys::open(path.clone(), me()).unwrap();
        let keys = open();
        keys.grant(key(1, 7)).unwrap();
        keys.grant(UserKey { expires: Some(now() + 1000), ..key(2, 8) }).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(open().all(), keys.all());
        assert_eq!(open().find(KeyId([1; 16])).unwrap().uid, Uid(7));
        keys.revoke(KeyId([1; 16])).unwrap();
        keys.write().unwrap();
        for keys in [&keys, &open()] {
            let error = keys.find(KeyId([1; 16])).unwrap_err();
            assert!(
                error.kind() == ErrorKind::Unauthenticated && error.to_string().contains("revoked"),
                "{error}"
            );
            assert!(keys.find(KeyId([2; 16])).is_ok() && keys.find(KeyId([3; 16])).is_err());
        }
        assert_eq!(keys.revoke(KeyId([9; 16])).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn keys_of_root_and_expired_keys_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(dir.path().join("keys"), me()).unwrap();
        assert_eq!(keys.grant(key(1, 0)).unwrap_err().kind(), ErrorKind::NotPermitted);
        keys.merge(&[key(2, 0), UserKey { expires: Some(1), ..key(3, 7) }]).unwrap();
        assert!(keys.find(KeyId([2; 16])).unwrap_err().to_string().contains("root"));
        assert!(keys.find(KeyId([3; 16])).is_err());
        let error = UserKey { expires: Some(10), ..key(3, 7) }.check(10).unwrap_err();
        assert!(error.to_string().contains("expired"), "{error}");
    }

    #[test]
    fn merged_key_lists_keep_revocations() {
        let dir = tempfile::tempdir().unwrap();
        let open = |name| Keys::open(dir.path().join(name), me()).unwrap();
        let (one, two) = (open("1"), open("2"));
        one.grant(key(1, 7)).unwrap();
        two.grant(key(2, 8)).unwrap();
        two.merge(&one.all()).unwrap();
        let stale = two.all();
        one.revoke(KeyId([1; 16])).unwrap();
        two.merge(&one.all()).unwrap();
        one.merge(&stale).unwrap();
        assert_eq!(one.all(), two.all());
        assert!(two.find(KeyId([1; 16])).is_err() && one.find(KeyId([2; 16])).is_ok());
    }

    #[test]
    fn writable_or_damaged_key_list_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let open = || Keys::open(path.clone(), me()).map(drop);
        Keys::open(path.clone(), me()).unwrap().grant(key(1, 7)).unwrap();
        for mode in [0o640, 0o604, 0o622] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(open().unwrap_err().kind(), ErrorKind::NotPermitted, "{mode:o}");
        }
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        open().unwrap();
        assert!(Keys::open(path.clone(), Uid(me().0 + 1)).is_err(), "of another user");
        for text in ["", "forebay keys 2\n", "forebay keys 1\n00 1 1 1 - - x\n", "forebay keys 1\n\n"] {
            write(&path, text).unwrap();
            assert_eq!(open().unwrap_err().kind(), ErrorKind::Invalid, "{text:?}");
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        assert!(open().is_err(), "a symbolic link is refused");
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(open().unwrap_err().kind(), ErrorKind::NotPermitted, "a pipe is not waited for");
    }

    #[test]
    fn change_that_does_not_fit_the_disk_leaves_the_old_list() {
        let dir = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        if rustix::mount::mount("tmpfs", dir.path(), "tmpfs", flags, Some(c"size=16k")).is_err() {
            let test = "change_that_does_not_fit_the_disk_leaves_the_old_list";
            return forebay_testkit::skip(test, "no file system can be mounted here");
        }
        let path = dir.path().join("keys");
        let keys = Keys::open(path.clone(), me()).unwrap();
        keys.grant(key(1, 7)).unwrap();
        let (bytes, known) = (std::fs::read(&path).unwrap(), keys.all());
        let long = UserKey { user: "x".repeat(32 << 10), ..key(2, 8) };
        let refused = keys.grant(long);
        let (left, again) = (std::fs::read(&path).unwrap(), Keys::open(path.clone(), me()));
        let room = keys.grant(key(3, 9));
        rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Io);
        assert_eq!((left, again.unwrap().all()), (bytes, known));
        room.expect("what did not fit is no hindrance");
        assert!(keys.find(KeyId([2; 16])).is_err() && keys.find(KeyId([3; 16])).is_ok());
    }
}
