//! Whom this server has met, with which store; and whether it may serve.
//!
//! A new store serves once it is sure that it stands in for no other: it has met all others and theirs are new too, or
//! one that has joined knows it. A store that has joined serves at once, whoever else is there. A server that comes with
//! another store than the one it is known by is refused until somebody says that the old one is lost.
//!
//! **Invariant**: what was acknowledged by a store that is gone is never answered for by an empty one.

use forebay_model::{Error, ErrorKind, FileId, Incarnation, Members, Result, ServerId};
use forebay_store::{Batch, Kv, Store};
use forebay_wire::{Met, Standing};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the metadata store keeps it.
pub(super) const KEY: &[u8] = b"m";

/// What is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Record {
    epoch: u64,
    servers: Vec<ServerId>,
    joined: bool,
    known: BTreeMap<ServerId, Known>,
    /// Set if this store stands in for one that was lost.
    loss: Option<Loss>,
    /// The first id that this store handed out.
    first: FileId,
}

/// What is remembered of another server.
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
    /// Directories made before this by each server may have had entries here.
    before: BTreeMap<ServerId, FileId>,
}

/// Whom this server has met.
pub(crate) struct Joining {
    own: ServerId,
    single: bool,
    joined: AtomicBool,
    state: Mutex<State>,
}

struct State {
    record: Record,
    /// Those that were met in this life, and the first id that each had not handed out.
    met: BTreeMap<ServerId, FileId>,
    /// Why the others could not be met.
    trouble: BTreeMap<ServerId, String>,
    refused: Option<(ServerId, String)>,
    /// Another server has come with a new store, and nobody has looked yet what went with the old one.
    bereaved: bool,
}

/// The other servers whose store was replaced: what they are known by, and how often it was.
pub(super) type Stores = BTreeMap<ServerId, (Incarnation, u16)>;

