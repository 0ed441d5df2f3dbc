//! What went with stores that were lost.

use super::lossy;
use crate::human;
use forebay_wire::{Loss, Losses, Lost};
use serde::Serialize;
use std::fmt;

/// Everything that a server knows to be lost.
#[derive(Serialize, Default)]
pub(crate) struct LostList {
    lost: Vec<LostFile>,
    /// How many more there are.
    #[serde(skip_serializing_if = "is_none")]
    more: u64,
    /// Why it cannot be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    unlisted: Option<String>,
}

#[derive(Serialize)]
struct LostFile {
    /// Where it is; absent if no path leads there.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    file: u64,
    directory: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The server with whose store it was lost.
    server: u16,
    #[serde(flatten)]
    what: What,
}

#[derive(Serialize)]
#[serde(tag = "lost", rename_all = "lowercase")]
enum What {
    /// Nothing but the name is left.
    File,
    Bytes {
        bytes: u64,
        /// And nobody knows how many more.
        open: bool,
    },
}

fn is_none(count: &u64) -> bool {
    *count == 0
}

impl LostList {
    pub(crate) fn new(losses: Losses) -> LostList {
        let lost = losses.list.into_iter().map(LostFile::from).collect();
        LostList { lost, more: losses.more, unlisted: None }
    }

    pub(crate) fn unlisted(why: String) -> LostList {
        LostList { unlisted: Some(why), ..LostList::default() }
    }
}

impl From<Loss> for LostFile {
    fn from(loss: Loss) -> LostFile {
        LostFile {
            path: loss.path.as_deref().map(lossy),
            file: loss.file.0,
            directory: loss.dir.0,
            name: loss.name.as_ref().map(|name| lossy(name.as_bytes())),
            server: loss.server.0,
            what: match loss.what {
                Lost::Inode => What::File,
                Lost::Bytes { count, open } => What::Bytes { bytes: count, open },
            },
        }
    }
}

/// Each in a line of its own, with a line end before it.
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

impl fmt::Display for LostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, &self.name) {
            (Some(path), _) => write!(f, "{path}")?,
            (None, Some(name)) => {
                write!(f, "{name} in directory {}, whose path cannot be found", self.directory)?;
            }
            (None, None) => write!(f, "file {}, whose path cannot be found", self.file)?,
        }
        let server = self.server;
        match self.what {
            What::File => write!(f, ": the file was lost with the store of server {server}"),
            What::Bytes { bytes, open } => {
                let more = if open { "at least " } else { "" };
                write!(
                    f,
                    ": {more}{} were lost with the store of server {server}",
                    human::counted(bytes, "byte")
                )
            }
        }
    }
}
