//! Path lookup over several servers: each server continues for as long as it has the next name.

use crate::by_id::{ById, Step};
use crate::opens::unexpected;
use crate::prefixes::tidy;
use forebay_model::{Attr, Error, ErrorKind, FileId, FileKind, Name, Result};
use forebay_wire::{Known, Reply, Request};

/// How often a lookup restarts because the file was removed before its attributes were read.
const TRIES: usize = 16;

/// State of a lookup.
struct Position {
    dir: FileId,
    path: Vec<u8>,
    /// The normalized path from the root, if the lookup started there. Directories on it are remembered.
    whole: Option<Vec<u8>>,
}

/// What a reply means for the lookup.
enum Turn {
    Step(Step),
    GoOn,
    /// The file was removed meanwhile.
    Restart,
}

impl ById {
    /// Resolves a path up to the first symbolic link.
    pub(crate) async fn walk_cluster(&self, dir: FileId, path: &[u8], follow: bool) -> Result<Step> {
        for _ in 0..TRIES {
            let whole = if dir == FileId::ROOT { tidy(path) } else { None };
            let mut position = Position { dir, path: path.to_vec(), whole };
            let mut turn = match self.jump(&mut position, follow).await? {
                Some(turn) => turn,
                None => Turn::GoOn,
            };
            while let Turn::GoOn = turn {
                let (dir, path) = (position.dir, position.path.clone());
                let request = Request::Walk { dir, path, follow };
                let reply = self.service.call(&self.who, &request).await?;
                turn = self.turn(&mut position, &request, reply, follow).await?;
            }
            if let Turn::Step(step) = turn {
                return Ok(step);
            }
        }
        Err(ErrorKind::NotFound.into())
    }

    /// The directory at a path, for a request about `name` in it.
    pub(crate) async fn directory(&self, from: FileId, path: &[u8], name: &Name) -> Result<FileId> {
        if let Some(members) = self.service.cluster()
            && from == FileId::ROOT
            && let Some(mut path) = tidy(path)
        {
            path.truncate(path.strip_suffix(b"/").unwrap_or(&path).len());
            if let Some(dir) = self.service.prefixes.whole(&path)
                && let Ok(len) = u16::try_from(path.len())
            {
                let session = self.service.session(members.home(dir, name))?;
                let request = Request::Jump { path: path.clone(), follow: true, known: Known { len, dir } };
                match session.call(&self.who, &request).await? {
                    Reply::Elsewhere { dir: still, rest } if still == dir && rest.is_empty() => {
                        return Ok(dir);
                    }
                    _ => self.service.prefixes.forget(&path),
                }
            }
        }
        Ok(self.walk(from, path, true).await?.id)
    }

    /// Starts the lookup at the deepest known directory on the path, if there is one.
    async fn jump(&self, position: &mut Position, follow: bool) -> Result<Option<Turn>> {
        let Some(whole) = position.whole.clone() else {
            return Ok(None);
        };
        let Some(known) = self.service.prefixes.on_the_way(&whole) else {
            return Ok(None);
        };
        let prefix = whole[..usize::from(known.len)].to_vec();
        let request = Request::Jump { path: whole.clone(), follow, known };
        let left = whole.len() - prefix.len();
        let reply = self.service.call(&self.who, &request).await?;
        if let Reply::Elsewhere { dir, rest } = &reply
            && rest.len() >= left
        {
            // The remembered path leads to another directory now.
            self.service.prefixes.forget(&prefix);
            (position.dir, position.path) = (*dir, rest.clone());
            return Ok(None);
        }
        position.path = whole;
        Ok(Some(self.turn(position, &request, reply, follow).await?))
    }

    async fn turn(
        &self,
        position: &mut Position,
        request: &Request,
        reply: Reply,
        follow: bool,
    ) -> Result<Turn> {
        match reply {
            Reply::Found(attr) => Ok(Turn::Step(self.found(position, attr))),
            Reply::Link { dir, target, rest } => Ok(Turn::Step(Step::Link { dir, target, rest })),
            Reply::Elsewhere { dir, rest } if rest.len() < position.path.len() => {
                self.remember(position, &rest, dir);
                (position.dir, position.path) = (dir, rest);
                Ok(Turn::GoOn)
            }
            Reply::Elsewhere { .. } => {
                let text =
                    "the servers redirect the lookup in a loop: check that all have the same server list";
                Err(Error::new(ErrorKind::Protocol, text))
            }
            Reply::At { dir, file, rest } if rest.len() < position.path.len() => {
                self.reach_file(position, dir, file, rest, follow).await
            }
            other => Err(unexpected(request, &other)),
        }
    }

    /// The path has reached a file whose inode is on another server.
    async fn reach_file(
        &self,
        position: &mut Position,
        dir: FileId,
        file: FileId,
        rest: Vec<u8>,
        follow: bool,
    ) -> Result<Turn> {
        let gone = |error: &Error| matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound);
        let attr = match self.get_attr(file).await {
            Err(error) if gone(&error) => return Ok(Turn::Restart),
            attr => attr?,
        };
        let last = rest.iter().all(|&byte| byte == b'/');
        let slash = position.path.ends_with(b"/");
        match attr.kind {
            FileKind::Symlink if follow || slash || !last => match self.read_link(file).await {
                Err(error) if gone(&error) => Ok(Turn::Restart),
                target => Ok(Turn::Step(Step::Link { dir, target: target?, rest })),
            },
            FileKind::Directory if !last => {
                (position.dir, position.path) = (file, rest);
                Ok(Turn::GoOn)
            }
            FileKind::Directory => Ok(Turn::Step(self.found(position, attr))),
            _ if slash || !last => Err(ErrorKind::NotDirectory.into()),
            _ => Ok(Turn::Step(Step::Found(attr))),
        }
    }

    fn found(&self, position: &Position, attr: Attr) -> Step {
        if attr.kind == FileKind::Directory {
            self.remember(position, b"", attr.id);
        }
        Step::Found(attr)
    }

    /// Remembers the directory to which the path without `rest` leads.
    fn remember(&self, position: &Position, rest: &[u8], dir: FileId) {
        let walked = position.whole.as_deref().and_then(|whole| {
            let rest = rest.strip_prefix(b"/").unwrap_or(rest);
            whole.strip_suffix(rest)
        });
        if let Some(walked) = walked {
            self.service.prefixes.learn(walked.strip_suffix(b"/").unwrap_or(walked), dir);
        }
    }
}
