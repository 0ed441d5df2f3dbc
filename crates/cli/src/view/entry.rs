//! Files and directories.

use super::{People, table};
use crate::human;
use forebay_model::{Attr, FileKind};
use serde::Serialize;
use std::fmt;

/// The attributes of a file.
#[derive(Clone, Serialize)]
pub(crate) struct Entry {
    pub(crate) path: String,
    name: String,
    kind: FileKind,
    size: u64,
    buffered: u64,
    /// In octal, as `chmod` takes it.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    user: String,
    group: String,
    id: u64,
    atime: String,
    mtime: String,
    ctime: String,
    /// The target of a symbolic link.
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip)]
    bits: u16,
}

impl Entry {
    pub(crate) fn new(
        path: String,
        name: String,
        attr: &Attr,
        target: Option<String>,
        people: &People,
    ) -> Entry {
        Entry {
            path,
            name,
            kind: attr.kind,
            size: attr.size,
            buffered: attr.buffered,
            mode: format!("{:04o}", attr.mode),
            links: attr.links,
            uid: attr.uid.0,
            gid: attr.gid.0,
            user: people.user(attr.uid),
            group: people.group(attr.gid),
            id: attr.id.0,
            atime: human::time(attr.atime),
            mtime: human::time(attr.mtime),
            ctime: human::time(attr.ctime),
            target,
            bits: attr.mode,
        }
    }

    fn shown_name(&self) -> String {
        match &self.target {
            Some(target) => format!("{} -> {target}", self.name),
            None => self.name.clone(),
        }
    }
}

/// A listing.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Entries {
    pub(crate) entries: Vec<Entry>,
    #[serde(skip)]
    pub(crate) long: bool,
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.long {
            let names: Vec<&str> = self.entries.iter().map(|entry| entry.name.as_str()).collect();
            return f.write_str(&names.join("\n"));
        }
        let rows = self.entries.iter().map(|entry| {
            [
                human::mode(entry.kind, entry.bits),
                entry.links.to_string(),
                entry.user.clone(),
                entry.group.clone(),
                human::size(entry.size),
                entry.mtime.clone(),
                entry.shown_name(),
            ]
        });
        table(f, "lrllrll", 0, &rows.collect::<Vec<_>>())
    }
}

/// The attributes of entries in full.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Facts(pub(crate) Vec<Entry>);

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, entry) in self.0.iter().enumerate() {
            if number > 0 {
                writeln!(f)?;
            }
            let arrow = entry.target.as_ref().map(|target| format!(" -> {target}")).unwrap_or_default();
            let mode = human::mode(entry.kind, entry.bits);
            writeln!(f, "{}{arrow}", entry.path)?;
            writeln!(
                f,
                "  kind      {}, id {}, {}",
                human::kind(entry.kind),
                entry.id,
                human::counted(u64::from(entry.links), "link")
            )?;
            writeln!(
                f,
                "  size      {} ({}), {} in the buffer",
                human::count(entry.size),
                human::size(entry.size),
                human::size(entry.buffered)
            )?;
            writeln!(f, "  mode      {} {mode}", entry.mode)?;
            writeln!(f, "  owner     {} ({}), group {} ({})", entry.user, entry.uid, entry.group, entry.gid)?;
            writeln!(f, "  modified  {}", entry.mtime)?;
            writeln!(f, "  changed   {}", entry.ctime)?;
            write!(f, "  accessed  {}", entry.atime)?;
            if number + 1 < self.0.len() {
                writeln!(f)?;
            }
        }
        Ok(())
    }
}

/// The total size of a directory.
#[derive(Serialize)]
pub(crate) struct Sum {
    pub(crate) path: String,
    pub(crate) size: u64,
    pub(crate) buffered: u64,
    pub(crate) files: u64,
    pub(crate) directories: u64,
}

/// Totals of several directories.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Sums(pub(crate) Vec<Sum>);

impl fmt::Display for Sums {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.0.iter().map(|sum| {
            let files = human::counted(sum.files, "file");
            [human::size(sum.size), files, sum.path.clone()]
        });
        table(f, "rrl", 0, &rows.collect::<Vec<_>>())
    }
}
