//! Flaws in the namespace of several servers are found, and repaired where that is safe.

use crate::cluster::Cluster;
use crate::common::ROOT;
use crate::model::{Answer, Model, Op};
use crate::random::Author;
use forebay_model::{ErrorKind, FileId, Identity, Name, ServerId, Stamp};
use forebay_store::{
    Batch, Kv, MemoryKv, NameReply, NameRequest, Names, Next, Op as Deed, Part, Prepare, RenameMode,
    check_all, repair,
};
use forebay_testkit::{Rng, seed};
use std::ops::ControlFlow;
use std::sync::Arc;

const NOW: Stamp = Stamp(3_000_000_000);

/// The records of a store with a given key letter.
fn records(kv: &MemoryKv, letter: u8) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut records = Vec::new();
    kv.scan(&[letter], &[], &mut |key, value| {
        records.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    })
    .expect("memory");
    records
}

/// Three servers with some directories, files and links, all renamed.
fn busy() -> Cluster {
    let (cluster, mut model) = (Cluster::new(3), Model::new(0o777, Stamp(1)));
    let mut author = Author::new(77);
    for number in 1..=300 {
        let (op, now) = (author.op(&model), Stamp(number * 1_000_000_007));
        let got = cluster.perform(&Identity::root(), &op, now);
        let made = match got {
            Ok(Answer::Made(id)) => id,
            _ => FileId(u64::MAX),
        };
        drop(model.apply(&Identity::root(), &op, now, made));
    }
    assert_eq!(cluster.check(), Vec::<String>::new());
    cluster
}

fn stores(cluster: &Cluster) -> Vec<Arc<dyn Kv>> {
    cluster.members.servers().map(|server| cluster.kv(server) as Arc<dyn Kv>).collect()
}

fn mend(cluster: &Cluster, drop_dangling: bool) -> Vec<String> {
    repair(&cluster.members, &stores(cluster), drop_dangling).expect("they can be opened")
}

/// Damages one record with this key letter on some server; `None` removes it.
fn damage(cluster: &Cluster, letter: u8, pick: impl Fn(&[u8], &[u8]) -> Option<Option<Vec<u8>>>) {
    for server in cluster.members.servers() {
        let kv = cluster.kv(server);
        for (key, value) in records(&kv, letter) {
            let mut batch = Batch::default();
            match pick(&key, &value) {
                None => continue,
                Some(None) => batch.remove(key),
                Some(Some(value)) => batch.put(key, value),
            }
            kv.commit(batch).expect("memory");
            return;
        }
    }
    panic!("there is no such record");
}

#[test]
fn repair_corrects_wrong_counts() {
    let cluster = busy();
    damage(&cluster, b'd', |_, value| {
        let mut value = value.to_vec();
        value[4] += 3;
        Some(Some(value))
    });
    damage(&cluster, b'd', |key, value| (key[8] != 1 && value[4] > 0).then_some(None));
    let findings = cluster.check();
    assert!(findings.iter().any(|found| found.contains("says it holds")), "{findings:?}");
    assert!(!mend(&cluster, false).is_empty());
    assert_eq!(cluster.check(), Vec::<String>::new());
}

#[test]
fn dangling_entry_is_removed_only_on_request() {
    let cluster = busy();
    // A file, because the contents of a directory would be lost with it.
    damage(&cluster, b'e', |_, value| (value[1] == 0).then(|| Some([&value[..2], &[0xEE; 8]].concat())));
    let findings = cluster.check();
    assert!(findings.iter().any(|found| found.contains("is missing")), "{findings:?}");
    mend(&cluster, false);
    assert!(
        cluster.check().iter().any(|found| found.contains("is missing")),
        "nothing is removed without a request"
    );
    mend(&cluster, true);
    assert_eq!(cluster.check(), Vec::<String>::new());
}

#[test]
fn misplaced_entry_and_missing_directory_are_found() {
    let cluster = busy();
    let kv = cluster.kv(ServerId(0));
    let (key, value) = records(&kv, b'e').swap_remove(0);
    let mut batch = Batch::default();
    batch.put(key, value);
    cluster.kv(ServerId(1)).commit(batch).expect("memory");
    let findings = cluster.check();
    assert!(findings.iter().any(|found| found.contains("but at home on server 0")), "{findings:?}");
    let cluster = busy();
    damage(&cluster, b'i', |key, value| {
        let is_dir = value.windows(2).any(|pair| pair == [1, 0]) && key[8] != 1;
        is_dir.then_some(None)
    });
    assert_ne!(cluster.check(), Vec::<String>::new());
}

