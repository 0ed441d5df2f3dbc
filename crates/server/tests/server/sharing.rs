//! Servers exchange job tables: they accept only plausible tables, and only from peers.

use crate::raw::{ALICE, World};
use forebay_model::{ErrorKind, Job, ServerId, Stamp};
use forebay_testkit::until;
use forebay_wire::{Exchange, Reply, Request, Sharing};
use std::time::Duration;

fn sharing(world: &World) -> Sharing {
    match world.control().call(Request::GetPolicy) {
        Ok(Reply::Sharing(sharing)) => *sharing,
        other => panic!("expected the policy, got {other:?}"),
    }
}

fn job(label: &str, nodes: u32) -> Job {
    Job { label: label.into(), user: "u".into(), group: "g".into(), nodes, priority: 1 }
}

/// A server, and a peer that it connects to.
fn pair() -> (World, World) {
    let place = forebay_testkit::address();
    let other = World::with(|config| {
        config.listen = place;
        config.server = ServerId(2);
    });
    let first = World::with(|config| {
        config.server = ServerId(1);
        config.peers = vec![format!("tcp:{place}")];
        config.key = Some(other.config.key_path());
        config.lambda = Duration::from_millis(20);
    });
    (first, other)
}

#[test]
fn only_plausible_job_tables_are_accepted() {
    let (first, _other) = pair();
    // The peer does not know this server and reports that; from then on its id is known.
    until("connected", || sharing(&first).peers[0].server == Some(ServerId(2)));
    until("refused by the peer", || {
        sharing(&first).peers[0].trouble.as_ref().is_some_and(|text| text.contains("not a peer"))
    });
    let good = Exchange {
        server: ServerId(2),
        version: 100,
        capacity: 1 << 30,
        policy: "user-then-size-fair".into(),
        policy_set: Stamp(0),
        part: 0,
        parts: 1,
        jobs: vec![job("7", 4)],
    };
    let notify = |table: Exchange| first.control().call(Request::Exchange(table));
    assert_eq!(notify(good.clone()), Ok(Reply::Done));
    let newer = || Exchange { version: 101, ..good.clone() };
    for (table, says) in [
        (Exchange { server: ServerId(9), ..newer() }, "server 9 is not a peer"),
        (Exchange { server: ServerId(1), ..newer() }, "server 1 is not a peer"),
        (good.clone(), "version 100 is not newer"),
        (Exchange { version: 3, ..good.clone() }, "version 3 is not newer"),
        (Exchange { capacity: 0, ..newer() }, "capacity cannot be 0"),
        (Exchange { jobs: vec![job("7", 4), job("7", 5)], ..newer() }, "job 7 is in it twice"),
        (Exchange { jobs: vec![job("7", 0)], ..newer() }, "at least one node"),
        (Exchange { jobs: vec![job("7", u32::MAX)], ..newer() }, "no machine has"),
        (Exchange { jobs: vec![job("", 1)], ..newer() }, "label"),
        (Exchange { part: 1, parts: 1, ..newer() }, "not a part of a table"),
        (Exchange { part: 1, parts: 2, ..newer() }, "came without those before it"),
        (Exchange { parts: u16::MAX, ..newer() }, "not a part of a table"),
        (Exchange { policy: "sise-fair".into(), ..newer() }, "did you mean \"size\""),
        (Exchange { policy: "fifo".into(), policy_set: Stamp(u64::MAX), ..newer() }, "in the future"),
    ] {
        let error = notify(table).expect_err(says);
        assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains(says), "{says}: {error}");
    }
    assert_eq!(sharing(&first).policy, "user-then-size-fair", "refused tables have no effect");
    let stranger = first.control().acting(ALICE).call(Request::Exchange(newer()));
    assert_eq!(stranger.unwrap_err().kind(), ErrorKind::NotPermitted);
    // A table in two parts, and a policy that was set on the peer.
    let many = |from: u64| (from..from + 1024).map(|id| job(&id.to_string(), 1)).collect::<Vec<_>>();
    let half = Exchange { version: 200, parts: 2, jobs: many(1), ..good.clone() };
    assert_eq!(notify(half.clone()), Ok(Reply::Done));
    let rest = Exchange { part: 1, jobs: many(5000), policy: "fifo".into(), policy_set: Stamp(5), ..half };
    assert_eq!(notify(rest), Ok(Reply::Done));
    assert_eq!((sharing(&first).policy.as_str(), sharing(&first).policy_set), ("fifo", Stamp(5)));
}

#[test]
fn setting_a_policy_checks_permission_and_points_at_typos() {
    let world = World::new();
    let set = |policy: &str| world.control().call(Request::SetPolicy { policy: policy.into() });
    let Ok(Reply::Sharing(now)) = set("group-user-size-fair") else { panic!("not set") };
    assert_eq!(now.policy, "group-then-user-then-size-fair");
    let error = set("user-then-sise-fair").unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.to_string().contains("^^^^"), "{error}");
    let request = Request::SetPolicy { policy: "fifo".into() };
    let refused = world.control().acting(ALICE).call(request).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    assert_eq!(sharing(&world).policy, "group-then-user-then-size-fair");
}

#[test]
fn policy_survives_restarts_until_the_configuration_changes() {
    let mut world = World::new();
    let policy_of = |world: &World| {
        let sharing = sharing(world);
        (sharing.policy, sharing.policy_set)
    };
    assert_eq!(policy_of(&world), ("user-then-size-fair".to_owned(), Stamp(0)));
    world.control().call(Request::SetPolicy { policy: "job-fair".into() }).unwrap();
    let set = policy_of(&world);
    assert!(set.0 == "job-fair" && set.1 > Stamp(0));
    world.restart();
    assert_eq!(policy_of(&world), set, "the policy and its time survive");
    world.config.policy = "size-fair".parse().unwrap();
    world.restart();
    let edited = policy_of(&world);
    assert!(
        edited.0 == "size-fair" && edited.1 > set.1,
        "{edited:?}: the configuration overrides the policy that was set"
    );
    world.restart();
    assert_eq!(policy_of(&world), edited);
}
