//! Everything that can be asked about files and directories by their ids: what a mount needs, and what paths
//! are resolved with.

use crate::File;
use crate::file::Label;
use crate::join::join;
use crate::listing::{Page, merge, share};
use crate::opens::{Opened, Opening, unexpected};
use crate::service::Service;
use crate::session::{Session, Who};
use crate::spread::Spread;
use forebay_model::{
    Access, Attr, Change, Error, ErrorKind, FileId, Layout, MAX_PATH, Name, Result, Special, Striping,
};
use forebay_wire::{Entry, IfExists, RenameMode, Reply, Request, Token, XattrMode};
use std::sync::Arc;

/// How many symbolic links one path may lead through.
pub const MAX_LINKS: usize = 40;

/// How often a file is made or opened anew because the one that was there had gone.
const TRIES: usize = 16;
/// How many attributes are asked for at a time.
const AT_ONCE: usize = 64;

/// Calls by id. Made by [`Client::by_id`](crate::Client::by_id).
#[derive(Clone)]
pub struct ById {
    pub(crate) service: Arc<Service>,
    pub(crate) who: Who,
}

/// Asks, and takes the one kind of reply that answers the request.
macro_rules! ask {
    ($self:ident, $request:expr, $reply:pat => $value:expr) => {{
        let request = $request;
        match $self.service.call(&$self.who, &request).await? {
            $reply => Ok($value),
            other => Err(unexpected(&request, &other)),
        }
    }};
}

/// What one request makes of a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// It leads here.
    Found(Attr),
    /// It meets a symbolic link.
    Link {
        /// The directory that holds the link.
        dir: FileId,
        /// What the link says.
        target: Vec<u8>,
        /// What is left of the path behind it.
        rest: Vec<u8>,
    },
}

impl ById {
    /// Walks a path up to the first symbolic link, for callers to whom absolute links mean something of their own.
    pub async fn step(&self, dir: FileId, path: &[u8], follow: bool) -> Result<Step> {
        if self.service.several().is_some() {
            return Box::pin(self.walk_far(dir, path, follow)).await;
        }
        if dir == FileId::ROOT
            && let Some(attr) = self.service.first().seen_attr(&self.who, path, follow)
        {
            return Ok(Step::Found(attr));
        }
        let request = Request::Walk { dir, path: path.to_vec(), follow };
        match self.service.first().call(&self.who, &request).await? {
            Reply::Found(attr) => Ok(Step::Found(attr)),
            Reply::Link { dir, target, rest } => Ok(Step::Link { dir, target, rest }),
            other => Err(unexpected(&request, &other)),
        }
    }

    /// The directory that a path from the root leads to, if that is known without asking. Whoever asks for something in it
    /// and is told that it is stale has to walk: it was removed since.
    #[must_use]
    pub fn seen_dir(&self, dir: FileId, path: &[u8]) -> Option<FileId> {
        match self.service.several() {
            None if dir == FileId::ROOT => self.service.first().seen_dir(&self.who, path),
            _ => None,
        }
    }

    /// Walks a path from a directory, through symbolic links; through one in the last place only if `follow`.
    /// Absolute links lead from the service's root.
    pub async fn walk(&self, dir: FileId, path: &[u8], follow: bool) -> Result<Attr> {
        let (mut dir, mut path) = (dir, path.to_vec());
        for _ in 0..=MAX_LINKS {
            if path.len() > MAX_PATH {
                return Err(too_long());
            }
            // What ends in a slash means the directory behind the link.
            let through = follow || path.ends_with(b"/");
            match self.step(dir, &path, through).await? {
                Step::Found(attr) => return Ok(attr),
                Step::Link { dir: holder, target, rest } => (dir, path) = behind(holder, target, &rest),
            }
        }
        Err(ErrorKind::TooManyLinks.into())
    }

    /// Attributes of a file.
    pub async fn get_attr(&self, file: FileId) -> Result<Attr> {
        ask!(self, Request::GetAttr { file }, Reply::Attr(attr) => attr)
    }

    /// Changes attributes, and returns them all.
    pub async fn set_attr(&self, file: FileId, change: Change) -> Result<Attr> {
        ask!(self, Request::SetAttr { file, change }, Reply::Attr(attr) => attr)
    }

    /// Opens a file.
    pub async fn open(&self, file: FileId, access: Access, truncate: bool) -> Result<File> {
        let opened = self.open_by(Request::Open { file, access, truncate }).await?;
        Ok(File::new(opened.held, opened.attr, Label::Number(file)))
    }