#[test]
fn prepared_parts_without_a_decision_are_undone() {
    let cluster = busy();
    let (who, root) = (Identity::root(), ROOT);
    let name = (0..).map(|n| Name::new(format!("seal{n}")).expect("good"));
    let name = name.into_iter().find(|name| cluster.members.home(root, name) == ServerId(1)).expect("spread");
    let dir = match cluster.perform(&who, &Op::MakeDir { dir: root, name: name.clone(), mode: 0o777 }, NOW) {
        Ok(Answer::Made(id)) => id,
        other => panic!("{other:?}"),
    };
    // The first server requests all others to seal the directory, then fails.
    let coordinator = cluster.names(ServerId(0)).expect("it runs");
    let deed = Deed::RemoveDir { dir: root, name };
    let mut task = coordinator.task(who.clone(), deed, NOW);
    let mut got = Vec::new();
    let mut sealed = 0;
    while sealed == 0 {
        got = match task.next(&coordinator, std::mem::take(&mut got)) {
            Next::NameRequest(asks) => asks
                .iter()
                .map(|(to, ask)| {
                    let sealing =
                        |parts: &[(usize, Part)]| parts.iter().any(|(_, part)| matches!(part, Part::Seal(_)));
                    sealed += usize::from(
                        matches!(ask, NameRequest::Prepare(Prepare { parts, .. }) if sealing(parts)),
                    );
                    cluster.send(ServerId(0), *to, ask, NOW)
                })
                .collect(),
            other => panic!("{other:?}"),
        };
    }
    assert!(got.iter().all(|got| matches!(got, Ok(NameReply::Prepared(_)))), "{got:?}");
    drop(task);
    cluster.crash(ServerId(0), true);
    let findings = cluster.check();
    assert!(findings.iter().any(|found| found.contains("does not know")), "{findings:?}");
    let done = mend(&cluster, false);
    assert!(done.iter().any(|done| done.contains("undid intent")), "{done:?}");
    assert_eq!(cluster.check(), Vec::<String>::new());
    let cluster = cluster.fork();
    let file = Name::new("inside").expect("good");
    assert!(cluster.perform(&who, &Op::Create { dir, name: file, mode: 0o600 }, NOW).is_ok());
}

#[test]
fn missing_store_is_the_only_finding() {
    let cluster = busy();
    let all = stores(&cluster);
    let some: Vec<&dyn Kv> = all.iter().take(2).map(|kv| &**kv).collect();
    assert_eq!(check_all(&cluster.members, &some), ["the store of server 2 was not checked"]);
}

#[test]
fn directory_loops_are_found() {
    let cluster = Cluster::new(3);
    let make = |dir, text: &str| {
        let op = Op::MakeDir { dir, name: Name::new(text).expect("good"), mode: 0o777 };
        match cluster.perform(&Identity::root(), &op, NOW) {
            Ok(Answer::Made(id)) => id,
            other => panic!("{other:?}"),
        }
    };
    let a = make(ROOT, "a");
    let b = make(a, "b");
    // Each directory records the other as its parent.
    let owner = cluster.kv(cluster.members.authority(a));
    let key = [b"i".to_vec(), a.0.to_be_bytes().to_vec()].concat();
    let inode = owner.get(&key).expect("memory").expect("there");
    let mut changed = inode.clone();
    let at = changed.windows(2).position(|pair| pair == [1, 1]).expect("one parent, the root");
    changed.splice(at + 1..at + 2, postcard_number(b.0));
    let mut batch = Batch::default();
    batch.put(key, changed);
    owner.commit(batch).expect("memory");
    let findings = cluster.check();
    assert!(findings.iter().any(|found| found.contains("not below the root")), "{findings:?}");
}

/// A number in postcard encoding.
fn postcard_number(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn random_damage_to_several_stores_never_panics() {
    let base = seed();
    let mut random = Rng::new(base);
    let mut repairs = 0;
    for _ in 0..150 {
        let cluster = busy_fork(&mut random);
        let mut refused = Vec::new();
        for server in cluster.members.servers() {
            refused.extend(Names::open(cluster.kv(server), server).err());
        }
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::BadStore, "FOREBAY_SEED={base}: {error}");
        }
        cluster.check();
        match repair(&cluster.members, &stores(&cluster), true) {
            Ok(_) => repairs += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::BadStore, "FOREBAY_SEED={base}: {error}"),
        }
    }
    assert!(repairs > 0, "FOREBAY_SEED={base}: nothing was repaired");
}

thread_local! {
    static BUSY: Cluster = busy();
}

/// Stopped servers with one byte of one record changed.
fn busy_fork(random: &mut Rng) -> Cluster {
    BUSY.with(|busy| {
        let cluster = busy.fork();
        let server = ServerId(random.below(3) as u16);
        let kv = cluster.kv(server);
        let all = records(&kv, *random.pick(b"iedxonpt"));
        if all.is_empty() {
            return cluster;
        }
        let (key, mut value) = random.pick(&all).clone();
        let mut batch = Batch::default();
        match value.len() {
            0 => batch.remove(key),
            length => {
                value[random.index(length)] ^= 1 << random.below(8);
                batch.put(key, value);
            }
        }
        kv.commit(batch).expect("memory");
        cluster
    })
}

#[test]
fn repair_finishes_a_decided_rename() {
    let cluster = busy();
    let (who, names) = (Identity::root(), |text: String| Name::new(text).expect("good"));
    let mut unfinished = 0;
    for number in 0..6 {
        let (from, to) = (names(format!("from{number}")), names(format!("to{number}")));
        let op = Op::Create { dir: ROOT, name: from.clone(), mode: 0o600 };
        cluster.perform(&who, &op, NOW).expect("new");
        let (home, away) = (cluster.members.home(ROOT, &from), cluster.members.home(ROOT, &to));
        let deed =
            Deed::Rename { dir: ROOT, name: from, to_dir: ROOT, to_name: to, mode: RenameMode::Replace };
        if home == away {
            continue;
        }
        let mut runner = cluster.runner(home, &who, &deed, NOW).expect("it runs");
        // Up to the decision; no other server is notified.
        while runner.step(&cluster).is_none() {}
        unfinished += 1;
    }
    assert!(unfinished > 0);
    assert!(cluster.check().iter().any(|found| found.contains("has not finished")));
    assert!(mend(&cluster, false).iter().any(|done| done.contains("finished intent")));
    assert_eq!(cluster.check(), Vec::<String>::new());
}
