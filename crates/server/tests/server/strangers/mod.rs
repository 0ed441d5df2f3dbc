//! Isolation between users: two users without privileges, root, and every request of the protocol. One table (`rules`)
//! states what a user may see, change, fill or slow down of another user's files; every new request needs a rule.

mod rules;
mod scene;
mod takes;

use crate::bounds::has_users;
use crate::drain::{clean, drain, until};
use crate::raw::{ALICE, BOB, Raw, World, person};
use forebay_backend::{Dir, Fault, Faulty, Memory};
use forebay_model::{ErrorKind, Gid, Identity, Uid};
use forebay_server::{Config, Draining};
use forebay_wire::{
    Answer, At, Call, Channel, ConnectionKey, DrainCall, FrameKind, Reply, Request, Token, frame,
};
use rules::{May, may, requests, rule};
use scene::{Guard, ROOT, Scene, connect};
use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::time::Duration;
use takes::{Bound, takes};
use tempfile::TempDir;

/// Requests of a flood on one connection.
const FLOOD: usize = 60;
/// The errors for a request of another user.
const NO: [ErrorKind; 2] = [ErrorKind::AccessDenied, ErrorKind::NotPermitted];

fn on_data(request: &Request) -> bool {
    matches!(request, Request::Write { .. } | Request::Read { .. })
}

fn channel(request: &Request) -> Channel {
    if on_data(request) { Channel::Data } else { Channel::Control }
}

/// Sends a request, with a payload where needed; returns the answer and its payload.
fn call(raw: &mut Raw, request: &Request) -> (Answer, Vec<u8>) {
    let payload: &[u8] = if matches!(request, Request::Write { .. }) { b"overwritten" } else { &[] };
    let id = raw.send(request.clone(), payload);
    let (answered, answer, bytes) = raw.receive().expect("an answer");
    assert_eq!(answered, id);
    (answer, bytes)
}

/// An answer as sent on the wire, with its payload.
fn encoded((answer, payload): &(Answer, Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame(&mut bytes, FrameKind::Answer, 1, answer, 0).expect("frame fits");
    bytes.extend_from_slice(payload);
    bytes
}

fn is_refused(answer: &Answer, kinds: &[ErrorKind]) -> bool {
    matches!(answer, Err(error) if kinds.contains(&error.kind()))
}

/// The token in a request, if it has one.
fn token_in(request: &mut Request) -> Option<&mut Token> {
    match request {
        Request::Reopen { token }
        | Request::Close { token }
        | Request::Truncate { token, .. }
        | Request::Punch { token, .. }
        | Request::Sync { token }
        | Request::Write { token, .. }
        | Request::Read { token, .. }
        | Request::Extend { token, .. }
        | Request::Ring { token, .. }
        | Request::Map { token, .. }
        | Request::Seek { token, .. }
        | Request::MapFile { token, .. }
        | Request::KeepPages { token } => Some(token),
        _ => None,
    }
}

/// A service with and without a back end.
fn worlds() -> [(World, bool); 2] {
    let quiet = |config: &mut Config| {
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
    };
    let worlds =
        [(World::with(quiet), false), (World::before_with(Arc::new(Memory::default()), quiet), true)];
    worlds.iter().for_each(|(world, _)| world.open_to_all());
    worlds
}

/// How a stranger connects: as the user whom the kernel reports, and with a user's key over TCP.
fn ways(world: &World) -> [Option<ConnectionKey>; 2] {
    [None, Some(crate::keys::grant(&mut world.control(), BOB, None).1)]
}

fn stranger(world: &World, key: Option<&ConnectionKey>, channel: Channel) -> Raw {
    match key {
        None => connect(world, BOB, channel, 66).0,
        Some(key) => crate::keys::connect(world.tcp(), channel, key).expect("connected").0,
    }
}

/// A service before a directory that every user may enter, in which each file is its owner's.
fn before_directory() -> (World, TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o1777)).expect("permissions set");
    let backend = Dir::open(dir.path()).expect("a back end");
    let world = World::before_with(Arc::new(backend), |config| {
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
    });
    world.open_to_all();
    (world, dir)
}

