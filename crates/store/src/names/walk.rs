//! Path walks.

use super::{Attempt, Body, DirCopy, Inode, MAX_TRIES, Names, check_access, contended, damaged, no_entry};
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, MAX_PATH, Name};

/// The result of a path walk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Walked {
    /// A file on this server.
    Found(FileId, Box<Inode>),
    /// A file on another server: the last component, or a symbolic link to follow.
    At {
        /// The directory of its name.
        dir: FileId,
        /// The file.
        file: FileId,
        /// The rest of the path after it. A single slash means that it must be a directory.
        rest: Vec<u8>,
    },
    /// A symbolic link to follow: continue in `dir` with `target`; if `rest` is not empty, append a slash and `rest`.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// The target of the link.
        target: Vec<u8>,
        /// The rest of the path after it. A single slash means that it must be a directory.
        rest: Vec<u8>,
    },
    /// The walk continues on the home of the next name.
    Elsewhere {
        /// The directory of the next name.
        dir: FileId,
        /// The rest of the path.
        rest: Vec<u8>,
    },
}

/// The target of a name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// A file on this server.
    Here(FileId, Box<Inode>),
    /// A file on another server.
    Away(FileId, FileKind),
}

impl Found {
    /// The file id.
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
    /// Looks up a name in a directory that `who` may search.
    pub fn lookup(&self, who: &Identity, dir: FileId, name: &Name) -> Attempt<Found> {
        self.check_home(dir, name)?;
        check_access(who, dir, &self.dir(dir)?, Access::EXECUTE)?;
        self.follow(dir, name)
    }

    /// Walks a path from a directory; `follow` also follows a symbolic link in the last component.
    ///
    /// A link before the last component, or followed by a slash, is always followed. A leading slash is ignored: the
    /// caller decides where absolute paths start.
    pub fn walk(&self, who: &Identity, dir: FileId, path: &[u8], follow: bool) -> Attempt<Walked> {
        if path.len() > MAX_PATH {
            let text = format!("a path has at most {MAX_PATH} bytes, this one has {}", path.len());
            return Err(Error::new(ErrorKind::NameTooLong, text).into());
        }
        let (mut before, mut at) = (dir, self.start(dir)?);
        let mut left = skip_slashes(path);
        while !left.is_empty() {
            let end = left.iter().position(|&byte| byte == b'/').unwrap_or(left.len());
            let (part, after) = left.split_at(end);
            let rest = skip_slashes(after);
            let must_be_directory = !after.is_empty();
            let Some(next) = self.step(who, &at, part)? else {
                return Ok(Walked::Elsewhere { dir: at.file(), rest: left.to_vec() });
            };
            match next.kind() {
                FileKind::Symlink if follow || must_be_directory => {
                    let rest = if rest.is_empty() && must_be_directory { b"/" } else { rest };
                    return Ok(link_found(at.file(), &next, rest.to_vec()));
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

    /// The start of a walk. A file of another server counts as a directory until that matters.
    fn start(&self, dir: FileId) -> Attempt<Found> {
        Ok(match self.is_here(dir) {
            true => Found::Here(dir, Box::new(self.inode(dir)?)),
            false => Found::Away(dir, FileKind::Directory),
        })
    }

    /// Steps from a directory to one of its entries, to itself or to its parent; `None` if another server is home to
    /// the entry.
    fn step(&self, who: &Identity, from: &Found, part: &[u8]) -> Attempt<Option<Found>> {
        let at = from.file();
        if from.kind() != FileKind::Directory {
            let text = format!("file {at} is not a directory");
            return Err(Error::new(ErrorKind::NotDirectory, text).into());
        }
        match part {
            b"." => {
                check_access(who, at, &self.copy_of(from)?, Access::EXECUTE)?;
                Ok(Some(from.clone()))
            }
            b".." => {
                self.holds.file_is_free(at)?;
                let copy = self.copy_of(from)?;
                check_access(who, at, &copy, Access::EXECUTE)?;
                self.start(copy.parent).map(Some)
            }
            _ => {
                // An invalid name has no home, so this server reports the error.
                let name = Name::new(part);
                if name.as_ref().is_ok_and(|name| self.home(at, name) != self.server()) {
                    return Ok(None);
                }
                check_access(who, at, &self.copy_of(from)?, Access::EXECUTE)?;
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

    /// The target of a name, read without locks.
    fn follow(&self, dir: FileId, name: &Name) -> Attempt<Found> {
        for _ in 0..MAX_TRIES {
            let Some(target) = self.settled_entry(dir, name)? else { return Err(no_entry(dir, name).into()) };
            if !self.is_here(target.file) {
                return Ok(Found::Away(target.file, target.kind));
            }
            if let Some(inode) = self.find_inode(target.file)? {
                return Ok(Found::Here(target.file, Box::new(inode)));
            }
            // The name may have been removed between the two reads; if it still has no inode, it dangles.
            if self.settled_entry(dir, name)? == Some(target) && self.find_inode(target.file)?.is_none() {
                return Err(damaged(format!(
                    "entry {name} of directory {dir} leads to no inode",
                    name = name.quoted()
                ))
                .into());
            }
        }
        Err(contended(dir, name).into())
    }
}

/// The result for a link in `dir` followed by `rest`.
fn link_found(dir: FileId, link: &Found, rest: Vec<u8>) -> Walked {
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