impl Joining {
    /// What the store remembers; says what is wrong if it belongs to a service of other servers.
    pub(crate) fn open(store: &Store, own: ServerId, members: &Members) -> Result<Joining> {
        let single = members.is_single();
        let record = match store.meta().get(KEY)? {
            Some(bytes) => Record::read(&bytes)?,
            None => Record {
                epoch: members.epoch(),
                servers: match store.names().count() > 1 {
                    // Something was made here by a server that was alone.
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
        let state =
            State { record, met: BTreeMap::new(), trouble: BTreeMap::new(), refused: None, bereaved: false };
        Ok(Joining { own, single, joined, state: Mutex::new(state) })
    }

    /// Whether this server may serve.
    pub(crate) fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// Its place in the service.
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

    /// Another server is there, with this store: how often that was replaced, unless it is met for the first time.
    /// Fails if it is known by another.
    pub(crate) fn meet(
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
                tracing::warn!(%server, was = %known.incarnation, %incarnation, "a server comes with another store");
                Known { incarnation, replaced: known.replaced + 1, may_replace: false }
            }
            Some(known) => return Err(stranger(server, incarnation, known.incarnation)),
            None => Known { incarnation, replaced: 0, may_replace: false },
        };
        state.change(store, |record| {
            record.known.insert(server, now);
        })?;
        state.bereaved |= known.is_some();
        Ok(known.map(|_| now.replaced))
    }

    /// What another server thinks of this one. Joins if that is enough.
    pub(crate) fn has_met(&self, store: &Store, members: &Members, met: &Met) -> Result<()> {
        self.meet(store, met.server, met.incarnation)?;
        let mut state = self.lock();
        state.refused.take_if(|(server, _)| *server == met.server);
        state.trouble.remove(&met.server);
        state.met.insert(met.server, met.next_id);
        if self.has_joined() {
            return Ok(());
        }
        let replaced = met.replaced.filter(|_| met.joined);
        let everybody = members.servers().all(|server| server == self.own || state.met.contains_key(&server));
        if replaced.is_none() && !everybody {
            return Ok(());
        }
        let lives = replaced.unwrap_or(0);
        let loss = (lives > 0).then(|| Loss { before: state.met.clone() });
        if lives > 0 {
            // Others may know files by ids that the lost store handed out.
            store.names().skip_ids(first_id(lives))?;
        }
        state.change(store, |record| {
            record.joined = true;
            record.loss = loss;
            record.first = FileId::made_by(self.own, first_id(lives));
        })?;
        self.joined.store(true, Ordering::Release);
        tracing::info!(server = %self.own, replaced = lives, "joined the service");
        Ok(())
    }

    /// Nothing came of an attempt to meet another server. Some of them will not change by waiting.
    pub(crate) fn turned_away(&self, server: ServerId, error: &Error) {
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

    /// The store another server is known by, and how often it was replaced.
    pub(crate) fn known(&self, server: ServerId) -> Option<(Incarnation, u16)> {
        self.lock().record.known.get(&server).map(|known| (known.incarnation, known.replaced))
    }

    /// Whether entries of a directory may have been lost with an earlier store of this server.
    pub(crate) fn may_have_lost(&self, dir: FileId) -> bool {
        if self.single {
            return false;
        }
        let state = self.lock();
        let Some(loss) = &state.record.loss else { return false };
        loss.before.get(&dir.maker()).is_none_or(|&first| dir < first)
    }

    /// Whether this store stands in for one that was lost.
    pub(crate) fn has_lost(&self) -> bool {
        !self.single && self.lock().record.loss.is_some()
    }

    /// What an administrator has to know where that is so.
    pub(crate) fn loss(&self) -> String {
        format!(
            "an earlier store of server {} was lost with all names and files that it held; what is not found in \
             directories made before gives an I/O error until \"forebay check --repair\"",
            self.own
        )
    }

    /// Whether an earlier store of this server may have had the inode of a file.
    pub(crate) fn may_have_lost_file(&self, file: FileId) -> bool {
        file.maker() == self.own && self.has_lost() && file < self.lock().record.first
    }

    /// The error for something that is not here, and may have been in the store that is lost.
    pub(crate) fn lost(&self, miss: &Error) -> Error {
        let own = self.own;
        let text = format!(
            "{miss}: it may have been lost with an earlier store of server {own}; run \"forebay check --repair\" to go on \
             without"
        );
        Error::new(ErrorKind::Io, text)
    }

    /// The other servers whose store was replaced, and what they are known by now.
    pub(super) fn replaced(&self) -> Stores {
        if self.single {
            return BTreeMap::new();
        }
        let state = self.lock();
        let replaced = state.record.known.iter().filter(|(_, known)| known.replaced > 0);
        replaced.map(|(&server, known)| (server, (known.incarnation, known.replaced))).collect()
    }

    /// Whether another server has come with a new store since this was last asked.
    pub(super) fn is_bereaved(&self) -> bool {
        std::mem::take(&mut self.lock().bereaved)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Each life of a server's store hands out ids of its own: so many bits of them.
const LIFE: u32 = 40;

/// The first id, without its server, that a store hands out after so many replacements.
pub(super) fn first_id(replaced: u16) -> u64 {
    u64::from(replaced) << LIFE
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

/// Somebody has seen what was lost with the former store of this one: from now on what is not here was never here. For a
/// store that nobody serves; false if nothing was lost.
pub fn forgive(kv: &dyn Kv) -> Result<bool> {
    let Some(bytes) = kv.get(KEY)? else { return Ok(false) };
    let mut record = Record::read(&bytes)?;
    if record.loss.take().is_none() {
        return Ok(false);
    }
    record.write(kv)?;
    Ok(true)
}

impl Record {
    fn read(bytes: &[u8]) -> Result<Record> {
        postcard::from_bytes(bytes).map_err(|error| {
            Error::new(ErrorKind::BadStore, format!("whom this store has met cannot be read: {error}"))
        })
    }

    fn write(&self, kv: &dyn Kv) -> Result<()> {
        let bytes = postcard::to_stdvec(self)
            .map_err(|error| Error::new(ErrorKind::Io, format!("whom this store has met: {error}")))?;
        let mut batch = Batch::default();
        batch.put(KEY, bytes);
        kv.commit(batch)?;
        kv.sync()
    }
}

fn stranger(server: ServerId, incarnation: Incarnation, known: Incarnation) -> Error {
    let text = format!(
        "server {server} comes with another store ({incarnation}) than the one it is known by ({known}): give it back its \
         own, or run \"forebay server replace {server}\" to go on without what that held"
    );
    Error::new(ErrorKind::BadStore, text)
}