/// Strangers get nothing from a scene that was drained to a directory, and change nothing there.
fn drained_scene_is_closed(guard: Guard, passes: fn(&Request) -> bool) {
    let (world, dir) = before_directory();
    let mut scene = Scene::new(&world, ALICE, guard, 0);
    scene.remove_pipe();
    clean(&drain(&mut world.control(), None));
    let before = (scene.snapshot(&world), tree(dir.path()));
    for request in requests(&scene).into_iter().filter(passes) {
        let shown = format!("{request:?} of a drained file");
        let (mut stranger, _) = connect(&world, BOB, channel(&request), 66);
        let answer = call(&mut stranger, &request);
        scene.check_hidden(&encoded(&answer), &shown);
        let after = (scene.snapshot(&world), tree(dir.path()));
        assert_eq!(after, before, "{shown} of a stranger changed something");
    }
}

/// Names, owners, modes and lengths in a directory.
fn tree(dir: &std::path::Path) -> Vec<String> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        let meta = std::fs::symlink_metadata(&path).expect("metadata");
        all.push(format!("{} {} {:o} {}", path.display(), meta.uid(), meta.mode(), meta.len()));
        if meta.is_dir() {
            all.extend(tree(&path));
        }
    }
    all.sort();
    all
}

#[test]
fn strangers_get_and_change_nothing_of_drained_files_of_other_users() {
    if !has_users("strangers_get_and_change_nothing_of_drained_files_of_other_users") {
        return;
    }
    drained_scene_is_closed(Guard::Directory, |_| true);
    drained_scene_is_closed(Guard::Modes, |request| !matches!(request, Request::Link { .. }));
}

/// The errors that a stranger may get.
fn stranger_kinds(request: &Request, has_backend: bool, remote: bool) -> Vec<ErrorKind> {
    let mut kinds = NO.to_vec();
    if remote && matches!(request, Request::MapFile { .. }) {
        kinds.push(ErrorKind::Unsupported);
    }
    if may(request) == May::Memory || matches!(request, Request::Drain(_)) && !has_backend {
        kinds.push(ErrorKind::Unsupported);
    }
    kinds
}

#[test]
fn requests_about_files_of_other_users_are_refused() {
    if !has_users("requests_about_files_of_other_users_are_refused") {
        return;
    }
    for (world, has_backend) in worlds() {
        let mut scene = Scene::new(&world, ALICE, Guard::Directory, 0);
        let before = scene.snapshot(&world);
        let ways = ways(&world);
        let all = ways.iter().flat_map(|key| requests(&scene).into_iter().map(move |request| (key, request)));
        for (key, request) in all.collect::<Vec<_>>() {
            let remote = key.is_some();
            let shown = format!("{request:?} (back end: {has_backend}, TCP: {remote})");
            let mut stranger = stranger(&world, key.as_ref(), channel(&request));
            let answer = call(&mut stranger, &request);
            scene.check_hidden(&encoded(&answer), &shown);
            let refused = is_refused(&answer.0, &stranger_kinds(&request, has_backend, remote));
            match may(&request) {
                May::AnyUser if matches!(request, Request::Drain(_)) && !has_backend => assert!(refused),
                May::AnyUser => assert!(answer.0.is_ok(), "{shown}: {:?}", answer.0),
                _ => assert!(refused, "{shown} succeeds for a stranger: {:?}", answer.0),
            }
            // With another uid the seal of a token is invalid.
            let mut forged = request.clone();
            if let Some(token) = token_in(&mut forged) {
                token.uid = Uid(BOB);
                let answer = call(&mut stranger, &forged);
                let kinds = [ErrorKind::Stale, ErrorKind::Unsupported];
                assert!(is_refused(&answer.0, &kinds), "{shown}: a forged token: {:?}", answer.0);
            }
            let after = scene.snapshot(&world);
            assert_eq!(after, before, "{shown} of a stranger changed something");
        }
    }
}