    /// Takes over a file that another process, or an earlier program of this one, has opened.
    pub async fn reopen(&self, token: Token) -> Result<File> {
        let opened = self.open_by(Request::Reopen { token }).await?;
        Ok(File::new(opened.held, opened.attr, Label::Number(token.file)))
    }

    /// Closes an open file by its proof, whoever else in this process still has it: for a process that ends.
    pub async fn close(&self, token: Token) -> Result<()> {
        ask!(self, Request::Close { token }, Reply::Done => ())
    }

    /// Makes a file, or opens the one that is there; says whether it was made. A symbolic link that is there is
    /// not followed: `TooManyLinks`.
    pub async fn create(
        &self,
        dir: FileId,
        name: Name,
        mode: u16,
        access: Access,
        if_exists: IfExists,
    ) -> Result<(File, bool)> {
        let label = Label::Entry(dir, name.clone());
        let request = Request::Create { dir, name, mode, access, if_exists };
        let opened = self.open_by(request).await?;
        Ok((File::new(opened.held, opened.attr, label), opened.created))
    }

    /// Opens a file where its inode is, also one that a name on another server leads to.
    async fn open_by(&self, request: Request) -> Result<Opened> {
        for _ in 0..TRIES {
            let file = match self.service.whom(&request)?.open(&self.who, &request).await? {
                Opening::Here(opened) => return self.spread(*opened),
                Opening::At(file) => file,
            };
            let Request::Create { access, if_exists, .. } = &request else {
                let text = "the service sends a request to another server than the file's";
                return Err(Error::new(ErrorKind::Protocol, text));
            };
            let open = Request::Open { file, access: *access, truncate: *if_exists == IfExists::Truncate };
            match self.service.whom(&open)?.open(&self.who, &open).await {
                Ok(Opening::Here(opened)) => return self.spread(*opened),
                // It has gone since, and perhaps the name with it.
                Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {}
                Ok(Opening::At(_)) => return Err(ErrorKind::Protocol.into()),
                Err(error) => return Err(error),
            }
        }
        Err(ErrorKind::Busy.into())
    }

    /// Notes where the bytes of an open file are, if not all where it was opened.
    fn spread(&self, opened: Opened) -> Result<Opened> {
        match Spread::of(&self.service, opened.held.session(), &opened.layout)? {
            Some(spread) => Ok(Opened { held: opened.held.with_spread(spread), ..opened }),
            None => Ok(opened),
        }
    }

    /// Sets the length of a file.
    pub async fn truncate(&self, file: FileId, size: u64) -> Result<()> {
        ask!(self, Request::TruncateFile { file, size }, Reply::Done => ())
    }

    /// Makes a directory.
    pub async fn mkdir(&self, dir: FileId, name: Name, mode: u16) -> Result<Attr> {
        ask!(self, Request::MakeDir { dir, name, mode }, Reply::Attr(attr) => attr)
    }

    /// Makes a pipe, socket or device.
    pub async fn make_special(&self, dir: FileId, name: Name, mode: u16, special: Special) -> Result<Attr> {
        ask!(self, Request::MakeSpecial { dir, name, mode, special }, Reply::Attr(attr) => attr)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, dir: FileId, name: Name) -> Result<()> {
        ask!(self, Request::RemoveDir { dir, name }, Reply::Done => ())
    }

    /// Removes a name of a file.
    pub async fn unlink(&self, dir: FileId, name: Name) -> Result<()> {
        ask!(self, Request::Unlink { dir, name }, Reply::Done => ())
    }

    /// Moves a name.
    pub async fn rename(
        &self,
        dir: FileId,
        name: Name,
        to_dir: FileId,
        to_name: Name,
        mode: RenameMode,
    ) -> Result<()> {
        ask!(self, Request::Rename { dir, name, to_dir, to_name, mode }, Reply::Done => ())
    }

    /// Gives a file one more name.
    pub async fn link(&self, file: FileId, dir: FileId, name: Name) -> Result<Attr> {
        ask!(self, Request::Link { file, dir, name }, Reply::Attr(attr) => attr)
    }

    /// Makes a symbolic link.
    pub async fn symlink(&self, dir: FileId, name: Name, target: &[u8]) -> Result<Attr> {
        ask!(self, Request::Symlink { dir, name, target: target.to_vec() }, Reply::Attr(attr) => attr)
    }

