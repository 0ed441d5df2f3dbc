//! Membership: the other servers this server knows, with their stores, and whether it may serve.
//!
//! A new store serves once it is certain that it replaces no other: all other servers were met and their stores are new
//! too, or a server that has joined knows it. A store that has joined serves at once, whichever servers are up. A
//! server with another store than the known one is refused until an administrator declares the old store lost.
//!
//! **Invariant**: an empty store never answers for what a lost store has acknowledged.

use forebay_model::{Error, ErrorKind, FileId, Incarnation, Members, Result, ServerId};
use forebay_store::{Batch, KeySpace, Kv, Store};
use forebay_wire::{IntroductionReply, Standing};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

/// Its key in the metadata store.
pub(super) const KEY: &[u8] = KeySpace::Membership.prefix();

/// Directories that were found in the back end while names in them may have been lost: their creators knew them before.
const OLD_DIRS: &[u8] = KeySpace::DirOfLoss.prefix();

/// What is persisted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    epoch: u64,
    servers: Vec<ServerId>,
    joined: bool,
    known: BTreeMap<ServerId, Known>,
    /// Set if this store replaces one that was lost.
    loss: Option<Loss>,
    /// The first id that this store handed out.
    first: FileId,
}

/// What is known of another server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Known {
    incarnation: Incarnation,
    /// How often its store was replaced.
    replaced: u16,
    /// It may come with another store, once.
    may_replace: bool,
}

/// The names that an earlier store of this server held are gone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Loss {
    /// By server, directories with smaller ids may have had entries in the lost store.
    before: BTreeMap<ServerId, FileId>,
}

/// The membership state of this server.
pub(crate) struct JoinState {
    own: ServerId,
    single: bool,
    joined: AtomicBool,
    state: Mutex<State>,
}

struct State {
    record: Record,
    /// Servers that were met in this run, and the first id that each had not handed out.
    met: BTreeMap<ServerId, FileId>,
    /// Why the others could not be met.
    trouble: BTreeMap<ServerId, String>,
    refused: Option<(ServerId, String)>,
    /// Another server has come with a new store, and the losses have not been searched for yet.
    has_new_store: bool,
}

/// The other servers whose store was replaced: the current incarnation, and how often.
pub(super) type Stores = BTreeMap<ServerId, (Incarnation, u16)>;

impl JoinState {
    /// Loads the state from the store; fails if the store belongs to a service of other servers.
    pub(crate) fn open(store: &Store, own: ServerId, members: &Members) -> Result<JoinState> {
        let single = members.is_single();
        let record = match store.meta().get(KEY)? {
            Some(bytes) => Record::read(&bytes)?,
            None => Record {
                epoch: members.epoch(),
                servers: match store.names().count() > 1 {
                    // A server that was alone has created files in this store.
                    true => vec![own],
                    false => members.servers().collect(),
                },
                joined: single,
                known: BTreeMap::new(),
                loss: None,
                first: FileId(0),
            },
        };
        let servers: Vec<ServerId> = members.servers().collect();
        if record.servers != servers || record.epoch > members.epoch() {
            let numbers =
                |list: &[ServerId]| list.iter().map(ServerId::to_string).collect::<Vec<_>>().join(", ");
            let text = format!(
                "the store {} belongs to a service of servers {} (epoch {}), not to one of servers {} (epoch {}): give it \
                 back its own list, or use an empty store",
                store.dir().display(),
                numbers(&record.servers),
                record.epoch,
                numbers(&servers),
                members.epoch()
            );
            return Err(Error::new(ErrorKind::BadStore, text));
        }
        let joined = AtomicBool::new(record.joined);
        let state = State {
            record,
            met: BTreeMap::new(),
            trouble: BTreeMap::new(),
            refused: None,
            has_new_store: false,
        };
        Ok(JoinState { own, single, joined, state: Mutex::new(state) })
    }

    /// Whether this server may serve.
    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// Its status in the service.
    pub(crate) fn standing(&self, members: &Members) -> Standing {
        if self.has_joined() {
            return Standing::Joined;
        }
        let state = self.lock();
        match &state.refused {
            Some((_, why)) => Standing::Refused(why.clone()),
            None => Standing::Waiting(state.waits_for(self.own, members)),
        }
    }

    /// Fails unless this server may serve.
    pub(crate) fn demand(&self, members: &Members) -> Result<()> {
        if self.has_joined() {
            return Ok(());
        }
        match self.standing(members) {
            Standing::Joined => Ok(()),
            Standing::Waiting(whom) => Err(Error::new(
                ErrorKind::Unreachable,
                format!("server {} has a new store and waits for {whom} before it serves", self.own),
            )),
            Standing::Refused(why) => Err(Error::new(ErrorKind::Io, why)),
        }
    }

