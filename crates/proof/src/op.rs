//! Operations on a file system by path, and how a client performs them.

use forebay_client::blocking::{Client, File};
use forebay_client::{Listing, OpenOptions};
use forebay_model::{Attr, Error, FileKind, Gid, Name, Result, SetTime, Time, Uid};
use forebay_wire::{RenameMode, XattrMode};

/// One operation.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "each is the call of the client with that name")]
pub enum Op {
    Mkdir { path: String, mode: u16 },
    Symlink { target: String, path: String },
    Link { file: String, to: String },
    Unlink { path: String },
    Rmdir { path: String },
    Rename { from: String, to: String, mode: RenameMode },
    Chmod { path: String, mode: u16 },
    Chown { path: String, uid: Option<Uid>, gid: Option<Gid> },
    Utimens { path: String, time: Time },
    Truncate { path: String, size: u64 },
    SetXattr { path: String, name: String, value: Vec<u8>, mode: XattrMode },
    GetXattr { path: String, name: String },
    RemoveXattr { path: String, name: String },
    ListXattr { path: String },
    List { path: String },
    Stat { path: String },
    Lstat { path: String },
    ReadLink { path: String },
    Open { path: String, options: OpenOptions },
}

/// The attributes that the model knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its kind.
    pub kind: FileKind,
    /// Its mode.
    pub mode: u16,
    /// Number of hard links.
    pub links: u32,
    /// Its owner and group.
    pub owner: (u32, u32),
    /// Its length.
    pub size: u64,
}

impl From<&Attr> for Seen {
    fn from(attr: &Attr) -> Seen {
        let owner = (attr.uid.0, attr.gid.0);
        Seen { kind: attr.kind, mode: attr.mode, links: attr.links, owner, size: attr.size }
    }
}

/// The answer of an operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// Success without a value.
    Done,
    /// Attributes.
    Seen(Seen),
    /// The value of an attribute, or the target of a link.
    Bytes(Vec<u8>),
    /// Names of extended attributes.
    Names(Vec<String>),
    /// Entries, sorted by name.
    Entries(Vec<(String, FileKind)>),
}

fn text(name: &Name) -> String {
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}

/// Performs the operation; returns the answer, and the file that was opened.
pub fn perform(client: &Client, op: &Op) -> Result<(Answer, Option<File>), Error> {
    let seen = |attr: Attr| Answer::Seen(Seen::from(&attr));
    let done = |()| Answer::Done;
    let answer = match op {
        Op::Mkdir { path, mode } => seen(client.mkdir(path, *mode)?),
        Op::Symlink { target, path } => seen(client.symlink(target, path)?),
        Op::Link { file, to } => seen(client.link(file, to)?),
        Op::Unlink { path } => done(client.unlink(path)?),
        Op::Rmdir { path } => done(client.rmdir(path)?),
        Op::Rename { from, to, mode } => done(client.rename(from, to, *mode)?),
        Op::Chmod { path, mode } => seen(client.chmod(path, *mode)?),
        Op::Chown { path, uid, gid } => seen(client.chown(path, *uid, *gid)?),
        Op::Utimens { path, time } => {
            let set = Some(SetTime::To(*time));
            seen(client.utimens(path, set, set)?)
        }
        Op::Truncate { path, size } => done(client.truncate(path, *size)?),
        Op::SetXattr { path, name, value, mode } => done(client.set_xattr(path, name, value, *mode)?),
        Op::GetXattr { path, name } => Answer::Bytes(client.get_xattr(path, name)?),
        Op::RemoveXattr { path, name } => done(client.remove_xattr(path, name)?),
        Op::ListXattr { path } => {
            let mut names: Vec<String> = client.list_xattr(path)?.iter().map(text).collect();
            names.sort();
            Answer::Names(names)
        }
        Op::List { path } => {
            let entries = client.read_dir(path, Listing::Names)?;
            let entries = entries.map(|entry| entry.map(|entry| (text(&entry.name), entry.kind)));
            let mut entries = entries.collect::<Result<Vec<_>>>()?;
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            Answer::Entries(entries)
        }
        Op::Stat { path } => seen(client.stat(path)?),
        Op::Lstat { path } => seen(client.lstat(path)?),
        Op::ReadLink { path } => Answer::Bytes(client.read_link(path)?),
        Op::Open { path, options } => {
            let file = client.open(path, *options)?;
            let attr = file.stat()?;
            return Ok((seen(attr), Some(file)));
        }
    };
    Ok((answer, None))
}
