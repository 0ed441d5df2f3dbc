//! How the service is shared: what it says, and how it is told otherwise.

use crate::jobs::LATELY;
use crate::service::{Caller, Service};
use crate::several::Handled;
use forebay_model::{Error, ErrorKind, JobId};
use forebay_policy::share::{Policy, shares};
use forebay_wire::{Answer, Exchange, Reply, Sharing};
use std::collections::HashMap;

impl Service {
    /// What every job is due of this server as things are.
    pub(crate) fn due(&self) -> HashMap<JobId, f64> {
        if let Some(agreed) = self.circle.shares() {
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

    /// What a job is due of something for which these wait, itself among them.
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
            policy_set: self.circle.policy_set(),
            scheduler: self.config.scheduler.to_string(),
            device_rate: self.config.device_rate.map_or(0, |rate| rate.0),
            lambda_millis: u64::try_from(self.config.lambda.as_millis()).unwrap_or(u64::MAX),
            peers: self.circle.peers(&self.lines, &policy),
            policy,
        }
    }

    /// Follows another policy from now on, here and on all other servers.
    pub(crate) async fn set_policy(&self, caller: &Caller, policy: &str) -> Answer {
        self.demand(caller, "set the policy of this service")?;
        let policy: Policy =
            policy.parse().map_err(|error| Error::new(ErrorKind::Invalid, format!("{error}")))?;
        tracing::info!(uid = %caller.who.uid, %policy, "the policy is set");
        self.change_policy(&policy).await?;
        Ok(Reply::Sharing(Box::new(self.sharing())))
    }

    /// Hears another server out.
    pub(super) fn hear(&self, caller: &Caller, told: Exchange) -> Handled {
        self.demand(caller, "speak for a server of this service")?;
        self.hear_table(told)?;
        Ok(Reply::Done)
    }
}
