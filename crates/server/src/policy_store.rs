//! The current policy, kept across restarts.
//!
//! The latest change wins: `forebay policy set`, or a server start with a different policy in its settings than at the
//! previous start. So a policy that was set at run time survives restarts, and a later edit of the settings is not
//! overruled by an old policy in a store.

use forebay_model::{Error, ErrorKind, Result, Stamp};
use forebay_policy::share::Policy;
use forebay_store::{Batch, KeySpace, Kv};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

const KEY: &[u8] = KeySpace::Policy.prefix();

#[derive(Serialize, Deserialize)]
struct Record {
    /// The policy in the settings at the last start.
    configured: String,
    policy: String,
    /// When the policy was set; zero if it only ever came from the settings.
    set: Stamp,
}

pub(crate) struct PolicyStore {
    kv: Arc<dyn Kv>,
    configured: String,
}

impl PolicyStore {
    /// The policy in effect when a server starts with this one in its settings, and since when.
    pub(crate) fn open(
        kv: Arc<dyn Kv>,
        configured: &Policy,
        now: Stamp,
    ) -> Result<(PolicyStore, Policy, Stamp)> {
        let found = kv.get(KEY)?.map(|bytes| postcard::from_bytes::<Record>(&bytes)).transpose();
        let found = found.map_err(|error| {
            Error::new(ErrorKind::BadStore, format!("the policy in the store is damaged: {error}"))
        })?;
        let policy_store = PolicyStore { kv, configured: configured.to_string() };
        let (policy, set) = match found {
            None => (configured.clone(), Stamp(0)),
            Some(Record { configured, policy, set }) if configured == policy_store.configured => {
                let policy = policy.parse().map_err(|error| {
                    Error::new(
                        ErrorKind::BadStore,
                        format!("the policy \"{policy}\" in the store is invalid: {error}"),
                    )
                })?;
                return Ok((policy_store, policy, set));
            }
            // Stamped even if no policy was set before: servers that still run must follow.
            Some(Record { set, .. }) => (configured.clone(), now.max(Stamp(set.0 + 1))),
        };
        policy_store.keep(&policy, set)?;
        Ok((policy_store, policy, set))
    }

    /// Stores a policy durably.
    pub(crate) fn keep(&self, policy: &Policy, set: Stamp) -> Result<()> {
        let record = Record { configured: self.configured.clone(), policy: policy.to_string(), set };
        let value = postcard::to_stdvec(&record)
            .map_err(|error| Error::new(ErrorKind::Io, format!("cannot encode the policy: {error}")))?;
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
    fn latest_policy_change_wins() {
        let kv: Arc<dyn Kv> = Arc::new(MemoryKv::new());
        let start = |configured: &str, now| {
            let (policy_store, policy, set) =
                PolicyStore::open(kv.clone(), &configured.parse().unwrap(), Stamp(now)).unwrap();
            (policy_store, policy.to_string(), set.0)
        };
        let opened = |configured, now| {
            let (_, policy, set) = start(configured, now);
            (policy, set)
        };
        assert_eq!(opened("size-fair", 5), ("size-fair".to_owned(), 0), "no policy was set");
        assert_eq!(opened("size-fair", 6), ("size-fair".to_owned(), 0));
        assert_eq!(opened("job-fair", 7), ("job-fair".to_owned(), 7), "the settings were changed");
        let (policy_store, ..) = start("job-fair", 8);
        policy_store.keep(&"user-fair".parse().unwrap(), Stamp(9)).unwrap();
        assert_eq!(
            opened("job-fair", 20),
            ("user-fair".to_owned(), 9),
            "a policy that was set survives restarts"
        );
        assert_eq!(opened("size-fair", 8), ("size-fair".to_owned(), 10), "later than what it replaces");
        assert_eq!(opened("size-fair", 30), ("size-fair".to_owned(), 10));
        let mut batch = Batch::default();
        batch.put(KEY, [0xff]);
        kv.commit(batch).unwrap();
        let damaged = PolicyStore::open(kv, &"fifo".parse().unwrap(), Stamp(1)).err().expect("damaged");
        assert_eq!(damaged.kind(), ErrorKind::BadStore);
    }
}
