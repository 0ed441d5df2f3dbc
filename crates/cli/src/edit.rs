//! `rm`, `mv`, `mkdir`, `ln`: changing the name space.

use crate::connect::Service;
use crate::failure::{Failure, Outcome};
use crate::remote::{each, entries, is_directory, join, last_part, mask, stat_if_exists, targets};
use clap::Args;
use forebay_client::blocking::Client;
use forebay_model::{ErrorKind, FileKind};
use forebay_wire::RenameMode;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Rm {
    /// Files and directories to remove
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Remove directories with everything in them
    #[arg(short)]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short)]
    force: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Mv {
    /// Files and directories to move
    #[arg(required = true)]
    from: Vec<PathBuf>,
    /// Destination: a new name, or a directory
    to: PathBuf,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Mkdir {
    /// Directories to create
    #[arg(required = true)]
    paths: Vec<PathBuf>,
    /// Create missing parents, and accept directories that exist
    #[arg(short)]
    parents: bool,
    #[command(flatten)]
    service: Service,
}

#[derive(Args)]
pub(crate) struct Ln {
    /// Target of the link
    target: PathBuf,
    /// Path of the new link
    link: PathBuf,
    /// Create a symbolic link
    #[arg(short)]
    symbolic: bool,
    #[command(flatten)]
    service: Service,
}

impl Rm {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        each(&self.paths, |path| {
            last_part(path)?;
            match client.lstat(path) {
                Err(error) if error.kind() == ErrorKind::NotFound && self.force => Ok(()),
                Err(error) => Err(error.into()),
                Ok(attr) if attr.kind != FileKind::Directory => Ok(client.unlink(path)?),
                Ok(_) if self.recursive => remove_tree(&client, path),
                Ok(_) => Err(Failure::Failed(format!(
                    "cannot remove {}: it is a directory: use \"forebay rm -r\"",
                    path.display()
                ))),
            }
        })
    }
}

fn remove_tree(client: &Client, dir: &Path) -> Outcome {
    for (entry, attr) in entries(client, dir)? {
        let path = join(dir, &entry.name);
        match attr.kind {
            FileKind::Directory => remove_tree(client, &path)?,
            _ => ignore_missing(client.unlink(&path))?,
        }
    }
    ignore_missing(client.rmdir(dir))
}

/// Accepts `NotFound`: another process may have removed the entry at the same time.
fn ignore_missing(removed: forebay_model::Result<()>) -> Outcome {
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

impl Mv {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let targets = targets(is_directory(&client, &self.to)?, &self.to, &self.from)?;
        let moves: Vec<_> = self.from.iter().zip(targets).collect();
        each(&moves, |(from, to)| Ok(client.rename(from, to, RenameMode::Replace)?))
    }
}

impl Mkdir {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        let mode = 0o777 & !mask();
        each(&self.paths, |path| match self.parents {
            true => make_all(&client, path, mode),
            false => Ok(client.mkdir(path, mode).map(|_| ())?),
        })
    }
}

fn make_all(client: &Client, path: &Path, mode: u16) -> Outcome {
    if stat_if_exists(client, path)?.is_some_and(|attr| attr.kind == FileKind::Directory) {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_all(client, parent, mode)?;
    }
    match client.mkdir(path, mode) {
        // Another process has created the directory at the same time.
        Err(error) if error.kind() == ErrorKind::Exists && is_directory(client, path)? => Ok(()),
        made => Ok(made.map(|_| ())?),
    }
}

impl Ln {
    pub(crate) fn run(&self) -> Outcome {
        let client = self.service.connect()?;
        match self.symbolic {
            true => client.symlink(&self.target, &self.link)?,
            false => client.link(&self.target, &self.link)?,
        };
        Ok(())
    }
}
