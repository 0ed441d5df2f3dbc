//! The metadata store: ordered keys and values, atomic batches.
//!
//! | key | value | module |
//! |---|---|---|
//! | `i` file | inode | names |
//! | `e` directory, hash of name, name | entry | names |
//! | `d` directory | what its entries on this server add to its attributes | names |
//! | `x` file, name | extended attribute | names |
//! | `o` file | (orphan: no name left, maybe open) | names |
//! | `n` | owner of the namespace; first id never allocated | names |
//! | `p` intent | parts that this server has prepared | names |
//! | `t` intent | done; servers that must be notified | names |
//! | `s` file | size and last write | data |
//! | `z` file, stamp | zeros: start and end | data |
//! | `r` file | a change of its bytes that another server coordinates | reshape |
//! | `u` file | a change of its bytes that was applied; servers that must be notified | reshape |
//! | `c` | clock: the last persisted stamp | data |
//! | `k` | the key that seals tokens | server |
//! | `m` | the servers of the service, and the incarnations of their stores | server |
//! | `h` second, job | bytes that a job wrote and read | server |
//! | `b` file | path of the file in the back end, and the attributes last seen there | server |
//! | `w` stamp | a change in the back end that was begun | server |
//! | `f` | present if the first server holds all names | store |
//! | `v` | incarnation | store |
//! | NUL, `ahead` | how much of the log ahead is in the tree | meta |

mod ahead;
mod archives;
mod cached;
mod empty_prefixes;
mod fjall;
mod flush;
mod hash;
mod key_space;
mod last_keys;
mod memory;
mod quiet;
mod reserve;
mod tree;

pub use self::fjall::FjallKv;
pub use cached::CachedKv;
pub use key_space::KeySpace;
pub use memory::{Fault, MemoryKv};

use forebay_model::Result;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;

/// The prefix that all keys of one file or directory share: a letter and a number.
const HEAD: usize = 9;
type Head = [u8; HEAD];

/// Called by [`Kv::scan`] for every pair; decides whether to continue.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Called by [`Kv::view`] with a value.
pub type Look<'a> = &'a mut dyn FnMut(Option<&[u8]>);

/// An ordered, crash-safe map.
pub trait Kv: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Passes the value of a key to `look`, without copying a value in memory. `look` must not call the store.
    fn view(&self, key: &[u8], look: Look<'_>) -> Result<()> {
        look(self.get(key)?.as_deref());
        Ok(())
    }

    /// Visits the pairs whose key starts with `prefix` and is not below `from`, in order.
    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()>;

    /// Applies all changes of a batch, or none. After it returns they survive the death of this process.
    fn commit(&self, batch: Batch) -> Result<()>;

    /// Does the same for a caller that needs the batch afterwards.
    fn commit_shared(&self, batch: &Arc<Batch>) -> Result<()> {
        self.commit(Batch::clone(batch))
    }

    /// Does the work that the last commit deferred; otherwise the next commit does it.
    fn tidy(&self) {}

    /// Declares `prefix` empty, so that lookups below it can skip the tree. No other thread may put a key below it
    /// before this returns.
    fn begins(&self, _prefix: &[u8]) {}

    /// Called periodically: if nothing was committed since the last call, does work that the next commit would have to
    /// wait for.
    fn rest(&self) -> Result<()> {
        Ok(())
    }

    /// After it returns, everything committed before the call survives the death of the machine. Concurrent calls share
    /// one flush.
    fn sync(&self) -> Result<()>;
}

/// Changes that are applied atomically.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    changes: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Batch {
    /// Sets a key.
    pub fn put(&mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), Some(value.into())));
    }

    /// Removes a key.
    pub fn remove(&mut self, key: impl Into<Vec<u8>>) {
        self.changes.push((key.into(), None));
    }

    /// Removes the changes of these keys from the batch.
    pub(crate) fn leave_out(&mut self, keys: &[&[u8]]) {
        self.changes.retain(|(key, _)| !keys.contains(&key.as_slice()));
    }

    /// Appends the changes of another batch.
    pub fn append(&mut self, other: Batch) {
        self.changes.extend(other.changes);
    }

    /// The changed keys with their new values; `None` for a removed key.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// The last change of a key in this batch: a value or a removal; `None` if it is not changed.
    fn find(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.changes.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_deref())
    }

    /// Whether the batch has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
