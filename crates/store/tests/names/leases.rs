//! Copies of directories: used under a valid lease, dropped before the directory changes, never restored.

use crate::cluster::Cluster;
use crate::common::{ROOT, name, outcome, user};
use crate::model::{Answer, How, Op};
use forebay_model::{Change, ErrorKind, FileId, Identity, Name, Result, ServerId, Stamp};
use forebay_store::{AfterReply, Found, NameReply, NameRequest, Obstacle, Stopped, Walked};

const NOW: Stamp = Stamp(3_000_000_000);

fn made(got: Result<Answer>) -> FileId {
    match got {
        Ok(Answer::Made(id)) => id,
        other => panic!("nothing was made: {other:?}"),
    }
}

fn make_dir(cluster: &Cluster, dir: FileId, text: &str) -> FileId {
    let op = Op::MakeDir { dir, name: name(text), mode: 0o777 };
    made(cluster.perform(&Identity::root(), &op, NOW))
}

/// A name in a directory whose home is a given server.
fn at_home(cluster: &Cluster, dir: FileId, server: ServerId) -> Name {
    let mut names = (0..).map(|number| name(&format!("n{number}")));
    names.find(|name| cluster.members.home(dir, name) == server).expect("homes are spread")
}

/// A directory, its server, and a server that uses only a copy of it.
fn foreign(cluster: &Cluster) -> (FileId, ServerId, ServerId) {
    let dir = make_dir(cluster, ROOT, "d");
    let authority = cluster.members.authority(dir);
    let other = cluster.members.servers().find(|&server| server != authority).expect("there are three");
    (dir, authority, other)
}

fn chmod(cluster: &Cluster, file: FileId, mode: u16) -> Result<Answer> {
    let change = Change { mode: Some(mode), ..Change::default() };
    cluster.perform(&Identity::root(), &Op::SetAttr { file, change }, NOW)
}

fn create(cluster: &Cluster, who: &Identity, dir: FileId, name: &Name) -> Result<Answer> {
    cluster.perform(who, &Op::Create { dir, name: name.clone(), mode: 0o600 }, NOW)
}

#[test]
fn directory_changes_only_when_no_valid_copy_exists() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let (who, first) = (user(10, 100, &[]), at_home(&cluster, dir, other));
    create(&cluster, &who, dir, &first).expect("all users may");
    let names = cluster.names(authority).expect("it runs");
    let change = Change { mode: Some(0o700), ..Change::default() };
    let stopped = names.set_attr(&Identity::root(), dir, &change, NOW).unwrap_err();
    assert_eq!(stopped, Stopped::Obstacle(Obstacle::Copies(dir)), "it was lent");
    chmod(&cluster, dir, 0o700).expect("root may");
    let second = Name::new([first.as_bytes(), b"x"].concat()).expect("good");
    assert_eq!(outcome(&create(&cluster, &who, dir, &second)), "AccessDenied");
    // No server has requested a copy: it changes at once.
    let alone = make_dir(&cluster, ROOT, "never lent");
    let names = cluster.names(cluster.members.authority(alone)).expect("it runs");
    names.set_attr(&Identity::root(), alone, &change, NOW).expect("no server has a copy");
}

#[test]
fn reply_in_flight_does_not_restore_a_dropped_copy() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let (ours, theirs) = (cluster.names(other).expect("it runs"), cluster.names(authority).expect("it runs"));
    assert_eq!(ours.dir(dir), Err(Stopped::Obstacle(Obstacle::Directory(dir))));
    let question = ours.question(&Obstacle::Directory(dir)).expect("there is a server to query");
    let got = theirs.answer(other, &question.ask).expect("it is there");
    // Meanwhile the directory changes, and the server must drop a copy that it does not have yet.
    chmod(&cluster, dir, 0o700).expect("root may");
    assert_eq!(ours.take_reply(question, got), Ok(AfterReply::GoOn));
    assert_eq!(ours.dir(dir), Err(Stopped::Obstacle(Obstacle::Directory(dir))), "the reply was outdated");
}

