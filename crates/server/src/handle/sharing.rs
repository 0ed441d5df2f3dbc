//! Sharing between jobs: reports the shares and changes the policy.

use crate::caller::Caller;
use crate::cluster::Outcome;
use crate::service::Service;
use forebay_model::{Error, ErrorKind};
use forebay_policy::share::Policy;
use forebay_wire::{Answer, Exchange, Reply, Sharing};

impl Service {
    pub(super) fn sharing(&self) -> Sharing {
        let policy = self.turns.policy().to_string();
        Sharing {
            policy_set: self.gossip.policy_set(),
            scheduler: self.config.scheduler.to_string(),
            device_rate: self.config.device_rate.map_or(0, |rate| rate.0),
            lambda_millis: u64::try_from(self.config.lambda.as_millis()).unwrap_or(u64::MAX),
            peers: self.gossip.peers(&self.peers.clients, &policy),
            policy,
        }
    }

    /// Changes the policy on this and all other servers.
    pub(crate) async fn set_policy(&self, caller: &Caller, policy: &str) -> Answer {
        caller.demand("set the policy of this service")?;
        let policy: Policy =
            policy.parse().map_err(|error| Error::new(ErrorKind::Invalid, format!("{error}")))?;
        tracing::info!(uid = %caller.who.uid, %policy, "setting the policy");
        self.change_policy(&policy).await?;
        Ok(Reply::Sharing(Box::new(self.sharing())))
    }

    /// Receives the job table of another server.
    pub(super) fn receive_table(&self, caller: &Caller, exchange: Exchange) -> Outcome {
        caller.demand("act as a server of this service")?;
        self.merge_table(exchange)?;
        Ok(Reply::Done)
    }
}
