//! Sharing between jobs: reports the shares and changes the policy.

use crate::caller::Caller;
use crate::cluster::Outcome;
use crate::gossip::Gossip;
use crate::turns::Turns;
use forebay_model::{Error, ErrorKind};
use forebay_policy::share::Policy;
use forebay_wire::{Answer, Exchange, Reply, Sharing};
use std::sync::Arc;
use std::time::Duration;

/// Serves requests about shares and the policy.
pub(crate) struct SharingRequests {
    pub(crate) turns: Arc<Turns>,
    pub(crate) gossip: Arc<Gossip>,
    /// Time between two exchanges of job tables.
    pub(crate) lambda: Duration,
}

impl SharingRequests {
    pub(super) fn sharing(&self) -> Sharing {
        let (policy, rules) = (self.turns.policy().to_string(), self.turns.rules());
        Sharing {
            policy_set: self.gossip.policy_set(),
            scheduler: rules.discipline.to_string(),
            device_rate: rules.device.map_or(0, |rate| rate.0),
            lambda_millis: u64::try_from(self.lambda.as_millis()).unwrap_or(u64::MAX),
            peers: self.gossip.peers(&policy),
            policy,
        }
    }

    /// Changes the policy on this and all other servers.
    pub(crate) async fn set_policy(&self, caller: &Caller, policy: &str) -> Answer {
        caller.demand("set the policy of this service")?;
        let policy: Policy =
            policy.parse().map_err(|error| Error::new(ErrorKind::Invalid, format!("{error}")))?;
        tracing::info!(uid = %caller.who.uid, %policy, "setting the policy");
        self.gossip.change_policy(&policy).await?;
        Ok(Reply::Sharing(Box::new(self.sharing())))
    }

    /// Receives the job table of another server.
    pub(super) fn receive_table(&self, caller: &Caller, exchange: Exchange) -> Outcome {
        caller.demand("act as a server of this service")?;
        self.gossip.merge_table(exchange)?;
        Ok(Reply::Done)
    }
}
