//! Names that were lost without their files, and other partial losses.

use super::{PROGRAM, await_lost, plan};
use forebay_client::OpenOptions;
use forebay_client::blocking::Client;
use forebay_model::{ErrorKind, FileId, FileKind, Members, Name, ServerId};
use forebay_proof::{By, Fleet};
use forebay_wire::{Lost, RenameMode};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Paths whose last name has a chosen home server.
struct Homes {
    members: Members,
    dir: FileId,
    path: String,
}

impl Homes {
    fn new(fleet: &Fleet, client: &Client, path: &str) -> Homes {
        let servers = fleet.hosts[0].cluster.clone().expect("cluster").servers;
        let (members, dir) = (Members::new(1, servers).unwrap(), client.stat(path).unwrap().id);
        Homes { members, dir, path: path.trim_end_matches('/').to_owned() }
    }

    fn on(&self, server: u16, like: &str) -> String {
        let names = (0..).map(|number| format!("{like}{number}"));
        let mut on_server = names.filter(|name| {
            self.members.home(self.dir, &Name::new(name.as_str()).unwrap()) == ServerId(server)
        });
        format!("{}/{}", self.path, on_server.next().expect("a matching name"))
    }
}

/// Files whose names, or whose inodes, are on server 2, and the losses to report when its store is lost.
fn scatter(client: &Client, at: &Homes, fleet: &Fleet) -> BTreeMap<String, Lost> {
    let make = |path: &str| {
        let file = client.open(path, OpenOptions::CREATE_NEW).unwrap();
        file.pwrite(0, b"seven b").unwrap();
        file.close().unwrap();
    };
    let id = |path: &str| client.lstat(path).unwrap().id;
    let moved = |from: &str, to: &str| client.rename(from, to, RenameMode::NoReplace).unwrap();
    let named = |names| Lost::Name { kind: FileKind::File, names, size: 7 };
    let nameless = |path: &str| format!("{}/#{}", at.path, id(path));
    let mut expected_losses = BTreeMap::new();
    // A file, a directory and a symbolic link that were renamed to a name on the lost server.
    make(&at.on(1, "a"));
    moved(&at.on(1, "a"), &at.on(2, "a"));
    expected_losses.insert(nameless(&at.on(2, "a")), named(1));
    client.mkdir(at.on(1, "c"), 0o755).unwrap();
    moved(&at.on(1, "c"), &at.on(2, "c"));
    make(&Homes::new(fleet, client, &at.on(2, "c")).on(3, "f"));
    expected_losses.insert(at.on(2, "c"), Lost::Name { kind: FileKind::Directory, names: 1, size: 0 });
    client.symlink("there", at.on(3, "s")).unwrap();
    moved(&at.on(3, "s"), &at.on(2, "s"));
    expected_losses
        .insert(nameless(&at.on(2, "s")), Lost::Name { kind: FileKind::Symlink, names: 1, size: 5 });
    // One name of two, and two of three.
    for (like, more) in [("h", 1), ("k", 2)] {
        make(&at.on(1, like));
        for number in 0..more {
            client.link(at.on(1, like), at.on(2, &format!("{like}{number}-"))).unwrap();
        }
        expected_losses.insert(nameless(&at.on(1, like)), named(more));
    }
    // A file and a directory that the lost server created, with names on other servers.
    make(&at.on(2, "b"));
    moved(&at.on(2, "b"), &at.on(3, "b"));
    expected_losses.insert(at.on(3, "b"), Lost::Inode(FileKind::File));
    for (like, name) in [("e", None), ("g", Some(at.on(1, "g")))] {
        client.mkdir(at.on(2, like), 0o755).unwrap();
        let inside = Homes::new(fleet, client, &at.on(2, like));
        for (server, names) in [(1, 2), (3, 1)] {
            (0..names).for_each(|number| make(&inside.on(server, &format!("{number}-"))));
            expected_losses.insert(format!("#{} on {server}", inside.dir), Lost::Directory { names });
        }
        if let Some(name) = name {
            moved(&at.on(2, like), &name);
            expected_losses.insert(name, Lost::Inode(FileKind::Directory));
        }
    }
    // Nothing of these is lost.
    make(&at.on(1, "j"));
    moved(&at.on(1, "j"), &at.on(2, "j"));
    moved(&at.on(2, "j"), &at.on(3, "j"));
    make(&at.on(2, "r"));
    moved(&at.on(2, "r"), &at.on(3, "r"));
    client.unlink(at.on(3, "r")).unwrap();
    expected_losses
}

/// Stops a thread, even if a check fails before.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn names_lost_without_their_files_are_listed() {
    let mut fleet = Fleet::new(PROGRAM, 3, plan());
    let client = fleet.client(0, By::Unix);
    let root = Homes::new(&fleet, &client, "/");
    let dir = root.on(3, "d");
    client.mkdir(&dir, 0o755).unwrap();
    let at = Homes::new(&fleet, &client, &dir);
    let expected_losses = scatter(&client, &at, &fleet);
    let restless = (at.on(1, "m"), at.on(3, "m"));
    client.open(&restless.0, OpenOptions::CREATE_NEW).unwrap().close().unwrap();
    fleet.lose_store(ServerId(2));
    fleet.host(2).begin();
    // A file that moves during the search for it is not lost.
    let mover = fleet.client(2, By::Unix);
    let stop = AtomicBool::new(false);
    let expected: BTreeMap<_, _> =
        expected_losses.into_iter().map(|(label, what)| (label, (ServerId(2), what))).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut places = [&restless.0, &restless.1];
            while !stop.load(Ordering::Relaxed) {
                // None of it is on the server that is down.
                mover.rename(places[0], places[1], RenameMode::NoReplace).unwrap();
                places.reverse();
            }
        });
        let _stops = Stops(&stop);
        let _ = fleet.host(2).await_ready();
        let client = fleet.replace(ServerId(2));
        await_lost(&client, &expected);
    });
    assert_eq!(client.stat(at.on(2, "a")).unwrap_err().kind(), ErrorKind::Io);
    assert_eq!(client.stat(at.on(3, "j")).unwrap().size, 7);
    assert_eq!(client.stat(at.on(1, "h")).unwrap().links, 2, "the link count still includes the lost name");
    // A restart finds the same losses.
    drop((client, mover));
    fleet.stop_all();
    fleet.start_all();
    await_lost(&fleet.client(1, By::Unix), &expected);
}
