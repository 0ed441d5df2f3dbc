//! Walking paths.

use super::{Attempt, Body, DirCopy, Inode, MAX_TRIES, Names, contended, damaged, demand, no_entry};
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, MAX_PATH, Name};

/// Where a path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Walked {
    /// To this file.
    Found(FileId, Box<Inode>),
    /// To a file of another server: in the last place, or a symbolic link that has to be followed.
    At {
        /// The directory that holds the name.
        dir: FileId,
        /// The file.
        file: FileId,
        /// What is left of the path behind it. A lone slash says that it has to be a directory.
        rest: Vec<u8>,
    },
    /// To a symbolic link that has to be followed first: from `dir`, go to `target`; if `rest` is not empty, put
    /// a slash and `rest` behind it.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// What the link says.
        target: Vec<u8>,
        /// What is left of the path behind it. A lone slash says that it has to be a directory.
        rest: Vec<u8>,
    },
    /// On at the home of the next name.
    Elsewhere {
        /// The directory that holds the next name.
        dir: FileId,
        /// What is left of the path.
        rest: Vec<u8>,
    },
}

/// What a name leads to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// A file of ours.
    Here(FileId, Box<Inode>),
    /// A file of another server.
    Away(FileId, FileKind),
}

impl Found {
    /// Which file.
    #[must_use]
    pub fn file(&self) -> FileId {
        match self {
            Found::Here(file, _) | Found::Away(file, _) => *file,
        }
    }

    fn kind(&self) -> FileKind {
        match self {
            Found::Here(_, inode) => inode.kind(),
            Found::Away(_, kind) => *kind,
        }
    }
}

impl Names {
    /// What is behind a name in a directory that `who` may search.
    pub fn lookup(&self, who: &Identity, dir: FileId, name: &Name) -> Attempt<Found> {
        self.demand_home(dir, name)?;
        demand(who, dir, &self.dir(dir)?, Access::EXECUTE)?;
        self.follow(dir, name)
    }

    /// Walks a path from a directory; `follow` also follows a link in the last place.
    ///
    /// A link before the last place, or with a slash behind it, is always followed. A slash in the beginning is
    /// ignored: where absolute paths start is the caller's affair.
    pub fn walk(&self, who: &Identity, dir: FileId, path: &[u8], follow: bool) -> Attempt<Walked> {
        if path.len() > MAX_PATH {
            let text = format!("a path has at most {MAX_PATH} bytes, this one has {}", path.len());
            return Err(Error::new(ErrorKind::NameTooLong, text).into());
        }
        let (mut before, mut at) = (dir, self.start(dir)?);
        let mut left = skip_slashes(path);
        while !left.is_empty() {
            let end = left.iter().position(|&byte| byte == b'/').unwrap_or(left.len());
            let (part, behind) = left.split_at(end);
            let rest = skip_slashes(behind);
            let must_be_directory = !behind.is_empty();
            let Some(next) = self.step(who, &at, part)? else {
                return Ok(Walked::Elsewhere { dir: at.file(), rest: left.to_vec() });
            };
            match next.kind() {
                FileKind::Symlink if follow || must_be_directory => {
                    let rest = if rest.is_empty() && must_be_directory { b"/" } else { rest };
                    return Ok(detour(at.file(), &next, rest.to_vec()));
                }
                FileKind::File | FileKind::Symlink if must_be_directory => {
                    return Err(not_directory(part).into());
                }
                _ => {}
            }
            (before, at, left) = (at.file(), next, rest);
        }
        if !path.is_empty() && path.iter().all(|&byte| byte == b'/') && at.kind() != FileKind::Directory {
            return Err(not_directory(path).into());
        }
        Ok(match at {
            Found::Here(file, inode) => Walked::Found(file, inode),
            Found::Away(file, _) => {
                let rest = if path.ends_with(b"/") { b"/".to_vec() } else { Vec::new() };
                Walked::At { dir: before, file, rest }
            }
        })
    }

    /// Where a walk begins. A file of another server is taken for a directory until it has to be one.
    fn start(&self, dir: FileId) -> Attempt<Found> {
        Ok(match self.is_here(dir) {
            true => Found::Here(dir, Box::new(self.inode(dir)?)),
            false => Found::Away(dir, FileKind::Directory),
        })
    }

    /// Goes from a directory to one of its entries, to itself or to its parent; nowhere if another server is home
    /// to the entry.
    fn step(&self, who: &Identity, from: &Found, part: &[u8]) -> Attempt<Option<Found>> {
        let at = from.file();
        if from.kind() != FileKind::Directory {
            let text = format!("file {at} is not a directory");
            return Err(Error::new(ErrorKind::NotDirectory, text).into());
        }
        match part {
            b"." => {
                demand(who, at, &self.copy_of(from)?, Access::EXECUTE)?;
                Ok(Some(from.clone()))
            }
            b".." => {
                self.holds.file_is_free(at)?;
                let copy = self.copy_of(from)?;
                demand(who, at, &copy, Access::EXECUTE)?;
                self.start(copy.parent).map(Some)
            }
            _ => {
                // That a name is too long is said by whoever is home to the directory's first names.
                let name = Name::new(part);
                if name.as_ref().is_ok_and(|name| self.home(at, name) != self.server()) {
                    return Ok(None);
                }
                demand(who, at, &self.copy_of(from)?, Access::EXECUTE)?;
                self.follow(at, &name?).map(Some)
            }
        }
    }

    fn copy_of(&self, found: &Found) -> Attempt<DirCopy> {
        match found {
            Found::Here(_, inode) => Ok(inode.copy()),
            Found::Away(file, _) => self.dir(*file),
        }
    }

    /// The file behind a name, read without locks.
    fn follow(&self, dir: FileId, name: &Name) -> Attempt<Found> {
        for _ in 0..MAX_TRIES {
            let Some(target) = self.settled_entry(dir, name)? else { return Err(no_entry(dir, name).into()) };
            if !self.is_here(target.file) {
                return Ok(Found::Away(target.file, target.kind));
            }
            if let Some(inode) = self.find_inode(target.file)? {
                return Ok(Found::Here(target.file, Box::new(inode)));
            }
            // The name may have gone between the two reads; if it still leads nowhere, it dangles.
            if self.settled_entry(dir, name)? == Some(target) && self.find_inode(target.file)?.is_none() {
                return Err(damaged(format!("entry {name:?} of directory {dir} leads to no inode")).into());
            }
        }
        Err(contended(dir, name).into())
    }
}

/// From a link in `dir`, with `rest` behind it.
fn detour(dir: FileId, link: &Found, rest: Vec<u8>) -> Walked {
    match link {
        Found::Here(_, inode) => {
            let target = match &inode.body {
                Body::Symlink { target } => target.clone(),
                _ => Vec::new(),
            };
            Walked::Link { dir, target, rest }
        }
        Found::Away(file, _) => Walked::At { dir, file: *file, rest },
    }
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[start..]
}

fn not_directory(part: &[u8]) -> Error {
    Error::new(ErrorKind::NotDirectory, format!("\"{}\" is not a directory", part.escape_ascii()))
}