#[test]
fn owners_and_root_may_send_their_requests() {
    if !has_users("owners_and_root_may_send_their_requests") {
        return;
    }
    for (world, has_backend) in worlds() {
        let count = requests(&Scene::new(&world, ALICE, Guard::Directory, 0)).len();
        for index in 0..count {
            for is_root in [false, true] {
                let number = 1 + 2 * index as u32 + u32::from(is_root);
                let scene = Scene::new(&world, ALICE, Guard::Directory, number);
                let request = requests(&scene).swap_remove(index);
                let rule = may(&request);
                // It would stop the server.
                if is_root && request == Request::Shutdown {
                    continue;
                }
                let mut raw = match (is_root, rule) {
                    (false, _) => scene.owner(&world, channel(&request)),
                    // As the mount does.
                    (true, May::Opener | May::Memory) => root(&world, channel(&request)).acting(ALICE),
                    (true, _) => root(&world, channel(&request)),
                };
                let (answer, _) = call(&mut raw, &request);
                let shown = format!("{request:?} (back end: {has_backend}, root: {is_root}): {answer:?}");
                let refused = is_refused(&answer, &NO);
                match (rule, is_root) {
                    _ if matches!(request, Request::Drain(_)) && !has_backend => {
                        assert!(is_refused(&answer, &[NO[0], NO[1], ErrorKind::Unsupported]), "{shown}");
                    }
                    (May::AnyUser | May::Owner | May::Opener, _) => assert!(answer.is_ok(), "{shown}"),
                    (May::Service, true) => assert!(!refused, "{shown}"),
                    (May::Service | May::Servers, _) => assert!(refused, "{shown}"),
                    (May::Memory, true) => assert!(!refused, "{shown}"),
                    // The configuration decides whether other users get shared memory; the file is their own.
                    (May::Memory, false) => {
                        assert!(answer.is_ok() || is_refused(&answer, &[ErrorKind::Unsupported]), "{shown}");
                    }
                    (May::Inside, _) => panic!("{shown} has no rule of its own"),
                }
            }
        }
    }
}

fn root(world: &World, channel: Channel) -> Raw {
    Raw::unix(&world.socket(), channel, 1).expect("connected")
}

#[test]
fn strangers_cannot_change_or_read_files_protected_by_modes() {
    if !has_users("strangers_cannot_change_or_read_files_protected_by_modes") {
        return;
    }
    for (world, has_backend) in worlds() {
        let mut scene = Scene::new(&world, ALICE, Guard::Modes, 0);
        let before = scene.snapshot(&world);
        let ways = ways(&world);
        let all = ways.iter().flat_map(|key| requests(&scene).into_iter().map(move |request| (key, request)));
        // POSIX lets any user that reaches a file link it, whatever its mode.
        let all = all.filter(|(_, request)| !matches!(request, Request::Link { .. }));
        for (key, request) in all.collect::<Vec<_>>() {
            let shown = format!("{request:?} (back end: {has_backend}, TCP: {})", key.is_some());
            let mut stranger = stranger(&world, key.as_ref(), channel(&request));
            let answer = call(&mut stranger, &request);
            scene.check_hidden(&encoded(&answer), &shown);
            let after = scene.snapshot(&world);
            assert_eq!(
                after, before,
                "{shown} of a stranger changed something, and was answered {:?}",
                answer.0
            );
        }
    }
}

