//! The metadata store: ordered keys and values, atomic batches.
//!
//! | key | value | room |
//! |---|---|---|
//! | `i` file | inode | names |
//! | `e` directory, hash of name, name | entry | names |
//! | `d` directory | what its entries here add to its attributes | names |
//! | `x` file, name | extended attribute | names |
//! | `o` file | (orphan: no name left, maybe open) | names |
//! | `n` | whose namespace this is; first id never handed out | names |
//! | `p` intent | parts that this server has prepared | names |
//! | `t` intent | done; who has to hear of it | names |
//! | `s` file | size and last write | data |
//! | `z` file, stamp | zeros: start and end | data |
//! | `r` file | a change of its bytes that another server decides about | reshape |
//! | `u` file | a change of its bytes that was made; who has to hear of it | reshape |
//! | `c` | clock: the last stamp noted | data |
//! | `k` | the key that seals tokens | server |
//! | `m` | the servers of the service, and the stores they were met with | server |
//! | `h` second, job | what a job wrote and read | server |
//! | `b` file | where a file is behind, and what was seen there | server |
//! | `w` stamp | a change behind that was begun | server |
//! | `f` | there if the first server has all names | store |
//! | `v` | incarnation | store |
//! | NUL, `ahead` | how much of the log ahead is in the tree | here |

mod ahead;
mod archives;
mod cached;
mod fjall;
mod flush;
mod fresh;
mod hash;
mod memory;
mod quiet;
mod tops;

pub use self::fjall::FjallKv;
pub use cached::CachedKv;
pub use memory::{Fault, MemoryKv};

use forebay_model::Result;
use serde::{Deserialize, Serialize};
use std::ops::ControlFlow;
use std::sync::Arc;

/// With what all keys of one file or directory begin: a letter and a number.
const HEAD: usize = 9;
type Head = [u8; HEAD];

/// What a visitor of [`Kv::scan`] says to every pair: go on, or enough.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Who looks at a value in [`Kv::view`].
pub type Look<'a> = &'a mut dyn FnMut(Option<&[u8]>);

/// An ordered, crash-safe map.
pub trait Kv: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Shows the value of a key, without a copy of it where there is one in memory. Whoever looks must not ask for more.
    fn view(&self, key: &[u8], look: Look<'_>) -> Result<()> {
        look(self.get(key)?.as_deref());
        Ok(())
    }

    /// Shows the pairs whose key starts with `prefix` and is not below `from`, in order.
    fn scan(&self, prefix: &[u8], from: &[u8], visit: Visit<'_>) -> Result<()>;

    /// Makes all changes of a batch, or none. After it returns they survive the death of this process.
    fn commit(&self, batch: Batch) -> Result<()>;

    /// The same for a caller who needs the batch afterwards.
    fn commit_shared(&self, batch: &Arc<Batch>) -> Result<()> {
        self.commit(Batch::clone(batch))
    }

    /// Does what the last commit has left for a moment in which nobody waits; the next one would do it otherwise.
    fn tidy(&self) {}

    /// Nothing is under a prefix, and nobody puts anything there before this returns: what is put there from then on is
    /// all there is.
    fn begins(&self, _prefix: &[u8]) {}

    /// To be called now and then: if nothing was committed since the last time, does what the next one would have to wait
    /// for.
    fn rest(&self) -> Result<()> {
        Ok(())
    }

    /// After it returns, everything committed before it was called survives the death of the machine.
    /// Calls at the same time share one flush.
    fn sync(&self) -> Result<()>;
}

/// Changes that happen together.
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

    /// Changes these keys no more.
    pub(crate) fn leave_out(&mut self, keys: &[&[u8]]) {
        self.changes.retain(|(key, _)| !keys.contains(&key.as_slice()));
    }

    /// Adds the changes of another batch behind these.
    pub fn append(&mut self, other: Batch) {
        self.changes.extend(other.changes);
    }

    /// What it changes: keys, and their values, or none where they go.
    pub(crate) fn changes(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// What becomes of a key: its last value here, or that it goes; `None` if it is not changed.
    fn find(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.changes.iter().rev().find(|(known, _)| known == key).map(|(_, value)| value.as_deref())
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}