    /// Another server has introduced itself with this store. Returns how often that was replaced, or `None` at the
    /// first meeting. Fails if another store is known.
    pub(crate) fn record_meeting(
        &self,
        store: &Store,
        server: ServerId,
        incarnation: Incarnation,
    ) -> Result<Option<u16>> {
        let mut state = self.lock();
        let known = state.record.known.get(&server).copied();
        let now = match known {
            Some(known) if known.incarnation == incarnation => return Ok(Some(known.replaced)),
            Some(known) if known.may_replace => {
                tracing::warn!(%server, was = %known.incarnation, %incarnation, "a server has come with another store");
                Known { incarnation, replaced: known.replaced + 1, may_replace: false }
            }
            Some(known) => return Err(unknown_store(server, incarnation, known.incarnation)),
            None => Known { incarnation, replaced: 0, may_replace: false },
        };
        state.change(store, |record| {
            record.known.insert(server, now);
        })?;
        state.has_new_store |= known.is_some();
        Ok(known.map(|_| now.replaced))
    }

    /// Handles the answer of another server to an introduction. Joins if that is sufficient.
    pub(crate) fn has_met(&self, store: &Store, members: &Members, met: &IntroductionReply) -> Result<()> {
        self.record_meeting(store, met.server, met.incarnation)?;
        let mut state = self.lock();
        state.refused.take_if(|(server, _)| *server == met.server);
        state.trouble.remove(&met.server);
        state.met.insert(met.server, met.next_id);
        if self.has_joined() {
            // The server was not met when this store replaced the lost one.
            return match &state.record.loss {
                Some(loss) if !loss.before.contains_key(&met.server) => state.change(store, |record| {
                    if let Some(loss) = &mut record.loss {
                        loss.before.insert(met.server, met.next_id);
                    }
                }),
                _ => Ok(()),
            };
        }
        let replaced = met.replaced.filter(|_| met.joined);
        let all_met = members.servers().all(|server| server == self.own || state.met.contains_key(&server));
        if replaced.is_none() && !all_met {
            return Ok(());
        }
        let replacements = replaced.unwrap_or(0);
        let loss = (replacements > 0).then(|| Loss { before: state.met.clone() });
        if replacements > 0 {
            // Other servers may know files by ids that the lost store handed out.
            store.names().skip_ids(first_id(replacements))?;
        }
        state.change(store, |record| {
            record.joined = true;
            record.loss = loss;
            record.first = FileId::made_by(self.own, first_id(replacements));
        })?;
        self.joined.store(true, Ordering::Release);
        tracing::info!(server = %self.own, replaced = replacements, "joined the service");
        Ok(())
    }

    /// The handshake with another server failed. Some errors do not go away by waiting.
    pub(crate) fn meeting_failed(&self, server: ServerId, error: &Error) {
        let mut state = self.lock();
        state.trouble.insert(server, error.to_string());
        if matches!(error.kind(), ErrorKind::BadStore | ErrorKind::Invalid | ErrorKind::Unauthenticated) {
            state.refused = Some((server, error.to_string()));
        }
    }

    /// A server's store is lost: it may come with another one.
    pub(crate) fn replace(&self, store: &Store, server: ServerId) -> Result<()> {
        let mut state = self.lock();
        state.change(store, |record| {
            if let Some(known) = record.known.get_mut(&server) {
                known.may_replace = true;
            }
        })
    }

    /// The known store of another server, and how often it was replaced.
    pub(crate) fn known(&self, server: ServerId) -> Option<(Incarnation, u16)> {
        self.lock().record.known.get(&server).map(|known| (known.incarnation, known.replaced))
    }

    /// Whether entries of a directory may have been lost with an earlier store of this server.
    pub(crate) fn may_have_lost(&self, store: &Store, dir: FileId) -> Result<bool> {
        if self.single {
            return Ok(false);
        }
        let first = {
            let state = self.lock();
            let Some(loss) = &state.record.loss else { return Ok(false) };
            match dir.maker() == self.own {
                true => Some(state.record.first),
                false => loss.before.get(&dir.maker()).copied(),
            }
        };
        Ok(dir == FileId::ROOT
            || first.is_none_or(|first| dir < first)
            || store.meta().get(&old_dir(dir))?.is_some())
    }

    /// A directory found in the back end gets this id: while names may be missing, it counts as old.
    pub(crate) fn found_in_backing(&self, dir: FileId, batch: &mut Batch) {
        if self.has_lost() {
            batch.put(old_dir(dir), []);
        }
    }

    /// The administrator accepts the loss: from now on missing names do not exist. False if nothing was lost.
    pub(crate) fn forgive(&self, store: &Store) -> Result<bool> {
        let mut state = self.lock();
        if state.record.loss.is_none() {
            return Ok(false);
        }
        state.record = state.record.clone().without_loss(&**store.meta())?;
        Ok(true)
    }