#[test]
fn no_request_is_accepted_with_a_false_identity() {
    if !has_users("no_request_is_accepted_with_a_false_identity") {
        return;
    }
    let (world, _) = &worlds()[0];
    let mut scene = Scene::new(world, ALICE, Guard::Directory, 0);
    let before = scene.snapshot(world);
    for request in requests(&scene) {
        for identity in [
            person(ALICE),
            Identity::root(),
            Identity { groups: vec![Gid(0), Gid(ALICE)], ..person(BOB) },
            Identity { uid: Uid(u32::MAX), ..person(BOB) },
        ] {
            let shown = format!("{request:?} as {identity:?}");
            let (mut stranger, _) = connect(world, BOB, channel(&request), 66);
            let call = Call { identity: Some(identity), request: request.clone() };
            stranger.send_frame(FrameKind::Call, 5, &call, if on_data(&request) { b"x" } else { &[] });
            let answer = stranger.receive().expect("an answer").1;
            let kinds = [ErrorKind::NotPermitted, ErrorKind::Invalid, ErrorKind::Protocol];
            assert!(is_refused(&answer, &kinds), "{shown}: {answer:?}");
        }
    }
    assert_eq!(scene.snapshot(world), before);
}

/// The work of an ordinary user; every step has to succeed.
fn ordinary_work(world: &World, round: u32) {
    let client = u128::from(round);
    let (mut control, _) = connect(world, ALICE, Channel::Control, client);
    let (mut data, _) = connect(world, ALICE, Channel::Data, client);
    let title = format!("quiet{round}");
    let token = control.create(ROOT, &title, 0o600);
    assert_eq!(data.write(token, At::Offset(0), b"quiet work").expect("written"), 0);
    assert_eq!(data.read(token, 0, 99).expect("read"), b"quiet work");
    for request in [
        Request::Sync { token },
        Request::GetAttr { file: token.file },
        Request::ReadDir { dir: ROOT, cookie: 0, limit: 9, plus: true },
        Request::Status,
        Request::Close { token },
        Request::Unlink { dir: ROOT, name: crate::raw::name(&title) },
    ] {
        let shown = format!("{request:?}");
        let answer = control.call(request);
        assert!(answer.is_ok(), "{shown}: {answer:?}");
    }
}

#[test]
fn flood_of_requests_by_one_user_does_not_affect_others() {
    if !has_users("flood_of_requests_by_one_user_does_not_affect_others") {
        return;
    }
    let tight = |config: &mut Config| {
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
        let limits = &mut config.limits;
        (limits.connections, limits.user_connections) = (24, 12);
        (limits.sessions, limits.user_sessions) = (24, 12);
        (limits.opens, limits.user_opens) = (64, 32);
        (limits.waiting, limits.user_waiting) = (2 * limits.in_flight, limits.in_flight);
        (limits.user_syncs, limits.user_working, limits.user_mappings) = (1, 1, 8);
    };
    for world in [World::with(tight), World::before_with(Arc::new(Memory::default()), tight)] {
        world.open_to_all();
        let scene = Scene::new(&world, BOB, Guard::Directory, 0);
        let (mut round, mut seen, mut met) = (0, Vec::new(), BTreeSet::new());
        for request in requests(&scene) {
            // Requests that are refused are covered by another test.
            if matches!(may(&request), May::Servers) && seen.contains(&rule(&request).0) {
                continue;
            }
            seen.push(rule(&request).0);
            // Requests about the user's own files, whose answers are never read.
            let mut flood: Vec<Raw> = (0..4).map(|_| scene.owner(&world, channel(&request))).collect();
            for raw in &mut flood {
                for _ in 0..FLOOD {
                    let payload: &[u8] =
                        if matches!(request, Request::Write { .. }) { &[1; 512] } else { &[] };
                    raw.send(request.clone(), payload);
                }
            }
            round += 1;
            ordinary_work(&world, round);
            met.extend(bounds_met(&request, &mut flood));
            drop(flood);
            until("the flood is over", || match world.control().call(Request::Status) {
                Ok(Reply::Status(status)) => status.connections <= 3,
                other => panic!("no status: {other:?}"),
            });
        }
        for expected in [("Open", "user_opens"), ("Create", "user_opens"), ("MapFile", "user_mappings")] {
            assert!(
                met.contains(&expected),
                "a flood does not meet its bound: {expected:?} is not in {met:?}"
            );
        }
    }
}