#[test]
fn no_server_gets_a_copy_while_a_directory_changes() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let theirs = cluster.names(authority).expect("it runs");
    let withdrawal = theirs.withdraw(dir);
    assert_eq!(theirs.answer(other, &NameRequest::Copy(dir)), Err(Stopped::Obstacle(Obstacle::Busy)));
    drop(withdrawal);
    assert!(
        matches!(theirs.answer(other, &NameRequest::Copy(dir)), Ok(NameReply::Copy(copy)) if copy.name == Some(name("d")))
    );
    let stranger = ServerId(9);
    assert_eq!(
        outcome(&theirs.answer(stranger, &NameRequest::Drop(dir))),
        "Protocol",
        "this server is its authority"
    );
}

#[test]
fn cached_paths_are_verified() {
    let cluster = Cluster::new(3);
    let a = make_dir(&cluster, ROOT, "a");
    let b = make_dir(&cluster, a, "b");
    let c = make_dir(&cluster, b, "c");
    let root = Identity::root();
    let leads = |who: &Identity, path: &str, dir: FileId| {
        let path: Vec<_> = path.split('/').filter(|part| !part.is_empty()).map(name).collect();
        let got: Vec<_> = cluster
            .members
            .servers()
            .map(|server| cluster.attempt(server, NOW, |names| names.leads_to(who, &path, dir)))
            .map(|got| match got.map_err(|error| error.kind()) {
                // The server that would have created it replies so.
                Err(ErrorKind::NotFound) => Ok(false),
                got => got,
            })
            .collect();
        assert!(got.windows(2).all(|pair| pair[0] == pair[1]), "{got:?}");
        got[0]
    };
    for (path, dir, expected) in [
        ("", ROOT, true),
        ("a", a, true),
        ("a/b/c", c, true),
        ("b/c", c, false),
        ("a/b", c, false),
        ("a/x/c", c, false),
        ("x/a/b/c", c, false),
        ("a/b/c", FileId::made_by(ServerId(1), 999), false),
    ] {
        assert_eq!(leads(&root, path, dir), Ok(expected), "{path}");
    }
    let op = Op::Rename { dir: a, name: name("b"), to_dir: ROOT, to_name: name("bb"), how: How::Replace };
    cluster.perform(&root, &op, NOW).expect("it moves");
    assert_eq!((leads(&root, "a/b/c", c), leads(&root, "bb/c", c)), (Ok(false), Ok(true)));
    chmod(&cluster, b, 0o700).expect("root may");
    let got = leads(&user(10, 100, &[]), "bb/c", c);
    assert_eq!(got, Err(ErrorKind::AccessDenied), "no search permission on the path");
}

#[test]
fn walk_continues_on_the_home_of_the_next_name() {
    let cluster = Cluster::new(3);
    let root = Identity::root();
    let (dir, authority, other) = foreign(&cluster);
    let (here, there) = (at_home(&cluster, dir, authority), at_home(&cluster, dir, other));
    let id = made(create(&cluster, &root, dir, &here));
    let walk =
        |path: &str| cluster.attempt(authority, NOW, |names| names.walk(&root, dir, path.as_bytes(), true));
    let rest = format!("{there}/x");
    assert!(matches!(walk(&here.to_string()), Ok(Walked::Found(file, _)) if file == id));
    assert_eq!(walk(&rest), Ok(Walked::Elsewhere { dir, rest: rest.clone().into_bytes() }));
    assert_eq!(walk(&format!("./{rest}")), Ok(Walked::Elsewhere { dir, rest: rest.into_bytes() }));
    assert_eq!(outcome(&walk(&format!("{here}/x"))), "NotDirectory");
    // After the rename, the name is on one server and the file on another.
    let op = Op::Rename { dir, name: here, to_dir: dir, to_name: there.clone(), how: How::Replace };
    cluster.perform(&root, &op, NOW).expect("it moves");
    let looked = cluster.attempt(other, NOW, |names| names.lookup(&root, dir, &there));
    assert!(matches!(looked, Ok(Found::Away(file, _)) if file == id));
    let walked = cluster.attempt(other, NOW, |names| names.walk(&root, dir, there.as_bytes(), true));
    assert_eq!(walked, Ok(Walked::At { dir, file: id, rest: Vec::new() }));
    let wrong = cluster.attempt(authority, NOW, |names| names.lookup(&root, dir, &there));
    assert_eq!(outcome(&wrong), "Protocol", "the client has another list of servers");
}
