//! Data that was lost with stores.

use super::lossy;
use crate::human;
use forebay_model::{FileKind, Name};
use forebay_wire::{Loss, Losses, Lost};
use serde::Serialize;
use std::fmt;

/// Everything that a server knows to be lost.
#[derive(Serialize, Default)]
pub(crate) struct LostList {
    lost: Vec<LostFile>,
    /// Number of further losses.
    #[serde(skip_serializing_if = "is_none")]
    more: u64,
    /// Why the losses cannot be listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<String>,
}

#[derive(Serialize)]
struct LostFile {
    /// Its path; absent if no path is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    file: u64,
    /// The directory that has or had its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<u64>,
    /// The path of that directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The server whose store had it; absent if several stores were lost and it is not known which one had it.
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<u16>,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize)]
#[serde(tag = "lost", rename_all = "lowercase")]
enum What {
    /// Only the name is left.
    File { kind: FileKind },
    Bytes {
        bytes: u64,
        /// Whether more may be lost.
        open: bool,
    },
    /// Only the name is lost.
    Name { kind: FileKind, names: u32, size: u64 },
    /// Only these bytes are left.
    Rest { bytes: u64 },
    /// A directory of which only these names are left.
    Directory { names: u64 },
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

impl LostList {
    pub(crate) fn new(losses: Losses) -> LostList {
        let lost = losses.list.into_iter().map(LostFile::from).collect();
        LostList { lost, more: losses.more, unlisted: None }
    }

    /// A sentence for each loss, and whether a repair is safe.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = (String, bool)> + '_ {
        let safe = |what: &What| matches!(what, What::Name { .. } | What::Directory { .. });
        let more = (self.more > 0).then(|| (format!("{} more are lost", human::count(self.more)), true));
        self.lost.iter().map(move |lost| (lost.to_string(), safe(&lost.what))).chain(more)
    }

    pub(crate) fn unlisted(why: String) -> LostList {
        LostList { unlisted: Some(why), ..LostList::default() }
    }
}

impl From<Loss> for LostFile {
    fn from(loss: Loss) -> LostFile {
        let whole = |(above, name): (&Vec<u8>, &Name)| [above, b"/".as_slice(), name.as_bytes()].concat();
        let path = loss.above.as_ref().zip(loss.name.as_ref()).map(whole);
        LostFile {
            path: path.as_deref().map(lossy),
            file: loss.file.0,
            directory: loss.dir.map(|dir| dir.0),
            inside: loss
                .above
                .as_deref()
                .map(|path| if path.is_empty() { "/".to_owned() } else { lossy(path) }),
            name: loss.name.as_ref().map(|name| lossy(name.as_bytes())),
            server: loss.server.map(|server| server.0),
            what: match loss.what {
                Lost::Inode(kind) => What::File { kind },
                Lost::Bytes { count, open } => What::Bytes { bytes: count, open },
                Lost::Name { kind, names, size } => What::Name { kind, names, size },
                Lost::Rest { bytes } => What::Rest { bytes },
                Lost::Directory { names } => What::Directory { names },
            },
        }
    }
}

/// Each loss on its own line that begins with a newline.
impl fmt::Display for LostList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for lost in &self.lost {
            write!(f, "\n  LOST      {lost}")?;
        }
        if self.more > 0 {
            write!(f, "\n  LOST      and {} more", human::count(self.more))?;
        }
        match &self.unlisted {
            Some(why) => write!(f, "\n  LOST      cannot be listed: {why}"),
            None => Ok(()),
        }
    }
}

impl LostFile {
    /// The path or the best known name.
    fn called(&self) -> String {
        match (&self.path, &self.name, self.directory) {
            (Some(path), ..) => path.clone(),
            (None, Some(name), Some(directory)) => {
                format!("{name} in directory {directory}, whose path cannot be found")
            }
            _ => format!("file {}, whose path cannot be found", self.file),
        }
    }

    /// A description of a file without a name.
    fn nameless(&self, kind: FileKind, size: u64) -> String {
        let what = match kind {
            FileKind::File => format!("file {} ({})", self.file, human::counted(size, "byte")),
            kind => format!("{} {}", noun(kind), self.file),
        };
        match (&self.path, &self.inside, self.directory) {
            (Some(path), ..) => path.clone(),
            (None, Some(inside), _) => format!("a {what} in {inside}"),
            (None, None, Some(directory)) => {
                format!("a {what} in directory {directory}, whose path cannot be found")
            }
            (None, None, None) => format!("a {what}"),
        }
    }
}

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, called) = (self.file, self.called());
        let with = match self.server {
            Some(server) => format!("lost with the store of server {server}"),
            None => "lost with one of the stores that were replaced".to_owned(),
        };
        match self.what {
            What::File { kind } => write!(f, "{called}: the {} was {with}", noun(kind)),
            What::Bytes { bytes, open } => {
                let more = if open { "at least " } else { "" };
                write!(f, "{called}: {more}{} were {with}", human::counted(bytes, "byte"))
            }
            What::Name { kind, names, size } => {
                let what = self.nameless(kind, size);
                match names {
                    1 => write!(f, "{what}: its name was {with}, the rest was not"),
                    names => write!(f, "{what}: {names} of its names were {with}, the rest was not"),
                }
            }
            What::Rest { bytes } => {
                let left = human::counted(bytes, "byte");
                write!(
                    f,
                    "file {file}: it was {with}, and so was its name; {left} of it are left on this server"
                )
            }
            What::Directory { names } => {
                let left = human::counted(names, "name");
                write!(
                    f,
                    "directory {file}: it was {with}; {left} in it are left on this server, without a path"
                )
            }
        }
    }
}

fn noun(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::Special(_) => "special file",
    }
}
