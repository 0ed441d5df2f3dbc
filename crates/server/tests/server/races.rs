//! Many clients open, unlink, replace, write and close the same few names concurrently; nothing is left over at the
//! end.

use crate::raw::{Raw, World, name, pattern};
use forebay_model::{Access, ErrorKind, FileId};
use forebay_testkit::{Rng, seed};
use forebay_wire::{At, Channel, IfExists, RenameMode, Reply, Request, Status, Token};

const ROOT: FileId = FileId::ROOT;
const CLIENTS: u64 = 6;
const ROUNDS: usize = 300;

fn status(raw: &mut Raw) -> Status {
    match raw.call(Request::Status) {
        Ok(Reply::Status(status)) => *status,
        other => panic!("no status: {other:?}"),
    }
}

struct Client {
    rng: Rng,
    control: Raw,
    data: Raw,
    open: Vec<Token>,
}

impl Client {
    fn step(&mut self, about: &str) {
        let file = format!("f{}", self.rng.below(3));
        let done = match self.rng.below(6) {
            0 | 1 => {
                let if_exists = if self.rng.below(2) == 0 { IfExists::Open } else { IfExists::Truncate };
                let (dir, access) = (ROOT, Access::BOTH);
                let create = Request::Create { dir, name: name(&file), mode: 0o600, access, if_exists };
                match self.control.call(create) {
                    Ok(Reply::Opened { token, .. }) => self.open.push(token),
                    other => panic!("{about}: {other:?}"),
                }
                Ok(())
            }
            2 => self.control.call(Request::Unlink { dir: ROOT, name: name(&file) }).map(|_| ()),
            3 => {
                let (dir, to_dir, to_name) = (ROOT, ROOT, name(&format!("f{}", self.rng.below(3))));
                let rename =
                    Request::Rename { dir, name: name(&file), to_dir, to_name, mode: RenameMode::Replace };
                self.control.call(rename).map(|_| ())
            }
            4 if !self.open.is_empty() => {
                let token = self.open.swap_remove(self.rng.index(self.open.len()));
                self.control.call(Request::Close { token }).map(|_| ())
            }
            _ if !self.open.is_empty() => self.transfer(about),
            _ => Ok(()),
        };
        match done {
            Ok(()) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "{about}: {error}"),
        }
    }

    /// A client can use an open file whatever happens to its names.
    fn transfer(&mut self, about: &str) -> forebay_model::Result<()> {
        let token = self.open[self.rng.index(self.open.len())];
        let bytes = pattern(self.rng.below(100), 1 + self.rng.index(9000));
        self.data.write(token, At::Offset(0), &bytes).unwrap_or_else(|error| panic!("{about}: {error}"));
        self.data.read(token, 0, 9000).unwrap_or_else(|error| panic!("{about}: {error}"));
        Ok(())
    }
}

#[test]
fn random_opens_and_removals_leak_nothing() {
    let seed = seed();
    let mut world = World::new();
    for boot in 0..2 {
        std::thread::scope(|scope| {
            for number in 0..CLIENTS {
                let world = &world;
                scope.spawn(move || {
                    let about = format!("seed {seed}, boot {boot}, client {number}");
                    let connect =
                        |channel| Raw::unix(&world.socket(), channel, u128::from(number)).expect("connected");
                    let rng = Rng::new(seed + number * 1000 + boot);
                    let (control, data) = (connect(Channel::Control), connect(Channel::Data));
                    let mut client = Client { rng, control, data, open: Vec::new() };
                    (0..ROUNDS).for_each(|_| client.step(&about));
                    for token in std::mem::take(&mut client.open) {
                        client.control.call(Request::Close { token }).unwrap();
                    }
                });
            }
        });
        let mut control = world.control();
        for number in 0..3 {
            let unlink = Request::Unlink { dir: ROOT, name: name(&format!("f{number}")) };
            match control.call(unlink) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotFound, "seed {seed}"),
            }
        }
        let end = status(&mut control);
        assert_eq!((end.usage.files, end.usage.live, end.opens), (1, 0, 0), "seed {seed}, boot {boot}");
        world.restart();
    }
}