/// Reads the answers to a flood of requests. Fails unless each refusal names a bound that the request's rule names; returns
/// these.
fn bounds_met(request: &Request, flood: &mut [Raw]) -> BTreeSet<(&'static str, &'static str)> {
    let (kind, mut met) = (rule(request).0, BTreeSet::new());
    let keys: Vec<&str> = takes(request).iter().flat_map(|bound| bound.keys().iter().copied()).collect();
    for raw in flood {
        for _ in 0..FLOOD {
            // The server ends a connection whose requests are refused for good.
            let Ok((_, answer, _)) = raw.receive() else { break };
            if let Err(error) = answer
                && matches!(error.kind(), ErrorKind::Busy | ErrorKind::NoSpace)
            {
                let text = error.to_string();
                let key = keys.iter().find(|key| text.contains(&format!("limits.{key}")));
                let key = key.unwrap_or_else(|| panic!("{request:?} meets no bound of its rule: {text}"));
                met.insert((kind, *key));
            }
        }
    }
    met
}

#[test]
fn every_limit_of_a_user_bounds_some_request() {
    if !has_users("every_limit_of_a_user_bounds_some_request") {
        return;
    }
    let world = World::new();
    world.open_to_all();
    let scene = Scene::new(&world, ALICE, Guard::Directory, 0);
    let mut bounding: BTreeSet<&str> = BTreeSet::new();
    for request in requests(&scene) {
        let bounds = takes(&request);
        assert!(!bounds.is_empty(), "{request:?} has no bound");
        let refused = matches!(may(&request), May::Service | May::Servers | May::Memory);
        if bounds == [Bound::Refused] {
            assert!(refused, "{request:?} is not refused to other users, so it needs a bound");
        }
        bounding.extend(bounds.iter().flat_map(|bound| bound.keys()).copied());
    }
    let limits = format!("{:?}", Config::default().limits);
    let words = limits.split(|letter: char| !(letter.is_alphanumeric() || letter == '_'));
    let keys: BTreeSet<&str> = words.filter(|word| word.starts_with("user_")).collect();
    assert!(keys.len() > 9 && keys.is_subset(&bounding), "{keys:?} are not all in {bounding:?}");
}

/// The status answer, which lists the files that cannot be drained.
fn failing(raw: &mut Raw) -> Vec<u8> {
    encoded(&call(raw, &Request::Status))
}

#[test]
fn strangers_see_no_failing_paths_of_other_users() {
    if !has_users("strangers_see_no_failing_paths_of_other_users") {
        return;
    }
    let faulty = Faulty::new(Memory::default(), |call| (call == "create").then_some(Fault::Before));
    let world = World::before_with(Arc::new(faulty), |config| {
        config.drain = Draining { age: Duration::from_secs(600), threshold: 99, ..Draining::default() };
    });
    world.open_to_all();
    let scene = Scene::new(&world, ALICE, Guard::Directory, 0);
    let mut root = world.control();
    root.call(Request::Drain(DrainCall::Begin { file: None, order: None, last: false })).unwrap();
    let shows = |bytes: &[u8]| bytes.windows(11).any(|part| part == b"HIDDEN-NAME");
    until("root sees the failing file", || shows(&failing(&mut root)));
    let (mut owner, (mut stranger, _)) =
        (scene.owner(&world, Channel::Control), connect(&world, BOB, Channel::Control, 66));
    assert!(shows(&failing(&mut owner)), "the owner sees the path");
    let look = Request::Drain(DrainCall::Look { ticket: None });
    for request in [Request::Status, look] {
        assert!(!shows(&encoded(&call(&mut stranger, &request))), "{request:?} shows a stranger the path");
    }
}
