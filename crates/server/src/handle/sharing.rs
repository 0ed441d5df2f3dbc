//! Sharing between jobs: reports the shares and changes the policy.

use crate::caller::Caller;
use crate::cluster::Outcome;
use crate::jobs::LATELY;
use crate::service::Service;
use forebay_model::{Error, ErrorKind, JobId};
use forebay_policy::share::{Policy, shares};
use forebay_wire::{Answer, Exchange, Reply, Sharing};
use std::collections::HashMap;

impl Service {
    /// The share of this server that every job is due now.
    pub(crate) fn due(&self) -> HashMap<JobId, f64> {
        if let Some(agreed) = self.gossip.shares() {
            return agreed;
        }
        let policy = self.turns.policy();
        if policy.is_fifo() {
            return HashMap::new();
        }
        let jobs = self.jobs.active(self.store.data().now(), LATELY);
        let parts = shares(&policy, &jobs);
        jobs.iter().zip(parts).map(|(job, share)| (job.id(), share)).collect()
    }

    /// A job's share of a resource for which these jobs wait, including itself.
    pub(crate) fn due_among(&self, job: JobId, waiting: &[JobId]) -> f64 {
        let policy = self.turns.policy();
        let jobs = self.jobs.some(waiting);
        if policy.is_fifo() {
            return 1.0;
        }
        let parts = shares(&policy, &jobs);
        jobs.iter().zip(parts).find(|(one, _)| one.id() == job).map_or(0.0, |(_, share)| share)
    }

    pub(super) fn sharing(&self) -> Sharing {
        let policy = self.turns.policy().to_string();
        Sharing {
            policy_set: self.gossip.policy_set(),
            scheduler: self.config.scheduler.to_string(),
            device_rate: self.config.device_rate.map_or(0, |rate| rate.0),
            lambda_millis: u64::try_from(self.config.lambda.as_millis()).unwrap_or(u64::MAX),
            peers: self.gossip.peers(&self.peer_clients, &policy),
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
