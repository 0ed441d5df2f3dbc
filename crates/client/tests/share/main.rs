//! Sharing policies on real servers over real sockets with a modelled device.
//!
//! The tests check only ratios of the served work, so the speed of the machine does not matter.

mod full_buffer;
mod site;

use forebay_client::Client;
use forebay_model::{ErrorKind, Gid, Identity, JobId, Uid};
use forebay_testkit::until_async;
use forebay_wire::JobState;
use site::{RATE, Site, fair, parts};
use std::time::Duration;

const WINDOW: Duration = Duration::from_millis(2_000);

/// Waits until the server lists these jobs as active, each with its share.
async fn until_shared(observer: &Client, due: &[(JobId, f64)]) {
    until_async("the jobs have their shares", async || {
        let listed = observer.status().await.unwrap().jobs;
        due.iter().all(|(id, due)| {
            let share = (due * 1e6_f64).round() as u32;
            listed.iter().any(|seen| (seen.id, seen.state, seen.share) == (*id, JobState::Active, share))
        })
    })
    .await;
}

/// Waits until the server lists these jobs as active.
async fn until_active(observer: &Client, jobs: &[JobId]) {
    until_async("the jobs are active", async || {
        let listed = observer.status().await.unwrap().jobs;
        jobs.iter().all(|id| listed.iter().any(|seen| seen.id == *id && seen.state == JobState::Active))
    })
    .await;
}

/// Waits until the peers of the server have its policy.
async fn until_agreed(observer: &Client) {
    until_async("the servers agree", async || {
        observer.policy().await.unwrap().peers.iter().all(|peer| peer.agrees)
    })
    .await;
}

/// The jobs of the paper's figures 8 to 11 on one server; the policy changes while they run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_policy_is_enforced_and_can_change_while_jobs_run() {
    let site = Site::new(|config| config.policy = "size-fair".parse().unwrap());
    let observer = site.observer().await;
    let mut jobs = Vec::new();
    for described in ["1 ada astro 4", "2 ada astro 1", "3 bob astro 2", "4 cyd bio 1"] {
        jobs.push(site.writer(described).await);
    }
    for (policy, due) in [
        ("size-fair", [4.0 / 8.0, 1.0 / 8.0, 2.0 / 8.0, 1.0 / 8.0]),
        ("job-fair", [0.25; 4]),
        ("user-fair", [1.0 / 6.0, 1.0 / 6.0, 1.0 / 3.0, 1.0 / 3.0]),
        ("user-then-size-fair", [4.0 / 15.0, 1.0 / 15.0, 1.0 / 3.0, 1.0 / 3.0]),
        ("group-user-size-fair", [0.2, 0.05, 0.25, 0.5]),
    ] {
        assert!(observer.set_policy(policy).await.unwrap().policy.contains("fair"));
        let all: Vec<(JobId, f64)> = jobs.iter().map(|job| job.id).zip(due).collect();
        until_shared(&observer, &all).await;
        fair(policy, &[&observer], &all, 0.0, WINDOW).await;
        let listed = observer.status().await.unwrap().jobs;
        for (job, due) in jobs.iter().zip(due) {
            let seen = listed.iter().find(|seen| seen.id == job.id).unwrap();
            assert_eq!(
                (seen.state, seen.share),
                (JobState::Active, (due * 1e6_f64).round() as u32),
                "{policy}"
            );
            assert!(seen.waited > 0 && seen.operations > 0 && seen.recent > 0);
        }
    }
    for job in jobs {
        job.end().await;
    }
}

/// Figure 8: a job alone gets everything; a second job joins, and both share; the second job vanishes, and the first
/// gets everything again. No data is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_adapt_when_a_job_joins_and_vanishes() {
    let site = Site::new(|config| config.policy = "size-fair".parse().unwrap());
    let observer = site.observer().await;
    let first = site.writer("1 ada astro 4").await;
    until_shared(&observer, &[(first.id, 1.0)]).await;
    let most = 0.9 * RATE.0 as f64;
    fair("alone", &[&observer], &[(first.id, 1.0)], most, WINDOW).await;
    let second = site.writer("2 bob bio 1").await;
    until_shared(&observer, &[(first.id, 0.8), (second.id, 0.2)]).await;
    fair("both", &[&observer], &[(first.id, 0.8), (second.id, 0.2)], most, WINDOW).await;
    // Aborted with requests in flight, not ended.
    let gone = second.id;
    drop(second);
    until_shared(&observer, &[(first.id, 1.0)]).await;
    fair("afterwards", &[&observer], &[(first.id, 1.0), (gone, 0.0)], most, WINDOW).await;
    let listed = observer.status().await.unwrap();
    let state = |id: JobId| listed.jobs.iter().find(|seen| seen.id == id).unwrap().state;
    assert_eq!((state(first.id), state(gone)), (JobState::Active, JobState::Gone));
    first.end().await;
}