    /// What a symbolic link says.
    pub async fn read_link(&self, file: FileId) -> Result<Vec<u8>> {
        ask!(self, Request::ReadLink { file }, Reply::Target(target) => target)
    }

    /// Some entries of a directory, and the cookie to go on with unless that was the end.
    pub async fn read_dir(
        &self,
        dir: FileId,
        cookie: u64,
        limit: u32,
        plus: bool,
    ) -> Result<(Vec<Entry>, Option<u64>)> {
        let request = Request::ReadDir { dir, cookie, limit, plus };
        if self.service.several().is_none() {
            let Page { entries, next } = self.page(self.service.first(), &request, cookie).await?;
            return Ok((entries, next));
        }
        let sessions = self.service.namers();
        let request = Request::ReadDir { dir, cookie, limit: share(limit, sessions.len()), plus };
        let pages = sessions.iter().map(|session| self.page(session, &request, cookie));
        let pages: Result<Vec<Page>> = join(pages.collect()).await.into_iter().collect();
        let Page { mut entries, next } = merge(pages?, limit as usize);
        if plus {
            self.complete(&mut entries).await?;
        }
        Ok((entries, next))
    }

    async fn page(&self, session: &Session, request: &Request, cookie: u64) -> Result<Page> {
        match session.call(&self.who, request).await? {
            Reply::Entries { next: Some(next), .. } if next <= cookie => {
                Err(Error::new(ErrorKind::Protocol, "the service's pages lead in a circle"))
            }
            Reply::Entries { entries, next } => Ok(Page { entries, next }),
            other => Err(unexpected(request, &other)),
        }
    }

    /// Asks for the attributes that the homes of the names do not have. What has gone since is left out.
    async fn complete(&self, entries: &mut Vec<Entry>) -> Result<()> {
        let missing: Vec<usize> = (0..entries.len()).filter(|&index| entries[index].attr.is_none()).collect();
        let mut gone = Vec::new();
        for batch in missing.chunks(AT_ONCE) {
            let asked = batch.iter().map(|&index| self.get_attr(entries[index].file)).collect();
            for (&index, attr) in batch.iter().zip(join(asked).await) {
                match attr {
                    Ok(attr) => entries[index].attr = Some(attr),
                    Err(error) if matches!(error.kind(), ErrorKind::Stale | ErrorKind::NotFound) => {
                        gone.push(entries[index].cookie);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        entries.retain(|entry| entry.attr.is_some() || !gone.contains(&entry.cookie));
        Ok(())
    }

    /// How the files of a directory are laid out unless that is left to the servers, or where a file's own bytes are.
    pub async fn layout(&self, file: FileId) -> Result<(Option<Striping>, Option<Layout>)> {
        ask!(self, Request::GetLayout { file }, Reply::Layout { striping, layout } => (striping, layout))
    }

    /// Lays out the files that will be made in a directory in this way; `None` leaves it to the servers.
    pub async fn set_layout(&self, dir: FileId, striping: Option<Striping>) -> Result<()> {
        ask!(self, Request::SetLayout { dir, striping }, Reply::Layout { .. } => ())
    }

    /// One extended attribute.
    pub async fn get_xattr(&self, file: FileId, name: Name) -> Result<Vec<u8>> {
        ask!(self, Request::GetXattr { file, name }, Reply::Value(value) => value)
    }

    /// Sets an extended attribute.
    pub async fn set_xattr(&self, file: FileId, name: Name, value: &[u8], mode: XattrMode) -> Result<()> {
        ask!(self, Request::SetXattr { file, name, value: value.to_vec(), mode }, Reply::Done => ())
    }

    /// Names of all extended attributes.
    pub async fn list_xattr(&self, file: FileId) -> Result<Vec<Name>> {
        ask!(self, Request::ListXattr { file }, Reply::Names(names) => names)
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, file: FileId, name: Name) -> Result<()> {
        ask!(self, Request::RemoveXattr { file, name }, Reply::Done => ())
    }
}

/// Where a link in `holder` leads: a directory, and the path from there.
pub(crate) fn behind(holder: FileId, target: Vec<u8>, rest: &[u8]) -> (FileId, Vec<u8>) {
    let dir = if target.starts_with(b"/") { FileId::ROOT } else { holder };
    let mut path = target;
    if !rest.is_empty() {
        path.push(b'/');
        path.extend_from_slice(rest);
    }
    (dir, path)
}

pub(crate) fn too_long() -> Error {
    Error::new(ErrorKind::NameTooLong, format!("a path has at most {MAX_PATH} bytes"))
}
