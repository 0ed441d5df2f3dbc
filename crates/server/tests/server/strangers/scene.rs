//! The files of a user that others must not see or change, and a snapshot of them by root.

use crate::raw::{Raw, World, hello, name};
use forebay_model::{Access, Attr, FileId, Special, Time};
use forebay_wire::{At, Channel, Reply, Request, Token, XattrMode};
use std::fmt::Write;
use std::os::unix::net::UnixStream;

pub(super) const ROOT: FileId = FileId::ROOT;
/// Marks that no answer to a stranger may contain.
pub(super) const BYTES: &[u8] = b"HIDDEN-BYTES";
const VALUE: &[u8] = b"HIDDEN-VALUE";
/// Marks that a stranger may see only in an open directory.
const NAME: &str = "HIDDEN-NAME";
const TARGET: &[u8] = b"HIDDEN-TARGET";

/// The protection against strangers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Guard {
    /// The parent directory: everything in it is open to all users.
    Directory,
    /// The modes of the files; the parent directory is open.
    Modes,
}

/// A directory of one user, with files.
pub(super) struct Scene {
    pub(super) uid: u32,
    pub(super) guard: Guard,
    /// Its name in the root.
    pub(super) title: String,
    pub(super) top: FileId,
    pub(super) file: FileId,
    pub(super) link: FileId,
    /// A directory that is not empty.
    pub(super) sub: FileId,
    /// A named pipe.
    pub(super) pipe: FileId,
    /// A file in the root, which is sticky.
    pub(super) outer: FileId,
    /// Token of the open file.
    pub(super) token: Token,
    /// The server's number of the owner's connection.
    pub(super) connection: u64,
    /// The id of the owner's client.
    pub(super) client: u128,
    control: Raw,
}

impl Scene {
    pub(super) fn new(world: &World, uid: u32, guard: Guard, number: u32) -> Scene {
        let client = u128::from(uid) << 32 | u128::from(number);
        let (mut control, connection) = connect(world, uid, Channel::Control, client);
        let (above, dir_mode, file_mode) = match guard {
            Guard::Directory => (0o700, 0o777, 0o666),
            Guard::Modes => (0o755, 0o700, 0o600),
        };
        let title = format!("scene-{uid}-{number}");
        let top = control.make_dir(ROOT, &title, above);
        let token = control.create(top, NAME, file_mode);
        let (mut data, _) = connect(world, uid, Channel::Data, client);
        data.write(token, At::Offset(0), BYTES).expect("written");
        let (file, value) = (token.file, VALUE.to_vec());
        let set = Request::SetXattr { file, name: name("user.x"), value, mode: XattrMode::Any };
        control.call(set).expect("set");
        let target = TARGET.to_vec();
        let link = match control.call(Request::Symlink { dir: top, name: name("link"), target }) {
            Ok(Reply::Attr(attr)) => attr.id,
            other => panic!("no link: {other:?}"),
        };
        let sub = control.make_dir(top, "sub", dir_mode);
        control.make_dir(sub, NAME, dir_mode);
        control.make_dir(top, "empty", dir_mode);
        let special = Special::Pipe;
        let request = Request::MakeSpecial { dir: top, name: name("pipe"), mode: file_mode, special };
        let pipe = match control.call(request) {
            Ok(Reply::Attr(attr)) => attr.id,
            other => panic!("no pipe: {other:?}"),
        };
        let outer = control.create(ROOT, &format!("outer-{title}"), 0o600).file;
        Scene { uid, guard, title, top, file, link, sub, pipe, outer, token, connection, client, control }
    }

    /// Removes the pipe, which cannot be drained.
    pub(super) fn remove_pipe(&mut self) {
        self.control.call(Request::Unlink { dir: self.top, name: name("pipe") }).expect("removed");
    }

    pub(super) fn path(&self) -> Vec<u8> {
        format!("{}/{NAME}", self.title).into_bytes()
    }

    pub(super) fn file_name(&self) -> forebay_model::Name {
        name(NAME)
    }

    pub(super) fn outer_name(&self) -> forebay_model::Name {
        name(&format!("outer-{}", self.title))
    }

    /// Another connection of the owner's client.
    pub(super) fn owner(&self, world: &World, channel: Channel) -> Raw {
        connect(world, self.uid, channel, self.client).0
    }

    /// The complete state as root sees it, without access times and drain progress.
    pub(super) fn snapshot(&mut self, world: &World) -> String {
        let mut root = world.control();
        let mut text = String::new();
        for file in [self.top, self.file, self.link, self.sub, self.pipe, self.outer] {
            let attr = match root.call(Request::GetAttr { file }) {
                Ok(Reply::Attr(attr)) => Ok(Attr { atime: Time::default(), buffered: 0, ..attr }),
                other => Err(other),
            };
            writeln!(text, "{attr:?}").expect("a string");
            writeln!(text, "{:?}", root.call(Request::ListXattr { file })).expect("a string");
        }
        let value = root.call(Request::GetXattr { file: self.file, name: name("user.x") });
        writeln!(text, "{value:?} {:?}", root.call(Request::ReadLink { file: self.link })).expect("a string");
        for dir in [self.top, self.sub] {
            let listed = root.call(Request::ReadDir { dir, cookie: 0, limit: 99, plus: false });
            writeln!(text, "{listed:?}").expect("a string");
        }
        let open = Request::Open { file: self.file, access: Access::READ, truncate: false };
        let Ok(Reply::Opened { token, .. }) = root.call(open) else { panic!("root cannot open the file") };
        writeln!(text, "{:?}", world.data().read(token, 0, 999)).expect("a string");
        root.call(Request::Close { token }).expect("closed");
        // The owner's connection and open file still work.
        writeln!(text, "{:?}", self.control.call(Request::Ping)).expect("a string");
        let reopened = self.control.call(Request::Reopen { token: self.token }).map(drop);
        writeln!(text, "{reopened:?}").expect("a string");
        text
    }

    /// Fails if an answer contains a mark that a stranger must not see.
    pub(super) fn check_hidden(&self, answer: &[u8], what: &str) {
        let marks: &[&[u8]] = match self.guard {
            Guard::Directory => &[BYTES, VALUE, TARGET, NAME.as_bytes()],
            Guard::Modes => &[BYTES, VALUE],
        };
        for mark in marks {
            let shown = answer.windows(mark.len()).any(|part| part == *mark);
            assert!(!shown, "{what} shows {}", String::from_utf8_lossy(mark));
        }
    }
}

/// A connection of a user, and its number.
pub(super) fn connect(world: &World, uid: u32, channel: Channel, client: u128) -> (Raw, u64) {
    let socket =
        forebay_testkit::as_user(uid, || UnixStream::connect(world.socket()).expect("socket connection"));
    let mut raw = Raw::bare(socket);
    let welcome = raw.greet(&hello(channel, client), None).expect("connected");
    assert_eq!(welcome.uid.0, uid, "the kernel reports the uid");
    (raw, welcome.connection)
}
