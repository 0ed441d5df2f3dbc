//! Walking paths.

use super::{Body, Inode, Names, damaged, demand, no_entry};
use forebay_model::{Access, Error, ErrorKind, FileId, FileKind, Identity, MAX_PATH, Name, Result};

/// Where a path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Walked {
    /// To this file.
    Found(FileId, Box<Inode>),
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
}

impl Names {
    /// Walks a path from a directory; `follow` also follows a link in the last place.
    ///
    /// A link before the last place, or with a slash behind it, is always followed. A slash in the beginning is
    /// ignored: where absolute paths start is the caller's affair.
    pub fn walk(&self, who: &Identity, dir: FileId, path: &[u8], follow: bool) -> Result<Walked> {
        if path.len() > MAX_PATH {
            let text = format!("a path has at most {MAX_PATH} bytes, this one has {}", path.len());
            return Err(Error::new(ErrorKind::NameTooLong, text));
        }
        let (mut at, mut inode) = (dir, self.inode(dir)?);
        let mut left = skip_slashes(path);
        while !left.is_empty() {
            let end = left.iter().position(|&byte| byte == b'/').unwrap_or(left.len());
            let (part, behind) = left.split_at(end);
            let rest = skip_slashes(behind);
            let must_be_directory = !behind.is_empty();
            let (next, found) = self.step(who, at, &inode, part)?;
            match found.body {
                Body::Symlink { target } if follow || must_be_directory => {
                    let rest = if rest.is_empty() && must_be_directory { b"/" } else { rest };
                    return Ok(Walked::Link { dir: at, target, rest: rest.to_vec() });
                }
                Body::File { .. } | Body::Symlink { .. } if must_be_directory => {
                    return Err(not_directory(part));
                }
                _ => {}
            }
            (at, inode, left) = (next, found, rest);
        }
        if !path.is_empty() && path.iter().all(|&byte| byte == b'/') && inode.kind() != FileKind::Directory {
            return Err(not_directory(path));
        }
        Ok(Walked::Found(at, Box::new(inode)))
    }

    /// Goes from a directory to one of its entries, to itself or to its parent.
    fn step(&self, who: &Identity, at: FileId, inode: &Inode, part: &[u8]) -> Result<(FileId, Inode)> {
        if inode.kind() != FileKind::Directory {
            return Err(Error::new(ErrorKind::NotDirectory, format!("file {at} is not a directory")));
        }
        demand(who, at, inode, Access::EXECUTE)?;
        match part {
            b"." => Ok((at, inode.clone())),
            b".." => {
                let above = inode.parent().ok_or_else(|| damaged(format!("directory {at} has no parent")))?;
                Ok((above, self.inode(above)?))
            }
            _ => {
                let name = Name::new(part)?;
                self.follow(at, &name)?.ok_or_else(|| no_entry(at, &name))
            }
        }
    }
}

fn skip_slashes(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    &path[start..]
}

fn not_directory(part: &[u8]) -> Error {
    Error::new(ErrorKind::NotDirectory, format!("\"{}\" is not a directory", part.escape_ascii()))
}
