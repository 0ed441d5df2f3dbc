//! Copies of directories: used while they count, given up before the directory changes, never brought back.

use crate::cluster::Cluster;
use crate::common::{ROOT, name, outcome, user};
use crate::model::{Answer, How, Op};
use forebay_model::{Change, ErrorKind, FileId, Identity, Name, Result, ServerId, Stamp};
use forebay_store::{Ask, Found, Heard, Obstacle, Stopped, Told, Walked};

const NOW: Stamp = Stamp(3_000_000_000);

fn made(told: Result<Answer>) -> FileId {
    match told {
        Ok(Answer::Made(id)) => id,
        other => panic!("nothing was made: {other:?}"),
    }
}

fn make_dir(cluster: &Cluster, dir: FileId, text: &str) -> FileId {
    let op = Op::MakeDir { dir, name: name(text), mode: 0o777 };
    made(cluster.perform(&Identity::root(), &op, NOW))
}

/// A name in a directory that is at home on a certain server.
fn at_home(cluster: &Cluster, dir: FileId, server: ServerId) -> Name {
    let mut names = (0..).map(|number| name(&format!("n{number}")));
    names.find(|name| cluster.members.home(dir, name) == server).expect("homes are spread")
}

/// A directory and a server that has to do with it only by way of a copy.
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
fn a_directory_changes_only_when_nobody_believes_in_its_copy() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let (who, first) = (user(10, 100, &[]), at_home(&cluster, dir, other));
    create(&cluster, &who, dir, &first).expect("everybody may");
    let names = cluster.names(authority).expect("it runs");
    let change = Change { mode: Some(0o700), ..Change::default() };
    let stopped = names.set_attr(&Identity::root(), dir, &change, NOW).unwrap_err();
    assert_eq!(stopped, Stopped::Obstacle(Obstacle::Copies(dir)), "it was lent");
    chmod(&cluster, dir, 0o700).expect("root may");
    let second = Name::new([first.as_bytes(), b"x"].concat()).expect("good");
    assert_eq!(outcome(&create(&cluster, &who, dir, &second)), "AccessDenied");
    // Nobody has asked for it since: it changes at once.
    let alone = make_dir(&cluster, ROOT, "never lent");
    let names = cluster.names(cluster.members.authority(alone)).expect("it runs");
    names.set_attr(&Identity::root(), alone, &change, NOW).expect("nobody has a copy");
}

#[test]
fn an_answer_that_was_on_its_way_does_not_bring_back_a_copy() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let (ours, theirs) = (cluster.names(other).expect("it runs"), cluster.names(authority).expect("it runs"));
    assert_eq!(ours.dir(dir), Err(Stopped::Obstacle(Obstacle::Directory(dir))));
    let question = ours.question(&Obstacle::Directory(dir)).expect("somebody can be asked");
    let told = theirs.answer(other, &question.ask).expect("it is there");
    // Meanwhile it changes, and we are told to drop a copy that we do not have yet.
    chmod(&cluster, dir, 0o700).expect("root may");
    assert_eq!(ours.hear(question, told), Ok(Heard::GoOn));
    assert_eq!(ours.dir(dir), Err(Stopped::Obstacle(Obstacle::Directory(dir))), "the answer was too old");
}

#[test]
fn while_a_directory_changes_nobody_gets_a_copy() {
    let cluster = Cluster::new(3);
    let (dir, authority, other) = foreign(&cluster);
    let theirs = cluster.names(authority).expect("it runs");
    let withdrawal = theirs.withdraw(dir);
    assert_eq!(theirs.answer(other, &Ask::Copy(dir)), Err(Stopped::Obstacle(Obstacle::Busy)));
    drop(withdrawal);
    assert!(
        matches!(theirs.answer(other, &Ask::Copy(dir)), Ok(Told::Copy(copy)) if copy.name == Some(name("d")))
    );
    let stranger = ServerId(9);
    assert_eq!(outcome(&theirs.answer(stranger, &Ask::Drop(dir))), "Protocol", "it is ours to say");
}

#[test]
fn known_ways_are_checked_not_believed() {
    let cluster = Cluster::new(3);
    let a = make_dir(&cluster, ROOT, "a");
    let b = make_dir(&cluster, a, "b");
    let c = make_dir(&cluster, b, "c");
    let root = Identity::root();
    let leads = |who: &Identity, path: &str, dir: FileId| {
        let path: Vec<_> = path.split('/').filter(|part| !part.is_empty()).map(name).collect();
        let told: Vec<_> = cluster
            .members
            .servers()
            .map(|server| cluster.attempt(server, NOW, |names| names.leads_to(who, &path, dir)))
            .map(|told| match told.map_err(|error| error.kind()) {
                // Said by the server that would have made it.
                Err(ErrorKind::NotFound) => Ok(false),
                told => told,
            })
            .collect();
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "{told:?}");
        told[0]
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
    let told = leads(&user(10, 100, &[]), "bb/c", c);
    assert_eq!(told, Err(ErrorKind::AccessDenied), "no search permission on the way");
}

#[test]
fn walks_go_on_where_the_next_name_is_at_home() {
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
    // After it moved, the name is on one server and the file on another.
    let op = Op::Rename { dir, name: here, to_dir: dir, to_name: there.clone(), how: How::Replace };
    cluster.perform(&root, &op, NOW).expect("it moves");
    let looked = cluster.attempt(other, NOW, |names| names.lookup(&root, dir, &there));
    assert!(matches!(looked, Ok(Found::Away(file, _)) if file == id));
    let walked = cluster.attempt(other, NOW, |names| names.walk(&root, dir, there.as_bytes(), true));
    assert_eq!(walked, Ok(Walked::At { dir, file: id, rest: Vec::new() }));
    let wrong = cluster.attempt(authority, NOW, |names| names.lookup(&root, dir, &there));
    assert_eq!(outcome(&wrong), "Protocol", "whoever asks has another list");
}
