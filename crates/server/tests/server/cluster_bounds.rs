//! Several servers: one user's requests that need another server do not delay other users.

use crate::cluster::Fleet;
use crate::raw::{Raw, name, pattern};
use forebay_model::{Change, FileId, RenameMode};
use forebay_wire::{At, Reply, Request};
use std::time::Duration;

const ROOT: FileId = FileId::ROOT;
/// The hostile user and the other one.
const USERS: [u32; 2] = [4001, 4002];

fn rename(dir: FileId, from: &str, to: &str) -> Request {
    let mode = RenameMode::Replace;
    Request::Rename { dir, name: name(from), to_dir: dir, to_name: name(to), mode }
}

/// A server does not answer: the changes of one user that need it do not delay those of another user that do not.
#[test]
fn one_user_cannot_take_all_changes_on_several_servers() {
    // As many as one connection may have in flight, and more than the server works on.
    const ALL: usize = 64;
    let mut fleet = Fleet::plan(3, |config| config.times.peer = Duration::from_secs(3600));
    (0..3).for_each(|index| fleet.start(index));
    fleet.joined();
    let open = Change { mode: Some(0o777), ..Change::default() };
    fleet.control(0).call(Request::SetAttr { file: ROOT, change: open }).unwrap();
    let [from, away, near] = [0, 2, 1].map(|server| fleet.members().all()[server].server);
    let mut raws = USERS.map(|uid| fleet.control(0).acting(uid));
    let names: Vec<[String; 2]> = (0..ALL)
        .map(|number| {
            [(from, "m"), (away, "t")]
                .map(|(server, like)| fleet.name_on(ROOT, server, &format!("{like}{number}-")))
        })
        .collect();
    for [text, _] in &names {
        raws[0].create(ROOT, text, 0o600);
    }
    let bobs = [(from, "b"), (near, "n")].map(|(server, like)| fleet.name_on(ROOT, server, like));
    raws[1].create(ROOT, &bobs[0], 0o600);
    fleet.stop(2);
    for [text, to] in &names {
        raws[0].send(rename(ROOT, text, to), &[]);
    }
    // The server has begun to work on them.
    for _ in 0..100 {
        raws[1].call(Request::Ping).unwrap();
    }
    assert_eq!(raws[1].call(rename(ROOT, &bobs[0], &bobs[1])), Ok(Reply::Done));
    drop(raws);
    fleet.start(2);
}

/// Clients that announce appends to a striped file and do not send them do not delay the appends of other users.
#[test]
fn one_user_cannot_take_all_memory_for_appends() {
    const LEN: u32 = 4 << 20;
    let mut fleet = Fleet::plan(2, |config| {
        config.times.reservation = Duration::from_secs(3600);
        config.times.stall = Duration::from_secs(3600);
    });
    (0..2).for_each(|index| fleet.start(index));
    fleet.joined();
    let open = Change { mode: Some(0o777), ..Change::default() };
    fleet.control(0).call(Request::SetAttr { file: ROOT, change: open }).unwrap();
    let own = fleet.members().all()[0].server;
    let text = fleet.name_on(ROOT, own, "striped");
    let mut control = fleet.control(0).acting(USERS[0]);
    let token = control.create(ROOT, &text, 0o600);
    let other = fleet.control(0).acting(USERS[1]).create(ROOT, &fleet.name_on(ROOT, own, "other"), 0o600);
    // One sends nothing, the others a byte.
    for sent in [0, 1] {
        let silent: Vec<Raw> = (0..20)
            .map(|_| {
                let mut raw = fleet.data(own).acting(USERS[0]);
                raw.begin_write(token, At::End, LEN, &[7; 1][..sent]);
                raw
            })
            .collect();
        let mut bob = fleet.data(own).acting(USERS[1]);
        bob.write(other, At::End, &pattern(1, 1 << 20)).unwrap();
        drop(silent);
    }
}
