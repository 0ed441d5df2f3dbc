//! The policy that stands, kept over restarts.
//!
//! The latest word counts: `forebay policy set`, or a server that starts with another policy in its settings than it
//! had the last time. So what was set at run time outlives the servers, and whoever edits the settings afterwards is
//! not overruled by something that was forgotten in a store.

use forebay_model::{Error, ErrorKind, Result, Stamp};
use forebay_policy::share::Policy;
use forebay_store::{Batch, Kv};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KEY: &[u8] = b"y";

/// What is kept.
#[derive(Serialize, Deserialize)]
struct Record {
    /// What the settings said when the server last started.
    configured: String,
    policy: String,
    /// When that was set; zero if only the settings ever said it.
    set: Stamp,
}

/// The policy that stands.
pub(crate) struct Standing {
    kv: Arc<dyn Kv>,
    configured: String,
}

impl Standing {
    /// What stands when a server starts with this policy in its settings, and since when.
    pub(crate) fn open(
        kv: Arc<dyn Kv>,
        configured: &Policy,
        now: Stamp,
    ) -> Result<(Standing, Policy, Stamp)> {
        let found = kv.get(KEY)?.map(|bytes| postcard::from_bytes::<Record>(&bytes)).transpose();
        let found = found.map_err(|error| {
            Error::new(ErrorKind::BadStore, format!("the policy in the store is damaged: {error}"))
        })?;
        let standing = Standing { kv, configured: configured.to_string() };
        let (policy, set) = match found {
            None => (configured.clone(), Stamp(0)),
            Some(Record { configured, policy, set }) if configured == standing.configured => {
                let policy = policy.parse().map_err(|error| {
                    Error::new(
                        ErrorKind::BadStore,
                        format!("the policy \"{policy}\" in the store is none: {error}"),
                    )
                })?;
                return Ok((standing, policy, set));
            }
            // Also where nothing was set before: other servers that still run are to follow.
            Some(Record { set, .. }) => (configured.clone(), now.max(Stamp(set.0 + 1))),
        };
        standing.keep(&policy, set)?;
        Ok((standing, policy, set))
    }

    /// Keeps a policy, also if the machine dies.
    pub(crate) fn keep(&self, policy: &Policy, set: Stamp) -> Result<()> {
        let record = Record { configured: self.configured.clone(), policy: policy.to_string(), set };
        let value = postcard::to_stdvec(&record)
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot note the policy: {error}")))?;
        let mut batch = Batch::default();
        batch.put(KEY, value);
        self.kv.commit(batch)?;
        self.kv.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_store::MemoryKv;

    #[test]
    fn the_latest_word_counts() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new());
        let start = |configured: &str, now| {
            let (standing, policy, set) =
                Standing::open(kv.clone(), &configured.parse().unwrap(), Stamp(now)).unwrap();
            (standing, policy.to_string(), set.0)
        };
        let told = |configured, now| {
            let (_, policy, set) = start(configured, now);
            (policy, set)
        };
        assert_eq!(told("size-fair", 5), ("size-fair".to_owned(), 0), "nobody set anything");
        assert_eq!(told("size-fair", 6), ("size-fair".to_owned(), 0));
        assert_eq!(told("job-fair", 7), ("job-fair".to_owned(), 7), "the settings were changed");
        let (standing, ..) = start("job-fair", 8);
        standing.keep(&"user-fair".parse().unwrap(), Stamp(9)).unwrap();
        assert_eq!(told("job-fair", 20), ("user-fair".to_owned(), 9), "what was set outlives the server");
        assert_eq!(told("size-fair", 8), ("size-fair".to_owned(), 10), "later than what it replaces");
        assert_eq!(told("size-fair", 30), ("size-fair".to_owned(), 10));
        let mut batch = Batch::default();
        batch.put(KEY, [0xff]);
        kv.commit(batch).unwrap();
        let damaged = Standing::open(kv, &"fifo".parse().unwrap(), Stamp(1)).err().expect("damaged");
        assert_eq!(damaged.kind(), ErrorKind::BadStore);
    }
}
