//! `ls`, `stat`, `du`: listing names and attributes.

use crate::connect::Service;
use crate::failure::Outcome;
use crate::output;
use crate::remote::{each, entries, join};
use crate::view::{Entries, Entry, Facts, People, Sum, Sums, lossy};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_model::{Attr, ErrorKind, FileId, FileKind};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Ls {
    /// Files and directories to list
    #[arg(default_value = "/")]
    paths: Vec<PathBuf>,
    /// Show modes, owners, sizes and times
    #[arg(short)]
    long: bool,
    /// Show names that begin with a dot
    #[arg(short)]
    all: bool,
    /// List directories recursively
    #[arg(short = 'R')]
    recursive: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Stat {
    /// Files and directories to show
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Du {
    /// Directories to measure
    #[arg(default_value = "/")]
    paths: Vec<PathBuf>,
    /// Print only one total for each
    #[arg(short)]
    sum: bool,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    service: Service,
}

fn shown(path: &Path) -> String {
    lossy(path.as_os_str().as_bytes())
}

/// Builds views of entries.
struct Viewer {
    client: Client,
    people: People,
}

impl Viewer {
    fn new(client: Client) -> Viewer {
        Viewer { client, people: People::default() }
    }

    fn view(&self, path: &Path, name: String, attr: &Attr) -> Outcome<Entry> {
        let target = match attr.kind {
            FileKind::Symlink => {
                let target = self.client.wait(self.client.by_id().read_link(attr.id));
                Some(lossy(
                    &target.map_err(|error| error.within(format!("cannot read link {}", path.display())))?,
                ))
            }
            _ => None,
        };
        Ok(Entry::new(shown(path), name, attr, target, &self.people))
    }
}

/// A directory, or a single file that was named.
struct Group {
    heading: Option<String>,
    entries: Vec<Entry>,
    below: Vec<PathBuf>,
}

impl Ls {
    pub(crate) fn run(&self) -> Outcome {
        let viewer = Viewer::new(self.service.connect()?);
        let headings = self.paths.len() > 1 || self.recursive;
        let (mut all, mut first) = (Vec::new(), true);
        let walked = each(&self.paths, |path| {
            let mut waiting = vec![path.clone()];
            while let Some(path) = waiting.pop() {
                let group = self.group(&viewer, &path)?;
                waiting.extend(group.below.into_iter().rev());
                if self.json {
                    all.extend(group.entries);
                    continue;
                }
                if let Some(heading) = group.heading.filter(|_| headings) {
                    let gap = if first { "" } else { "\n" };
                    output::text(format_args!("{gap}{heading}:"))?;
                }
                first = false;
                output::show(&Entries { entries: group.entries, long: self.long }, false)?;
            }
            Ok(())
        });
        if self.json {
            output::show(&Entries { entries: all, long: self.long }, true)?;
        }
        walked
    }

    fn group(&self, viewer: &Viewer, path: &Path) -> Outcome<Group> {
        // A dangling symbolic link is shown as a link.
        let attr = match viewer.client.stat(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => viewer.client.lstat(path)?,
            found => found?,
        };
        if attr.kind != FileKind::Directory {
            let attr = viewer.client.lstat(path)?;
            let entries = vec![viewer.view(path, shown(path), &attr)?];
            return Ok(Group { heading: None, entries, below: Vec::new() });
        }
        let (mut views, mut below) = (Vec::new(), Vec::new());
        for (entry, attr) in entries(&viewer.client, path)? {
            if !self.all && entry.name.as_bytes().starts_with(b".") {
                continue;
            }
            let path = join(path, &entry.name);
            views.push(viewer.view(&path, entry.name.to_string(), &attr)?);
            if self.recursive && attr.kind == FileKind::Directory {
                below.push(path);
            }
        }
        Ok(Group { heading: Some(shown(path)), entries: views, below })
    }
}

impl Stat {
    pub(crate) fn run(&self) -> Outcome {
        let viewer = Viewer::new(self.service.connect()?);
        let mut facts = Vec::new();
        let looked = each(&self.paths, |path| {
            let attr = viewer.client.lstat(path)?;
            let name = path.file_name().map_or_else(|| "/".to_owned(), |name| lossy(name.as_bytes()));
            facts.push(viewer.view(path, name, &attr)?);
            Ok(())
        });
        output::show(&Facts(facts), self.json)?;
        looked
    }
}

impl Du {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let mut sums = Vec::new();
        let added = each(&self.paths, |path| {
            let attr = client.stat(path)?;
            let mut adder =
                Adder { client: &client, only_top: self.sum, seen: HashSet::new(), sums: &mut sums };
            let sum = adder.add(path, &attr)?;
            adder.sums.push(sum);
            Ok(())
        });
        output::show(&Sums(sums), self.json)?;
        added
    }
}

struct Adder<'a> {
    client: &'a Client,
    only_top: bool,
    /// Files with several names; each counts once.
    seen: HashSet<FileId>,
    sums: &'a mut Vec<Sum>,
}

impl Adder<'_> {
    fn add(&mut self, path: &Path, attr: &Attr) -> Outcome<Sum> {
        let mut sum = Sum { path: shown(path), size: 0, buffered: 0, files: 0, directories: 0 };
        if attr.kind != FileKind::Directory {
            (sum.size, sum.buffered, sum.files) = (attr.size, attr.buffered, 1);
            return Ok(sum);
        }
        sum.directories = 1;
        for (entry, attr) in entries(self.client, path)? {
            if attr.kind == FileKind::File && attr.links > 1 && !self.seen.insert(attr.id) {
                continue;
            }
            let part = self.add(&join(path, &entry.name), &attr)?;
            sum.size += part.size;
            sum.buffered += part.buffered;
            sum.files += part.files;
            sum.directories += part.directories;
            if attr.kind == FileKind::Directory && !self.only_top {
                self.sums.push(part);
            }
        }
        Ok(sum)
    }
}