/// A storm of metadata requests gets its job's share and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metadata_storm_gets_no_more_than_its_share() {
    let site = Site::new(|config| config.policy = "size-fair".parse().unwrap());
    let observer = site.observer().await;
    let data = site.writer("1 ada astro 3").await;
    let storm = site.storm("2 bob bio 1").await;
    until_shared(&observer, &[(data.id, 0.75), (storm.id, 0.25)]).await;
    fair("data beside a storm", &[&observer], &[(data.id, 0.75)], 0.9 * RATE.0 as f64, WINDOW).await;
    storm.end().await;
    data.end().await;
}

/// Figures 5 and 14: one job on two servers, and one on each of them: 50, 25 and 25 % of both together.
async fn halves_and_quarters(lambda: Duration) {
    let (one, two, _keys) = Site::pair("size-fair", lambda);
    let observers = [one.observer().await, two.observer().await];
    let both = [&observers[0], &observers[1]];
    let large = [one.writer("1 ada astro 16").await, two.writer("1 ada astro 16").await];
    let small = [one.writer("2 bob bio 8").await, two.writer("3 cyd bio 8").await];
    for (observer, local) in both.into_iter().zip(&small) {
        until_active(observer, &[large[0].id, local.id]).await;
        until_agreed(observer).await;
    }
    let due = [(large[0].id, 0.5), (small[0].id, 0.25), (small[1].id, 0.25)];
    fair("on both servers, and on each", &both, &due, 0.0, WINDOW).await;
    for job in large.into_iter().chain(small) {
        job.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_hold_over_two_servers_with_200_ms_gossip() {
    halves_and_quarters(Duration::from_millis(200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_hold_over_two_servers_with_500_ms_gossip() {
    halves_and_quarters(Duration::from_millis(500)).await;
}

/// A case in which dividing by the number of servers would not be fair: each job gets as much as one server provides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_job_on_two_servers_yields_one_to_a_local_job() {
    let lambda = Duration::from_millis(200);
    let (one, two, _keys) = Site::pair("job-fair", lambda);
    let observers = [one.observer().await, two.observer().await];
    let wide = [one.writer("1 ada astro 1").await, two.writer("1 ada astro 1").await];
    let narrow = one.writer("2 bob bio 1").await;
    until_active(&observers[0], &[wide[0].id, narrow.id]).await;
    until_active(&observers[1], &[wide[0].id]).await;
    until_agreed(&observers[0]).await;
    until_agreed(&observers[1]).await;
    let due = [(narrow.id, 0.5), (wide[0].id, 0.5)];
    fair("on one, and on both", &[&observers[0], &observers[1]], &due, 0.0, WINDOW).await;
    // A policy that is set on one server applies to both.
    observers[0].set_policy("fifo").await.unwrap();
    until_agreed(&observers[0]).await;
    assert_eq!(observers[1].policy().await.unwrap().policy, "fifo");
    let other_user = Identity { uid: Uid(4001), gid: Gid(4001), groups: vec![] };
    let refused = observers[0].as_identity(other_user).set_policy("job-fair").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    let typo = observers[0].set_policy("sise-fair").await.unwrap_err();
    assert!(
        typo.kind() == ErrorKind::Invalid && typo.to_string().contains("did you mean \"size\""),
        "{typo}"
    );
    // The stopped server's job table expires, and the other server continues alone.
    drop(two);
    assert!(one.store().exists());
    let (after, _) = parts(&[&observers[0]], WINDOW).await;
    assert!(after[&narrow.id] > 0.0);
    narrow.end().await;
}