    /// Whether this store replaces one that was lost.
    pub(crate) fn has_lost(&self) -> bool {
        !self.single && self.lock().record.loss.is_some()
    }

    /// Describes the loss for an administrator.
    pub(crate) fn loss(&self) -> String {
        format!(
            "an earlier store of server {} was lost with all names and files that it held; a missing name in \
             directories made before gives an I/O error until \"forebay check --repair\"",
            self.own
        )
    }

    /// Whether an earlier store of this server may have had the inode of a file.
    pub(crate) fn may_have_lost_file(&self, file: FileId) -> bool {
        file.maker() == self.own && self.has_lost() && file < self.lock().record.first
    }

    /// The error for a missing name that may have been in the lost store.
    pub(crate) fn lost(&self, miss: &Error) -> Error {
        let own = self.own;
        let text = format!(
            "{miss}: it may have been lost with an earlier store of server {own}; run \"forebay check --repair\" to go on \
             without"
        );
        Error::new(ErrorKind::Io, text)
    }

    /// The other servers whose store was replaced.
    pub(super) fn replaced(&self) -> Stores {
        if self.single {
            return BTreeMap::new();
        }
        let state = self.lock();
        let replaced = state.record.known.iter().filter(|(_, known)| known.replaced > 0);
        replaced.map(|(&server, known)| (server, (known.incarnation, known.replaced))).collect()
    }

    /// Whether another server has come with a new store since the last call.
    pub(super) fn has_new_peer_store(&self) -> bool {
        std::mem::take(&mut self.lock().has_new_store)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Every store of a server hands out its own ids: this many bits for each.
const ID_BITS: u32 = 40;

/// The first id, without its server, that a store hands out after `replaced` replacements.
pub(super) fn first_id(replaced: u16) -> u64 {
    u64::from(replaced) << ID_BITS
}

impl State {
    fn change(&mut self, store: &Store, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut after = self.record.clone();
        change(&mut after);
        after.write(&**store.meta())?;
        self.record = after;
        Ok(())
    }

    fn waits_for(&self, own: ServerId, members: &Members) -> String {
        let missing = members.all().iter().filter(|m| m.server != own && !self.met.contains_key(&m.server));
        let shown = missing.map(|m| match self.trouble.get(&m.server) {
            Some(trouble) => format!("server {} ({}: {trouble})", m.server, m.address),
            None => format!("server {} ({})", m.server, m.address),
        });
        shown.collect::<Vec<_>>().join(", ")
    }
}

/// The administrator accepts the loss of this store's predecessor: from now on missing names do not exist. For a store
/// that no server uses; false if nothing was lost.
pub fn forgive(kv: &dyn Kv) -> Result<bool> {
    let Some(bytes) = kv.get(KEY)? else { return Ok(false) };
    let record = Record::read(&bytes)?;
    if record.loss.is_none() {
        return Ok(false);
    }
    record.without_loss(kv)?;
    Ok(true)
}

fn old_dir(dir: FileId) -> Vec<u8> {
    [OLD_DIRS, &dir.0.to_be_bytes()].concat()
}

impl Record {
    fn read(bytes: &[u8]) -> Result<Record> {
        postcard::from_bytes(bytes).map_err(|error| {
            Error::new(ErrorKind::BadStore, format!("the membership record cannot be decoded: {error}"))
        })
    }

    fn write(&self, kv: &dyn Kv) -> Result<()> {
        self.write_with(kv, Batch::default())
    }

    fn write_with(&self, kv: &dyn Kv, mut batch: Batch) -> Result<()> {
        let bytes = postcard::to_stdvec(self).map_err(|error| {
            Error::new(ErrorKind::Io, format!("the membership record cannot be encoded: {error}"))
        })?;
        batch.put(KEY, bytes);
        kv.commit(batch)?;
        kv.sync()
    }

    /// Removes the loss, in `kv` too.
    fn without_loss(self, kv: &dyn Kv) -> Result<Record> {
        let mut batch = Batch::default();
        kv.scan(OLD_DIRS, &[], &mut |key, _| {
            batch.remove(key);
            ControlFlow::Continue(())
        })?;
        let record = Record { loss: None, ..self };
        record.write_with(kv, batch)?;
        Ok(record)
    }
}

fn unknown_store(server: ServerId, incarnation: Incarnation, known: Incarnation) -> Error {
    let text = format!(
        "server {server} comes with another store ({incarnation}) than the one it is known by ({known}): give it back its \
         own, or run \"forebay shard replace {server}\" to go on without what that held"
    );
    Error::new(ErrorKind::BadStore, text)
}
